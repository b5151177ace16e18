"""The C++ and CUDA targets of the project: flags, warnings, visibility.

No other file names a compiler flag. Includes are written from the repository root: #include "cc/core/base/status.h".
"""

load("//bazel:cuda.bzl", "nvcc_outputs")
load("@local_cuda//:config.bzl", "HOST_CXX", "NVCC", "NVCC_COMPRESS", "NVCC_VERSION")

_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wvla",
]

# Warnings of the optimiser, which differ between compiler versions and are often wrong: off, so that a new compiler
# does not stop a user's build. What they look for, the sanitizers find.
_NO_WARNINGS = [
    "-Wno-array-bounds",
    "-Wno-dangling-reference",
    "-Wno-maybe-uninitialized",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
    "-Wno-unknown-warning-option",  # clang, of those above that are gcc's alone
]

_COPTS = [
    "-std=c++17",
    "-g1",
    "-fvisibility=hidden",
    # Initial values are bit-identical on every machine: no multiplication and addition may be fused.
    "-ffp-contract=off",
    # Square roots and divisions in a loop become vector instructions, with the same results: nobody reads errno or
    # floating-point exceptions here.
    "-fno-math-errno",
    "-fno-trapping-math",
] + _WARNINGS + _NO_WARNINGS + select({
    # Elsewhere, the sanitizers above all, -O is the configuration's own and a warning is no error.
    "//bazel:opt": ["-O3", "-Werror"],
    "//conditions:default": [],
})

# For what nvcc compiles. cubins for the data-centre GPUs of two generations, and PTX, of which the driver makes code for
# those that come later.
_NVCC_OPTS = [
    "-std=c++17",
    "-O3",
    "-ccbin=" + HOST_CXX,
    # Initial values are those of the host to the bit: see -ffp-contract above.
    "--fmad=false",
    "--threads=2",  # a generation each, for the largest file is compiled when no other is left
    "--diag-suppress=2810",  # it takes an assignment to a [[nodiscard]] class for a value that is dropped
    # "#pragma unroll" is for the device's compiler, and the host's does not know it.
    "-Xcompiler=" + ",".join(
        ["-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unknown-pragmas"] +
        _NO_WARNINGS,
    ),
] + NVCC_COMPRESS + select({
    "//bazel:opt": ["--Werror=all-warnings"],
    "//conditions:default": [],
})
_GPU_CODE = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
]

# Who may depend on a room. Dependencies point one way: kernels -> gpu -> core; ops are schemas only.
_VISIBLE_TO = {
    "benchmarks": ["//benchmarks:__subpackages__"],
    "cc/core": [
        "//benchmarks:__subpackages__",
        "//cc/core:__subpackages__",
        "//cc/gpu:__subpackages__",
        "//cc/kernels:__subpackages__",
    ],
    "cc/gpu": ["//benchmarks:__subpackages__", "//cc/gpu:__subpackages__", "//cc/kernels:__subpackages__"],
    "cc/kernels": ["//cc:__pkg__", "//cc/kernels:__subpackages__"],
    "cc/ops": ["//cc:__pkg__", "//cc/ops:__subpackages__"],
    "cc": ["//visibility:public"],
}

def _room_visibility():
    package = native.package_name()
    room = "/".join(package.split("/")[:2])
    if room not in _VISIBLE_TO:
        fail("//{} is no room of C++: give it a line in _VISIBLE_TO of //bazel:cc.bzl".format(package))
    return _VISIBLE_TO[room]

def _unity_files(name, srcs, number):
    """Makes so many files that include the sources."""
    files = []
    for first in range(number):
        files.append("{}_unity_{}.cc".format(name, first))
        includes = ["#include \"{}/{}\"".format(native.package_name(), source) for source in srcs[first::number]]
        native.genrule(
            name = "{}_unity_{}".format(name, first),
            outs = [files[-1]],
            cmd = "printf '%s\\n' {} >$@".format(" ".join(["'" + include + "'" for include in includes])),
        )
    return files

def dynemb_cc_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        testonly = False,
        alwayslink = False,
        visibility = None,
        unity_files = 0,
        **kwargs):
    """A library of the project.

    Args:
      name: as in cc_library; so are srcs, hdrs, deps and testonly.
      alwayslink: keep objects that nobody names, such as registrations of ops and kernels. A testonly library keeps
        them anyway: its TEST_P suites are registered so.
      visibility: narrower than the room's (see _VISIBLE_TO), or None for the room's.
      unity_files: into how many files to put the sources for the compiler, which takes 6 to 9 seconds to read
        TensorFlow's headers and one or two for a source. 0: each is compiled by itself.
      **kwargs: passed to cc_library (tags).
    """
    if visibility and "//visibility:public" in visibility:
        fail("//{}:{}: the room decides who may see it; leave visibility out".format(native.package_name(), name))
    native.cc_library(
        name = name,
        srcs = _unity_files(name, srcs, unity_files) if unity_files else srcs,
        hdrs = hdrs,
        textual_hdrs = srcs if unity_files else [],
        copts = _COPTS,
        # Hidden symbols do not cross shared objects, so none are made of single libraries.
        linkstatic = True,
        linkopts = ["-pthread"],
        alwayslink = alwayslink or testonly,
        testonly = testonly,
        visibility = visibility or _room_visibility(),
        deps = deps,
        **kwargs
    )

