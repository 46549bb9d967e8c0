#!/usr/bin/env python3
"""Sentence Transformers as a peer of `tessera bench`: the recipe's sentence_pairs with its package's models and losses.

Modes: none (one rank), dp (nn.DataParallel, on GPUs only), ddp, fsdp2 (fully_shard of each layer; `fsdp` is the same), over
gloo or NCCL, eager or with torch.compile of each layer. Model, tokenizer and losses are the package's own. The loop is that
of the other peers instead of the package's trainer: the same samples in the same order, AdamW with Tessera's groups, and
texts tokenised before a step's time begins, as a trainer's workers do. MultipleNegativesRankingLoss gathers the other
ranks' texts (gather_across_devices). ddp looks for unused parameters, because not every loss has a head. The pooler, which
no sentence embedding goes through, is left out.
"""
import os
import pathlib
import shutil
import sys

import common
import data_order
import torch_training

common.leave_script_folder()
SCRIPT = os.path.abspath(__file__)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json", "sentencepiece.bpe.model")
ARCHITECTURES = ("bert", "mpnet")


def random_encoder(job, folder):
    """A folder with random weights, for a recipe that describes a model."""
    import torch
    import transformers

    torch.manual_seed(job.seed)
    keys = {key: value for key, value in job.model.items() if value is not None}
    rate = keys.pop("dropout", 0.0)
    keys.setdefault("hidden_dropout_prob", rate)
    keys.setdefault("attention_probs_dropout_prob", rate)
    keys["max_position_embeddings"] = keys.get("max_position_embeddings") or keys.get("seq_len", 256)
    kind = keys.pop("architecture")
    config = transformers.AutoConfig.for_model(kind, **keys)
    transformers.AutoModel.from_config(config).save_pretrained(folder)


def assemble(job, folder):
    """A folder that SentenceTransformer opens: weights, configuration and the recipe's tokenizer."""
    target = pathlib.Path(folder) / "encoder"
    target.mkdir()
    if job.weights:
        for entry in pathlib.Path(job.weights).iterdir():
            if entry.name not in ("manifest.json", "optimizer.safetensors"):
                (target / entry.name).symlink_to(entry.resolve())
    else:
        random_encoder(job, target)
    given = job.data.get("tokenizer") or job.model.get("pretrained")
    source = pathlib.Path(given) if given else None
    if source is not None and not any((target / name).exists() for name in TOKENIZER_FILES):
        for file in source.iterdir() if source.is_dir() else [source]:
            if file.name in TOKENIZER_FILES:
                shutil.copy(file, target / file.name)
    if not any((target / name).exists() for name in TOKENIZER_FILES):
        raise common.Refused(f"{given}: no tokenizer that transformers reads ({', '.join(TOKENIZER_FILES)})")
    return target


class PairData:
    """Batches of the data sets in Tessera's order, tokenised by the model."""

    def __init__(self, job, rank, device, tokenize, sets):
        self.job, self.rank, self.device, self.tokenize, self.sets = job, rank, device, tokenize, sets
        self.order = data_order.BatchOrder([one.samples for one in sets], job.data, job.seed)

    def batch(self):
        import torch

        size = self.job.batch_size
        data_set, numbers = self.order.take(size * self.job.world_size)
        own = numbers if self.job.mode == "dp" else numbers[self.rank * size:(self.rank + 1) * size]
        rows = [self.sets[data_set].read(number) for number in own]
        features = []
        for column in zip(*(texts for texts, _ in rows), strict=True):
            tokens = self.tokenize(list(column))
            features.append({key: value.to(self.device) if hasattr(value, "to") else value for key, value in tokens.items()})
        labels = [label for _, label in rows]
        dtype = torch.long if self.sets[data_set].loss == "softmax" else torch.float32
        return data_set, features, torch.tensor(labels, dtype=dtype, device=self.device)

    def batches(self, _step):
        return [self.batch() for _ in range(self.job.accumulation)]

    def samples(self, batches):
        return sum(len(labels) for _, _, labels in batches)

    def tokens(self, batches):
        return sum(int(one["attention_mask"].sum()) for _, features, _ in batches for one in features)

    def loss(self, model, batch):
        return model(*batch).mean()  # nn.DataParallel gives one a GPU


