"""A Variable against a dict: random sequences of all operations, over dtypes, shards, eager and graph.

The dict holds for each key what its row should be: value, momentum of the optimizer and number of
writes, of which the latter two show in later training steps and restrictions. Rows go through
checkpoints, snapshots and chains of deltas, into the table and into others with more or fewer shards.
"""

import copy
import dataclasses
import itertools
import pathlib
import tempfile

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from restrict_model import status_of, survivors
from table_rows import INT64_MAX, INT64_MIN

import tf_dynemb
from tf_dynemb import snapshot

VALUE_DTYPES = {
    tf.float32: np.float32,
    tf.float64: np.float64,
    tf.float16: np.float16,
    tf.bfloat16: ml_dtypes.bfloat16,
    tf.int8: np.int8,
    tf.int32: np.int32,
    tf.int64: np.int64,
}
KEYS = {
    tf.int64: [INT64_MIN, INT64_MIN + 1, -7, -1, 0, 1, 2, 5, 2**32, 2**32 + 1, INT64_MAX],
    tf.int32: [-(2**31), -5, -1, 0, 1, 2, 3, 4, 7, 2**31 - 1],
    tf.string: ["", "a", "b", "ab", "ä", "日本", "a\0b", "a\0", " a", "x" * 100],
}
INITIAL = 2


@dataclasses.dataclass
class Row:
    """What a row should hold. All columns have the same momentum, for they have the same gradients."""

    value: np.ndarray
    momentum: float = 0.0
    writes: int = 0


# Of whole numbers this small every dtype holds the sums that a run can make, int8 by wrapping around.
numbers = st.integers(-3, 3)


