"""MinCount with a sketch: ids whose counts have left the candidates, against counts of all of them."""

import collections
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.policies import MinCount
from tf_dynemb.table import keras_files

LEAST = 2**14
# Of 900 ids that come about 4 times; of 50 candidates each leaves many times.
STREAM = np.random.default_rng(5).integers(0, 900, [60, 60])


def rows_of(table):
    keys, values = (array.numpy() for array in table.export())
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def new_table(shards=1, count=3, sketch_bytes=2**16, max_candidates=50, **options):
    policy = MinCount(count, max_candidates=max_candidates, sketch_bytes=sketch_bytes)
    devices = ["/CPU:0"] * shards if shards > 1 else None  # of a table on a GPU there is one
    options = {"admission": policy, "devices": devices, "name": "t", **options}
    return tf_dynemb.Variable(dim=1, **options)


class Training:
    """Of a table whose rows get 1 for each occurrence."""

    def __init__(self, table, in_graph=True):
        self.table = table
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

        def step(ids):
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids))
            optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])

        self.optimizer, self.step = optimizer, tf.function(step) if in_graph else step

    def __call__(self, batches):
        for ids in batches:
            self.step(tf.constant(ids))
        return self

    @property
    def state(self):
        tables = [self.table, *self.table.tables_of_counts.values()]
        return [rows_of(table) for table in tables]


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("shards", [1, 3])
def test_no_id_is_admitted_too_late_and_few_too_early(shards, in_graph):
    training = Training(new_table(shards), in_graph)
    came, admitted = collections.Counter(), {}
    for ids in STREAM[: 60 if in_graph else 30]:
        training([ids])
        came.update(ids.tolist())
        for key in rows_of(training.table):
            admitted.setdefault(key, came[key])
        assert int(training.table.candidates.size()) <= 50
    assert all(key in admitted for key, times in came.items() if times >= 3)
    assert len(admitted) > 100
    assert sum(times < 3 for times in admitted.values()) <= math.exp(-4) * len(came)


def test_without_a_sketch_such_ids_are_forgotten():
    training = Training(new_table(sketch_bytes=0))(STREAM)
    assert int(training.table.size()) < 100
    assert training.table.sketch is None


@pytest.mark.parametrize("number", [12, 13])
def test_the_sketch_is_one_for_all_shards(number):
    """So that a table may be restored onto any number of them; and it is of this size."""
    training = Training(new_table(3))([STREAM[number]] * 1)
    sketch = training.table.sketch
    assert sketch.shard_num == 1 and sketch.value_dtype == tf.int8
    assert 0 < int(sketch.size()) <= 2**16 // sketch.dim + 1


def checkpoint(source, target, folder):
    path = tf.train.Checkpoint(table=source).write(f"{folder}/c")
    restored = tf.train.Checkpoint(table=target).read(path)
    if source.tables_of_counts.keys() == target.tables_of_counts.keys():
        restored.assert_consumed()


def keras_file(source, target, folder):
    keras_files.copy_rows(source, target)


def snapshot(source, target, folder):
    tf_dynemb.snapshot.save(f"{folder}/s", source)
    tf_dynemb.snapshot.restore(f"{folder}/s", target)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("copy", [checkpoint, keras_file, snapshot])
def test_counts_go_on_where_they_were(copy, shards, tmp_path):
    training = Training(new_table())(STREAM[:20])
    other = Training(new_table(shards))
    copy(training.table, other.table, tmp_path)
    assert other.state == training.state
    if shards == 1:  # several bring their candidates one after the other, and others leave
        other.optimizer.inner_optimizer.iterations.assign(20)
        assert other(STREAM[20:]).state == training(STREAM[20:]).state


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize(("shards", "max_candidates"), [(1, 4), (3, 4), (3, 40)])
@pytest.mark.parametrize("copy", [checkpoint, keras_file, snapshot])
def test_counts_for_which_a_restore_has_no_candidates_are_in_the_sketch(
    copy, shards, max_candidates, again, tmp_path
):
    ids = 3 * np.arange(40)
    table = Training(new_table(max_candidates=40))([ids, ids]).table
    for number in range(1 + again):  # the second time with what has been restored
        (tmp_path / str(number)).mkdir()
        other = new_table(shards, max_candidates=max_candidates)
        copy(table, other, tmp_path / str(number))
        assert int(other.candidates.size()) == min(40, max_candidates)
        table = other
    assert sorted(rows_of(Training(table)([ids]).table)) == ids.tolist()


