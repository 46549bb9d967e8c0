#!/usr/bin/env python3
"""The PyTorch peer: the GPT that bench/ times Tessera on, trained by PyTorch on CPU ranks over gloo.

GPT-2 architecture, 6 layers, 384 wide, 6 heads, 256 tokens, batch 8 a rank, byte vocabulary, tied head
(10,844,160 parameters), fused AdamW, gradients clipped to 1.0, one pinned thread a rank. Prints one JSON
object for each (mode, dtype): median step, tokens/s of the world, peak resident memory of the largest
rank, whole and above what importing torch takes.

    bench/peers/pytorch_gpt.py --mode fsdp2 --ranks 2 --dtype fp32 --dtype bf16

What bf16 means: `none` and `ddp` run under torch.autocast with fp32 parameters; the sharded modes keep
fp32 shards and compute in bf16 by their own mixed-precision policy, with gradients reduced in
--reduce-dtype. On AMD, MKL takes its AVX2 path unless told otherwise: --mkl-avx512 makes it take AVX-512,
and a comparison in fp32 claims only that figure.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

MODES = ("none", "ddp", "fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-keep", "fsdp2-compile")
SHARDED = tuple(mode for mode in MODES if mode.startswith("fsdp"))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mode", choices=MODES, action="append", help="default: fsdp2")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), action="append", help="default: both")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=15, help="timed steps; the median is reported")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the fastest is reported")
    parser.add_argument("--reduce-dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences a rank")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--mkl-avx512", action="store_true", help="AMD: have MKL use AVX-512")
    parser.add_argument("--json", metavar="FILE", help="write the results here as a JSON list too")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # rank,mode,dtype,rendezvous file
    arguments = parser.parse_args()
    arguments.mode = arguments.mode or ["fsdp2"]
    arguments.dtype = arguments.dtype or ["fp32", "bf16"]
    if arguments.ranks < 1 or arguments.steps < 1 or arguments.warmup < 0 or arguments.repeat < 1:
        parser.error("--ranks, --steps and --repeat must be at least 1, --warmup at least 0")
    if "none" in arguments.mode and arguments.ranks != 1:
        parser.error("mode none is one process: pass --ranks 1")
    if arguments.width % arguments.heads:
        parser.error("--heads must divide --width")
    return arguments


def resident_mib():
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def build_model(arguments):
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            width = arguments.width
            self.ln_1 = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.projection = nn.Linear(width, width)
            self.ln_2 = nn.LayerNorm(width)
            self.expand = nn.Linear(width, 4 * width)
            self.contract = nn.Linear(4 * width, width)

        def forward(self, x):
            batch, tokens, width = x.shape
            query, key, value = (
                part.view(batch, tokens, arguments.heads, -1).transpose(1, 2)
                for part in self.qkv(self.ln_1(x)).split(width, dim=2)
            )
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))
            hidden = functional.gelu(self.expand(self.ln_2(x)), approximate="tanh")
            return x + self.contract(hidden)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(arguments.vocabulary, arguments.width)
            self.wpe = nn.Embedding(arguments.tokens, arguments.width)
            self.blocks = nn.ModuleList(Block() for _ in range(arguments.layers))
            self.ln_f = nn.LayerNorm(arguments.width)
            self.head = nn.Linear(arguments.width, arguments.vocabulary, bias=False)
            self.head.weight = self.wte.weight
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

        def forward(self, inputs, targets):
            positions = torch.arange(inputs.shape[1])
            x = self.wte(inputs) + self.wpe(positions)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.ln_f(x))
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    torch.manual_seed(1234)
    return Gpt(), Block


def shard(model, block, mode, dtype, arguments):
    """Wraps the model as `mode` says: what each framework's documentation recommends for a GPT."""
    import torch

    low = torch.bfloat16 if dtype == "bf16" else None
    reduce = torch.bfloat16 if arguments.reduce_dtype == "bf16" else torch.float32
    if mode == "none":
        return model
    if mode == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if mode.startswith("fsdp1"):
        import functools

        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        strategy = ShardingStrategy.FULL_SHARD if mode == "fsdp1" else ShardingStrategy.SHARD_GRAD_OP
        precision = MixedPrecision(param_dtype=low, reduce_dtype=reduce) if low else None
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
        return FullyShardedDataParallel(
            model, sharding_strategy=strategy, mixed_precision=precision, auto_wrap_policy=policy,
            use_orig_params=True, device_id=torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (arguments.ranks,))
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduce) if low else MixedPrecisionPolicy()
    reshard = mode != "fsdp2-keep"
    for layer in model.blocks:
        if mode == "fsdp2-compile":
            layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


