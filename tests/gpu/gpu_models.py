"""The model of tests of GPUs: ids, their rows, pooled or side by side, and a dense layer."""

import keras

import tf_dynemb


def model_of(ids, dim, combiner=None, **options):
    """A model of so many ids an example, compiled, and its table; options are of the layer."""
    inputs = keras.Input((ids,), dtype="int64")
    uniform = keras.initializers.RandomUniform(-1, 1, seed=3)
    layer = tf_dynemb.keras.Embedding(dim, combiner=combiner, initializer=uniform, **options)
    rows = layer(inputs)
    if combiner is None:
        rows = keras.layers.Flatten()(rows)
    outputs = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))(rows)
    model = keras.Model(inputs, outputs)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05)), "mse")
    return model, layer.table
