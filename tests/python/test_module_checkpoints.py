"""`plan`, `bench`, `convert`, `inspect`, `verify`, `diff`: reports, and answers that are no errors."""

import json

import pytest
from module_testing import folder, recipe, tessera  # noqa: F401  (a fixture)


def test_plan(folder):  # noqa: F811
    plan = tessera.plan(recipe(), world_size=4, strategy="all", device_memory="1KB")
    assert plan["recipe"] == "recipe" and plan["world_size"] == 4
    assert {row["strategy"] for row in plan["plans"]} >= {"NO_SHARD", "FULL_SHARD"}
    assert not any(row["fits"] for row in plan["plans"])
    timed = tessera.plan(recipe(), cluster="h100", sweep={"world_size": "2,4"}, set={"data.batch_size": 2})
    assert [row["world_size"] for row in timed["rows"]] == [2, 4] and timed["batch_size"] == 2


def test_bench(folder):  # noqa: F811
    options = {"strategies": ["none"], "world_sizes": [1], "steps": 2, "rounds": 1, "warmup": 1, "budget": 1}
    assert tessera.bench(recipe(), **options)["recipe"] == "recipe"
    with pytest.raises(ValueError, match="give the path of a recipe"):
        tessera.bench(recipe(), file="bench.json")
    (folder / "recipe.json").write_text(json.dumps(recipe()), encoding="utf-8")
    report = tessera.bench("recipe.json", file=folder / "bench.json", **options)
    (row,) = report["rows"]
    assert row["status"] == "measured" and row["samples_per_s"]["median"] > 0
    old = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    assert report == {**old, "regressions": []}
    for rate in ("samples_per_s", "tokens_per_s"):
        old["rows"][0][rate] = {key: 1e9 for key in ("median", "low", "high")} | {"rounds": [1e9]}
    (folder / "old.json").write_text(json.dumps(old), encoding="utf-8")
    again = tessera.bench("recipe.json", file="bench.json", compare="old.json", **options)
    assert again["rows"] == report["rows"] and len(again["regressions"]) == 1


def test_bench_returns_rows_without_figures(folder):  # noqa: F811
    options = {"strategies": ["none"], "world_sizes": [1], "steps": 1, "rounds": 1, "warmup": 0}
    report = tessera.bench(recipe(), device_memory="1KB", **options)
    assert [row["status"] == "measured" for row in report["rows"]] == [False]
    assert all(row["reason"] for row in report["rows"])
    # A report of an earlier call is not that of one which fails.
    (folder / "recipe.json").write_text(json.dumps(recipe()), encoding="utf-8")
    (folder / "old.json").write_text(json.dumps(report), encoding="utf-8")
    (folder / "wrong.json").write_text("{}", encoding="utf-8")
    with pytest.raises(tessera.Error):
        tessera.bench("wrong.json", file="old.json", **options)


def test_a_recipe_has_any_character(folder):  # noqa: F811
    made = recipe(data={"train": "t\u00e9\U0001f600.txt"})
    assert tessera.plan(made)["format"]


def test_checkpoints(folder):  # noqa: F811
    tessera.train(recipe(checkpoint={"dir": "out"}))
    done = tessera.convert("out", folder / "hf", to="hf", verify=True)
    assert done["target"] == {"path": str(folder / "hf"), "format": "hf"} and done["verified"]
    assert {tensor["part"] for tensor in done["tensors"]} == {"model"}
    contents = tessera.inspect("hf")
    assert contents["model"]["tensors"] == len(contents["tensors"]) == len(done["tensors"])
    assert tessera.diff("out", "hf", weights_only=True)["different"] == 0
    assert tessera.diff("out", "hf")["different"] > 0  # the optimizer's state
    assert tessera.verify("out")["sound"]
    with (folder / "out/step-3/model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    (verdict,) = tessera.verify("out/step-3")["checkpoints"]
    assert not verdict["sound"] and verdict["damages"]


def test_errors(folder):  # noqa: F811
    for call in (tessera.inspect, tessera.verify, lambda path: tessera.convert(path, "x", to="hf"),
                 lambda path: tessera.diff(path, path)):
        with pytest.raises(tessera.CheckpointError, match="'nothing' does not exist"):
            call("nothing")
    with pytest.raises(tessera.UsageError, match="did you mean hf"):
        tessera.convert("nothing", "x", to="hff")
    assert [path.name for path in folder.iterdir()] == ["text.txt"]
