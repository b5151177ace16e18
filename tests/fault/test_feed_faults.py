"""Fault injection: each operation on a feed's files fails in turn, of publishers and followers."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import SOAK_FACTOR

HERE = pathlib.Path(__file__).parent
EVERY = max(1, 11 // SOAK_FACTOR)


@pytest.fixture(scope="module")
def failing_files(tmp_path_factory):
    """The library of failing_files.cc."""
    library = tmp_path_factory.mktemp("failing") / "failing_files.so"
    compilers = filter(None, [os.environ.get("CXX"), "g++", "clang++"])
    (compiler, *_) = filter(None, map(shutil.which, compilers))
    source = HERE / "failing_files.cc"
    subprocess.run(
        [compiler, "-std=c++17", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True
    )
    return library


@pytest.mark.soak
@pytest.mark.parametrize("scene", ["publish", "poll", "load", "serve"])
def test_any_operation_that_fails(scene, failing_files, tmp_path):
    arguments = [HERE / "feed_faults.py", scene, tmp_path, str(EVERY)]
    paths = os.pathsep.join(map(str, (HERE, HERE.parent, *sys.path)))
    environment = os.environ | {"LD_PRELOAD": str(failing_files), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = list(map(int, done.stdout.split()))
    print(scene, tried)
    assert len(tried) == 3 and 30 <= min(tried) * EVERY <= max(tried) * EVERY < 300
