"""Init of both generations: nothing needs it, and a seed may be given."""

from __future__ import annotations

import random
from typing import Any

import keras

from tf_dynemb.base.checks import whole
from tf_dynemb.compat.options import without_effect
from tf_dynemb.initializers.kinds import resolve

# Of the seeds of tables to come, once Init was given one.
_seeds: random.Random | None = None


def Init(global_batch_size: int | None = None, seed: int | None = None) -> str:  # noqa: N802  SOK's name
    """SOK's Init. Not needed: no buffer has a size, and any batch may come, a partial or empty one too.

    Args:
        global_batch_size: without effect.
        seed: layers and variables of this module that are made from now on, and whose initializer has
            no seed, have seeds that follow from it. Give all processes the same. None: from now on they
            are drawn, as for other tables.

    Returns:
        "OK".

    Raises:
        ValueError: global_batch_size or seed is no such number.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> sok.Init(global_batch_size=1000, seed=7)
    'OK'
    """
    global _seeds
    if global_batch_size is not None:
        whole("global_batch_size", global_batch_size)
    _seeds = None if seed is None else random.Random(whole("seed", seed, 0))
    return "OK"


def init(comm_tool: str = "horovod", use_legacy_optimizer: bool = True) -> None:
    """The second generation's init. Not needed: what communicates is the tf.distribute strategy.

    Args:
        comm_tool: without effect.
        use_legacy_optimizer: without effect; SOK replaces tf.keras.optimizers by it.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> sok.init()
    """
    _no_tool("sok.init", comm_tool)
    without_effect(
        "sok.init", "optimizers are those of Keras 3", use_legacy_optimizer=(use_legacy_optimizer, True)
    )


def set_comm_tool(comm_tool: str) -> None:
    """The second generation's choice of a communication tool, without effect as in init.

    Args:
        comm_tool: without effect.

    Example:

    >>> from tf_dynemb.compat import sok
    >>> sok.set_comm_tool("horovod")
    """
    _no_tool("sok.set_comm_tool", comm_tool)


def _no_tool(function: str, comm_tool: str) -> None:
    instead = "what communicates is the tf.distribute strategy"
    without_effect(function, instead, comm_tool=(comm_tool, "horovod"))


def seeded(initializer: Any) -> Any:
    """An initializer with a seed that follows from Init's, if that was given one and it has none."""
    initializer = resolve(initializer)
    if _seeds is None or not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    if config.get("seed", 0) is not None:
        return initializer
    return type(initializer).from_config(config | {"seed": _seeds.getrandbits(31)})
