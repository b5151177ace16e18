#!/usr/bin/env bash
# A wheel for 64-bit ARM, by the cross compiler: bazel/aarch64/wheel.sh VERSION, of TensorFlow. pip fetches TensorFlow's
# own wheel for that processor, of which the headers and the framework library are unpacked into build/aarch64.
# At the end an emulator loads the op library after TensorFlow's; all symbols have to be found.
# Without device code. TensorFlow cannot be asked here what it was compiled with: it is taken to be as on x86-64.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly version=$1
readonly folder=$PWD/build/aarch64/$version
readonly python=.venv/bin/python

if [[ ! -e $folder/unpacked ]]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" \
    --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 "tensorflow==$version"
  "$python" - "$folder" <<'PYTHON'
import pathlib
import sys
import zipfile

folder = pathlib.Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    wanted = ("tensorflow/include/", "tensorflow/libtensorflow_framework.so")
    archive.extractall(folder, [name for name in names if name.startswith(wanted)])
wheel.unlink()
PYTHON
  touch "$folder/unpacked"
fi

framework=("$folder"/tensorflow/libtensorflow_framework.so.*)
bazel/bazel.sh build ${BAZEL_FLAGS:-} --config=aarch64 \
  --repo_env=TF_DYNEMB_TF_VERSION="$version" \
  --repo_env=TF_DYNEMB_TF_INCLUDE="$folder/tensorflow/include" \
  --repo_env=TF_DYNEMB_TF_FRAMEWORK="${framework[0]}" \
  --repo_env=TF_DYNEMB_COMPILER="$(aarch64-linux-gnu-gcc --version | head -n 1)" \
  --repo_env=TF_DYNEMB_CUDA= --repo_env=TF_DYNEMB_CUDA_VERSION= \
  //:wheel

cat > "$folder/load.c" <<'PROGRAM'
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL) == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  }
  return 0;
}
PROGRAM
aarch64-linux-gnu-gcc "$folder/load.c" -o "$folder/load" -ldl
qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$folder/tensorflow" "$folder/load" \
  "${framework[0]}" "$PWD/bazel-bin/tf_dynemb/_tf_dynemb_ops.so"

mkdir -p dist
install -m 644 bazel-bin/dist/*.whl dist/
ls dist/*_aarch64.whl
