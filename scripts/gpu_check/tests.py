"""The GPU tests: one program, run once for each of its source files, so that a crash affects only one file."""
import functools
import json
import os
import re
import tempfile

from gpu_check.check import FAILED, PASSED

LIMIT_SECONDS = 45
# Tests of whole subsystems (part `device`), and of ranks (parts `strategies` and `nccl`). All others belong to `smoke`.
OF_THE_DEVICE = ("checkpoint_device_test", "gradient_check_test", "training_test")
OF_RANKS = ("comm_device_test", "strategies_test", "nccl_test", "nccl_training_test")
# scripts/test runs all tests on the emulator; here a few show that this program works.
ON_THE_EMULATOR = ("cast_test", "engine_device_test", "engine_memory_test", "fill_test", "training_test")
# The memory of each test program: several share a GPU at a time.
MEMORY = "2G"
EMULATED_MEMORY = str(1 << 30)


def smoke(check):
    """Every kernel's test and the engine's, once."""
    files = [file for file in files_of(check) if file not in OF_THE_DEVICE + OF_RANKS]
    return test_files(check, files)


def device(check):
    """Gradients of every op, training and checkpoints on the GPU, as on the CPU."""
    return test_files(check, [file for file in files_of(check) if file in OF_THE_DEVICE])


def files_of(check):
    """The files of the test program; on the emulator, few of them."""
    done = check.commands.run([check.installation.program(check.installation.tests), "--files"], 30)
    if done.status != 0:
        check.row(check.installation.tests, FAILED, done.last_line(), output=done.output)
        return []
    files = done.output.split()
    return [file for file in files if file in ON_THE_EMULATOR] if check.installation.emulated else files


def test_files(check, files):
    """Runs these files' tests, some at a time; adds a row for each file."""
    workers = max(1, min(4, (os.cpu_count() or 1) // 2))
    with tempfile.TemporaryDirectory() as folder:
        check.together([functools.partial(test_file, check, file, folder) for file in files], workers)
    rows = [row for row in check.report.rows() if "tests" in row]
    return f"{sum(row['tests'] for row in rows)} tests of {len(rows)} files"


def test_file(check, file, folder):
    result = os.path.join(folder, f"{file}.json")
    variables = {"TESSERA_CUDA_MEMORY": MEMORY}
    if check.installation.emulated:
        variables.update(TESSERA_CUDA_MEMORY="0.9", TESSERA_EMULATOR_CHECK="halt",
                         TESSERA_EMULATOR_MEMORY=EMULATED_MEMORY)
    command = [check.installation.program(check.installation.tests), file, "--gtest_brief=1",
               f"--gtest_output=json:{result}"]
    done = check.command(file, command, LIMIT_SECONDS, variables, silent=True)
    if done is None or done.status != 0:
        return
    with open(result, encoding="utf-8") as text:
        cases = [case for suite in json.load(text)["testsuites"] for case in suite["testsuite"]]
    cases = [case for case in cases if case["status"] == "RUN"]
    skipped = sum(case["result"] == "SKIPPED" for case in cases)
    reasons = sorted(set(re.findall(r": Skipped\n(.+)", done.output)))
    note = f"{skipped} of {len(cases)} skipped: {'; '.join(reasons)}" if skipped else ""
    check.row(file, PASSED if cases else FAILED, note or ("" if cases else "it has no tests"), seconds=done.seconds,
              tests=len(cases) - skipped, skipped=skipped)
