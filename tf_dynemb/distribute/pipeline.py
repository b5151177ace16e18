"""Pipeline: while a step is computed, processes tell each other which rows the next one wants.

A step over several processes waits for the others three times: for ids, rows and gradients. Which ids it
looks up depends on its batch alone, as a rule; so they can travel while the step before is computed,
those of all layers at once. Their rows are read when that step is done, as ever: no row is older than in
a loop without a pipeline, and the results are the same to the bit. With stale_rows the rows travel with
the ids, as they are before that step.

Which part of a step makes ids of a batch is found in its graph: the step is traced once without being
run, and what leads from the batch to the keys of its lookups is copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import tensorflow as tf

from tf_dynemb.base.checks import assert_same
from tf_dynemb.base.table import Table
from tf_dynemb.shard.exchange import AllToAllExchange, Asked, Fetched

_DIFFER = (
    "pipeline: a step looked up other ids than its batch gave before: a step must make ids of its batch "
    "in the same way each time, and vocabularies must not change between steps; or use no pipeline "
    "(fit's pipeline=False); got"
)
_OTHERS = (
    "pipeline: a step looked up rows of other tables when it was traced again: it must look up the same "
    "tables in the same order each time; or use no pipeline (fit's pipeline=False)"
)
# What does not change the rows of a table whose handle it takes. Calls of functions may.
_READING = (
    "DynembLookup",
    "DynembWithScores",
    "DynembSize",
    "DynembCounters",
    "DynembExport",
    "DynembTierStats",
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
        stale_rows: whether a step takes its rows as they were before the update of the step before it,
            so that they travel while that one is computed and a step waits for gradients alone. The
            first step of a run has them as they are. Other results than without, and the same in each
            run: stochastic gradient descent with a delay of one step, as in "Slow Learners are Fast"
            (Langford et al., 2009) and TorchRec's TrainPipelineSemiSync; dense weights have none. What
            is written to tables between two steps is seen a step later, too.

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
        self,
        step: Callable[[Any], Any],
        strategy: tf.distribute.Strategy | None = None,
        stale_rows: bool = False,
    ) -> None:
        self._strategy = strategy or tf.distribute.get_strategy()
        self._stale_rows = stale_rows
        self._step = in_replicas(self._strategy, step)
        self._traced: dict[str, _Functions | None] = {}
        self._alone = tf.function(self._step, reduce_retracing=True)

    def run(self, batches: Any) -> Iterator[Any]:
        """Runs a step for each batch, and gives what it returned in this process' first replica.

        A batch is read before the step of the one before it is run. All processes take as many results,
        or none of the rest.

        Args:
            batches: a tf.data.Dataset, or what strategy.experimental_distribute_dataset or
                distribute_datasets_from_function returns.

        Raises:
            TypeError: batches without an element_spec; an iterator, of which a run that is not taken to
                its end would leave out the batch that was read ahead.
            tf.errors.OpError: what a step raises, or the reading of its batch; the step before it is
                done, and none after it.
        """
        spec = getattr(batches, "element_spec", None)
        iterator = None if spec is None else iter(batches)
        if iterator is None or iterator is batches:
            raise TypeError(
                f"batches: got a {type(batches).__name__}, want a tf.data.Dataset or a distributed one"
            )
        return (step() for step in self.steps(iterator, spec))

    def steps(self, batches: Iterator[Any], spec: Any) -> Iterator[Callable[[], Any]]:
        """For each of some batches of a type a function that does its step, to be called in turn."""
        functions = self._functions(spec)
        if functions is None:
            for batch in batches:
                yield functools.partial(self._alone, batch)
            return
        batch = next(batches, None)
        if batch is None:
            return
        ahead = functions.fetch_ahead(functions.keys_of(batch))
        while batch is not None:
            following, keys = None, functions.no_keys
            unread: Exception | None = None
            failed: Exception | None = None
            # Either error is of the step after this one, which other processes have not begun either.
            try:
                following = next(batches, None)
            except Exception as error:
                unread = error
            if following is not None:
                try:
                    keys = functions.keys_of(following)
                except Exception as error:
                    failed = error

            def run() -> Any:
                nonlocal ahead
                result, ahead = functions.step(batch, ahead, keys)  # noqa: B023
                return result

            yield run
            if unread is not None:
                raise unread
            if failed is not None:
                yield functools.partial(_raise, failed)
                return
            batch = following

    def _functions(self, spec: Any) -> _Functions | None:
        """What exchanges ids ahead; None where there is nothing to exchange."""
        key = str(spec)
        if key not in self._traced:
            exchange = AllToAllExchange.of(self._strategy)
            if exchange is None or tf.config.functions_run_eagerly():
                self._traced[key] = None
            else:
                self._traced[key] = self._trace(exchange, spec)
        return self._traced[key]

    def _trace(self, exchange: AllToAllExchange, spec: Any) -> _Functions | None:
        recorder = _Recorder()
        with exchange.observed_by(recorder):
            traced = tf.function(self._step).get_concrete_function(spec)
        keys_of_batch = _KeysOfBatch(traced, recorder)
        tables = keys_of_batch.tables
        if not tables:
            return None

        def fetch_ahead(keys: list[tf.Tensor]) -> _Ahead:
            asked = exchange.ask(tables, keys)
            return _Ahead(asked, exchange.rows_of(tables, asked) if self._stale_rows else ())

        def step(batch: Any, ahead: _Ahead, following: list[tf.Tensor]) -> tuple[Any, _Ahead]:
            # A batch that a process must refuse ends its own step, whenever its rows are read.
            with tf.control_dependencies(exchange.refuse(tables, ahead.asked)):
                rows = ahead.rows or exchange.rows_of(tables, ahead.asked)
                rows = rows._replace(values=[tf.identity(values) for values in rows.values])
            # In the program after the rows, and before anything that waits for others: so what it
            # fetches travels while the step is computed. And before the update of the tables.
            ahead_of_next = fetch_ahead(following)
            player = _Player(keys_of_batch, ahead.asked, rows)
            with exchange.observed_by(player):
                result = self._step(batch)
            player.check_end()
            return result, ahead_of_next

        keys_spec = [tf.TensorSpec([None], tf.int64)] * len(tables)
        convert = tf.autograph.experimental.do_not_convert
        keys_function = tf.function(convert(keys_of_batch))
        keys_function.get_concrete_function(spec)
        ahead_function = tf.function(convert(fetch_ahead), input_signature=[keys_spec])
        ahead_spec = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
            ahead_function.get_concrete_function().structured_outputs,
        )
        step_function = tf.function(convert(step))
        step_function.get_concrete_function(spec, ahead_spec, keys_spec)
        no_keys = [tf.zeros([0], tf.int64)] * len(tables)
        return _Functions(keys_function, ahead_function, step_function, no_keys)


class _Ahead(NamedTuple):
    """What is known of a batch before its step.

    Attributes:
        asked: which rows it wants.
        rows: these, where they may be stale; else they are read in its step.
    """

    asked: Asked
    rows: Fetched | tuple[()]


class _Functions(NamedTuple):
    """What a pipeline runs, for batches of a type.

    Attributes:
        keys_of: the keys int64 (n,) of a batch, for each of some tables.
        fetch_ahead: what is known of a batch of such keys before its step.
        step: of a batch, of what is known of it, and of the keys of the next batch: the step's result,
            and what is known of that batch.
        no_keys: those of no batch.
    """

    keys_of: Callable[[Any], list[tf.Tensor]]
    fetch_ahead: Callable[[list[tf.Tensor]], _Ahead]
    step: Callable[[Any, _Ahead, list[tf.Tensor]], tuple[Any, _Ahead]]
    no_keys: list[tf.Tensor]


def in_replicas(strategy: tf.distribute.Strategy, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a batch that runs a step in all replicas and returns what the first one gave."""
    if isinstance(step, tf.types.experimental.PolymorphicFunction):
        step = step.python_function  # replicas cannot meet in a graph of its own

    def run(batch: Any) -> Any:
        results = []

        def in_replica(batch: Any) -> None:
            results.append(step(batch))

        strategy.run(in_replica, args=(batch,))
        return results[0]

    return tf.autograph.experimental.do_not_convert(run)


