#!/usr/bin/env python3
"""Reads a Parquet file of token ids with `tessera tokenize` and with pyarrow on one thread, in turns, and prints the
seconds of each round, the ratios of the medians, and the peak memory (VmHWM) of the program and of its helper.

    PYTHON bench/compare_parquet.py [--program build/tessera] [--mib 650] [--rounds 3]

PYTHON has pyarrow and numpy. `tessera tokenize` also starts a Python, writes the ids to a file and waits until they are on the disk.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import pyarrow
import pyarrow.parquet

ROWS = 20000  # of a row group, of 200 to 600 ids each


def write(path, mib):
    """Row groups until the file has this size; returns the number of ids."""
    random = numpy.random.default_rng(1)
    writer, ids = None, 0
    while writer is None or path.stat().st_size < mib << 20:
        ends = numpy.concatenate([[0], numpy.cumsum(random.integers(200, 600, ROWS))]).astype(numpy.int32)
        values = pyarrow.array(random.integers(0, 50000, ends[-1], dtype=numpy.int32))
        table = pyarrow.table({"ids": pyarrow.ListArray.from_arrays(pyarrow.array(ends), values)})
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema, compression="snappy", use_dictionary=False)
        writer.write_table(table, row_group_size=ROWS)
        ids += len(values)
    writer.close()
    return ids


def peak(process):
    """VmHWM of a process in MiB; 0 if it has ended."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) >> 10 if lines else 0


def tessera(program, path, out):
    """(seconds, peak of the program, peak of its helper)."""
    begin = time.monotonic()
    environment = dict(os.environ, TESSERA_PYTHON=sys.executable)
    running = subprocess.Popen([program, "tokenize", path, "--column", "ids", "--tokenizer", "bytes", "--out", out],
                               env=environment, stdout=subprocess.DEVNULL)
    own = helper = 0
    while running.poll() is None:
        own = max(own, peak(running.pid))
        try:
            children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text(encoding="utf-8").split()
        except OSError:
            children = []
        helper = max([helper, *map(peak, children)])
        time.sleep(0.05)
    if running.returncode != 0:
        sys.exit(f"tessera tokenize ended with {running.returncode}")
    return time.monotonic() - begin, own, helper


ALONE = """
import pyarrow.parquet, sys, time
begin = time.monotonic()
for _ in pyarrow.parquet.ParquetFile(sys.argv[1]).iter_batches(int(sys.argv[2]), use_threads=False):
    pass
print(time.monotonic() - begin)
"""
BATCHES = (65536, 8192)  # rows: pyarrow's default, and batches whose memory is used again


def alone(path, rows):
    """The seconds of pyarrow's reading in a process of its own, without the start of Python."""
    return float(subprocess.run([sys.executable, "-c", ALONE, path, str(rows)], check=True, capture_output=True).stdout)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--program", default="build/tessera")
    arguments.add_argument("--mib", type=int, default=650)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-parquet-") as folder:
        path = pathlib.Path(folder) / "ids.parquet"
        ids = write(path, options.mib)
        print(f"{ids} ids, {path.stat().st_size >> 20} MiB")
        ours, theirs = [], {rows: [] for rows in BATCHES}
        for _ in range(options.rounds):
            seconds, own, helper = tessera(options.program, path, pathlib.Path(folder) / "ids.tokens")
            ours.append(seconds)
            for rows, seconds in theirs.items():
                seconds.append(alone(path, rows))
            each = ", ".join(f"{seconds[-1]:.2f} s" for seconds in theirs.values())
            print(f"tessera {ours[-1]:.2f} s, peak {own} MiB, helper {helper} MiB; pyarrow {each}")
        for rows, seconds in theirs.items():
            ratio = statistics.median(seconds) / statistics.median(ours)
            print(f"of pyarrow's rate with batches of {rows} rows: {ratio:.2f}")


main()
