# shellcheck shell=bash
# The Debian releases that Tessera is built on, and how to have another one's packages than this machine's; read with
# `source` after common.sh.

debian_releases=(debian-12 debian-13)

# codename_of debian-12: bookworm. Fails for what is not in debian_releases.
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

# Where this machine gets its own release's main archive, which has the other releases too: from apt's
# configuration, or from TESSERA_DEBIAN_MIRROR.
debian_mirror() {
  local codename mirror=${TESSERA_DEBIAN_MIRROR:-}
  if [[ -z $mirror ]] && codename=$(codename_of "$(this_release)"); then
    mirror=$(apt-get update --print-uris | sed -nE "s|^'(.*)/dists/$codename/InRelease'.*|\1|p" | head -n 1)
  fi
  [[ -n $mirror ]] && echo "$mirror"
}

# What this machine has told apt of fetching (proxies, checks of dates, retries), as lines of an apt.conf.
apt_fetching() { apt-config dump | grep '^Acquire::' | grep -Ev '^Acquire::(IndexTargets|CompressionTypes|Changelogs)'; }
