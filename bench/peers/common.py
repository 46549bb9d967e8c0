"""Shared by the peers of `tessera bench`: the job, ranks as processes, the same timed loop for all, the rows.

A peer is called as

    PYTHON bench/peers/NAME.py --job JOB.json --json OUT.json

JOB.json is an object of
    model, data, train, sharding   as `tessera recipe RECIPE` prints them (or all of that under the key `recipe`)
    mode           the peer's way to train (--help lists them), or a list of several
    world_size     ranks (default 1)
    precision      fp32 or bf16 (default: sharding.mixed_precision)
    steps, warmup  timed steps of a round (20), and steps before them that are not timed (3)
    rounds         the number of measurements (1)
    weights        a folder with config.json and model.safetensors, a FULL checkpoint's step or what checkpoint.export wrote:
                   the initial weights; without them loss curves cannot be compared (default: model.pretrained)
    device         cpu or cuda (default: train.device; auto: a GPU if there is one)
    backend        gloo or nccl (default: gloo on CPUs, nccl on GPUs)
    compile        true: torch.compile compiles the layers (false)
    threads_per_rank   compute threads of a rank (default: OMP_NUM_THREADS, else the cores over the ranks)
    mkl_avx512     on AMD, true: MKL uses AVX-512 (default: true if the processor has it)
    time_limit_s   a run is ended after this time (default: never)
    program        the program `tessera`, needed only for a tokenizer other than `bytes`

OUT.json gets {"rows": [..]}, a row for each mode, in the form of `tessera bench --json`. "status" is the result and
"reason" its cause unless it is "measured"; unknown values are null. The exit code is 0 if every row was measured, 3 if a
mode was refused, 1 if one failed and 7 if one was too slow; OUT.json is written in all these cases.
"""
import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import pathlib
import statistics
import sys
import tempfile

from job import Job, Refused
from ranks import REFUSED_CODE, run_round, work

HERE = pathlib.Path(__file__).resolve().parent
EXIT_CODES = {"measured": 0, "failed": 1, "refused": REFUSED_CODE, "timed_out": 7}


def leave_script_folder():
    """Files here are named like the packages that they measure: an `import deepspeed` must find the package."""
    sys.path[:] = [path for path in sys.path if pathlib.Path(path or ".").resolve() != HERE]


def sibling(name):
    """The module of this folder, after leave_script_folder()."""
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))


def processor():
    """The machine's processor and the instructions that matter for matrix products."""
    name = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        if key.strip() == "flags":
            wanted = ("avx512f", "avx512_bf16", "amx_bf16")
            return f"{name} ({', '.join(flag for flag in wanted if flag in value.split())})"
    return name


def needs(package, what):
    """Refuses the job if a package is missing."""
    if importlib.util.find_spec(package) is None:
        raise Refused(f"{sys.executable} has no {package}: {what}")


def one_thread_environment():
    """The variables for one thread, in every library."""
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TESSERA_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def spread(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "rounds": values}


def name_of_row(peer, job):
    ranks = f"{job.world_size} rank{'s' if job.world_size > 1 else ''}"
    return f"{peer.name} {job.mode}{', compiled' if job.compile else ''}, {ranks}, {job.precision}"


def empty_row(peer, job, status, reason):
    measured = {"peer": peer.name, "mode": job.mode, "backend": job.backend, "compile": job.compile,
                "world_size": job.world_size, "precision": job.precision, "threads": job.threads, "model": job.model,
                "data": job.data, "train": job.train, "device": job.device}
    text = json.dumps(measured, sort_keys=True)
    launcher = "python" if job.mode in ("none", "dp") else "python, a process a rank"
    return {"id": hashlib.sha256(text.encode()).hexdigest()[:16], "name": name_of_row(peer, job), "launcher": launcher,
            "strategy": None, "world_size": job.world_size, "precision": job.precision, "axes": {},
            "peer": {"name": peer.name, "mode": job.mode, "backend": job.backend, "compile": job.compile, "version": None},
            "status": status, "reason": reason, "samples_per_s": None, "tokens_per_s": None, "step_s": None,
            "speedup": None, "efficiency": None, "memory": {"planned": None, "measured": None, "kinds": None},
            "bytes_moved": [], "exposed_s": None, "engine_s_per_unit": None, "products_share": None, "mfu": None,
            "mfu_formula": None, "losses": [], "timeline": None}


