"""Runs the examples in the docstrings of all modules of the package."""

import doctest
import importlib
import pkgutil

import pytest
from keras_rs_here import need_keras_rs

import tf_dynemb


def modules():
    # _build_info is written by the build and has nothing to say.
    names = [module.name for module in pkgutil.walk_packages(tf_dynemb.__path__, "tf_dynemb.")]
    return [name for name in names if not name.rpartition(".")[2].startswith("_")]


@pytest.mark.parametrize("name", modules())
def test_examples(name, request):
    if name.startswith("tf_dynemb.redis"):
        request.getfixturevalue("redis_of_examples")
    if name == "tf_dynemb.compat.keras_rs":
        need_keras_rs()
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def test_the_public_names_have_examples():
    """Classes and functions that users call, so that a docstring cannot lose its example unseen."""
    finder = doctest.DocTestFinder(recurse=False)
    for name in tf_dynemb.__all__:
        thing = getattr(tf_dynemb, name)
        if callable(thing):
            (test,) = finder.find(thing, name)
            assert test.examples, name
