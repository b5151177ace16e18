"""What a user reads when the package cannot work, and that importing it changes nobody else."""

import subprocess
import sys

import tensorflow as tf


def import_after(preparation: str) -> str:
    """What importing tf_dynemb prints in a new process, after some lines of preparation."""
    script = f"import sys, types\n{preparation}\nimport tf_dynemb"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return run.stderr


def test_without_tensorflow_it_says_so():
    error = import_after("sys.modules['tensorflow'] = None")
    assert "ImportError: tf_dynemb needs TensorFlow 2.16 or later" in error
    assert f"pip install tensorflow=={tf.__version__}" in error


def test_beside_a_tensorflow_that_lacks_something_it_says_what():
    error = import_after(
        "class Broken:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'tensorflow':\n"
        "            raise ModuleNotFoundError('No module named astunparse', name='astunparse')\n"
        "sys.meta_path.insert(0, Broken())"
    )
    assert error.strip().endswith("ModuleNotFoundError: No module named astunparse")
    assert "pip install tensorflow" not in error


def test_beside_another_tensorflow_it_names_both_versions():
    error = import_after(
        "sys.modules['tf_dynemb._build_info'] = types.SimpleNamespace(TENSORFLOW_VERSION='2.3.4')"
    )
    last = error.strip().splitlines()[-1]
    assert f"built for TensorFlow 2.3.4, found TensorFlow {tf.__version__}" in last
    assert "make build" in last


def test_not_built_it_says_how_to():
    error = import_after("sys.modules['tf_dynemb._build_info'] = None")
    assert "has not been built" in error
    assert "make build" in error


def test_importing_draws_no_random_numbers():
    """Of a program that has seeded them the numbers stay."""
    script = (
        "import random, keras, numpy as np, tensorflow\n"
        "keras.utils.set_random_seed(3)\n"
        "before = random.getstate(), np.random.get_state()[1].tolist()\n"
        "import tf_dynemb\n"
        "assert (random.getstate(), np.random.get_state()[1].tolist()) == before"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
