"""What OneEmbedding gets wrong, one test for each: that ours does not."""

import copy
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from one_embeddings import embedding_of, sizes, store_at, tables_of
from optimizer_oracle import START, TOLERANCE, assert_close, ftrl, smart_decay_adam
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.compat import one_embedding as oe


def minimize(embedding, optimizer, loss):
    optimizer.minimize(loss, embedding.parameters())


def sgd(embedding, rate=1.0):
    return oe.Optimizer(keras.optimizers.SGD(rate), [embedding])


def test_options_are_not_changed_by_those_who_use_them():
    """There the capacity is divided in place, twice for two embeddings."""
    store, tables = store_at("/p", capacity=7), tables_of(2)
    given = copy.deepcopy((store, tables))
    embeddings = [
        oe.MultiTableEmbedding(name, 2, tf.float32, tf.int64, tables, store) for name in ("a", "b")
    ]
    for embedding in embeddings:
        minimize(embedding, sgd(embedding), lambda e=embedding: tf.reduce_sum(e(int64([[1, 2]]))))
        embedding.get_config()["store_options"]["size_factor"] = 9
    assert (store, tables) == given
    store["size_factor"], tables[0]["initializer"]["low"] = 9, 5.0  # nor do they change with them
    assert embeddings[0].get_config()["store_options"] == given[0]
    assert embeddings[0].get_config()["tables"] == given[1]


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "function"])
def test_ftrl_starts_z_at_zero(graph):
    """There it starts at the accumulator's value in eager mode."""
    embedding = embedding_of(1, store={"size_factor": 3})
    optimizer = oe.Optimizer(oe.Ftrl(lr=0.1, initial_accumulator_value=START), [embedding])
    row = embedding(int64([5])).numpy()[0].astype(np.float64)
    gradient = np.array([0.5, -1.0, 0.0, 2.0])

    def step():
        minimize(embedding, optimizer, lambda: tf.reduce_sum(embedding(int64([5])) * gradient))

    (tf.function(step) if graph else step)()
    want = ftrl(row, gradient, {}, float(np.float32(0.1)), 1)
    assert_close(embedding(int64([5]))[0], want, TOLERANCE["float32"])


def test_the_last_axis_is_checked():
    """There ids of another number of columns are spread over the tables by their flat index."""
    embedding = embedding_of(3)
    for shape in ([2, 2], [3, 4], [6]):
        with pytest.raises(ValueError, match=r"want \(\.\.\., 3\)"):
            embedding(tf.zeros(shape, tf.int64))


@pytest.mark.parametrize("factor", [1, 3])
def test_looking_up_makes_no_rows(factor):
    """There evaluation inserts, or does not, by the size of the rows and the mode."""
    embedding = embedding_of(2, store={"size_factor": factor})
    model = keras.Sequential([keras.Input((2,), dtype="int64"), embedding, keras.layers.Flatten()])
    inner = keras.optimizers.SGD(0.1) if factor == 1 else keras.optimizers.Adam(0.1)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(inner), "mse")
    ids = np.arange(40).reshape(20, 2)
    predicted = model.predict(ids, verbose=0)
    model.evaluate(ids, np.zeros([20, 8]), verbose=0)
    embedding(int64(ids))
    assert sizes(embedding) == [0, 0]
    model.fit(ids[:5], predicted[:5], verbose=0)
    assert sizes(embedding) == [5, 5]
    np.testing.assert_array_equal(model.predict(ids[5:], verbose=0), predicted[5:])


def test_a_missing_snapshot_is_an_error(tmp_path):
    """There it is logged, and training goes on with the table as it was."""
    with pytest.raises(FileNotFoundError, match="there is no snapshot"):
        embedding_of(1, path=tmp_path).load_snapshot("day_1")


