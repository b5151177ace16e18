"""Keys, and the rows that each of them has: what a KeyedJaggedTensor is checked by and joined from."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb.base.hints import TensorLike
from tf_dynemb.jagged import rows


def as_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys as a tuple.

    Raises:
        TypeError: a string instead of several; what is no string.
        ValueError: a key twice.
    """
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys: got {keys!r}, want a list of strings")
    keys = tuple(keys)
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"keys: got {key!r}, want strings")
    if len(set(keys)) < len(keys):
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise ValueError(f"keys: got {', '.join(map(repr, twice))} more than once, want each key once")
    return keys


def all_or_none(what: str, names: Iterable[Any], have: Collection[Any]) -> None:
    """Raises ValueError unless `have` holds all of the names, or none of them, and no others."""
    missing = [name for name in names if name not in have]
    other = [name for name in have if name not in names]
    if (have and missing) or other:
        raise ValueError(
            f"{what}: got them for {list(have)}, want them for all of {list(names)} or none"
        )


def as_strides(
    keys: tuple[str, ...], per_rank: TensorLike | None, per_key: TensorLike | None
) -> tf.Tensor | None:
    """Variable strides int64 (keys, ranks), or None where those given are not variable.

    Raises:
        ValueError: other shapes; strides below 0.
    """
    is_given = per_rank is not None and (tf.is_tensor(per_rank) or len(per_rank) > 0)
    if is_given:
        name, strides = "stride_per_key_per_rank", rows.as_integers("stride_per_key_per_rank", per_rank)
        is_right = strides.shape.is_compatible_with([len(keys), None])
    elif tf.is_tensor(per_key) or per_key is not None and len(set(per_key)) > 1:
        name, strides = "stride_per_key", rows.as_integers("stride_per_key", per_key)
        is_right = strides.shape.is_compatible_with([len(keys)])
        strides = tf.reshape(strides, [-1, 1])
    else:
        return None
    if not is_right:
        raise ValueError(f"{name}: got shape {strides.shape} for the {len(keys)} keys {list(keys)}")
    if not tf.is_symbolic_tensor(strides) and (strides.numpy() < 0).any():
        raise ValueError(f"{name}: got {strides.numpy().tolist()}, want none below 0")
    return tf.cast(strides, tf.int64)


def as_inverse(
    keys: tuple[str, ...], inverse_indices: tuple[Sequence[str], TensorLike] | None
) -> tuple[tuple[str, ...], tf.Tensor | None]:
    """Keys and integers (keys, examples) of inverse indices; () and None without.

    Raises:
        TypeError: what is no pair.
        ValueError: another shape; a key of `keys` that is not among them.
    """
    if inverse_indices is None:
        return (), None
    if not isinstance(inverse_indices, (tuple, list)) or len(inverse_indices) != 2:
        raise TypeError(f"inverse_indices: got {inverse_indices!r:.80}, want a tuple (keys, indices)")
    names, indices = as_keys(inverse_indices[0]), rows.as_integers("inverse_indices", inverse_indices[1])
    if not indices.shape.is_compatible_with([len(names), None]):
        raise ValueError(
            f"inverse_indices: got shape {indices.shape} for {len(names)} keys, want (keys, examples)"
        )
    missing = [key for key in keys if key not in names]
    if missing:
        raise ValueError(f"inverse_indices: got those of {list(names)}, want {missing} as well")
    return names, indices


