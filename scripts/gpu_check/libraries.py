"""Finds CUDA's libraries on this machine: cuBLASLt, cuDNN and NCCL are too large for a pack."""
import glob
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig

NAMED = "LD_LIBRARY_PATH"
SONAMES = {"cuBLASLt": ("libcublasLt.so.13", "libcublasLt.so.12"), "cuDNN": ("libcudnn.so.9",),
           "NCCL": ("libnccl.so.2",)}
OLDEST_CUDNN = 91600  # kernels/cuda/cudnn/cudnn_library.cu refuses older ones


def loader_cache():
    """{soname: path} of the libraries that the loader finds itself."""
    command = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        listing = subprocess.run([command, "-p"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = {}
    for line in listing.splitlines():
        match = re.match(r"\s*(\S+) \(.*x86-64.*\) => (\S+)", line)
        if match:
            found.setdefault(*match.groups())
    return found


def python_folders():
    """Folders of packages: this Python's, the one on PATH, and those of an active environment."""
    folders = [*sys.path, *site.getsitepackages(), sysconfig.get_path("purelib")]
    roots = [os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    other = shutil.which("python3")
    if other:
        roots.append(os.path.dirname(os.path.dirname(os.path.realpath(other))))
        roots.append(os.path.dirname(os.path.dirname(other)))
    for root in filter(None, roots):
        folders += glob.glob(os.path.join(root, "lib", "python3*", "*-packages"))
    return list(dict.fromkeys(folder for folder in folders if os.path.isdir(folder)))


def places():
    """(how it was found, folder), in the order of the search."""
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield NAMED, folder
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield name, os.path.join(os.environ[name], "lib64")
    for folder in ["/usr/local/cuda/lib64", *sorted(glob.glob("/usr/local/cuda-*/lib64"), reverse=True)]:
        yield "the CUDA toolkit", folder
    for packages in python_folders():
        for folder in sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib"))):
            yield "Python's packages", folder


def cudnn_version(path):
    """Such as 91600 for 9.16.0; 0 if the library cannot be loaded. It stays out of this process."""
    probe = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cudnnGetVersion())"
    try:
        done = subprocess.run([sys.executable, "-c", probe, path], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else 0


def find(cache, folders, version_of_cudnn=cudnn_version):
    """{"cuBLASLt": {"path", "by"}, "cuDNN": ...} from the loader's cache and from (how, folder) in their order; a
    library that is not found is left out. Folders of LD_LIBRARY_PATH come before the loader's own. Of several cuDNNs, the
    first that is new enough."""
    found = {}
    for library, sonames in SONAMES.items():
        for soname in sonames:
            choices = [(by, os.path.join(folder, soname)) for by, folder in folders]
            named = sum(by == NAMED for by, _ in choices)
            if soname in cache:
                choices.insert(named, ("the loader", cache[soname]))
            choices = [(by, path) for by, path in choices if os.path.exists(path)]
            match = next(iter(choices), None)
            if library == "cuDNN" and len(choices) > 1:
                match = next((choice for choice in choices if version_of_cudnn(choice[1]) >= OLDEST_CUDNN), match)
            if match:
                found[library] = {"path": match[1], "by": match[0]}
                break
    return found


def on_this_machine():
    return find(loader_cache(), list(places()))