def test_smart_decay_adam_corrects_the_bias_and_decays():
    """There the bias correction is demanded and left out, and weight_decay is forgotten."""
    embedding = embedding_of(1, store={"storage_dim": 3 * 4 + 2})
    inner = oe.SmartDecayAdam(0.1, weight_decay=0.05, eps=1e-3)
    optimizer = oe.Optimizer(inner, [embedding])
    row, state = embedding(int64([5])).numpy()[0].astype(np.float64), {}
    gradient = np.array([0.5, -1.0, 0.25, 2.0])
    for t in range(1, 13):
        here = t in (1, 2, 7, 12)
        key = 5 if here else 6
        minimize(embedding, optimizer, lambda k=key: tf.reduce_sum(embedding(int64([k])) * gradient))
        if here:
            row = row * (1 - 0.05 * float(np.float32(0.1)))
            row = smart_decay_adam(row, gradient, state, float(np.float32(0.1)), t, epsilon=1e-3)
        assert_close(embedding(int64([5]))[0], row, TOLERANCE["float32"])


def test_smart_decay_adam_takes_schedules():
    """There the hook returns nothing, and what the schedule does with it breaks."""
    embedding = embedding_of(1, store={"storage_dim": 3 * 4 + 2})
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.0])
    optimizer = oe.Optimizer(oe.SmartDecayAdam(schedule), [embedding])
    seen = [embedding(int64([5])).numpy()]
    for _ in range(4):
        minimize(embedding, optimizer, lambda: tf.reduce_sum(embedding(int64([5]))))
        seen.append(embedding(int64([5])).numpy())
    assert (seen[0] != seen[1]).all() and (seen[1] != seen[2]).all()
    np.testing.assert_array_equal(seen[2], seen[3])
    np.testing.assert_array_equal(seen[3], seen[4])


def test_an_unknown_snapshot_cannot_be_read(tmp_path):
    """There the reader has no rows and says nothing."""
    embedding = embedding_of(1, path=tmp_path)
    embedding.save_snapshot("day_1")
    with pytest.raises(tf_dynemb.snapshot.SnapshotNotFoundError):
        oe.make_persistent_table_reader([tmp_path], "day_2", tf.int64, tf.float32, 4)
    with pytest.raises(ValueError, match="storage_dim: got 12, the table has rows of 4"):
        oe.make_persistent_table_reader([tmp_path], "day_1", tf.int64, tf.float32, 12)


def test_a_writer_that_fails_makes_no_snapshot(tmp_path):
    """There leaving the block by an exception saves what there is."""
    with (
        pytest.raises(ZeroDivisionError),
        oe.make_persistent_table_writer([tmp_path], "day_1", tf.int64, tf.float32, 4) as writer,
    ):
        writer.write([1], np.zeros([1, 4], np.float32))
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError):
        embedding_of(1, path=tmp_path).load_snapshot("day_1")


def test_more_rows_than_the_capacity():
    """There an assert, which releases do not have, is all that stands before other people's memory."""
    store = oe.make_device_mem_store_options("/p", capacity=8)
    embedding = oe.MultiTableEmbedding("e", 2, tf.float32, tf.int64, tables_of(1), store)
    ids = int64(np.arange(5000))
    before = embedding(ids).numpy()
    minimize(embedding, sgd(embedding), lambda: tf.reduce_sum(embedding(ids)))
    assert sizes(embedding) == [5000]
    np.testing.assert_allclose(embedding(ids), before - 1.0, rtol=1e-6)


def test_every_column_has_a_number_of_its_own():
    """There neighbouring columns share draws: of 128 numbers some 35 are different."""
    rows = embedding_of(1, dim=128)(int64(np.arange(20))).numpy()
    assert all(len(np.unique(row)) > 126 for row in rows)  # of 2^24 numbers two may be equal


def test_two_lookups_in_a_step():
    """There a second one has wrong shapes, or is refused (issue 9699)."""
    embedding = embedding_of(2)
    first, second = int64([[1, 2], [3, 2]]), int64([[1, 2], [1, 9], [4, 4]])
    both = int64([[1, 2], [3, 2], [1, 2], [1, 9], [4, 4]])
    once = embedding_of(2)
    minimize(
        embedding,
        sgd(embedding),
        lambda: tf.reduce_sum(embedding(first)) + tf.reduce_sum(embedding(second) ** 2),
    )
    weights = tf.constant([1.0, 1.0, 0.0, 0.0, 0.0])[:, None, None]
    minimize(
        once,
        sgd(once),
        lambda: tf.reduce_sum(weights * once(both)) + tf.reduce_sum((1 - weights) * once(both) ** 2),
    )
    assert sizes(embedding) == sizes(once) == [3, 3]
    # Sums of the same numbers in another order: 4 roundings of numbers up to 40.
    np.testing.assert_allclose(embedding(both), once(both), rtol=4 * 2.0**-24, atol=40 * 4 * 2.0**-24)


