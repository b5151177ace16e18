"""TFRA's lookup functions: those of tf_dynemb with the arguments of tf.nn's, in TFRA's order."""

from __future__ import annotations

from typing import Any

from tf_dynemb.base.hints import Ids, TensorLike
from tf_dynemb.compat.options import without_effect
from tf_dynemb.lookup import embedding_lookup as dense
from tf_dynemb.lookup import embedding_lookup_sparse as sparse

_ONE_TABLE = "a table is partitioned by its devices and partitioner, and any id is valid"


def embedding_lookup(
    params: Any,
    ids: Ids,
    partition_strategy: object = None,
    name: str | None = None,
    validate_indices: object = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """tf_dynemb.embedding_lookup; partition_strategy and validate_indices have no effect."""
    _ignored("embedding_lookup", partition_strategy, validate_indices)
    return dense.embedding_lookup(params, ids, name, max_norm, return_trainable)


def embedding_lookup_unique(
    params: Any,
    ids: Ids,
    partition_strategy: object = None,
    name: str | None = None,
    validate_indices: object = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """tf_dynemb.embedding_lookup_unique; partition_strategy and validate_indices have no effect."""
    _ignored("embedding_lookup_unique", partition_strategy, validate_indices)
    return dense.embedding_lookup_unique(params, ids, name, max_norm, return_trainable)


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Ids,
    sp_weights: Ids | None,
    partition_strategy: object = None,
    name: str | None = "embedding_lookup_sparse",
    combiner: str = "mean",
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """tf_dynemb.embedding_lookup_sparse; partition_strategy has no effect."""
    _ignored("embedding_lookup_sparse", partition_strategy)
    return sparse.embedding_lookup_sparse(
        params, sp_ids, sp_weights, combiner, max_norm, name, return_trainable
    )


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Ids,
    sparse_weights: Ids | None = None,
    combiner: str = "mean",
    default_id: TensorLike | None = None,
    name: str | None = "safe_embedding_lookup_sparse",
    partition_strategy: object = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
) -> Any:
    """tf_dynemb.safe_embedding_lookup_sparse; partition_strategy has no effect."""
    _ignored("safe_embedding_lookup_sparse", partition_strategy)
    return sparse.safe_embedding_lookup_sparse(
        embedding_weights,
        sparse_ids,
        sparse_weights,
        combiner,
        default_id,
        max_norm,
        name,
        return_trainable,
    )


def _ignored(function: str, partition_strategy: object, validate_indices: object = None) -> None:
    without_effect(
        f"tfra.{function}",
        _ONE_TABLE,
        partition_strategy=(partition_strategy, None),
        validate_indices=(validate_indices, None),
    )
