"""Megatron's folders: the model that `tessera convert` writes has, in transformers, the logits of Megatron's own model."""
import os
import subprocess

import pytest
import torch
from conftest import PROGRAM
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../checkpoint/fixtures/megatron")


@pytest.mark.parametrize("case", ["gpt2", "llama"])
def test_logits_are_megatrons(case, tmp_path):
    """make_megatron.py stored the logits, which Megatron-Core computed on two ranks of tensor parallelism."""
    out = tmp_path / "hf"
    run = subprocess.run([PROGRAM, "convert", f"{FIXTURES}/{case}", str(out), "--to", "hf", "--verify"],
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    expected = load_file(f"{FIXTURES}/{case}.logits.safetensors")
    model, report = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    with torch.no_grad():
        logits = model(expected["ids"]).logits
    torch.testing.assert_close(logits, expected["logits"][..., :logits.shape[-1]], rtol=1e-5, atol=1e-5)
