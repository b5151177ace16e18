"""What a SavedModel holds to follow a feed by itself: the ops of cc/kernels/follower_ops.cc."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
import uuid
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.captures import IN_PLACE, Use, most_runs, uses_in
from tf_dynemb.base.checks import feed_path, flag, positive
from tf_dynemb.base.op_library import ops

_PIN, _BATCH = "DynembPin", "BatchFunction"
# What only reads a variable; what else takes one may write it.
_READS_VARIABLE = frozenset(
    ["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"]
    + ["DisableCopyOnRead"]
)
# What changes rows, or which ones there are. Lookups may note strings of keys, and scores.
_WRITES_TABLE = frozenset(
    f"Dynemb{what}"
    for what in (
        *("Upsert", "Accum", "Remove", "Clear", "Restrict", "RemoveExpired", "TakeEvicted"),
        *("Apply", "ApplyBags", "CheckUpdates", "ResetOptimizer"),
        *("Import", "Swap", "SnapshotLoad", "SetSnapshot", "Flush", "Reopen"),
    )
)
_MOST_SECONDS = 1e6  # that DynembFollow takes


class Following(tf.saved_model.experimental.TrackableResource):
    """Makes the SavedModel that it is saved in follow a feed.

    A loader of the SavedModel runs `_initialize`, as of lookup tables, which starts a thread of the
    op library. What follows are the tables and variables that the functions given to `wrap` read.

    Args:
        path: the feed's folder.
        poll_seconds: how often the thread looks for a new generation.
        serve_while_loading: whether what is there is served while a full copy is loaded beside it.
        longest_wait_seconds: how long a switch waits for calls that are under way.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        poll_seconds: float,
        serve_while_loading: bool,
        longest_wait_seconds: float,
    ) -> None:
        super().__init__(device="/CPU:0")
        self._path = feed_path("follow", path)
        self._poll_seconds = positive("poll_seconds", poll_seconds, _MOST_SECONDS)
        self._serve_while_loading = flag("serve_while_loading", serve_while_loading)
        self._longest_wait_seconds = positive(
            "longest_wait_seconds", longest_wait_seconds, _MOST_SECONDS
        )
        self._graph_name = f"tf_dynemb_{uuid.uuid4().hex}"  # as of TableResource
        self._tables: dict[str, tf.Tensor] = {}  # handles by the tables' names
        self._weights: dict[str, tf.Variable] = {}  # by their names
        self._written: set[int] = set()  # handles of weights that wrapped functions write, by id
        with tf.init_scope():
            self.resource_handle  # noqa: B018  outside of any function

    def wrap(self, function: Any) -> Any:
        """A tf.function like `function`, within which all that it reads is of one generation.

        Raises:
            TypeError: it is no tf.function with an input_signature.
            ValueError: two of its tables or dense weights have one name, by which they are followed; or
                it reads where a pin does not hold, as in a batch.
        """
        if getattr(function, "input_signature", None) is None:
            raise TypeError(
                f"function: got {function!r:.80}, want a tf.function with an input_signature"
            )
        handle = self.resource_handle

        @functools.wraps(function.python_function)
        def one_generation(*args: Any, **kwargs: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            pin = ops.dynemb_pin(handle)
            before = len(graph.get_operations())
            with tf.control_dependencies([pin]):
                outputs = function(*args, **kwargs)
            calls = [op for op in graph.get_operations()[before:] if op.type != "Placeholder"]
            parts = tf.nest.flatten(outputs, expand_composites=True)
            # A dependency on a call does not wait for its outputs where a function has no control
            # outputs, as those of tf.compat.v1.wrap_function; and there may be no outputs.
            with tf.control_dependencies(calls):
                unpin = ops.dynemb_unpin(pin, [part for part in parts if tf.is_tensor(part)])
            with tf.control_dependencies([unpin]):
                return tf.nest.map_structure(
                    lambda t: tf.identity(t) if tf.is_tensor(t) else t, outputs, expand_composites=True
                )

        # Of a method Python 3.10 would find that of the function behind it, with `self`.
        signature = inspect.signature(function.python_function)
        one_generation.__signature__ = signature  # type: ignore[attr-defined]
        wrapped = tf.function(one_generation, input_signature=function.input_signature, autograph=False)
        concrete = wrapped.get_concrete_function()
        self._check_parts(getattr(function.python_function, "__name__", "function"), concrete)
        self._add(concrete)
        return wrapped

    def follows(self, table: tf.Tensor) -> bool:
        """Whether a table is among what follows.

        Raises:
            ValueError: nothing is, so that the SavedModel would silently not follow.
        """
        if not self._tables:
            raise ValueError(
                "follow: got a SavedModel of whose functions none is wrapped, want it of model.export, "
                "or with signatures=tf_dynemb.serving.one_generation(function) for a tf.function that "
                "looks up"
            )
        return any(table is handle for handle in self._tables.values())

    def check_signature(self, name: str, concrete: Any) -> None:
        """Refuses a signature that reads what follows outside of the functions given to `wrap`.

        Raises:
            ValueError: a call of it could see two generations.
        """
        names = {id(handle): name for name, handle in self._tables_read_by(concrete)}
        names |= {id(weight.handle): name for name, weight in self._weights.items()}
        # A dense weight that no wrapped function reads would stay as it was exported.
        names |= {
            id(weight.handle): name
            for name, weight in self._weights_read_by(concrete)
            if weight.dtype.is_floating or weight.dtype.is_complex
        }
        is_wrapped = self._tables or self._weights
        if is_wrapped and all(map(_is_of_loaded_model, self._tables.values())):
            raise ValueError(
                f"follow: got a signature {name!r} of a model whose wrapped functions look up no table "
                "of its own, which is what has a SavedModel follow; want a Keras model or module with a "
                "tf_dynemb table, not only one that was loaded"
            )
        uses = list(uses_in(concrete))
        pins = [use for use in uses if use.op == _PIN]  # also of a model that follows and was loaded
        for use in uses:
            read = names.get(id(use.handle))
            if read is not None and not any(pin.is_beside_or_around(use) for pin in pins):
                raise ValueError(
                    f"follow: got a signature {name!r} that reads {read!r} in a function of your own, "
                    "where a call could see two generations; want "
                    "tf_dynemb.serving.one_generation(function) in its place, over all that it reads"
                )

    def _check_parts(self, name: str, concrete: Any) -> None:
        """Refuses a function whose pin does not hold for all that it reads.

        A batch merges calls, and TensorFlow, for which it is an operation without state, may run it
        before the pin and after the unpin of each. A pin in a batch or in tf.data is of another step: it
        waits for the switch that waits for the call.
        """
        _check_calls(name, concrete)
        uses = list(uses_in(concrete))
        if any(use.op == _PIN and use.handle is not self.resource_handle for use in uses):
            raise ValueError(
                f"follow: got a function {name!r} that calls a model that was loaded and follows a feed "
                "by itself; want one that was exported without `follow`"
            )
        if any(output.dtype == tf.variant for output in concrete.outputs):
            raise ValueError(
                f"follow: got a function {name!r} that returns a Dataset, or another thing that is read "
                "after the call, when another generation may be there; want tensors"
            )
        names = {id(handle): name for name, handle in self._tables_read_by(concrete)}
        names |= {id(weight.handle): name for name, weight in self._weights_read_by(concrete)}
        for use in uses:
            apart = [around.op for around in use.around if around.op not in IN_PLACE]
            if apart and use.handle is self.resource_handle:
                raise ValueError(
                    f"follow: got a function {name!r} that calls a function of one_generation in "
                    f"{apart[0]}, where the two could wait for each other; want one_generation around "
                    "one of the two alone"
                )
            if use.op in _WRITES_TABLE and id(use.handle) in names:
                raise ValueError(
                    f"follow: got a function {name!r} that writes to {names[id(use.handle)]!r}, a table "
                    "that only the feed may change; want a function that looks up"
                )
            if _BATCH in apart and id(use.handle) in names:
                raise ValueError(
                    f"follow: got a function {name!r} that reads {names[id(use.handle)]!r} in a batch, "
                    "where a call could see two generations; want the batch around the wrapped "
                    "function, tf.nondifferentiable_batch_function(..., "
                    "enable_large_batch_splitting=False)(one_generation(function))"
                )

    def _add(self, concrete: Any) -> None:
        for name, weight in self._weights_read_by(concrete):
            self._add_named(self._weights, name, weight)
        uses = uses_in(concrete)
        self._written |= {id(use.handle) for use in uses if use.op not in _READS_VARIABLE}
        for name, handle in self._tables_read_by(concrete):
            # Of a table in parts that of the first, which has all rows in the SavedModel.
            handle = getattr(_compat.resource_with(handle), "followed_handle", handle)
            self._add_named(self._tables, name, handle)

    @staticmethod
    def _weights_read_by(concrete: Any) -> Iterator[tuple[str, tf.Variable]]:
        """Names and variables."""
        for variable in concrete.variables:
            # Not the handle weight of a table, which has no numbers.
            if variable.shape.num_elements() != 0:
                yield variable.name.removesuffix(":0"), variable

    def _tables_read_by(self, concrete: Any) -> Iterator[tuple[str, tf.Tensor]]:
        """Names and handles."""
        others = [self.resource_handle, *(variable.handle for variable in concrete.variables)]
        for handle in concrete.captured_inputs:
            if handle.dtype != tf.resource or any(handle is other for other in others):
                continue
            try:
                name = ops.dynemb_describe(handle)[0].numpy().decode()
            except tf.errors.InvalidArgumentError:
                continue  # a resource of another kind
            yield name, handle

    @staticmethod
    def _add_named(named: dict[str, Any], name: str, thing: Any) -> None:
        if named.setdefault(name, thing) is not thing:
            raise ValueError(
                f"follow: got two tables or dense weights named {name!r}, by which a feed has them; "
                "give the layers names of their own"
            )

    def _create_resource(self) -> tf.Tensor:
        return ops.dynemb_follower(shared_name="" if tf.executing_eagerly() else self._graph_name)

    def _initialize(self) -> None:
        ops.dynemb_follow(
            self.resource_handle,
            list(self._tables.values()),
            [weight.handle for weight in self._weights.values()],
            path=self._path,
            weight_names=list(self._weights),
            # Counters, states of random generators and of recurrent layers, which no publisher has.
            optional=[id(weight.handle) in self._written for weight in self._weights.values()],
            poll_seconds=self._poll_seconds,
            serve_while_loading=self._serve_while_loading,
            longest_wait_seconds=self._longest_wait_seconds,
        )


# That of the for_serving(follow=...) that is open.
_open: contextvars.ContextVar[Following | None] = contextvars.ContextVar("following", default=None)


@contextlib.contextmanager
def following(path: str | os.PathLike[str] | None, **options: Any) -> Iterator[None]:
    """SavedModels that are saved inside follow a feed; with None as `path` as if it were not there.

    `options`: those of Following.
    """
    _compat.check_saved_signatures(_check_if_open)  # with models that follow and were loaded
    if path is None:
        yield
        return
    _compat.wrap_exported_functions(_wrap_if_open)
    token = _open.set(Following(path, **options))
    try:
        yield
    finally:
        _open.reset(token)


def one_generation(function: Any) -> Any:
    """Inside of `for_serving(follow=...)`: a tf.function that reads one generation in each call.

    Over all tables and dense weights, from its beginning to its end, also if it takes longer than a
    new generation takes to come. What `model.export`, `keras.export.ExportArchive.add_endpoint` with an
    `input_signature`, and `tf.saved_model.save` of a Keras model without signatures make is wrapped so
    already. Tables and dense weights that no such function reads do not follow.

    To batch calls in the graph, batch around it, `tf.nondifferentiable_batch_function(...,
    enable_large_batch_splitting=False)(one)` of a function `one` that is wrapped: each batch is of one
    generation then, and each call is in one batch. A batch within is refused if it reads what follows,
    since it runs once for several calls. A function that is wrapped may call others that are, and is of
    one generation with them, but not in a batch or in tf.data.

    Args:
        function: a tf.function with an `input_signature`.

    Returns:
        Function of the same signature.

    Raises:
        TypeError: `function` is no such function.
        ValueError: no `for_serving(follow=...)` is open; two tables or dense weights of one name; a
            function that reads in a batch, calls a wrapped one in a batch or in tf.data, or returns a
            Dataset.

    Example:

    >>> import os, tempfile, tensorflow as tf, tf_dynemb
    >>> folder = tempfile.mkdtemp()
    >>> module = tf.Module()
    >>> module.table = tf_dynemb.Variable(dim=1, initializer="zeros", name="clicks")
    >>> serve = tf.function(
    ...     module.table.lookup, input_signature=[tf.TensorSpec([None], tf.int64, "ids")]
    ... )
    >>> with tf_dynemb.for_serving(follow=os.path.join(folder, "feed")):
    ...     serve = tf_dynemb.serving.one_generation(serve)
    ...     tf.saved_model.save(module, os.path.join(folder, "model"), signatures=serve)
    >>> served = tf.saved_model.load(os.path.join(folder, "model"))
    >>> tf_dynemb.serving.follower_status(served).generation is None  # nothing is published yet
    True
    """
    follower = _open.get()
    if follower is None:
        raise ValueError("one_generation: want it inside of tf_dynemb.for_serving(follow=...)")
    return follower.wrap(function)


def followed_children(table: tf.Tensor, has_default_partitioner: bool) -> dict[str, Any]:
    """What a table's object in a SavedModel holds so that the model follows, by name.

    Raises:
        ValueError: nothing follows; or this table cannot.
    """
    follower = _open.get()
    if follower is None:
        return {}
    if follower.follows(table) and not has_default_partitioner:
        raise ValueError(
            "follow: got a table in shards with a partitioner of its own, which a SavedModel does not "
            "hold apart from its functions; want one shard, or the default partitioner"
        )
    return {"follower": follower}


def _check_calls(name: str, concrete: Any) -> None:
    """Refuses a function that calls functions that follow several times, each of one generation.

    Also those of a model that was loaded, which follows by itself in what is exported, too.

    Raises:
        ValueError: a call of it could see two generations.
    """
    of_feeds: dict[str, list[Use]] = {}
    for use in uses_in(concrete):
        if use.op == _PIN:
            of_feeds.setdefault(_feed_of(use.handle), []).append(use)
    for same in of_feeds.values():
        calls = [
            pin
            for pin in same
            if not any(
                len(other.around) < len(pin.around) and other.is_beside_or_around(pin) for other in same
            )
        ]
        if most_runs(calls) <= 1:
            continue
        around = [around for call in calls for around in call.around]
        if any(one.op == _BATCH and one.may_repeat for one in around):
            raise ValueError(
                f"follow: got a function {name!r} that calls a function of one_generation in a batch, "
                "where a call may be split over two, each of another generation; want "
                "tf.nondifferentiable_batch_function(..., enable_large_batch_splitting=False)"
            )
        raise ValueError(
            f"follow: got a function {name!r} that calls functions of one_generation several times, of "
            "which each could see another generation; want tf_dynemb.serving.one_generation(function) "
            "of a function that makes all these calls; or, of models that follow that feed and were "
            "loaded, one call of one"
        )


def _feed_of(follower: tf.Tensor) -> str:
    """The path of the feed that a follower follows, or is to follow."""
    open_one = _open.get()
    if open_one is not None and follower is open_one.resource_handle:
        return open_one._path
    with tf.init_scope():
        path = ops.dynemb_follower_status(follower)[2].numpy().decode(errors="replace")
    return path and feed_path("follow", path)  # of exports of older versions in another spelling


def _is_of_loaded_model(table: tf.Tensor) -> bool:
    """Whether a table's handle is of an object that tf.saved_model.load made."""
    maker = _compat.resource_with(table)  # None if TensorFlow does not say
    return maker is not None and not hasattr(maker, "children_to_save")


def _check_if_open(name: str, concrete: Any) -> None:
    follower = _open.get()
    if follower is not None:
        follower.check_signature(name, concrete)
    _check_calls(name, concrete)


def _wrap_if_open(function: Any) -> Any:
    follower = _open.get()
    return function if follower is None else follower.wrap(function)
