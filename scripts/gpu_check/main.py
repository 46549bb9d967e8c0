"""The command line of gpu-check: the parts, the installation, and the table at the end."""
import argparse
import os
import signal
import sys
import time

from gpu_check.check import FAILED, TIMED_OUT, Check, Interrupted
from gpu_check.commands import Commands
from gpu_check.installation import Installation, Unusable
from gpu_check.parts import PARTS
from gpu_check.report import Report

WHOLE_SECONDS = 540
USAGE_EXIT = 2


def parse(arguments, home):
    listing = "\n".join(f"  {part.name:12} {part.seconds:4} s  {part.purpose}" for part in PARTS)
    parser = argparse.ArgumentParser(
        prog="gpu-check", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Checks and measures Tessera on a machine with a GPU. Needs Python 3.10, the driver, cuBLASLt, "
                    "cuDNN and NCCL; a pack contains everything else.",
        epilog=f"parts, the most important first, with the time limit of each:\n{listing}\n\n"
               "Exit 0: nothing failed or ran out of time. A machine without a GPU fails `environment`.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all of them")
    parser.add_argument("--pack", metavar="FOLDER", default=home if is_pack(home) else None,
                        help="a pack of scripts/gpu-pack; default: the folder of this script, if it is a pack, else the "
                             "build of this repository")
    parser.add_argument("--on-emulator", action="store_true",
                        help="check what needs no GPU, with the programs built with the emulator")
    parser.add_argument("--seconds", type=float, default=WHOLE_SECONDS, help="time limit of the whole run (default: %(default)s)")
    parser.add_argument("--products", choices=("cublas", "own"), default="cublas",
                        help="compute matrix products by cuBLASLt, or by our own kernels (default: %(default)s)")
    parser.add_argument("--attention", choices=("cudnn", "own"), default="cudnn",
                        help="compute attention by cuDNN, or by our own kernels (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="the report, written again after every row (default: "
                                                       "gpu-check.json in the pack, or in bench/results)")
    chosen = parser.parse_args(arguments)
    known = {part.name: part for part in PARTS}
    for name in chosen.parts:
        if name not in known:
            parser.error(f"no part '{name}'; there are: {', '.join(known)}")
    chosen.parts = [part for part in PARTS if not chosen.parts or part.name in chosen.parts]
    return chosen


def is_pack(folder):
    return os.path.exists(os.path.join(folder, "manifest.json"))


def report_path(chosen, root):
    if chosen.json:
        return os.path.abspath(chosen.json)
    if chosen.on_emulator:
        return None
    return os.path.join(chosen.pack or os.path.join(root, "bench", "results"), "gpu-check.json")


def table(report, seconds):
    print(f"\n{'part':12} {'verdict':9} {'s':>6}  note")
    for part in report.content["parts"]:
        print(f"{part['part']:12} {part['verdict']:9} {part['seconds']:6.1f}  {part['note']}")
    print(f"{'':12} {'':9} {seconds:6.1f}  in all")


def main(arguments, home):
    """`home` is the script's folder: scripts/ of a repository, or that of a pack."""
    chosen = parse(arguments, home)
    root = os.path.dirname(home)
    try:
        make = Installation.of_pack if chosen.pack else Installation.of_build
        installation = make(os.path.abspath(chosen.pack or root), emulated=chosen.on_emulator,
                            products=chosen.products, attention=chosen.attention)
    except Unusable as problem:
        print(f"gpu-check: {problem}", file=sys.stderr)
        return USAGE_EXIT
    began = time.monotonic()
    path = report_path(chosen, root)
    report = Report(path, {**installation.head, "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                           "emulated": installation.emulated, "libraries": installation.found})
    check = Check(installation, Commands({**os.environ, **installation.variables}), report, chosen.seconds)

    def interrupted(number, _):
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    status = 0
    try:
        for part in chosen.parts:
            check.perform(part)
    except Interrupted as signal_number:
        status = 128 + signal_number.args[0]
    report.set("seconds", round(time.monotonic() - began, 1))
    table(report, time.monotonic() - began)
    if installation.emulated:
        print("\nnot checked, because it needs a GPU:")
        for part in chosen.parts:
            if part.beyond:
                print(f"  {part.name:12} {part.beyond}")
    if path:
        print(f"report: {path}")
    if status == 0 and any(part["verdict"] in (FAILED, TIMED_OUT) for part in report.content["parts"]):
        status = 1
    return status
