"""The peers of `tessera bench`: on the same weights and samples their losses equal Tessera's, step by step; a row that a peer
cannot run has a reason."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench/peers"
STEPS = 5
LANGUAGE_MODELS = {
    "gpt2": "architecture: gpt2, n_layer: 2, n_head: 2, n_embd: 64",
    "llama": "architecture: llama, num_hidden_layers: 2, hidden_size: 64, intermediate_size: 96, num_attention_heads: 4, "
             "num_key_value_heads: 2, tie_word_embeddings: true, rope_scaling: {rope_type: linear, factor: 2}",
    "qwen3": "architecture: qwen3, num_hidden_layers: 2, hidden_size: 64, intermediate_size: 96, num_attention_heads: 4, "
             "num_key_value_heads: 2, head_dim: 24",
    "qwen3_moe": "architecture: qwen3_moe, num_hidden_layers: 2, hidden_size: 64, moe_intermediate_size: 48, num_experts: 4, "
                 "num_experts_per_tok: 2, norm_topk_prob: true, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16",
}


def call(peer, folder, job, *more):
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run([sys.executable, "-B", PEERS / f"{peer}.py", "--job", folder / "job.json", "--json",
                           folder / "out.json", *more], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    rows = json.loads((folder / "out.json").read_text(encoding="utf-8"))["rows"]
    return done.returncode, rows


def recipe(model, text, more=""):
    """Two files that are mixed by size, so that their order matters, over more than one epoch of the smaller."""
    paths = [text.parent / "first.txt", text.parent / "second.txt"]
    data = text.read_bytes()
    paths[0].write_bytes(data[:700])
    paths[1].write_bytes(data[700:3000])
    return f"""
