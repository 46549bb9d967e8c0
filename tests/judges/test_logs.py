"""The logs of a run, read by TensorBoard's own reader, csv and json."""
import csv
import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

STEPS = 6


def train(tessera, text, steps=STEPS, extra="", ranks=2):
    folder = tessera.folder
    tessera.train(f"""
model: {{architecture: gpt2, n_layer: 2, n_head: 2, n_embd: 32, seq_len: 32}}
data: {{train: {json.dumps(str(text))}, valid: {json.dumps(str(text))}, tokenizer: bytes, batch_size: 2}}
train: {{steps: {steps}, eval_every: 2, eval_batches: 1, lr: 1.0e-3, lr_decay_steps: {STEPS}}}
checkpoint: {{dir: {folder / "out"}, every: 2}}
log: {{jsonl: {folder / "m.jsonl"}, csv: {folder / "m.csv"}, tensorboard: {folder / "tb"}{extra}}}
""", ranks=ranks)
    return [json.loads(line) for line in (folder / "m.jsonl").read_text(encoding="utf-8").splitlines()]


def scalars_of(folder):
    """{tag: [(step, value), ..]} as TensorBoard shows it."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]}


TAGS = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/lr",
        "tokens_per_s": "speed/tokens_per_s", "samples_per_s": "speed/samples_per_s", "step_s": "speed/step_s",
        "data_wait_s": "speed/data_wait_s", "exposed_comm_s": "communication/exposed_s",
        "comm_bytes": "communication/bytes", "peak_bytes": "memory/peak_bytes",
        "cached_bytes": "memory/cached_bytes", "valid_loss": "validation/loss"}


def agree_with_metrics(scalars, lines):
    assert set(scalars) == set(TAGS.values())
    for name, tag in TAGS.items():
        wanted = [(line["step"], line[name]) for line in lines if name in line]
        assert [step for step, _ in scalars[tag]] == [step for step, _ in wanted], tag
        for (_, value), (_, number) in zip(scalars[tag], wanted, strict=True):
            assert value == pytest.approx(number, rel=1e-6, abs=1e-30), tag


def test_tensorboard_reads_the_events(tessera, text):
    lines = train(tessera, text)
    assert [line["step"] for line in lines if "valid_loss" in line] == [2, 4, 6]
    agree_with_metrics(scalars_of(tessera.folder / "tb"), lines)


def test_tensorboard_reads_the_events_of_a_resumed_run(tessera, text):
    train(tessera, text, steps=5)
    lines = train(tessera, text, steps=STEPS)  # resumes at step 5
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    agree_with_metrics(scalars_of(tessera.folder / "tb"), lines)


def test_the_table_has_the_same_numbers(tessera, text):
    lines = train(tessera, text)
    with open(tessera.folder / "m.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        if "valid_loss" in line:
            assert (int(row["step"]), row["evaluation"]) == (line["step"], "valid_loss")
            assert float(row["value"]) == line["valid_loss"]
            continue
        assert {name: float(row[name]) for name in line} == {name: float(value) for name, value in line.items()}
        assert row["evaluation"] == row["value"] == ""


def test_a_trace_follows_the_format(tessera, text):
    """The Trace Event Format's document: complete events have ts and dur in microseconds, pid, tid, args; metadata
    names processes and threads. Perfetto nests slices of one thread: they must not overlap otherwise."""
    train(tessera, text, extra=f", trace: {tessera.folder / 'trace.json'}, trace_steps: [3, 5]", ranks=3)
    trace = json.loads((tessera.folder / "trace.json").read_text(encoding="utf-8"))
    assert isinstance(trace["traceEvents"], list)
    named, spans = {}, {}
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "args"} <= set(event)
        if event["ph"] == "M":
            named.setdefault(event["name"], set()).add((event["pid"], event["tid"]))
            continue
        assert event["ph"] == "X" and isinstance(event["cat"], str)
        assert event["ts"] > 0 and event["dur"] >= 0
        spans.setdefault((event["pid"], event["tid"]), []).append(event)
    assert {pid for pid, _ in named["process_name"]} == {0, 1, 2}
    assert set(spans) <= named["thread_name"]
    for lane in spans.values():
        lane.sort(key=lambda event: event["ts"])
        for one, following in zip(lane, lane[1:]):
            assert one["ts"] + one["dur"] <= following["ts"] + 0.002, (one, following)
    for pid in range(3):
        assert {event["name"] for event in spans[pid, 0]} == {"step 3", "step 4", "step 5"}
        for tid in (1, 2, 3, 4):
            assert {event["args"]["step"] for event in spans[pid, tid]} == {3, 4, 5}
