"""A second reader of checkpoints, written from docs/checkpoint-format.md alone: it reads what the program saved in
either type, and gets the same tensors from both.

    python3 second_reader_test.py PROGRAM SOURCE_FOLDER
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))


# The reader: thirty lines.
def read_file(path):
    """The tensors of a safetensors file: name to (dtype, shape, bytes)."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    start = 8 + length
    return {name: (entry["dtype"], entry["shape"], data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


def read_section(step, manifest, section):
    """The tensors of the model or the optimizer, whole."""
    tensors = {}
    if manifest["type"] == "full":
        for name in section["files"]:
            tensors.update(read_file(step / name))
        return tensors
    parts = {}
    for file, pieces in zip(section["files"], section["pieces"]):
        found = read_file(step / file)
        for index, first, count in pieces:
            name = section["tensors"][index][0]
            assert found[f"{name}@{first}"][1] == [count]
            parts.setdefault(name, []).append((first, found[f"{name}@{first}"][2]))
    for name, dtype, shape in section["tensors"]:
        tensors[name] = (dtype, shape, b"".join(data for _, data in sorted(parts.get(name, []))))
    return tensors


def read_checkpoint(step):
    """(model, optimizer, scalars) of a step folder."""
    manifest = json.loads((step / "manifest.json").read_bytes())["manifest"]
    for name, record in manifest["files"].items():
        assert (step / name).stat().st_size == record["bytes"], name
    return (read_section(step, manifest, manifest["model"]), read_section(step, manifest, manifest["optimizer"]),
            manifest["scalars"])


class SecondReader(unittest.TestCase):
    def test_full_and_sharded_hold_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "text.txt").write_bytes(b"shard gather reduce rank tile mosaic\n" * 300)
            program = [str(pathlib.Path(PROGRAM).resolve())]
            recipe = str(SOURCE.resolve() / "examples/gpt2-bytes.yaml")
            settings = ["model.n_layer=1", "model.n_embd=32", "model.n_head=2", "model.seq_len=16", "train.steps=2",
                        "data.batch_size=1", "data.train=text.txt", "checkpoint.dir=out", "checkpoint.every=2",
                        "checkpoint.state_dict_type=SHARDED_STATE_DICT"]
            sets = [word for setting in settings for word in ("--set", setting)]
            for command in ([*program, "launch", "--nproc-per-node", "3", "--", *program, "train", recipe, *sets],
                            [*program, "convert", "out", "full", "--to", "full"]):
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
            sharded = read_checkpoint(folder / "out/step-2")
            full = read_checkpoint(folder / "full")
            self.assertEqual(sharded[0], full[0])
            self.assertEqual(sharded[1], full[1])
            self.assertEqual(full[0]["transformer.wte.weight"][:2], ("F32", [256, 32]))
            for dtype, shape, data in [*full[0].values(), *full[1].values()]:
                count = 1
                for dimension in shape:
                    count *= dimension
                self.assertEqual((dtype, len(data)), ("F32", 4 * count))
            self.assertEqual(full[2]["position"]["steps"], 2)


if __name__ == "__main__":
    unittest.main()
