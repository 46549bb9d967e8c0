# shellcheck shell=bash
# Shared by the tests of this folder; read with `source`. Takes their arguments, BUILD_FOLDER and CXX_COMPILER, and sets
# `build`, `compiler`, `here`, `root` (the repository) and `work`, a folder that is removed at the end.

set -euo pipefail
(($# == 2)) || { echo "usage: ${0##*/} BUILD_FOLDER CXX_COMPILER" >&2; exit 2; }
# shellcheck disable=SC2034  # for the scripts that read this file
build=$(cd "$1" && pwd -P) compiler=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck disable=SC2034
root=$(cd "$here/../.." && pwd -P)
work=$(mktemp -d "${TMPDIR:-/tmp}/tessera-consumer.XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() { echo "${0##*/}: $*" >&2; exit 1; }

# expect_equal WHAT GOT WANTED
expect_equal() { [[ $2 == "$3" ]] || fail "$1 is \"$2\", not \"$3\""; }

# quietly COMMAND...: shows the output only if the command fails.
quietly() {
  "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "this failed: $*"; }
}

# An independent project, built in `work/build` with only the package in PREFIX. It has a header of its own under the
# path of each header of the package, and its own folder comes first.
# build_consumer PREFIX INCLUDE_FOLDER
build_consumer() {
  local prefix=$1 include=$2 header
  # A copy, so that no relative path leads to files of the repository.
  cp -r "$here/project" "$work/source"
  (cd "$include/tessera" && find . -name '*.h') | while read -r header; do
    header=${header#./}
    echo "#include <tessera/$header>" >>"$work/source/all_headers.cpp"
    [[ ! -e $work/source/own/$header ]] || continue
    mkdir -p "$(dirname "$work/source/own/$header")"
    echo "#error \"the consumer's $header came before Tessera's\"" >"$work/source/own/$header"
  done
  quietly cmake -S "$work/source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$prefix"
  quietly cmake --build "$work/build"
}

# train TESSERA PROGRAM: trains the program's network on 2 ranks; it must learn and write a checkpoint.
train() {
  (cd "$work" && "$1" launch --nproc-per-node 2 -- "$2" "$work/checkpoint")
  [[ -n $(find "$work/checkpoint" -name manifest.json) ]] || fail "no checkpoint was written"
}
