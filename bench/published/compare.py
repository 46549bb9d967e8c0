#!/usr/bin/env python3
"""Compares published runs with the planner: the prediction of `tessera plan --cluster` for each, and its error.

    python3 bench/published/compare.py [--program build/tessera] [NAME ...] [--json FILE]

A run is a JSON file beside this one: where its figures come from, the recipe and its settings, the cluster, and rows of a
strategy and what was measured. A row whose prediction is off by more than --within percent must name a `cause` and the
interval that its `error` lies in, as [lowest, highest] percent; a cause of a row that is not off that much is stale. A row
that the recipe was `fitted` to has no error. Where a run has an `order` of strategies, slowest first, the prediction must
have the same. Exit code 1 if one of these rules is broken.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def plan(program, run, row, folder):
    cluster = run["cluster"]
    if cluster.endswith(".yaml"):
        cluster = str(HERE / cluster)
    settings = {**run["settings"], **row.get("settings", {})}
    file = folder / "plan.json"
    command = [program, "plan", str(HERE / run["recipe"]), "--cluster", cluster, "--world-size", str(run["world_size"]),
               "--strategy", row["strategy"], "--json", str(file)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    file.unlink(missing_ok=True)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 6):  # 6: it does not fit into the cluster's memory
        sys.exit(f"{run['title']}: {' '.join(command)}\n{ended.stderr}")
    found = [one for one in json.loads(file.read_text(encoding="utf-8"))["rows"] if one["strategy"] == row["strategy"]][0]
    if found["predicted"] is None:
        sys.exit(f"{run['title']}: no time is predicted: {found.get('untimed') or found.get('refused')}")
    return found


def predicted(found, key):
    time = found["predicted"]
    if key == "tokens_per_s_per_gpu":
        return time["tokens_per_s"] / found["world_size"]
    return time[key]


def complaint(row, error, within):
    """The problem of a row's error; empty if there is none."""
    if row.get("fitted"):
        return ""
    if "cause" not in row:
        return "" if abs(error) <= within else "NO CAUSE IS NAMED"
    if abs(error) <= within:
        return f"STALE: the error is within {within:g} %, take the cause out"
    lowest, highest = row["error"]
    return "" if lowest <= error <= highest else f"NOT WITHIN {lowest} TO {highest} % as its cause has it"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of runs (default: all)")
    parser.add_argument("--program", default=str(ROOT / "build/tessera"))
    parser.add_argument("--within", type=float, default=20, help="percent")
    parser.add_argument("--json")
    options = parser.parse_args()
    files = sorted(HERE.glob("*.json"))
    if options.names:
        files = [file for file in files if file.stem in options.names]
        if len(files) != len(set(options.names)):
            sys.exit(f"there are {', '.join(sorted(file.stem for file in HERE.glob('*.json')))}")
    good, results = True, []
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            run = json.loads(file.read_text(encoding="utf-8"))
            print(f"{run['title']}  ({run['source']})")
            rates = {}
            for row in run["rows"]:
                found = plan(os.path.abspath(options.program), run, row, pathlib.Path(folder))
                (key, measured), = row["measured"].items()
                value = predicted(found, key)
                rates[row["strategy"]] = found["predicted"]["samples_per_s"]
                error = 100 * (value / measured - 1)
                wrong = complaint(row, error, options.within)
                good = good and not wrong
                digits = 3 if measured < 10 else 0
                fitted = row.get("fitted", False)
                print(f"  {row['name']:<44}{measured:>11,.{digits}f} measured{value:>11,.{digits}f} predicted"
                      f"{'   fitted' if fitted else f'{error:>+8.1f}%'}{'  ' + wrong if wrong else ''}"
                      f"{'  ' + row['cause'] if 'cause' in row else ''}")
                results.append({"run": file.stem, "row": row["name"], "quantity": key, "measured": measured, "predicted":
                value,
                                "fitted": fitted, "error_percent": None if fitted else error})
            if "order" in run:
                order = sorted(run["order"], key=lambda strategy: rates[strategy])
                same = order == run["order"]
                good = good and same
                print(f"  slowest to fastest, predicted: {', '.join(order)}{' as measured' if same else '  NOT AS MEASURED'}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
