"""The public names of the package, and nothing beside them."""

import tf_dynemb

NAMES = """
All2AllDenseEmbedding DynamicEmbeddingOptimizer Embedding EmbeddingBag EmbeddingBagCollection
EmbeddingBagConfig EmbeddingCollection EmbeddingConfig FrequencyRestrictPolicy JaggedTensor
KeyedJaggedTensor KeyedTensor RestrictPolicy RowwiseAdagrad TableConfig TimestampRestrictPolicy Variable
compat distribute embedding_lookup embedding_lookup_sparse embedding_lookup_unique
fingerprint for_serving get_variable initializers keras policies
safe_embedding_lookup_sparse serving snapshot storage
""".split()


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
