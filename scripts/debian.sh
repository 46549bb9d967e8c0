# shellcheck shell=bash
# The Debian releases that Tessera is built on, and a way to get the packages of another release than this machine's;
# read with `source` after common.sh.

debian_releases=(debian-12 debian-13)

# codename_of debian-12: bookworm. Fails for names that are not in debian_releases.
codename_of() {
  case $1 in
    debian-12) echo bookworm ;;
    debian-13) echo trixie ;;
    *) return 1 ;;
  esac
}

# The release of this machine, by the same names; fails on any other system.
this_release() {
  local name
  # shellcheck source=/dev/null
  name=$(. /etc/os-release && echo "${ID:-}-${VERSION_ID:-}")
  codename_of "$name" >/dev/null && echo "$name"
}

# The address of the main archive that this machine uses (it contains the other releases too): from apt's configuration,
# or from TESSERA_DEBIAN_MIRROR.
debian_mirror() {
  local codename mirror=${TESSERA_DEBIAN_MIRROR:-}
  if [[ -z $mirror ]] && codename=$(codename_of "$(this_release)"); then
    mirror=$(apt-get update --print-uris | sed -nE "s|^'(.*)/dists/$codename/InRelease'.*|\1|p" | head -n 1)
  fi
  [[ -n $mirror ]] && echo "$mirror"
}

# The other release than this machine's.
other_release() {
  local here other
  here=$(this_release) || return 1
  for other in "${debian_releases[@]}"; do [[ $other == "$here" ]] || break; done
  echo "$other"
}

# bare_root RELEASE LOG: prints the path of an archive of a bare root folder of that release, which debootstrap makes once;
# it stays in the cache folder. Needs root.
bare_root() {
  local release=$1 log=$2 codename bare mirror folder
  codename=$(codename_of "$release") || return 1
  bare=$(cache_folder)/bare-$release.tar
  if [[ ! -f $bare ]]; then
    command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
    mirror=$(debian_mirror) || fail "apt names no archive of Debian here: set TESSERA_DEBIAN_MIRROR to one's address"
    say "making a bare $release ($codename)"
    mkdir -p "$(dirname "$bare")"
    folder=$(mktemp -d "${TMPDIR:-/var/tmp}/tessera-bare.XXXXXX")
    # shellcheck disable=SC2064  # the folder of this call
    trap "rm -rf --one-file-system '$folder'" EXIT
    run_quietly "$log" unshare --mount debootstrap --variant=minbase "$codename" "$folder/bare" "$mirror"
    tar -C "$folder/bare" --one-file-system --numeric-owner -cf "$bare.new" .
    mv "$bare.new" "$bare"
  fi
  echo "$bare"
}

# The development packages of scripts/packages.txt: what a build compiles and links against.
development_packages() { grep -E -- '-dev$' scripts/packages.txt | grep -vE '^(dpkg-dev|libclang-rt-dev)$'; }

# unpack_packages RELEASE FOLDER PACKAGE...: unpacks the release's packages, with all that they depend on but not what
# they merely recommend, into FOLDER, which is kept. It installs nothing and leaves apt's own state alone. If the
# packages are not available, it prints the reason and fails.
unpack_packages() {
  local codename mirror folder=$2 state=$2.apt wanted
  codename=$(codename_of "$1") || return 1
  shift 2
  wanted=$*
  [[ ! -f $folder/wanted || $(<"$folder/wanted") != "$wanted" ]] || return 0
  mirror=$(debian_mirror) || { echo "apt names no archive of $(this_release); set TESSERA_DEBIAN_MIRROR"; return 1; }
  rm -rf "$folder.new" "$state"
  mkdir -p "$folder.new" "$state/state/lists/partial" "$state/cache/archives/partial"
  echo "deb $mirror $codename main" >"$state/sources.list"
  local -a apt=(apt-get -o "Dir::State=$state/state" -o "Dir::State::status=/dev/null" -o "Dir::Cache=$state/cache"
    -o "Dir::Etc::sourcelist=$state/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferencesparts=/dev/null -o "APT::Sandbox::User=$(id -un)" -o Debug::NoLocking=true)
  if ! { "${apt[@]}" update && "${apt[@]}" install --yes --download-only --no-install-recommends "$@"; } \
    >"$folder.log" 2>&1 </dev/null; then
    echo "the packages of $codename cannot be fetched: $(grep -E '^[EW]:' "$folder.log" | head -n 1)"
    return 1
  fi
  local package
  for package in "$state"/cache/archives/*.deb; do
    dpkg-deb --show --showformat='${Package} ${Version}\n' "$package" >>"$folder.new/versions"
    case ${package##*/} in
      # The C library's headers and files belong to this machine's compiler.
      libc6-dev_* | linux-libc-dev_* | libcrypt-dev_*) ;;
      *) dpkg -x "$package" "$folder.new" ;;
    esac
  done
  echo "$wanted" >"$folder.new/wanted"
  rm -rf "$state" "$folder"
  mv "$folder.new" "$folder"  # a folder of this name is complete
}

# This machine's settings of apt for fetching (proxies, checks of dates, retries), as lines of an apt.conf.
apt_fetching() { apt-config dump | grep '^Acquire::' | grep -Ev '^Acquire::(IndexTargets|CompressionTypes|Changelogs)'; }
