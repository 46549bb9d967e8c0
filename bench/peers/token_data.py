"""A language model's batches: windows of the recipe's text in Tessera's order, or, where a job has no text, random tokens."""
import torch
from common import Refused
from data_order import BatchOrder, TokenFile, TokenWindows, files_of


class TokenData:
    def __init__(self, job, rank, device, folder, vocabulary):
        self.job, self.rank, self.device, self.vocabulary = job, rank, device, vocabulary
        self.seq_len, self.order = job.model.get("seq_len", 256), None
        if job.data.get("train") is None:
            self.generator = torch.Generator().manual_seed(rank)
            return
        shuffle = job.data.get("shuffle", True)
        self.sets = [TokenWindows(TokenFile(path, job.data.get("tokenizer"), job.program, folder), self.seq_len, shuffle,
                                  job.seed) for path in files_of(job.data["train"])]
        self.order = BatchOrder([one.samples for one in self.sets], job.data, job.seed)

    def rows(self):
        """The next micro-batch of this rank: seq_len + 1 tokens a row."""
        size = self.job.batch_size
        if self.order is None:
            return torch.randint(0, self.vocabulary, (size, self.seq_len + 1), generator=self.generator)
        data_set, numbers = self.order.take(size * self.job.world_size)
        own = numbers if self.job.mode == "dp" else numbers[self.rank * size:(self.rank + 1) * size]
        rows = torch.tensor([self.sets[data_set].window(number) for number in own])
        if rows.max() >= self.vocabulary:
            raise Refused(f"the text has the token {rows.max().item()}, the model a vocabulary of {self.vocabulary}")
        return rows

    def batches(self, _step):
        rows = [self.rows().to(self.device) for _ in range(self.job.accumulation)]
        return [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in rows]

    def samples(self, batches):
        return sum(len(ids) for ids, _ in batches)

    def tokens(self, batches):
        return sum(ids.numel() for ids, _ in batches)

    def loss(self, model, batch):
        return model(*batch).mean()  # nn.DataParallel gives one a GPU
