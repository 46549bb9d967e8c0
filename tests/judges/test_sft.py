"""Instruction tuning against transformers and torch: the same tokens and the same loss masks, by {% generation %} blocks as
`return_assistant_tokens_mask` has them and by the texts of a conversation's beginnings; the same losses and gradient norms,
padded and packed."""
import json
import pathlib
import struct
import subprocess

import pytest
import torch
from chat_conversations import conversations
from conftest import PROGRAM
from distillation import distillation_loss
from models import MAKERS, gpt2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

FOLDER = pathlib.Path(__file__).parent / "chat_templates"
COUNT = 120
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
LLAMA3_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
                r"\s+(?!\S)|\s+")
MARKED = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
              "{{ (m.content or '') + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
              "{{ (m.content or '') + '<|im_end|>\n' }}{% endif %}{% endfor %}",
    # A span that begins and ends within words.
    "inline": "{{ bos_token }}{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}"
              "{{ m.content or '' }}.{% endgeneration %}{% else %}{{ m.content or '' }}{% endif %}end{% endfor %}",
}


def has_texts(row):
    return all(message["content"] is None or isinstance(message["content"], str) for message in row["messages"])


def texts():
    return [row for row in conversations(COUNT) if has_texts(row)]


def byte_level(stages):
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = stages
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return words, trainer


def gpt2_like():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3_like():
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def qwen_like():
    words, trainer = llama3_like()
    words.normalizer = normalizers.NFC()
    return words, trainer


def llama2_like():
    words = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    words.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False,
                                  special_tokens=SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)])
    return words, trainer


def metaspace():
    words = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False,
                                  special_tokens=SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)])
    return words, trainer


KINDS = {make.__name__: make for make in (gpt2_like, llama3_like, qwen_like, llama2_like, metaspace)}


def tokenizer_of(kind, template):
    words, trainer = KINDS[kind]()
    words.train_from_iterator([message["content"] or "" for row in texts() for message in row["messages"]], trainer)
    if kind in ("llama2_like", "metaspace"):  # bytes are no tokens of their own for the package's search
        description = json.loads(words.to_str())
        description["added_tokens"] = [token for token in description["added_tokens"]
                                       if not token["content"].startswith("<0x")]
        words = Tokenizer.from_str(json.dumps(description))
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
                                   chat_template=template)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def run(tessera, recipe):
    path = tessera.folder / "recipe.yaml"
    path.write_text(recipe, encoding="utf-8")
    return subprocess.run([PROGRAM, "train", path], cwd=tessera.folder, capture_output=True, text=True, check=False)


def load_only(more=""):
    return f"""
model: {{architecture: gpt2, n_layer: 1, n_head: 2, n_embd: 32, seq_len: 4096}}
data: {{train: chats.jsonl, tokenizer: tokenizer}}
train: {{task: sft, steps: 0}}
{more}
"""


def masks_of(tessera, tokenizer, rows):
    """For each row its ids and the mask, from the file that a run keeps beside the data."""
    tokenizer.save_pretrained(tessera.folder / "tokenizer")
    write_rows(tessera.folder / "chats.jsonl", rows)
    done = run(tessera, load_only())
    assert done.returncode == 0, done.stderr
    file, = tessera.folder.glob("*.conversations")
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


def accepted(tokenizer, rows):
    good = []
    for row in rows:
        try:
            tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=False,
                                          **row.get("chat_template_kwargs", {}))
            good.append(row)
        except Exception:  # the template's or Python's own
            pass
    assert len(good) >= 20
    return good


def with_whole_ends(mask, offsets):
    """transformers ends a span at the first token of its last character: the others of this character count, too."""
    mask = list(mask)
    for i in range(1, len(mask)):
        if mask[i - 1] and offsets[i][0] < offsets[i - 1][1]:
            mask[i] = 1
    return mask


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", ["zephyr", *MARKED])
def test_masks_of_generation_blocks_are_transformers(tessera, style, kind):
    template = MARKED.get(style) or (FOLDER / f"{style}.jinja").read_text(encoding="utf-8")
    tokenizer = tokenizer_of(kind, template)
    rows = accepted(tokenizer, texts())
    made = masks_of(tessera, tokenizer, rows)
    equal = 0
    for row, (ids, mask) in zip(rows, made, strict=True):
        more = {"tools": row.get("tools"), **row.get("chat_template_kwargs", {})}
        expected = tokenizer.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True,
                                                 **more)
        assert ids == expected["input_ids"], row
        whole = tokenizer.apply_chat_template(row["messages"], tokenize=False, **more)
        offsets = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        assert mask == with_whole_ends(expected["assistant_masks"], offsets), row
        equal += mask == expected["assistant_masks"] and sum(mask) > 0
    assert equal >= (0 if kind == "llama2_like" and style == "zephyr" else 20)


def spans_of(tokenizer, row):
    """The characters of the answers by the texts of the beginnings, or None if these are no beginnings."""
    def render(messages, prompt):
        return tokenizer.apply_chat_template(messages, tools=row.get("tools"), tokenize=False,
                                             add_generation_prompt=prompt, **row.get("chat_template_kwargs", {}))
    messages = row["messages"]
    whole, spans = render(messages, False), []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = render(messages[:i], True), render(messages[:i + 1], False)
        if not whole.startswith(before) or not whole.startswith(after):
            return whole, None
        spans.append((min(len(before), len(after)), len(after)))
    return whole, spans