def _raise(error: Exception) -> NoReturn:
    raise error


class _Lookup(NamedTuple):
    """Of a step that was traced.

    Attributes:
        tables: whose rows it looks up.
        keys: of each.
        operations: how many the graph had before it.
    """

    tables: list[Table]
    keys: list[tf.Tensor]
    operations: int


class _Recorder:
    """Notes which rows a step looks up while it is traced."""

    def __init__(self) -> None:
        self.lookups: list[_Lookup] = []

    def fetch(self, tables: Sequence[Table], keys: Sequence[tf.Tensor]) -> None:
        operations = len(keys[0].graph.get_operations())
        self.lookups.append(_Lookup(list(tables), list(keys), operations))


class _Player:
    """Has the rows of a step that were fetched before it."""

    def __init__(self, keys_of: _KeysOfBatch, asked: Asked, rows: Fetched) -> None:
        self._lookups = iter(keys_of.lookups)
        self._asked = asked
        self._rows = rows

    def fetch(self, tables: Sequence[Table], keys: Sequence[tf.Tensor]) -> Fetched | None:
        if keys[0].graph is not self._rows.values[0].graph:
            return None
        of_lookup, recorded = next(self._lookups, (None, None))
        if recorded != list(tables):
            raise ValueError(_OTHERS)
        if of_lookup is None:
            return None
        checks = []
        for n, of_table in zip(of_lookup, keys, strict=True):
            checks += assert_same(self._asked.keys[n], of_table, _DIFFER)
        fetched = Fetched(*([part[n] for n in of_lookup] for part in self._rows))
        with tf.control_dependencies(checks):
            return fetched._replace(values=[tf.identity(values) for values in fetched.values])

    def check_end(self) -> None:
        """Raises a ValueError if there were fewer lookups than when the step was traced before."""
        if next(self._lookups, None) is not None:
            raise ValueError(_OTHERS)


