"""What a user does first with the wheel: imports it, plans, trains 20 steps on two ranks, converts, and looks at the
result. Prints the seconds of each. It runs with an empty environment in an empty folder, and needs nothing but the wheel."""
import pathlib
import shutil
import subprocess
import sysconfig
import time

begin = time.perf_counter()


def done(what):
    global begin
    now = time.perf_counter()
    print(f"{what:<34} {now - begin:6.1f} s")
    begin = now


import tessera  # noqa: E402

done(f"import tessera {tessera.__version__}")
RECIPE = {
    "model": {"architecture": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "seq_len": 64},
    "data": {"train": "text.txt", "batch_size": 4},
    "train": {"steps": 20, "lr": 1.0e-3, "warmup_steps": 2},
    "checkpoint": {"dir": "out"},
}
pathlib.Path("text.txt").write_text("A rank gathers a unit, and another rank reduces it.\n" * 400, encoding="utf-8")
plan = tessera.plan(RECIPE, world_size=2, strategy="all")
assert all(row["fits"] for row in plan["plans"]), plan
done("plan")
seen = []
run = tessera.train(RECIPE, ranks=2, set={"sharding.sharding_strategy": "FULL_SHARD"}, on_step=seen.append)
assert [step["step"] for step in seen] == list(range(1, 21))
assert seen[-1]["loss"] < seen[0]["loss"], (seen[0], seen[-1])
done("train, 20 steps on 2 ranks")
report = tessera.convert(run.folder, "hf", to="hf", verify=True)
assert report["verified"] and tessera.diff(run.folder, "hf", weights_only=True)["different"] == 0
done("convert, diff")
assert tessera.generate("hf", "A rank", max_new_tokens=8)["tokens"]
assert tessera.tokenize("a\nb", tokenizer="bytes") == [97, 10, 98]
done("generate, tokenize")
command = pathlib.Path(sysconfig.get_path("scripts")) / "tessera"
assert subprocess.run([command, "verify", "out"], check=False).returncode == 0
assert subprocess.run([command, "verify", "nothing"], check=False, stderr=subprocess.DEVNULL).returncode == 5
done("the command tessera")
for name in ("out", "hf"):
    shutil.rmtree(name)
