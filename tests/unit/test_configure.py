"""What configure.sh makes of the CUDA toolkits that it may find."""

import functools
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """This Python, which says once what of TensorFlow configure.sh asks it, and then the same again."""
    folder = tmp_path_factory.mktemp("python")
    script, said = folder / "python", folder / "said"
    script.write_text(
        f'#!/bin/sh\nset -e\n[ -e {said} ] || {shlex.quote(sys.executable)} "$@" > {said}.new\n'
        f"[ -e {said} ] || mv {said}.new {said}\ncat {said}\n"
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def configure(python):
    """Runs configure.sh. Returns the process, and the settings that it has written."""
    return functools.partial(run_configure, python)


def run_configure(python, output, *arguments, **environment):
    run = subprocess.run(
        [ROOT / "configure.sh", f"--python={python}", f"--output={output}", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    settings = output.read_text() if output.exists() else ""
    pairs = [line.partition("=")[2].split("=", 1) for line in settings.splitlines() if "_env=" in line]
    return run, {name: value.strip('"') for name, value in pairs}


@pytest.fixture
def output(tmp_path):
    return tmp_path / "bazelrc"


@pytest.fixture
def toolkit(tmp_path):
    """Makes a folder that looks like CUDA of a version, with a compiler that ends with a status."""

    def make(version, status=0, library="lib64"):
        root = tmp_path / "cuda"
        for folder in ("bin", "include", "lib64"):
            (root / folder).mkdir(parents=True)
        (root / "include/cuda_runtime.h").touch()
        if library:
            (root / library / "libcudart_static.a").touch()
        nvcc = root / "bin/nvcc"
        said = f"Cuda compilation tools, release {version}, V{version}.99"
        nvcc.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "{said}" && exit\n'
            f'[ {status} = 0 ] || echo "t.cu: error: unsupported GNU version" >&2\nexit {status}\n'
        )
        nvcc.chmod(0o755)
        return root

    return make


def test_a_compiler_that_compiles_no_cpp_is_an_error(configure, output, tmp_path):
    """As gcc without g++, which is a package of its own."""
    compiler = tmp_path / "gcc"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "gcc 12.2.0" && exit\n'
        "echo \"gcc: fatal error: cannot execute 'cc1plus'\" >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    run, _ = configure(output, f"--cc={compiler}", "--cuda=none")
    assert run.returncode != 0 and not output.exists()
    assert (
        "does not compile C++17: gcc: fatal error: cannot execute 'cc1plus'; install g++" in run.stderr
    )


def test_a_bazel_without_java_is_an_error(tmp_path):
    """Debian's has none of its own."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("env", "bash", "grep", "tail", "dirname", "readlink"):
        (commands / name).symlink_to(shutil.which(name))
    for name, answer in (
        ("bazel", "bazel no_version"),
        ("dpkg-query", "bazel-bootstrap: /usr/bin/bazel"),
    ):
        (commands / name).write_text(f"#!{shutil.which('sh')}\necho '{answer}'\n")
        (commands / name).chmod(0o755)
    run = subprocess.run(
        [ROOT / "bazel/bazel.sh", "--major"],
        env={"PATH": str(commands)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "bazel (needs Java: apt-get install default-jdk-headless)" in run.stderr


def test_none_is_none(configure, output):
    run, settings = configure(output, "--cuda=none")
    assert run.returncode == 0, run.stderr
    assert settings["TF_DYNEMB_CUDA"] == settings["TF_DYNEMB_CUDA_VERSION"] == ""
    assert run.stdout.strip().endswith("CUDA none")


def test_a_toolkit_that_works(configure, output, toolkit):
    root = toolkit("12.4")
    run, settings = configure(output, f"--cuda={root}")
    assert run.returncode == 0, run.stderr
    assert settings["TF_DYNEMB_CUDA"] == str(root)
    assert settings["TF_DYNEMB_CUDA_LIB"] == str(root / "lib64")
    assert settings["TF_DYNEMB_CUDA_VERSION"] == "12.4"
    assert run.stdout.strip().endswith(f"CUDA 12.4 in {root}")


PROBLEMS = [
    ({"version": "11.8"}, "it is CUDA 11.8, and 12 is the oldest that will do"),
    ({"version": "12.4", "library": ""}, "libcudart_static.a is not there"),
    ({"version": "12.4", "status": 1}, "error: unsupported GNU version"),
    ({"version": "", "status": 0}, "its nvcc does not say its version"),
]
KINDS = ["old", "no library", "another compiler", "no version"]


@pytest.mark.parametrize("kind, problem", PROBLEMS, ids=KINDS)
def test_one_that_does_not_work_is_an_error_where_it_was_named(
    configure, output, toolkit, kind, problem
):
    root = toolkit(**kind)
    run, settings = configure(output, f"--cuda={root}", CUDA_HOME=str(root))
    assert run.returncode == 1 and not settings
    assert f"configure.sh: --cuda={root}: " in run.stderr and problem in run.stderr


@pytest.mark.parametrize("kind, problem", PROBLEMS, ids=KINDS)
def test_and_a_build_for_the_cpu_where_it_was_found(configure, output, toolkit, kind, problem):
    root = toolkit(**kind)
    run, settings = configure(output, CUDA_HOME=str(root))
    assert run.returncode == 0
    assert settings["TF_DYNEMB_CUDA"] == settings["TF_DYNEMB_CUDA_VERSION"] == ""
    assert run.stdout.strip().endswith("CUDA none")
    assert f"building for the CPU alone: {root} cannot be used: " in run.stderr
    assert problem in run.stderr


def test_an_nvcc_that_fails(configure, output, toolkit):
    root = toolkit("12.4")
    (root / "bin/nvcc").write_text("#!/bin/sh\nexit 1\n")
    run, settings = configure(output, CUDA_HOME=str(root))
    assert run.returncode == 0 and settings["TF_DYNEMB_CUDA"] == ""
    assert "its nvcc does not say its version" in run.stderr


@pytest.mark.parametrize("home", ["/nowhere", "/no where"])
def test_a_home_of_cuda_that_is_not_there_is_said(configure, output, home):
    run, settings = configure(output, CUDA_HOME=home)
    assert run.returncode == 0 and settings["TF_DYNEMB_CUDA"] == ""
    assert f"{home} cannot be used: bin/nvcc or include/cuda_runtime.h is not there" in run.stderr


def test_a_home_of_cuda_may_be_none(configure, output):
    run, settings = configure(output, CUDA_HOME="none")
    assert run.returncode == 0 and settings["TF_DYNEMB_CUDA"] == "" and not run.stderr


def test_a_relative_path_is_one_from_the_root_of_the_checkout(configure, output, toolkit):
    relative = os.path.relpath(toolkit("12.4"), ROOT)
    _, settings = configure(output, f"--cuda={relative}")
    assert settings["TF_DYNEMB_CUDA"] == f"{ROOT}/{relative}"


def test_no_toolkit_in_the_folder_that_was_named(configure, output, tmp_path):
    run, settings = configure(output, f"--cuda={tmp_path}")
    assert run.returncode == 1 and not settings
    assert "bin/nvcc or include/cuda_runtime.h is not there" in run.stderr
