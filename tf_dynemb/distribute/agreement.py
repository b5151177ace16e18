"""What processes tell each other before steps: what they have, so that all go on or all end.

Each process reads the data for itself and takes its share of what should be one global batch. Where
the processes differ, a training would be of examples that some process has twice and others never, or
one process would wait for others that have come to the end. So each says before the steps how many
examples it has for them, and a fingerprint of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb.distribute.batches import Batches
from tf_dynemb.distribute.processes import Processes
from tf_dynemb.distribute.shares import size_of_batch

# Batches that are read and compared at once, so that processes wait for each other once for so many.
_AHEAD = 8


def batches_in_step(data: Batches, processes: Processes, first: int = 0) -> Iterator[Any]:
    """The batches of the next epoch, each of which all processes have.

    Args:
        data: what the process reads.
        processes: all of which call this and take batch after batch.
        first: the number that the first batch has in the epoch.

    Raises:
        ValueError: global batches that differ between processes; in all of them.
    """
    batches = data.epoch()
    if processes.number == 1 or not data.is_global:
        yield from batches
        return
    step, ahead = first, 1  # the first one is not kept waiting for others
    while True:
        drawn = list(itertools.islice(batches, ahead))
        facts = np.zeros([_AHEAD, 3], np.int64)
        for i, batch in enumerate(drawn):
            facts[i] = 1, *describe(batch).numpy()
        facts = processes.gather(facts.ravel()).reshape(-1, *facts.shape)
        for i in range(ahead):
            _check_same(facts[:, i], step + i)
        yield from drawn
        if len(drawn) < ahead:
            return
        step, ahead = step + ahead, min(2 * ahead, _AHEAD)


def check_same_files(data: Batches, processes: Processes) -> None:
    """Raises a ValueError in all processes unless they have the same FileBatches, or all have others."""
    if processes.number == 1:
        return
    prints = processes.gather([-1 if data.reading is None else data.reading.parts.files])[:, 0]
    if (prints != prints[0]).any():
        raise ValueError(
            f"data: got FileBatches of the fingerprints {prints.tolist()} in the processes (-1: none), "
            "want the same names of files, numbers of records, seed and sizes in all; if a pattern "
            "finds other files, give the names"
        )


@tf.function(reduce_retracing=True, autograph=False)
def describe(batch: Any) -> tf.Tensor:
    """The number of examples of a batch, and a fingerprint of types, shapes and contents; int64 (2,)."""
    with tf.device("CPU:0"):
        size = size_of_batch(batch)
        leaves = tf.nest.flatten(batch, expand_composites=True)
        dtypes = " ".join("none" if leaf is None else leaf.dtype.name for leaf in leaves)
        prints = [tf.constant([list(dtypes.encode())], tf.uint8)]
        for leaf in leaves:
            if leaf is None:
                continue
            if leaf.dtype == tf.string:
                leaf = tf.strings.to_hash_bucket_fast(leaf, 2**63 - 1)
            for part in (tf.shape(leaf, out_type=tf.int64), leaf):
                prints.append(tf.fingerprint(tf.reshape(part, [1, -1])))
        return tf.stack([size, tf.bitcast(tf.fingerprint(tf.concat(prints, 1))[0], tf.int64)])


def _check_same(facts: np.ndarray, step: int) -> None:
    """Raises an error unless all processes have (has a batch, its size, its fingerprint) alike."""
    if (facts == facts[0]).all():
        return
    having: dict[tuple[int, ...], list[str]] = {}
    for process, fact in enumerate(facts.tolist()):
        having.setdefault(tuple(fact), []).append(str(process))
    got = "; ".join(
        f"process {', '.join(processes)}: "
        + (f"{size} examples of fingerprint {print_ % 2**64:016x}" if has else "no more batch")
        for (has, size, print_), processes in having.items()
    )
    raise ValueError(
        f"data: got for batch {step} of the epoch, from 0, in {got}; want the same global batches in "
        "all processes, which share them themselves: give shuffle and whatever else draws a seed, do "
        "not shard the data, and give all the same number of batches. Where each process is to have "
        "data of its own, give what strategy.distribute_datasets_from_function returns"
    )