def work(arguments):
    """One rank: trains, and writes its figures as one JSON line to standard output."""
    rank, mode, dtype, rendezvous = arguments.worker.split(",", 3)
    rank = int(rank)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    import torch
    import torch.distributed as dist

    if mode in SHARDED:
        import torch.distributed.fsdp  # noqa: F401  counted as import, as a user's program has it
    torch.set_num_threads(1)
    imported = resident_mib()
    if mode != "none":
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                                world_size=arguments.ranks)
    model, block = build_model(arguments)
    parameters = sum(p.numel() for p in model.parameters())
    model = shard(model, block, mode, dtype, arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16" and mode in ("none", "ddp"))
    generator = torch.Generator().manual_seed(rank)
    seconds, loss = [], None
    for step in range(arguments.warmup + arguments.steps):
        text = torch.randint(0, arguments.vocabulary, (arguments.batch_size, arguments.tokens + 1),
                             generator=generator)
        if mode != "none":
            dist.barrier()
        begin = time.perf_counter()
        with autocast:
            loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        if mode.startswith("fsdp1"):
            model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss_value = loss.item()
        if step >= arguments.warmup:
            seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rank": rank, "step_s": statistics.median(seconds), "peak_mib": peak,
                      "above_import_mib": peak - imported, "parameters": parameters,
                      "loss": loss_value, "torch": torch.__version__}))
    sys.stdout.flush()
    if mode != "none":
        dist.destroy_process_group()


def mkl_shim(folder):
    """A library that answers MKL's question whether the processor is Intel's, for LD_PRELOAD."""
    source, library = os.path.join(folder, "shim.c"), os.path.join(folder, "shim.so")
    with open(source, "w", encoding="ascii") as text:
        text.write("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def measure(arguments, mode, dtype):
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        if arguments.mkl_avx512:
            environment["LD_PRELOAD"] = mkl_shim(folder)
        ranks = []
        for rank in range(arguments.ranks):
            worker = f"{rank},{mode},{dtype},{os.path.join(folder, 'rendezvous')}"
            ranks.append(subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--worker", worker],
                                          stdout=subprocess.PIPE, text=True, env=environment))
        outputs = [process.communicate()[0] for process in ranks]
        codes = [process.returncode for process in ranks]
    if any(codes):
        sys.exit(f"pytorch_gpt.py: mode {mode}, dtype {dtype}: ranks ended with {codes}")
    figures = [json.loads(output.splitlines()[-1]) for output in outputs]
    step = max(figure["step_s"] for figure in figures)
    tokens = arguments.ranks * arguments.batch_size * arguments.tokens
    precision = {"none": "autocast", "ddp": "autocast"}.get(
        mode, f"policy, reduce {arguments.reduce_dtype}") if dtype == "bf16" else "fp32"
    return {
        "peer": f"pytorch {figures[0]['torch']}", "mode": mode, "ranks": arguments.ranks,
        "dtype": dtype, "precision": precision, "mkl_avx512": arguments.mkl_avx512,
        "parameters": figures[0]["parameters"], "step_ms": round(1e3 * step, 1),
        "tokens_per_s": round(tokens / step, 1),
        "peak_rss_mib": round(max(figure["peak_mib"] for figure in figures), 1),
        "above_import_mib": round(max(figure["above_import_mib"] for figure in figures), 1),
        "last_loss": round(figures[0]["loss"], 4),
    }


def main():
    arguments = parse_arguments()
    if arguments.worker:
        work(arguments)
        return
    results = []
    for mode in arguments.mode:
        for dtype in arguments.dtype:
            runs = [measure(arguments, mode, dtype) for _ in range(arguments.repeat)]
            results.append(min(runs, key=lambda run: run["step_ms"]))
            print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