def check_rows(kjt: Any, stride: Any) -> None:
    """Raises ValueError where the fields of a KeyedJaggedTensor disagree, as far as they are known.

    Args:
        kjt: the value, whose fields are set.
        stride: what its constructor was given.
    """
    keys, number = kjt._keys, kjt._lengths.shape[0] if kjt._lengths is not None else None
    if number is None and kjt._offsets is not None and kjt._offsets.shape[0] is not None:
        number = kjt._offsets.shape[0] - 1
    if kjt._strides is not None:
        strides = rows.as_numbers(kjt.stride_per_key_tensor())
        if isinstance(strides, list) and number is not None and sum(strides) != number:
            raise ValueError(
                f"lengths: got {number}, want {sum(strides)}: as many as {_by_key(keys, strides)}"
            )
    else:
        want = None
        if isinstance(stride, (int, np.integer)) or (
            tf.is_tensor(stride) and not tf.is_symbolic_tensor(stride)
        ):
            want = len(keys) * int(stride)
        if number is not None and (number % max(len(keys), 1) or want not in (None, number)):
            raise ValueError(
                f"lengths: got {number} for the {len(keys)} keys {list(keys)}, want "
                + ("the same number for each" if want is None else f"{int(stride)} for each")
            )
        strides = None if number is None or not keys else [number // len(keys)] * len(keys)
    if not keys and (number or kjt._values.shape[0]):
        raise ValueError(f"keys: got none for values of shape {kjt._values.shape}")

    def name_of(row: int) -> str:
        if not isinstance(strides, list):
            return f"row {row}"
        ends = list(itertools.accumulate(strides))
        index = int(np.searchsorted(ends, row, side="right"))
        return f"row {row - ends[index] + strides[index]} of key {keys[index]!r}"

    def totals(lengths: Any) -> str:
        if not isinstance(strides, list):
            return ""
        begins = [0, *itertools.accumulate(strides)]
        sums = [int(lengths[begin:end].sum()) for begin, end in itertools.pairwise(begins)]
        return f" ({_by_key(keys, sums)})"

    rows.check(kjt._lengths, kjt._offsets, kjt._values, kjt._weights, name_of, totals)
    if kjt._inverse is None or tf.is_symbolic_tensor(kjt._inverse):
        return
    for index, key in enumerate(keys if isinstance(strides, list) else ()):
        used = kjt._inverse[kjt._inverse_keys.index(key)].numpy()
        if used.size and not 0 <= used.min() <= used.max() < strides[index]:
            raise ValueError(
                f"inverse_indices: got {used.tolist()} for key {key!r}, want numbers of its "
                f"{strides[index]} rows"
            )


def joined_lengths(
    jts: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Lengths (keys * rows,) of JaggedTensors by key, and strides (keys, 1) if they are variable.

    In a graph numbers of rows that are not known are checked to be equal, and lengths of each key to
    add up to its values (theirs by key, of one dtype): in a few operations, however many keys there are.
    """
    number = len(jts)
    # Offsets are of one entry more than there are rows; a tensor of all of them becomes lengths at once.
    by_offsets = all(jt._lengths is None for jt in jts.values())
    name = "offsets" if by_offsets else "lengths"
    parts = {key: jt._offsets if by_offsets else jt.lengths() for key, jt in jts.items()}
    parts = rows.of_one_dtype(name, parts)
    known = [part.shape[0] for part in parts.values()]
    if None not in known and len(set(known)) > 1:
        lengths = {key: jt.lengths() for key, jt in jts.items()}
        strides = tf.constant([[part.shape[0]] for part in lengths.values()], tf.int64)
        return rows.concat("lengths", lengths), strides
    joined = rows.concat(name, parts)
    if not tf.executing_eagerly():
        joined = _checked(joined, parts, values, by_offsets)
    if by_offsets:
        joined = tf.reshape(rows.lengths_of(tf.reshape(joined, [number, -1])), [-1])
    return tf.ensure_shape(joined, [None if None in known else number * (known[0] - by_offsets)]), None


def _checked(
    joined: tf.Tensor, parts: Mapping[str, tf.Tensor], values: Mapping[str, tf.Tensor], by_offsets: bool
) -> tf.Tensor:
    """Lengths or offsets, once they are known to be of equal numbers and to fit the values."""
    numbers = rows.sizes(list(parts.values()))
    text = f"from_jt_dict: the keys {list(parts)} have other numbers of rows; got"
    equal = tf.debugging.Assert(tf.reduce_all(tf.equal(numbers, numbers[0])), [text, numbers])
    with tf.control_dependencies([equal]):
        grid = tf.reshape(joined, [len(parts), -1])
    totals = grid[:, -1] if by_offsets else tf.reduce_sum(grid, 1)
    sizes = tf.cast(rows.sizes(list(values.values())), totals.dtype)
    text = f"from_jt_dict: lengths of the keys {list(parts)} do not add up to their values; got"
    fit = tf.debugging.Assert(tf.reduce_all(tf.equal(totals, sizes)), [text, totals, "want", sizes])
    with tf.control_dependencies([fit]):
        return tf.identity(joined)


def _by_key(keys: Iterable[str], numbers: Iterable[int]) -> str:
    return ", ".join(f"{key!r}: {number}" for key, number in zip(keys, numbers, strict=True))