def test_a_restore_forgets_counts_that_have_left_before(tmp_path):
    """A checkpoint without counts, then one with others, of which most go into the sketch at once."""
    table = new_table(count=2, max_candidates=2)
    Training(table)([np.arange(20)])
    checkpoint(new_table(count=2, admission=None), table, tmp_path)
    assert rows_of(table.candidates) == rows_of(table.sketch) == {}
    checkpoint(Training(new_table(count=2))([np.arange(20, 40)]).table, table, tmp_path)
    assert sorted(rows_of(Training(table)([np.arange(40)]).table)) == list(range(20, 40))


def test_counts_are_in_deltas(tmp_path):
    training = Training(new_table())(STREAM[:20])
    base = tf_dynemb.snapshot.save(tmp_path / "full", training.table, follow=True)
    training(STREAM[20:40])
    tf_dynemb.snapshot.save(tmp_path / "delta", training.table, base=base)
    other = Training(new_table())
    tf_dynemb.snapshot.restore([tmp_path / "full", tmp_path / "delta"], other.table)
    assert other.state == training.state


@pytest.mark.parametrize("copy", [checkpoint, keras_file, snapshot])
def test_rows_of_a_table_without_a_sketch(copy, tmp_path):
    plain = Training(new_table(sketch_bytes=0))(STREAM[:20])
    other = Training(new_table())(STREAM[:20])
    copy(plain.table, other.table, tmp_path)
    assert other.state == [*plain.state, {}]
    copy(Training(new_table())(STREAM[:20]).table, plain.table, tmp_path)
    assert plain.table.sketch is None


def test_into_a_table_with_other_sketch_bytes_it_begins_anew():
    training = Training(new_table(sketch_bytes=LEAST))(STREAM[:20])
    other = Training(new_table(sketch_bytes=4 * LEAST))
    keras_files.copy_rows(training.table, other.table)
    fresh = Training(new_table(sketch_bytes=4 * LEAST))
    fresh.table.candidates.upsert(*training.table.candidates.export())
    keys = np.arange(5000, 5100)
    other([keys]), fresh([keys])
    assert other.state[2] == fresh.state[2] != {}


def test_the_same_calls_admit_the_same_ids():
    runs = [Training(new_table(sketch_bytes=LEAST))(STREAM).state for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_layer_and_its_saved_model(tmp_path):
    policy = MinCount(2, max_candidates=20, sketch_bytes=LEAST)
    layer = tf_dynemb.keras.Embedding(1, admission=policy, name="e")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)), "mse")
    once = np.arange(100)
    model.fit(once, np.ones(100), batch_size=10, shuffle=False, verbose=0)
    assert int(layer.table.size()) == 0
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert again.layers[0].table.config.admission == policy
    again.fit(once, np.ones(100), batch_size=10, shuffle=False, verbose=0)
    assert int(again.layers[0].table.size()) == 100
    again.export(tmp_path / "served", verbose=False)
    assert "sketch" not in str(tf.train.list_variables(str(tmp_path / "served/variables/variables")))
    served = tf.saved_model.load(str(tmp_path / "served"))
    assert served.serve(tf.constant([1, 2], tf.int64)).shape == [2, 1]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"sketch_bytes": 1}, "sketch_bytes: got 1, want a whole number from 16384"),
        ({"sketch_bytes": -1}, "sketch_bytes: got -1, want a whole number from 16384"),
        ({"sketch_bytes": 2.5e6}, "sketch_bytes: got 2500000.0"),
        ({"sketch_bytes": None}, "sketch_bytes: got None"),
        (
            {"sketch_bytes": 2**20, "count": 129},
            "sketch_bytes: got 1048576 with count 129, want a count",
        ),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        MinCount(**{"count": 3, **arguments})
