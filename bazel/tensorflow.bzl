"""The installed TensorFlow as a Bazel repository.

configure.sh asks a Python for its TensorFlow and writes what it learns into .tf_dynemb.bazelrc as --repo_env; this rule
only reads that, so no Python starts here and another TensorFlow is seen as soon as configure.sh has run again.
Only cc/ops, cc/kernels and cc may depend on it: the engine in cc/core knows no TensorFlow. Programs of TensorFlow's C++
interface, of which there is one in examples, depend on :tensorflow_cc, which has all of TensorFlow.
"""

_ENVIRON = [
    "TF_DYNEMB_COMPILER",
    "TF_DYNEMB_CUDA_VERSION",
    "TF_DYNEMB_PYTHON",
    "TF_DYNEMB_TF_DEFINES",
    "TF_DYNEMB_TF_FRAMEWORK",
    "TF_DYNEMB_TF_INCLUDE",
    "TF_DYNEMB_TF_VERSION",
]

_BUILD = """\
cc_library(
    name = "tensorflow",
    srcs = ["{framework}"],
    hdrs = glob(["include/**"], exclude_directories = 1),
    defines = {defines},
    # As system headers: their warnings are not ours to fix. The framework library has libcurl in it.
    includes = ["include", "include/external/curl/include"],
    visibility = ["@//cc:__pkg__", "@//cc/ops:__subpackages__", "@//cc/kernels:__subpackages__"],
)

exports_files(["build_info.py"])
"""

# With sessions and TensorFlow's own ops; not in the headers alone of another platform's TensorFlow (bazel/aarch64).
_BUILD_CC = """\
cc_library(
    name = "tensorflow_cc",
    srcs = ["{library}"],
    visibility = ["@//examples:__subpackages__"],
    deps = [":tensorflow"],
)
"""

_BUILD_INFO = '''\
"""What this copy of the op library was built with. Written by the build (bazel/tensorflow.bzl)."""

TENSORFLOW_VERSION = "{version}"
COMPILER = "{compiler}"
CXX11_ABI = {abi}
CUDA_VERSION = "{cuda_version}"
'''

def _local_tensorflow_impl(ctx):
    env = {}
    for name in _ENVIRON:
        env[name] = ctx.os.environ.get(name, "")
    if not env["TF_DYNEMB_TF_INCLUDE"]:
        fail("no TensorFlow is configured: run ./configure.sh (or make build)")

    ctx.symlink(env["TF_DYNEMB_TF_INCLUDE"], "include")
    framework = env["TF_DYNEMB_TF_FRAMEWORK"].split("/")[-1]
    ctx.symlink(env["TF_DYNEMB_TF_FRAMEWORK"], framework)

    defines = env["TF_DYNEMB_TF_DEFINES"].split(" ")
    build = _BUILD.format(framework = framework, defines = repr(defines))
    library = ctx.path(env["TF_DYNEMB_TF_FRAMEWORK"].replace("_framework.", "_cc."))
    if library.exists:
        ctx.symlink(library, library.basename)
        build += _BUILD_CC.format(library = library.basename)
    ctx.file("BUILD", build)
    ctx.file("build_info.py", _BUILD_INFO.format(
        version = env["TF_DYNEMB_TF_VERSION"],
        compiler = env["TF_DYNEMB_COMPILER"],
        abi = 1 if "_GLIBCXX_USE_CXX11_ABI=1" in defines else 0,
        cuda_version = env["TF_DYNEMB_CUDA_VERSION"],
    ))
    ctx.file("config.bzl", 'PYTHON = "{python}"\n'.format(python = env["TF_DYNEMB_PYTHON"]))

local_tensorflow = repository_rule(
    implementation = _local_tensorflow_impl,
    doc = "@local_tensorflow//:tensorflow, the headers and framework library; build_info.py; config.bzl.",
    environ = _ENVIRON,
    local = True,
)
