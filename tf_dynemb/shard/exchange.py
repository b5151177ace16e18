"""AllToAllExchange: how processes that share a table send each other keys and rows.

Under MultiWorkerMirroredStrategy each process owns the keys that are its number, modulo the number of
processes. What a step needs of the others goes over TensorFlow's own all-to-all: to each process one
buffer, all of one size, on which they agree first. Sizes are rounded up to one of eight per power of
two, since a collective cannot change its shape: each size is another instance of it.

What is sent is in cc/core/shard/all_to_all_buffer.h; tables know of it only that there is an exchange.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dynemb import _compat
from tf_dynemb.base.checks import text_if
from tf_dynemb.base.op_library import ops
from tf_dynemb.base.table import Table

# Words of a buffer: what is needed, rounded up to one of these; 2^40 words are more than fit anywhere.
_SIZES = np.unique([(8 + eighth) << power for power in range(37) for eighth in range(8)])
# Numbers of collectives, by what they carry; an all-to-all adds the number of its size.
# Sums are the last, since they add how many numbers there are.
_AGREE, _TEXTS, _GATHER, _TO_OWNERS, _FROM_OWNERS, _SUM = (n * len(_SIZES) for n in range(1, 7))
_GROUP_KEYS = itertools.count(0x64790000)  # far from those that strategies count from 1
_PROBLEM = 1 << 56  # and the process' number: stands for what is no program; their digests are less
_DIFFER = (
    "the programs of the processes differ: they must make the same tables, in the same order, and look "
    "them up and train them in the same order. Got "
)

_of_strategy: weakref.WeakKeyDictionary[tf.distribute.Strategy, AllToAllExchange] = (
    weakref.WeakKeyDictionary()
)


class AllToAllExchange:
    """The processes of a strategy, as the tables made in its scope see them.

    agree, fetch, deliver, total, gather and gather_texts are collective: every process calls them, in
    one order. Where the programs of two processes differ, that is an error in both, with the names of
    what each wanted. What one of them has to refuse, such as a key that its table cannot have, all
    refuse.

    Attributes:
        processes: how many there are.
        index: which of them this one is.
        timeout_seconds: how long this process waits for the others to call the same: the timeout of the
            strategy's tf.distribute.experimental.CommunicationOptions; 0: for ever, as TensorFlow's own
            collectives. A process that has died is noticed by TensorFlow's heartbeats, without it.
    """

    def __init__(self, strategy: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        resolver = strategy.cluster_resolver
        tasks = resolver.cluster_spec().as_dict()
        chiefs = len(tasks.get("chief", ()))
        self.processes = chiefs + len(tasks.get("worker", ()))
        self.index = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
        if strategy.num_replicas_in_sync != self.processes:
            raise ValueError(
                f"strategy: got {strategy.num_replicas_in_sync} replicas in {self.processes} processes, "
                "want one in each: tables are in host memory, which the devices of a process share; "
                "give each device a process of its own, with CUDA_VISIBLE_DEVICES"
            )
        self.timeout_seconds = float(_compat.timeout_of(strategy) or 0)
        self._group_key = next(_GROUP_KEYS)
        # Collectives that take the same token run one after the other, as the program has them.
        with tf.init_scope(), tf.device("CPU:0"):
            self._token = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=[], shared_name=f"tf_dynemb_exchange_{self._group_key}"
            )

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
            self._agreed([], program)

    def fetch(
        self, tables: Sequence[Table], keys: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Rows of keys from their shards; each distinct key is sent once.

        Args:
            tables: whose rows.
            keys: for each table int64 (n,).

        Returns:
            For each table: the distinct keys (m,), their values (m, dim), whether they have a row (m,),
            and the place of each of the n keys among them (n,).
        """
        number = len(tables)
        distinct, places, counts = self._grouped(keys, distinct=True)
        value_bytes = [table.dim * table.value_dtype.size for table in tables]
        there, back, _ = self._agreed(
            [_words(counts, [8] * number), _words(counts, [*value_bytes, *[1] * number])],
            _program("lookup", tables),
            _problem(tables, keys),
        )
        asked_counts, asked = self._swap(_TO_OWNERS, _size(there), counts, [distinct], [-1] * number)
        found = [
            ops.dynemb_lookup(
                tf.zeros([0, table.dim], table.value_dtype),
                table.resource.resource_handle,
                k,
                table.resource.shard_ids(k),
                dim=table.dim,
            )
            for table, k in zip(tables, asked, strict=True)
        ]
        reply = [[values for values, _ in found], [exists for _, exists in found]]
        dims = [*(table.dim for table in tables), *[-1] * number]
        _, got = self._swap(_FROM_OWNERS, _size(back), asked_counts, reply, dims)
        return distinct, got[:number], got[number:], places

    def deliver(
        self,
        what: str,
        tables: Sequence[Table],
        keys: Sequence[tf.Tensor],
        *columns: Sequence[tf.Tensor],
        limits: Sequence[int] = (),
    ) -> list[list[tf.Tensor]]:
        """Sends keys, with what belongs to each, to their shards.

        Args:
            what: is done with them, which must be the same in all processes.
            tables: whose keys.
            keys: for each table int64 (n,); a key may repeat.
            *columns: what belongs to them, for each table numbers (n,) or (n, d).
            limits: for each table how many rows it may have in this process, or -1; none: any number.

        Returns:
            The keys for each table (m,), and each column likewise, of those that this process owns: what
            the first process sent first, and of each in its order.

        Raises:
            tf.errors.ResourceExhaustedError: in some process a table would get more rows than it may.
        """
        number = len(tables)
        grouped, places, counts = self._grouped(keys, distinct=False)
        order = [tf.math.invert_permutation(place) for place in places]
        groups = [grouped]
        groups += [[tf.gather(*pair) for pair in zip(c, order, strict=True)] for c in columns]
        parts = [part for group in groups for part in group]
        limited = [(n, limit) for n, limit in enumerate(limits) if limit >= 0]
        sent = room = tf.zeros([], tf.int64)
        if limited:
            sent = tf.reduce_max(tf.gather(counts, [n for n, _ in limited], axis=1))
            sizes = [tf.reduce_sum(tables[n].resource.sizes()[0]) for n, _ in limited]
            room = tf.reduce_min([limit - size for (_, limit), size in zip(limited, sizes, strict=True)])
        words, sent, full = self._agreed(
            [_words(counts, [_item_bytes(part) for part in parts]), sent, -room],
            _program(what, tables) + _kinds(parts),
            _problem(tables, keys) if columns else None,
        )
        _, got = self._swap(_TO_OWNERS, _size(words), counts, groups, [_dim(part) for part in parts])
        if limited:
            # No shard gets more keys than that, so that few steps need to ask again.
            enough = sent * self.processes + full <= 0
            asked = [(tables[n], limit, got[n]) for n, limit in limited]
            checked = tf.cond(enough, lambda: tf.constant(True), lambda: self._have_room(asked))
            with tf.control_dependencies([checked]):
                got = [tf.identity(part) for part in got]
        return [got[first : first + number] for first in range(0, len(got), number)]

    def total(self, numbers: tf.Tensor) -> tf.Tensor:
        """The sum over processes of float64 (n,), where n is the same in all."""
        size, *_ = self._agreed([tf.size(numbers, tf.int64)], f"a sum of {numbers.shape} numbers")
        with tf.control_dependencies([size]):  # who waits for a sum that others do not want, waits long
            instance = _SUM + tf.size(numbers)
            return self._collective("Reduce", instance, numbers, merge_op="Add", final_op="Id")

    def gather(self, parts: Sequence[tf.Tensor], what: str) -> list[tf.Tensor]:
        """Tensors of all processes, joined along the first axis in the order of the processes.

        Args:
            parts: numbers of shape (items,) or (items, dim), where `dim` is the same in all processes.
            what: they are, which must be the same in all processes.
        """
        dims = [_dim(part) for part in parts]
        kept = [number for number, dim in enumerate(dims) if dim != 0]  # others have nothing to send
        if len(kept) < len(parts):
            gathered = dict(
                zip(kept, self.gather([parts[number] for number in kept], what), strict=True)
            )
            items = tf.shape(gathered[0])[0]  # of the first part, which has keys
            return [
                gathered[n] if n in gathered else tf.zeros([items, 0], part.dtype)
                for n, part in enumerate(parts)
            ]
        counts = tf.stack([tf.shape(part, tf.int64)[0] for part in parts])[tf.newaxis]
        words = _words(counts, [_item_bytes(part) for part in parts])
        words, *_ = self._agreed([words], what + _kinds(parts))
        size = _size(words)
        buffer = ops.dynemb_pack(parts, counts, tf.gather(_SIZES, size) - len(parts))
        mine = tf.concat([counts, buffer], axis=1)
        everything = self._collective("Gather", _GATHER + size, mine)
        return ops.dynemb_unpack(
            everything[:, len(parts) :],
            everything[:, : len(parts)],
            P=[part.dtype for part in parts],
            dims=dims,
        )

    def gather_texts(self, text: str) -> list[str]:
        """What each process gave; eagerly."""
        encoded = tf.constant(np.frombuffer(text.encode(), np.uint8))
        size = tf.constant([len(encoded)], tf.int64)
        sizes, joined = (self.gather([part], "texts")[0].numpy() for part in (size, encoded))
        ends = np.cumsum(sizes)
        return [joined[end - n : end].tobytes().decode() for n, end in zip(sizes, ends, strict=True)]

    def owned(self, keys: tf.Tensor) -> tf.Tensor:
        """Whether this process owns each of the keys int64 (n,)."""
        return tf.equal(tf.math.floormod(keys, self.processes), self.index)

    def share(self, number: int | tf.Tensor) -> int | tf.Tensor:
        """This process' part of a number, or tensor, that all have together, such as a limit of rows."""
        return (number + self.processes - 1 - self.index) // self.processes

    def _swap(
        self, kind: int, size: tf.Tensor, counts: tf.Tensor, groups: list[tf.Tensor], dims: list[int]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Sends each process its buffer.

        Args:
            kind: where the instances of this collective begin.
            size: the agreed size, its number in _SIZES.
            counts: (processes, tables), how many items of each table go to each process.
            groups: lists of tensors, one per table; all are as many as counts says.
            dims: of all tensors of the groups.

        Returns:
            The counts (processes, tables) and tensors that the others sent.
        """
        parts = [part for group in groups for part in group]
        tables = counts.shape[1]
        words = tf.gather(_SIZES, size) - tables
        buffers = ops.dynemb_pack(parts, tf.tile(counts, [1, len(groups)]), words)
        buffers = tf.concat([counts, buffers], axis=1)
        received = self._collective("AllToAll", kind + size, buffers)
        sent = tf.ensure_shape(received[:, :tables], [self.processes, tables])
        return sent, ops.dynemb_unpack(
            received[:, tables:],
            tf.tile(sent, [1, len(groups)]),
            P=[part.dtype for part in parts],
            dims=dims,
        )

    def _have_room(self, asked: list[tuple[Table, int, tf.Tensor]]) -> tf.Tensor:
        """Fails in all processes if one of them has no room for the rows of keys that it got.

        Args:
            asked: (table, limit, keys) of each table that has a limit.

        Returns:
            True.
        """
        problems = []
        for table, limit, keys in asked:
            size = tf.reduce_sum(table.resource.sizes()[0])
            distinct, _ = tf.unique(keys)
            _, exists = table.resource.lookup(tf.zeros([0, table.dim], table.value_dtype), distinct)
            new = tf.boolean_mask(distinct, ~exists)
            text = (
                f"{table.handle.max_rows_argument} of {table.name}: got ",
                tf.size(new),
                " ids without a row, such as ",
                tf.reduce_max(new),
                ", for ",
                size,
                f" rows here that may be {limit}; give a larger limit or an eviction",
            )
            fits = (tf.size(new, tf.int64) + size <= limit) | tf.equal(tf.size(new), 0)
            problems.append(text_if(~fits, text))
        names = ", ".join(table.name for table, *_ in asked)
        self._agreed([], f"room in {names}", _joined(problems), _exhausted)
        return tf.constant(True)

    def _agreed(
        self,
        numbers: list[tf.Tensor],
        program: str,
        problem: tf.Tensor | None = None,
        failed: Callable[[tf.Tensor, tf.Tensor], object] | None = None,
    ) -> list[tf.Tensor]:
        """The largest of each of the numbers over all processes.

        Args:
            numbers: up to three int64 scalars; there are as many of any program.
            program: what the process does, which must be the same in all.
            problem: why it cannot, a string scalar; empty or None: it can.
            failed: makes the operation that fails, of whether all is well and what to say if not. None:
                tf.debugging.Assert.

        Raises:
            tf.errors.InvalidArgumentError: another process runs another program here; names both. Or one
                has a problem; says which and what.
        """
        digest = int.from_bytes(hashlib.sha256(program.encode()).digest()[:7], "little")
        letters = len(program)
        if problem is not None:
            well = tf.equal(problem, "")
            # No two have the same.
            digest = tf.where(well, tf.constant(digest, tf.int64), _PROBLEM + self.index)
            letters = tf.where(well, letters, tf.strings.length(problem, unit="UTF8_CHAR"))
        # As many in all, so that whatever is called meets any other.
        none = [tf.zeros([], tf.int64)] * (3 - len(numbers))
        numbers = tf.stack([*numbers, *none, tf.cast(letters, tf.int64), digest, -digest])
        # Every process tells every other, at once. A ring of TensorFlow's all-reduce passes numbers on
        # from one to the next, twice around.
        told = self._collective(
            "AllToAll",
            _AGREE,
            tf.tile(numbers[tf.newaxis], [self.processes, 1]),
            # Here alone, since who has come so far goes on: TensorFlow holds a thread or two for each
            # collective with a timeout until that is over, however soon the collective is.
            timeout_seconds=self.timeout_seconds,
        )
        most = tf.ensure_shape(tf.reduce_max(told, axis=0), [6])
        same = tf.equal(most[-2], -most[-1])
        refused = most[-2] >= _PROBLEM

        def programs() -> tf.Tensor:
            said = tf.where(refused, "" if problem is None else problem, program)
            said = tf.strings.unicode_decode(said, "UTF-8")
            size = _size(most[-3])
            padding = tf.gather(_SIZES, size) - tf.size(said, tf.int64)
            padded = tf.pad([said], [[0, 0], [0, padding]], constant_values=ord(" "))
            gathered = self._collective("Gather", _TEXTS + size, padded)
            texts = tf.strings.strip(tf.strings.unicode_encode(gathered, "UTF-8"))
            texts = tf.ensure_shape(texts, [self.processes])
            names = [f"process {number}: " for number in range(self.processes)]
            numbered = tf.boolean_mask(tf.strings.join([names, texts]), tf.not_equal(texts, ""))
            head = tf.where(refused, "processes refuse what they were to do: ", _DIFFER)
            return head + tf.strings.reduce_join(numbered, separator="; ")

        message = tf.cond(same, lambda: tf.constant(""), programs)
        check = (failed or _failed)(same, message)
        with tf.control_dependencies([] if check is None else [check]):
            return tf.unstack(tf.identity(most[:3]), num=3)

    def _collective(
        self, name: str, instance: int | tf.Tensor, mine: tf.Tensor, **options: Any
    ) -> tf.Tensor:
        """TensorFlow's collective of a name, on the host, where the tables are."""
        with tf.device("CPU:0"):
            return getattr(tf.raw_ops, f"Collective{name}V2")(
                input=mine,
                group_size=self.processes,
                group_key=self._group_key,
                instance_key=instance,
                ordering_token=[self._token],  # which also tells tf.function not to leave it out
                **options,
            )

    def _grouped(self, keys: Sequence[tf.Tensor], distinct: bool) -> Any:
        shard_ids = [tf.zeros([0], tf.int32)] * len(keys)  # key mod processes
        return ops.dynemb_group_by_shard(keys, shard_ids, receivers=self.processes, distinct=distinct)


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


def _failed(well: tf.Tensor, message: tf.Tensor) -> tf.Operation | None:
    if tf.executing_eagerly() and not well:
        raise tf.errors.InvalidArgumentError(None, None, message.numpy().decode())
    return tf.debugging.Assert(well, [message], summarize=1)


def _exhausted(well: tf.Tensor, message: tf.Tensor) -> tf.Tensor:
    """As _failed, with the error that a table without room raises in one process."""

    def failing() -> tf.Tensor:
        if tf.executing_eagerly():
            raise tf.errors.ResourceExhaustedError(None, None, message.numpy().decode())
        with tf.control_dependencies([tf.numpy_function(_raise_exhausted, [message], tf.bool)]):
            return tf.constant(False)

    return tf.cond(well, lambda: tf.constant(True), failing)


@tf.autograph.experimental.do_not_convert
def _raise_exhausted(message: bytes) -> None:
    raise MemoryError(message.decode())  # of which TensorFlow makes a ResourceExhaustedError


def _size(words: tf.Tensor) -> tf.Tensor:
    """The number in _SIZES of a size that so many words fit."""
    return tf.searchsorted(tf.constant(_SIZES), words[tf.newaxis])[0]


def _kinds(parts: Sequence[tf.Tensor]) -> str:
    """What the parts of a buffer are."""
    return ", sending " + ", ".join(f"{abs(_dim(part))} x {part.dtype.name}" for part in parts)


def _dim(part: tf.Tensor) -> int:
    """Numbers of an item; -1 for items that are numbers."""
    return -1 if part.shape.rank == 1 else int(part.shape[1])


def _item_bytes(part: tf.Tensor) -> int:
    return abs(_dim(part)) * part.dtype.size


def _words(counts: tf.Tensor, item_bytes: list[int]) -> tf.Tensor:
    """Words of the largest buffer, of counts (processes, tables) of items of so many bytes each."""
    tables = counts.shape[1]
    bytes_of_parts = tf.tile(counts, [1, len(item_bytes) // tables]) * tf.constant(item_bytes, tf.int64)
    return tables + tf.reduce_max(tf.reduce_sum((bytes_of_parts + 7) // 8, axis=1))


def _program(what: str, tables: Sequence[Table]) -> str:
    """What processes must agree on."""
    return f"{what} of {', '.join(f'{table.name} ({table._declared})' for table in tables)}"
