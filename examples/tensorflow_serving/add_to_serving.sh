#!/usr/bin/env bash
# Adds the ops of this checkout to a checkout of TensorFlow Serving, which then builds them into tensorflow_model_server:
#   examples/tensorflow_serving/add_to_serving.sh SERVING
#   cd SERVING && bazel build //tensorflow_serving/model_servers:tensorflow_model_server
# It adds lines to WORKSPACE and .bazelrc there, and a target to the list of ops in
# tensorflow_serving/model_servers/BUILD. Where that does not fit, it changes nothing and says so.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

die() {
  echo "add_to_serving.sh: $*" >&2
  exit 1
}

[[ $# == 1 ]] || die "got $# arguments, want the folder of a checkout of TensorFlow Serving"
serving=$1 build=$1/tensorflow_serving/model_servers/BUILD
[[ -e $serving/WORKSPACE && -e $build ]] ||
  die "$serving: got a folder without WORKSPACE or tensorflow_serving/model_servers/BUILD, want a checkout of TensorFlow Serving"
! grep -q 'name = "tf_dynemb"\|@tf_dynemb//cc' "$serving/WORKSPACE" "$build" || die "$serving: it has tf_dynemb already"
[[ $(grep -c '^SUPPORTED_TENSORFLOW_OPS = ' "$build") == 1 ]] ||
  die "$build: want one line that begins with SUPPORTED_TENSORFLOW_OPS = ; add @tf_dynemb//cc:tf_dynemb_ops_static to the server's deps by hand"

sed -i 's|^SUPPORTED_TENSORFLOW_OPS = |&["@tf_dynemb//cc:tf_dynemb_ops_static"] + |' "$build"
cat >>"$serving/WORKSPACE" <<WORKSPACE

local_repository(
    name = "tf_dynemb",
    path = "$here",
)

load("@tf_dynemb//bazel:in_tensorflow_serving.bzl", "tf_dynemb_in_tensorflow_serving")

tf_dynemb_in_tensorflow_serving()
WORKSPACE
# Another compiler may warn of what ours do not, or of TensorFlow's headers, which are no system headers there.
cat >>"$serving/.bazelrc" <<'BAZELRC'

build --per_file_copt=external/tf_dynemb/.*@-Wno-error
BAZELRC
echo "$serving: //tensorflow_serving/model_servers:tensorflow_model_server has the ops of $here"
