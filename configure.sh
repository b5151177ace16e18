#!/usr/bin/env bash
# Finds what the build needs on this machine and writes it into one generated bazelrc, .tf_dynemb.bazelrc: a Python and
# its TensorFlow, the compiler, CUDA if there is any, and the options that this version of Bazel wants.
# Asks nothing unless --interactive is given. `make` runs it by itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'EOF'
usage: ./configure.sh [--python=PATH] [--cc=PATH] [--cuda=PATH] [--output=FILE] [--interactive]

  --python=PATH   a Python in which TensorFlow is installed
                  (default: $TF_DYNEMB_PYTHON, or .venv/bin/python, or python3)
  --cc=PATH       the C and C++ compiler, gcc or clang (default: $CC, or gcc, or clang)
  --cuda=PATH     a CUDA toolkit from 12 on, for the code for GPUs; `none` for none
                  (default: $CUDA_HOME, or nvcc's, or /usr/local/cuda, or none)
  --output=FILE   where to write (default: .tf_dynemb.bazelrc, which .bazelrc imports)
  --interactive   ask for each of these, offering what was found
EOF
}

die() {
  echo "configure.sh: $*" >&2
  exit 1
}

python= cc= cuda= output=.tf_dynemb.bazelrc interactive=
for argument in "$@"; do
  case $argument in
    --python=*) python=${argument#*=} ;;
    --cc=*) cc=${argument#*=} ;;
    --cuda=*) cuda=${argument#*=} ;;
    --output=*) output=${argument#*=} ;;
    --interactive) interactive=yes ;;
    --help) usage && exit 0 ;;
    *) usage >&2 && die "unknown argument: $argument" ;;
  esac
done

first_of() {  # first_of COMMAND...: the path of the first that exists, or nothing
  local command
  for command in "$@"; do
    command -v "$command" && return
  done
  true
}

settle() {  # settle VARIABLE QUESTION FOUND: keeps an argument that was given; else asks for it, or takes what was found
  local -n variable=$1
  [[ -z $variable ]] || return 0
  [[ -z $interactive ]] || read -rp "$2 [$3]: " variable || die "no answer to: $2"
  variable=${variable:-$3}
}