def medians_of(figures):
    """A round's (step, samples/s, tokens/s): the median over the steps of the slowest rank's time."""
    times = [max(times) for times in zip(*(one["seconds"] for one in figures), strict=True)]
    of = {name: [count / time for count, time in zip(figures[0][name], times, strict=True)]
          for name in ("samples", "tokens")}
    return statistics.median(times), statistics.median(of["samples"]), statistics.median(of["tokens"])


def measure(peer, script, job):
    """The row of one mode."""
    if job.mode not in peer.modes:
        return empty_row(peer, job, "refused", f"mode {job.mode}: {peer.name} has {', '.join(peer.modes)}")
    rounds = []
    try:
        if job.mode == "none" and job.world_size != 1:
            raise Refused(f"mode none is one rank, not {job.world_size}")
        peer.check(job)
        with tempfile.TemporaryDirectory() as folder:
            job = peer.prepare(job, folder)
            for _ in range(job.rounds):
                status, reason, figures = run_round(script, job, folder)
                if status != "measured":
                    return empty_row(peer, job, status, reason)
                rounds.append(figures)
    except Refused as refusal:
        return empty_row(peer, job, "refused", str(refusal))
    row = empty_row(peer, job, "measured", "")
    first = rounds[0][0]
    steps, samples, tokens = zip(*(medians_of(figures) for figures in rounds), strict=True)
    row["step_s"], row["samples_per_s"] = spread(list(steps)), spread(list(samples))
    row["tokens_per_s"] = spread(list(tokens))
    row["memory"]["measured"] = max(one["peak_bytes"] for figures in rounds for one in figures)
    row["losses"] = first["losses"]
    row["peer"].update(version=first["version"], torch=first["torch"], backend=first["backend"], device=first["device"],
                       threads=job.threads, mkl_avx512=job.mkl_avx512, parameters=first["parameters"],
                       above_import_bytes=max(one["above_import_bytes"] for figures in rounds for one in figures))
    return row


def parse_arguments(peer, text):
    parser = argparse.ArgumentParser(description=text, epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", metavar="JOB.json", required=True, help="what to measure")
    parser.add_argument("--json", metavar="OUT.json", help="where the rows go; printed as well")
    parser.add_argument("--mode", action="append", choices=peer.modes, help="instead of the job's mode; repeatable")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # rank,rendezvous file
    arguments = parser.parse_args()
    try:
        values = json.loads(pathlib.Path(arguments.job).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"--job {arguments.job}: {error}")
    if not isinstance(values, dict):
        parser.error(f"--job {arguments.job}: not a JSON object")
    return arguments, values


def run_worker(peer, values, worker):
    """The body of a rank's process: its figures are the last line of its output."""
    rank, rendezvous = worker.split(",", 1)
    try:
        print(json.dumps(work(peer, Job(values), int(rank), rendezvous)), flush=True)
    except Refused as refusal:
        print(f"refused: {refusal}", file=sys.stderr, flush=True)
        os._exit(EXIT_CODES["refused"])  # the process would wait for the others' process group
    # The figures are printed. Python's shutdown can crash the process: threads of gloo still run.
    os._exit(0)


def write_rows(rows, path):
    if path is None:
        return
    partial = f"{path}.partial"
    pathlib.Path(partial).write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def main(peer, script, text):
    """A peer's whole command line."""
    arguments, values = parse_arguments(peer, text)
    if arguments.worker:
        run_worker(peer, values, arguments.worker)
        return 0
    modes = arguments.mode or values.get("mode") or [peer.modes[0]]
    rows = []
    for mode in [modes] if isinstance(modes, str) else modes:
        try:
            rows.append(measure(peer, script, Job(dict(values, mode=mode))))
        except Refused as refusal:
            job = Job({"mode": mode})
            job.world_size, job.precision = values.get("world_size", 1), values.get("precision", "fp32")
            rows.append(empty_row(peer, job, "refused", str(refusal)))
        row = rows[-1]
        rate = f"{row['tokens_per_s']['median']:.0f} tokens/s" if row["tokens_per_s"] else row["reason"]
        print(f"{row['name']}: {row['status']}: {rate}", flush=True)
    try:
        write_rows(rows, arguments.json)
    except OSError as error:
        print(f"{pathlib.Path(script).name}: {arguments.json} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return max(EXIT_CODES[row["status"]] for row in rows)
