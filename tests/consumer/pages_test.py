"""Runs the commands of the pages, README.md and docs/*.md, as a reader would type them.

    python3 pages_test.py REPOSITORY BUILD [PAGE ...]

A fenced block is run when it is marked as shell, or has no language and begins with a command. It must end with 0. A comment
directly above the block changes this:

    <!-- run: no, needs a GPU -->                     it cannot run here, and why
    <!-- run: if build/tests/cuda_tests -->           it runs where this file is
    <!-- run: with train: --set train.steps=2 -->     these words are appended to its commands with the word `train`
    <!-- run: exit 6 -->                              it ends with this code
    <!-- run: given out/gpt2 -->                      it finds this model: a GPT-2 in out/gpt2, a sentence encoder in FOLDER

Each page has a folder of its own, with the build, the examples, and the files that the pages assume: a small recipe.yaml,
tokenizers in path/to, some texts. The list at the end has the number of blocks that ran, and those that did not and why.
"""
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
MARK = re.compile(r"<!-- run: (.*?) -->\n", re.S)
MARKS_ABOVE = re.compile(r"(?:<!-- run: (?:(?!-->).)*-->\n)+\Z", re.S)
# A block of commands without a language begins with one of these.
COMMAND = re.compile(r"(?:[A-Z_]+=\S* )*(?:tessera|cmake|g\+\+|python3|srun|mpirun|torchrun|docker|kubectl|sbatch|export|for|echo|tar|[\w.$/{}*:~-]*/[\w.*-]+)(?=\s)")
SECONDS = 120  # per block


@dataclasses.dataclass
class Block:
    page: str
    line: int
    text: str
    marks: list


def blocks_of(page, text):
    """The blocks of commands of a page. A mark above anything else is an error."""
    blocks, used = [], 0
    for fence in FENCE.finditer(text):
        above = MARKS_ABOVE.search(text[:fence.start()])
        marks = [" ".join(mark.split()) for mark in MARK.findall(above.group(0))] if above else []
        language, content = fence.groups()
        line = text[:fence.start()].count("\n") + 1
        if language in ("sh", "bash") or (not language and COMMAND.match(content)):
            blocks.append(Block(page, line, content, marks))
            used += len(marks)
    if used != len(MARK.findall(text)):
        raise ValueError(f"{page}: a mark `run:` must be above a block of commands")
    return blocks


def commands_with(text, additions):
    """The block with words added to its commands, before a comment at the end of the line."""
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        command, comment = re.fullmatch(r"(.*?)(\s+#.*)?", line).groups()
        for word, words in additions.items():
            if word in command.split():
                command += " " + words
        lines.append(command + (comment or ""))
    return "\n".join(lines) + "\n"


def plan_of(block, folder):
    """(the commands or None, the expected exit code, the reason why it does not run)"""
    text, code = block.text, 0
    for mark in block.marks:
        kind, _, rest = mark.partition(" ")
        if kind == "no," and rest:
            return None, 0, rest
        if kind == "if" and rest:
            if not (folder / rest).exists():
                return None, 0, f"this build has no {rest}"
        elif kind == "given" and rest in MODELS:
            continue
        elif kind == "exit" and rest.isdigit():
            code = int(rest)
        elif kind == "with" and ": " in rest:
            additions = dict(part.strip().split(": ", 1) for part in rest.split(";"))
            for word in additions:
                if commands_with(text, {word: "added"}) == commands_with(text, {}):
                    raise ValueError(f"{block.page}:{block.line}: no command has the word {word}")
            text = commands_with(text, additions)
        else:
            raise ValueError(f"{block.page}:{block.line}: what is `run: {mark}`?")
    return text, code, None


