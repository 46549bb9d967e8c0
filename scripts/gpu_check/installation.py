"""The installation to check: a pack of scripts/gpu-pack, or a build, with the libraries that it needs on this machine."""
import json
import os
import subprocess

from gpu_check import libraries

# Libraries of the compiler are used only where the machine's own are missing or too old: other libraries of the machine
# may need newer ones than those in the pack.
COMPILER_FOLDER = "lib-compiler"
START_SECONDS = 30


class Unusable(Exception):
    """There is nothing to check; the text has the reason and what to do."""


class Installation:
    """Where the programs are and how they are started."""

    def __init__(self, folders, *, emulated, products, attention="cudnn", library_folders=(), head=None, data=None):
        self.folders = folders  # with programs
        self.emulated = emulated
        self.tests = "cuda_tests" if emulated else "gpu_tests"
        self.products = products  # computes matrix products: "cublas" or "own"
        self.attention = attention  # computes attention: "cudnn" or "own"
        self.head = head or {}
        self.data = data  # a folder with files beside the programs: peers
        self.found = {} if emulated else libraries.on_this_machine()
        folders = [*library_folders, *(os.path.dirname(library["path"]) for library in self.found.values())]
        folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
        # Kernels are loaded before the first of them runs: tests block queues and then launch.
        self.variables = {"LD_LIBRARY_PATH": ":".join(dict.fromkeys(filter(None, folders))),
                          "CUDA_MODULE_LOADING": "EAGER", "PYTHONUNBUFFERED": "1"}
        if not emulated:
            self.variables["TESSERA_CUDA_MATMUL"] = products
            # Calls that cuDNN does not cover use our own kernels.
            self.variables["TESSERA_CUDA_ATTENTION"] = "auto" if attention == "cudnn" else attention

    @classmethod
    def of_pack(cls, folder, *, emulated, products, attention="cudnn"):
        try:
            with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
                manifest = json.load(file)
        except (OSError, ValueError) as error:
            raise Unusable(f"{folder} is not a pack of scripts/gpu-pack: {error}") from None
        if manifest["emulated"] != emulated:
            kind = ("for the emulator: run it with --on-emulator" if manifest["emulated"] else
                    "for GPUs, not for the emulator: run it without --on-emulator")
            raise Unusable(f"{folder} is {kind}")
        folders = [os.path.join(folder, "lib")]
        for more in ([], [os.path.join(folder, COMPILER_FOLDER)]):
            made = cls([os.path.join(folder, "bin")], emulated=emulated, products=products, attention=attention,
                       library_folders=folders + more, data=folder,
                       head={"commit": manifest["commit"], "architecture": manifest["architecture"]})
            problem = made.why_it_does_not_start()
            if not problem:
                return made
        raise Unusable(f"the programs of {folder} do not start here: {problem}")

    @classmethod
    def of_build(cls, root, *, emulated, products, attention="cudnn"):
        build = os.path.join(root, "build")
        folders = ["emulated", "tests"] if emulated else ["", "tests", "bench"]
        made = cls([os.path.join(build, folder) for folder in folders], emulated=emulated, products=products,
                   attention=attention, data=os.path.join(root, "bench"), head={"commit": commit_of(root)})
        problem = made.why_it_does_not_start()
        if problem:
            raise Unusable(f"no build to check was found ({problem}): run scripts/test first, or scripts/gpu-pack")
        if not os.path.exists(made.program(made.tests)):
            needed = "scripts/test --build-only" if emulated else "scripts/gpu-compile"
            raise Unusable(f"the build has no program {made.tests}: run {needed} first, or scripts/gpu-pack")
        return made

    def program(self, name):
        places = [os.path.join(folder, name) for folder in self.folders]
        return next(filter(os.path.exists, places), places[0])

    def why_it_does_not_start(self):
        """The error of starting the program `tessera`; empty when it starts."""
        try:
            done = subprocess.run([self.program("tessera"), "--help"], capture_output=True, text=True,
                                  timeout=START_SECONDS, env={**os.environ, **self.variables}, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return "" if done.returncode == 0 else done.stderr.strip() or f"exit {done.returncode}"

    def problem_with_products(self, computed_by, own=0):
        """Why a figure with products by `computed_by`, of which our own kernels computed `own`, does not count; empty if
        it does."""
        if computed_by is None:
            return ""  # it contains no product
        wanted = "our own kernels" if self.emulated or self.products == "own" else "cuBLASLt"
        if not computed_by.startswith(wanted):
            return f"products by {computed_by} instead of {wanted}"
        return f"our own kernels computed {own} products that {wanted} refused" if own and wanted == "cuBLASLt" else ""

    def problem_with_attention(self, computed_by, own=0):
        """The same for attention, forward and backward, of 16-bit types."""
        if computed_by is None:
            return ""
        wanted = "our own kernels" if self.emulated or self.attention == "own" else "cuDNN"
        if not computed_by.startswith(wanted):
            return f"attention by {computed_by} instead of {wanted}"
        refused = own and wanted == "cuDNN"
        return f"our own kernels computed {own} calls of attention that {wanted} refused" if refused else ""


def commit_of(root):
    try:
        done = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=20,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
