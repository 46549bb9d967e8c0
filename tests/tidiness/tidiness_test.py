#!/usr/bin/env python3
"""Plants each fault that tidiness.py must find in a small tree, and checks that it is found once."""
import os
import tempfile
import unittest

from rooms import FLOORS, MOST_SOURCES, ROOMS, include_runs_up
from tidiness import check_tree

HEADER = "// A header.\n#pragma once\n"


class Tidiness(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for floor, rooms in ROOMS.items():
            if "." in rooms:
                self.write(f"{floor}/{floor}.h", HEADER)

    def write(self, path, text):
        path = os.path.join(self.folder.name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def errors(self):
        return [f"{path}:{line}: {message}" for path, line, message in check_tree(self.folder.name)[0]]

    def assert_one_error(self, start, part):
        errors = self.errors()
        self.assertEqual(len(errors), 1, errors)
        self.assertTrue(errors[0].startswith(start), errors)
        self.assertIn(part, errors[0])

    def test_a_clean_tree_passes(self):
        self.write("cli/main.cpp", '// Main.\n#include <vector>\n\n#include "kernels/kernels.h"\n')
        self.assertEqual(self.errors(), [])

    def test_a_test_that_is_never_run_is_found(self):
        self.write("tests/cli/reader_test.py", '"""A test."""\n')
        self.assert_one_error("tests/cli/reader_test.py:1:", "no CMake file runs")
        self.write("tests/tree_tests.cmake", "add_test(NAME reader COMMAND python3 reader_test.py)\n")
        self.assertEqual(self.errors(), [])

    def test_a_script_that_is_not_executable_is_found(self):
        self.write("scripts/measure.py", "#!/usr/bin/env python3\n")
        self.assert_one_error("scripts/measure.py:1:", "chmod +x")
        os.chmod(os.path.join(self.folder.name, "scripts/measure.py"), 0o755)
        self.assertEqual(self.errors(), [])

    def test_every_upward_include_is_found(self):
        places = [(f"{floor}/{room}" if room != "." else floor) for floor, rooms in ROOMS.items() for room in rooms]
        for low, source in enumerate(places):
            for high, target in enumerate(places):
                found = include_runs_up(f"{source}/user.cpp", f"{target}/header.h")
                self.assertEqual(found is not None, high > low, f"{source} includes {target}")

    def test_an_include_from_a_floor_above_is_found_in_the_tree(self):
        for left, right in ('""', "<>"):
            self.write("kernels/user.cpp", f"// A file.\n#include {left}engine/engine.h{right}\n")
            self.assert_one_error("kernels/user.cpp:2:", "floor above")

    def test_folders_that_include_each_other_are_found_in_the_tree(self):
        self.write("engine/nn/layers.h", HEADER)
        self.write("engine/ops/ops.h", HEADER)
        self.write("engine/nn/layers.cpp", '// A file.\n#include "engine/ops/ops.h"\n')
        self.assertEqual(self.errors(), [])
        self.write("engine/ops/ops.cpp", '// A file.\n#include "engine/nn/layers.h"\n')
        self.assert_one_error("engine/ops/ops.cpp:2:", "room above")

    def test_a_namespace_of_another_floor_is_found(self):
        forward = "namespace tessera::training {\nclass Run;\nstruct Step;\n}\n\n"
        inside = "namespace tessera::%s {\nclass Plan;\nstruct Row {};\n}\n"
        for own in ("planner", "planner::detail"):
            self.write("planner/plan.h", HEADER + forward + inside % own)
            self.assertEqual(self.errors(), [])
        for other in ("cli", "training", "planners"):
            self.write("planner/plan.h", HEADER + forward + inside % other)
            self.assert_one_error("planner/plan.h:8:", "whose namespace is tessera::planner")
        self.write("planner/plan.h", HEADER + "namespace tessera {\nint usable();\n}\n")
        self.assert_one_error("planner/plan.h:3:", "whose namespace is tessera::planner")
        self.write("planner/plan.h", HEADER)
        self.write("launch/start.cpp", "// A file.\n" + inside % "launcher")
        self.assertEqual(self.errors(), [])

    def test_a_folder_that_is_not_in_the_list_is_found(self):
        self.write("engine/things/thing.cpp", "// A file.\n")
        self.assert_one_error("engine/things/thing.cpp:1:", "tests/tidiness/rooms.py")

    def test_a_folder_that_holds_too_many_sources_is_found(self):
        for folder in ("engine/ops", "tests/engine"):
            for number in range(MOST_SOURCES + 1):
                self.assertEqual(self.errors(), [])
                self.write(f"{folder}/op{number:02}.cpp", "// A file.\n")
            self.assert_one_error(f"{folder}/op00.cpp:1:", f"holds {MOST_SOURCES + 1} sources")
            os.remove(os.path.join(self.folder.name, folder, "op00.cpp"))

    def test_tests_may_include_anything(self):
        self.write("tests/kernels/a_test.cpp", '// A test.\n#include "models/models.h"\n')
        self.assertEqual(self.errors(), [])

    def test_an_include_by_another_path(self):
        self.write("engine/a.cpp", '// A file.\n#include "engine.h"\n')
        self.assert_one_error("engine/a.cpp:2:", "is not a file of the repository")
        self.write("engine/a.cpp", '// A file.\n#include "../kernels/kernels.h"\n')
        self.assert_one_error("engine/a.cpp:2:", "path from the repository root")

    def test_a_header_without_guard(self):
        self.write("engine/b.h", "// A header.\n")
        self.assert_one_error("engine/b.h:1:", "#pragma once")

    def test_a_path_of_one_machine(self):
        self.write("scripts/x", "cd /home" + "/somebody/tessera\n")
        self.assert_one_error("scripts/x:1:", "machine")
        self.write("scripts/x", 'cd "$root/work/x" && ls ~/work/y\n')
        self.assertEqual(self.errors(), [])

    def test_odd_english_is_found(self):
        odd = ("// Of masters in a file", "int x;  // it is no file", 'fail("cuda cannot be had");', "// Whoever allocates",
               "// nobody waits", "// everybody waits", "// the rank is told", "// says nothing", "// not to be had")
        for text in odd:
            for path, start in (("engine/a.cpp", "// A file.\n"), ("docs/a.md", "")):
                if not (text.startswith("// Of") and path.endswith(".md")):
                    self.write(path, start + text + "\n")
                    self.assert_one_error(path, "odd English")
                self.write(path, start)
        self.write("engine/a.cpp", "// A file.\n// There is no file. It is no longer there. Part of it is not read.\n")
        self.write("docs/style.md", "not \"is no\", not \"nobody\"\n")
        self.assertEqual(self.errors(), [])

    def test_removal_by_name_is_found(self):
        for line in ("std::filesystem::remove_all(path);", "fs::remove(path, ignored);", "::unlink(name.c_str());",
                     "std::remove(name.c_str());", "::rmdir(name);", "::unlinkat(fd, name, 0);"):
            self.write("training/a.cpp", f"// A file.\n{line}\n")
            self.assert_one_error("training/a.cpp:2:", "remove_tree()")
            self.write("training/a.cpp", "// A file.\nqueue.remove(entry); remove_tree(path);  // not rmdir()\n")
            for place in ("checkpoint/io/removal.cpp", "tests/training/a_test.cpp", "examples/a.cpp"):
                self.write(place, f"// A file.\n{line}\n")
            self.assertEqual(self.errors(), [])

    def test_length_only_warns(self):
        self.write("engine/long.cpp", "// A file.\n" + "int x;\n" * 500 + "// " + "x" * 100 + "\n")
        errors, warnings, _ = check_tree(self.folder.name)
        self.assertEqual(errors, [])
        self.assertEqual(sorted(line for _, line, _ in warnings), [502, 502])

    def test_a_launch_outside_the_launcher(self):
        launch = "// A file.\n#pragma once\nkernel<<<grid, block>>>(x);  // as launch() does\n"
        self.write("kernels/cuda/device/launch.h", launch)
        self.assertEqual(self.errors(), [])
        for path in ("kernels/cuda/elementwise/fill.cu", "engine/a.cpp", "tests/cuda/a_test.cpp", "kernels/cuda/device/map.h"):
            self.write(path, launch)
            self.assert_one_error(f"{path}:3:", "launch()")
            self.write(path, "// A file.\n#pragma once\n// never kernel<<<1, 1>>>(x)\nint x = 1 << 3;\n")
            self.assertEqual(self.errors(), [])

    def test_what_is_printed_without_being_made_harmless(self):
        prints = ('fmt::print("{}", name);', "std::cout << name;", 'std::fprintf(stderr, "%s", name);', 'printf("%s", name);',
                  "std::fwrite(text.data(), 1, text.size(), stdout);", "::write(STDERR_FILENO, text.data(), 1);",
                  'fmt::println("{}", name);', "std::puts(name);")
        for path in ("cli/commands/a.cpp", "comm/a.h", "bench/harness/a.cpp"):
            for line in prints:
                self.write(path, HEADER + line + "\n")
                self.assert_one_error(f"{path}:3:", "base/text/print.h")
            self.write(path, HEADER + 'print_out("{}", name);  // not printf(name)\nstd::snprintf(a, 2, "%d", 1);\n')
            self.assertEqual(self.errors(), [])
        for path in ("base/text/print.cpp", "bench/programs/a.cpp", "tests/cli/a_test.cpp", "examples/a.cpp"):
            self.write(path, "// A file.\n" + prints[0] + "\n")
        self.assertEqual(self.errors(), [])

    def test_cuda_in_a_header_above_the_engine(self):
        self.write("engine/cuda/device.h", HEADER)
        includes = ("<cuda_runtime_api.h>", "<cuda_bf16.h>", "<cublasLt.h>", "<nccl.h>", '"engine/cuda/device.h"')
        uses = ["#include " + name for name in includes]
        uses += ["cudaStream_t stream;", "std::vector<cudaEvent_t> events;", "struct ncclComm* a; ncclComm_t b;",
                 "CUstream stream;", "void f(const ncclUniqueId& id);", "__nv_bfloat16 x;"]
        for floor in ("sharding", "checkpoint", "tokenizers", "models", "tasks", "trainer", "cli"):
            for use in uses:
                self.write(f"{floor}/a.h", HEADER + use + "\n")
                self.assert_one_error(f"{floor}/a.h:3:", "CUDA")
            self.write(f"{floor}/a.h", HEADER + "// a cudaStream_t, for instance\nDevice cuda_device_t;\n")
            self.assertEqual(self.errors(), [])
        # A source file of the communicator may do it, and so may the engine's headers.
        self.write("comm/nccl/a.cpp", "// A file.\n#include <nccl.h>\nncclComm_t communicator;\n")
        self.write("engine/cuda/queue.h", HEADER + "#include <cuda_runtime_api.h>\ncudaStream_t stream;\n")
        self.assertEqual(self.errors(), [])

    def test_an_op_without_a_gpu_kernel(self):
        table = "#define TESSERA_KERNELS(X) \\\n  X(fill, Fill) \\\n  X(cast, Cast)\n"
        self.write("kernels/registry.h", HEADER + table)
        self.write("kernels/cuda/elementwise/fill.cu", "// Fill.\nvoid fill(const Fill& a, Queue queue) {}\n")
        self.write("kernels/cuda/elementwise/cast.cu", "// Not void cast(const Cast&) but\nvoid cast_back(const Cast& a) {}\n")
        self.assert_one_error("kernels/registry.h:5:", "void cast(const")
        self.write("kernels/cuda/elementwise/cast.cu", "// Cast.\nvoid cast(const Cast& a, Queue queue) {}\n")
        self.assertEqual(self.errors(), [])

    def test_a_kernel_that_knows_the_engine(self):
        self.write("kernels/cuda/elementwise/fill.cu", '// Fill.\n#include "engine/engine.h"\n')
        self.assert_one_error("kernels/cuda/elementwise/fill.cu:2:", "floor above")

    def test_the_emulator_is_for_tests(self):
        self.write("emulator/device/gpu.h", HEADER)
        include = '#include "emulator/device/gpu.h"\n'
        self.write("tests/cuda/a_test.cpp", "// A test.\n" + include)
        self.write("emulator/device/warp.h", HEADER + include + '#include "kernels/kernels.h"\n')
        self.assertEqual(self.errors(), [])
        for floor in ("kernels", "kernels/cuda", "engine", "sharding", "checkpoint", "tokenizers", "models", "tasks",
                      "trainer", "cli", "bench/harness"):
            self.write(f"{floor}/user.cpp", "// A file.\n" + include)
            self.assert_one_error(f"{floor}/user.cpp:2:", "for tests")
            self.write(f"{floor}/user.cpp", "// A file.\n")
        self.write("emulator/device/warp.h", HEADER + '#include "sharding/sharding.h"\n')
        self.assert_one_error("emulator/device/warp.h:3:", "floor above")

    def test_nvcc_sees_no_emulator(self):
        self.write("emulator/device/gpu.h", HEADER)
        include = '#include "emulator/device/gpu.h"\n'
        hidden = ("#if defined(__CUDACC__)\n#ifdef X\n#endif\n#else\n" + include + "#endif\n",
                  "#if !defined(__CUDACC__)\n" + include + "#endif\n")
        seen = (include, "#if !defined(__CUDACC__)\n#else\n" + include + "#endif\n",
                "#if !defined(__CUDACC__)\n#endif\n" + include, "#ifdef X\n#else\n" + include + "#endif\n")
        for path in ("kernels/cuda/device/gpu.h", "kernels/cuda/device/launch.h"):
            for text in hidden:
                self.write(path, HEADER + text)
                self.assertEqual(self.errors(), [])
            for text in seen:
                self.write(path, HEADER + text)
                self.assert_one_error(path, "out of nvcc's sight")
            self.write(path, HEADER)

    def test_types_of_tests_that_hide_the_librarys(self):
        self.write("engine/device/device.h", HEADER + "namespace tessera {\nclass Queue;\nstruct Device {\n  struct In {};\n};\n"
                   "namespace nn {\nTESSERA_MODULE(Linear);\nusing Name = int;\n}  // namespace nn\n"
                   "template <class T>\nclass Array final : T {};\nenum class Kind : int { a };\n}  // namespace tessera\n")
        test = "// A test.\nnamespace %s {\nnamespace {\n%s\n}  // namespace\n}  // namespace %s\n"
        definitions = ("class Device : public Test {", "struct Device;\nstruct Device {", "template <class T>\nclass Array {",
                       "enum class Kind { b };", "using Device = int;")
        for definition in definitions:
            for inside in ("tessera", "tessera::testing", "tessera::nn"):
                self.write("tests/engine/a_test.cpp", test % (inside, definition, inside))
                self.assert_one_error("tests/engine/a_test.cpp:", "hides that of engine/device/device.h")
            self.write("tests/engine/a_test.cpp", test % ("other", definition, "other"))
            self.assertEqual(self.errors(), [])
        self.write("tests/engine/a_test.cpp", test % ("tessera::nn", "TESSERA_MODULE(Linear);", "tessera::nn"))
        self.assert_one_error("tests/engine/a_test.cpp:4:", "hides that")
        for definition in ("struct Linear {", "struct In {};", "class Queue;", "struct Own {\n  struct Device {};\n};"):
            self.write("tests/engine/a_test.cpp", test % ("tessera", definition, "tessera"))
            self.assertEqual(self.errors(), [])
        os.remove(os.path.join(self.folder.name, "tests/engine/a_test.cpp"))
        self.write("tests/engine/testing.h", HEADER + "namespace tessera::testing {\nstruct Device {\n")
        self.assert_one_error("tests/engine/testing.h:4:", "hides that")

    def test_types_that_two_tests_could_define(self):
        outside = "// A test.\nnamespace tessera {\nnamespace {\nint x;\n}  // namespace\nstruct Batch {\n"
        self.write("tests/engine/a_test.cpp", outside)
        self.assert_one_error("tests/engine/a_test.cpp:6:", "not in an anonymous namespace")
        self.write("tests/engine/a_test.cpp", "// A test.\n")
        self.write("tests/engine/testing.h", HEADER + outside)
        self.assertEqual(self.errors(), [])

    def test_build_folders_are_skipped(self):
        self.write("build-asan/a.h", "int x;\n")
        self.write("build/a.h", "int x;\n")
        self.assertEqual(self.errors(), [])


if __name__ == "__main__":
    unittest.main()
