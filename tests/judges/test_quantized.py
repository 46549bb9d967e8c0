"""Quantised weights of Hugging Face folders: `tessera convert` gives the bytes of transformers' own dequantisation (fp8
in blocks, MXFP4) or of torch's arithmetic (scales of rows and of whole tensors), and a model is loaded from such a
folder."""
import json
import subprocess

import pytest
import torch
from conftest import PROGRAM
from models import assert_close_relatively, edit_config, gpt_oss, logits_of, prompt, qwen3
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CHANNELS = {"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}}}


def fp8(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)


def scales(*shape, seed=2):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 0.02 + 1e-4


def write(tessera, tensors, quantization):
    folder = tessera.folder / "quantised"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "other", "quantization_config": quantization}),
                                        encoding="utf-8")
    return folder


def converted(tessera, tensors, quantization, *options):
    folder = write(tessera, tensors, quantization)
    tessera.run("convert", folder, "out", "--to", "hf", "--verify", *options)
    assert "quantization_config" not in json.loads((tessera.folder / "out/config.json").read_text(encoding="utf-8"))
    tessera.run("diff", folder, "out")
    return load_file(tessera.folder / "out/model.safetensors")


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_blocks_of_fp8_are_transformers(tessera):
    weight, scale = fp8(384, 256), scales(3, 2)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, output_dtype=torch.bfloat16)
    assert_same(converted(tessera, {"a.weight": weight, "a.weight_scale_inv": scale}, FP8), {"a.weight": theirs})


