#!/usr/bin/env bash
# Runs the Bazel that this project builds with: $BAZEL, or `bazel` or `bazelisk` on PATH, whichever is new enough first.
#   bazel/bazel.sh build //:native       any Bazel command
#   bazel/bazel.sh --major               prints the major version (4 for Debian's 4.2.3); fails if there is none that fits
#   bazel/bazel.sh --command             prints the command itself, to be run in another workspace
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly oldest=4 newest=8

# Bazelisk fetches the Bazel that USE_BAZEL_VERSION names, or else the newest, which may know no WORKSPACE any more. The
# `bazel` script of Debian and of Bazel's own packages reads the variable too, but stops where that version is not installed.
environment_of() {  # environment_of COMMAND
  grep -Iq BAZEL_REAL "$(command -v "$1")" || echo "USE_BAZEL_VERSION=${USE_BAZEL_VERSION:-7.x}"
}

major_of() {  # major_of COMMAND
  local version
  version=$(env $(environment_of "$1") "$1" --version 2>/dev/null | tail -n 1)
  version=${version#bazel }
  # Debian's own does not know its version; its package does.
  [[ $version == [0-9]* ]] || version=$(dpkg-query -W -f '${Version}' bazel-bootstrap 2>/dev/null || true)
  echo "${version%%[.-]*}"
}

# Debian's runs in a Java of the system.
lacks_java() {  # lacks_java COMMAND
  [[ -z ${JAVA_HOME:-} ]] && ! command -v javac >/dev/null && dpkg-query -S "$(readlink -f "$(command -v "$1")")" 2>/dev/null | grep -q ^bazel-bootstrap:
}

tried=()
for candidate in ${BAZEL:+"$BAZEL"} bazel bazelisk; do
  command -v "$candidate" >/dev/null || continue
  major=$(major_of "$candidate")
  if lacks_java "$candidate"; then
    tried+=("$candidate (needs Java: apt-get install default-jdk-headless)")
    continue
  fi
  if [[ $major =~ ^[0-9]+$ ]] && ((major >= oldest && major <= newest)); then
    [[ ${1:-} == --major ]] && echo "$major" && exit 0
    [[ ${1:-} == --command ]] && echo "env $(environment_of "$candidate") $candidate" && exit 0
    exec env $(environment_of "$candidate") "$candidate" "$@"
  fi
  tried+=("$candidate (version ${major:-unknown})")
done
echo "bazel/bazel.sh: no Bazel from $oldest to $newest: ${tried[*]:-neither bazel nor bazelisk is on PATH: apt-get install bazel-bootstrap}; see docs/building.md" >&2
exit 1
