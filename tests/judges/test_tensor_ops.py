"""The fixture with which the C++ tests compare the ops of engine/tensor_ops.h is what torch gives today."""
import json
import pathlib

import pytest
import tensor_ops

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "engine/fixtures/tensor_ops.json"
# Two units in the last place: torch's kernels may differ between processors.
TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "bfloat16": 2**-7}


def test_the_tensor_ops_fixture_is_theirs():
    written = json.loads(FIXTURE.read_text(encoding="utf-8"))
    today = tensor_ops.reference()
    assert len(written) == len(today) > 300
    for old, new in zip(written, today):
        tolerance = TOLERANCE[new["dtype"]]
        for key in ("op", "dtype", "inputs", "arguments", "ids", "shape"):
            assert old[key] == new[key], new["op"]
        assert old["output"] == pytest.approx(new["output"], rel=tolerance, abs=tolerance), new["op"]
        assert len(old["gradients"]) == len(new["gradients"]), new["op"]
        for mine, theirs in zip(old["gradients"], new["gradients"]):
            # torch rounds the bf16 sums of a convolution's gradient differently from processor to processor.
            sums = new["op"].startswith("conv") and new["dtype"] == "bfloat16"
            least = tolerance * (max(map(abs, theirs), default=1) if sums else 1)
            assert mine == pytest.approx(theirs, rel=tolerance, abs=least), new["op"]
