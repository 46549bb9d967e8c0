"""The parts of gpu-check, the most important first: failures that stop everything first, the longest part last."""
import json
import os
import shutil
import tempfile

from gpu_check.check import FAILED, NOT_RUN, PASSED, NotRun, Part
from gpu_check.curves import curves
from gpu_check.nccl import nccl
from gpu_check.tests import device, smoke, test_files

SANITIZED = ("fill_test", "sum_of_squares_test", "softmax_test", "normalization_test", "matmul_test",
             "attention_forward_test", "attention_backward_test")
# The first ones find what no test on the emulator finds; time may end before the last ones.
SANITIZER_TOOLS = ("racecheck", "synccheck", "memcheck", "initcheck")
# The tools change the code of every kernel that is loaded, also of libraries: only our own kernels, at their first use.
SANITIZER_VARIABLES = {"CUDA_MODULE_LOADING": "LAZY", "TESSERA_CUDA_MATMUL": "own",
                       "TESSERA_CUDA_ATTENTION": "own"}


def environment(check):
    """Describes this machine, and checks that the program finds the libraries that the figures need."""
    query = "name,driver_version,memory.total,clocks.max.sm"
    machine = check.commands.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 15)
    processors = os.cpu_count()
    check.row("machine", PASSED, processors=processors, system=" ".join(os.uname()[i] for i in (0, 2, 4)),
              gpus=machine.output.strip().splitlines() if machine.status == 0 else [])
    done = check.command("tessera env", [check.installation.program("tessera"), "env", "--json"], 30, silent=True)
    if done is None or done.status != 0:
        return ""
    # The whole output: `output` of a command is its end.
    described = json.loads(done.output[done.output.index("{"):])
    gpu = described["gpus"].get("cuda:0")
    check.row("GPU", PASSED if gpu else FAILED, gpu or described["parts"]["CUDA"]["note"])
    products = described["parts"]["cuBLASLt"]["note"]
    check.report.set("matrix_products", products)
    problem = check.installation.problem_with_products(products)
    check.row("cuBLASLt", FAILED if problem else PASSED, problem or products,
              **check.installation.found.get("cuBLASLt", {}))
    attention = described["parts"]["cuDNN"]["note"]
    problem = check.installation.problem_with_attention(attention)
    check.row("cuDNN", FAILED if problem else PASSED, problem or attention, **check.installation.found.get("cuDNN", {}))
    nccl_note = described["parts"]["NCCL"]["note"]
    if check.installation.emulated:
        check.row("NCCL", NOT_RUN, "the emulator has its own")
    else:
        check.row("NCCL", PASSED if nccl_note[:1].isdigit() else FAILED, nccl_note,
                  **check.installation.found.get("NCCL", {}))
    return gpu or ""


def training(check):
    """GPT-2 at two sizes: plain, with accumulation, and sharded; compared with PyTorch if installed."""
    program = check.installation.program("cuda_training_bench")
    if check.installation.emulated:
        runs = {"tiny": ["--model", "tiny", "--batch", "1", "--seq-len", "16", "--steps", "3"]}
    else:
        steps = ["--steps", "8", "--strategy", "NO_SHARD"]
        runs = {
            "124M": ["--model", "124M", "--batch", "32", *steps],
            "1.5B": ["--model", "1.5B", "--batch", "8", *steps],
            "1.5B, 4 passes a step": ["--model", "1.5B", "--batch", "8", "--accumulate", "4", "--steps", "5",
                                      "--strategy", "NO_SHARD"],
            "124M, FULL_SHARD": ["--model", "124M", "--batch", "32", "--steps", "8", "--strategy", "FULL_SHARD"],
        }
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, options) in enumerate(runs.items()):
            path = os.path.join(folder, str(number))
            check.figures(name, [program, *options, "--json", path], path, 60)
        if not check.installation.emulated:
            for model, batch in (("124M", 32), ("1.5B", 8)):
                pytorch(check, model, batch, folder)
    speeds = [f"{row['model']} {row['tokens_per_s']:,.0f} tokens/s" for row in check.report.rows()
              if "tokens_per_s" in row]
    return ", ".join(speeds[:2])


