"""The processes of a strategy: which one this is, and what they must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Processes:
    """The processes over which a strategy spreads its replicas.

    Attributes:
        number: how many there are.
        is_chief: whether this is the one with the first replica.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._replicas = strategy.num_replicas_in_sync
        self._local = 1 if self._replicas == 1 else len(strategy.extended.worker_devices)
        self.number = self._replicas // self._local
        self.is_chief = True
        if self.number > 1:
            context = tf.distribute.get_replica_context
            first = tf.function(strategy.run)(lambda: context().replica_id_in_sync_group)
            self.is_chief = int(strategy.experimental_local_results(first)[0]) == 0

        self._gather = tf.function(self._gather_over_replicas)

    def gather(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """What each process has, int64 (processes, n), of n numbers. All must call it."""
        tensor = tf.convert_to_tensor(numbers, tf.int64)  # so that it is traced once
        if self.number == 1:
            return tensor.numpy()[None]
        gathered = self._gather(tensor)
        return self._strategy.experimental_local_results(gathered)[0].numpy()[:: self._local]

    def any(self, flag: bool) -> bool:
        """Whether a flag is up in some process. All must call it."""
        return bool(self.gather([int(flag)]).any())

    def of_chief(self, number: int) -> int:
        """The chief's number. All must call it."""
        return int(self.gather([number])[0, 0])

    def _gather_over_replicas(self, numbers: tf.Tensor) -> Any:
        def in_replica(numbers: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            # A tensor that the replica has made: an argument is on no device.
            mine = tf.one_hot(context.replica_id_in_sync_group, self._replicas, dtype=tf.int64)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine[:, None] * numbers)

        return self._strategy.run(in_replica, args=(numbers,))
