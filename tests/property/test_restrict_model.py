"""Restricting against a dict: after any writes, precisely the most recent or most frequent rows stay.

The dict holds for each key its value and what the policy's number should say: the number of the last
call that wrote it, or of all calls that did.
"""

import keras
import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from restrict_model import status_of, survivors
from table_rows import INT64_MAX, INT64_MIN, values_of

import tf_dynemb

KEYS = [INT64_MIN, -9, -8, -1, 0, 1, 2, 3, 6, 12, 2**40, INT64_MAX]


class RestrictMachine(RuleBasedStateMachine):
    @initialize(shards=st.integers(1, 4), frequency=st.booleans(), graph=st.booleans())
    def make(self, shards, frequency, graph):
        self.frequency = frequency
        policy = tf_dynemb.FrequencyRestrictPolicy if frequency else tf_dynemb.TimestampRestrictPolicy
        self.table = tf_dynemb.Variable(devices=["/CPU:0"] * shards, restrict_policy=policy)
        self.optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        self.optimizer.build([self.table.handle])
        self.model, self.calls = {}, 0
        signature = [tf.TensorSpec([None], tf.int64)]
        self.train = tf.function(self.step, input_signature=signature) if graph else self.step
        signature = [tf.TensorSpec([], tf.int64)] * 2
        self.restrict = self.table.restrict
        if graph:

            def restrict(num_reserved, trigger):
                self.table.restrict(num_reserved, trigger)

            self.restrict = tf.function(restrict, input_signature=signature)

    def step(self, keys):
        """Adds 1 to the value of each key, as often as it is in the batch."""
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(tf_dynemb.embedding_lookup(self.table, keys))
        gradient = tape.gradient(loss, [self.table.handle])
        self.optimizer.apply(gradient, [self.table.handle])

    def wrote(self, key, value, times=1):
        number = self.model.get(key, (0, 0))[1]
        self.model[key] = (value, number + times if self.frequency else self.calls)

    places = st.lists(st.sampled_from(KEYS), max_size=6)

    @rule(keys=places)
    def do_train(self, keys):
        self.calls += 1
        self.train(tf.constant(keys, tf.int64))
        for key in set(keys):
            self.wrote(key, self.model.get(key, (0, 0))[0] + keys.count(key))

    @rule(keys=places, value=st.integers(-5, 5))
    def do_upsert(self, keys, value):
        self.calls += 1
        self.table.upsert(tf.constant(keys, tf.int64), tf.fill([len(keys), 1], float(value)))
        for key in set(keys):
            self.wrote(key, value)

    @rule(keys=places, seen=st.booleans())
    def do_accum(self, keys, seen):
        """Adds 1 to those that are there, or inserts 1 where none is; equal keys one by one."""
        self.calls += 1
        n = len(keys)
        self.table.accum(
            tf.constant(keys, tf.int64), tf.zeros([n, 1]), tf.ones([n, 1]), tf.fill([n], seen)
        )
        for key in keys:
            if (key in self.model) == seen:
                self.wrote(key, self.model.get(key, (0, 0))[0] + 1)

    @rule(keys=places)
    def do_remove(self, keys):
        self.table.remove(tf.constant(keys, tf.int64))
        for key in keys:
            self.model.pop(key, None)

    @rule(num_reserved=st.integers(0, 12), trigger=st.integers(0, 12))
    def do_restrict(self, num_reserved, trigger):
        self.restrict(np.int64(num_reserved), np.int64(trigger))
        if len(self.model) > trigger:
            stay = survivors({key: number for key, (_, number) in self.model.items()}, num_reserved)
            self.model = {key: self.model[key] for key in stay}

    @invariant()
    def rows_are_those_of_the_model(self):
        assert values_of(self.table) == {key: [value] for key, (value, _) in self.model.items()}

    @invariant()
    def status_is_that_of_the_model(self):
        got = status_of(self.table)
        want = {key: number for key, (_, number) in self.model.items()}
        if not self.frequency:  # times, of which only the order is known
            times = {number: place for place, number in enumerate(sorted(set(got.values())))}
            calls = {number: place for place, number in enumerate(sorted(set(want.values())))}
            got = {key: times[number] for key, number in got.items()}
            want = {key: calls[number] for key, number in want.items()}
        assert got == want


TestRestrictModel = RestrictMachine.TestCase
TestRestrictModel.settings = settings(
    stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
