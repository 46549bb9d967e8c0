#!/usr/bin/env python3
"""Plants a call from a floor to the floor above, and checks that link_order.py finds it.

    link_order_test.py COMPILER
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import link_order

COMPILER = sys.argv.pop(1)
LOW = "int low() { return 1; }\n"
HIGH = "int low();\nint high() { return low(); }\n"
UP = "int high();\nint low() { return high(); }\n"
INLINE = "inline int shared() { return 2; }\n"


class LinkOrder(unittest.TestCase):
    def faults(self, **floors):
        with tempfile.TemporaryDirectory() as folder:
            rows = []
            for name, text in floors.items():
                source, made = pathlib.Path(folder, f"{name}.cpp"), pathlib.Path(folder, f"{name}.o")
                source.write_text(text)
                subprocess.run([COMPILER, "-c", source, "-o", made], check=True)
                rows.append((name, *link_order.symbols_of([made])))
            return link_order.faults(rows)

    def test_calls_that_go_down_pass(self):
        self.assertEqual(self.faults(ground=LOW, top=HIGH), [])

    def test_a_call_that_goes_up_is_found(self):
        self.assertEqual(self.faults(ground=UP, top=HIGH.replace("low()", "other()")), [("ground", "_Z4highv", "top")])

    def test_what_is_defined_outside_is_not_a_fault(self):
        self.assertEqual(self.faults(ground='extern "C" int puts(const char*);\n' + LOW.replace("1", 'puts("")'), top=HIGH),
                         [])

    def test_an_inline_function_belongs_to_each_floor(self):
        self.assertEqual(self.faults(ground=INLINE + LOW.replace("1", "shared()"),
                                     top=INLINE + HIGH.replace("return low()", "return shared()")), [])


if __name__ == "__main__":
    unittest.main()
