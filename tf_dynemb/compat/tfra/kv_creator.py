"""TFRA's table back ends: what their configurations mean for a table of this package.

In TFRA a Variable is given a creator of hash tables: cuckoo tables in host memory, HKV tables in GPU
memory, or Redis. Here there is one kind of table, saved by TensorFlow's and Keras' own means; so of a
creator what carries over is how many rows to prepare for, how many there may be, and which leave. What
would change what a table does, and is not here, is refused with what to use instead.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import warnings
from collections.abc import Callable
from typing import Any

import keras

from tf_dynemb.base.checks import whole
from tf_dynemb.base.functions import serialized_function
from tf_dynemb.compat.options import Unsupported, unsupported, without_effect
from tf_dynemb.policies.eviction import LFU, LRU, EvictionPolicy, Score
from tf_dynemb.table.devices import device_list


class HkvEvictStrategy(enum.IntEnum):
    """Which row an HKV table evicts; the numbers are TFRA's. HkvHashTableConfig says what they mean.

    Example:

    >>> from tf_dynemb.compat import tfra as de
    >>> int(de.HkvEvictStrategy.LFU)
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

    >>> from tf_dynemb.compat import tfra as de
    >>> creator = de.CuckooHashTableCreator(de.CuckooHashTableConfig())
    """


@dataclasses.dataclass(frozen=True)
class HkvHashTableConfig:
    """The configuration of an HkvHashTableCreator: a table that is full evicts rows to make room.

    A row leaves with its slot variables. Training, upsert and accum write a row and count as its use; a
    lookup does not.

    Args:
        init_capacity: rows to prepare the index of each shard for, where the Variable is given no
            init_size.
        max_capacity: the rows that each shard may have. 0: the number in the environment variable
            TFRA_GPU_HASHTABLE_UPLIMIT_SIZE. None, which TFRA does not have: any number, and none leaves.
        max_hbm_for_values: bytes of GPU memory for values; without effect, as all parts of a row lie
            together.
        evict_strategy: LRU: the rows that were written longest ago leave. LFU: those that were written
            least often, as tf_dynemb.policies.LFU says. EPOCHLRU: as LRU, which is the same order, since
            epochs rise with time. EPOCHLFU: those that were last written in an earlier epoch, and of one
            epoch those that were written least often. CUSTOMIZED: those to which gen_scores_fn gives the
            lowest scores.
        step_per_epoch: with EPOCHLFU, how many steps of the optimizer an epoch has; 0: there is one. In
            TFRA it is a number of calls that write the table; here upsert and accum write in the epoch
            of the last step. Otherwise without effect.
        gen_scores_fn: with CUSTOMIZED, what tf_dynemb.policies.Score takes: of int64 keys (n,) their
            scores, int64 (n,); export_keys_and_scores gives them. Otherwise without effect.
        reserved_key_start_bit: without effect: no key is reserved.

    Raises:
        ValueError: a strategy that is none; a capacity that is none; CUSTOMIZED without gen_scores_fn.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import tfra as de
    >>> config = de.HkvHashTableConfig(
    ...     init_capacity=2, max_capacity=2, evict_strategy=de.HkvEvictStrategy.LRU)
    >>> table = de.Variable(kv_creator=de.HkvHashTableCreator(config), name="ads")
    >>> for key in (5, 6, 5, 7):
    ...     table.upsert(tf.constant([key], tf.int64), [[0.0]])
    >>> sorted(table.export()[0].numpy().tolist())
    [5, 7]
    """

    init_capacity: int = 1 << 20
    max_capacity: int | None = 1 << 20
    max_hbm_for_values: int = 1 << 30
    evict_strategy: HkvEvictStrategy = HkvEvictStrategy.LRU
    step_per_epoch: int = 0
    gen_scores_fn: Callable[..., Any] | None = None
    reserved_key_start_bit: int = 0

    def __post_init__(self) -> None:
        owner = "tfra.HkvHashTableConfig"
        whole("init_capacity", self.init_capacity, 0)
        whole("step_per_epoch", self.step_per_epoch, 0)
        if self.max_capacity is not None:
            whole("max_capacity", self.max_capacity, 0)
        if self.max_capacity and self.max_capacity < self.init_capacity:  # as in TFRA
            warnings.warn(
                f"max_capacity: got {self.max_capacity}, less than init_capacity, so that it becomes "
                f"{self.init_capacity}; give max_capacity >= init_capacity",
                stacklevel=3,
            )
            object.__setattr__(self, "max_capacity", self.init_capacity)
        try:
            strategy = HkvEvictStrategy(self.evict_strategy)
        except ValueError:
            names = ", ".join(each.name for each in HkvEvictStrategy)
            raise ValueError(
                f"evict_strategy: got {self.evict_strategy!r}, want an HkvEvictStrategy: {names}"
            ) from None
        object.__setattr__(self, "evict_strategy", strategy)
        if isinstance(self.gen_scores_fn, dict):
            function = keras.saving.deserialize_keras_object(self.gen_scores_fn)
            object.__setattr__(self, "gen_scores_fn", function)
        asks_for_scores = strategy == HkvEvictStrategy.CUSTOMIZED
        if asks_for_scores and self.gen_scores_fn is None:
            raise ValueError("gen_scores_fn: got None with CUSTOMIZED, want a function of keys")
        without_effect(
            owner,
            "a row is where the table's devices are, and its score is when or how often it was written",
            max_hbm_for_values=(self.max_hbm_for_values, 1 << 30),
            reserved_key_start_bit=(self.reserved_key_start_bit, 0),
            gen_scores_fn=(None if asks_for_scores else self.gen_scores_fn, None),
        )


class KVCreator:
    """What CuckooHashTableCreator and HkvHashTableCreator are. Creators of one's own are not taken.

    Args:
        config: the configuration of that kind; None for the default one.
        saver: must be None; see FileSystemSaver.

    Raises:
        TypeError: a config of another kind.
        ValueError: a saver.

    Example:

    >>> from tf_dynemb.compat import tfra as de
    >>> isinstance(de.CuckooHashTableCreator(), de.KVCreator)
    True
    """

    config_class: type[Any] = type(None)

    def __init__(self, config: Any = None, saver: object = None) -> None:
        unsupported(f"tfra.{type(self).__name__}", "saver", saver, instead=_SAVING, changes_results=True)
        config = self.config_class() if config is None else config
        if not isinstance(config, self.config_class):
            raise TypeError(f"config: got {type(config).__name__}, want a {self.config_class.__name__}")
        self.config = config
        self.saver = None

    @property
    def init_rows(self) -> int:
        """Rows to prepare each shard for; 0 where the configuration says nothing."""
        return 0

    @property
    def max_rows(self) -> int | None:
        """The rows that each shard may have; None for any number."""
        return None

    @property
    def eviction(self) -> EvictionPolicy | None:
        """Which rows leave a table that is full; None where it is never full."""
        return None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.config == other.config

    def __hash__(self) -> int:
        return hash((type(self), self.config))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config})"

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        return {"config": dataclasses.asdict(self.config)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> KVCreator:
        """The inverse of get_config."""
        return cls(cls.config_class(**config["config"]))


@keras.saving.register_keras_serializable("tf_dynemb.tfra")
class CuckooHashTableCreator(KVCreator):
    """The table there is, which grows as TFRA's cuckoo tables do; init_size says the rows to prepare.

    Example:

    >>> from tf_dynemb.compat import tfra as de
    >>> creator = de.CuckooHashTableCreator()
    >>> table = de.Variable(dim=8, init_size=1000, kv_creator=creator, name="ads")
    """

    config_class = CuckooHashTableConfig


@keras.saving.register_keras_serializable("tf_dynemb.tfra")
class HkvHashTableCreator(KVCreator):
    """A table with a limit of rows, which evicts; HkvHashTableConfig says how.

    Example:

    >>> from tf_dynemb.compat import tfra as de
    >>> creator = de.HkvHashTableCreator(de.HkvHashTableConfig(init_capacity=1000))
    >>> creator.init_rows, creator.max_rows, creator.eviction
    (1000, 1048576, LRU())
    """

    config_class = HkvHashTableConfig

    @property
    def init_rows(self) -> int:
        """Rows to prepare each shard for."""
        return self.config.init_capacity

    @property
    def max_rows(self) -> int | None:
        """The rows that each shard may have; None for any number.

        Raises:
            ValueError: the configuration leaves it to the environment, which has no such number.
        """
        if self.config.max_capacity != 0:
            return self.config.max_capacity
        text = os.environ.get(_LIMIT, "").strip()
        if not text.isdecimal() or int(text) == 0:
            raise ValueError(
                f"max_capacity: got 0 and {_LIMIT}={text!r} in the environment, want a number of rows "
                ">= 1 in one of them"
            )
        return max(int(text), self.init_rows)

    @property
    def eviction(self) -> EvictionPolicy | None:
        """Which rows leave a table that is full."""
        if self.config.max_capacity is None:
            return None
        strategy = self.config.evict_strategy
        if strategy == HkvEvictStrategy.CUSTOMIZED:
            return Score(self.config.gen_scores_fn)
        if strategy == HkvEvictStrategy.EPOCHLFU:
            return LFU(epoch_steps=self.config.step_per_epoch or None)
        # EPOCHLRU compares epochs first, then times. Neither ever falls, so it orders as times alone do.
        return LFU() if strategy == HkvEvictStrategy.LFU else LRU()

    def get_config(self) -> dict[str, Any]:
        """What from_config needs."""
        fields = {
            field.name: getattr(self.config, field.name) for field in dataclasses.fields(self.config)
        }
        if self.config.gen_scores_fn is not None:
            fields["gen_scores_fn"] = serialized_function(self.config.gen_scores_fn)
        return {"config": fields}


_LIMIT = "TFRA_GPU_HASHTABLE_UPLIMIT_SIZE"
_SAVING = (
    "rows go into tf.train.Checkpoint, SavedModel and Keras' files by themselves, and onto any number "
    "of shards from there; a table's own directory of files is a snapshot, tf_dynemb.snapshot"
)
_REDIS = (
    "rows live in this process: serve a table from a SavedModel, or carry its rows in a snapshot, "
    "tf_dynemb.snapshot. For lookup services that read rows from Redis, publish them by "
    "tf_dynemb.serving.Publisher, and let tf_dynemb.redis.RedisFollower write them there"
)


class RedisTableConfig(Unsupported):
    """TFRA's configuration of tables in Redis; refused, with what to use instead.

    Example:

    >>> from tf_dynemb.compat import tfra as de
    >>> de.RedisTableConfig("redis.json")
    Traceback (most recent call last):
    ValueError: RedisTableConfig is not supported; rows live in this process: serve a table from \
