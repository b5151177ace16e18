"""The table of bad input to ops: what is wrong, the error and its message; and that no row changes."""

import numpy as np
import pytest
import tensorflow as tf
from refused_calls import KEYS, ROWS, Invalid, Refused, check_refused, table_of_keys

import tf_dynemb
from tf_dynemb.base.op_library import ops

OF_SKETCH = "min_count 3 sketch 64 process 0 of 1"
NO_SHARD_IDS = np.zeros(0, np.int32)
SHARD_IDS = np.array([1, 0], np.int32)  # of KEYS on two shards
SCHEMA = "dynemb-table 1\nvalue float32 4\n"
NO_BOOLS = np.zeros(0, np.bool_)
NO_SCORES = np.zeros(0, np.int64)
NO_BYTES = np.zeros((2, 0), np.uint8)


def apply(rule="sgd", hyper=(0.1, 1.0, 0.0), gradients=ROWS, shard_ids=SHARD_IDS, **attributes):
    return lambda table: ops.dynemb_apply(
        [table.resource.resource_handle],
        [KEYS],
        [shard_ids],
        [gradients],
        np.array(hyper, np.float64, ndmin=2),
        np.zeros(1, np.int64),
        **{
            "rule": rule,
            "candidates": [],
            "admitted": [NO_BOOLS],
            "scores": [NO_SCORES],
            "admission": [""],
            **attributes,
        },
    )


def lookup(keys=KEYS, shard_ids=SHARD_IDS, dim=4, weight=tf.float32):
    return lambda table: ops.dynemb_lookup(
        tf.zeros([0, 4], weight), table.resource.resource_handle, keys, shard_ids, dim=dim
    )


def imported(keys=KEYS, slots=NO_BYTES, schema=SCHEMA, replace=False):
    return lambda table: table.resource.import_rows(keys, ROWS, slots, NO_BYTES, schema, replace)


def candidates():
    return ops.dynemb_table(schema="dynemb-table 1\nvalue float32 1\ninitializer constant 0\nseed 0\n")


