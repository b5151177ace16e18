#!/usr/bin/env bash
# Prints what pip is to install as TensorFlow where `make` is not told: what .venv holds already, or the release that this
# version of tf_dynemb is tested with, for the CPU where there is no NVIDIA GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

release='2.21.*'
if [[ -e .venv/tensorflow ]]; then
  cat .venv/tensorflow
elif nvidia-smi -L 2>/dev/null | grep -q GPU; then
  echo "tensorflow[and-cuda]==$release"
elif [[ $(uname -m) == x86_64 ]]; then
  echo "tensorflow-cpu==$release"
else
  echo "tensorflow==$release"
fi
