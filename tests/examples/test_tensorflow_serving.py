"""The ops in TensorFlow Serving's build, on a stand-in for its workspace.

The stand-in has the files that add_to_serving.sh changes, and repositories of the names that are used
there, which lead to the installed TensorFlow; of its headers each has those that are its own. Its
tensorflow_model_server is the program of examples/online/server, told of no op library.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import conftest
import keras
import pytest
import tensorflow as tf

import tf_dynemb

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "online"))

from online_api import Connection  # noqa: E402
from online_processes import started  # noqa: E402

HERE = pathlib.Path("examples/tensorflow_serving")
TARGET = "//tensorflow_serving/model_servers:tensorflow_model_server"
SERVER = "tensorflow_serving/model_servers/tensorflow_model_server"
CONFIGURED = ROOT / ".tf_dynemb.bazelrc"

pytestmark = pytest.mark.skipif(
    not CONFIGURED.exists(), reason="Bazel is not configured: run ./configure.sh, or make build"
)

RULE = '''
def _stand_in_impl(ctx):
    for name, target in ctx.attr.links.items():
        ctx.symlink(target, name)
    text = {"": """
cc_library(
    name = "all_of_it",
    srcs = %r,
    hdrs = glob(["include/**"], exclude_directories = 1),
    defines = %r,
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""" % (ctx.attr.libraries, ctx.attr.defines)}
    for target in ctx.attr.targets:
        package, _, name = target.partition(":")
        alias = 'alias(name = "%s", actual = "//:all_of_it", visibility = ["//visibility:public"])\\n'
        text[package] = text.get(package, "") + alias % name
    for package, build in text.items():
        ctx.file(package + "/BUILD" if package else "BUILD", build)

stand_in = repository_rule(
    implementation = _stand_in_impl,
    local = True,
    attrs = {
        "links": attr.string_dict(doc = "Of names in the repository to what is there."),
        "libraries": attr.string_list(),
        "defines": attr.string_list(),
        "targets": attr.string_list(doc = "PACKAGE:NAME, all of which have all of it."),
    },
)
'''

BUILD = """\
load("//tensorflow_serving:tensorflow_version.bzl", "if_v2")

SUPPORTED_TENSORFLOW_OPS = if_v2([]) + [
    "@curl//:curl",
]

cc_library(
    name = "server_lib",
    srcs = ["//examples/online/server:sources"],
    deps = [
        "@com_google_absl//absl/strings",
        "@com_google_protobuf//:protobuf",
        "@org_tensorflow//tensorflow/core:core_cpu",
    ] + SUPPORTED_TENSORFLOW_OPS,
)

cc_binary(
    name = "tensorflow_model_server",
    linkopts = ["-lcpp-httplib", "-pthread"],
    deps = [":server_lib"],
)
"""

SOURCES = """\
filegroup(
    name = "sources",
    srcs = glob(["*.h", "*.cc"]),
    visibility = ["//visibility:public"],
)
"""


def settings():
    """What configure.sh has found."""
    return dict(re.findall(r'--repo_env=(\w+)="(.*)"', CONFIGURED.read_text()))


def repositories():
    """The arguments of the stand-ins by name."""
    found = settings()
    include = pathlib.Path(found["TF_DYNEMB_TF_INCLUDE"])
    framework = pathlib.Path(found["TF_DYNEMB_TF_FRAMEWORK"])
    libraries = [framework, framework.with_name(framework.name.replace("_framework.", "_cc."))]
    others = {"absl", "google", "external"}
    own = [path for path in include.iterdir() if path.is_dir() and path.name not in others]
    return {
        "org_tensorflow": {
            "links": {f"include/{path.name}": str(path) for path in own}
            | {library.name: str(library) for library in libraries},
            "libraries": [library.name for library in libraries],
            "defines": found["TF_DYNEMB_TF_DEFINES"].split(),
            "targets": [f"tensorflow/core:{name}" for name in ("core_cpu", "framework", "lib")],
        },
        "com_google_absl": {
            "links": {"include/absl": str(include / "absl")},
            "targets": ["absl/status:status", "absl/strings:strings"],
        },
        "com_google_protobuf": {
            "links": {"include/google": str(include / "google")},
            "targets": [":protobuf"],
        },
        "curl": {
            "links": {"include/curl": str(include / "external" / "curl" / "include" / "curl")},
            "targets": [":curl"],
        },
    }


@pytest.fixture
def serving(tmp_path):
    """A workspace that looks like TensorFlow Serving's."""
    folder = tmp_path / "serving"
    servers = folder / "tensorflow_serving" / "model_servers"
    servers.mkdir(parents=True)
    workspace = ['workspace(name = "tf_serving")', 'load("//:stand_in.bzl", "stand_in")']
    for name, arguments in repositories().items():
        given = "".join(f"    {key} = {json.dumps(value)},\n" for key, value in arguments.items())
        workspace.append(f'stand_in(\n    name = "{name}",\n{given})')
    if bazel_command("--major") == "4":  # what its own rules load
        for stub in (ROOT / "third_party").iterdir():
            workspace.append(f'local_repository(name = "{stub.name}", path = "{stub}")')
    (folder / "WORKSPACE").write_text("\n".join(workspace) + "\n")
    (folder / "BUILD").touch()
    (folder / "stand_in.bzl").write_text(RULE)
    (servers.parent / "BUILD").touch()
    (servers.parent / "tensorflow_version.bzl").write_text("def if_v2(targets):\n    return targets\n")
    (servers / "BUILD").write_text(BUILD)
    # Whose sources name each other from the root of their workspace.
    shutil.copytree(ROOT / "examples" / "online" / "server", folder / "examples" / "online" / "server")
    (folder / "examples" / "online" / "server" / "BUILD").write_text(SOURCES)
    without_modules = [line for line in CONFIGURED.read_text().splitlines() if "=" not in line[1:]]
    lines = [*without_modules, "build -c opt", "build --cxxopt=-std=c++17"]
    lines.append("build --strategy=CppCompile=local")  # a sandbox links TensorFlow's 11,000 headers
    (folder / ".bazelrc").write_text("\n".join(lines) + "\n")
    yield folder
    if (tmp_path / "out").exists():
        bazel(folder, "shutdown")


def bazel_command(option):
    return subprocess.check_output([ROOT / "bazel" / "bazel.sh", option], text=True).strip()


def bazel(folder, *arguments):
    """Runs Bazel in a workspace."""
    command = bazel_command("--command").split()
    return subprocess.run(
        [*command, f"--output_base={folder.parent / 'out'}", *arguments],
        cwd=folder,
        env=os.environ | {"CC": settings()["CC"]},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def add_to(tmp_path):
    """Runs add_to_serving.sh of what the Dockerfile copies of this checkout."""
    copied = tmp_path / "tf_dynemb"
    for line in (ROOT / HERE / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            _, source, target = line.split()
            (copied / target).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, copied / target)
    script = copied / HERE / "add_to_serving.sh"
    return lambda folder: subprocess.run([script, folder], capture_output=True, text=True, check=False)


def contents(folder):
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_all_that_the_ops_need_is_there(serving, add_to):
    assert add_to(serving).returncode == 0
    built = bazel(serving, "build", "--nobuild", "//tensorflow_serving/model_servers:all")
    assert built.returncode == 0, built.stderr
    found = bazel(serving, "query", f"deps({TARGET})", "--output=package").stdout.split()
    assert {"@tf_dynemb//cc", "@tf_dynemb//cc/kernels", "@tf_dynemb//cc/ops"} <= set(found)
    assert not [package for package in found if "googletest" in package or "gpu_table" in package]


def test_it_compiles_for_opt_without_werror(serving, add_to):
    assert add_to(serving).returncode == 0
    kernels = bazel(
        serving, "aquery", "mnemonic(CppCompile, @tf_dynemb//cc/kernels)", "--output=text"
    ).stdout
    commands = re.findall(r"Command Line: \((.*?)\)\n", kernels, re.DOTALL)
    compiles = [command for command in commands if "-Werror" in command]
    assert compiles
    for command in compiles:
        assert command.index("-Wno-error") > command.index("-Werror")


@pytest.mark.soak
@pytest.mark.skipif(
    conftest.SOAK_FACTOR < 100, reason="compiles the op library anew, for minutes: `make soak` does"
)
def test_a_server_with_the_ops_linked_in_serves_and_follows(serving, add_to, tmp_path):
    assert add_to(serving).returncode == 0
    built = bazel(serving, "build", TARGET)
    assert built.returncode == 0, built.stderr

    ids = keras.Input((), dtype="int64", name="ids")
    table = tf_dynemb.Embedding(2, name="users")
    model = keras.Model(ids, table(ids))
    with tf_dynemb.for_serving(follow=tmp_path / "feed"):
        model.export(tmp_path / "model", verbose=False)
    with (
        tf_dynemb.serving.Publisher(model, tmp_path / "feed") as publisher,
        started(
            [serving / f"bazel-bin/{SERVER}", f"--model=m={tmp_path / 'model'}", "--port=0"],
            tmp_path,
            "serving",
        ) as (_, url),
    ):
        server = Connection(url)
        table.table.upsert(tf.constant([7], tf.int64), tf.constant([[1.5, -2.0]]))
        publisher.publish()
        until = time.monotonic() + 120
        while predict(server, [7]) != [[1.5, -2.0]]:
            assert time.monotonic() < until, server.send("GET")


def predict(server, ids):
    body = json.dumps({"instances": ids}).encode()
    status, text = server.send("POST", ":predict", body)
    assert status == 200, text
    return json.loads(text)["predictions"]


def test_a_checkout_is_changed_once(serving, add_to):
    assert add_to(serving).returncode == 0
    before = contents(serving)
    again = add_to(serving)
    assert again.returncode == 1
    assert "it has tf_dynemb already" in again.stderr
    assert contents(serving) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("WORKSPACE", None, None, "want a checkout of TensorFlow Serving"),
        ("tensorflow_serving/model_servers/BUILD", None, None, "want a checkout of TensorFlow Serving"),
        (
            "tensorflow_serving/model_servers/BUILD",
            "SUPPORTED_TENSORFLOW_OPS = ",
            "OPS = ",
            "add @tf_dynemb//cc:tf_dynemb_ops_static to the server's deps by hand",
        ),
    ],
    ids=["no workspace", "no server", "no list of ops"],
)
def test_another_checkout_is_not_changed(serving, add_to, file, old, new, message):
    place = serving / file
    if old is None:
        place.unlink()
    else:
        place.write_text(place.read_text().replace(old, new))
    before = contents(serving)
    done = add_to(serving)
    assert done.returncode == 1
    assert message in done.stderr
    assert contents(serving) == before
