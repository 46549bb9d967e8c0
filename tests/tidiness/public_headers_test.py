"""Tests cmake/write_public_headers.cmake with a small tree: the headers that it writes, and the errors.

    python3 public_headers_test.py CMAKE SCRIPT
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CMAKE, SCRIPT = sys.argv.pop(1), sys.argv.pop(1)
TREE = {
    "tessera/tessera.h": '#pragma once\n#include <vector>\n\n#include "engine/tensor.h"\n#include "tessera/version.h"\n',
    "tessera/version.h": "#pragma once\n// a; b [c] \\ ${d} @e@ \"engine/tensor.h\"\n",
    "engine/tensor.h": '#pragma once\n#include "base/dtype.h"\nauto text = R"(;)";\n',
    "base/dtype.h": "#pragma once\n",
    "base/cpp20.h": "#pragma once\n// checks\n",
    "engine/internal.h": "#pragma once\n",
    "kernels/cpu/simd.h": "#pragma once\n",
}
FIRST = "#pragma once\n\n#include <tessera/base/cpp20.h>\n"  # but for the version's, which any C++ may ask for


class PublicHeaders(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tessera-headers-")
        self.addCleanup(folder.cleanup)
        self.source, self.written = pathlib.Path(folder.name, "source"), pathlib.Path(folder.name, "include")
        for name, text in TREE.items():
            self.put(name, text)

    def put(self, name, text):
        (self.source / name).parent.mkdir(parents=True, exist_ok=True)
        (self.source / name).write_text(text)

    def write(self):
        return subprocess.run([CMAKE, "-D", f"SOURCE={self.source}", "-D", f"DESTINATION={self.written}", "-D",
                               "HEADERS=tessera/tessera.h,engine/tensor.h", "-P", SCRIPT],
                              capture_output=True, text=True, check=False)

    def files(self):
        return {str(path.relative_to(self.written)): path for path in self.written.rglob("*.h")}

    def test_what_is_included_is_written_and_named_by_its_public_path(self):
        self.assertEqual(self.write().returncode, 0)
        files = self.files()
        self.assertEqual(set(files), {"tessera/tessera.h", "tessera/version.h", "tessera/engine/tensor.h",
                                      "tessera/base/dtype.h", "tessera/base/cpp20.h"})
        self.assertEqual(files["tessera/base/cpp20.h"].read_text(), TREE["base/cpp20.h"])
        self.assertEqual(files["tessera/tessera.h"].read_text(),
                         FIRST + "#include <vector>\n\n#include <tessera/engine/tensor.h>\n"
                         "#include <tessera/version.h>\n")
        self.assertEqual(files["tessera/version.h"].read_text(), TREE["tessera/version.h"])
        self.assertEqual(files["tessera/engine/tensor.h"].read_text(),
                         TREE["engine/tensor.h"].replace('"base/dtype.h"', "<tessera/base/dtype.h>")
                         .replace("#pragma once\n", FIRST))

    def test_without_names_the_public_ones_are_written(self):
        for name in ("base/parallel.h", "tasks/evaluators.h", "tasks/losses/distillation.h", "tasks/sentence_losses.h",
                     "tokenizers/load.h", "models/gpt2/gpt2.h", "engine/data/corpus.h"):
            self.put(name, "#pragma once\n")
        done = subprocess.run([CMAKE, "-D", f"SOURCE={self.source}", "-D", f"DESTINATION={self.written}", "-P", SCRIPT],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual({"tessera/tessera.h", "tessera/engine/data/corpus.h", "tessera/models/gpt2/gpt2.h",
                              "tessera/tokenizers/load.h", "tessera/base/dtype.h"}, set(self.files()))
        self.assertNotIn("tessera/engine/internal.h", self.files())

    def test_only_what_differs_is_touched(self):
        self.write()
        before = {name: path.stat().st_mtime_ns for name, path in self.files().items()}
        self.put("engine/tensor.h", "#pragma once\n// no dtype\n")
        self.assertEqual(self.write().returncode, 0)
        after = {name: path.stat().st_mtime_ns for name, path in self.files().items()}
        self.assertNotEqual(after.pop("tessera/engine/tensor.h"), before.pop("tessera/engine/tensor.h"))
        del before["tessera/base/dtype.h"]  # public no more
        self.assertEqual(after, before)

    def test_internal_and_missing_headers_are_refused(self):
        for header, why in {"kernels/cpu/simd.h": "is internal", "engine/absent.h": "not a file of the repository"}.items():
            self.put("base/dtype.h", f'#include "{header}"\n')
            result = self.write()
            self.assertNotEqual(result.returncode, 0)
            message = " ".join(result.stderr.split())
            self.assertIn(f"{header} is", message)
            self.assertIn(why, message)


if __name__ == "__main__":
    unittest.main()
