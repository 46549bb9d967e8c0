"""A second reader of checkpoints, written only from docs/checkpoint-format.md. It reads checkpoints of both types that the
program saved, and gets the same tensors from both.

    python3 second_reader_test.py PROGRAM SOURCE_FOLDER
"""
import ctypes
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


def xxh3(data):
    """Uses the library that the program links: the format defines which bytes are summed, not how."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.restype = ctypes.c_uint64
    library.XXH3_64bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    return f"{library.XXH3_64bits(data, len(data)):016x}"


class FloatText(float):
    """A float that json.dumps writes in the form of the document."""

    def __repr__(self):
        digits, exponent = f"{abs(self):.17g}", 0
        for precision in range(17, 0, -1):  # the fewest digits that give the same number
            shorter = f"{abs(self):.{precision - 1}e}"
            if float(shorter) != abs(self):
                break
            digits, exponent = shorter.split("e")
        digits, exponent = digits.replace(".", "").rstrip("0") or "0", int(exponent)
        sign = "-" if str(float(self)).startswith("-") else ""
        if self == 0:
            return sign + "0.0"
        if not 1e-4 <= abs(self) < 1e15:
            point = "." if len(digits) > 1 else ""
            return f"{sign}{digits[0]}{point}{digits[1:]}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        digits = digits.ljust(exponent + 1, "0")
        return f"{sign}{digits[:exponent + 1]}.{digits[exponent + 1:] or '0'}"


def compact(value):
    """The compact form, whose checksum is in the manifest."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{compact(key)}:{compact(value[key])}"
                              for key in sorted(value, key=lambda key: key.encode())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    if isinstance(value, float):
        return repr(FloatText(value))
    return json.dumps(value, ensure_ascii=False)


def read_checkpoint(step):
    """(model, optimizer, scalars) of a step folder."""
    whole = json.loads((step / "manifest.json").read_bytes())
    manifest = whole["manifest"]
    assert xxh3(compact(manifest).encode()) == whole["xxh3"], "the manifest's checksum"
    for name, record in manifest["files"].items():
        assert (step / name).stat().st_size == record["bytes"], name
    return (read_section(step, manifest, manifest["model"]), read_section(step, manifest, manifest["optimizer"]),
            manifest["scalars"])


def train(folder, *settings):
    """A small run into folder/out, on three ranks."""
    (folder / "text.txt").write_bytes(b"shard gather reduce rank tile mosaic\n" * 300)
    program = str(pathlib.Path(PROGRAM).resolve())
    small = ["model.n_layer=1", "model.n_embd=32", "model.n_head=2", "model.seq_len=16", "data.batch_size=1",
             "data.train=text.txt", "checkpoint.dir=out", "checkpoint.every=2", *settings]
    run(folder, program, "launch", "--nproc-per-node", "3", "--", program, "train", str(SOURCE.resolve() / "examples/gpt2-bytes.yaml"),
        *(word for setting in small for word in ("--set", setting)))


def run(folder, *command):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stderr}")


def verify(folder):
    return subprocess.run([str(pathlib.Path(PROGRAM).resolve()), "verify", "out/step-2"], cwd=folder, capture_output=True, text=True,
                          check=False)


class SecondReader(unittest.TestCase):
    def test_floats_are_printed_as_documented(self):
        for text in ("0.0", "-0.0", "1.0", "0.001", "0.0001", "1e-05", "1.5e-07", "123456.789", "100000000000000.0", "1e+15",
                     "1.5e+20", "5e-324", "1.7976931348623157e+308", "0.1", "-2.5", "0.30000000000000004"):
            self.assertEqual(compact(float(text)), text)

    def test_the_checksum_is_that_of_the_documented_form(self):
        """Floats of every size in the scalars of a manifest, which the program accepts; with one more digit it refuses it."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            train(folder, "train.lr=1.2345e-7", "train.steps=2")
            path = folder / "out/step-2/manifest.json"
            whole = json.loads(path.read_bytes())
            floats = [5e-324, 1e-5, 1e-4, 0.1, 1 / 3, 2.0, 1e14, 999999999999999.9, 1e15, 1.5e16, 1e21, 1.7976931348623157e308, -0.0]
            whole["manifest"]["scalars"]["floats"] = {f"f{i}": value for i, value in enumerate(floats)}
            whole["xxh3"] = xxh3(compact(whole["manifest"]).encode())
            path.write_text(json.dumps(whole), encoding="utf-8")
            self.assertEqual(verify(folder).returncode, 0, verify(folder).stderr)
            whole["xxh3"] = xxh3((compact(whole["manifest"]) + " ").encode())
            path.write_text(json.dumps(whole), encoding="utf-8")
            refused = verify(folder)
            self.assertEqual(refused.returncode, 5)
            self.assertIn("do not match their checksum", refused.stderr + refused.stdout)

    def test_full_and_sharded_have_the_same_tensors(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            train(folder, "train.steps=2", "checkpoint.state_dict_type=SHARDED_STATE_DICT")
            run(folder, str(pathlib.Path(PROGRAM).resolve()), "convert", "out", "full", "--to", "full")
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
