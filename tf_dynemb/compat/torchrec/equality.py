"""Whether two values hold the same, and TorchRec's callables from one value to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb.jagged.jagged_tensor import JaggedTensor
from tf_dynemb.jagged.keyed_jagged_tensor import KeyedJaggedTensor


def jt_is_equal(jt_1: JaggedTensor, jt_2: JaggedTensor) -> bool:
    """Whether two have equal rows, and values and weights that numpy.allclose calls equal. Eagerly only.

    Example:

    >>> import tf_dynemb
    >>> from tf_dynemb.compat import torchrec
    >>> one = tf_dynemb.JaggedTensor([5, 7, 1], lengths=[1, 2])
    >>> torchrec.jt_is_equal(one, tf_dynemb.JaggedTensor([5, 7, 1], offsets=[0, 1, 3]))
    True
    """
    if not isinstance(jt_1, JaggedTensor) or not isinstance(jt_2, JaggedTensor):
        return False
    return (
        np.array_equal(jt_1.lengths(), jt_2.lengths())
        and _is_close(jt_1.values(), jt_2.values())
        and _is_close(jt_1.weights_or_none(), jt_2.weights_or_none())
    )


def kjt_is_equal(kjt_1: KeyedJaggedTensor, kjt_2: KeyedJaggedTensor) -> bool:
    """Whether two have equal keys in one order, equal inverse indices, and rows as for jt_is_equal.

    Eagerly only.

    Example:

    >>> import tf_dynemb
    >>> from tf_dynemb.compat import torchrec
    >>> one = tf_dynemb.KeyedJaggedTensor(["a"], [5, 7, 1], lengths=[1, 2])
    >>> torchrec.kjt_is_equal(one, tf_dynemb.KeyedJaggedTensor(["b"], [5, 7, 1], lengths=[1, 2]))
    False
    """
    if not isinstance(kjt_1, KeyedJaggedTensor) or not isinstance(kjt_2, KeyedJaggedTensor):
        return False
    return (
        kjt_1.keys() == kjt_2.keys()
        and kjt_1.stride_per_key() == kjt_2.stride_per_key()
        and _same_inverse(kjt_1.inverse_indices_or_none(), kjt_2.inverse_indices_or_none())
        and np.array_equal(kjt_1.lengths(), kjt_2.lengths())
        and _is_close(kjt_1.values(), kjt_2.values())
        and _is_close(kjt_1.weights_or_none(), kjt_2.weights_or_none())
    )


class ComputeKJTToJTDict:
    """A callable: a KeyedJaggedTensor to its to_dict().

    Example:

    >>> import tf_dynemb
    >>> from tf_dynemb.compat import torchrec
    >>> kjt = tf_dynemb.KeyedJaggedTensor(["a"], [1, 2], lengths=[2, 0])
    >>> list(torchrec.ComputeKJTToJTDict()(kjt))
    ['a']
    """

    def __call__(self, keyed_jagged_tensor: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """The rows of each key."""
        return keyed_jagged_tensor.to_dict()


class ComputeJTDictToKJT:
    """A callable: a dict to KeyedJaggedTensor.from_jt_dict of it.

    Example:

    >>> import tf_dynemb
    >>> from tf_dynemb.compat import torchrec
    >>> jt = tf_dynemb.JaggedTensor([1, 2], lengths=[2, 0])
    >>> torchrec.ComputeJTDictToKJT()({"a": jt}).keys()
    ['a']
    """

    def __call__(self, jt_dict: Mapping[str, JaggedTensor]) -> KeyedJaggedTensor:
        """All rows in one value."""
        return KeyedJaggedTensor.from_jt_dict(jt_dict)


def _is_close(a: tf.Tensor | None, b: tf.Tensor | None) -> bool:
    """Whether two tensors have one dtype, one shape and, but for rounding, the same numbers."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return np.allclose(a, b) if a.dtype.is_floating else np.array_equal(a, b)


def _same_inverse(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a[0] == b[0] and np.array_equal(a[1], b[1])
