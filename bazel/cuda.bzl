"""CUDA as Bazel sees it: the repository @local_cuda, and the rule that runs nvcc.

configure.sh looks for a CUDA toolkit and writes what it finds into .tf_dynemb.bazelrc as --repo_env. Without one the
repository is there all the same, says so, and the targets of cc/gpu that need CUDA are not made (if_cuda, cc.bzl).
What is linked is CUDA's static runtime, which finds the driver when it is first called: the op library loads where
there is no driver.
"""

_ENVIRON = [
    "TF_DYNEMB_COMPILER",
    "TF_DYNEMB_CUDA",
    "TF_DYNEMB_CUDA_CXX",
    "TF_DYNEMB_CUDA_LIB",
    "TF_DYNEMB_CUDA_VERSION",
]

_BUILD = """\
cc_library(
    name = "cudart",
    srcs = ["libcudart_static.a"],
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**"]),
    # As system headers: their warnings are not ours to fix.
    includes = ["include"],
    linkopts = ["-ldl", "-lrt", "-pthread"],
    visibility = ["@//benchmarks:__subpackages__", "@//cc/gpu:__subpackages__"],
)
"""

def _local_cuda_impl(ctx):
    root = ctx.os.environ.get("TF_DYNEMB_CUDA", "")
    ctx.file("BUILD", _BUILD if root else "")
    if root:
        ctx.symlink(root + "/include", "include")
        ctx.symlink(ctx.os.environ["TF_DYNEMB_CUDA_LIB"] + "/libcudart_static.a", "libcudart_static.a")
    version = ctx.os.environ.get("TF_DYNEMB_CUDA_VERSION", "")

    # From 12.8 on nvcc can make device code a fifth of its size.
    compresses = root and [int(number) for number in version.split(".")] >= [12, 8]
    config = """\
NVCC = "{nvcc}"
NVCC_VERSION = "{version}, {compiler}"
NVCC_COMPRESS = {compress}
HOST_CXX = "{cxx}"
"""
    ctx.file("config.bzl", config.format(
        nvcc = root + "/bin/nvcc" if root else "",
        version = version,
        compress = ["--compress-mode=size"] if compresses else [],
        compiler = ctx.os.environ.get("TF_DYNEMB_COMPILER", ""),
        cxx = ctx.os.environ.get("TF_DYNEMB_CUDA_CXX", ""),
    ))

local_cuda = repository_rule(
    implementation = _local_cuda_impl,
    doc = "@local_cuda//:cudart, headers and static runtime; config.bzl, whose NVCC is empty where there is no CUDA.",
    environ = _ENVIRON,
    local = True,
)

# nvcc's temporary files are named by the number of its process, which in two sandboxes may be the same, while /tmp is
# one: so each has a folder of its own. Objects are without these names, so that they are the same bytes each time. What
# has internal linkage is named by the source's absolute path.
_COMPILE = """\
TMPDIR=$(mktemp --directory) && export TMPDIR && trap 'rm -rf "$TMPDIR"' EXIT || exit
output=$1 && shift && "$@" -o "$output" || exit
[[ $output != *.o ]] || objcopy --wildcard --strip-symbol='*tmpxft*' "$output"
"""

def _nvcc_outputs_impl(ctx):
    headers = depset(ctx.files.hdrs, transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps])
    outputs = []
    for source in ctx.files.srcs:
        name = source.basename[:-len(source.extension) - 1]
        output = ctx.actions.declare_file("{}/{}{}".format(ctx.label.name, name, ctx.attr.suffix))
        outputs.append(output)
        ctx.actions.run_shell(
            command = _COMPILE,
            arguments = [output.path, ctx.attr.nvcc] + ctx.attr.flags + ["-I.", source.path],
            inputs = depset([source], transitive = [headers]),
            outputs = [output],
            mnemonic = "Nvcc",
            progress_message = "Compiling {} by nvcc".format(source.short_path),
            # Another compiler at the same path is another action.
            env = {"NVCC_VERSION": ctx.attr.nvcc_version, "PATH": "/usr/bin:/bin"},
        )
    # PTX is data of a test, which finds it among its runfiles.
    return [DefaultInfo(files = depset(outputs), runfiles = ctx.runfiles(outputs))]

nvcc_outputs = rule(
    implementation = _nvcc_outputs_impl,
    doc = "What nvcc makes of each of the sources: objects, which a cc_library takes as srcs, or PTX.",
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "deps": attr.label_list(doc = "Libraries whose headers are included.", providers = [CcInfo]),
        "flags": attr.string_list(),
        "nvcc": attr.string(doc = "Its path."),
        "nvcc_version": attr.string(doc = "Its version and the host compiler's."),
        "suffix": attr.string(doc = "Of the files that it makes."),
    },
)
