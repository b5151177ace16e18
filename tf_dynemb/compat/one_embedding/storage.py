"""Whether the rows of OneEmbedding's store options have room for the numbers of an optimizer."""

from __future__ import annotations

from tf_dynemb.optimizer.rules import Rule

# What each rule of the engine keeps in a row: numbers per column, and numbers per row.
STATE = {
    "sgd": (0, 0),
    "sgd_momentum": (1, 0),
    "sgd_nesterov": (1, 0),
    "rmsprop": (1, 0),
    "rmsprop_momentum": (2, 0),
    "rmsprop_centered": (2, 0),
    "rmsprop_centered_momentum": (3, 0),
    "adam": (2, 0),
    "adam_amsgrad": (3, 0),
    "smart_decay_adam": (2, 2),
    "adamax": (2, 0),
    "nadam": (2, 0),
    "adadelta": (2, 0),
    "adagrad": (1, 0),
    "rowwise_adagrad": (0, 1),
    "ftrl": (2, 0),
    "lion": (1, 0),
}


def check_storage(name: str, dim: int, size_factor: int, storage_dim: int, rule: Rule) -> None:
    """Raises ValueError if rows of a store's size are not those of the optimizer.

    Args:
        name: of the embedding, for the message.
        dim: numbers per value.
        size_factor: of the store options.
        storage_dim: of the same.
        rule: the optimizer's.
    """
    per_column, per_row = STATE[rule.name]
    want = dim * (1 + per_column) + per_row
    wanted = {want}
    if rule.name == "smart_decay_adam":
        wanted.add(want + dim % 2)  # OneEmbedding begins the step at a multiple of 8 bytes
    if (size_factor * dim if storage_dim == -1 else storage_dim) in wanted:
        return
    got = f"size_factor: got {size_factor}" if storage_dim == -1 else f"storage_dim: got {storage_dim}"
    remedy = f"storage_dim={want}" if per_row else f"size_factor={1 + per_column}"
    raise ValueError(
        f"{name}: {got}, but {rule.name} keeps rows of {want} numbers for embedding_dim = {dim}; make "
        f"the store options with {remedy}"
    )
