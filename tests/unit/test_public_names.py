"""The public names of the package, and nothing beside them."""

import importlib
import subprocess
import sys

import pytest
from keras_rs_here import need_keras_rs

import tf_dynemb

NAMES = """
All2AllDenseEmbedding DynamicEmbeddingOptimizer Embedding EmbeddingBag EmbeddingBagCollection
EmbeddingBagConfig EmbeddingCollection EmbeddingConfig FrequencyRestrictPolicy JaggedTensor
KeyedJaggedTensor KeyedTensor RestrictPolicy RowwiseAdagrad TableConfig TimestampRestrictPolicy Variable
compat distribute embedding_lookup embedding_lookup_sparse embedding_lookup_unique
fingerprint for_serving get_variable initializers keras policies
safe_embedding_lookup_sparse serving snapshot storage
""".split()


# The modules that documentation imports names of.
MODULES = """
keras keras.callbacks keras.layers keras.optimizers distribute snapshot initializers policies serving
storage gpu jagged redis prometheus compat compat.tfra compat.tfra.keras compat.tfra.keras.layers
compat.torchrec compat.sok compat.one_embedding compat.keras_rs
""".split()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_shows_its_public_names_alone(name):
    if name in ("compat", "compat.keras_rs"):
        need_keras_rs()
    module = importlib.import_module(f"tf_dynemb.{name}")
    assert dir(module) == sorted(module.__all__) != []
    assert all(hasattr(module, each) for each in module.__all__)


def test_dialects_are_imported_when_they_are_asked_for():
    program = """
import sys, tf_dynemb
assert not any(name.startswith("tf_dynemb.compat.") for name in sys.modules)
assert tf_dynemb.compat.tfra.get_variable
assert "tf_dynemb.compat.sok" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'hugectr', want one of"):
        tf_dynemb.compat.hugectr  # noqa: B018


def test_the_names_of_the_package():
    assert tf_dynemb.__all__ == dir(tf_dynemb) == sorted(tf_dynemb.__all__) == NAMES
    assert all(getattr(tf_dynemb, name).__doc__ for name in NAMES)
    assert tf_dynemb.__version__


def test_the_layers_are_in_the_module_of_keras_layers_too():
    layers = tf_dynemb.keras.layers
    assert layers.__all__ == ["All2AllDenseEmbedding", "Embedding", "EmbeddingBag"]
    for name in layers.__all__:
        assert getattr(layers, name) is getattr(tf_dynemb, name)


def test_the_optimizers_are_in_the_module_of_keras_optimizers():
    optimizers = tf_dynemb.keras.optimizers
    names = [*"DynamicEmbeddingOptimizer LossScaleOptimizer RowwiseAdagrad SmartDecayAdam".split()]
    assert optimizers.__all__ == [*names, "TableOptimizerConfig"]
    for name in ("DynamicEmbeddingOptimizer", "RowwiseAdagrad"):
        assert getattr(optimizers, name) is getattr(tf_dynemb, name)
