"""Preference tuning against transformers and torch, with TRL's formulas written anew: the tokens and masks of prompts and answers
in each form of a row, the loss of fixed pairs, the rewards, and the losses and gradient norms of several steps, also with LoRA,
whose reference is the model under the adapter."""
import json
import struct
import sys

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import torch
from models import MAKERS
from test_sft import MARKED, tokenizer_of, write_rows
from torch.nn.functional import logsigmoid

PLAIN = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
WORDS = "the shard of a tile is gathered before each step and reduced after it by rank zero over all mosaic tiles".split()
LIMIT = 96


def words(seed, count):
    return " ".join(WORDS[(seed * 7 + i * (seed % 5 + 3)) % len(WORDS)] for i in range(count))


def pairs(count=24):
    """Prompts with two answers of many lengths; some are too long for LIMIT."""
    return [(words(i, 3 + i % 9), words(i + 50, 1 + i * 5 % 17), words(i + 90, 1 + i * 3 % 13)) for i in range(count)]


def user(text):
    return [{"role": "user", "content": text}]


def assistant(text):
    return [{"role": "assistant", "content": text}]


FORMS = {
    "texts": lambda prompt, a, b: {"prompt": prompt, "chosen": " " + a, "rejected": " " + b},
    "messages": lambda prompt, a, b: {"prompt": user(prompt), "chosen": assistant(a), "rejected": assistant(b)},
    "whole": lambda prompt, a, b: {"chosen": user(prompt) + assistant(a), "rejected": user(prompt) + assistant(b)},
    "repeated": lambda prompt, a, b: {"prompt": prompt, "chosen": user(prompt) + assistant(a),
                                      "rejected": user(prompt) + assistant(b)},
}


def rows_of(form):
    return [FORMS[form](*one) for one in pairs()]


def expected_tokens(tokenizer, form, prompt, answer):
    """TRL's: the ids of prompt and answer, and how many of them are the prompt's."""
    if form == "texts":
        before, whole = prompt, prompt + " " + answer
    else:
        before = tokenizer.apply_chat_template(user(prompt), tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(user(prompt) + assistant(answer), tokenize=False)
        assert whole.startswith(before)
    before, ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (before, whole))
    assert ids[:len(before)] == before
    return ids + ([tokenizer.eos_token_id] if form == "texts" else []), len(before)


def expected_pairs(tokenizer, form):
    return [tuple(expected_tokens(tokenizer, form, prompt, answer) for answer in (a, b)) for prompt, a, b in pairs()]


def tokens_kept(tessera):
    """The ids and masks that a run keeps beside the data, chosen and rejected in turn."""
    file, = tessera.folder.glob("*.preferences")
    data = file.read_bytes()
    count, = struct.unpack_from("<Q", data, 24)
    numbers = struct.unpack_from(f"<{count}i", data, 256)
    table = numbers[count - 1 - 2 * numbers[-1]:-1]
    made, begin = [], 0
    for length in table[::2]:
        row = numbers[begin:begin + length]
        made.append(([number >> 1 for number in row], [number & 1 for number in row]))
        begin += length
    return made


def recipe(more="", ranks=1, steps=4, train=""):
    return f"""
model: {{pretrained: start, seq_len: {LIMIT}{more}}}
data: {{train: pairs.jsonl, tokenizer: tokenizer, shuffle: false, batch_size: {4 // ranks // 2}}}
train: {{task: dpo, steps: {steps}, optimizer: sgd, lr: 0.05, lr_schedule: constant, weight_decay: 0, max_grad_norm: 0,
         gradient_accumulation_steps: 2{train}}}
log: {{jsonl: out.jsonl}}
"""


def prepare(tessera, form, name="gpt2"):
    tokenizer = tokenizer_of("gpt2_like", PLAIN)
    tokenizer.save_pretrained(tessera.folder / "tokenizer")
    write_rows(tessera.folder / "pairs.jsonl", rows_of(form))
    model = MAKERS[name](vocabulary=len(tokenizer), positions=128)
    model.save_pretrained(tessera.folder / "start")
    return tokenizer, model


@pytest.mark.parametrize("form", FORMS)
def test_tokens_and_masks_are_those_of_prompt_and_answer(tessera, form):
    tokenizer, _ = prepare(tessera, form)
    tessera.train(recipe(steps=0))
    expected = [one for pair in expected_pairs(tokenizer, form) for one in pair]
    made = tokens_kept(tessera)
    assert len(made) == len(expected)
    for (ids, mask), (wanted, prompt) in zip(made, expected, strict=True):
        assert ids == wanted
        assert mask == [0] * prompt + [1] * (len(wanted) - prompt)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("form", FORMS)
