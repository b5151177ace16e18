"""TFRA's table back ends: what their configurations mean for a table of this package.

In TFRA a Variable is given a creator of hash tables: cuckoo tables in host memory, HKV tables in GPU
memory, or Redis. Here there is one kind of table, which grows by itself and is saved by TensorFlow's and
Keras' own means; so of a creator what carries over is how many rows to prepare for. What would change
what a table does, and is not here, is refused with what to use instead.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import keras
import numpy as np


class HkvEvictStrategy(enum.IntEnum):
    """Which row an HKV table evicts; the numbers are TFRA's. Tables evict by a restrict policy here.

    Example:

    >>> import tf_dynemb
    >>> int(tf_dynemb.HkvEvictStrategy.LFU)
    1
    """

    LRU = 0
    LFU = 1
    EPOCHLRU = 2
    EPOCHLFU = 3
    CUSTOMIZED = 4


@dataclasses.dataclass(frozen=True)
class CuckooHashTableConfig:
    """The configuration of a CuckooHashTableCreator, empty as in TFRA.

    Example:

    >>> import tf_dynemb
    >>> creator = tf_dynemb.CuckooHashTableCreator(tf_dynemb.CuckooHashTableConfig())
    """


@dataclasses.dataclass(frozen=True)
class HkvHashTableConfig:
    """The configuration of an HkvHashTableCreator, as far as it has a meaning here.

    An HKV table has a fixed capacity and evicts rows to stay below it; a table of this package grows.

    Args:
        init_capacity: rows to prepare the index of each shard for, where the Variable is given no
            init_size.
        max_capacity: must be None: there is no bound. To keep a table small give it a restrict_policy
            and call Variable.restrict.
        max_hbm_for_values: bytes of GPU memory for values; without effect, as rows lie in host memory.
        evict_strategy: must be None. restrict with TimestampRestrictPolicy keeps what LRU keeps, with
            FrequencyRestrictPolicy what LFU keeps.
        step_per_epoch, gen_scores_fn: must be 0 and None; they belong to eviction.
        reserved_key_start_bit: without effect: no key is reserved.

    Raises:
        ValueError: an argument that bounds the table or evicts rows; a capacity that is none.

    Example:

    >>> import tf_dynemb
    >>> config = tf_dynemb.HkvHashTableConfig(init_capacity=1 << 16)
    >>> creator = tf_dynemb.HkvHashTableCreator(config)
    >>> table = tf_dynemb.Variable(dim=8, kv_creator=creator, name="ads")
    """

    init_capacity: int = 1 << 20
    max_capacity: int | None = None
    max_hbm_for_values: int = 1 << 30
    evict_strategy: HkvEvictStrategy | None = None
    step_per_epoch: int = 0
    gen_scores_fn: Callable | None = None
    reserved_key_start_bit: int = 0

    def __post_init__(self):
        capacity = self.init_capacity
        if not isinstance(capacity, (int, np.integer)) or isinstance(capacity, bool) or capacity < 0:
            raise ValueError(f"init_capacity: got {capacity!r}, want a number of rows >= 0")
        for argument in ("max_capacity", "evict_strategy", "gen_scores_fn"):
            if (value := getattr(self, argument)) is not None:
                raise ValueError(f"{argument}: got {value!r}, want None; {_RESTRICT}")
        if self.step_per_epoch != 0:
            raise ValueError(f"step_per_epoch: got {self.step_per_epoch!r}, want 0; {_RESTRICT}")


_RESTRICT = (
    "tables here grow and evict nothing by themselves: give the Variable a restrict_policy "
    "(TimestampRestrictPolicy for LRU, FrequencyRestrictPolicy for LFU) and call restrict"
)


class KVCreator:
    """What CuckooHashTableCreator and HkvHashTableCreator are. Creators of one's own are not taken.

    Args:
        config: the configuration of that kind; None for the default one.
        saver: must be None; see FileSystemSaver.

    Raises:
        TypeError: a config of another kind.
        RuntimeError: a saver.

    Example:

    >>> import tf_dynemb
    >>> isinstance(tf_dynemb.CuckooHashTableCreator(), tf_dynemb.KVCreator)
    True
    """

    config_class: type = type(None)

    def __init__(self, config=None, saver=None):
        if saver is not None:
            raise RuntimeError(f"saver: got {saver!r}, want None; {_SAVING}")
        config = self.config_class() if config is None else config
        if not isinstance(config, self.config_class):
            raise TypeError(f"config: got {type(config).__name__}, want a {self.config_class.__name__}")
        self.config = config
        self.saver = None

    @property
    def init_rows(self) -> int:
        """Rows to prepare each shard for; 0 where the configuration says nothing."""
        return int(getattr(self.config, "init_capacity", 0))

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and self.config == other.config

    def __hash__(self) -> int:
        return hash((type(self), self.config))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config})"

    def get_config(self) -> dict:
        """What from_config needs."""
        return {"config": dataclasses.asdict(self.config)}

    @classmethod
    def from_config(cls, config: dict) -> KVCreator:
        """The inverse of get_config."""
        return cls(cls.config_class(**config["config"]))


@keras.saving.register_keras_serializable("tf_dynemb")
class CuckooHashTableCreator(KVCreator):
    """The table there is, which grows as TFRA's cuckoo tables do; init_size says the rows to prepare.

    Example:

    >>> import tf_dynemb
    >>> creator = tf_dynemb.CuckooHashTableCreator()
    >>> table = tf_dynemb.Variable(dim=8, init_size=1000, kv_creator=creator, name="ads")
    """

    config_class = CuckooHashTableConfig


@keras.saving.register_keras_serializable("tf_dynemb")
class HkvHashTableCreator(KVCreator):
    """The table there is, prepared for rows; HkvHashTableConfig says what is refused.

    Example:

    >>> import tf_dynemb
    >>> creator = tf_dynemb.HkvHashTableCreator(tf_dynemb.HkvHashTableConfig(init_capacity=1000))
    >>> creator.init_rows
    1000
    """

    config_class = HkvHashTableConfig


class _Refused:
    """A class of TFRA that nothing here corresponds to: making one says what to use instead."""

    _instead = ""

    def __init__(self, *args, **kwargs):
        del args, kwargs
        # For good: the message says what to use here. Python's class for what a program does not have.
        raise NotImplementedError(f"{type(self).__name__} is not there; {self._instead}")


_SAVING = (
    "rows go into tf.train.Checkpoint, SavedModel and Keras' files by themselves, and onto any number "
    "of shards from there; a table's own directory of files is a snapshot, tf_dynemb.snapshot"
)
_REDIS = (
    "rows live in this process: serve a table from a SavedModel, or carry its rows in a snapshot, "
    "tf_dynemb.snapshot"
)


class RedisTableConfig(_Refused):
    """TFRA's configuration of tables in Redis; refused, with what to use instead.

    Example:

    >>> import tf_dynemb
    >>> tf_dynemb.RedisTableConfig("redis.json")
    Traceback (most recent call last):
    NotImplementedError: RedisTableConfig is not there; rows live in this process: serve a table from \
