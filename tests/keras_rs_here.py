"""Skips what needs keras-rs where it is not to be had.

It is for Python from 3.11 on, and its versions that have a DistributedEmbedding for TensorFlow from 2.17
on: beside an older one their import fails.
"""

import importlib

import pytest


def need_keras_rs() -> None:
    """Skips the test, or the module that is being imported, where keras_rs' own import fails."""
    try:
        importlib.import_module("keras_rs.layers").DistributedEmbedding  # noqa: B018
    except (ImportError, AttributeError) as error:
        reason = "needs keras-rs, which is not for this version of Python or TensorFlow"
        pytest.skip(f"{reason}: {error}", allow_module_level=True)