model: {{{model}, seq_len: 48}}
data: {{train: [{json.dumps(str(paths[0]))}, {json.dumps(str(paths[1]))}], tokenizer: bytes, batch_size: 3}}
train: {{steps: {STEPS}, lr: 2.0e-3, warmup_steps: 2, min_lr: 1.0e-4, weight_decay: 0.1, seed: 7{more}}}
sharding: {{sharding_strategy: FULL_SHARD}}
"""


def train(tessera, text, ranks):
    """(the resolved recipe, the folder of the first weights, Tessera's losses)."""
    begin, metrics = tessera.folder / "begin", tessera.folder / "metrics.jsonl"
    tessera.train(text.replace(f"steps: {STEPS}", "steps: 0") + f"checkpoint: {{export: {json.dumps(str(begin))}}}\n")
    tessera.train(text + f"log: {{jsonl: {json.dumps(str(metrics))}}}\n", ranks=ranks)
    losses = [json.loads(line)["loss"] for line in metrics.read_text(encoding="utf-8").splitlines()]
    return json.loads(tessera.run("recipe", tessera.folder / "recipe.yaml")), str(begin), losses


def job_of(resolved, weights, modes, **more):
    return {"recipe": resolved, "weights": weights, "mode": modes, "world_size": 2, "steps": STEPS - 1, "warmup": 1,
            "threads_per_rank": 1, "device": "cpu", **more}


@pytest.mark.parametrize(("model", "modes", "more"), [
    ("gpt2", ["fsdp2", "ddp"], ", gradient_accumulation_steps: 2"),
    ("llama", ["fsdp1"], ""),
    ("qwen3", ["fsdp2"], ""),
    ("qwen3_moe", ["fsdp2"], ", gradient_accumulation_steps: 2"),
])
def test_losses_of_a_language_model_agree(tessera, text, model, modes, more):
    resolved, weights, expected = train(tessera, recipe(LANGUAGE_MODELS[model], text, more), 2)
    code, rows = call("pytorch", tessera.folder, job_of(resolved, weights, modes))
    assert (code, [row["status"] for row in rows]) == (0, ["measured"] * len(modes)), rows
    for row in rows:
        assert row["losses"] == pytest.approx(expected, rel=1e-4), row["name"]
        assert row["tokens_per_s"]["median"] == pytest.approx(48 * row["samples_per_s"]["median"])
        assert row["memory"]["measured"] > 50e6
        assert row["peer"]["backend"] == "gloo"
    assert expected[-1] < expected[0] - 0.05, "the loss should have moved"


def test_losses_of_sentence_pairs_agree(tessera):
    """bench/seed-table-small.yaml: two losses, batches by length, generated data."""
    data = tessera.folder / "data"
    subprocess.run([sys.executable, ROOT / "bench/seed_table_data.py", data, "--nli", "120", "--sts", "60"], check=True,
                   stdout=subprocess.DEVNULL)
    text = (ROOT / "bench/seed-table-small.yaml").read_text(encoding="utf-8").replace("build/seed-table", str(data))
    text = text.replace("steps: 20", f"steps: {STEPS}, seed: 2")
    text = text.replace("mix: by_size", "mix: round_robin\n  group_by_length: true")
    text = text.replace("lr: 2.0e-5", "lr: 5.0e-4").replace("num_hidden_layers: 4", "num_hidden_layers: 2")
    resolved, weights, expected = train(tessera, text, 2)
    code, rows = call("sentence_transformers", tessera.folder, job_of(resolved, weights, ["ddp", "fsdp2"]))
    assert (code, [row["status"] for row in rows]) == (0, ["measured"] * 2), rows
    for row in rows:
        assert row["losses"] == pytest.approx(expected, rel=1e-3), row["name"]
    assert abs(expected[0] - expected[1]) > 0.1, "the data sets have different losses"


def test_unsupported_runs_of_a_peer_are_refused_with_the_reason(tmp_path, text):
    resolved = {"model": {"architecture": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 16, "seq_len": 16},
                "data": {"train": str(text), "batch_size": 2}, "train": {}, "sharding": {}}
    cases = [("pytorch", {"mode": "dp"}, "DataParallel"), ("pytorch", {"mode": "fsdp3"}, "fsdp2"),
             ("pytorch", {"mode": "none"}, "one rank"), ("pytorch", {"mode": "ddp", "precision": "fp8"}, "fp8"),
             ("pytorch", {"mode": "ddp", "data": {"train": "absent.txt"}}, "absent.txt"),
             ("pytorch", {"mode": "ddp", "train": {"task": "sentence_pairs"}}, "sentence_transformers.py"),
             ("pytorch", {"mode": "ddp", "sharding": {"offload": {"optimizer": "file"}}}, "offload"),
             ("pytorch", {"mode": "ddp", "model": {"architecture": "olmo2"}}, "olmo2"),
             ("pytorch", {"mode": "ddp", "model": {"architecture": "qwen3_moe", "decoder_sparse_step": 2}}, "decoder_sparse_step 2"),
             ("pytorch", {"mode": "ddp", "train": {"optimizer": "lion"}}, "lion"),
             ("pytorch", {"mode": "ddp", "train": {"adamw": {"state_dtype": "bf16"}}}, "bf16 moments"),
             ("pytorch", {"mode": "ddp", "model": {"architecture": "llama", "rope_scaling.rope_type": "yarn"}}, "yarn"),
             ("sentence_transformers", {"mode": "ddp"}, "pytorch.py"), ("deepspeed", {"mode": "zero3"}, "deepspeed")]
    for peer, change, word in cases:
        code, rows = call(peer, tmp_path, {**resolved, "device": "cpu", "world_size": 2, **change})
        assert (code, rows[0]["status"]) == (3, "refused"), (peer, change, rows)
        assert word in rows[0]["reason"]
        assert rows[0]["tokens_per_s"] is None


def test_a_rank_that_fails_or_hangs_ends_the_row(tmp_path, text):
    resolved = {"model": {"architecture": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 16, "seq_len": 16, "vocab_size": 40},
                "data": {"train": str(text), "batch_size": 2}, "mode": "ddp", "world_size": 2, "device": "cpu"}
    code, rows = call("pytorch", tmp_path, resolved)
    assert (code, rows[0]["status"]) == (3, "refused")
    assert "vocabulary of 40" in rows[0]["reason"]
    code, rows = call("pytorch", tmp_path, {**resolved, "weights": str(tmp_path)})
    assert (code, rows[0]["status"]) == (1, "failed")
    assert "model.safetensors" in rows[0]["reason"]
    code, rows = call("pytorch", tmp_path, {**resolved, "time_limit_s": 0.5})
    assert (code, rows[0]["status"]) == (7, "timed_out")