# What is wrong: (call of the table, class of the error, its message).
CASES = {
    "a handle of a tf.Variable": (
        lambda t: ops.dynemb_size(tf.Variable(1.0).handle),
        Invalid,
        "wrong type",
    ),
    "handles in a list": (
        lambda t: ops.dynemb_size(tf.stack([t.resource.resource_handle] * 2)),
        Invalid,
        r"table: got shape \[2\], want the scalar that DynembTable gives",
    ),
    "a schema of words": (
        lambda t: ops.dynemb_table(schema="x"),
        Invalid,
        "table schema: got 'x', want",
    ),
    "a table of 0 shards": (
        lambda t: ops.dynemb_table(schema=SCHEMA, shards=0),
        Invalid,
        "of 0 must be at",
    ),
    "a table of 2^33 shards": (
        lambda t: ops.dynemb_table(schema=SCHEMA, shards=2**33),
        Invalid,
        "shards: got 8589934592, want up to 65536",
    ),
    "shard ids that are missing": (
        lookup(shard_ids=NO_SHARD_IDS),
        Invalid,
        "shard_ids: got 0, want one per key, 2",
    ),
    "a lookup of another dim": (lookup(dim=5), Invalid, "dim: got 5, the table's rows have 4"),
    "a lookup of another dtype": (
        lookup(weight=tf.int32),
        Invalid,
        "value dtype: got int32, the table",
    ),
    "a rule of words": (apply(rule="magic"), Invalid, "optimizer rule: got 'magic', want one of sgd,"),
    "numbers that are missing": (
        apply(hyper=[0.1]),
        Invalid,
        "hyper-parameters of rule sgd: got 1 number",
    ),
    "numbers of two tables for one": (
        apply(hyper=[[0.1, 1, 0]] * 2),
        Invalid,
        "hyper: got shape .2,3., want a row per table, 1",
    ),
    "numbers that are NaN": (
        apply(hyper=[np.nan, 1, 0]),
        Invalid,
        "learning_rate: got nan, want a finite",
    ),
    "shard ids of other keys": (
        apply(shard_ids=np.zeros(3, np.int32)),
        Invalid,
        "shard_ids: got 3, want one per",
    ),
    "a time for each key": (
        lambda t: ops.dynemb_upsert(t.resource.resource_handle, KEYS, SHARD_IDS, ROWS, KEYS, NO_SCORES),
        Invalid,
        r"now: got shape \[2\], want a scalar",
    ),
    "a score too few for a lookup": (
        lambda t: ops.dynemb_with_scores(
            tf.zeros([0, 4]), t.resource.resource_handle, KEYS, np.zeros(1, np.int64)
        ),
        Invalid,
        "scores: got 1 for 2 keys, want one for each",
    ),
    "a score too few to be kept": (
        lambda t: ops.dynemb_give_scores(t.resource.resource_handle, KEYS, np.zeros(1, np.int64)),
        Invalid,
        "scores: got 1 for 2 keys, want one for each",
    ),
    "shard ids of no keys for scores": (
        lambda t: ops.dynemb_take_scores(t.resource.resource_handle, KEYS, np.zeros(3, np.int32)),
        Invalid,
        "shard_ids: got 3, want one per",
    ),
    "scores of rows that have none": (
        lambda t: (
            ops.dynemb_give_scores(t.resource.resource_handle, KEYS[:1], np.zeros(1, np.int64)),
            ops.dynemb_take_scores(t.resource.resource_handle, KEYS, SHARD_IDS),
        ),
        tf.errors.FailedPreconditionError,
        "table: its rows have no scores",
    ),
    "room for keys that are seen or not, too few": (
        lambda t: ops.dynemb_check_room(
            t.resource.resource_handle, KEYS, SHARD_IDS, np.zeros(1, np.bool_)
        ),
        Invalid,
        "exists: got 1 for 2 keys, want one for each, or none",
    ),
    "an update to be checked with shard ids of other keys": (
        lambda t: ops.dynemb_check_updates(
            tables=[t.resource.resource_handle],
            keys=[KEYS],
            shard_ids=[np.zeros(3, np.int32)],
            hyper=[[0.1, 1.0, 0.0, 0.0, 0.0]],
            now=np.zeros(1, np.int64),
            candidates=[],
            admitted=[np.zeros(0, np.bool_)],
            dtype=tf.float32,
            rule="sgd",
            admission=[""],
        ),
        Invalid,
        "shard_ids: got 3, want one per",
    ),
    "counts that left something else than candidates": (
        lambda t: ops.dynemb_sketch_counts(
            t.resource.resource_handle, t.resource.resource_handle, admission=OF_SKETCH
        ),
        Invalid,
        "candidates: got 2 shards of float32, dim 4, want one of float32, dim 1",
    ),
    "counts for something else than a sketch": (
        lambda t: ops.dynemb_sketch_counts(candidates(), candidates(), admission=OF_SKETCH),
        Invalid,
        "candidates: got a sketch of float32, dim 1, want int8, dim 32 or more",
    ),
    "counts without a sketch": (
        lambda t: ops.dynemb_sketch_counts(candidates(), candidates(), admission="min_count 3"),
        Invalid,
        "admission: got 'min_count 3', want one with a sketch",
    ),
    "a score too many": (
        apply(scores=[np.zeros(3, np.int64)]),
        Invalid,
        "scores: got 3 for 2 keys, want one for each, or none",
    ),
    "a cursor of 2": (
        lambda t: t.resource.export_rows((0, 0)),
        Invalid,
        r"cursor: got shape \[2\], want",
    ),
    "a cursor of another table": (
        lambda t: t.resource.export_rows((9, 0, 0)),
        Invalid,
        "got shard 9, want 0 to",
    ),
    "rows that expire, of no table": (
        lambda t: ops.dynemb_remove_expired(tf.Variable(1.0).handle),
        Invalid,
        "wrong type",
    ),
    "a field that rows lack": (
        lambda t: ops.dynemb_restrict(t.resource.resource_handle, 1, 1, field="used"),
        Refused,
        "field: got used, which the rows of the table do not have",
    ),
    "sums of other keys": (
        lambda t: ops.dynemb_sum_by_key(KEYS, ROWS[:1]),
        Invalid,
        "keys and rows: got",
    ),
    "slots that the schema lacks": (
        imported(slots=np.zeros((2, 3), np.uint8)),
        Invalid,
        "slots: got shape",
    ),
    "rows of another dim": (
        imported(schema=SCHEMA.replace("4", "5")),
        Refused,
        "their dim is 5, the table's",
    ),
    "rows of another dtype": (
        imported(schema=SCHEMA.replace("float32", "int32")),
        Refused,
        "their value dtype is int32",
    ),
    "rows of another version": (
        imported(schema=SCHEMA.replace("1", "9", 1)),
        tf.errors.UnimplementedError,  # of a later version of the format, which only later code can read
        "got format 'dynemb-table 9', this build reads format 1",
    ),
    "rows of one key": (
        imported(KEYS[[0, 0]], replace=True),
        tf.errors.DataLossError,
        "only 1 are distinct",
    ),
    "a swap with fewer shards": (
        lambda t: ops.dynemb_swap(
            t.resource.resource_handle, tf_dynemb.Variable(dim=4).resource.resource_handle
        ),
        Invalid,
        "other: got 1 shards, want 2",
    ),
}