class _KeysOfBatch:
    """The part of a step's graph that makes keys of a batch.

    Lookups in functions that the step calls, or in branches, are not among its: the step may call such
    a function without tracing it again.

    Attributes:
        tables: of all lookups whose keys depend on the batch alone, one after the other.
        lookups: for each lookup of the step, in its order, which of the tables are its, and its tables.
            None for which: its keys depend on more, or a table may be written before.
    """

    def __init__(self, step: tf.types.experimental.ConcreteFunction, recorder: _Recorder) -> None:
        graph = step.graph
        captured = step.captured_inputs
        inputs = list(graph.inputs)
        self._of_batch = [tensor.name for tensor in inputs[: len(inputs) - len(captured)]]
        placeholders = inputs[len(self._of_batch) :]
        self._captured = {p.name: c for p, c in zip(placeholders, captured, strict=True)}
        handles = {id(c): p for p, c in zip(placeholders, captured, strict=True)}
        order = {operation.name: n for n, operation in enumerate(graph.get_operations())}
        self.tables: list[Table] = []
        self.lookups: list[tuple[range | None, list[Table]]] = []
        keys: list[tf.Tensor] = []
        names: set[str] = set()
        for lookup in recorder.lookups:
            if any(key.graph is not graph for key in lookup.keys):
                continue
            leading = [_leading_to(key.op) for key in lookup.keys]
            found = [one for one in leading if one is not None]
            is_written = any(
                consumer.type not in _READING and order[consumer.name] < lookup.operations
                for table in lookup.tables
                if id(table.resource.resource_handle) in handles
                for consumer in handles[id(table.resource.resource_handle)].consumers()
            )
            is_ahead = len(found) == len(lookup.keys) and not is_written
            first = len(self.tables)
            which = range(first, first + len(lookup.tables)) if is_ahead else None
            self.lookups.append((which, lookup.tables))
            if is_ahead:
                self.tables += lookup.tables
                keys += lookup.keys
                names.update(*found)
        self._keys = [key.name for key in keys]
        self._graph = graph.as_graph_def()
        nodes = [node for node in self._graph.node if node.name in names]
        for node in nodes:  # without checks of the batch, which its step does itself
            node.input[:] = [name for name in node.input if not name.startswith("^")]
            node.attr.pop("_class", None)  # wants to be where a node is that is not among these
        del self._graph.node[:]
        self._graph.node.extend(nodes)

    def __call__(self, batch: Any) -> list[tf.Tensor]:
        """The keys int64 (n,) of each of the tables, in a graph."""
        leaves = [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]
        nodes = {f"{node.name}:0" for node in self._graph.node}
        inputs = {n: leaf for n, leaf in zip(self._of_batch, leaves, strict=True) if n in nodes}
        inputs |= {n: tf.identity(tensor) for n, tensor in self._captured.items() if n in nodes}
        return tf.graph_util.import_graph_def(
            self._graph, input_map=inputs, return_elements=self._keys, name="keys_of_batch"
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
        if one.op_def.is_stateful and not _reads_vocabulary(one):
            return None
        waiting += [tensor.op for tensor in one.inputs]
    return names


def _reads_vocabulary(operation: tf.Operation) -> bool:
    """Whether an operation reads a table of TensorFlow that the step does not write."""
    if operation.type not in _VOCABULARIES:
        return False
    return all(consumer.type in _VOCABULARIES for consumer in operation.inputs[0].consumers())
