"""A Variable against a dict: random sequences of all methods, over dtypes, shards, eager and graph."""

import ml_dtypes
import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from table_rows import INT64_MAX, INT64_MIN

import tf_dynemb

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

# Of whole numbers this small every dtype holds the sums that a run can make, int8 by wrapping around.
numbers = st.integers(-3, 3)


class VariableMachine(RuleBasedStateMachine):
    """Keys are places in KEYS, so that the same ones come again and again."""

    @initialize(
        key_dtype=st.sampled_from(list(KEYS)),
        value_dtype=st.sampled_from(list(VALUE_DTYPES)),
        dim=st.integers(1, 5),
        shards=st.integers(1, 5),
        graph=st.booleans(),
    )
    def make(self, key_dtype, value_dtype, dim, shards, graph):
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self.numpy_dtype = VALUE_DTYPES[value_dtype]
        self.dim, self.shards = dim, shards
        self.table = tf_dynemb.Variable(
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            dim=dim,
            devices=["/CPU:0"] * shards,
            initializer=INITIAL,
        )
        self.all_keys = KEYS[key_dtype]
        as_int64 = tf.constant(self.all_keys, key_dtype)
        if key_dtype == tf.string:
            as_int64 = tf_dynemb.fingerprint(as_int64)
        self.int64_keys = [int(key) for key in as_int64.numpy()]
        self.model = {}
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
        self.remove = method(self.table.remove, keys, gives=False)
        self.lookup = method(lambda k: self.table.lookup(k, return_exists=True), keys)
        self.clear = method(self.table.clear, gives=False)
        self.size = method(lambda: [self.table.size()] + [self.table.size(i) for i in range(shards)])

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
        for key, row in zip(self.model_keys(places), array, strict=True):
            self.model[key] = row

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
                self.model[key] = self.model[key] + (row - was)
            elif not seen and key not in self.model:
                self.model[key] = row

    @rule(places=places)
    def do_remove(self, places):
        self.remove(self.keys(places))
        for key in self.model_keys(places):
            self.model.pop(key, None)

    @rule()
    def do_clear(self):
        self.clear()
        self.model.clear()

    @rule(places=places)
    def do_lookup(self, places):
        values, exists = self.lookup(self.keys(places))
        keys = self.model_keys(places)
        want = [self.model.get(key, np.full(self.dim, INITIAL)) for key in keys]
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
    def export_is_the_model(self):
        keys, values = self.table.export()
        assert keys.dtype == (tf.int32 if self.key_dtype == tf.int32 else tf.int64)
        assert values.dtype == self.value_dtype
        rows = dict(zip(keys.numpy().tolist(), values.numpy().astype(np.float64), strict=True))
        assert len(rows) == len(keys)
        assert rows.keys() == self.model.keys()
        for key, row in rows.items():
            np.testing.assert_array_equal(row, self.model[key].astype(np.float64))


TestVariableModel = VariableMachine.TestCase
TestVariableModel.settings = settings(
    stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
