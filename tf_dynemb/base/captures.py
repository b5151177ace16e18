"""Where a function uses what it captures: by itself, or in functions within it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# Operations that run a function as a part of the one that they stand in: calls and branches once, loops
# again and again.
_ONCE_IN_PLACE = frozenset(
    ["PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"]
)
# Operations whose outputs are what they are given.
_PASSING_ON = frozenset(
    ["Identity", "Select", "SelectV2", "Switch", "Merge", "Enter", "Exit", "NextIteration"]
)
IN_PLACE = _ONCE_IN_PLACE | {"While", "StatelessWhile"}


class Around(NamedTuple):
    """An operation that runs functions, and the one of them that is meant.

    Attributes:
        node: the operation, a NodeDef.
        number: which of its functions, of branches for one.
    """

    node: Any
    number: int

    @property
    def op(self) -> str:
        """The operation's type."""
        return self.node.op

    @property
    def may_repeat(self) -> bool:
        """Whether the operation may run its function several times for one run of its own."""
        if self.op == "BatchFunction":  # which may split what it is given over two batches
            return bool(self.node.attr["enable_large_batch_splitting"].b)
        return self.op not in _ONCE_IN_PLACE


@dataclasses.dataclass(frozen=True)
class Use:
    """An operation that takes a captured resource.

    Attributes:
        handle: the resource.
        op: the operation's type.
        around: the operations in whose functions it stands, from the outermost.
    """

    handle: tf.Tensor
    op: str
    around: tuple[Around, ...]

    def is_beside_or_around(self, other: Use) -> bool:
        """Whether it stands in the function that `other` stands in, or in one around that."""
        return self._place == other._place[: len(self.around)]

    @property
    def _place(self) -> tuple[tuple[str, int], ...]:
        return tuple((around.node.name, around.number) for around in self.around)


def uses_in(concrete: Any) -> Iterator[Use]:
    """Each use of a resource that a concrete function captures, also where that calls others."""
    library = {each.signature.name: each for each in concrete.graph.as_graph_def().library.function}
    captured = concrete.captured_inputs
    top = concrete.function_def
    names = [argument.name for argument in top.signature.input_arg]
    handles = zip(names[len(names) - len(captured) :], captured, strict=True)
    known = {name: [handle] for name, handle in handles if handle.dtype == tf.resource}
    yield from _uses(top, known, library, ())


def _uses(
    function: Any,
    known: dict[str, list[tf.Tensor]],
    library: dict[str, Any],
    around: tuple[Around, ...],
) -> Iterator[Use]:
    """`known`: the resources that a tensor of the function may be, by its name."""
    for node in function.node_def:
        given = [known[name] for name in map(_in(known), node.input) if name]
        if not given:
            continue
        called = [library[name] for name in _functions_of(node) if name in library]
        if called:
            for number, each in enumerate(called):
                inner = _passed(each, given)
                yield from _uses(each, inner, library, (*around, Around(node, number)))
            outputs = {n for each in called for n in _resources_among(each.signature.output_arg)}
            known = known | {f"{node.name}:output:{n}": _all_of(given) for n in outputs}
        elif node.op in _PASSING_ON:
            known = known | {f"{node.name}:": _all_of(given)}
        elif node.op == "IdentityN":
            names = enumerate(map(_in(known), node.input))
            known = known | {f"{node.name}:output:{n}": known[name] for n, name in names if name}
        else:
            for handles in given:
                yield from (Use(handle, node.op, around) for handle in handles)


def _in(known: dict[str, list[tf.Tensor]]) -> Callable[[str], str]:
    """A function of a tensor's name, under which it is known: all outputs of a node as "node:"."""

    def find(name: str) -> str:
        return next((n for n in (name, name.partition(":")[0] + ":") if n in known), "")

    return find


def _all_of(given: Iterable[list[tf.Tensor]]) -> list[tf.Tensor]:
    return [handle for handles in given for handle in handles]


def _resources_among(arguments: Iterable[Any]) -> list[int]:
    """The numbers of those arguments of a function that are resources."""
    resource = tf.resource.as_datatype_enum
    return [number for number, argument in enumerate(arguments) if argument.type == resource]


def _functions_of(node: Any) -> Iterator[str]:
    for attribute in node.attr.values():
        yield from (each.name for each in (attribute.func, *attribute.list.func) if each.name)


def _passed(function: Any, given: Collection[list[tf.Tensor]]) -> dict[str, list[tf.Tensor]]:
    """What the arguments of a function may be: an operation passes its resources on in their order."""
    inputs = function.signature.input_arg
    names = [inputs[number].name for number in _resources_among(inputs)]
    if len(names) == len(given):
        return dict(zip(names, given, strict=True))
    return dict.fromkeys(names, _all_of(given))  # as of one with several functions


def most_runs(uses: Sequence[Use], depth: int = 0) -> float:
    """How many of some uses one run of the function can make at most: of branches one runs.

    Args:
        uses: of one function.
        depth: how many of the operations around them are the same for all.

    Returns:
        Their number; infinite where one may be repeated.
    """
    runs = float(sum(len(use.around) == depth for use in uses))
    inner: dict[str, dict[int, list[Use]]] = {}  # by operation and branch
    for use in uses:
        if len(use.around) > depth:
            around = use.around[depth]
            if around.may_repeat:
                return float("inf")
            inner.setdefault(around.node.name, {}).setdefault(around.number, []).append(use)
    return runs + sum(
        max(most_runs(branch, depth + 1) for branch in branches.values()) for branches in inner.values()
    )