@pytest.mark.parametrize("kind", ["gpt2_like", "qwen_like", "llama2_like"])
@pytest.mark.parametrize("style", ["chatml", "gemma", "llama2", "llama3", "mistral", "phi", "tools", "reasoning"])
def test_masks_by_beginnings_are_those_of_offsets(tessera, style, kind):
    tokenizer = tokenizer_of(kind, (FOLDER / f"{style}.jinja").read_text(encoding="utf-8"))
    found = []
    for row in accepted(tokenizer, texts()):
        try:
            found.append((row, *spans_of(tokenizer, row)))
        except Exception:  # a beginning that the template refuses
            found.append((row, "", None))
    good = [(row, whole, spans) for row, whole, spans in found if spans is not None]
    assert (len(good) >= 20) == (style != "tools")  # which numbers the messages from the end, too
    tokenizer.save_pretrained(tessera.folder / "tokenizer")
    made = masks_of(tessera, tokenizer, [row for row, _, _ in good]) if good else []
    for (row, whole, spans), (ids, mask) in zip(good, made, strict=True):
        encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        assert ids == encoded["input_ids"], row
        expected = [int(any(begin < last and end > first for first, last in spans))
                    for begin, end in encoded["offset_mapping"]]
        assert mask == expected, row
    for row in [row for row, _, spans in found if spans is None][:3]:
        write_rows(tessera.folder / "chats.jsonl", [row])
        done = run(tessera, load_only())
        assert done.returncode == 4 and "line 1: " in done.stderr and done.stderr.count("\n") == 1, done.stderr


def curve_of_torch(model, steps, rate, loss_of):
    """The loss and the gradient norm of each step; a step is a list of conversations, ids with their masks, that are read
    one by one. loss_of(logits, ids, targets) is the mean over the targets that count."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    curve = []
    for rows in steps:
        count = sum(sum(mask[1:]) for _, mask in rows)
        total = 0.0
        for ids, mask in rows:
            logits = model(torch.tensor([ids[:-1]])).logits[0]
            targets = torch.tensor([id if counts else -100 for id, counts in zip(ids[1:], mask[1:])])
            loss = loss_of(logits, torch.tensor([ids[:-1]]), targets) * sum(mask[1:]) / count
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        curve.append((total, norm.item()))
    return curve


def cross_entropy(logits, ids, targets):
    return torch.nn.functional.cross_entropy(logits, targets)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_losses_and_gradient_norms_are_torchs(tessera, name, packing, ranks):
    compare_with_torch(tessera, MAKERS[name], packing, ranks, cross_entropy)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_losses_of_a_teacher_are_torchs(tessera, name, packing):
    teacher = []

    def loss_of(logits, ids, targets):
        if not teacher:
            teacher.append(AutoModelForCausalLM.from_pretrained(tessera.folder / "teacher").eval())
        with torch.no_grad():
            taught = teacher[0](ids).logits[0]
        return distillation_loss(logits, taught, targets, 3.0, 0.7)

    def make(**shape):
        gpt2(seed=9, n_layer=3, **shape).save_pretrained(tessera.folder / "teacher")
        return MAKERS[name](**shape)

    compare_with_torch(tessera, make, packing, 2, loss_of,
                       "teacher: teacher, distill_temperature: 3.0, distill_weight: 0.7")


def compare_with_torch(tessera, make, packing, ranks, loss_of, more=""):
    tokenizer = tokenizer_of("gpt2_like", MARKED["chatml"])
    rows = [row for row in texts() if len(row["messages"]) < 8][:24]
    made = [(ids[:257], mask[:257]) for ids, mask in masks_of(tessera, tokenizer, rows)]
    made = [(ids, mask) for ids, mask in made if any(mask[1:])]
    model = make(vocabulary=len(tokenizer), positions=256)
    model.save_pretrained(tessera.folder / "start")
    recipe = f"""
model: {{pretrained: start, seq_len: 256}}
data: {{train: chats.jsonl, tokenizer: tokenizer, packing: {str(packing).lower()}, shuffle: false, batch_size: BATCH}}
train: {{task: sft, steps: 5, optimizer: sgd, lr: 0.5, lr_schedule: constant, weight_decay: 0, max_grad_norm: 0,
         gradient_accumulation_steps: 2{", " + more if more else ""}}}
log: {{jsonl: out.jsonl, summary: summary.json}}
"""
    batch = 4 // ranks // 2
    steps = [made[step * 4 % len(made):][:4] for step in range(5)]
    if packing:  # a step is an epoch
        tessera.train(recipe.replace("BATCH", "1"))
        packs = json.loads((tessera.folder / "summary.json").read_text())["data"]["packed_rows"]
        (tessera.folder / "out.jsonl").unlink()
        assert 1 < packs < len(made)
        if packs % (2 * ranks):
            pytest.skip(f"{packs} rows are no multiple of {2 * ranks}")
        batch, steps = packs // (2 * ranks), [made] * 5
    assert all(len(step) in (4, len(made)) for step in steps)
    tessera.train(recipe.replace("BATCH", str(batch)), ranks=ranks)
    ours = [json.loads(line) for line in (tessera.folder / "out.jsonl").read_text().splitlines()]
    for step, (loss, norm) in zip(ours, curve_of_torch(model, steps, 0.5, loss_of), strict=True):
        assert step["loss"] == pytest.approx(loss, rel=1e-4)
        assert step["grad_norm"] == pytest.approx(norm, rel=5e-4)