def test_parquet_and_arrow_have_the_rows_of_json_lines(tessera, monkeypatch, form, kind):
    monkeypatch.setenv("TESSERA_PYTHON", sys.executable)
    tokenizer, _ = prepare(tessera, form)
    table = pyarrow.Table.from_pylist(rows_of(form))
    file = tessera.folder / f"pairs.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, file, row_group_size=7)
    else:
        with pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    tessera.train(recipe(steps=0).replace("pairs.jsonl", file.name))
    expected = [one for pair in expected_pairs(tokenizer, form) for one in pair]
    assert [(ids, sum(mask)) for ids, mask in tokens_kept(tessera)] == [(ids, len(ids) - prompt) for ids, prompt in expected]


def log_prob(model, ids, prompt):
    """The sum of the answer's log-probabilities within LIMIT places, and the number of its tokens."""
    ids = torch.tensor(ids[:LIMIT + 1])
    logits = model(ids[None, :-1]).logits[0]
    taken = logits.log_softmax(-1).gather(-1, ids[1:, None])[prompt - 1:, 0]
    return taken.sum(), len(taken)


def loss_of(trained, reference, kind, beta, smoothing):
    """TRL's losses of [chosen, rejected] log-probabilities; of ipo they are divided by tokens."""
    logits = (trained[0] - reference[0]) - (trained[1] - reference[1])
    if kind == "ipo":
        return (logits - 1 / (2 * beta)) ** 2
    if kind == "hinge":
        return torch.relu(1 - beta * logits)
    return -logsigmoid(beta * logits) * (1 - smoothing) - logsigmoid(-beta * logits) * smoothing


def curve_of_torch(model, reference, steps, rate, kind="sigmoid", beta=0.1, smoothing=0.0):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    curve = []
    for batch in steps:
        numbers = torch.zeros(5, dtype=torch.float64)
        for pair in batch:
            trained, counts = zip(*(log_prob(model, *answer) for answer in pair), strict=True)
            with torch.no_grad():
                frozen = [log_prob(reference, *answer)[0] for answer in pair]
            divided = counts if kind == "ipo" else (1, 1)
            loss = loss_of(*([value / count for value, count in zip(values, divided, strict=True)]
                             for values in (trained, frozen)), kind, beta, smoothing) / len(batch)
            loss.backward()
            rewards = [beta * (one - other).item() for one, other in zip(trained, frozen, strict=True)]
            numbers += torch.tensor([loss.item(), *(value / len(batch) for value in (
                *rewards, float(rewards[0] > rewards[1]), rewards[0] - rewards[1]))])
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        curve.append((*numbers.tolist(), norm.item()))
    return curve


KEYS = ("loss", "rewards_chosen", "rewards_rejected", "rewards_accuracy", "rewards_margin", "grad_norm")


def compare(tessera, curve, first=1e-5):
    ours = [json.loads(line) for line in (tessera.folder / "out.jsonl").read_text().splitlines()]
    assert len(ours) == len(curve)
    for number, (step, expected) in enumerate(zip(ours, curve, strict=True)):
        for key, wanted in zip(KEYS, expected, strict=True):
            relative = 5e-4 if key == "grad_norm" else first if number == 0 else 1e-4
            assert step[key] == pytest.approx(wanted, rel=relative, abs=2e-5 if "rewards" in key else 0), (number, key)


