"""Where a function uses what it captures: by itself, or in functions within it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import tensorflow as tf

# Operations that run a function as a part of the one that they stand in: calls and branches once, loops
# again and again.
ONCE_IN_PLACE = frozenset(
    ["PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"]
)
IN_PLACE = ONCE_IN_PLACE | {"While", "StatelessWhile"}


@dataclasses.dataclass(frozen=True)
class Use:
    """An operation that takes a captured resource.

    Attributes:
        handle: the resource.
        around: the operations in whose functions it stands, by their types, from the outermost.
        functions: of each function around it, from the outermost to its own, the types of all
            operations.
    """

    handle: tf.Tensor
    around: tuple[str, ...]
    functions: tuple[frozenset[str], ...]


def uses_in(concrete: Any) -> Iterator[Use]:
    """Each use of a resource that a concrete function captures, also where that calls others."""
    library = {each.signature.name: each for each in concrete.graph.as_graph_def().library.function}
    captured = concrete.captured_inputs
    top = concrete.function_def
    names = [argument.name for argument in top.signature.input_arg]
    handles = zip(names[len(names) - len(captured) :], captured, strict=True)
    known = {name: [handle] for name, handle in handles if handle.dtype == tf.resource}
    yield from _uses(top, known, library, (), ())


def _uses(
    function: Any,
    known: dict[str, list[tf.Tensor]],
    library: dict[str, Any],
    around: tuple[str, ...],
    outer: tuple[frozenset[str], ...],
) -> Iterator[Use]:
    """`known`: the resources that a tensor of the function may be, by its name."""
    functions = (*outer, frozenset(node.op for node in function.node_def))
    for node in function.node_def:
        given = [known[name] for name in node.input if name in known]
        if not given:
            continue
        called = [library[name] for name in _functions_of(node) if name in library]
        if node.op == "Identity":
            known = known | {f"{node.name}:output:0": given[0]}
        elif called:
            for each in called:
                inner = _passed(each, given)
                yield from _uses(each, inner, library, (*around, node.op), functions)
        else:
            for handles in given:
                yield from (Use(handle, around, functions) for handle in handles)


def _functions_of(node: Any) -> Iterator[str]:
    for attribute in node.attr.values():
        yield from (each.name for each in (attribute.func, *attribute.list.func) if each.name)


def _passed(function: Any, given: Collection[list[tf.Tensor]]) -> dict[str, list[tf.Tensor]]:
    """What the arguments of a function may be: an operation passes its resources on in their order."""
    names = [
        argument.name
        for argument in function.signature.input_arg
        if argument.type == tf.resource.as_datatype_enum
    ]
    if len(names) == len(given):
        return dict(zip(names, given, strict=True))
    everything = [handle for handles in given for handle in handles]  # as of one with several functions
    return dict.fromkeys(names, everything)