settle python "Python with TensorFlow" "$(first_of ${TF_DYNEMB_PYTHON:+"$TF_DYNEMB_PYTHON"} .venv/bin/python python3)"
[[ -n $python ]] || die "no python3 on PATH; name one with --python=PATH"
python=$(command -v "$python") || die "no such Python: $python"
# Not resolved: a virtual environment is known by the path it is called by.
[[ $python == /* ]] || python=$PWD/$python

settle cc "C++ compiler" "$(first_of ${CC:+"$CC"} gcc clang)"
[[ -n $cc ]] || die "no C++ compiler: install g++, or name one with --cc=PATH"
cc=$(command -v "$cc") || die "no such compiler: $cc"
compiler=$("$cc" --version | head -n 1)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf '#include <string>\nint main() { return std::string().size(); }\n' >"$scratch/try.cc"
"$cc" -std=c++17 -x c++ -c "$scratch/try.cc" -o "$scratch/try.o" 2>"$scratch/err" ||
  die "$cc does not compile C++17: $(grep -m 1 -i error "$scratch/err" || tail -n 1 "$scratch/err"); install g++, or name a compiler with --cc=PATH"

look_at_cuda() {  # look_at_cuda FOLDER: sets cuda_version and cuda_lib, or cuda_problem: why that toolkit cannot be used
  local nvcc=$1/bin/nvcc lib
  cuda_version= cuda_lib= cuda_problem=
  if [[ ! -x $nvcc || ! -e $1/include/cuda_runtime.h ]]; then
    cuda_problem="bin/nvcc or include/cuda_runtime.h is not there"
    return
  fi
  cuda_version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\),.*/\1/p') || true
  for lib in lib64 lib targets/x86_64-linux/lib; do
    [[ ! -e $1/$lib/libcudart_static.a ]] || cuda_lib=$1/$lib
  done
  echo '__global__ void kernel() {}' >"$scratch/try.cu"
  if [[ -z $cuda_version ]]; then
    cuda_problem="its nvcc does not say its version"
  elif ((${cuda_version%.*} < 12)); then
    cuda_problem="it is CUDA $cuda_version, and 12 is the oldest that will do"
  elif [[ -z $cuda_lib ]]; then
    cuda_problem="libcudart_static.a is not there"
  elif ! "$nvcc" -ccbin="$cc" -c "$scratch/try.cu" -o "$scratch/try.o" >"$scratch/err" 2>&1; then
    cuda_problem="nvcc $cuda_version does not work with $compiler: $(grep -m 1 -i error "$scratch/err" || tail -n 1 "$scratch/err")"
  fi
}

# One that was named is used or is an error; one that was found is used or is not.
cuda_given=$cuda
found=${CUDA_HOME:-none}
if [[ $found == none && -z ${CUDA_HOME:-} ]]; then
  for folder in "$(first_of nvcc | xargs -r readlink -f | sed 's#/bin/nvcc$##')" /usr/local/cuda; do
    [[ ! -x $folder/bin/nvcc || ! -e $folder/include/cuda_runtime.h ]] || { found=$folder && break; }
  done
fi
settle cuda "CUDA, or none" "$found"
cuda_version= cuda_lib=
if [[ $cuda != none ]]; then
  [[ $cuda == /* ]] || cuda=$PWD/$cuda
  look_at_cuda "$cuda"
  if [[ $cuda_problem ]]; then
    [[ -z $cuda_given ]] || die "--cuda=$cuda: $cuda_problem"
    echo "configure.sh: warning: building for the CPU alone: $cuda cannot be used: $cuda_problem" >&2
    cuda=none cuda_version= cuda_lib=
  fi
fi

bazel=$(bazel/bazel.sh --major)

# TensorFlow says itself where it is and what it was compiled with. One value a line.
facts=$scratch/facts
TF_CPP_MIN_LOG_LEVEL=3 "$python" - >"$facts" 2>"$facts.err" <<'EOF' || {
import importlib.util
import os

if importlib.util.find_spec("tensorflow") is None:
    raise SystemExit(3)

import tensorflow as tf

print(tf.version.VERSION)
print(tf.sysconfig.get_include())
print(os.path.join(tf.sysconfig.get_lib(), tf.sysconfig.get_link_flags()[-1].split(":")[-1]))
print(*[flag[2:] for flag in tf.sysconfig.get_compile_flags() if flag.startswith("-D")])
print(tf.sysconfig.get_build_info().get("cuda_version") or "none")
EOF
  [[ $? != 3 ]] || die "TensorFlow is not installed for $python. tf_dynemb is built against the TensorFlow that is \
there and installs none: $python -m pip install tensorflow-cpu (or tensorflow), and try again"
  tail -n 5 "$facts.err" >&2
  die "$python cannot import its TensorFlow (see above)"
}
{ read -r tf_version && read -r tf_include && read -r tf_framework && read -r tf_defines && read -r tf_cuda; } <"$facts"

case $tf_version in
  2.1[6-9].* | 2.2[0-2].*) ;;
  *) echo "configure.sh: warning: TensorFlow $tf_version has not been tried; 2.16 to 2.22 have" >&2 ;;
esac

if [[ $cuda != none && $tf_cuda != none && ${tf_cuda%%.*} != "${cuda_version%%.*}" ]]; then
  echo "configure.sh: warning: TensorFlow $tf_version is of CUDA $tf_cuda, and the code for GPUs will be of CUDA $cuda_version," \
    "which needs a driver for that (docs/building.md, GPUs)" >&2
fi

[[ $cuda != none ]] || cuda=
{
  echo "# What configure.sh found on this machine. Written by it: run it again rather than edit."
  echo "common --repo_env=TF_DYNEMB_PYTHON=\"$python\""
  echo "common --repo_env=TF_DYNEMB_TF_VERSION=\"$tf_version\""
  echo "common --repo_env=TF_DYNEMB_TF_INCLUDE=\"$tf_include\""
  echo "common --repo_env=TF_DYNEMB_TF_FRAMEWORK=\"$tf_framework\""
  echo "common --repo_env=TF_DYNEMB_TF_DEFINES=\"$tf_defines\""
  echo "common --repo_env=TF_DYNEMB_COMPILER=\"$compiler\""
  echo "common --repo_env=TF_DYNEMB_CUDA=\"$cuda\""
  echo "common --repo_env=TF_DYNEMB_CUDA_CXX=\"$cc\""
  echo "common --repo_env=TF_DYNEMB_CUDA_LIB=\"$cuda_lib\""
  echo "common --repo_env=TF_DYNEMB_CUDA_VERSION=\"$cuda_version\""
  echo "common --repo_env=CC=\"$cc\""
  ((bazel < 7)) || echo "common --noenable_bzlmod"
  ((bazel < 8)) || echo "common --enable_workspace"
  # Bazel links by the C compiler, and clang's leaves out the part of UBSan that C++ needs.
  [[ $compiler != *clang* ]] || echo "build:asan --linkopt=-fsanitize-link-c++-runtime"
  # ThreadSanitizer of gcc before 14 and clang before 18 cannot start where addresses are spread over more than 28 bits.
  if (($(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0) > 28)) && setarch -R true 2>/dev/null; then
    echo "test:tsan --run_under='$(command -v setarch) -R'"
  fi
} >"$output"

echo "configured: TensorFlow $tf_version of $python; $compiler; Bazel $bazel; CUDA ${cuda_version:-none}${cuda:+ in $cuda}"
