"""Builds the wheel: the Python sources and the op library.

Bazel makes the op library against the TensorFlow that is installed. `pip install .` works with and
without build isolation: isolation hides the installed TensorFlow from this process, so an interpreter
outside of it is asked. No TensorFlow is ever installed from here. The metadata is in pyproject.toml.

Environment:
  TF_DYNEMB_PYTHON      a Python whose TensorFlow to build against, where the search below finds
                        another or none.
  CUDA_HOME             a CUDA toolkit for the code for GPUs, or `none`. Where it is not set, the toolkit
                        that configure.sh finds, if this TensorFlow can use GPUs.
  TF_DYNEMB_NATIVE_DIR  a folder with the files of NATIVE, built already; Bazel is then not called
                        (//:wheel does this). The version then ends with that of TensorFlow, as
                        0.1.0+tf2.21.0, so that a folder or an index can hold a wheel for each.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    raise SystemExit(
        "\ntf_dynemb is packed by setuptools 77 or later, which makes wheels itself: `pip install "
        "--upgrade setuptools`, or leave out --no-build-isolation."
    ) from None

ROOT = Path(__file__).resolve().parent
NATIVE = ("_tf_dynemb_ops.so", "_build_info.py")
NATIVE_DIR = os.environ.get("TF_DYNEMB_NATIVE_DIR")
TENSORFLOWS = {  # by the name of an extra
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow-cpu",
    "tensorflow-gpu": "tensorflow[and-cuda]",
}


def outer_environment():
    """Returns the environment without what pip's build isolation puts into it."""
    isolation = ("PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in isolation}


def find_python():
    """Returns the first interpreter that has a TensorFlow, seen from outside of build isolation."""
    candidates = [os.environ.get("TF_DYNEMB_PYTHON"), sys.executable]
    for environment in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environment in os.environ:
            candidates.append(os.path.join(os.environ[environment], "bin", "python"))
    candidates.append(shutil.which("python3"))
    # From a folder where no `tensorflow` lies about.
    probe = "import importlib.util as u, sys; sys.exit(u.find_spec('tensorflow') is None)"
    tried = []
    for python in candidates:
        if not python or python in tried:
            continue
        tried.append(python)
        found = subprocess.run([python, "-c", probe], env=outer_environment(), cwd="/", check=False)
        if found.returncode == 0:
            return python
    raise SystemExit(
        "\ntf_dynemb is built against the TensorFlow that is installed, and none was found (looked "
        f"with: {', '.join(tried)}).\nInstall the one that you want, for example `pip install "
        "tensorflow-cpu`, and try again; or set TF_DYNEMB_PYTHON to a Python that has it."
    )


def run(command):
    """Runs a command in the source tree; SystemExit if it fails."""
    print("tf_dynemb:", *command, flush=True)
    if subprocess.run(command, cwd=ROOT, env=outer_environment(), check=False).returncode:
        raise SystemExit(
            f"\ntf_dynemb: {command[0]} failed, see above; docs/building.md says what it needs."
        )


def cuda_option(python):
    """Returns the options of configure.sh that say whether to compile code for GPUs."""
    if "CUDA_HOME" in os.environ:
        return []
    probe = "import tensorflow as tf, sys; sys.exit(not tf.test.is_built_with_cuda())"
    environment = {**outer_environment(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    if subprocess.run([python, "-c", probe], env=environment, cwd="/", check=False).returncode == 0:
        return []
    print(
        "tf_dynemb: without code for GPUs, which this TensorFlow cannot use; CUDA_HOME=/path/to/cuda "
        "compiles it nevertheless",
        flush=True,
    )
    return ["--cuda=none"]


def build_native():
    """Builds the op library with Bazel and returns the folder it is in."""
    python = find_python()
    # A bazelrc of its own: this Python need not be the one that `make` has configured.
    bazelrc = ROOT / "build" / "setup.bazelrc"
    bazelrc.parent.mkdir(exist_ok=True)
    commands = (
        ["./configure.sh", f"--python={python}", f"--output={bazelrc}", *cuda_option(python)],
        ["bazel/bazel.sh", f"--bazelrc={bazelrc}", "build", "//:native"],
    )
    try:
        for command in commands:
            run(command)
    finally:
        # Bazel's server would stay for hours.
        subprocess.run(["bazel/bazel.sh", "shutdown"], cwd=ROOT, capture_output=True, check=False)
    return ROOT / "bazel-bin" / "tf_dynemb"


def build_info(native):
    """Returns what the library in a folder was built with, by name; nothing without a folder."""
    built = {}
    if native:
        exec((Path(native) / "_build_info.py").read_text(), built)
    return built


def tensorflow_version(built):
    """Returns TensorFlow's version as pip names it, 2.22.0rc0 for 2.22.0-rc0; "" if not known."""
    return built.get("TENSORFLOW_VERSION", "").replace("-", "")


def version_label():
    """Returns what the version ends with."""
    version = tensorflow_version(build_info(NATIVE_DIR))
    return f"+tf{version}" if version else ""


class BuildPackage(build_py):
    """Adds the native files to the package; in an editable install, to the source tree."""

    def run(self):
        """Builds, then copies."""
        native = Path(NATIVE_DIR or build_native())
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # modules that are no more
        self.distribution.describe(build_info(native))  # before the metadata is written
        super().run()
        package = ROOT if self.editable_mode else Path(self.build_lib)
        for name in NATIVE:
            target = package / "tf_dynemb" / name
            target.unlink(missing_ok=True)
            shutil.copyfile(native / name, target)


class PlatformWheel(bdist_wheel):
    """Tags the wheel: this platform, but any Python 3, for the op library calls TensorFlow alone."""

    def get_tag(self):
        """Returns (python, abi, platform)."""
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    """A distribution with native code that setuptools did not compile itself."""

    def has_ext_modules(self):
        """Says so."""
        return True

    def parse_config_files(self, *args, **kwargs):
        """Adds what is known of a library that is built already."""
        super().parse_config_files(*args, **kwargs)
        self.describe(build_info(NATIVE_DIR))

    def describe(self, built):
        """Adds to the metadata what depends on the library.

        That is the license of CUDA's runtime, if it is in it (NOTICE), and extras by which pip installs
        the TensorFlow that it was built beside, or takes the wheel for one: tf_dynemb[tensorflow].
        """
        cuda = " AND LicenseRef-NVIDIA-CUDA-EULA"
        license_expression = self.metadata.license_expression
        if built.get("CUDA_VERSION") and license_expression and cuda not in license_expression:
            self.metadata.license_expression += cuda
        version = tensorflow_version(built)
        if version and self.extras_require:
            for extra, package in TENSORFLOWS.items():
                self.extras_require[extra] = [f"{package}=={version}"]
            self.metadata.extras_require = self.extras_require
        if "rc" in version:  # which wants a nightly Keras, a package of another name
            needs = [need for need in self.install_requires if not need.startswith("keras")]
            self.install_requires = self.metadata.install_requires = needs


setup(
    cmdclass={"build_py": BuildPackage, "bdist_wheel": PlatformWheel},
    distclass=PlatformDistribution,
    options={"egg_info": {"tag_build": version_label()}},
)