def run_block(text, folder):
    """(exit code, output): all processes of the block end with it."""
    environment = {"PATH": f"{folder}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": f"{folder}/home",
                   "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8", "PKG_CONFIG_PATH": f"{folder}/home/.local/lib/pkgconfig",
                   "TMPDIR": f"{folder}/tmp"}
    with open(folder / "output", "w+", encoding="utf-8", errors="replace") as output:
        with subprocess.Popen(["setsid", "--wait", "bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment,
                              stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True) as process:
            try:
                code = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                for child in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.killpg(int(child), 9)
                process.wait()
                code = f"more than {SECONDS} s"
        output.seek(0)
        return code, output.read()


MODELS = {"out/gpt2": "train recipe.yaml --set checkpoint.dir=out/gpt2", "FOLDER": "train encoder.yaml"}
RECIPE = """model: {architecture: gpt2, n_layer: 1, n_head: 2, n_embd: 32, seq_len: 32}
data: {train: text.txt, batch_size: 1}
train: {steps: 3, lr: 1.0e-3, warmup_steps: 1}
"""
ENCODER = """model: {architecture: bert, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64,
        hidden_act: gelu, max_position_embeddings: 64, layer_norm_eps: 1.0e-12, seq_len: 64}
data:
  tokenizer: path/to/all-MiniLM-L6-v2
  batch_size: 2
  train: [{file: sts-dev.csv, columns: [6, 7, 5], loss: cosine_similarity, label_scale: 5}]
train: {task: sentence_pairs, steps: 1, lr: 2.0e-5}
checkpoint: {dir: FOLDER}
"""
SENTENCES = ["A rank gathers a unit.", "A unit is gathered by a rank.", "The file is whole.", "No program reads the file."]


def prepare(root, build, folder):
    """Makes the files that the pages assume."""
    for name in ("bin", "home", "out", "tmp", "path/to/gpt2", "path/to/all-MiniLM-L6-v2"):
        (folder / name).mkdir(parents=True)
    (folder / "bin/tessera").symlink_to(build / "tessera")
    (folder / "build").symlink_to(build)
    for name in ("examples", "bench", "clusters"):
        shutil.copytree(root / name, folder / name)
    for name in ("cli", "cmake", "deploy", "scripts", "tests"):
        (folder / name).symlink_to(root / name)
    for name, file in (("gpt2", "gpt2.json"), ("all-MiniLM-L6-v2", "bert.json")):
        shutil.copy(root / "tests/tokenizers/fixtures" / file, folder / "path/to" / name / "tokenizer.json")
    shutil.copy(root / "tests/tasks/columnar/fixtures/helper-rows.arrows", folder / "rows.arrow")
    shutil.copy(root / "examples/own_module.cpp", folder / "main.cpp")
    text = "".join(sentence + "\n" for sentence in SENTENCES)
    for name, content in (("recipe.yaml", RECIPE), ("encoder.yaml", ENCODER), ("text.txt", text * 40), ("lines.txt", text),
                          ("sentences.txt", text),
                          ("accelerate.yaml", "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\n"
                                              "fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"),
                          ("sts-dev.csv", "".join(f"main,set,2012,{i},{score},{left},{right}\n" for i, (left, right, score) in
                                                  enumerate(zip(SENTENCES, SENTENCES[::-1], (1.0, 4.5, 4.0, 0.5)))))):
        (folder / name).write_text(content, encoding="utf-8")


def give(model, folder):
    """Trains a model that a page assumes."""
    if not (folder / model).exists():
        code, output = run_block("tessera " + MODELS[model], folder)
        if code != 0:
            raise RuntimeError(f"tessera {MODELS[model]} ended with {code}:\n{output}")


def main(root, build, only):
    ran, failed, left_out = 0, [], []
    with tempfile.TemporaryDirectory(prefix="tessera-pages-") as work:
        work = pathlib.Path(work)
        prepare(root, build, work / "given")
        for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
            page = path.relative_to(root).as_posix()
            if only and page not in only:
                continue
            folder = work / path.stem
            for block in blocks_of(page, path.read_text(encoding="utf-8")):
                if not folder.exists():
                    shutil.copytree(work / "given", folder, symlinks=True)
                text, wanted, reason = plan_of(block, folder)
                where = f"{page}:{block.line}"
                if text is None:
                    left_out.append(f"{where}: {reason}")
                    continue
                for mark in block.marks:
                    if mark.startswith("given "):
                        give(mark.removeprefix("given "), folder)
                start = time.monotonic()
                code, output = run_block(text, folder)
                print(f"{where}: ended with {code} after {time.monotonic() - start:.1f} s", flush=True)
                ran += 1
                if code != wanted:
                    failed.append(f"{where}: ended with {code}, not {wanted}:\n{text}{output[-3000:]}")
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{ran} blocks of commands ran, {len(failed)} of them wrong; {len(left_out)} cannot run here:")
    print("".join(f"  {line}\n" for line in left_out) + "\n".join(failed))
    return 1 if failed or (ran == 0 and not only) else 0


class Pages(unittest.TestCase):
    """Tests the reader of marks with small pages."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("bin", "home", "tmp"):
            (self.folder / name).mkdir()

    def planned(self, text):
        (block,) = blocks_of("page.md", text)
        return plan_of(block, self.folder)

    def test_commands_are_distinguished_from_other_blocks(self):
        text = "```\nbuild/tessera env\n```\n\n```sh\nls\n```\n\n```cpp\nint i;\n```\n\n```\ntessera: error: no\n```\n"
        self.assertEqual([block.line for block in blocks_of("page.md", text)], [1, 5])

    def test_marks(self):
        self.assertEqual(self.planned("```sh\nfalse\n```\n"), ("false\n", 0, None))
        self.assertEqual(self.planned("<!-- run: no, needs a GPU -->\n```sh\nfalse\n```\n"), (None, 0, "needs a GPU"))
        self.assertEqual(self.planned("<!-- run: exit 6 -->\n```sh\nfalse\n```\n"), ("false\n", 6, None))
        self.assertEqual(self.planned("<!-- run: given FOLDER -->\n```sh\nls\n```\n"), ("ls\n", 0, None))
        self.assertEqual(self.planned("<!-- run: if home -->\n```sh\nfalse\n```\n")[0], "false\n")
        self.assertEqual(self.planned("<!-- run: if away -->\n```sh\nfalse\n```\n")[2], "this build has no away")
        self.assertEqual(self.planned("<!-- run: with train: --steps 2; bench:\n --quick -->\n"
                                      "```\ntessera train a \\\n  --b   # so\ntessera bench\ntessera env\n```\n")[0],
                         "tessera train a    --b --steps 2   # so\ntessera bench --quick\ntessera env\n")

    def test_invalid_marks_are_errors(self):
        for text in ("<!-- run: no -->\n```sh\nls\n```\n", "<!-- run: never -->\n```sh\nls\n```\n",
                     "<!-- run: given models -->\n```sh\nls\n```\n",
                     "<!-- run: with train: --x -->\n```sh\nls\n```\n", "<!-- run: exit 6 -->\n\n```sh\nls\n```\n",
                     "<!-- run: no, why -->\n```cpp\nint i;\n```\n"):
            with self.subTest(text), self.assertRaises(ValueError):
                self.planned(text)

    def test_the_first_command_that_fails_decides(self):
        self.assertEqual(run_block("echo one\nfalse\necho two\n", self.folder), (1, "one\n"))
        self.assertEqual(run_block("exit 6\n", self.folder)[0], 6)


if __name__ == "__main__":
    own = unittest.TextTestRunner(verbosity=0).run(unittest.defaultTestLoader.loadTestsFromTestCase(Pages))
    ended = main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:])
    sys.exit(1 if not own.wasSuccessful() else ended)
