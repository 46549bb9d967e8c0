#!/usr/bin/env python3
"""PyTorch as a peer of `tessera bench`: the recipe's GPT-2, Llama, Mistral, Qwen2 or Qwen3 (with experts
too) on the same weights and batches.

Modes: none (one rank), dp (nn.DataParallel, on GPUs only), ddp, fsdp1 (FULL_SHARD), fsdp1-grad-op (SHARD_GRAD_OP), fsdp2
(fully_shard), fsdp2-keep (reshard_after_forward=False); over gloo or NCCL, eager or with torch.compile of each layer.
torch_training.py states PyTorch's recommended settings, which are used.
"""
import json
import os
import pathlib
import sys

import common
import data_order
import torch_training

common.leave_script_folder()
SCRIPT = os.path.abspath(__file__)
LANGUAGE_MODELS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
OF_EXPERTS = {"output_router_logits": (False,), "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)}
ROPE_TYPES = ("default", "linear", "llama3")


def config_of(job):
    """The keys of Hugging Face's config.json: the recipe's, or its pretrained folder's with the recipe's dropout."""
    own = {key: value for key, value in job.model.items() if value is not None}
    if job.model.get("pretrained"):
        path = pathlib.Path(job.model["pretrained"]) / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise common.Refused(f"{path} cannot be read: {error}") from error
        rates = {key: own["dropout"] for key in config if key.endswith(("_pdrop", "_dropout")) and "dropout" in own}
        return config | rates | {key: value for key, value in own.items() if key.endswith(("_pdrop", "_dropout"))}
    config = dict(own, model_type=own.get("architecture", "gpt2"))
    config.setdefault("vocab_size", 256)  # of the tokenizer `bytes`
    config.setdefault("n_positions", own.get("seq_len", 256))
    scaling = {key.split(".", 1)[1]: value for key, value in own.items() if key.startswith("rope_scaling.")}
    return dict(config, rope_scaling=scaling) if scaling else config


class Pytorch:
    name = "pytorch"
    modes = torch_training.MODES

    @staticmethod
    def version():
        import torch

        return torch.__version__

    @staticmethod
    def check(job):
        if job.train.get("task", "next_token") != "next_token":
            raise common.Refused("this peer trains language models; sentence_transformers.py has sentence_pairs")
        common.needs("torch", "name a Python that has it, such as scripts/judges makes")
        if job.weights:
            common.needs("safetensors", "it reads the job's weights")
        config = config_of(job)
        kind = config["model_type"]
        if kind not in LANGUAGE_MODELS:
            raise common.Refused(f"the architecture {kind} is not a language model of {', '.join(LANGUAGE_MODELS)}")
        scaling = (config.get("rope_scaling") or {}).get("rope_type") or "default"
        if scaling not in ROPE_TYPES:
            raise common.Refused(f"the rotary scaling {scaling} is none of {', '.join(ROPE_TYPES)}")
        for key, values in OF_EXPERTS.items() if kind == "qwen3_moe" else ():
            if key in config and config[key] not in values:
                raise common.Refused(f"{key} {config[key]}: each layer of this peer has experts, and no further loss")
        torch_training.check_modes(job)

    @staticmethod
    def prepare(job, folder):
        """Texts are tokenised once, for all ranks."""
        job.values["token_folder"] = folder
        if job.data.get("train") is not None:
            for path in data_order.files_of(job.data["train"]):
                data_order.TokenFile(path, job.data.get("tokenizer"), job.program, folder)
        return job

    @staticmethod
    def model_of(job):
        """(model, its layers' class, vocabulary), with the job's weights."""
        language_models = common.sibling("language_models")
        config = config_of(job)
        model, layer = language_models.make(config)
        if job.weights:
            language_models.load(model, job.weights)
        return model, layer, config["vocab_size"]

    @classmethod
    def data_of(cls, job, rank, device, vocabulary):
        return common.sibling("token_data").TokenData(job, rank, device, job.values["token_folder"], vocabulary)

    @classmethod
    def build(cls, job, rank, device):
        model, layer, vocabulary = cls.model_of(job)
        data = cls.data_of(job, rank, device, vocabulary)
        return torch_training.Training(model, layer, job, device, data)


if __name__ == "__main__":
    sys.exit(common.main(Pytorch, SCRIPT, __doc__))
