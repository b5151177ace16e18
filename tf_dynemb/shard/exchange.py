"""AllToAllExchange: how processes that share a table send each other keys and rows.

Under MultiWorkerMirroredStrategy each process owns a part of the keys, by a hash of the key or by key
mod processes (TableConfig.partition_strategy). What a step needs of the others goes over connections of
the op library (cc/core/shard/exchange.h): to each process just the items that it needs, in one exchange
for all tables. Of few processes each sends to each other one; many are a grid, in which items go along a
row and then along a column (cc/core/shard/grid.h). In every exchange processes agree on what they do, so
that all go on, or all get one error.

Tables know of it only that there is an exchange.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.agreed import Agreed
from tf_dynemb.base.op_library import ops
from tf_dynemb.base.table import Table

_CONNECT_SECONDS = 60.0  # until all are connected, once each listens
_WAIT_SECONDS = 1800.0  # until all have called the same, where the strategy has no timeout
_PORTS = "TF_DYNEMB_EXCHANGE_PORTS"
_STAGES = "TF_DYNEMB_EXCHANGE_STAGES"
_SHARED_MEMORY = "TF_DYNEMB_EXCHANGE_SHARED_MEMORY"
_TWO_STAGES_FROM = 128  # processes
_TEXT_BYTES = 1024  # of what processes tell each other before they are connected

_GROUP_KEYS = itertools.count(0x64790000)  # far from those that strategies count from 1

_of_strategy: weakref.WeakKeyDictionary[tf.distribute.Strategy, AllToAllExchange] = (
    weakref.WeakKeyDictionary()
)


class Asked(NamedTuple):
    """Keys that processes have told each other, for each of some tables.

    Attributes:
        keys: of a lookup in this process, int64 (n,).
        distinct: these, each once (m,).
        places: of each of the keys among the distinct (n,).
        counts: (processes, tables), how many of the distinct each process owns.
        by_others: the keys that all processes want of this one.
        counts_by_others: (processes, tables), how many each of them wants.
        refused: whether one of the processes wants a key that its table cannot have; () if none can.
    """

    keys: list[tf.Tensor]
    distinct: list[tf.Tensor]
    places: list[tf.Tensor]
    counts: tf.Tensor
    by_others: list[tf.Tensor]
    counts_by_others: tf.Tensor
    refused: tf.Tensor | tuple[()]


class Fetched(NamedTuple):
    """Rows of keys, for each of some tables.

    Attributes:
        distinct: the keys, each once (m,).
        values: their rows (m, dim).
        exists: whether they have a row (m,).
        places: of each key of the lookup among the distinct (n,).
    """

    distinct: list[tf.Tensor]
    values: list[tf.Tensor]
    exists: list[tf.Tensor]
    places: list[tf.Tensor]


class Observer(Protocol):
    """Whom an exchange tells what is traced: see AllToAllExchange.observed_by."""

    def fetch(self, tables: Sequence[Table], keys: Sequence[tf.Tensor]) -> Fetched | None:
        """The rows, where the observer has them."""


class AllToAllExchange:
    """The processes of a strategy, as the tables made in its scope see them.

    agree, fetch, deliver, agree_on_room, total, gather and gather_texts are collective: every process
    calls them, in one order. Where the programs of two processes differ, that is an error in both, with
    the names of what each wanted. What one of them has to refuse, such as a key that its table cannot
    have, all refuse.

    Attributes:
        processes: how many there are.
        index: which of them this one is.
        timeout_seconds: how long this process waits for the others to call the same: the timeout of the
            strategy's tf.distribute.experimental.CommunicationOptions, or without one half an hour, as
            torch.distributed's of Gloo. A process that has died is noticed without it.

    Raises:
        tf.errors.UnavailableError: in all processes, if one cannot connect to another one.
        ValueError: more than one replica in a process; ports that cannot be.
    """

    def __init__(self, strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        resolver = strategy.cluster_resolver
        tasks = resolver.cluster_spec().as_dict()
        workers = [*tasks.get("chief", ()), *tasks.get("worker", ())]
        self.processes = len(workers)
        chiefs = len(tasks.get("chief", ()))
        self.index = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
        if strategy.num_replicas_in_sync != self.processes:
            raise ValueError(
                f"strategy: got {strategy.num_replicas_in_sync} replicas in {self.processes} processes, "
                "want one in each: tables are in host memory, which the devices of a process share; "
                "give each device a process of its own, with CUDA_VISIBLE_DEVICES"
            )
        self._observer: Observer | None = None
        of_strategy = float(_compat.timeout_of(strategy) or 0)
        self.timeout_seconds = of_strategy or _WAIT_SECONDS
        with tf.init_scope(), tf.device("CPU:0"):
            self._connect([worker.rpartition(":")[0] for worker in workers], of_strategy)

    @staticmethod
    def of(strategy: tf.distribute.Strategy) -> AllToAllExchange | None:
        """That of the tables that were made in the scope of a strategy; None where there is none."""
        return _of_strategy.get(strategy)

    @staticmethod
    def of_scope() -> AllToAllExchange | None:
        """That of the strategy in whose scope we are; None where there is one process."""
        strategy = tf.distribute.get_strategy()
        resolver = getattr(strategy, "cluster_resolver", None)
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or resolver is None:
            return None
        tasks = resolver.cluster_spec().as_dict()
        if len(tasks.get("chief", ())) + len(tasks.get("worker", ())) < 2:
            return None
        if resolver.task_type not in ("chief", "worker"):  # an evaluator is no replica
            return None
        if strategy not in _of_strategy:
            _of_strategy[strategy] = AllToAllExchange(strategy)
        return _of_strategy[strategy]

    def agree(self, program: str) -> None:
        """Fails in all processes unless each is about to do the same; eagerly."""
        with tf.init_scope():
            self._exchanged(program)

    def fetch(self, tables: Sequence[Table], keys: Sequence[tf.Tensor]) -> Fetched:
        """Rows of keys from their shards; each distinct key is sent once.

        Args:
            tables: whose rows.
            keys: for each table int64 (n,).
        """
        fetched = None if self._observer is None else self._observer.fetch(tables, keys)
        if fetched is None:
            asked = self.ask(tables, keys)
            with tf.control_dependencies(self.refuse(tables, asked)):
                fetched = self.rows_of(tables, asked)
        return fetched

    def ask(self, tables: Sequence[Table], keys: Sequence[tf.Tensor]) -> Asked:
        """The first part of fetch: tells each process which of its rows are wanted. None is read yet."""
        distinct, places, counts = self._grouped(tables, keys, distinct=True)
        problem = _problem(tables, keys)
        largest, asked_counts, asked = self._exchanged(
            _program("lookup", tables),
            numbers=[] if problem is None else [tf.cast(tf.not_equal(problem, ""), tf.int64)],
            counts=counts,
            parts=distinct,
        )
        refused = () if problem is None else tf.greater(largest[0], 0)
        return Asked(list(keys), distinct, places, counts, asked, asked_counts, refused)

    def refuse(self, tables: Sequence[Table], asked: Asked) -> list[tf.Tensor]:
        """The second part of fetch: fails in all processes if one wants a key its table cannot have.

        Returns:
            What the use of the rows depends on.
        """
        if isinstance(asked.refused, tuple):
            return []

        def fail() -> tf.Tensor:
            largest, *_ = self._exchanged(
                "refusal of a " + _program("lookup", tables), problem=_problem(tables, asked.keys)
            )
            return largest

        return [tf.cond(asked.refused, fail, lambda: tf.zeros([0], tf.int64))]

    def rows_of(self, tables: Sequence[Table], asked: Asked) -> Fetched:
        """The third part of fetch: the rows, as they are now."""
        found = [
            ops.dynemb_lookup(
                tf.zeros([0, table.dim], table.value_dtype),
                table.resource.resource_handle,
                k,
                table.resource.shard_ids(k),
                dim=table.dim,
            )
            for table, k in zip(tables, asked.by_others, strict=True)
        ]
        reply = [
            tf.cast(values, table.config.exchange_dtype or table.value_dtype)
            for (values, _), table in zip(found, tables, strict=True)
        ]
        reply += [exists for _, exists in found]
        _, _, got = self._exchanged(
            "rows for a " + _program("lookup", tables),
            counts=asked.counts_by_others,
            parts=reply,
        )
        rows, exist = got[: len(tables)], got[len(tables) :]
        values = [tf.cast(part, t.value_dtype) for part, t in zip(rows, tables, strict=True)]
        return Fetched(asked.distinct, values, exist, asked.places)

    @contextlib.contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Asks an observer first in what is traced meanwhile."""
        self._observer = observer
        try:
            yield
        finally:
            self._observer = None

    def deliver(
        self,
        what: str,
        tables: Sequence[Table],
        keys: Sequence[tf.Tensor],
        *columns: Sequence[tf.Tensor],
    ) -> tuple[list[list[tf.Tensor]], Agreed]:
        """Sends keys, with what belongs to each, to their shards.

        Args:
            what: is done with them, which must be the same in all processes.
            tables: whose keys.
            keys: for each table int64 (n,); a key may repeat.
            *columns: what belongs to them, for each table numbers (n,) or (n, d).

        Returns:
            The keys for each table (m,), and each column likewise, of those that this process owns: what
            the first process sent first, and of each in its order. And what all know.
        """
        number = len(tables)
        grouped, places, counts = self._grouped(tables, keys, distinct=False)
        order = [tf.math.invert_permutation(place) for place in places]
        parts = list(grouped)
        for column in columns:
            parts += [tf.gather(*pair) for pair in zip(column, order, strict=True)]
        refusing = [n for n, table in enumerate(tables) if table.config.refuses_when_full]
        sent = room = tf.zeros([], tf.int64)
        if refusing:
            sent = tf.reduce_max(tf.gather(counts, refusing, axis=1))
            room = tf.reduce_min([tables[n].resource.room() for n in refusing])
        numbers = [sent, -room]
        timed = [table for table in tables if table.reads_clock]
        if timed:  # of all but the first the least number, so that the largest is that of it
            is_first = self.index == 0
            numbers.append(timed[0].resource.now() if is_first else tf.constant(tf.int64.min))
        largest, _, got = self._exchanged(
            _program(what, tables) + _kinds(parts),
            numbers=numbers,
            problem=_problem(tables, keys) if columns else None,
            counts=counts,
            parts=parts,
        )
        # No shard gets more keys than that, so that few steps need to ask again.
        enough = largest[0] * self.processes + largest[1] <= 0 if refusing else None
        agreed = Agreed(enough, largest[2] if timed else None)
        return [got[first : first + number] for first in range(0, len(got), number)], agreed

    def agree_on_room(self, tables: Sequence[Table], problem: tf.Tensor) -> tf.Tensor:
        """Fails in all processes if one of them has no room for what it is to insert.

        Args:
            tables: that are to be written.
            problem: which of them has no room here, and for what; a string scalar, empty if all have.

        Returns:
            True, once all have agreed.

        Raises:
            tf.errors.ResourceExhaustedError: one has a problem; says which and what.
        """
        names = ", ".join(table.name for table in tables)
        largest, *_ = self._exchanged(f"room in {names}", problem=problem, refusal="exhausted")
        with tf.control_dependencies([largest]):
            return tf.constant(True)

    def total(self, numbers: tf.Tensor) -> tf.Tensor:
        """The sum over processes of float64 (n,), where n is the same in all."""
        (joined,) = self.gather([numbers], f"a sum of {numbers.shape} numbers")
        return tf.reduce_sum(tf.reshape(joined, [self.processes, -1]), axis=0)

    def gather(self, parts: Sequence[tf.Tensor], what: str) -> list[tf.Tensor]:
        """Tensors of all processes, joined along the first axis in the order of the processes.

        Args:
            parts: numbers of shape (items,) or (items, dim), where `dim` is the same in all processes.
            what: they are, which must be the same in all processes.
        """
        kept = [number for number, part in enumerate(parts) if _dim(part) != 0]  # others have nothing
        sent = [parts[number] for number in kept]
        counts = tf.stack([tf.shape(part, tf.int64)[0] for part in sent])[tf.newaxis]
        _, _, got = self._exchanged(what + _kinds(sent), counts=counts, parts=sent, to_all=True)
        gathered = dict(zip(kept, got, strict=True))
        items = tf.shape(got[0])[0]  # of the first part, which has keys
        return [
            gathered[n] if n in gathered else tf.zeros([items, 0], part.dtype)
            for n, part in enumerate(parts)
        ]

    def gather_texts(self, text: str) -> list[str]:
        """What each process gave; eagerly."""
        letters = tf.constant(np.frombuffer(text.encode(), np.uint8))
        counts = tf.constant([[len(letters)]], tf.int64)
        _, sizes, (joined,) = self._exchanged("texts", counts=counts, parts=[letters], to_all=True)
        sizes, joined = sizes.numpy()[:, 0], joined.numpy()
        ends = np.cumsum(sizes)
        return [joined[end - n : end].tobytes().decode() for n, end in zip(sizes, ends, strict=True)]

    def owned(self, keys: tf.Tensor, by_hash: bool) -> tf.Tensor:
        """Whether this process owns each of the keys int64 (n,), by a hash or modulo the processes."""
        return ops.dynemb_owned(keys, process=self.index, processes=self.processes, by_hash=by_hash)

    def share(self, number: int | tf.Tensor) -> int | tf.Tensor:
        """This process' part of a number, or tensor, that all have together, such as a limit of rows."""
        return (number + self.processes - 1 - self.index) // self.processes

    def metrics(self) -> dict[str, tf.Tensor]:
        """How often this process has exchanged with the others, what it has sent them, and by what."""
        with tf.device("CPU:0"):
            calls, sent_bytes, messages, by_memory = ops.dynemb_exchange_calls(self._handle)
        return {
            "exchanges": calls,
            "all_to_all_bytes": sent_bytes,
            "all_to_all_messages": messages,
            "shared_memory_peers": by_memory,
        }

    def _exchanged(
        self,
        program: str,
        numbers: Sequence[tf.Tensor] = (),
        problem: tf.Tensor | None = None,
        counts: tf.Tensor | None = None,
        parts: Sequence[tf.Tensor] = (),
        to_all: bool = False,
        refusal: str = "invalid",
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Sends each process its part of tensors, once all have agreed; see the op DynembExchange.

        Args:
            program: what the process does, which must be the same in all.
            numbers: int64 scalars, as many in all.
            problem: why it cannot, a string scalar; empty or None: it can.
            counts: (processes, tables), how many items of each table go to each process; (1, tables) to
                all. None: nothing is sent.
            parts: for each table, one or more times, as many items as counts says.
            to_all: whether each process gets all items.
            refusal: "invalid" or "exhausted", the error if one has a problem.

        Returns:
            The largest of each of the numbers over all processes; counts (processes, tables) and parts
            of what the others sent to this one.

        Raises:
            tf.errors.InvalidArgumentError: another process runs another program here; names both. Or one
                has a problem; says which and what.
            tf.errors.ResourceExhaustedError: one has a problem, if that is the refusal.
            tf.errors.UnavailableError: a process is gone.
            tf.errors.DeadlineExceededError: one did not come within timeout_seconds.
        """
        if counts is None:
            counts = tf.zeros([self.processes, 0], tf.int64)
        with tf.device("CPU:0"):
            largest, sent, got = ops.dynemb_exchange(
                self._handle,
                "" if problem is None else problem,
                tf.stack(numbers) if numbers else tf.zeros([0], tf.int64),
                counts,
                parts,
                program=program,
                dims=[_dim(part) for part in parts],
                to_all=to_all,
                refusal=refusal,
                timeout_seconds=self.timeout_seconds,
            )
        return largest, tf.ensure_shape(sent, [self.processes, counts.shape[1]]), got

    def _grouped(self, tables: Sequence[Table], keys: Sequence[tf.Tensor], distinct: bool) -> Any:
        return ops.dynemb_group_by_process(
            keys,
            processes=self.processes,
            by_hash=[table.resource.by_hash for table in tables],
            distinct=distinct,
        )

    def _connect(self, hosts: Sequence[str], timeout_seconds: float) -> None:
        """Connects to the processes on these hosts; where one cannot, that is an error in all.

        TensorFlow's collective waits so long for all to tell of themselves; 0: for ever.
        """
        group_key = next(_GROUP_KEYS)

        def told(text: str, number: int) -> list[str]:
            """What all tell each other, by TensorFlow's own collective."""
            padded = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=np.frombuffer(padded, np.int32)[np.newaxis],
                group_size=self.processes,
                group_key=group_key,
                instance_key=number,
                ordering_token=[],
                timeout_seconds=timeout_seconds,
            )
            return [line.tobytes().decode(errors="replace").rstrip() for line in gathered.numpy()]

        problem = f"process {self.index}: "
        try:
            memory = shared_memory()
            self._handle, port = listening()
            mine = f"{int(port)} {stages(self.processes)} {secrets.token_hex(8)}"
        except Exception as error:  # which the others wait to hear of
            mine = f"0 0 {problem}{error}"
        lines = [line.split(" ", 2) for line in told(mine, 1)]
        problems = [text for port, _, text in lines if port == "0"]
        if not problems and len({of_each for _, of_each, _ in lines}) > 1:
            had = (f"process {n} has {of_each}" for n, (_, of_each, _) in enumerate(lines))
            problems = [f"{_STAGES} differs: {', '.join(had)}"]
        if not problems:
            addresses = [f"{host}:{port}" for host, (port, *_) in zip(hosts, lines, strict=True)]
            failed = ""
            try:
                ops.dynemb_connect(
                    self._handle,
                    addresses,
                    lines[0][2],
                    index=self.index,
                    stages=int(lines[0][1]),
                    shared_memory=memory,
                    timeout_seconds=_CONNECT_SECONDS,
                )
            except Exception as error:  # likewise
                failed = getattr(error, "message", str(error))
            problems = [text for text in told(failed, 2) if text]
        if problems:
            raise tf.errors.UnavailableError(
                None,
                None,
                "processes that share tables connect to each other, at the hosts of TF_CONFIG and on "
                f"free ports, or on those that {_PORTS} names, such as 9000-9063: {'; '.join(problems)}",
            )


