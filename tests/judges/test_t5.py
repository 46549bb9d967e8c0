"""T5 with its decoder, through examples/sequence_to_sequence: logits, texts, losses of training and saved folders equal
transformers'."""
import json
import pathlib
import re
import subprocess

import numpy
import pytest
import torch
from conftest import PROGRAM
from models import assert_close_relatively, scatter
from transformers import T5Config, T5ForConditionalGeneration

EXAMPLE = pathlib.Path(PROGRAM).resolve().parent / "examples" / "sequence_to_sequence"
STEPS = 5
BATCH = 12


def t5(**changes):
    config = T5Config(**{"vocab_size": 97, "d_model": 48, "d_kv": 10, "d_ff": 96, "num_layers": 3, "num_heads": 4,
                         "num_decoder_layers": 2, "relative_attention_num_buckets": 16,
                         "relative_attention_max_distance": 20, "dropout_rate": 0.0, "decoder_start_token_id": 0,
                         **changes})
    model = scatter(T5ForConditionalGeneration(config), 1)
    with torch.no_grad():
        model.shared.weight.mul_(8)  # near the deviation of T5's, which divides the states by the root of d_model
    return model


def own_head(model):
    """T5 1.1's, which transformers 5 makes only while it reads a folder."""
    with torch.no_grad():
        weight = 0.1 * torch.randn(model.shared.weight.shape, generator=torch.Generator().manual_seed(9))
    model.lm_head.weight = torch.nn.Parameter(weight)
    model.all_tied_weights_keys.pop("lm_head.weight")
    return model


def gated(**changes):
    return own_head(t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, **changes))


MODELS = {"t5": t5, "t5_1_1": gated, "start_token": lambda: t5(decoder_start_token_id=5, pad_token_id=2),
          "as_many_layers": lambda: t5(num_decoder_layers=3, num_layers=3, d_kv=12)}


def pairs_of(count, seed=3, longest=40):
    generator = torch.Generator().manual_seed(seed)

    def text():
        length = int(torch.randint(1, longest, (1,), generator=generator))
        return torch.randint(3, 97, (length,), generator=generator).tolist() + [1]

    return [(text(), text()) for _ in range(count)]


def write_pairs(path, pairs):
    path.write_text("".join(f"{' '.join(map(str, source))} | {' '.join(map(str, target))}\n" for source, target in pairs),
                    encoding="utf-8")
    return path


def padded(rows, filling):
    longest = max(map(len, rows))
    return torch.tensor([row + [filling] * (longest - len(row)) for row in rows])


def inputs_of(pairs):
    sources = [source for source, _ in pairs]
    mask = padded([[1] * len(source) for source in sources], 0)
    return {"input_ids": padded(sources, 0), "attention_mask": mask}


def run(*arguments, ranks=1):
    command = [str(EXAMPLE), *map(str, arguments)]
    if ranks > 1:
        command = [PROGRAM, "launch", "--nproc-per-node", str(ranks), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def read(folder, pairs, tmp_path):
    """The logits of the targets, and the texts that are written."""
    written = run("read", folder, write_pairs(tmp_path / "read.txt", pairs), tmp_path / "logits.npy")
    texts = [[int(word) for word in line.split()] for line in written.splitlines()]
    return torch.from_numpy(numpy.load(tmp_path / "logits.npy")), texts


def assert_computes_the_same(folder, model, tmp_path):
    """One length of targets, so that the decoder has no padding."""
    pairs = [(source, (target * 20)[:20]) for source, target in pairs_of(5)]
    logits, texts = read(folder, pairs, tmp_path)
    with torch.no_grad():
        decoder_ids = torch.tensor([target for _, target in pairs])
        theirs = model(**inputs_of(pairs), decoder_input_ids=decoder_ids).logits
        assert_close_relatively(logits, theirs)
        assert len(texts) == len(pairs)
        for (source, _), text in zip(pairs[:2], texts):
            made = model.generate(torch.tensor([source]), max_length=30, do_sample=False, num_beams=1)[0].tolist()
            assert text[:29] == made[1:]


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_is_read(tmp_path, name):
    model = MODELS[name]()
    model.save_pretrained(tmp_path / "model")
    assert_computes_the_same(tmp_path / "model", model, tmp_path)


def test_a_folder_of_transformers_4(tmp_path):
    """tie_word_embeddings says that the head is its own, and nothing else does."""
    model = gated()
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"] is True and config.pop("scale_decoder_outputs") is False
    config["tie_word_embeddings"] = False
    path.write_text(json.dumps(config), encoding="utf-8")
    assert_computes_the_same(tmp_path / "model", model, tmp_path)


def train_in_torch(model, pairs):
    """As the example: AdamW with its defaults, and the gradient's norm at most 1, on the pairs in order."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        batch = pairs[step * BATCH:(step + 1) * BATCH]
        loss = model(**inputs_of(batch), labels=padded([target for _, target in batch], -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["t5", "t5_1_1", "start_token"])
def test_training_has_torchs_losses_and_is_written(tmp_path, name, ranks):
    model = MODELS[name]()
    model.save_pretrained(tmp_path / "start")
    # All targets have one length: with others, a rank's mean is over its own tokens.
    pairs = [(source, (target * 12)[:12]) for source, target in pairs_of(STEPS * BATCH)]
    path = write_pairs(tmp_path / "pairs.txt", pairs)
    printed = run("FULL_SHARD", tmp_path / "out", STEPS, tmp_path / "start", path, ranks=ranks)
    ours = [float.fromhex(loss) for loss in re.findall(r"^step \d+ loss (\S+)", printed, re.M)]
    theirs = train_in_torch(model, pairs)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert theirs[-1] < 0.99 * theirs[0], "the loss should have fallen"
    folder = tmp_path / "out" / f"step-{STEPS}"
    again, report = T5ForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], (kind, report[kind])
    assert again.config.scale_decoder_outputs == model.config.scale_decoder_outputs
    assert_computes_the_same(folder, again.eval(), tmp_path)
