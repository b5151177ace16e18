#!/usr/bin/env bash
# environments.sh [DIR]: makes the Python environments of the peers that benchmarks/run.py measures this project against,
# tfra and torch, below DIR (build/benchmarks); about 4 GB. Needs Python 3.11, for TFRA has no wheel for a younger one;
# PYTHON names another interpreter than python3. tf_gather and this project run in the environment of the command itself.
set -euo pipefail
dir=${1:-$(dirname "${BASH_SOURCE[0]}")/../build/benchmarks}

make_environment() {  # make_environment NAME REQUIREMENT...
  local name=$1
  shift
  [[ -x $dir/$name/bin/python ]] || "${PYTHON:-python3}" -m venv "$dir/$name"
  "$dir/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

# The last TensorFlow that TFRA's wheels were built for; it imports typeguard without asking for it.
make_environment tfra tensorflow==2.16.2 tf-keras==2.16.0 tensorflow-recommenders-addons==0.8.1 typeguard

# The build for CPUs, where an index of PyTorch's offers it; PyPI's asks for CUDA's libraries.
make_environment torch numpy
make_environment torch torch==2.13.0+cpu || make_environment torch torch==2.13.0

TF_USE_LEGACY_KERAS=1 "$dir/tfra/bin/python" -c 'import tensorflow_recommenders_addons'
"$dir/torch/bin/python" -c 'import torch'
echo "ready: benchmarks/run.py --environments $dir"
