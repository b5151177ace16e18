"""The Python wheel, made by setup.py, as `pip install .` makes it, around an op library that Bazel has built."""

load("@local_tensorflow//:config.bzl", "PYTHON")

def _python_wheel_impl(ctx):
    # A folder, because the name of a wheel says the version and the platform, which only setup.py knows.
    out = ctx.actions.declare_directory("dist")
    ctx.actions.run_shell(
        inputs = ctx.files.srcs + ctx.files.native,
        outputs = [out],
        # setuptools writes beside the sources, so it works on a copy.
        command = """
            set -eu
            out=$PWD/$1; python=$2; export TF_DYNEMB_NATIVE_DIR=$PWD/$3
            copy=$(mktemp -d); trap 'rm -rf "$copy"' EXIT
            umask 022
            for file in $4; do mkdir -p "$copy/$(dirname "$file")"; cp -L "$file" "$copy/$file"; done
            cd "$copy"
            # The same bytes whenever it is packed.
            export SOURCE_DATE_EPOCH=315532800
            "$python" setup.py --quiet bdist_wheel --dist-dir "$out" >log 2>&1 || { cat log; exit 1; }
        """,
        arguments = [
            out.path,
            PYTHON,
            ctx.files.native[0].dirname,
            " ".join([file.path for file in ctx.files.srcs]),
        ],
        # What Python's own cross-compilation has for that.
        env = {"_PYTHON_HOST_PLATFORM": ctx.attr.platform} if ctx.attr.platform else {},
        mnemonic = "PythonWheel",
        progress_message = "Packing the wheel",
    )
    return [DefaultInfo(files = depset([out]))]

python_wheel = rule(
    implementation = _python_wheel_impl,
    doc = "A folder `dist` with one wheel in it.",
    attrs = {
        "native": attr.label_list(allow_files = True, doc = "What the build adds to the package; all in one folder."),
        "platform": attr.string(doc = "The platform that it is for, as Python names it; empty: this one."),
        "srcs": attr.label_list(allow_files = True, doc = "The Python package, setup.py and what it reads."),
    },
)
