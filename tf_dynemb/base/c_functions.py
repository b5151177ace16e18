"""The C functions of the op library, which need no TensorFlow, and the errors that they report."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from tf_dynemb.base.op_library import LIBRARY_PATH

c_functions = ctypes.CDLL(str(LIBRARY_PATH))
c_functions.dynemb_error.restype = ctypes.c_char_p


def check(code: int, errors: Mapping[int, type[Exception]], other: type[Exception]) -> None:
    """Raises the error that a function has reported.

    Args:
        code: what it returned; 0: none.
        errors: by code (dynemb::Code) the class of the error.
        other: the class of those with another code.
    """
    if code:
        message = c_functions.dynemb_error().decode(errors="backslashreplace")
        raise errors.get(code, other)(message)