def make_losses(job, model, sets, losses):
    """The package's loss of each data set; those of softmax share one head, as Tessera's do."""
    made, head = [], None
    for one in sets:
        if one.loss == "cosine_similarity":
            made.append(losses.CosineSimilarityLoss(model))
        elif one.loss == "softmax":
            made.append(losses.SoftmaxLoss(model, model.get_embedding_dimension(), one.classes))
            head = head or made[-1].classifier
            made[-1].classifier = head
        elif one.loss == "multiple_negatives_ranking":
            made.append(losses.MultipleNegativesRankingLoss(model, scale=one.ranking_scale,
                                                            gather_across_devices=job.world_size > 1))
        else:
            made.append(losses.MSELoss(model))
    return made, head


def pairs_model(model, made):
    """The trained module: forward() is the loss of a data set's batch."""
    from torch import nn

    class PairsModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.losses = nn.ModuleList(made)
            self.encoder = model

        def forward(self, data_set, features, labels):
            return self.losses[data_set](features, labels)

    return PairsModel()


def load_head(head, folder):
    """SoftmaxLoss's head, which is beside the encoder in a Tessera folder."""
    import torch

    tensors = common.sibling("language_models").tensors_of(folder)
    if "classifier.weight" in tensors:
        with torch.no_grad():
            head.weight.copy_(tensors["classifier.weight"])
            head.bias.copy_(tensors["classifier.bias"])


class SentenceTransformers:
    name = "sentence-transformers"
    modes = ("none", "dp", "ddp", "fsdp", "fsdp2")

    @staticmethod
    def version():
        import sentence_transformers

        return sentence_transformers.__version__

    @staticmethod
    def check(job):
        if job.train.get("task") != "sentence_pairs":
            raise common.Refused("this peer trains sentence_pairs; pytorch.py has language models")
        common.needs("sentence_transformers", "name a Python that has it, such as scripts/judges makes")
        if not job.weights and job.model.get("architecture") not in ARCHITECTURES:
            raise common.Refused(f"the architecture {job.model.get('architecture')} is none of {', '.join(ARCHITECTURES)}")
        if not isinstance(job.data.get("train"), list):
            raise common.Refused("data.train is not a list of data sets")
        torch_training.check_modes(job)

    @staticmethod
    def prepare(job, folder):
        job.values["encoder_folder"] = str(assemble(job, folder))
        return job

    @staticmethod
    def build(job, rank, device):
        from sentence_transformers import SentenceTransformer

        try:
            from sentence_transformers.sentence_transformer import losses
        except ImportError:  # before 6
            from sentence_transformers import losses
        model = SentenceTransformer(job.values["encoder_folder"], device=str(device), local_files_only=True)
        if job.model.get("seq_len"):
            model.max_seq_length = min(job.model["seq_len"], model.max_seq_length or job.model["seq_len"])
        transformer = model[0].auto_model
        if hasattr(transformer, "pooler"):
            transformer.pooler = None
        sets = [data_order.SentenceRows(one, job.data, seed)
                for one, seed in zip(job.data["train"], data_order.seeds_of(job.seed), strict=False)]
        made, head = make_losses(job, model, sets, losses)
        if head is not None and job.weights:
            load_head(head, job.weights)
        data = PairData(job, rank, device, model.tokenize, sets)
        layer = type(transformer.encoder.layer[0])
        return torch_training.Training(pairs_model(model, made), layer, job, device, data, unused=True)


if __name__ == "__main__":
    sys.exit(common.main(SentenceTransformers, SCRIPT, __doc__))