@pytest.fixture
def table():
    return table_of_keys()


@pytest.mark.parametrize("case", CASES)
def test_an_error_says_what_is_wrong_and_changes_nothing(case, table):
    check_refused(table, *CASES[case])


@pytest.mark.parametrize("place", [-1, -(2**63), 2**63 - 1, 2**40])
@pytest.mark.parametrize("stripes", [0, 1, 27, 28, -1])
def test_a_cursor_that_nobody_gave_ends_the_export_or_is_refused(table, place, stripes):
    if not 0 <= stripes <= 27:
        with pytest.raises(tf.errors.InvalidArgumentError, match="no export has given"):
            table.resource.export_rows((1, place, stripes))
        return
    keys, *_, after = table.resource.export_rows((1, place, stripes))
    assert len(keys) <= 1
    assert after.numpy()[0] == 2


def test_a_limit_beyond_all_rows_is_all_rows(table):
    keys, *_ = table.resource.export_rows(limit=2**62)
    assert sorted(keys.numpy()) == KEYS.tolist()


def test_a_name_of_another_table():
    schema = "dynemb-table 1\nvalue float32 {}\n"
    first = ops.dynemb_table(schema=schema.format(4), shared_name="test_a_name_of_another_table")
    assert first is not None
    for arguments in ({"schema": schema.format(8)}, {"schema": schema.format(4), "shards": 2}):
        with pytest.raises(tf.errors.OpError):
            ops.dynemb_table(shared_name="test_a_name_of_another_table", **arguments)


def test_owners_are_counted_before_equal_keys_are_summed():
    table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 3, name="table")
    with pytest.raises(tf.errors.InvalidArgumentError, match="shard_ids: got 2, want one per key, 3"):
        ops.dynemb_apply(
            [table.resource.resource_handle],
            [np.array([1, 1, 2], np.int64)],
            [np.zeros(2, np.int32)],
            [np.ones((3, 1), np.float32)],
            np.array([[0.1, 1.0, 0.0]]),
            np.zeros(1, np.int64),
            candidates=[],
            admitted=[NO_BOOLS],
            scores=[NO_SCORES],
            rule="sgd",
            admission=[""],
        )
    assert table.size() == 0