def steps_of(tokenizer, form, count):
    made = expected_pairs(tokenizer, form)
    return [[made[(step * 4 + i) % len(made)] for i in range(4)] for step in range(count)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_losses_rewards_and_gradient_norms_are_torchs(tessera, name, ranks):
    form = "texts" if name == "gpt2" else "whole"
    tokenizer, model = prepare(tessera, form, name)
    reference = MAKERS[name](vocabulary=len(tokenizer), positions=128)  # the same weights
    tessera.train(recipe(ranks=ranks), ranks=ranks)
    compare(tessera, curve_of_torch(model, reference, steps_of(tokenizer, form, 4), 0.05))


@pytest.mark.parametrize("kind,beta,smoothing", [("sigmoid", 0.5, 0.2), ("ipo", 0.2, 0.0), ("hinge", 0.3, 0.0)])
def test_a_reference_of_its_own_and_the_other_losses(tessera, kind, beta, smoothing):
    tokenizer, model = prepare(tessera, "messages")
    reference = MAKERS["gpt2"](vocabulary=len(tokenizer), positions=128, n_layer=1)
    reference.save_pretrained(tessera.folder / "reference")
    keys = f", dpo: {{beta: {beta}, loss: {kind}, reference: reference, label_smoothing: {smoothing}}}"
    tessera.train(recipe(train=keys.replace(", label_smoothing: 0.0", "")))
    steps = steps_of(tokenizer, "messages", 4)
    compare(tessera, curve_of_torch(model, reference, steps, 0.05, kind, beta, smoothing))


def test_the_reference_of_an_adapter_is_the_model_under_it(tessera):
    peft = pytest.importorskip("peft")
    tokenizer, _ = prepare(tessera, "messages", "llama")
    start = MAKERS["llama"](vocabulary=len(tokenizer), positions=128)
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0)
    model = peft.get_peft_model(start, config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.copy_(0.05 * torch.randn(parameter.shape))
    model.save_pretrained(tessera.folder / "adapter")
    reference = MAKERS["llama"](vocabulary=len(tokenizer), positions=128)
    tessera.train(recipe(", adapter: adapter"))
    compare(tessera, curve_of_torch(model, reference, steps_of(tokenizer, "messages", 4), 0.05))


@pytest.mark.parametrize("kind,beta", [("sigmoid", 0.1), ("ipo", 0.2), ("hinge", 0.3)])
@pytest.mark.parametrize("form", ["texts", "messages", "whole"])  # TRL does not read the fourth
def test_losses_rewards_and_gradient_norms_are_those_of_trl(tessera, form, kind, beta):
    """The trainer itself, where trl and datasets are installed."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    tokenizer, model = prepare(tessera, form)
    rows = rows_of(form)
    arguments = trl.DPOConfig(
        output_dir=str(tessera.folder / "trl"), max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        optim="sgd", learning_rate=0.05, lr_scheduler_type="constant", max_grad_norm=1e9, weight_decay=0.0, beta=beta,
        loss_type=kind, max_length=LIMIT + 1, logging_steps=1, report_to="none", save_strategy="no", use_cpu=True, bf16=False,
        gradient_checkpointing=False, train_sampling_strategy="sequential", disable_tqdm=True)
    tokenizer.pad_token = "<unk>"
    trainer = trl.DPOTrainer(model, MAKERS["gpt2"](vocabulary=len(tokenizer), positions=128), arguments,
                             train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer)
    trainer.train()
    names = ("loss", *(f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins")), "grad_norm")
    curve = [tuple(float(step[name]) for name in names) for step in trainer.state.log_history if "loss" in step]
    tessera.train(recipe(train=f", dpo: {{beta: {beta}, loss: {kind}}}"))
    compare(tessera, curve)


def test_an_evaluation_has_the_numbers_of_all_pairs(tessera):
    tokenizer, model = prepare(tessera, "messages")
    reference = MAKERS["gpt2"](vocabulary=len(tokenizer), positions=128, seed=5)
    tokenizer.save_pretrained(tessera.folder / "start")
    reference.save_pretrained(tessera.folder / "reference")
    tessera.run("evaluate", "start", "--task", "dpo", "--reference", "reference", "--data", "pairs.jsonl", "--beta", 0.2,
                "--seq-len", LIMIT, "--batch-size", 5, "--json", "out.json")
    found = json.loads((tessera.folder / "out.json").read_text())
    everything = expected_pairs(tokenizer, "messages")
    assert found["samples"] == len(everything)
    expected = curve_of_torch(model, reference, [everything], 0.0, beta=0.2)[0]
    for key, wanted in zip(KEYS[:-1], expected[:-1], strict=True):
        assert found[key] == pytest.approx(wanted, rel=1e-5, abs=2e-5), key


def test_a_template_with_blocks_is_a_template(tessera):
    """{% generation %} blocks do not matter: what is behind the prompt is the answer."""
    assert "generation" in MARKED["chatml"]
    tokenizer, _ = prepare(tessera, "messages")
    marked = tokenizer_of("gpt2_like", MARKED["chatml"] + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    marked.save_pretrained(tessera.folder / "tokenizer")
    tessera.train(recipe(steps=0))
    for (ids, mask), (wanted, prompt) in zip(tokens_kept(tessera), [
            one for pair in expected_pairs(tokenizer, "messages") for one in pair], strict=True):
        assert ids == wanted
        assert sum(mask) == len(wanted) - prompt