def test_a_table_id_is_no_byte():
    """There 256 is table 0."""
    embedding = embedding_of(2)
    for table_id in (256, 257, -1, 2**32):
        with pytest.raises(tf.errors.InvalidArgumentError, match="table_ids"):
            embedding(int64([5]), int64([table_id]))


def test_tables_have_key_spaces_of_their_own():
    """There the id 5 of two tables is one row, which starts as the table says that came first."""
    embedding = embedding_of(2)
    first, second = embedding(int64([[5, 5]])).numpy()[0]
    assert np.abs(first).max() <= 1 and second.min() >= 9
    minimize(embedding, sgd(embedding), lambda: tf.reduce_sum(embedding(int64([[5, 5]]))[:, 1]))
    after = embedding(int64([[5, 5]])).numpy()[0]
    np.testing.assert_array_equal(after[0], first)
    np.testing.assert_allclose(after[1], second - 1, rtol=1e-6)


def test_the_rows_travel_with_the_model(tmp_path):
    """There state_dict saves a snapshot as a side effect, and holds but its name."""
    embedding = embedding_of(2, path=tmp_path / "rows")
    model = keras.Sequential([keras.Input((2,), dtype="int64"), embedding])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(np.arange(8).reshape(4, 2), np.zeros([4, 2, 4]), verbose=0)
    model.save(tmp_path / "m.keras")
    assert os.listdir(tmp_path) == ["m.keras"]
    loaded = keras.models.load_model(tmp_path / "m.keras").layers[0]
    for mine, theirs in zip(loaded.tables, embedding.tables, strict=True):
        assert rows_of(mine) == rows_of(theirs) != {}


def test_an_impossible_range_is_an_error():
    """There such an initializer draws for ever."""
    for a, b in ((1.0, -1.0), (5.0, 5.0), (50.0, 60.0)):
        with pytest.raises(ValueError, match="less than 1e-06 of that normal distribution"):
            oe.make_trunc_normal_initializer(0.0, 1.0, a, b)


def test_a_snapshot_takes_no_more_room_each_time(tmp_path):
    """There every flush appends all rows, and earlier ones stay on the disk."""
    embedding = embedding_of(1, path=tmp_path)
    optimizer = sgd(embedding, 0.1)

    def bytes_of_a_snapshot():
        minimize(embedding, optimizer, lambda: tf.reduce_sum(embedding(int64(np.arange(1000)))))
        embedding.save_snapshot("day")
        return sum(file.stat().st_size for file in (tmp_path / "day").iterdir())

    first = bytes_of_a_snapshot()
    assert [bytes_of_a_snapshot() for _ in range(3)] == [first] * 3


def test_half_a_snapshot_is_refused(tmp_path):
    """There a crash can leave a list of files that are not there, and nothing has a checksum."""
    embedding = embedding_of(2, path=tmp_path)
    minimize(embedding, sgd(embedding), lambda: tf.reduce_sum(embedding(int64([[5, 6]]))))
    embedding.save_snapshot("day")
    before = [rows_of(table) for table in embedding.tables]
    shutil.copytree(tmp_path / "day", tmp_path / "torn")
    rows = next(file for file in (tmp_path / "torn").iterdir() if file.suffix == ".dynemb")
    rows.write_bytes(rows.read_bytes()[:-1])
    shutil.copytree(tmp_path / "day", tmp_path / "half")
    next(file for file in (tmp_path / "half").iterdir() if file.suffix == ".dynemb").unlink()
    for name in ("torn", "half"):
        with pytest.raises((tf_dynemb.snapshot.SnapshotError, tf.errors.OpError)):
            embedding.load_snapshot(name)
    assert [rows_of(table) for table in embedding.tables] == before


def test_a_name_may_be_used_twice():
    """There the process is aborted."""
    first, second = embedding_of(1, name="same"), embedding_of(1, name="same")
    minimize(first, sgd(first), lambda: tf.reduce_sum(first(int64([1]))))
    assert (sizes(first), sizes(second)) == ([1], [0])
