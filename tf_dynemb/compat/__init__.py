"""The names of other libraries, as thin adapters: tfra, torchrec, sok, one_embedding, keras_rs.

    from tf_dynemb.compat import tfra as de

Each is imported when it is asked for, and nothing else in tf_dynemb imports them. An option that such a
library has and tf_dynemb has not is refused if results would differ, and warned about once if only speed
or place would: `tf_dynemb.compat.options`.
"""

import importlib
from types import ModuleType

from tf_dynemb.base.public_names import shows

__all__ = ["keras_rs", "one_embedding", "sok", "tfra", "torchrec"]
__dir__ = shows(__all__)


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, want one of {__all__}")
    return importlib.import_module(f"{__name__}.{name}")
