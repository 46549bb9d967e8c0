"""Distillation: the fixture of the C++ test is what torch gives today, and runs with a teacher have torch's losses and
gradient norms; encoders with a teacher have those of Sentence Transformers' losses."""
import json
import pathlib

import distillation
import pytest
import teacher_states
import torch
from models import MAKERS, gpt2, qwen2
from text_batches import batches

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "tasks/fixtures"
FIXTURE = FIXTURES / "distillation.json"
TOLERANCE = {"float32": 1e-6, "float64": 1e-13, "bfloat16": 2**-8}
TOKENS, BATCH, STEPS, RATE = 64, 4, 6, 1.0e-3


def test_the_fixture_is_theirs():
    written = json.loads(FIXTURE.read_text(encoding="utf-8"))
    today = distillation.reference()
    assert len(written) == len(today) == 15
    for old, new in zip(written, today):
        for key in ("dtype", "temperature", "weight", "shape", "logits", "teacher", "targets"):
            assert old[key] == new[key]
        assert old["loss"] == pytest.approx(new["loss"], rel=1e-6)
        largest = max(map(abs, new["gradient"]))
        assert old["gradient"] == pytest.approx(new["gradient"], rel=0, abs=TOLERANCE[new["dtype"]] * largest)


def test_the_fixture_of_states_is_theirs():
    written = json.loads((FIXTURES / "teacher_states.json").read_text(encoding="utf-8"))
    today = teacher_states.reference()
    assert len(written) == len(today) == 12
    for old, new in zip(written, today):
        for key in ("dtype", "loss", "shape", "student", "teacher", "targets"):
            assert old[key] == new[key]
        assert old["value"] == pytest.approx(new["value"], rel=1e-6)
        largest = max(map(abs, new["gradient"]))
        assert old["gradient"] == pytest.approx(new["gradient"], rel=0, abs=TOLERANCE[new["dtype"]] * largest)


class Watched:
    """The outputs of modules in the last forward, by their whole names; of a tuple the first."""
    def __init__(self, model, names):
        self.outputs = {}
        for name in names:
            model.get_submodule(name).register_forward_hook(self.keep(name))

    def keep(self, name):
        def hook(_, __, output):
            self.outputs[name] = output[0] if isinstance(output, tuple) else output
        return hook


def recipe_of(pairs):
    return json.dumps([{"student": of_student, "teacher": of_teacher, "weight": weight, "loss": loss}
                       for of_student, of_teacher, weight, loss in pairs])


