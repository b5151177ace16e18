"""Steps in a Pipeline and without one, in several processes; test_pipeline compares what comes of them.

pipeline_program.py FOLDER: each process writes FOLDER/NUMBER, a pickle.
"""

import os
import pickle
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()
INDEX, COUNT = STRATEGY.cluster_resolver.task_id, STRATEGY.num_replicas_in_sync

import tf_dynemb  # noqa: E402  after the strategy, which must be made before any op runs
from tf_dynemb.distribute import Pipeline, fit  # noqa: E402

EXAMPLES, BATCH = 45, 8  # the last batch has 5
_NUMBERS = np.random.default_rng(3)
IDS = _NUMBERS.integers(-9, 9, (EXAMPLES, 2)) * (2**40 + 1)
WORDS = tf.RaggedTensor.from_row_lengths(
    [f"word {n}" for n in _NUMBERS.integers(0, 12, 60)],
    np.bincount(_NUMBERS.integers(0, EXAMPLES, 60), minlength=EXAMPLES),
)
STARS = _NUMBERS.integers(-3, 4, (EXAMPLES, 1)).astype(np.float32)


def rows_of(table):
    keys, values = table.export()
    return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


def exchanges(table):
    return int(table.exchange.metrics()["exchanges"])


def model_of_layers():
    """Users and the friends of users share a table; a vocabulary says which items have rows."""
    keras.utils.set_random_seed(5)
    begin = keras.initializers.RandomUniform(seed=5)
    with STRATEGY.scope():
        ids = keras.Input((2,), dtype="int64", name="ids")
        words = keras.Input((None,), dtype="string", ragged=True, name="words")
        users = tf_dynemb.keras.Embedding(4, initializer=begin, name="users")
        friends = tf_dynemb.keras.Embedding(table=users, combiner="mean", name="friends")
        known = keras.layers.StringLookup(vocabulary=[f"word {n}" for n in range(9)], output_mode="int")
        tags = tf_dynemb.keras.Embedding(
            3, initializer=begin, key_dtype="string", combiner="sum", name="tags"
        )
        kinds = tf_dynemb.keras.Embedding(2, initializer=begin, combiner="sum", name="kinds")
        together = keras.layers.Concatenate()(
            [keras.layers.Flatten()(users(ids)), friends(ids), tags(words), kinds(known(words))]
        )
        dropped = keras.layers.Dropout(0.2, seed=7)(together)
        model = keras.Model([ids, words], keras.layers.Dense(1)(dropped))
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.01))
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def fitted():
    """What fit makes of a model with a pipeline and without."""
    data = tf.data.Dataset.from_tensor_slices(({"ids": IDS, "words": WORDS}, STARS)).batch(BATCH)
    result = {}
    for pipeline in (True, False):
        model = model_of_layers()
        tables = [model.get_layer(name).table for name in ("users", "tags", "kinds")]
        history = fit(model, data, epochs=1, verbose=0, pipeline=pipeline)
        before = exchanges(tables[0])
        more = fit(model, data, epochs=2, validation_data=data, verbose=0, pipeline=pipeline)
        evaluated = exchanges(tables[0])
        tf_dynemb.distribute.evaluate(model, data, verbose=0)
        result[pipeline] = {
            "history": [history.history, more.history],
            "rows": [rows_of(table) for table in tables],
            "dense": [weight.numpy().tolist() for weight in model.layers[-1].weights],
            # Of two epochs of six steps, without their two validations.
            "exchanges": evaluated - before - 2 * (exchanges(tables[0]) - evaluated),
        }
    return result


class Loop:
    """A training of a table by a loop of one's own.

    Args:
        name: of the table.
        look_up: function of (layer, ids), which reads the rows of the ids in its own way.
        **options: of the layer.
    """

    def __init__(self, name, look_up, **options):
        with STRATEGY.scope():
            if options.get("use_hashtable", True):
                self.layer = tf_dynemb.keras.Embedding(2, initializer="ones", name=name)
            else:
                self.layer = tf_dynemb.All2AllDenseEmbedding(
                    6 * COUNT, 2, 1, 1, dynamic_input=True, initializer="ones", name=name, **options
                )
            self.optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.25))
            self.optimizer.build([self.layer.table.handle])
        self.look_up = look_up

    def step(self, ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.look_up(self.layer, ids) ** 2) / BATCH
        handle = self.layer.table.handle
        self.optimizer.apply([tape.gradient(loss, handle)], [handle])
        return loss

    def run(self, batches, pipeline, stale_rows=False):
        """Losses, rows, exchanges of a step, and an error."""
        before = exchanges(self.layer.table)
        losses, error = [], ""
        if pipeline:
            steps = Pipeline(self.step, STRATEGY, stale_rows).run(batches)
        else:
            step = tf.function(lambda ids: STRATEGY.run(self.step, (ids,)), reduce_retracing=True)
            steps = map(step, batches)
        try:
            for loss in steps:
                losses.append(float(loss))
        except tf.errors.InvalidArgumentError as caught:
            error = caught.message
        return {
            "losses": losses,
            "rows": rows_of(self.layer.table),
            "exchanges": exchanges(self.layer.table) - before,
            "error": error,
        }


def of_chained_ids(layer, ids):
    """The second lookup is of ids that the rows of the first give."""
    rows = layer(ids)
    return rows + layer(tf.cast(tf.round(rows[:, 0]), tf.int64))