def test_partial_blocks_are_torch_arithmetic(tessera):
    weight, scale = fp8(576, 200), scales(5, 2)
    spread = scale.repeat_interleave(128, 0)[:576].repeat_interleave(128, 1)[:, :200]
    assert_same(converted(tessera, {"a.weight": weight, "a.weight_scale_inv": scale}, FP8),
                {"a.weight": (weight.float() * spread).bfloat16()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_of_rows_and_of_tensors(tessera, dtype):
    a, b = fp8(96, 40), fp8(24, 56, seed=3)
    rows, whole = scales(96, 1).to(dtype), scales(1, seed=4).to(dtype)
    tensors = {"a.weight": a, "a.weight_scale": rows, "b.weight": b, "b.weight_scale": whole,
               "b.input_scale": torch.ones(1), "norm.weight": torch.ones(7)}
    assert_same(converted(tessera, tensors, CHANNELS),
                {"a.weight": (a.float() * rows.float()).bfloat16(), "b.weight": (b.float() * whole.float()).bfloat16(),
                 "norm.weight": torch.ones(7)})


def test_mxfp4_is_transformers(tessera):
    generator = torch.Generator().manual_seed(5)
    blocks = torch.randint(0, 256, (3, 70, 9, 16), generator=generator, dtype=torch.uint8)
    exponents = torch.randint(100, 140, (3, 70, 9), generator=generator, dtype=torch.uint8)
    found = converted(tessera, {"experts.gate_up_proj_blocks": blocks, "experts.gate_up_proj_scales": exponents},
                      {"quant_method": "mxfp4"}, "--max-memory", "64MB")
    assert_same(found, {"experts.gate_up_proj": convert_moe_packed_tensors(blocks, exponents).contiguous()})


def test_a_model_is_loaded_from_fp8(tessera):
    """Qwen3 in fp8 as its makers publish it: linear layers in blocks, the rest in bfloat16."""
    model = qwen3()
    model.save_pretrained(tessera.folder / "fp8")
    path = tessera.folder / "fp8/model.safetensors"
    stored = {}
    for name, tensor in load_file(path).items():
        if not name.endswith("proj.weight"):
            stored[name] = tensor.bfloat16()
            continue
        grid = [(size + 15) // 16 for size in tensor.shape]
        scale = scales(*grid)
        spread = scale.repeat_interleave(16, 0)[:tensor.shape[0]].repeat_interleave(16, 1)[:, :tensor.shape[1]]
        stored[name] = (tensor / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = scale
        model.get_parameter(name).data = (stored[name].float() * spread).bfloat16().float()
    for name, tensor in stored.items():
        if tensor.dtype == torch.bfloat16:
            model.get_parameter(name).data = tensor.float()
    save_file(stored, path, metadata={"format": "pt"})
    edit_config(tessera.folder / "fp8", lambda config: config.update(
        quantization_config={**FP8, "weight_block_size": [16, 16]}))
    ids = prompt(40, model.config.vocab_size)
    assert_close_relatively(tessera.logits("fp8", ids), logits_of(model, ids))


def with_mxfp4_experts(model, folder):
    """gpt-oss as OpenAI publishes it: the experts' matrices in MXFP4, the rest in bfloat16."""
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(6)
    stored = {}
    for name, tensor in load_file(path).items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = tensor.bfloat16()
            model.get_parameter(name).data = stored[name].float()
            continue
        experts, width, rows = tensor.shape
        blocks = torch.randint(0, 256, (experts, rows, width // 32, 16), generator=generator, dtype=torch.uint8)
        exponents = torch.randint(119, 124, (experts, rows, width // 32), generator=generator, dtype=torch.uint8)
        stored.update({name + "_blocks": blocks, name + "_scales": exponents})
        model.get_parameter(name).data = convert_moe_packed_tensors(blocks, exponents).float().contiguous()
    save_file(stored, path, metadata={"format": "pt"})
    edit_config(folder, lambda config: config.update(quantization_config={
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                            "model.embed_tokens", "lm_head"]}))


def test_gpt_oss_is_loaded_from_mxfp4_and_trained(tessera, text):
    model = gpt_oss(vocabulary=256, intermediate_size=96)
    with_mxfp4_experts(model, tessera.folder / "mxfp4")
    ids = prompt(80, 256)
    assert_close_relatively(tessera.logits("mxfp4", ids), logits_of(model, ids))
    tessera.train(f"""
model: {{pretrained: mxfp4, seq_len: 32}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: 2}}
train: {{steps: 2, lr: 1.0e-3}}
checkpoint: {{dir: out, every: 2}}
""")
    again = AutoModelForCausalLM.from_pretrained(tessera.folder / "out/step-2").eval()
    assert not hasattr(again.config, "quantization_config")
    assert_close_relatively(tessera.logits("out/step-2", ids), logits_of(again, ids))


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "aqlm"])
def test_other_methods_are_refused(tessera, method):
    folder = write(tessera, {"a": torch.ones(2)}, {"quant_method": method, "bits": 4})
    for command in (["convert", folder, "out", "--to", "hf"], ["inspect", folder], ["diff", folder, folder]):
        done = subprocess.run([PROGRAM, *map(str, command)], cwd=tessera.folder, capture_output=True, text=True,
                              check=False)
        assert done.returncode == 5, done
        assert "quantised by" in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def integers(*shape, seed=1):
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


INT8 = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": {
    "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
    "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}}}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_torch_arithmetic(tessera, dtype):
    weight, scale = integers(96, 40), scales(96, 1).to(dtype)
    tensors = {"a.weight": weight, "a.weight_scale": scale, "norm.weight": torch.ones(7)}
    assert_same(converted(tessera, tensors, INT8),
                {"a.weight": (weight.float() * scale.float()).to(dtype), "norm.weight": torch.ones(7)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_compressed_tensors(tessera, dtype):
    quantization = pytest.importorskip("compressed_tensors.quantization", reason="compressed-tensors is not installed")
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    weight, scale = integers(96, 40), scales(96, 1).to(dtype)
    args = quantization.QuantizationArgs(num_bits=8, type="int", strategy="channel", symmetric=True)
    assert_same(converted(tessera, {"a.weight": weight, "a.weight_scale": scale}, INT8),
                {"a.weight": dequantize(weight, scale, args=args)})


def test_written_int8_follows_the_rule(tessera):
    """The scale of an output is its largest weight / 127; transformers' weights and the decoded ones differ by half of it."""
    model = qwen3()
    model.save_pretrained(tessera.folder / "hf")
    tessera.run("convert", "hf", "int8", "--to", "hf", "--dtype", "int8", "--verify")
    before, stored = load_file(tessera.folder / "hf/model.safetensors"), load_file(tessera.folder / "int8/model.safetensors")
    layers = [name for name in before if name.endswith("_proj.weight")]
    assert layers and len(stored) == len(before) + len(layers)
    for name, weight in before.items():
        if name not in layers:
            assert torch.equal(stored[name], weight), name
            continue
        scale = weight.float().abs().amax(1, keepdim=True) / 127
        assert torch.equal(stored[name + "_scale"], scale), name
        assert torch.equal(stored[name], torch.round(weight.float() / scale).to(torch.int8)), name
    tessera.run("convert", "int8", "back", "--to", "hf", "--dtype", "fp32")
    decoded = load_file(tessera.folder / "back/model.safetensors")
    for name in layers:
        assert torch.equal(decoded[name], stored[name].float() * stored[name + "_scale"]), name


def test_compressed_tensors_reads_a_written_folder(tessera):
    quantization = pytest.importorskip("compressed_tensors.quantization", reason="compressed-tensors is not installed")
    model = qwen3()
    model.save_pretrained(tessera.folder / "hf")
    tessera.run("convert", "hf", "int8", "--to", "hf", "--dtype", "int8")
    config = json.loads((tessera.folder / "int8/config.json").read_text(encoding="utf-8"))
    scheme = quantization.QuantizationConfig.model_validate(config["quantization_config"])
    group = scheme.config_groups["group_0"]
    assert group.weights.num_bits == 8 and group.weights.strategy == "channel"
    assert group.input_activations.dynamic and "lm_head" in scheme.ignore
    opened = AutoModelForCausalLM.from_pretrained(tessera.folder / "int8")
    assert opened.model.layers[0].self_attn.q_proj.weight.dtype == torch.int8
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        theirs, exact = opened(ids).logits[0], model(ids).logits[0]
    ours = tessera.logits("int8", ids[0].tolist())
    # Both round activations as they come, by scales that differ a little (largest / 127, and / 127.5).
    assert (theirs - exact).norm() < 0.1 * exact.norm()
    assert (ours - exact).norm() < 0.1 * exact.norm()