def if_cuda(with_cuda, without = []):
    """The one list where configure.sh has found CUDA, the other where it has not."""
    return with_cuda if NVCC else without

def dynemb_cuda_library(name, srcs, hdrs = [], deps = [], ptx = False, **kwargs):
    """A library of .cu sources; it is not made where there is no CUDA. //cc/gpu and //benchmarks only.

    Args:
      name: as in cc_library; so are hdrs and deps.
      srcs: .cu files, of different names.
      ptx: make <name>_ptx too, their PTX, for tests that read it.
      **kwargs: as in dynemb_cc_library.
    """
    if not NVCC:
        return
    objects = name + "_objects"
    testonly = kwargs.get("testonly", False)
    outputs = [(objects, ".pic.o", _GPU_CODE + ["-c"], testonly)]
    if ptx:
        outputs.append((name + "_ptx", ".ptx", ["-arch=compute_90", "--ptx"], True))
    for output, suffix, flags, for_tests in outputs:
        nvcc_outputs(
            name = output,
            srcs = srcs,
            hdrs = hdrs,
            flags = _NVCC_OPTS + flags,
            nvcc = NVCC,
            nvcc_version = NVCC_VERSION,
            suffix = suffix,
            testonly = for_tests,
            deps = deps,
        )
    dynemb_cc_library(name = name, srcs = [objects], hdrs = hdrs, deps = deps + ["@local_cuda//:cudart"], **kwargs)

def dynemb_cc_test(name, srcs, deps, concurrent = False, soak = False, size = "small", **kwargs):
    """A GoogleTest test with its main().

    Args:
      name: as in cc_test; so are srcs, deps and size.
      concurrent: it runs threads against each other; ThreadSanitizer runs these (bazel test --config=tsan).
      soak: it does more when TF_DYNEMB_SOAK=1; `make soak` runs these.
      **kwargs: passed to cc_test (data, shard_count, timeout).
    """
    tags = kwargs.pop("tags", [])
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _COPTS,
        linkstatic = True,
        linkopts = ["-pthread"],
        size = size,
        tags = tags + (["concurrent"] if concurrent else []) + (["soak"] if soak else []),
        deps = deps + ["@googletest//:gtest_main"],
        **kwargs
    )

def dynemb_cc_program(name, srcs, deps, linkopts = []):
    """A program that measures, or of an example; built only when it is asked for by name."""
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _COPTS,
        linkstatic = True,
        linkopts = linkopts + ["-pthread"],
        tags = ["manual"],
        testonly = True,
        deps = deps,
    )

def dynemb_cc_benchmark(name, srcs, deps):
    """A Google Benchmark program, which needs libbenchmark-dev."""

    # Debian installs the library where the compiler looks by itself; benchmark_main is its main().
    dynemb_cc_program(name, srcs, deps, linkopts = ["-lbenchmark_main", "-lbenchmark"])

def dynemb_cuda_benchmark(name, srcs, hdrs, deps):
    """A program of .cu sources with its main(), built only when it is asked for by name; not made without CUDA."""
    if not NVCC:
        return
    kernels = name + "_kernels"
    dynemb_cuda_library(name = kernels, srcs = srcs, hdrs = hdrs, deps = deps, testonly = True, tags = ["manual"])
    native.cc_binary(
        name = name,
        linkstatic = True,
        linkopts = ["-pthread"],
        tags = ["manual"],
        testonly = True,
        deps = [kernels],
    )

def dynemb_op_library(name, srcs, deps):
    """A shared object that TensorFlow loads, and nothing but: _<name>.so; `name` is an alias of it."""
    so = "_" + name + ".so"
    native.cc_binary(
        name = so,
        srcs = srcs,
        copts = _COPTS,
        linkshared = True,
        linkstatic = True,
        linkopts = [
            "-pthread",
            # What TensorFlow does not offer is found here and not when a user imports the package.
            "-Wl,-z,defs",
            "-Wl,--as-needed",
            # Line tables of TensorFlow's templates are most of the file, and compress well.
            "-Wl,--compress-debug-sections=zlib",
        ],
        visibility = ["//visibility:public"],
        deps = deps,
    )
    native.alias(name = name, actual = so, visibility = ["//visibility:public"])