def of_random_ids(layer, ids):
    return layer(ids + 0 * tf.random.uniform(tf.shape(ids), maxval=2, dtype=tf.int64))


def after_a_write(layer, ids):
    layer.table.upsert(ids, tf.fill([tf.size(ids), 2], 3.0))
    return layer(ids)


def in_a_function_of_its_own():
    """Between two lookups of the same ids one in a function that is traced once."""
    with STRATEGY.scope():
        tables = [tf_dynemb.Variable(dim=2, initializer=float(n), name=f"between_{n}") for n in range(3)]

    @tf.function
    def inner(ids):
        return tf_dynemb.embedding_lookup(tables[0], ids)

    def look_up(layer, ids):
        others = inner(ids) + tf_dynemb.embedding_lookup(tables[1], ids)
        return layer(ids) + 10.0 * others + 100.0 * tf_dynemb.embedding_lookup(tables[2], ids)

    return look_up


def after_a_write_in_a_function():
    """The function is traced before the step is."""

    @tf.function(reduce_retracing=True)
    def write(layer, ids):
        layer.table.upsert(ids, layer.table.lookup(ids) + 1.0)

    def look_up(layer, ids):
        write(layer, ids)
        return layer(ids)

    return look_up


def after_a_clear(layer, ids):
    layer.table.clear()
    return layer(ids)


def in_words():
    """Ids that are made of words, one of which is none in the third batch of all processes."""

    def look_up(layer, words):
        return layer(tf.strings.to_number(words, tf.int64))

    return look_up


def alternating():
    """A step that makes other ids each time that it is traced."""
    traces = []

    def look_up(layer, ids):
        traces.append(None)
        return layer(ids + len(traces))

    return look_up


def loops():
    """What loops make of the process' own batches."""
    mine = tf.data.Dataset.from_tensor_slices(IDS[INDEX::COUNT, 0]).batch(BATCH)
    result = {}
    for name, look_up in (
        ("plain", lambda layer, ids: layer(ids)),
        ("twice", lambda layer, ids: layer(ids) + layer(ids + 1)),
        ("chained", of_chained_ids),
        ("random", of_random_ids),
        ("after_a_write", after_a_write),
        ("after_a_write_in_a_function", after_a_write_in_a_function()),
        ("after_a_clear", after_a_clear),
        ("in_a_function_of_its_own", in_a_function_of_its_own()),
    ):
        result[name] = [
            Loop(f"{name}_{pipeline}", look_up).run(mine, pipeline) for pipeline in (True, False)
        ]
    words = tf.data.Dataset.from_tensor_slices(["1", "2", "3", "4", "5", "none", "7", "8"]).batch(2)
    result["in_words"] = [
        Loop(f"words_{pipeline}", in_words()).run(words, pipeline) for pipeline in (True, False)
    ]
    numbers = words.map(tf.strings.to_number).map(lambda ids: tf.cast(ids, tf.int64))
    result["unreadable"] = [
        Loop(f"unreadable_{pipeline}", lambda layer, ids: layer(ids)).run(numbers, pipeline)
        for pipeline in (True, False)
    ]
    result["alternating"] = Loop("alternating", alternating()).run(mine, True)
    return result


def stale():
    """Steps that take rows as they were before the step before, in a loop and by fit."""
    ids = np.random.default_rng(4).integers(0, 12, (COUNT, 40))
    mine = tf.data.Dataset.from_tensor_slices(ids[INDEX]).batch(BATCH)
    loop = Loop("stale", lambda layer, ids: layer(ids))
    result = {"ids": ids, "loop": [loop.run(mine, True, stale_rows=True) for _ in range(2)]}
    data = tf.data.Dataset.from_tensor_slices(({"ids": IDS, "words": WORDS}, STARS))
    for batch in (BATCH, EXAMPLES):
        for stale_rows in (True, False):
            model = model_of_layers()
            table = model.get_layer("users").table
            before = exchanges(table)
            batches = data.batch(batch)
            history = fit(model, batches, epochs=3, verbose=0, stale_rows=stale_rows)
            result[batch, stale_rows] = {
                "history": history.history,
                "rows": rows_of(table),
                "exchanges": exchanges(table) - before,
            }
    return result


def refusals():
    """One process has an id out of range in the third of four batches; a loop after that goes on.

    Each of both, and how often a dense weight was updated by what was read.
    """
    batches = np.array([[0, 1], [1, 2], [3, 4], [4, 5]]) + 6 * INDEX
    if INDEX == COUNT - 1:
        batches[2, 1] = 6 * COUNT
    result = []
    for pipeline, stale_rows in ((True, False), (True, True), (False, False)):
        with STRATEGY.scope():
            updates = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

        def look_up(layer, ids, updates=updates):
            rows = layer(ids)
            updates.assign_add(1.0 + 0.0 * tf.reduce_sum(rows))
            return rows

        loop = Loop(f"refusing_{pipeline}_{stale_rows}", look_up, use_hashtable=False)
        data = tf.data.Dataset.from_tensor_slices(batches)
        result.append(
            [
                (loop.run(some, pipeline, stale_rows), updates.numpy().item() / COUNT)
                for some in (data, data.take(2))
            ]
        )
    return result


def main(folder):
    result = {"fitted": fitted(), "loops": loops(), "stale": stale(), "refusals": refusals()}
    with open(os.path.join(folder, str(INDEX)), "wb") as file:
        pickle.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
