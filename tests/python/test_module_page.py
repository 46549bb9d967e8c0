"""Runs the examples of docs/python.md in their order, as a reader would."""

import re

import pytest
from module_testing import ROOT, TOKENIZER, folder  # noqa: F401  (a fixture)


def test_the_examples_of_the_page(folder):  # noqa: F811
    pytest.importorskip("numpy", reason="NumPy is not installed")
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    (folder / "text.txt").unlink()
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 8
    names = {}
    for number, example in enumerate(examples):
        exec(compile(example, f"docs/python.md, example {number}", "exec"), names)  # noqa: S102
    assert len(names["losses"]) == 20 and names["losses"][-1] < names["losses"][0]
    assert names["ids"] == list(b"A rank\ngathers.") and len(names["batch"]) == 2
    assert names["vectors"].shape == (2, 32) and names["different"] == 0