def pytorch(check, model, batch, folder):
    """The same training by PyTorch, in the environment that the user gave this program: PyTorch finds its own libraries,
    and loads only the kernels that it uses."""
    variables = {name: os.environ.get(name, default)
                 for name, default in (("LD_LIBRARY_PATH", ""), ("CUDA_MODULE_LOADING", "LAZY"))}
    peer = os.path.join(check.installation.data, "peers", "pytorch_gpt2_cuda.py")
    python = shutil.which("python3") or "python3"
    probe = [python, "-c", "import torch; assert torch.cuda.is_available()"]
    if check.commands.run(probe, 60, variables).status != 0:
        check.row(f"PyTorch {model}", NOT_RUN, "no PyTorch that sees a GPU")
        return
    path = os.path.join(folder, f"pytorch-{model}")
    check.figures(f"PyTorch {model}", [python, peer, "--model", model, "--batch", str(batch), "--json", path], path, 60,
                  variables)


def kernels(check):
    """Every kernel compared with the device's copies, or with large products by cuBLASLt."""
    if check.installation.emulated:
        raise NotRun("rates need a GPU")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows")
        budget = max(5, check.left() - 15)
        check.figures("kernel", [check.installation.program("cuda_kernels_bench"), "--budget", f"{budget:.0f}",
                                 "--json", path], path)
    rows = check.report.rows()
    left_out = sum(row.get("rows", 0) for row in rows if row.get("measure") == "rows left out")
    if check.installation.products == "cublas" and not any(row.get("measure") == "products" for row in rows):
        check.row("cuBLASLt", FAILED, "no product by cuBLASLt was measured to compare the kernels with")
    slow = [row for row in rows if isinstance(row.get("ratio"), float) and row["ratio"] < 0.5]
    return (f"{sum('kernel' in row for row in rows)} rows, {len(slow)} below half of the device's rate"
            + (f", no time was left for {left_out}" if left_out else ""))


def strategies(check):
    """Every strategy, on ranks that share the GPU, gives the same bits."""
    program = check.installation.program("cuda_training_bench")
    options = ["--model", "tiny", "--strategy", "all"]
    options += (["--ranks", "2", "--batch", "1", "--seq-len", "16", "--steps", "3"] if check.installation.emulated else
                ["--ranks", "4", "--batch", "4", "--seq-len", "128", "--steps", "12"])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows")
        check.figures("strategy", [program, *options, "--json", path], path, 60)
    rows = [row for row in check.report.rows() if "loss" in row]
    differing = {row["strategy"] for row in rows[1:]
                 if (row["loss"], row["grad_norm"]) != (rows[0]["loss"], rows[0]["grad_norm"])}
    if differing:
        check.row("equal bits", FAILED, f"{', '.join(sorted(differing))} differ from {rows[0]['strategy']}")
    test_files(check, ["comm_device_test", *([] if check.installation.emulated else ["strategies_test"])])
    return f"{len(rows)} strategies, equal bits"


def sanitizers(check):
    """compute-sanitizer over kernels' tests."""
    if check.installation.emulated:
        raise NotRun("the tool needs a real device")
    places = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer",
              os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "compute-sanitizer")]
    tool = next(filter(None, map(shutil.which, places)), None)
    if tool is None:
        raise NotRun("compute-sanitizer is not installed")
    program = check.installation.program(check.installation.tests)
    # Where the tool works, it prints its summary at the end even for a clean kernel.
    tried = check.commands.run([tool, program, "fill_test", "--gtest_brief=1"], min(40, check.left()), SANITIZER_VARIABLES)
    if "ERROR SUMMARY" not in tried.output:
        raise NotRun(f"compute-sanitizer does not work here: {tried.last_line()[:120]}")
    for name in SANITIZER_TOOLS:
        for file in SANITIZED:
            check.command(f"{name} {file}", [tool, "--tool", name, "--error-exitcode", "9", program, file,
                                             "--gtest_brief=1"], 40, SANITIZER_VARIABLES)
    return ", ".join(SANITIZER_TOOLS)


def part(function, seconds, beyond=""):
    return Part(function.__name__, seconds, function.__doc__.strip().splitlines()[0], function, beyond)


PARTS = (
    part(environment, 30, "the driver, cuBLASLt, cuDNN, NCCL's own library"),
    part(smoke, 90, "lazy loading, implicit synchronisation, the last bits of __expf, the tensor cores' truncation"),
    part(training, 115, "speed; products by cuBLASLt, attention by cuDNN"),
    part(kernels, 80, "all of it: rates"),
    part(device, 60, "events and memory of a real driver"),
    part(strategies, 50, "ranks' queues that really run at the same time"),
    part(nccl, 45, "NCCL itself: its library, processes with a GPU each"),
    part(curves, 45, "a hundred steps by cuBLASLt"),
    part(sanitizers, 110, "all of it: compute-sanitizer"),
)
