"""Adds the licences of what a repaired wheel bundles: the copyright files of the Debian packages.

    licences.py WHEEL

auditwheel lists the packages of the libraries that it copied in sboms/auditwheel.cdx.json. The libraries in tessera/lib
and the libraries of headers, whose code is in the program, are named here."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

HEADERS = ("nlohmann-json3-dev", "libcli11-dev")
CUDA = """The program contains the CUDA runtime of NVIDIA (libcudart_static.a), which the CUDA Toolkit's licence lets programs
distribute: https://docs.nvidia.com/cuda/eula/. cuBLASLt, cuDNN and NCCL are not in this package: the program opens those of
the machine, or of the packages nvidia-cublas, nvidia-cudnn-cu13 and nvidia-nccl-cu13.
"""


def packages_in(info):
    """Of auditwheel's list: pkg:deb/debian/libfmt9@9.1.0."""
    components = json.loads((info / "sboms/auditwheel.cdx.json").read_text(encoding="utf-8"))["components"]
    addresses = [component["purl"] for component in components if component["purl"].startswith("pkg:deb/")]
    return {urllib.parse.unquote(address.split("/")[2].split("@")[0]) for address in addresses}


def package_of(library):
    done = subprocess.run(["dpkg-query", "--search", f"*/{library}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"licences.py: no Debian package has {library}: {done.stderr.strip()}")
    return done.stdout.split(":")[0]


def add(folder):
    (info,) = folder.glob("*.dist-info")
    bundled = list(folder.glob("*.libs/*"))
    packages = packages_in(info)
    if not packages and bundled:
        raise SystemExit("licences.py: auditwheel names no package of the libraries that it bundled")
    packages |= {package_of(library.name) for library in (folder / "tessera/lib").iterdir()}
    licences, lines = info / "licenses", []
    for package in sorted(packages | set(HEADERS)):
        shutil.copyfile(f"/usr/share/doc/{package}/copyright", licences / f"{package}.txt")
        lines.append(f"License-File: {package}.txt\n")
    (licences / "nvidia-cuda-runtime.txt").write_text(CUDA, encoding="utf-8")
    lines.append("License-File: nvidia-cuda-runtime.txt\n")
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    known = "License-File: LICENSE\n"
    if known not in metadata:
        raise SystemExit("licences.py: METADATA names no licence of its own")
    (info / "METADATA").write_text(metadata.replace(known, known + "".join(lines), 1), encoding="utf-8")
    return len(lines)


def main(wheel):
    tool = [sys.executable, "-m", "wheel"]
    with tempfile.TemporaryDirectory(prefix="tessera-licences-") as work:
        subprocess.run([*tool, "unpack", "--dest", work, wheel], check=True, stdout=subprocess.DEVNULL)
        (folder,) = pathlib.Path(work).iterdir()
        count = add(folder)
        packed = pathlib.Path(work) / "packed"
        packed.mkdir()
        subprocess.run([*tool, "pack", "--dest-dir", str(packed), str(folder)], check=True, stdout=subprocess.DEVNULL)
        (made,) = packed.iterdir()
        shutil.move(made, wheel)
    print(f"{count} licences of bundled libraries")


if __name__ == "__main__":
    main(sys.argv[1])