def train_in_torch(student, teacher, text, temperature, weight, pairs=()):
    """(loss, gradient norm) of each step of plain SGD, in fp64."""
    student, teacher = student.double().train(), teacher.double().eval()
    own, theirs = Watched(student, [pair[0] for pair in pairs]), Watched(teacher, [pair[1] for pair in pairs])
    optimizer = torch.optim.SGD(student.parameters(), lr=RATE)
    curve = []
    for inputs, targets in batches(text, STEPS, BATCH, TOKENS):
        with torch.no_grad():
            taught = teacher(inputs).logits.flatten(0, 1)
        loss = distillation.distillation_loss(student(inputs).logits.flatten(0, 1), taught, targets.flatten(),
                                              temperature, weight)
        for of_student, of_teacher, factor, kind in pairs:
            loss = loss + factor * teacher_states.state_loss(own.outputs[of_student].flatten(0, 1),
                                                             theirs.outputs[of_teacher].flatten(0, 1),
                                                             targets.flatten(), kind)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), float("inf"))
        optimizer.step()
        curve.append((loss.item(), norm.item()))
    return curve


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("student", ["gpt2", "llama"])
def test_losses_and_gradient_norms_agree(tessera, tmp_path, text, student, ranks):
    temperature, weight = 3.0, 0.7
    pupil, teacher = MAKERS[student](vocabulary=256), gpt2(vocabulary=256, seed=9, n_layer=3)
    pupil.save_pretrained(tmp_path / "student")
    teacher.save_pretrained(tmp_path / "teacher")
    metrics = tmp_path / "metrics.jsonl"
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(tmp_path / "student"))}, seq_len: {TOKENS}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: {STEPS}, optimizer: sgd, lr: {RATE}, lr_schedule: constant, weight_decay: 0, max_grad_norm: 0,
         teacher: {json.dumps(str(tmp_path / "teacher"))}, distill_temperature: {temperature}, distill_weight: {weight}}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""", ranks=ranks)
    ours = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    theirs = train_in_torch(pupil, teacher, text, temperature, weight)
    assert len(ours) == len(theirs) == STEPS
    for step, (loss, norm) in zip(ours, theirs):
        assert step["loss"] == pytest.approx(loss, rel=1e-6), step["step"]
        assert step["grad_norm"] == pytest.approx(norm, rel=1e-5), step["step"]


GPT2_PAIRS = [("transformer.h.0", "transformer.h.1", 1.0, "mse"),
              ("transformer.h.1.attn", "transformer.h.2.attn", 0.5, "cosine"),
              ("transformer.h.1.mlp.c_fc", "transformer.h.2.mlp.c_fc", 0.25, "mse"),
              ("transformer.ln_f", "transformer.ln_f", 0.125, "cosine")]
LLAMA_PAIRS = [("model.layers.1", "model.layers.2", 1.0, "mse"),
               ("model.layers.0.self_attn", "model.layers.1.self_attn", 0.5, "mse"),
               ("model.layers.1.post_attention_layernorm", "model.layers.1.post_attention_layernorm", 0.5, "cosine")]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_runs_with_hidden_states_agree(tessera, tmp_path, text, name, ranks):
    pairs = GPT2_PAIRS if name == "gpt2" else LLAMA_PAIRS
    pupil = MAKERS[name](vocabulary=256)
    teacher = (gpt2(vocabulary=256, seed=9, n_layer=3) if name == "gpt2"
               else qwen2(vocabulary=256, num_hidden_layers=3))
    pupil.save_pretrained(tmp_path / "student")
    teacher.save_pretrained(tmp_path / "teacher")
    metrics = tmp_path / "metrics.jsonl"
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(tmp_path / "student"))}, seq_len: {TOKENS}}}
data: {{train: {json.dumps(str(text))}, tokenizer: bytes, batch_size: {BATCH // ranks}, shuffle: false}}
train: {{steps: {STEPS}, optimizer: sgd, lr: {RATE}, lr_schedule: constant, weight_decay: 0, max_grad_norm: 0,
         teacher: {json.dumps(str(tmp_path / "teacher"))}, teacher_states: {recipe_of(pairs)}}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""", ranks=ranks)
    ours = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    theirs = train_in_torch(pupil, teacher, text, 2.0, 0.5, pairs)
    assert len(ours) == len(theirs) == STEPS
    for step, (loss, norm) in zip(ours, theirs):
        assert step["loss"] == pytest.approx(loss, rel=1e-6), step["step"]
        assert step["grad_norm"] == pytest.approx(norm, rel=1e-5), step["step"]


WORDS = "tile mosaic rank shard a wide red moves holds sees and two".split()


def bert_folder(folder, seed, width, layers):
    """A Sentence Transformers folder of a small BERT with mean pooling and a WordPiece tokenizer."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    bare = folder.with_name(folder.name + "-bare")
    bare.mkdir()
    (bare / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n",
                                    encoding="utf-8")
    BertTokenizerFast(str(bare / "vocab.txt")).save_pretrained(bare)
    torch.manual_seed(seed)
    BertModel(BertConfig(vocab_size=5 + len(WORDS), hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
                         intermediate_size=2 * width, max_position_embeddings=32, initializer_range=0.2,
                         hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).save_pretrained(bare)
    transformer = models.Transformer(str(bare))
    model = SentenceTransformer(modules=[transformer, models.Pooling(width)], device="cpu")
    model.save(str(folder))
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("loss, width", [("mse", 32), ("margin_mse", 48)])
def test_encoders_learn_as_in_sentence_transformers(tessera, tmp_path, loss, width, ranks):
    from sentence_transformers.sentence_transformer import losses

    student = bert_folder(tmp_path / "student", 1, 32, 1).double()
    teacher = bert_folder(tmp_path / "teacher", 2, width, 3).double()
    draw = torch.Generator().manual_seed(4)
    rows = [[" ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (3 + (5 * row + k) % 7,), generator=draw))
             for k in range(3)] for row in range(STEPS * BATCH)]
    if loss == "mse":
        rows = [row[:1] for row in rows]
    (tmp_path / "rows.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    metrics = tmp_path / "metrics.jsonl"
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(tmp_path / "student"))}}}
data: {{train: [{{file: {json.dumps(str(tmp_path / "rows.tsv"))}, format: tsv, loss: {loss}}}],
        batch_size: {BATCH // ranks}, shuffle: false}}
train: {{task: sentence_pairs, steps: {STEPS}, optimizer: sgd, lr: {RATE}, lr_schedule: constant, weight_decay: 0,
         max_grad_norm: 0, teacher: {json.dumps(str(tmp_path / "teacher"))}}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""", ranks=ranks)
    ours = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    theirs = (losses.MSELoss if loss == "mse" else losses.MarginMSELoss)(student)
    theirs.eval()
    trained = [p for name, p in student.named_parameters() if "pooler" not in name]
    optimizer = torch.optim.SGD(trained, lr=RATE)
    for step in range(STEPS):
        batch = rows[step * BATCH:(step + 1) * BATCH]
        columns = list(zip(*batch))
        with torch.no_grad():
            taught = [teacher(teacher.tokenize(list(column)))["sentence_embedding"] for column in columns]
        labels = taught[0] if loss == "mse" else (taught[0] * (taught[1] - taught[2])).sum(1)
        value = theirs([student.tokenize(list(column)) for column in columns], labels)
        optimizer.zero_grad()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, float("inf"))
        optimizer.step()
        # A margin is a difference of large dot products, which fp32 rounds; theirs is fp64.
        assert ours[step]["loss"] == pytest.approx(value.item(), rel=1e-6 if loss == "mse" else 1e-5), step
        assert ours[step]["grad_norm"] == pytest.approx(norm.item(), rel=1e-5), step


