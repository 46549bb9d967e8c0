#!/usr/bin/env python3
"""PyTorch's training of transformers' ViTForImageClassification on random images, as bench/compare_images.py runs it.

The job's model has the sizes of transformers' ViTConfig; there is no data, but data.batch_size. Modes, wrapping and the step
are those of torch_training.py; attention is torch's scaled_dot_product_attention.
"""
import os
import sys

import common
import torch_training

common.leave_script_folder()
SCRIPT = os.path.abspath(__file__)


class RandomImages:
    def __init__(self, job, config, rank, device):
        import torch

        self.size, self.step = job.batch_size, job.accumulation
        generator = torch.Generator().manual_seed(rank)
        shape = (4 * self.size, config.num_channels, config.image_size, config.image_size)
        self.images = torch.randn(shape, generator=generator).to(device)
        self.labels = torch.randint(0, config.num_labels, (4 * self.size,), generator=generator).to(device)

    def batches(self, step):
        starts = [(step * self.step + number) % 4 * self.size for number in range(self.step)]
        return [(self.images[one:one + self.size], self.labels[one:one + self.size]) for one in starts]

    @staticmethod
    def samples(batches):
        return sum(len(labels) for _, labels in batches)

    tokens = samples

    @staticmethod
    def loss(model, batch):
        return model(pixel_values=batch[0], labels=batch[1]).loss


class Images:
    name = "transformers ViT"
    modes = torch_training.MODES

    @staticmethod
    def version():
        import transformers

        return transformers.__version__

    @staticmethod
    def check(job):
        common.needs("torch", "name a Python that has it, such as scripts/judges makes")
        common.needs("transformers", "it has the model")
        torch_training.check_modes(job)

    @staticmethod
    def prepare(job, _folder):
        return job

    @staticmethod
    def build(job, rank, device):
        from transformers import ViTConfig, ViTForImageClassification
        from transformers.models.vit.modeling_vit import ViTLayer

        config = ViTConfig(**job.model)
        config._attn_implementation = "sdpa"
        model = ViTForImageClassification(config)
        return torch_training.Training(model, ViTLayer, job, device, RandomImages(job, config, rank, device))


if __name__ == "__main__":
    sys.exit(common.main(Images, SCRIPT, __doc__))