a SavedModel, or carry its rows in a snapshot, tf_dynemb.snapshot. For lookup services that read rows \
from Redis, publish them by tf_dynemb.serving.Publisher, and let tf_dynemb.redis.RedisFollower write \
them there
    """

    _instead = _REDIS


class RedisTableCreator(Unsupported):
    """TFRA's tables in Redis; refused, with what to use instead.

    Example:

    >>> from tf_dynemb.compat import tfra as de
    >>> de.RedisTableCreator()
    Traceback (most recent call last):
    ValueError: RedisTableCreator is not supported; rows live in this process: serve a table from \
a SavedModel, or carry its rows in a snapshot, tf_dynemb.snapshot. For lookup services that read rows \
from Redis, publish them by tf_dynemb.serving.Publisher, and let tf_dynemb.redis.RedisFollower write \
them there
    """

    _instead = _REDIS


class FileSystemSaver(Unsupported):
    """TFRA's raw key and value files beside a checkpoint; refused, with what to use instead.

    Example:

    >>> from tf_dynemb.compat import tfra as de
    >>> de.FileSystemSaver()
    Traceback (most recent call last):
    ValueError: FileSystemSaver is not supported; rows go into tf.train.Checkpoint, SavedModel and \
Keras' files by themselves, and onto any number of shards from there; a table's own directory of \
files is a snapshot, tf_dynemb.snapshot
    """

    _instead = _SAVING


def add_fields_of(kv_creator: Any, fields: dict[str, Any]) -> None:
    """Adds what a table's creator says to the fields of its TableConfig.

    Raises:
        TypeError: it is neither None nor one of the creators here; a limit by both.
    """
    if kv_creator is None:
        return
    if type(kv_creator) not in (CuckooHashTableCreator, HkvHashTableCreator):
        raise TypeError(
            f"kv_creator: got {kv_creator!r}, want None, a CuckooHashTableCreator or an "
            "HkvHashTableCreator"
        )
    shards = len(device_list(fields.get("devices")))
    if not fields.get("init_size"):
        fields["init_size"] = kv_creator.init_rows * shards
    if kv_creator.eviction is None:
        return
    for field in ("max_rows", "eviction"):
        if fields.get(field) is not None:
            raise TypeError(f"{field}: got one beside the kv_creator's, want one of them")
    if fields.get("on_full", "error") != "error":
        raise TypeError(
            f"on_full: got {fields['on_full']!r} beside the kv_creator's strategy, by which rows leave; "
            "leave it out"
        )
    fields["max_rows"] = kv_creator.max_rows * shards
    fields["eviction"] = kv_creator.eviction