@pytest.mark.parametrize("ranks", [1, 2])
def test_encoders_learn_hidden_states(tessera, tmp_path, ranks):
    student = bert_folder(tmp_path / "student", 1, 32, 1).double()
    teacher = bert_folder(tmp_path / "teacher", 2, 32, 3).double()
    pairs = [("encoder.layer.0", "encoder.layer.2", 1.0, "mse"),
             ("encoder.layer.0.attention.output.dense", "encoder.layer.1.attention.output.dense", 0.5, "cosine")]
    draw = torch.Generator().manual_seed(4)
    # One length in a micro-batch of either number of ranks, so that the mean over all ranks' tokens is that of the batch.
    rows = [" ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (3 + row // BATCH,), generator=draw))
            for row in range(STEPS * BATCH)]
    (tmp_path / "rows.tsv").write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    metrics = tmp_path / "metrics.jsonl"
    tessera.train(f"""
model: {{pretrained: {json.dumps(str(tmp_path / "student"))}}}
data: {{train: [{{file: {json.dumps(str(tmp_path / "rows.tsv"))}, format: tsv, loss: mse}}],
        batch_size: {BATCH // ranks}, shuffle: false}}
train: {{task: sentence_pairs, steps: {STEPS}, optimizer: sgd, lr: {RATE}, lr_schedule: constant, weight_decay: 0,
         max_grad_norm: 0, teacher: {json.dumps(str(tmp_path / "teacher"))}, teacher_states: {recipe_of(pairs)}}}
log: {{jsonl: {json.dumps(str(metrics))}}}
""", ranks=ranks)
    ours = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    own = Watched(student[0].auto_model, [pair[0] for pair in pairs])
    theirs = Watched(teacher[0].auto_model, [pair[1] for pair in pairs])
    trained = [p for name, p in student.named_parameters() if "pooler" not in name]
    optimizer = torch.optim.SGD(trained, lr=RATE)
    student.eval()
    for step in range(STEPS):
        tokens = student.tokenize(rows[step * BATCH:(step + 1) * BATCH])
        with torch.no_grad():
            taught = teacher(dict(tokens))["sentence_embedding"]
        value = torch.nn.functional.mse_loss(student(dict(tokens))["sentence_embedding"], taught)
        counted = torch.where(tokens["attention_mask"].flatten() == 1, 0, -100)
        for of_student, of_teacher, factor, kind in pairs:
            value = value + factor * teacher_states.state_loss(own.outputs[of_student].flatten(0, 1),
                                                               theirs.outputs[of_teacher].flatten(0, 1), counted, kind)
        optimizer.zero_grad()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, float("inf"))
        optimizer.step()
        assert ours[step]["loss"] == pytest.approx(value.item(), rel=1e-6), step
        assert ours[step]["grad_norm"] == pytest.approx(norm.item(), rel=1e-5), step
