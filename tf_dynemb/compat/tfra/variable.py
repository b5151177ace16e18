"""TFRA's Variable and get_variable: its arguments, and methods that only it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_dynemb.base.checks import whole
from tf_dynemb.base.hints import Ids
from tf_dynemb.compat.options import check_limits, without_effect
from tf_dynemb.compat.tfra.kv_creator import add_fields_of
from tf_dynemb.lookup.embedding_lookup import embedding_lookup
from tf_dynemb.policies.eviction import eviction_of
from tf_dynemb.policies.restrict_policy import RestrictPolicy
from tf_dynemb.shard.partitioner import default_partition_fn
from tf_dynemb.table.devices import device_list
from tf_dynemb.table.get_variable import find_or_make
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.table_config import TableConfig, take_fields
from tf_dynemb.table.variable import Variable as CoreVariable

_IN_PLACE = "rows are updated in place, and tables are saved by TensorFlow's own means"


class Variable(CoreVariable):
    """tf_dynemb.Variable with TFRA's arguments, in their order, and with TFRA's views of it.

    Args:
        key_dtype, value_dtype, dim, devices, partitioner, name, initializer, trainable, checkpoint,
            init_size, restrict_policy, keep_keys: fields of tf_dynemb.table.table_config.TableConfig.
        shared_name: without effect, as in TFRA.
        kv_creator: None, a CuckooHashTableCreator, or an HkvHashTableCreator, which says how many rows
            each shard may have and which leave, and how many rows to prepare for where init_size does
            not. If neither does, the environment's TF_HASHTABLE_INIT_SIZE, per shard.
        bp_v2: without effect: rows are always updated in place.
        short_file_name: without effect: no file is named after a table.
        **limits: max_rows, max_bytes, on_full, eviction, admission, keep_evicted, of TableConfig, which
            TFRA has not. max_rows, on_full and eviction not beside an HkvHashTableCreator, which says
            them.

    Raises:
        TypeError, ValueError: what TableConfig raises; a kv_creator of another kind; an eviction by
            Score() without a function.

    Example:

    >>> import tensorflow as tf
    >>> from tf_dynemb.compat import tfra as de
    >>> table = de.Variable(tf.int64, tf.float32, 2, name="users")
    >>> rows = table.embedding_lookup(tf.constant([5], tf.int64), name="friends")
    >>> table.get_trainable_by_name("friends") is table.handle
    True
    """

    def __init__(
        self,
        key_dtype: tf.DType | str = tf.int64,
        value_dtype: tf.DType | str = tf.float32,
        dim: int = 1,
        devices: Sequence[str] | str | None = None,
        partitioner: Callable[[tf.Tensor, int], tf.Tensor] = default_partition_fn,
        shared_name: str | None = None,
        name: str = "DynamicEmbedding_Variable",
        initializer: object = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator: object = None,
        restrict_policy: type[RestrictPolicy] | None = None,
        bp_v2: bool = False,
        short_file_name: bool = False,
        keep_keys: bool = False,
        **limits: Any,
    ) -> None:
        arguments = {**locals()}
        self._lookup_names: set[str] = set()
        super().__init__(_config(arguments))
        self.kv_creator = kv_creator

    def _note_lookup(self, name: str | None) -> None:
        self._lookup_names.add(name or "embedding_lookup")

    @property
    def trainable_store(self) -> dict[str, TableHandle]:
        """The name of every embedding lookup so far, and the handle.

        In TFRA each such name has a variable of its own, the copy of a batch. Here all lookups of a
        table have one variable, the handle, so it does not matter which name one asks for; optimizers
        train it once, however often it is among their variables. Lookups that were given no name are
        "embedding_lookup".
        """
        return dict.fromkeys(sorted(self._lookup_names), self.handle)

    def get_trainable_by_name(self, name: str) -> TableHandle:
        """The handle, whatever the name: all lookups of a table have this one variable.

        Give it to tape.gradient, to minimize(var_list=...) and to clipping, also before the lookup has
        been made for the first time.

        Raises:
            TypeError: name is not a string.
        """
        if not isinstance(name, str):
            raise TypeError(f"name: got {name!r}, want a string")
        return self.handle

    get_eager_trainable_by_name = get_trainable_by_name

    def embedding_lookup(
        self,
        ids: Ids,
        name: str | None = None,
        max_norm: float | None = None,
        return_trainable: bool = False,
    ) -> Any:
        """As tf_dynemb.embedding_lookup(self, ids, ...)."""
        return embedding_lookup(self, ids, name, max_norm, return_trainable)

    def export_keys_and_scores(
        self, split_size: int, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys (n,), as export has them, and what eviction ranks their rows by, int64 (n,).

        The score of a row is what gen_scores_fn gave (CUSTOMIZED; of floats numbers in their order), the
        time of its last write in microseconds (LRU), the number of its writes (LFU), or
        epoch << 32 | that number (EPOCHLFU); without eviction that of the restrict_policy. Rows of the
        lowest leave first.

        Args:
            split_size: without effect; in TFRA how many rows are copied at once.
            name: of the operation.

        Raises:
            TypeError: the rows have no scores.
            ValueError: split_size is no number >= 1.

        Example:

        >>> import tensorflow as tf
        >>> from tf_dynemb.compat import tfra as de
        >>> config = de.HkvHashTableConfig(8, 8, evict_strategy=de.HkvEvictStrategy.LFU)
        >>> table = de.Variable(kv_creator=de.HkvHashTableCreator(config), name="scored")
        >>> for keys in ([5, 6], [5, 7]):
        ...     table.upsert(tf.constant(keys, tf.int64), [[0.0], [0.0]])
        >>> keys, scores = table.export_keys_and_scores(split_size=100)
        >>> sorted(zip(keys.numpy().tolist(), scores.numpy().tolist()))
        [(5, 2), (6, 1), (7, 1)]
        """
        keys, _, scores = self._export_with_scores(split_size, name, whole_rows=False)
        return keys, scores

    def export_with_scores(
        self, split_size: int, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """All keys (n,), values (n, dim) and scores, int64 (n,); see export_keys_and_scores."""
        return self._export_with_scores(split_size, name, whole_rows=True)

    def _export_with_scores(
        self, split_size: int, name: str | None, whole_rows: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        whole("split_size", split_size)
        config = self.config
        eviction, field = eviction_of(config.eviction), None
        if eviction is not None:
            field = eviction.order_field
        elif config.restrict_policy is not None:
            field = config.restrict_policy.meta_field
        if field is None:
            raise TypeError(
                f"{self.name}: its rows have no scores; make it with an HkvHashTableCreator, a "
                "restrict_policy, or an eviction by other things than the rows' values"
            )
        keys, values, _, meta, *_, strings = self.resource.export_rows_with_strings(
            name=name, whole_rows=whole_rows
        )
        scores = tf.reshape(
            tf.bitcast(tf.reshape(meta, [-1, 8]), tf.int64), [-1, len(config.meta_fields)]
        )
        return (
            self._exported_keys(keys, strings),
            values,
            scores[:, config.meta_fields.index(field)],
        )

    def verify_embedding_weights(self, sparse_ids: Ids, sparse_weights: Ids | None = None) -> None:
        """Checks the dtypes of what a sparse lookup is given.

        Args:
            sparse_ids: want key_dtype.
            sparse_weights: want value_dtype, or None.

        Raises:
            TypeError: one of another dtype.
        """
        for argument, got, want in (
            ("sparse_ids", sparse_ids, ("key_dtype", self.key_dtype)),
            ("sparse_weights", sparse_weights, ("value_dtype", self.value_dtype)),
        ):
            if got is not None and got.dtype != want[1]:
                raise TypeError(
                    f"{argument}: got {got.dtype.name}, the table's {want[0]} is {want[1].name}"
                )


def get_variable(
    name: str,
    key_dtype: tf.DType | str = tf.int64,
    value_dtype: tf.DType | str = tf.float32,
    dim: int = 1,
    devices: Sequence[str] | str | None = None,
    partitioner: Callable[[tf.Tensor, int], tf.Tensor] = default_partition_fn,
    shared_name: str | None = "get_variable",
    initializer: object = None,
    trainable: bool = True,
    checkpoint: bool = True,
    init_size: int = 0,
    kv_creator: object = None,
    restrict_policy: type[RestrictPolicy] | None = None,
    bp_v2: bool = False,
    short_file_name: bool = False,
    keep_keys: bool = False,
    **limits: Any,
) -> Variable:
    """tf_dynemb.get_variable with TFRA's arguments, in their order; of Variable, see there.

    Raises:
        ValueError: a table of the name that has other arguments. TFRA returns a table of any arguments.

    Example:

    >>> from tf_dynemb.compat import tfra as de
    >>> users = de.get_variable("tfra_users", dim=4)
    >>> de.get_variable("tfra_users", dim=4) is users
    True
    """
    arguments = {**locals()}
    config = _config(arguments)
    del arguments["limits"]
    return find_or_make(config, lambda config: Variable(**arguments | limits | {"name": config.name}))


def _config(arguments: dict[str, Any]) -> TableConfig:
    """What a table is made of, of the arguments of Variable. TFRA itself does not use shared_name."""
    without_effect(
        "tfra.Variable",
        _IN_PLACE,
        bp_v2=(arguments["bp_v2"], False),
        short_file_name=(arguments["short_file_name"], False),
    )
    check_limits("tfra.Variable", arguments["limits"])
    fields = take_fields({**arguments, **arguments["limits"]})
    add_fields_of(arguments["kv_creator"], fields)
    if not fields["init_size"]:
        fields["init_size"] = init_rows_of_environment() * len(device_list(fields["devices"]))
    return TableConfig(**fields)


def init_rows_of_environment() -> int:
    """Rows to prepare each shard for, of TFRA's environment variable TF_HASHTABLE_INIT_SIZE."""
    text = os.environ.get("TF_HASHTABLE_INIT_SIZE", "").strip()
    if text and not text.isdecimal():
        raise ValueError(
            f"environment variable TF_HASHTABLE_INIT_SIZE: got {text!r}, want a number of rows >= 0"
        )
    return int(text or "0")
