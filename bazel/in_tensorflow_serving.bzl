"""What the workspace of TensorFlow Serving needs to build //cc:tf_dynemb_ops_static: examples/tensorflow_serving.

There the op library is compiled against the TensorFlow of that workspace, @org_tensorflow, and its @curl, in place of
what configure.sh finds on a machine.
"""

load("//bazel:cuda.bzl", "local_cuda")

_BUILD = """\
cc_library(
    name = "tensorflow",
    visibility = ["//visibility:public"],
    deps = [
        "@com_google_absl//absl/status",
        "@com_google_absl//absl/strings",
        "@com_google_protobuf//:protobuf",
        "@curl//:curl",
        "@org_tensorflow//tensorflow/core:core_cpu",
        "@org_tensorflow//tensorflow/core:framework",
        "@org_tensorflow//tensorflow/core:lib",
    ],
)
"""

def _tensorflow_of_the_workspace_impl(ctx):
    ctx.file("BUILD", _BUILD)

_tensorflow_of_the_workspace = repository_rule(
    implementation = _tensorflow_of_the_workspace_impl,
    doc = "@local_tensorflow//:tensorflow, by the targets of @org_tensorflow.",
)

def tf_dynemb_in_tensorflow_serving():
    """Declares the repositories that //cc:tf_dynemb_ops_static depends on; CUDA is none without configure.sh."""
    _tensorflow_of_the_workspace(name = "local_tensorflow")
    local_cuda(name = "local_cuda")
