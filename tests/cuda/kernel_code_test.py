#!/usr/bin/env python3
"""Tests scripts/kernel-code with planted defects, compiled by nvcc. Exit 77 without nvcc or cuobjdump.

    kernel_code_test.py [ROOT]
"""
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(sys.argv.pop(1)) if len(sys.argv) > 1 else os.path.realpath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
SCRIPT = os.path.join(ROOT, "scripts", "kernel-code")
SKIPPED = 77
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")

# A loop that loads vectors, and stores them whole or element by element.
COPY = """
struct alignas(16) Vector { unsigned short value[8]; };
__global__ void copy(const Vector* from, %s* to, long n) {
  for (long i = threadIdx.x; i < n; i += blockDim.x) {
    Vector vector = from[i];
    for (int k = 0; k < 8; ++k) vector.value[k] += 3;
    %s
  }
}
"""
WHOLE = COPY % ("Vector", "to[i] = vector;")
SPLIT = COPY % ("unsigned short", "for (int k = 0; k < 8; ++k) to[8 * i + k] = vector.value[k];")
# An array that is indexed at run time lies in local memory.
LOCAL = """
__global__ void pick(const int* from, int* to, int n) {
  int values[64];
  for (int i = 0; i < 64; ++i) values[i] = from[i];
  for (int i = 0; i < n; ++i) to[i] = values[from[i] & 63]++;
}
"""
# A loop around a tensor-core instruction, with a branch that is rarely taken and, planted, more work in each iteration.
PRODUCT = """
__global__ void multiply(const unsigned* a, float* c, int n, int rare) {
  float d[4] = {};
  for (int i = 0; i < n; ++i) {
    const unsigned* row = a + i * 6;
    if (i == rare) { for (int k = 0; k < 64; ++k) c[k + 32] = __sinf(c[k] * k); }
    unsigned x = row[0];
    #pragma unroll
    for (int k = 0; k < %d; ++k) x = x * 1664525u + row[k %% 6];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%%0,%%1,%%2,%%3},{%%4,%%5,%%6,%%7},{%%8,%%9},"
                 "{%%0,%%1,%%2,%%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x), "r"(row[1]), "r"(row[2]), "r"(row[3]), "r"(row[4]), "r"(row[5]));
  }
  for (int k = 0; k < 4; ++k) c[threadIdx.x * 4 + k] = d[k];
}
"""


def load():
    loader = importlib.machinery.SourceFileLoader("kernel_code", SCRIPT)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernel_code", loader))
    loader.exec_module(module)
    return module


class KernelCodeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.baseline = os.path.join(self.folder, "baseline.csv")

    def compiled(self, name, source, architecture="90"):
        path = os.path.join(self.folder, name)
        with open(path + ".cu", "w", encoding="utf-8") as file:
            file.write(source)
        subprocess.run([NVCC, "-c", f"-arch=sm_{architecture}", "-o", path + ".o", path + ".cu"], check=True)
        return path + ".o"

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, "-B", SCRIPT, "--baseline", self.baseline, *arguments],
                              capture_output=True, text=True, check=False)

    def test_vectors_that_are_stored_element_by_element_are_found(self):
        good = self.run_script(self.compiled("whole", WHOLE))
        self.assertEqual((good.returncode, good.stderr.count("element")), (0, 0), good.stderr)
        bad = self.run_script(self.compiled("split", SPLIT))
        self.assertEqual(bad.returncode, 1)
        self.assertIn("(sm_90) loads vectors and stores their elements one by one", bad.stderr)

    def test_local_memory_is_found_on_every_architecture(self):
        for architecture in ("80", "120"):
            done = self.run_script(self.compiled("pick" + architecture, LOCAL, architecture))
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"pick \(sm_{architecture}\) uses \d+ bytes of stack")

    def test_a_longer_loop_than_the_recorded_one_fails(self):
        self.assertEqual(self.run_script("--record", self.compiled("product", PRODUCT % 8)).returncode, 0)
        same = self.run_script(self.compiled("product", PRODUCT % 8))
        self.assertEqual(same.returncode, 0, same.stderr)
        longer = self.run_script(self.compiled("product", PRODUCT % 40))
        self.assertEqual(longer.returncode, 1)
        self.assertRegex(longer.stderr, r"multiply \(sm_90\) executes \d+ instructions in its inner loop; recorded are \d+")

    def test_a_loop_is_counted_without_the_branches_that_it_need_not_take(self):
        module = load()
        kernel = next(module.read_kernels(self.compiled("product", PRODUCT % 8)))
        loop = module.hot_loop(kernel)
        self.assertGreater(loop, 12)
        self.assertLess(loop, 80)  # the branch that is rarely taken has hundreds

    def test_fewer_resident_warps_than_recorded_fail(self):
        path = self.compiled("whole", WHOLE)
        self.run_script("--record", path)
        with open(self.baseline, encoding="utf-8") as file:
            rows = file.read().splitlines()
        fields = rows[1].split(",")
        place = rows[0].split(",").index("resident_warps")
        fields[place] = str(int(fields[place]) + 8)
        with open(self.baseline, "w", encoding="utf-8") as file:
            file.write("\n".join([rows[0], ",".join(fields)]) + "\n")
        self.assertIn("resident warps; recorded are", self.run_script(path).stderr)

    def test_a_file_without_kernels_fails(self):
        self.assertEqual(self.run_script(self.compiled("none", "int one() { return 1; }")).returncode, 1)


if __name__ == "__main__":
    if NVCC is None or any(load().tool(name) is None for name in ("cuobjdump", "nvdisasm")):
        print("skipped: nvcc, cuobjdump or nvdisasm is missing")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
