# shellcheck shell=bash
# Shared by the scripts of this folder; read with `source`. Changes to the repository's folder, sets `root` (that
# folder), `caller` (the user's folder) and `jobs`, and defines functions.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
caller=$PWD
cd "$root"

if [[ -t 2 && -z ${NO_COLOR:-} ]]; then
  bold=$'\e[1m' plain=$'\e[0m'
else
  bold='' plain=''
fi

say() { printf '%s%s%s\n' "$bold" "$*" "$plain" >&2; }

# fail MESSAGE [EXIT_CODE]
fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit "${2:-1}"
}

# One compiler needs up to 1.5 GB for the largest file, so memory as well as cores limits the jobs.
default_jobs() {
  local cores memory_kib by_memory
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  by_memory=$((memory_kib / 1572864))
  ((by_memory < 1)) && by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}
jobs=${TESSERA_JOBS:-$(default_jobs)}

# Clones in different places share ccache's contents: paths are relative to the repository.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}

# The folders of sources, from the ground up: the library's floors, and all floors with the program's.
library_floors=(base kernels engine comm sharding checkpoint tokenizers models tasks trainer)
floors=("${library_floors[@]}" launch training planner logs bench cli)

# The compute capabilities for which scripts/gpu-compile builds the kernels. One run of nvcc for all takes less time than
# one for each.
gpu_architectures() { echo "${TESSERA_GPU_ARCHITECTURES:-80-real;90-real;100-real;120-real}"; }

# What bench/results/kernel-code.csv was recorded from: a checksum of the kernels with their headers and flags, and in a
# second line the compiler's version.
kernel_sources() {
  git ls-files '*.cu' '*.cuh' 'kernels/*.h' 'base/*.h' cmake/cuda.cmake | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-32
  nvcc --version 2>/dev/null | grep -o 'V[0-9.]*$' || echo 'no nvcc'
}
kernels_are_recorded() {
  [[ $(kernel_sources) == "$(cat bench/results/kernel-code.sources 2>/dev/null)" ]]
}

# The build folder of a preset: build for release, build-NAME for the others (CMakePresets.json agrees).
build_folder() { if [[ $1 == release ]]; then echo build; else echo "build-$1"; fi; }

# The folder of files that are kept between runs and belong to no checkout.
cache_folder() { echo "${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tessera"; }

# python_environment NAME REQUIREMENTS: the folder of a virtual environment with exactly the packages of that file, whether
# it exists or not.
python_environment() { echo "$(cache_folder)/$1-$(sha256sum "$2" | cut -c 1-12)"; }

# make_python_environment FOLDER REQUIREMENTS MIB LOG: makes it with pip, if MIB are free. If that is impossible, it
# prints the reason and fails.
make_python_environment() {
  local folder=$1 requirements=$2 needed_mib=$3 log=$4 base free_mib
  base=$(command -v python3) || { echo "python3 is missing"; return 1; }
  "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "the packages need Python 3.11 or newer, and this is $("$base" --version)"; return 1; }
  mkdir -p "$(dirname "$folder")" || { echo "cannot write to $(dirname "$folder")"; return 1; }
  free_mib=$(df --output=avail -m "$(dirname "$folder")" | tail -n 1)
  ((free_mib >= needed_mib)) ||
    { echo "the environment needs $needed_mib MiB and $(dirname "$folder") has $free_mib MiB free"; return 1; }
  rm -rf "$folder.new"
  "$base" -m venv "$folder.new" >"$log" 2>&1 || { echo "python3 -m venv failed: $(tail -n 1 "$log")"; return 1; }
  "$folder.new/bin/python" -m pip install --no-deps --no-cache-dir --disable-pip-version-check \
    --no-input -r "$requirements" >"$log" 2>&1 </dev/null ||
    { echo "pip could not install the packages: $(grep -iE 'error' "$log" | tail -n 1)"; return 1; }
  # A folder of this name is complete, so an interrupted installation is never used.
  rm -rf "$folder"
  mv "$folder.new" "$folder"
}

# version_at_least HAVE WANT
version_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# run_quietly LOG COMMAND...: output goes to the log; its end is shown when the command fails.
run_quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    fail "this failed: $* (whole output: $log)"
  fi
}

# configure PRESET [CMAKE_ARGUMENTS...]: fast when nothing changed. Does nothing for the preset TESSERA_CONFIGURED,
# because another process works in that folder.
configure() {
  local preset=$1
  shift
  [[ ${TESSERA_CONFIGURED:-} != "$preset" ]] || return 0
  command -v cmake >/dev/null || fail "cmake is missing: run scripts/setup"
  local have
  have=$(cmake --version | awk 'NR == 1 {print $3}')
  version_at_least "$have" 3.25 ||
    fail "CMake 3.25 is needed and this is $have. Ubuntu 22.04's own is too old: put a newer one first in
PATH, for example: python3 -m venv ~/.cmake && ~/.cmake/bin/pip install cmake && PATH=~/.cmake/bin:\$PATH"
  # shellcheck disable=SC2086  # several arguments in one variable
  run_quietly "$(build_folder "$preset")/configure.log" \
    cmake --preset "$preset" "$@" ${TESSERA_CMAKE_ARGUMENTS:-}
}

# build PRESET TARGET...: progress on a terminal, no output when nothing is to do, the end of the log on failure.
build() {
  local preset=$1
  shift
  local folder
  folder=$(build_folder "$preset")
  say "building $* ($preset, $jobs jobs)"
  if [[ -t 2 ]]; then
    cmake --build "$folder" -j "$jobs" --target "$@" >&2 || fail "the build failed"
  else
    run_quietly "$folder/build.log" cmake --build "$folder" -j "$jobs" --target "$@"
  fi
}
