#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that the build needs and this machine lacks, if root or `sudo -n` allows it;
# otherwise prints the one line that does it, and stops. Quick and silent where all is there.
#   bazel/system_packages.sh            what the build needs
#   bazel/system_packages.sh aarch64    and what `make cc_aarch64` does
#   bazel/system_packages.sh online     and what `make online` does
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

say() {
  echo "system packages: $*"
}

has_compiler() {
  command -v "${CXX:-g++}" >/dev/null || { [[ -z ${CXX:-} ]] && command -v clang++ >/dev/null; }
}

# What is missing. Without the optional packages all works but the C++ tests, the C++ benchmarks and the tests of Redis. Debian's
# redis-tools has the server too, under another name; the package redis-server would also start it, now and whenever the machine does.
compiler='' python='' bazel='' optional=()
has_compiler || compiler=missing
# One that .venv is made of already need not be on PATH.
[[ -x $here/../.venv/bin/python ]] || why_no_python=$("$here/find_python.sh" 2>&1 >/dev/null) || python=missing
"$here/bazel.sh" --major >/dev/null 2>&1 || bazel=missing
[[ -d ${TF_DYNEMB_GOOGLETEST:-/usr/src/googletest} ]] || optional+=(googletest)
[[ -e /usr/include/benchmark/benchmark.h ]] || optional+=(libbenchmark-dev)
command -v redis-server >/dev/null || command -v redis-check-rdb >/dev/null || optional+=(redis-tools)
extra=()
if [[ ${1:-} == aarch64 ]]; then
  [[ -x /usr/bin/aarch64-linux-gnu-g++ ]] || extra+=(g++-aarch64-linux-gnu)
  [[ -x /usr/bin/qemu-aarch64 ]] || extra+=(qemu-user)
elif [[ ${1:-} == online ]]; then
  [[ -e /usr/include/httplib.h ]] || extra+=(libcpp-httplib-dev)
  [[ -e /usr/include/nlohmann/json.hpp ]] || extra+=(nlohmann-json3-dev)
fi
[[ -n $compiler$python$bazel${optional[*]}${extra[*]} ]] || exit 0

# How packages are installed here, if they are.
if ! command -v apt-get >/dev/null; then
  as_root=none
elif [[ $(id -u) == 0 ]]; then
  as_root=
elif sudo -n true 2>/dev/null; then
  as_root='sudo -n'
else
  as_root=none
fi
if [[ $as_root != none ]]; then
  say "reading the lists of packages"
  $as_root apt-get -qq update </dev/null || say "apt-get update failed; going on with the lists that are there"
fi

apt_version() {  # apt_version PACKAGE: the version that apt would install; nothing if it knows none
  apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *//p' | grep -v '(none)' || true
}

packages=("${extra[@]}") advice=()  # what to install; what no package of this distribution's can mend
[[ -z $compiler ]] || packages+=(g++)
if [[ $python ]]; then
  version=$(apt_version python3)
  minor=${version#3.} minor=${minor%%.*}
  if [[ -z ${PYTHON:-} ]] && { [[ -z $version ]] || ((minor >= 10 && minor <= $("$here/find_python.sh" --newest))); }; then
    packages+=(python3 python3-venv)
  else
    advice+=("$why_no_python. Install such a Python with its venv module and name it: make PYTHON=PATH")
  fi
fi
if [[ $bazel ]]; then
  version=$(apt_version bazel-bootstrap)
  if [[ -z $version ]] || dpkg --compare-versions "$version" ge 4; then
    packages+=(bazel-bootstrap)
  else
    advice+=("the package bazel-bootstrap is $version here, too old. Install Bazelisk: apt-get install npm && npm install -g @bazel/bazelisk")
  fi
fi

for line in "${advice[@]}"; do
  say "$line"
done
if [[ $as_root == none ]]; then
  if ((${#packages[@]})); then
    say "some are missing, and this user may not install them. As root:"
    echo "  apt-get install ${packages[*]} ${optional[*]}"
    say "without root: docs/building.md"
  fi
  ((${#packages[@]} + ${#advice[@]} == 0)) || exit 1
  exit 0
fi

install() {
  say "installing $*"
  $as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" </dev/null >/dev/null
}
((${#packages[@]} == 0)) || install "${packages[@]}" || exit 1
((${#optional[@]} == 0)) || install "${optional[@]}" || say "going on without ${optional[*]}"
((${#advice[@]} == 0)) || exit 1
