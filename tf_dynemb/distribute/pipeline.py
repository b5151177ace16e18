"""Pipeline: while a step is computed, processes tell each other which rows the next one wants.

A step over several processes waits for the others three times: for ids, rows and gradients. Which ids it
looks up depends on its batch alone, as a rule; so they can travel while the step before is computed,
those of all layers at once. Their rows are read when that step is done, as ever: no row is older than in
a loop without a pipeline, and the results are the same to the bit.

Which part of a step makes ids of a batch is found in its graph: the step is traced once without being
run, and what leads from the batch to the keys of its lookups is copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_dynemb.base.checks import assert_same
from tf_dynemb.base.table import Table
from tf_dynemb.shard.exchange import AllToAllExchange, Asked, Fetched

_DIFFER = (
    "pipeline: a step looked up other ids than its batch gave when it was traced before: a step must "
    "make ids of its batch in the same way each time; got"
)


# What reads tables of TensorFlow, as keras.layers.StringLookup does. Should one change between two
# steps, the step finds that its ids are others.
_VOCABULARIES = ("LookupTableFindV2", "LookupTableSizeV2")


class Pipeline:
    """Steps of training, each of which exchanges the ids of the batch after it.

    For tables that are sharded across processes, made in the scope of a
    tf.distribute.MultiWorkerMirroredStrategy; of others each step is just run. What a step computes is
    what it computes without a pipeline. tf_dynemb.distribute.fit has one.

    Lookups whose ids depend on more than the batch and vocabularies (on variables, random numbers, rows
    of other lookups, tf.py_function), or that come after a write of the same step, exchange their ids in
    their own step.

    Args:
        step: function of a batch, which is run in each replica, as by strategy.run. It is traced more
            than once, as tf.function may do; layers and optimizer are built before.
        strategy: None: that in whose scope this is made.

    Example:

    >>> import tensorflow as tf, tf_dynemb
    >>> strategy = tf.distribute.get_strategy()  # or MultiWorkerMirroredStrategy() in several processes
    >>> with strategy.scope():
    ...     table = tf_dynemb.Variable(dim=1, initializer="ones")
    ...     optimizer = tf_dynemb.DynamicEmbeddingOptimizer("sgd")
    ...     optimizer.build([table.handle])
    >>> def step(ids):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids) ** 2)
    ...     optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    ...     return loss
    >>> pipeline = tf_dynemb.distribute.Pipeline(step, strategy)
    >>> batches = tf.data.Dataset.range(6).batch(2)
    >>> [float(loss) for loss in pipeline.run(batches)]
    [2.0, 2.0, 2.0]
    """

    def __init__(
        self, step: Callable[[Any], Any], strategy: tf.distribute.Strategy | None = None
    ) -> None:
        self._strategy = strategy or tf.distribute.get_strategy()
        self._step = in_replicas(self._strategy, step)
        self._traced: dict[Any, tuple[Callable[..., Any], Callable[..., Any]] | None] = {}
        self._alone = tf.function(self._step, reduce_retracing=True)

    def run(self, batches: Any) -> Iterator[Any]:
        """Runs a step for each batch, and gives what it returned in this process' first replica.

        All processes take as many results, or none of the rest.

        Args:
            batches: a tf.data.Dataset, or what strategy.experimental_distribute_dataset or
                distribute_datasets_from_function returns; or any iterable of batches with an
                `element_spec`.

        Raises:
            TypeError: batches without an element_spec.
            tf.errors.OpError: what a step raises; the step before it is done, and none after it.
        """
        spec = getattr(batches, "element_spec", None)
        if spec is None:
            raise TypeError(
                f"batches: got a {type(batches).__name__}, want a tf.data.Dataset or a distributed one"
            )
        return (step() for step in self.steps(iter(batches), spec))

    def steps(self, batches: Iterator[Any], spec: Any) -> Iterator[Callable[[], Any]]:
        """For each of some batches of a type a function that does its step, to be called in turn."""
        functions = self._functions(spec)
        if functions is None:
            for batch in batches:
                yield functools.partial(self._alone, batch)
            return
        begin, step = functions
        batch = next(batches, None)
        asked = None if batch is None else begin(batch)
        while batch is not None:
            following = next(batches, None)

            def run() -> Any:
                nonlocal asked
                # After the last batch ids go out once more that nobody will look up, so that there is
                # one graph and not two.
                result, asked = step(batch, asked, batch if following is None else following)  # noqa: B023
                return result

            yield run
            batch = following

    def _functions(self, spec: Any) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
        """What asks for the rows of a batch, and what does its step and asks for the next one's.

        None where there is nothing to exchange ahead.
        """
        key = str(spec)
        if key not in self._traced:
            exchange = AllToAllExchange.of(self._strategy)
            self._traced[key] = None if exchange is None else self._trace(exchange, spec)
        return self._traced[key]

    def _trace(
        self, exchange: AllToAllExchange, spec: Any
    ) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
        recorder = _Recorder()
        with exchange.observed_by(recorder):
            traced = tf.function(self._step).get_concrete_function(spec)
        keys_of = _KeysOfBatch(traced, recorder)
        if not keys_of.tables:
            return None

        def begin(batch: Any) -> Asked:
            return exchange.ask(keys_of.tables, keys_of(batch))

        def step(batch: Any, asked: Asked, following: Any) -> tuple[Any, Asked]:
            rows = exchange.rows_of(keys_of.tables, asked)
            # In the program after the rows, and before anything that waits for others: so these ids
            # travel while the step is computed.
            asked_next = begin(following)
            with exchange.observed_by(_Player(keys_of.lookups, asked, rows)):
                return self._step(batch), asked_next

        convert = tf.autograph.experimental.do_not_convert
        begin_function = tf.function(convert(begin))
        asked_spec = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
            begin_function.get_concrete_function(spec).structured_outputs,
        )
        step_function = tf.function(convert(step))
        step_function.get_concrete_function(spec, asked_spec, spec)
        return begin_function, step_function


def in_replicas(strategy: tf.distribute.Strategy, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a batch that runs a step in all replicas and returns what the first one gave."""

    def run(batch: Any) -> Any:
        results = []

        def in_replica(batch: Any) -> None:
            results.append(step(batch))

        strategy.run(in_replica, args=(batch,))
        return results[0]

    return tf.autograph.experimental.do_not_convert(run)


