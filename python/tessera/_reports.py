"""The program's reports as types: what `--json` of each subcommand writes, unchanged. A later version may add keys."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class Bytes(TypedDict):
    parameters: int
    gradients: int
    optimizer: int
    communication: int
    activations: int
    other: int
    total: int


class Placed(TypedDict):
    total: int
    places: int
    live: int


class Peak(TypedDict):
    phase: str
    unit: str


class Collective(TypedDict):
    op: str
    phase: str
    ranks: int
    calls: int
    bytes: int


class StrategyPlan(TypedDict, total=False):
    """A strategy; `refused` stands in place of the numbers if it is impossible."""

    strategy: str
    group_size: int | None
    bytes: Bytes
    in_files: dict[str, int]
    on_host: dict[str, int]
    cached: int
    by_samples: list[dict[str, Any]]
    placed: Placed
    peak: Peak
    collectives: list[Collective]
    moved_bytes: int
    fits: bool
    refused: str


class Advice(TypedDict):
    changes: list[str]
    total: int
    saved: int


class _Plan(TypedDict):
    format: str
    version: int
    recipe: str
    world_size: int
    device: str
    batch_size: int
    seq_len: int
    gradient_accumulation_steps: int
    device_memory: int | None
    plans: list[StrategyPlan]
    advice: list[Advice]
    least: Advice | None


class Plan(_Plan, total=False):
    """`cluster`, `rows` and `recommendations` are there with `cluster=` (docs/cluster.md)."""

    cluster: dict[str, Any]
    mfu_formula: str
    rows: list[dict[str, Any]]
    recommendations: list[dict[str, Any]]


class Bench(TypedDict):
    """docs/bench.md describes a row's keys."""

    format: str
    version: int
    recipe: str
    command: str
    machine: dict[str, Any]
    model: dict[str, Any]
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    regressions: list[str]


class Place(TypedDict):
    path: str
    format: str


class ConvertedTensor(TypedDict):
    part: Literal["model", "optimizer"]
    name: str
    dtype: str
    shape: list[int]
    bytes: int
    xxh3: str


class Conversion(TypedDict):
    report: str
    source: Place
    target: Place
    bytes_read: int
    bytes_written: int
    seconds: float
    peak_memory: int
    verified: bool
    notes: list[str]
    tensors: list[ConvertedTensor]


class Totals(TypedDict):
    tensors: int
    elements: int
    bytes: int


class ListedTensor(TypedDict):
    part: Literal["model", "optimizer"]
    name: str
    dtype: str
    shape: list[int]
    bytes: int
    where: str


class Contents(TypedDict):
    report: str
    path: str
    format: str
    model: Totals
    optimizer: Totals
    aliases: dict[str, str]
    files: list[str]
    scalars: dict[str, Any]
    notes: list[str]
    tensors: list[ListedTensor]


class Verdict(TypedDict):
    path: str
    format: str
    sound: bool
    found: bool
    readable: bool
    tensors: int
    bytes: int
    damaged_bytes: int
    damaged_tensors: list[str]
    damages: list[str]


class Verification(TypedDict):
    report: str
    sound: bool
    checkpoints: list[Verdict]


class _TensorDifference(TypedDict):
    part: Literal["model", "optimizer"]
    name: str
    result: str
    first: str
    second: str


class TensorDifference(_TensorDifference, total=False):
    """`norms` and `largest` are there if values were compared; None for one that is not finite."""

    norms: list[float | None]
    largest: float | None


class Difference(TypedDict):
    report: str
    first: Place
    second: Place
    tolerance: float
    different: int
    tensors: list[TensorDifference]


class Evaluation(TypedDict):
    format: str
    task: str
    samples: int
    numbers: dict[str, float | None]


class Generation(TypedDict):
    prompt: str
    text: str
    tokens: list[int]


class _StepMetrics(TypedDict):
    step: int
    loss: float | None
    grad_norm: float | None
    lr: float
    tokens_per_s: float
    samples_per_s: float
    step_s: float
    peak_bytes: int
    cached_bytes: int
    comm_bytes: int
    exposed_comm_s: float
    data_wait_s: float


class StepMetrics(_StepMetrics, total=False):
    """A line of log.jsonl (docs/recipe.md#metrics); None stands for a number that is not finite."""

    loss_scale: float
    skipped_steps: int
    rewards_chosen: float
    rewards_rejected: float
    rewards_accuracy: float
    rewards_margin: float
    rank_samples: list[int]
    imbalance: float