a SavedModel, or carry its rows in a snapshot, tf_dynemb.snapshot
    """

    _instead = _REDIS


class RedisTableCreator(_Refused):
    """TFRA's tables in Redis; refused, with what to use instead.

    Example:

    >>> import tf_dynemb
    >>> tf_dynemb.RedisTableCreator()
    Traceback (most recent call last):
    NotImplementedError: RedisTableCreator is not there; rows live in this process: serve a table from \
a SavedModel, or carry its rows in a snapshot, tf_dynemb.snapshot
    """

    _instead = _REDIS


class FileSystemSaver(_Refused):
    """TFRA's raw key and value files beside a checkpoint; refused, with what to use instead.

    Example:

    >>> import tf_dynemb
    >>> tf_dynemb.FileSystemSaver()
    Traceback (most recent call last):
    NotImplementedError: FileSystemSaver is not there; rows go into tf.train.Checkpoint, SavedModel and \
Keras' files by themselves, and onto any number of shards from there; a table's own directory of \
files is a snapshot, tf_dynemb.snapshot
    """

    _instead = _SAVING


def init_rows_of(kv_creator) -> int:
    """Rows to prepare each shard for, by a table's creator; 0 where it says nothing.

    Raises:
        TypeError: it is neither None nor one of the creators here.
    """
    if kv_creator is None:
        return 0
    if type(kv_creator) not in (CuckooHashTableCreator, HkvHashTableCreator):
        raise TypeError(
            f"kv_creator: got {kv_creator!r}, want None, a CuckooHashTableCreator or an "
            "HkvHashTableCreator"
        )
    return kv_creator.init_rows
