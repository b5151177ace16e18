"""Loads the op library; `ops` holds its Python functions.

TensorFlow is not an API-stable C++ library, so the op library is built for one version of it. Beside
another one it would fail with a missing symbol, or worse; so the versions are compared first.
"""

from __future__ import annotations

import importlib
import pathlib
import types

LIBRARY_PATH = pathlib.Path(__file__).parent.parent / "_tf_dynemb_ops.so"

_REBUILD = (
    "rebuild it beside the TensorFlow that you use: `make build` in a checkout of tf_dynemb, or "
    "`pip install --force-reinstall --no-deps .`"
)


def _load() -> types.ModuleType:
    try:
        build = importlib.import_module("tf_dynemb._build_info")
    except ImportError:
        build = None
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise  # it is there, and lacks something
        wanted = f"=={build.TENSORFLOW_VERSION}" if build else ""
        raise ImportError(
            "tf_dynemb needs TensorFlow 2.16 or later, which is not installed here; "
            f"`pip install tensorflow{wanted}` (or tensorflow-cpu{wanted}) first"
        ) from error
    if build is None:
        raise ImportError(f"the op library of tf_dynemb has not been built; {_REBUILD}")
    if build.TENSORFLOW_VERSION != tf.__version__:
        raise ImportError(
            f"tf_dynemb was built for TensorFlow {build.TENSORFLOW_VERSION}, found TensorFlow "
            f"{tf.__version__}; install the wheel whose version ends with +tf{tf.__version__}, or "
            f"{_REBUILD}"
        )
    if not LIBRARY_PATH.exists():
        raise ImportError(f"{LIBRARY_PATH} is missing; {_REBUILD}")
    return tf.load_op_library(str(LIBRARY_PATH))


ops = _load()
