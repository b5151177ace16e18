"""The processes of a strategy: which one this is, and what they must agree on."""

from __future__ import annotations

import tensorflow as tf


class Processes:
    """The processes over which a strategy spreads its replicas.

    Attributes:
        number: how many there are.
        is_chief: whether this is the one with the first replica.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        replicas = strategy.num_replicas_in_sync
        local = 1 if replicas == 1 else len(strategy.extended.worker_devices)
        self.number = replicas // local
        self.is_chief = True
        if self.number > 1:
            context = tf.distribute.get_replica_context
            first = tf.function(strategy.run)(lambda: context().replica_id_in_sync_group)
            self.is_chief = int(strategy.experimental_local_results(first)[0]) == 0

        self._sum = tf.function(self._sum_over_replicas)

    def sum(self, number: int) -> int:
        """The sum of a number over the processes. All must call it."""
        if self.number == 1:
            return number
        total = self._sum(tf.constant(number, tf.int64))  # a tensor, so that it is traced once
        local = len(self._strategy.extended.worker_devices)
        return int(self._strategy.experimental_local_results(total)[0]) // local

    def any(self, flag: bool) -> bool:
        """Whether a flag is up in some process."""
        return self.sum(int(flag)) > 0

    def of_chief(self, number: int) -> int:
        """The chief's number."""
        return self.sum(number if self.is_chief else 0)

    def _sum_over_replicas(self, number: tf.Tensor):
        def in_replica(number):
            context = tf.distribute.get_replica_context()
            # A tensor that the replica has made: an argument is on no device.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(number))

        return self._strategy.run(in_replica, args=(number,))
