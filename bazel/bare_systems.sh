#!/usr/bin/env bash
# Wheels on systems that have nothing but Python: bazel/bare_systems.sh WHEEL SYSTEM...
#
# SYSTEM is one of Debian's or Ubuntu's, by its name: bookworm, trixie, sid, jammy, noble. debootstrap makes a minimal root
# of each in build/systems. In a new virtual environment there pip installs the wheel and the TensorFlow that it is for, the
# README's example runs, and the tests that SYSTEM_TESTS names. Prints a line of a table for each, with the seconds that pip
# and the example took. Needs root and debootstrap.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly wheel=$1
shift
readonly root=$PWD/build/systems
readonly debian=${DEBIAN_MIRROR:-http://deb.debian.org/debian} ubuntu=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
readonly scripts=/usr/share/debootstrap/scripts
name=$(basename "$wheel")
tensorflow=${name#*+tf}
tensorflow=${tensorflow%%-*}

fail() {
  echo "bare_systems.sh: $*" >&2
  exit 1
}

[[ $(id -u) == 0 ]] || fail "debootstrap and unshare want root"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
[[ -e $wheel ]] || fail "$wheel is missing: make wheels WHEELS_FOR=..."

# Ubuntu's keys are in a package of Ubuntu's, which Debian does not have: it is as good as the way by which it comes.
ubuntu_keyring() {
  local keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [[ ! -e $keyring ]]; then
    local package
    package=$(curl -fsS "$ubuntu/dists/noble/main/binary-amd64/Packages.xz" | xz -dc |
      awk '/^Package: /{at=$2} /^Filename: /{if (at == "ubuntu-keyring") print $2}')
    curl -fsS "$ubuntu/$package" -o "$root/ubuntu-keyring.deb"
    dpkg-deb -x "$root/ubuntu-keyring.deb" "$root/ubuntu-keyring"
    keyring=$root/ubuntu-keyring$keyring
  fi
  echo "$keyring"
}

make_root() {  # make_root SYSTEM
  local options=(--variant=minbase --include=python3,python3-venv,ca-certificates) keyring
  [[ ! -e $root/$1/usr/bin/python3 ]] || return 0
  rm -rf "${root:?}/$1"
  case $1 in
    jammy | noble)
      keyring=$(ubuntu_keyring)
      debootstrap "${options[@]}" --components=main,universe --keyring="$keyring" "$1" "$root/$1" "$ubuntu" "$scripts/gutsy"
      ;;
    *) debootstrap "${options[@]}" "$1" "$root/$1" "$debian" ;;
  esac
}

inside() {  # inside SYSTEM COMMAND...: as root there, with the network's names and certificates of here; what it starts ends with it
  local system=$1
  shift
  cp /etc/resolv.conf /etc/hosts "$root/$system/etc/"
  cp /etc/ssl/certs/ca-certificates.crt "$root/$system/etc/ssl/certs/"
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TF_CPP_MIN_LOG_LEVEL=2 \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    unshare --mount --pid --fork --root="$root/$system" --mount-proc "$@"
}

try() {  # try SYSTEM
  local there=$root/$1/try
  make_root "$1"
  rm -rf "$there"
  mkdir -p "$there"
  cp "$wheel" "$there/"
  sed -n '/^```python/,/^```/p' README.md | grep -v '^```' > "$there/example.py"
  local start=$SECONDS
  inside "$1" python3 -m venv /try/venv
  inside "$1" /try/venv/bin/pip install --quiet "tensorflow-cpu==$tensorflow" "/try/$name"
  inside "$1" /try/venv/bin/python /try/example.py
  echo $((SECONDS - start)) > "$there/seconds"
  inside "$1" /try/venv/bin/tf-dynemb --version
  [[ -z ${SYSTEM_TESTS:-} ]] || run_tests "$1"
}

run_tests() {  # run_tests SYSTEM: of a copy of the repository that has no package, so that the wheel is what they import
  local there=$root/$1/try/repository
  mkdir -p "$there"
  git archive HEAD -- . ':!tf_dynemb' ':!tf_dynemb_cli' | tar -x -C "$there"
  inside "$1" /try/venv/bin/pip install --quiet -r /try/repository/requirements-dev.txt
  inside "$1" bash -c "cd /try/repository && /try/venv/bin/python -m pytest --quiet --numprocesses auto --dist loadfile $SYSTEM_TESTS"
}

if [[ ${1:-} == --try ]]; then
  try "$2"
  exit
fi

mkdir -p "$root"
echo "| system | Python | glibc | TensorFlow | pip and the README's example | tests |"
echo "|---|---|---|---|---|---|"
failed=
for system in "$@"; do
  log=$root/$system.log
  # A process of its own, which the first command that fails ends; a function that `if` asks would go on.
  if bazel/bare_systems.sh "$wheel" --try "$system" > "$log" 2>&1 < /dev/null; then
    result="ok, $(cat "$root/$system/try/seconds") s"
  else
    result=failed failed=1
    tail -n 20 "$log" >&2
  fi
  python=$(inside "$system" python3 --version)
  glibc=$(inside "$system" ldd --version | sed -n '1s/.* //p')
  tests=$(tail -n 1 "$log" | sed -n 's/^[= ]*\([0-9].*\) in .*/\1/p')
  echo "| $system | ${python#Python } | $glibc | $tensorflow | $result | ${tests:--} |"
done
[[ -z $failed ]]
