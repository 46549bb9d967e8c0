"""Ranks of a peer as processes: the timed loop, and the code that starts and ends them."""
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from job import Refused

REFUSED_CODE = 3
PRCTL = ctypes.CDLL(None).prctl


def memory_of_process(name):
    """VmRSS, or its peak VmHWM. getrusage()'s peak also counts what the process held before exec."""
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def pin(rank, threads):
    """Pins a rank to its own cores if there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    own = cores[rank * threads:(rank + 1) * threads]
    if len(own) == threads:
        os.sched_setaffinity(0, own)


def device_of(job, torch):
    gpus = torch.cuda.device_count()
    if job.device == "cpu" or (job.device == "auto" and gpus == 0):
        return "cpu"
    if gpus < job.world_size:
        raise Refused(f"device cuda: {job.world_size} ranks and {gpus} GPUs that this torch sees; a rank takes one")
    return "cuda"


def work(peer, job, rank, rendezvous):
    """One rank of one round. Returns its figures."""
    pin(rank, job.threads)
    import torch
    import torch.distributed as dist

    # Counted as import, as in a user's program: the sharded modes load these modules lazily.
    if job.mode.startswith("fsdp"):
        import torch.distributed.fsdp  # noqa: F401
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    device = device_of(job, torch)
    if device == "cuda" and job.mode != "dp":
        torch.cuda.set_device(rank)
    imported = memory_of_process("VmRSS")
    distributed = job.mode not in ("none", "dp")
    if distributed:
        backend = job.backend or ("nccl" if device == "cuda" else "gloo")
        dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=job.world_size)
    training = peer.build(job, rank, torch.device(device))
    seconds, samples, tokens, losses = [], [], [], []
    for step in range(job.warmup + job.steps):
        batches = training.batches(step)
        if distributed:
            dist.barrier()
        begin = time.perf_counter()
        loss = training.step(batches, job.learning_rate(step))
        value = loss.item()  # waits for the device
        took = time.perf_counter() - begin
        count = torch.tensor([value, training.samples(batches), training.tokens(batches)], dtype=torch.float64)
        if distributed:
            count = count.to(device if dist.get_backend() == "nccl" else "cpu")
            dist.all_reduce(count)
            count[0] /= job.world_size
        losses.append(count[0].item())
        if step >= job.warmup:
            seconds.append(took)
            samples.append(count[1].item())
            tokens.append(count[2].item())
    peak = memory_of_process("VmHWM")
    figures = {"rank": rank, "seconds": seconds, "samples": samples, "tokens": tokens, "losses": losses,
               "peak_bytes": torch.cuda.max_memory_reserved() if device == "cuda" else peak,
               "above_import_bytes": peak - imported, "parameters": training.parameters, "device": device,
               "backend": dist.get_backend() if distributed else None, "version": peer.version(), "torch": torch.__version__}
    if distributed:
        dist.destroy_process_group()
    return figures


def end_with_parent():
    """In a rank's process: no rank outlives the script."""
    PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def mkl_shim(folder):
    """A library for LD_PRELOAD that makes MKL treat the processor as Intel's."""
    source, library = os.path.join(folder, "shim.c"), os.path.join(folder, "shim.so")
    pathlib.Path(source).write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n", encoding="ascii")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Refused(f"mkl_avx512 needs a C compiler (cc): {error}; or say mkl_avx512: false") from error
    return library


def stop(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def complaint(text):
    """The line of a rank's error output with the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "refused:" in line]
    return (errors or lines or ["no word of it"])[-1][:300]


def run_round(script, job, folder):
    """All ranks of a round as processes, nn.DataParallel as one. Returns (status, reason, figures of the ranks)."""
    job_file = os.path.join(folder, "job.json")
    pathlib.Path(job_file).write_text(json.dumps(dict(job.values, mode=job.mode)), encoding="utf-8")
    rendezvous = os.path.join(folder, "rendezvous")
    pathlib.Path(rendezvous).unlink(missing_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS=str(job.threads), MKL_NUM_THREADS=str(job.threads),
                       TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1")
    environment.pop("PYTHONSAFEPATH", None)
    if job.mkl_avx512:
        environment["LD_PRELOAD"] = mkl_shim(folder)
    processes, outputs = [], []
    deadline = time.monotonic() + float(job.time_limit_s or 1e9)
    try:
        for rank in range(1 if job.mode in ("none", "dp") else job.world_size):
            output = [open(os.path.join(folder, f"{kind}-{rank}"), "w+", encoding="utf-8") for kind in ("out", "err")]
            outputs.append(output)
            # Python puts HERE first in sys.path; the script removes it again.
            processes.append(subprocess.Popen(
                [sys.executable, script, "--job", job_file, "--worker", f"{rank},{rendezvous}"],
                stdout=output[0], stderr=output[1], env=environment, preexec_fn=end_with_parent))
        # If one rank ends, the others wait for it.
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                time.sleep(1)
                break
            if time.monotonic() > deadline:
                return "timed_out", f"not done in {float(job.time_limit_s):g} s", []
            time.sleep(0.02)
    finally:
        stop(processes)
        texts = []
        for output in outputs:
            texts.append([])
            for file in output:
                file.seek(0)
                texts[-1].append(file.read())
                file.close()
    # The rank that failed by itself reports more than those that were ended.
    codes = [process.returncode for process in processes]
    for code, (_, error) in sorted(zip(codes, texts, strict=True), key=lambda pair: pair[0] < 0):
        if code == REFUSED_CODE:
            return "refused", complaint(error).removeprefix("refused: "), []
        if code != 0:
            return "failed", f"a rank ended with code {code}: {complaint(error)}", []
    return "measured", "", [json.loads(text.splitlines()[-1]) for text, _ in texts]
