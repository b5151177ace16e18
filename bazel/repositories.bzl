"""Every external repository of the project, none of them downloaded."""

load("//bazel:cuda.bzl", "local_cuda")
load("//bazel:googletest.bzl", "local_googletest")
load("//bazel:tensorflow.bzl", "local_tensorflow")

# What Bazel 4's built-in packages load although a C++ build needs nothing of it.
_BAZEL_4_STUBS = ["rules_cc", "rules_java", "rules_proto", "remote_coverage_tools"]

def tf_dynemb_repositories():
    """Declares TensorFlow, CUDA, GoogleTest and, for Bazel 4, the stubs in third_party."""
    local_tensorflow(name = "local_tensorflow")
    local_cuda(name = "local_cuda")
    local_googletest(name = "googletest")

    # Debian's Bazel, the one that must work without a network, gives its version as "". Later Bazels load more
    # than the stubs offer, and use the rules they come with.
    if not native.bazel_version or native.bazel_version.startswith("4."):
        for name in _BAZEL_4_STUBS:
            native.local_repository(name = name, path = "third_party/" + name)