class VariableMachine(RuleBasedStateMachine):
    """Keys are places in KEYS, so that the same ones come again and again."""

    @initialize(
        key_dtype=st.sampled_from(list(KEYS)),
        value_dtype=st.sampled_from(list(VALUE_DTYPES)),
        dim=st.integers(1, 5),
        shards=st.integers(1, 3),
        graph=st.booleans(),
        keep_keys=st.booleans(),
    )
    def make(self, key_dtype, value_dtype, dim, shards, graph, keep_keys):
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self.numpy_dtype = VALUE_DTYPES[value_dtype]
        self.dim, self.shards = dim, shards
        self.keep_keys = keep_keys and key_dtype == tf.string  # others are refused
        self.table = self.new_table(shards)
        # Momentum that never fades: all numbers stay whole.
        sgd = keras.optimizers.SGD(1.0, momentum=1.0)
        self.optimizer = tf_dynemb.DynamicEmbeddingOptimizer(sgd)
        if value_dtype.is_floating:  # others are refused
            self.optimizer.build([self.table.handle])
        self.folder = tempfile.TemporaryDirectory()
        self.names = map(str, itertools.count())
        self.checkpoint = None  # path, and the model of its moment
        self.chain = []  # of snapshots: path, id, and the model
        self.chain_goes_on = False
        self.all_keys = KEYS[key_dtype]
        as_int64 = tf.constant(self.all_keys, key_dtype)
        if key_dtype == tf.string:
            as_int64 = tf_dynemb.fingerprint(as_int64)
        self.int64_keys = [int(key) for key in as_int64.numpy()]
        self.model: dict[int, Row] = {}
        keys = tf.TensorSpec([None], key_dtype)
        rows = tf.TensorSpec([None, dim], value_dtype)
        flags = tf.TensorSpec([None], tf.bool)

        def method(function, *signature, gives=True):
            def call(*arguments):
                result = function(*arguments)  # an operation, where it gives nothing
                return result if gives else None

            return tf.function(call, input_signature=signature) if graph else call

        self.upsert = method(self.table.upsert, keys, rows, gives=False)
        self.accum = method(self.table.accum, keys, rows, rows, flags, gives=False)
        self.train = method(self.step, keys, gives=False)
        self.remove = method(self.table.remove, keys, gives=False)
        self.lookup = method(lambda k: self.table.lookup(k, return_exists=True), keys)
        self.clear = method(self.table.clear, gives=False)
        self.size = method(lambda: [self.table.size()] + [self.table.size(i) for i in range(shards)])

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def new_table(self, shards):
        return tf_dynemb.Variable(
            key_dtype=self.key_dtype,
            value_dtype=self.value_dtype,
            dim=self.dim,
            devices=["/CPU:0"] * shards,
            initializer=INITIAL,
            restrict_policy=tf_dynemb.FrequencyRestrictPolicy,
            keep_keys=self.keep_keys,
            name="table",
        )

    def step(self, keys):
        """A training step with gradient -1 for each time that a key is there."""
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(tf_dynemb.embedding_lookup(self.table, keys))
        self.optimizer.apply(tape.gradient(loss, [self.table.handle]), [self.table.handle])

    def write(self, key, value):
        """Into the model; the momentum of a row that is there stays."""
        row = self.model.setdefault(key, Row(value))
        row.value, row.writes = value, row.writes + 1

    def keys(self, places):
        return tf.constant([self.all_keys[p % len(self.all_keys)] for p in places], self.key_dtype)

    def rows(self, draws, n):
        """(n, dim) of the drawn numbers, repeated as needed."""
        array = np.resize(np.array(draws or [0]), (n, self.dim)).astype(self.numpy_dtype)
        return array, tf.constant(array, self.value_dtype)

    def model_keys(self, places):
        return [self.int64_keys[p % len(self.all_keys)] for p in places]

    places = st.lists(st.integers(0, 30), max_size=7)
    draws = st.lists(numbers, max_size=12)

    @rule(places=places, draws=draws)
    def do_upsert(self, places, draws):
        array, tensor = self.rows(draws, len(places))
        self.upsert(self.keys(places), tensor)
        for key, row in dict(zip(self.model_keys(places), array, strict=True)).items():
            self.write(key, row)

    @precondition(lambda self: self.value_dtype.is_floating)
    @rule(places=places)
    def do_train(self, places):
        self.train(self.keys(places))
        keys = self.model_keys(places)
        for key in set(keys):
            row = self.model.setdefault(key, Row(np.full(self.dim, INITIAL, self.numpy_dtype)))
            row.momentum += keys.count(key)
            value = row.value.astype(np.float64) + row.momentum
            self.write(key, value.astype(self.numpy_dtype))

    @rule(num_reserved=st.integers(0, 8), trigger=st.none() | st.integers(0, 12))
    def do_restrict(self, num_reserved, trigger):
        self.table.restrict(num_reserved, trigger)
        if len(self.model) > (num_reserved if trigger is None else trigger):
            stay = survivors({key: row.writes for key, row in self.model.items()}, num_reserved)
            self.model = {key: self.model[key] for key in stay}
            # No row is left: the table is cleared, which leaves no list of what went.
            self.chain_goes_on &= num_reserved > 0

    @rule()
    def do_save_checkpoint(self):
        path = str(pathlib.Path(self.folder.name, next(self.names)))
        path = tf.train.Checkpoint(table=self.table).write(path)
        self.checkpoint = path, copy.deepcopy(self.model)

    @precondition(lambda self: self.checkpoint)
    @rule(shards=st.integers(1, 3), here=st.booleans())
    def do_restore_checkpoint(self, shards, here):
        path, model = self.checkpoint
        other = self.table if here else self.new_table(shards)
        tf.train.Checkpoint(table=other).read(path).assert_consumed()
        self.restored(other, model, chain_goes_on=False)

    @rule()
    def do_save_snapshot(self):
        path = pathlib.Path(self.folder.name, next(self.names))
        identity = snapshot.save(path, self.table, follow=True)
        self.chain = [(path, identity, copy.deepcopy(self.model))]
        self.chain_goes_on = True

    @precondition(lambda self: self.chain)
    @rule()
    def do_save_delta(self):
        path = pathlib.Path(self.folder.name, next(self.names))
        try:
            identity = snapshot.save(path, self.table, base=self.chain[-1][1])
        except tf.errors.FailedPreconditionError:
            assert not self.chain_goes_on
            return
        assert self.chain_goes_on
        self.chain.append((path, identity, copy.deepcopy(self.model)))

    @precondition(lambda self: self.chain)
    @rule(length=st.integers(1, 9), shards=st.integers(1, 3), here=st.booleans(), follow=st.booleans())
    def do_restore_snapshot(self, length, shards, here, follow):
        chain = self.chain[:length]
        other = self.table if here else self.new_table(shards)
        snapshot.restore([path for path, *_ in chain], other, follow=follow)
        if here:
            self.chain = chain
        self.restored(other, chain[-1][2], chain_goes_on=follow)

    def restored(self, table, model, chain_goes_on):
        """`table` should now hold what a model says."""
        if table is self.table:
            self.model, self.chain_goes_on = copy.deepcopy(model), chain_goes_on
        self.check_rows(table, model)

    @rule(places=places, old=draws, new=draws, data=st.data())
    def do_accum(self, places, old, new, data):
        n = len(places)
        # Mostly what a lookup would have said, and sometimes what has changed since.
        exists = [
            (key in self.model) ^ flip
            for key, flip in zip(
                self.model_keys(places),
                data.draw(st.lists(st.sampled_from([False, False, True]), min_size=n, max_size=n)),
                strict=True,
            )
        ]
        old_array, old_tensor = self.rows(old, n)
        new_array, new_tensor = self.rows(new, n)
        self.accum(self.keys(places), old_tensor, new_tensor, tf.constant(exists, tf.bool))
        for key, seen, was, row in zip(
            self.model_keys(places), exists, old_array, new_array, strict=True
        ):
            if seen and key in self.model:
                self.write(key, self.model[key].value + (row - was))
            elif not seen and key not in self.model:
                self.write(key, row)

    @rule(places=places)
    def do_remove(self, places):
        self.remove(self.keys(places))
        for key in self.model_keys(places):
            self.model.pop(key, None)

    @rule()
    def do_clear(self):
        self.clear()
        self.model.clear()
        self.chain_goes_on = False

    @rule(places=places)
    def do_lookup(self, places):
        values, exists = self.lookup(self.keys(places))
        keys = self.model_keys(places)
        initial = Row(np.full(self.dim, INITIAL))
        want = [self.model.get(key, initial).value for key in keys]
        np.testing.assert_array_equal(
            values.numpy().astype(np.float64),
            np.array(want, np.float64).reshape(len(keys), self.dim),
        )
        assert exists.numpy().tolist() == [key in self.model for key in keys]

    @invariant()
    def sizes_are_those_of_the_model(self):
        total, *each = (int(size) for size in self.size())
        owned = [sum(key % self.shards == i for key in self.model) for i in range(self.shards)]
        assert (total, each) == (len(self.model), owned)

    @invariant()
    def rows_are_those_of_the_model(self):
        self.check_rows(self.table, self.model)

    def check_rows(self, table, model):
        keys, values = table.export()
        if self.keep_keys:
            assert keys.dtype == tf.string
        else:
            assert keys.dtype == (tf.int32 if self.key_dtype == tf.int32 else tf.int64)
        assert values.dtype == self.value_dtype
        keys = self.as_model_keys(keys.numpy().tolist())
        rows = dict(zip(keys, values.numpy().astype(np.float64), strict=True))
        assert len(rows) == len(keys)
        assert rows.keys() == model.keys()
        for key, value in rows.items():
            np.testing.assert_array_equal(value, model[key].value.astype(np.float64))
        numbers = status_of(table)
        numbers = dict(zip(self.as_model_keys(numbers), numbers.values(), strict=True))
        assert numbers == {key: row.writes for key, row in model.items()}

    def as_model_keys(self, keys):
        """The model's keys of those that a table gives."""
        if not self.keep_keys:
            return list(keys)
        by_string = {key.encode(): i for key, i in zip(self.all_keys, self.int64_keys, strict=True)}
        return [by_string[key] for key in keys]


TestVariableModel = VariableMachine.TestCase
TestVariableModel.settings = settings(
    stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)
