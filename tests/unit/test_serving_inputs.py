"""Models of every kind of input and table, served while they are trained: what follows is the trainer.

Of rows of 8 bits it is a model with the trainer's rows rounded by NumPy, in a plain table.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from feed_models import quantized, wait_for
from table_rows import int64

import tf_dynemb
from tf_dynemb.policies import LRU, TTL, Score
from tf_dynemb.serving import Publisher
from tf_dynemb.storage import Disk, HostMemory

NUMBERS = tf.RaggedTensorSpec([None, None], tf.int64, 1, tf.int64)
STRINGS = tf.RaggedTensorSpec([None, None], tf.string, 1, tf.int64)


def ragged(random, strings=False):
    """Bags of 0 to 5 ids of 200."""
    sizes = random.integers(0, 6, 24)
    ids = random.integers(0, 200, int(sizes.sum()))
    flat = tf.constant([f"id {i}" for i in ids] if strings else ids, tf.string if strings else tf.int64)
    return tf.RaggedTensor.from_row_lengths(flat, tf.constant(sizes, tf.int64))


def dense(random):
    return int64(random.integers(0, 200, 24))


def bags(**options):
    of_bags = tf_dynemb.keras.Embedding(
        4, initializer="uniform", combiner="mean", name="rows", **options
    )
    dtype = "string" if options.get("keep_keys") else "int64"
    ids = keras.Input((None,), dtype=dtype, ragged=True, name="ids")
    return keras.Model(ids, keras.layers.Dense(2, name="dense")(of_bags(ids)))


def one_id(**options):
    rows = tf_dynemb.keras.Embedding(4, initializer="uniform", name="rows", **options)
    ids = keras.Input((), dtype="int64", name="ids")
    return keras.Model(ids, keras.layers.Dense(2, name="dense")(rows(ids)))


def on_disk(path):
    return {"storage": [HostMemory(44_000), Disk(path)], "devices": ["/CPU:0"]}


# The model with its table's options, what it is given, and the model with a plain table.
KINDS = {
    "ragged ids": (lambda path: bags(), ragged, bags),
    "strings": (
        lambda path: bags(key_dtype="string", keep_keys=True),
        lambda random: ragged(random, strings=True),
        lambda: bags(key_dtype="string", keep_keys=True),
    ),
    "bfloat16": (lambda path: one_id(dtype="bfloat16"), dense, lambda: one_id(dtype="bfloat16")),
    "storage": (lambda path: one_id(**on_disk(path)), dense, one_id),
    "LRU": (lambda path: one_id(max_rows=60, eviction=LRU()), dense, one_id),
    "LRU, storage": (
        lambda path: one_id(max_rows=60, eviction=LRU(), **on_disk(path)),
        dense,
        one_id,
    ),
    "TTL, ragged ids": (lambda path: bags(eviction=TTL(steps=3)), ragged, bags),
    "Score": (lambda path: one_id(max_rows=60, eviction=Score(lambda ids: ids % 37)), dense, one_id),
}


def make_again(make, *path):
    """With the initial values of the time before."""
    keras.utils.set_random_seed(3)
    return make(*path)


def plain(model, make, rounded):
    """A model of its own with the rows and dense weights of another one."""
    other = make_again(make)
    keys, values = model.get_layer("rows").table.export()
    rows = np.array([rounded(row) for row in values.numpy().astype(np.float64)]).reshape(values.shape)
    table = other.get_layer("rows").table
    table.upsert(keys, tf.cast(rows, table.value_dtype))
    other.get_layer("dense").set_weights(model.get_layer("dense").get_weights())
    return other


@pytest.mark.parametrize("value_dtype", [None, "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_is_the_trainer(kind, value_dtype, tmp_path):
    make, draw, like = KINDS[kind]
    random = np.random.default_rng(5)
    model = make_again(make, tmp_path / "disk")
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    spec = {ragged: NUMBERS, dense: tf.TensorSpec([None], tf.int64)}.get(draw, STRINGS)
    serve = tf.function(lambda ids: {"output": model(ids)}, input_signature=[spec])
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.005):
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serve", tf_dynemb.serving.one_generation(serve))
        archive.write_out(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    rounded = quantized if value_dtype == "int8" else lambda row: row
    with Publisher(model, tmp_path / "feed", value_dtype=value_dtype) as publisher:
        for number in range(1, 8):
            for _ in range(2):
                model.train_on_batch(draw(random), np.ones((24, 2), np.float32))
            if number == 4:
                model.get_layer("rows").table.remove(model.get_layer("rows").table.export()[0][:9])
            publisher.publish()
            assert wait_for(served, number).errors == 0
            ids = draw(random)
            want = plain(model, like, rounded)(ids)
            np.testing.assert_array_equal(served.serve(ids)["output"], want)
    counts = model.get_layer("rows").table.metrics()
    assert counts["rows"] <= 60 if "LRU" in kind or kind == "Score" else counts["rows"] > 60
    assert counts["rows_below"] > 0 if "storage" in kind else "rows_below" not in counts
