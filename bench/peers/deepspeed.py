#!/usr/bin/env python3
"""DeepSpeed as a peer of `tessera bench`: the language models of pytorch.py under ZeRO.

Modes: zero0 (its data parallelism), zero1, zero2, zero3, over gloo (CPUs, DS_ACCELERATOR=cpu) or NCCL. Settings are those of
DeepSpeed's documentation: overlap_comm and contiguous_gradients, stage 3 with its defaults, clipping and accumulation by
the engine, bf16 by its own setting with fp32 masters. The optimizer is torch's fused AdamW, which does not need a compiled
operator of DeepSpeed. Every mode is refused if the package is not installed.
"""
import os
import sys

import common
import torch_training
from pytorch import Pytorch

common.leave_script_folder()
SCRIPT = os.path.abspath(__file__)


class Engine:
    """The object that common.work() trains."""

    def __init__(self, job, model, device, data):
        import deepspeed

        self.job, self.data = job, data
        self.parameters = sum(one.numel() for one in model.parameters())
        matrices = {name for name, one in model.named_parameters() if one.dim() >= 2}
        model.to(device).train()
        optimizer = torch_training.make_optimizer(model.named_parameters(), matrices, job)
        self.engine, self.optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=self.config())
        self.batches, self.samples, self.tokens = data.batches, data.samples, data.tokens

    def config(self):
        return {"train_micro_batch_size_per_gpu": self.job.batch_size,
                "gradient_accumulation_steps": self.job.accumulation,
                "gradient_clipping": self.job.train.get("max_grad_norm", 1.0),
                "zero_allow_untested_optimizer": True,
                "bf16": {"enabled": self.job.precision == "bf16"},
                "zero_optimization": {"stage": int(self.job.mode.removeprefix("zero")), "overlap_comm": True,
                                      "contiguous_gradients": True}}

    def step(self, batches, rate):
        total = None
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for batch in batches:
            loss = self.data.loss(self.engine, batch)
            self.engine.backward(loss)
            self.engine.step()
            total = loss.detach() if total is None else total + loss.detach()
        return total / len(batches)


class Deepspeed(Pytorch):
    name = "deepspeed"
    modes = ("zero0", "zero1", "zero2", "zero3")

    @staticmethod
    def version():
        import deepspeed

        return deepspeed.__version__

    @staticmethod
    def check(job):
        common.needs("deepspeed", "install it (pip install deepspeed) into the Python that runs this peer")
        Pytorch.check(job)
        if job.compile or job.checkpointing:
            raise common.Refused("this peer has neither torch.compile nor activation checkpointing")

    @classmethod
    def build(cls, job, rank, device):
        os.environ.setdefault("DS_ACCELERATOR", device.type)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.world_size))
        model, _, vocabulary = cls.model_of(job)
        return Engine(job, model, device, cls.data_of(job, rank, device, vocabulary))


if __name__ == "__main__":
    sys.exit(common.main(Deepspeed, SCRIPT, __doc__))
