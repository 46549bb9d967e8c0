"""A peer's job, its checks, and the settings of a step: see common.py for the keys."""
import math
import os
import pathlib


class Refused(Exception):
    """The peer cannot do the job; the text has the reason and a way out."""


def amd_with_avx512():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "AuthenticAMD" in text and " avx512f " in text


class Job:
    def __init__(self, values):
        self.values = values
        recipe = values.get("recipe", values)
        self.recipe = recipe
        self.model, self.data = recipe.get("model") or {}, recipe.get("data") or {}
        if isinstance(self.data.get("train"), dict):  # `tessera recipe` prints a list of one without the list
            self.data = dict(self.data, train=[self.data["train"]])
        self.train, self.sharding = recipe.get("train") or {}, recipe.get("sharding") or {}
        self.mode = values.get("mode")
        self.world_size = int(values.get("world_size", 1))
        low = self.sharding.get("mixed_precision", "no") == "bf16"
        self.precision = values.get("precision") or ("bf16" if low else "fp32")
        self.steps, self.warmup = int(values.get("steps", 20)), int(values.get("warmup", 3))
        self.rounds = int(values.get("rounds", 1))
        self.weights = values.get("weights") or self.model.get("pretrained")
        self.device = values.get("device") or self.train.get("device", "auto")
        self.backend = values.get("backend")
        self.compile = bool(values.get("compile", False))
        self.threads = int(values.get("threads_per_rank") or os.environ.get("OMP_NUM_THREADS") or
                           max(1, len(os.sched_getaffinity(0)) // self.world_size))
        self.mkl_avx512 = values.get("mkl_avx512")
        if self.mkl_avx512 is None:
            self.mkl_avx512 = amd_with_avx512()
        self.time_limit_s = values.get("time_limit_s")
        self.program = values.get("program")
        self.accumulation = int(self.train.get("gradient_accumulation_steps", 1))
        self.check()

    def check(self):
        if self.precision not in ("fp32", "bf16"):
            raise Refused(f"precision {self.precision}: fp32 or bf16")
        if self.world_size < 1 or self.steps < 1 or self.warmup < 0 or self.rounds < 1 or self.threads < 1:
            raise Refused("world_size, steps, rounds and threads must be at least 1, warmup at least 0")
        if self.data.get("split_batches") and self.data.get("batch_size", 8) % self.world_size:
            raise Refused(f"data.split_batches: {self.world_size} ranks do not divide the batch")
        for key, place in (self.sharding.get("offload") or {}).items():
            if key != "folder" and place not in (None, "device"):
                raise Refused(f"sharding.offload.{key}: {place} has no counterpart in this peer")
        if self.sharding.get("offload_params"):
            raise Refused("sharding.offload_params has no counterpart in this peer")
        if self.sharding.get("activation_checkpointing", "false") not in (False, True, "false", "true"):
            raise Refused("sharding.activation_checkpointing: selective has no counterpart in this peer")

    @property
    def checkpointing(self):
        return self.sharding.get("activation_checkpointing", "false") in (True, "true")

    @property
    def batch_size(self):
        """Samples in a rank's micro-batch."""
        size = int(self.data.get("batch_size", 8))
        return size // self.world_size if self.data.get("split_batches") else size

    @property
    def seed(self):
        return int(self.train.get("seed", 0))

    def learning_rate(self, step):
        """Tessera's schedules (engine/optim/schedule.cpp); steps are counted from 0."""
        train = self.train
        peak, low, warm = train.get("lr", 3e-4), train.get("min_lr", 0.0), train.get("warmup_steps", 0)
        end = train.get("lr_decay_steps") or train.get("steps", 1000)
        kind = train.get("lr_schedule", "cosine")
        if step < warm:
            return peak * (step + 1) / warm
        start = max(warm, train["lr_decay_start"]) if kind.startswith("wsd_") else warm
        if kind == "constant" or end <= start or step < start:
            return peak
        progress = min(1.0, (step - start) / (end - start))
        return low + (peak - low) * self.decay_shares()[kind.removeprefix("wsd_")](progress)

    def decay_shares(self):
        """What is left of the rate at a progress from 0 to 1."""
        cycles, power = self.train.get("lr_cycles") or 1, self.train.get("lr_power") or 1.0

        def cosine(progress):
            return 0.5 * (1 + math.cos(math.pi * progress))

        return {"cosine": cosine, "linear": lambda progress: 1 - progress,
                "1_sqrt": lambda progress: 1 - math.sqrt(progress), "polynomial": lambda progress: (1 - progress) ** power,
                "cosine_with_restarts": lambda progress: cosine(cycles * progress % 1.0) if progress < 1 else 0.0}