def listening() -> tuple[tf.Tensor, tf.Tensor]:
    """A handle that listens, and on which port: any free one, or one of those of the environment."""
    text = os.environ.get(_PORTS, "")
    first, _, last = text.partition("-")
    try:
        ports = range(int(first), int(last or first) + 1) if text else range(1)
        if text and not 1 <= ports[0] <= ports[-1] <= 65535:
            raise IndexError
    except (ValueError, IndexError):
        raise ValueError(f"{_PORTS}: got {text!r}, want a port, or first-last") from None
    for port in ports:
        try:
            return ops.dynemb_listen(port=port)
        except tf.errors.UnavailableError as error:
            taken = error
    raise tf.errors.UnavailableError(None, None, f"{_PORTS}={text}: none is free: {taken.message}")


def stages(processes: int) -> int:
    """Of an exchange between so many processes, 1 or 2: what the environment says, or the default."""
    text = os.environ.get(_STAGES, "")
    if text not in ("", "1", "2"):
        raise ValueError(f"{_STAGES}: got {text!r}, want 1 or 2")
    return int(text) if text else 1 + (processes >= _TWO_STAGES_FROM)


def shared_memory() -> bool:
    """Whether this process exchanges with others of its machine through shared memory, if they do so."""
    text = os.environ.get(_SHARED_MEMORY, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"{_SHARED_MEMORY}: got {text!r}, want 0 or 1")
    return text != "0"


def _problem(tables: Sequence[Table], keys: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """What is wrong with keys of tables."""
    problems = [table._problem_of(k) for table, k in zip(tables, keys, strict=True)]
    return _joined([problem for problem in problems if problem is not None])


def _joined(problems: list[tf.Tensor]) -> tf.Tensor | None:
    """Those that are not empty, in one text."""
    if not problems:
        return None
    problems = tf.stack(problems)
    return tf.strings.reduce_join(tf.boolean_mask(problems, tf.not_equal(problems, "")), separator="; ")


def _kinds(parts: Sequence[tf.Tensor]) -> str:
    """What parts are."""
    return ", sending " + ", ".join(f"{abs(_dim(part))} x {part.dtype.name}" for part in parts)


def _dim(part: tf.Tensor) -> int:
    """Numbers of an item; -1 for items that are numbers."""
    return -1 if part.shape.rank == 1 else int(part.shape[1])


def _program(what: str, tables: Sequence[Table]) -> str:
    """What processes must agree on."""
    return f"{what} of {', '.join(f'{table.name} ({table._declared})' for table in tables)}"