class _Recorder:
    """Notes which rows a step looks up while it is traced."""

    def __init__(self) -> None:
        self.lookups: list[tuple[list[Table], list[tf.Tensor], bool]] = []
        self._has_written = False

    def fetch(self, tables: Sequence[Table], keys: Sequence[tf.Tensor]) -> None:
        self.lookups.append((list(tables), list(keys), self._has_written))

    def deliver(self) -> None:
        self._has_written = True


class _Player:
    """Has the rows of a step that were fetched before it."""

    def __init__(self, lookups: list[range | None], asked: Asked, rows: Fetched) -> None:
        self._lookups = iter(lookups)
        self._asked = asked
        self._rows = rows

    def fetch(self, tables: Sequence[Table], keys: Sequence[tf.Tensor]) -> Fetched | None:
        of_lookup = next(self._lookups)
        if of_lookup is None:
            return None
        checks = []
        for n, of_table in zip(of_lookup, keys, strict=True):
            checks += assert_same(self._asked.keys[n], of_table, _DIFFER)
        fetched = Fetched(*([part[n] for n in of_lookup] for part in self._rows))
        with tf.control_dependencies(checks):
            return fetched._replace(values=[tf.identity(values) for values in fetched.values])

    def deliver(self) -> None:
        """It is the step's own."""


class _KeysOfBatch:
    """The part of a step's graph that makes keys of a batch.

    Attributes:
        tables: of all lookups whose keys depend on the batch alone, one after the other.
        lookups: for each lookup of the step, in its order, which of the tables are its; None: its keys
            depend on more.
    """

    def __init__(self, step: tf.types.experimental.ConcreteFunction, recorder: _Recorder) -> None:
        graph = step.graph
        self.tables: list[Table] = []
        self.lookups: list[range | None] = []
        keys: list[tf.Tensor] = []
        names: set[str] = set()
        for tables, of_lookup, after_write in recorder.lookups:
            leading = [_leading_to(key.op) for key in of_lookup if key.graph is graph]
            found = [one for one in leading if one is not None]
            is_ahead = not after_write and len(found) == len(of_lookup)
            first = len(self.tables)
            self.lookups.append(range(first, first + len(tables)) if is_ahead else None)
            if is_ahead:
                self.tables += tables
                keys += of_lookup
                names.update(*found)
        captured = step.captured_inputs
        inputs = [tensor.name for tensor in graph.inputs]
        self._of_batch = inputs[: len(inputs) - len(captured)]
        self._captured = dict(zip(inputs[len(self._of_batch) :], captured, strict=True))
        self._keys = [key.name for key in keys]
        self._graph = graph.as_graph_def()
        nodes = [node for node in self._graph.node if node.name in names]
        for node in nodes:  # without checks of the batch, which its step does itself
            node.input[:] = [name for name in node.input if not name.startswith("^")]
        del self._graph.node[:]
        self._graph.node.extend(nodes)

    def __call__(self, batch: Any) -> list[tf.Tensor]:
        """The keys int64 (n,) of each of the tables, in a graph."""
        leaves = [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]
        nodes = {f"{node.name}:0" for node in self._graph.node}
        inputs = {n: leaf for n, leaf in zip(self._of_batch, leaves, strict=True) if n in nodes}
        inputs |= {n: tf.identity(tensor) for n, tensor in self._captured.items() if n in nodes}
        return tf.graph_util.import_graph_def(
            self._graph, input_map=inputs, return_elements=self._keys, name="keys_of_next_batch"
        )


def _leading_to(operation: tf.Operation) -> set[str] | None:
    """The names of all operations whose outputs one needs; None if one of these has a state."""
    names: set[str] = set()
    waiting = [operation]
    while waiting:
        one = waiting.pop()
        if one.name in names:
            continue
        names.add(one.name)
        if one.type == "Placeholder":
            continue
        if one.op_def.is_stateful and one.type not in _VOCABULARIES:
            return None
        waiting += [tensor.op for tensor in one.inputs]
    return names
