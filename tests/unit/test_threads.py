"""Sixteen Python threads at once on one Variable: train, look up, export, restrict, save.

Whatever the order in which their calls take place: no update of a row that stays is lost, rows are never
seen half written, exports and snapshots are complete, and a delta is what it says.
"""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import int64, rows_of, values_of

import tf_dynemb
from tf_dynemb import snapshot

DIM = 5
STAYING = range(20)  # trained by every call; the others by one, so that they go first
LEFT = 40
CALLS = 8


def at_once(*works):
    """Runs each in a thread of its own, from the same moment; raises what any of them raised."""
    barrier, errors = threading.Barrier(len(works)), []

    def run(work):
        try:
            barrier.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def check(rows: dict):
    """Rows as anybody sees them: all that stay, and none of two moments."""
    assert set(STAYING) <= rows.keys()
    assert all(len(set(row)) == 1 for row in rows.values())


@pytest.mark.parametrize("graph", [False, True])
def test_sixteen_threads_at_once(graph, tmp_path):
    table = tf_dynemb.Variable(
        dim=DIM, devices=["/CPU:0"] * 3, restrict_policy=tf_dynemb.FrequencyRestrictPolicy, name="t"
    )
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([table.handle])
    fresh = iter(range(1000, 10**6))

    def step(keys):
        """Adds 1 to each number of the keys' rows."""
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(tf_dynemb.embedding_lookup(table, keys))
        optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])

    if graph:
        step = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int64)])
    for _ in range(2):  # so that they have been written more often than what comes
        step(int64(list(STAYING)))

    def train():
        for _ in range(CALLS):
            step(int64([*STAYING, *(next(fresh) for _ in range(10))]))

    def look_up():
        for _ in range(2 * CALLS):
            values, exists = table.lookup(int64([*STAYING, *range(1000, 1100)]), return_exists=True)
            values, exists = values.numpy(), exists.numpy()
            assert exists[: len(STAYING)].all()
            assert (values == values[:, :1]).all()
            assert (values[~exists] == 0).all()
            assert (values[exists] > 0).all()

    def export():
        for _ in range(CALLS):
            check(values_of(table))

    def restrict():
        for _ in range(CALLS):
            table.restrict(LEFT)

    def save(name):
        other = tf_dynemb.Variable(dim=DIM, restrict_policy=tf_dynemb.FrequencyRestrictPolicy)

        def saves():
            full, delta = str(tmp_path / f"{name}-full"), str(tmp_path / f"{name}-delta")
            for _ in range(CALLS // 4):
                base = snapshot.save(full, {"t": table}, follow=True)
                snapshot.save(delta, {"t": table}, base=base)
                for path in (full, [full, delta]):
                    snapshot.restore(path, {"t": other})
                    check(values_of(other))

        return saves

    at_once(*[train] * 4, *[look_up] * 4, *[export] * 3, *[restrict] * 2, *map(save, "abc"))
    table.restrict(LEFT)
    rows = values_of(table)
    check(rows)
    assert len(rows) == LEFT
    assert [rows[key][0] for key in STAYING] == [4 * CALLS + 2] * len(STAYING)


def test_a_snapshot_of_rows_that_were_replaced_meanwhile_is_no_base(tmp_path):
    """What a restore puts in place knows nothing of a snapshot that was being saved of the old rows."""
    restored, full, delta = (str(tmp_path / name) for name in ("restored", "full", "delta"))
    source = tf_dynemb.Variable(name="t")
    source.upsert(int64([1, 2]), [[1.0], [2.0]])
    snapshot.save(restored, source)
    for _ in range(20):
        table = tf_dynemb.Variable(name="t")
        table.upsert(int64(range(100, 5000)), np.ones([4900, 1], np.float32))
        saved = []
        at_once(
            lambda saved=saved, table=table: saved.append(snapshot.save(full, table, follow=True)),
            lambda table=table: snapshot.restore(restored, table, follow=True),
        )
        table.upsert(int64([3]), [[3.0]])
        try:
            snapshot.save(delta, table, base=saved[0])
        except tf.errors.FailedPreconditionError as error:
            assert "does not know what has changed" in str(error)
            continue
        other = tf_dynemb.Variable(name="t")
        snapshot.restore([full, delta], other)
        assert rows_of(other) == rows_of(table)
