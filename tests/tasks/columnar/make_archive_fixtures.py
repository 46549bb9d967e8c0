"""Writes fixtures/archives: compressed texts by gzip and zstd, and tar archives of samples in each format of Python's
tarfile. Run it where the command zstd is installed."""
import gzip
import io
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile

FOLDER = pathlib.Path(__file__).parent / "fixtures/archives"
LINES = [f'{{"text": "row {n} {"é" * (n % 5)}"}}\n' for n in range(3000)]


def members():
    """(name, contents) of archives: samples of several files, and files that belong to none."""
    for n in range(4):
        yield f"data/{n:04}.txt", f"text {n} é".encode()
        yield f"data/{n:04}.json", json.dumps({"label": n, "text": "of the json", "meta": {"deep": [n]}}).encode()
        yield f"data/{n:04}.JPG", bytes(range(256)) * 5
    yield "data/.hidden.txt", b"not a sample"
    yield "data/__meta__.txt", b"not a sample"
    yield "README", b"not a sample"
    yield "long/" + "a" * 80 + "/" + "b" * 60 + ".txt", b"a path of 150 bytes"
    yield "é" * 3 + "/x.en.text", b"several dots"
    yield "empty.txt", b""


def tar(name, kind, longest):
    with tarfile.open(FOLDER / name, "w", format=kind) as archive:
        folder = tarfile.TarInfo("data")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("data/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "0001.txt"
        archive.addfile(link)
        for path, contents in members():
            entry = tarfile.TarInfo(path)
            entry.size = len(contents)
            archive.addfile(entry, io.BytesIO(contents))
        if longest:
            entry = tarfile.TarInfo("c" * 300 + ".txt")
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"long"))


def gnu_tar(name, *options):
    """A text that is a hard link, and one with a hole, as GNU tar writes them."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "0.txt").write_text("whole")
        os.link(f"{folder}/0.txt", f"{folder}/1.txt")
        with open(f"{folder}/2.txt", "wb") as file:
            file.seek(1 << 16)
            file.write(b"behind a hole")
        files = ["0.txt", "1.txt"] if "--sparse" not in options else ["2.txt"]
        subprocess.run(["tar", "-C", folder, "--mtime=@0", "--owner=0", "--group=0", "-cf", FOLDER / name, *options, *files],
                       check=True)


def zstd(text, *options):
    return subprocess.run(["zstd", "-q", "-c", *options], input=text, stdout=subprocess.PIPE, check=True).stdout


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    first, second = ("".join(part).encode() for part in (LINES[:1000], LINES[1000:]))
    # Several compressed parts follow each other, as `cat` of two files and parallel compressors write them.
    (FOLDER / "lines.jsonl.gz").write_bytes(gzip.compress(first, mtime=0) + gzip.compress(second, mtime=0) + bytes(700))
    (FOLDER / "lines.jsonl.zst").write_bytes(zstd(first) + zstd(second, "-19"))
    (FOLDER / "pairs.tsv.gz").write_bytes(gzip.compress("a cat\ta kitten\nrain\tsün\n".encode(), mtime=0))
    tar("ustar.tar", tarfile.USTAR_FORMAT, False)
    tar("gnu.tar", tarfile.GNU_FORMAT, True)
    tar("pax.tar", tarfile.PAX_FORMAT, True)
    gnu_tar("hardlink.tar")
    for kind, options in (("gnu", ["--format=gnu"]), ("1.0", ["--format=posix", "--sparse-version=1.0"]),
                          ("0.0", ["--format=posix", "--sparse-version=0.0"])):
        gnu_tar(f"sparse-{kind}.tar", "--sparse", *options)
    (FOLDER / "pax.tar.gz").write_bytes(gzip.compress((FOLDER / "pax.tar").read_bytes(), mtime=0))
    (FOLDER / "pax.tar.zst").write_bytes(zstd((FOLDER / "pax.tar").read_bytes()))


main()
