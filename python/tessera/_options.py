"""The keyword arguments of each function: the options of the program's subcommand, `-` as `_`. `tessera COMMAND --help`
describes them, and a test compares the names. The program checks the values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Union

Path = Union[str, "os.PathLike[str]"]
Bytes = Union[int, str]  # 80_000_000_000 or "80GB"
Device = Literal["auto", "cpu", "cuda"]
Strategy = Literal["NO_SHARD", "SHARD_OPTIMIZER", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]


class RecipeOptions(TypedDict, total=False):
    set: Mapping[str, Any]  # {"train.steps": 100}
    config_file: Path
    device: Device


class PlanOptions(RecipeOptions, total=False):
    world_size: int
    group_size: int
    strategy: Literal[Strategy, "all", "none", "dp"]
    device_memory: Bytes
    cluster: Path
    sweep: Mapping[str, str]  # {"world_size": "8,16"}
    html: Path


class BenchOptions(RecipeOptions, total=False):
    strategies: Sequence[Literal[Strategy, "none", "dp"]]
    world_sizes: Sequence[int]
    precisions: Sequence[Literal["fp32", "bf16", "fp16"]]
    batch_sizes: Sequence[int]
    prefetch: Sequence[Literal["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"]]
    offload: Sequence[Literal["device", "host", "file"]]
    activation_checkpointing: Sequence[Literal[False, True, "selective"]]
    axis: Mapping[str, str]  # {"sharding.reduce_dtype": "fp32,bf16"}
    steps: int
    rounds: int
    warmup: int
    budget: float
    time_limit: float
    row_time_limit: float
    threads_per_rank: int
    fill_cores: bool
    device_memory: Bytes
    again: bool
    html: Path
    compare: Path
    peer: Sequence[Literal["pytorch", "sentence-transformers", "deepspeed"]]
    peer_modes: Sequence[str]
    peer_compile: bool
    peer_python: Path
    peer_scripts: Path


class _To(TypedDict):
    to: Literal["sharded", "full", "dcp", "universal", "hf", "torch", "llmc", "gguf"]


class ConvertOptions(_To, total=False):
    moments: Literal["fp32", "8bit"]
    world_size: int
    max_shard_size: Bytes
    dtype: Literal["fp32", "bf16", "fp16", "fp64", "int8"]
    type: Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k"]
    weights_only: bool
    merge: bool
    base: Path
    average: Sequence[Path]
    heads: int
    ffn: int
    max_memory: Bytes
    verify: bool
    force: bool


class DiffOptions(TypedDict, total=False):
    tolerance: float
    weights_only: bool
    all: bool


class EncodeOptions(TypedDict, total=False):
    base: Path
    batch_size: int
    normalize: bool
    prompt: str
    device: Device
    dtype: Literal["float32", "bfloat16", "float16"]


class EvaluateOptions(TypedDict, total=False):
    base: Path
    columns: Sequence[int | str]
    task: Literal["similarity", "accuracy", "triplet", "perplexity", "sft", "dpo"]
    labels: Sequence[str]
    label_scale: float
    batch_size: int
    seq_len: int
    reference: Path
    reference_base: Path
    beta: float
    sharding_strategy: Strategy
    device: Device
    dtype: Literal["float32", "bfloat16", "float16"]


class TokenizeOptions(TypedDict, total=False):
    special_tokens: bool
    workers: int


class GenerateOptions(TypedDict, total=False):
    base: Path
    chat: bool
    system: str
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: Sequence[int]
    ignore_eos: bool
    dtype: Literal["fp32", "bf16"]
    device: Device


class TrainOptions(RecipeOptions, total=False):
    pass


# Options that the functions set themselves, and which are therefore no keywords.
OWN_OPTIONS = {
    "plan": {"json", "calibrate"},
    "bench": {"json"},
    "convert": {"json"},
    "inspect": {"json"},
    "verify": {"json"},
    "diff": {"json"},
    "encode": {"input", "out", "column"},
    "evaluate": {"json", "data"},
    "tokenize": {"tokenizer", "column", "out", "shard", "lines", "json"},
    "generate": {"prompt", "prompt_ids", "prompts", "column", "logits", "stats"},
    "train": {"metrics"},
}
OPTIONS: dict[str, frozenset[str]] = {
    "plan": frozenset(PlanOptions.__annotations__),
    "bench": frozenset(BenchOptions.__annotations__),
    "convert": frozenset(ConvertOptions.__annotations__),
    "inspect": frozenset(),
    "verify": frozenset(),
    "diff": frozenset(DiffOptions.__annotations__),
    "encode": frozenset(EncodeOptions.__annotations__),
    "evaluate": frozenset(EvaluateOptions.__annotations__),
    "tokenize": frozenset(TokenizeOptions.__annotations__),
    "generate": frozenset(GenerateOptions.__annotations__),
    "train": frozenset(TrainOptions.__annotations__),
}
