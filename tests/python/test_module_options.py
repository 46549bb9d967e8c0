"""Keywords become the program's options, and none is missing or left over."""

import pathlib
import re

import pytest
from module_testing import ROOT, options_of, tessera

from tessera._arguments import SEPARATED, options, path_of
from tessera._options import OPTIONS, OWN_OPTIONS


@pytest.mark.parametrize("command", OPTIONS)
def test_the_keywords_are_the_options_of_the_help(command):
    assert OPTIONS[command] | OWN_OPTIONS.get(command, set()) == options_of(command)
    assert not OPTIONS[command] & OWN_OPTIONS.get(command, set())


def words(**keywords):
    return options("f", keywords, keywords)


def test_values_become_words():
    assert words(a=True, b=False, c=None) == ["--a"]
    assert words(batch_size=8, x=1e-5, path=pathlib.Path("a b"), text="-1") == [
        "--batch-size=8", "--x=1e-05", "--path=a b", "--text=-1"]
    assert words(average=["a", pathlib.Path("b")], activation_checkpointing=[False, True, "selective"]) == [
        "--average=a", "--average=b", "--activation-checkpointing=false", "--activation-checkpointing=true",
        "--activation-checkpointing=selective"]
    assert words(set={"train.steps": 3, "data.train": ["a", "b"], "checkpoint.dir": None, "x": "y=z"}) == [
        "--set=train.steps=3", '--set=data.train=["a", "b"]', "--set=checkpoint.dir=null", "--set=x=y=z"]


def test_numbers_of_numpy():
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    assert words(steps=numpy.int64(5), stop=numpy.array([1, 2]), x=numpy.float32(0.5)) == [
        "--steps=5", "--stop=1", "--stop=2", "--x=0.5"]


def test_booleans_of_numpy():
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    assert words(normalize=numpy.bool_(True), chat=numpy.bool_(False), x=numpy.array(1)) == ["--normalize", "--x=1"]


def test_a_comma_does_not_split_an_element_of_a_list():
    with pytest.raises(ValueError, match=r"evaluate\(\): labels has the element 'a, b'"):
        tessera.evaluate("out", "x.tsv", task="accuracy", labels=["a, b", "c"])
    assert words(average=["a,b"], axis={"x": "1,2"}) == ["--average=a,b", "--axis=x=1,2"]
    assert words(strategies=["none", "dp"]) == ["--strategies=none", "--strategies=dp"]


def test_the_lists_that_the_program_splits():
    """The options with a separator in the sources, as keywords."""
    found = set()
    for source in (ROOT / "cli/commands").rglob("*.cpp"):
        for argument in re.findall(r"\{\.name = [^{}]*\}", source.read_text(encoding="utf-8")):
            if ".separator = ','" in argument:
                found.add(re.match(r'\{\.name = "--([\w-]+)"', argument)[1].replace("-", "_"))
    known = frozenset().union(*OPTIONS.values())
    assert found & known == SEPARATED


def test_a_path_does_not_look_like_an_option():
    assert path_of("-x") == "./-x"
    assert path_of(pathlib.Path("a/-x")) == "a/-x"


def test_the_keys_of_a_step_are_those_of_its_line():
    source = (ROOT / "logs/metrics.cpp").read_text(encoding="utf-8")
    written = {key for key in re.findall(r'"(\w+)": ', source) if "spike" not in key}
    known = set(tessera.StepMetrics.__annotations__)  # with those of its base
    assert written and written <= known
    assert {"rank_samples", "imbalance"} <= known


def test_an_unknown_keyword_is_a_type_error_with_the_nearest_name():
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'world_sizes'; did you mean world_size\?"):
        tessera.plan("recipe.yaml", world_sizes=2)
    with pytest.raises(TypeError, match=r"it takes config_file, device, set"):
        tessera.train("recipe.yaml", zzz=2)


def test_a_value_that_no_recipe_has():
    with pytest.raises(TypeError, match="is not a value of a recipe"):
        tessera.plan({"train": {"steps": object()}})
    with pytest.raises(ValueError, match="Out of range float"):
        tessera.plan({"train": {"lr": float("nan")}})
