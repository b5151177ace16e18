"""AllToAllExchange: how processes that share a table send each other keys and rows.

Under MultiWorkerMirroredStrategy each process owns the keys that are its number, modulo the number of
processes. What a step needs of the others goes over TensorFlow's own all-to-all: to each process one
buffer, all of one size. Sizes are rounded up to one of eight per power of two, since a collective cannot
change its shape: each size is another instance of it.

A buffer begins with a head, by which processes agree on what they do and on how large the buffers must
be; its size is predicted from the steps before, so that what is sent is in the same all-to-all as the
head as a rule. Where some process has more to send, all see it in the heads, and a second all-to-all of
the right size follows. The prediction is a function of what all have agreed on before, so that all
predict the same, whatever each of them is about to do.

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
_HEADED, _RESENT, _REPLY, _TEXTS, _GATHER, _SUM = (n * len(_SIZES) for n in range(1, 7))
# Of a head: words of the largest buffer, two numbers, letters of the program, its digest, and less it.
_HEAD = 6
# What an exchange remembers, in a variable of int64: how often it has exchanged with a head, and how
# often a second all-to-all was needed; the place of the next prediction; the last program's digest; and
# predictions, each at a place that the last two programs say. A prediction is a size in _SIZES times
# _FALL. One that was more than was needed falls by a quarter of the difference in each exchange, and
# over the last size in _FALL exchanges, so that sizes that vary a little are seldom too small.
_EXCHANGES, _RESENDS, _NEXT, _LAST, _FIRST_PLACE, _PLACES, _FALL = 0, 1, 2, 3, 4, 4096, 32
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
        # It is a token, too: collectives that take it run one after the other, as the program has them.
        with tf.init_scope(), tf.device("CPU:0"):
            self._memory = tf.raw_ops.VarHandleOp(
                dtype=tf.int64,
                shape=[_FIRST_PLACE + _PLACES],
                shared_name=f"tf_dynemb_exchange_{self._group_key}",
            )
            self.forget_sizes()

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
            self._agreed(program)

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
        value_bytes = [t.dim * (t.config.exchange_dtype or t.value_dtype).size for t in tables]
        (reply_words, _), asked_counts, asked = self._exchanged(
            _program("lookup", tables),
            [_words(counts, [*value_bytes, *[1] * number])],
            _problem(tables, keys),
            counts=counts,
            parts=distinct,
        )
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
        reply = [
            tf.cast(values, table.config.exchange_dtype or table.value_dtype)
            for (values, _), table in zip(found, tables, strict=True)
        ]
        reply += [exists for _, exists in found]
        size = _size(reply_words)
        buffers = _packed(asked_counts, asked_counts, reply, tf.gather(_SIZES, size))
        received = self._collective("AllToAll", _REPLY + size, buffers)
        got = _unpacked(received, number, counts, reply)
        values = [tf.cast(rows, t.value_dtype) for rows, t in zip(got[:number], tables, strict=True)]
        return distinct, values, got[number:], places

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
        parts = list(grouped)
        for column in columns:
            parts += [tf.gather(*pair) for pair in zip(column, order, strict=True)]
        limited = [(n, limit) for n, limit in enumerate(limits) if limit >= 0]
        sent = room = tf.zeros([], tf.int64)
        if limited:
            sent = tf.reduce_max(tf.gather(counts, [n for n, _ in limited], axis=1))
            sizes = [tf.reduce_sum(tables[n].resource.sizes()[0]) for n, _ in limited]
            room = tf.reduce_min([limit - size for (_, limit), size in zip(limited, sizes, strict=True)])
        (sent, full), _, got = self._exchanged(
            _program(what, tables) + _kinds(parts),
            [sent, -room],
            _problem(tables, keys) if columns else None,
            counts=counts,
            parts=parts,
        )
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
        size, _ = self._agreed(f"a sum of {numbers.shape} numbers", [tf.size(numbers, tf.int64)])
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
        words, _ = self._agreed(what + _kinds(parts), [words])
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
        self._agreed(f"room in {names}", problem=_joined(problems), failed=_exhausted)
        return tf.constant(True)

    def _agreed(
        self,
        program: str,
        numbers: Sequence[tf.Tensor] = (),
        problem: tf.Tensor | None = None,
        failed: Callable[[tf.Tensor, tf.Tensor], object] | None = None,
    ) -> list[tf.Tensor]:
        """The largest of each of two numbers over all processes; arguments as those of _exchanged."""
        return self._exchanged(program, numbers, problem, failed)[0]

    def _exchanged(
        self,
        program: str,
        numbers: Sequence[tf.Tensor] = (),
        problem: tf.Tensor | None = None,
        failed: Callable[[tf.Tensor, tf.Tensor], object] | None = None,
        counts: tf.Tensor | None = None,
        parts: Sequence[tf.Tensor] = (),
    ) -> tuple[list[tf.Tensor], tf.Tensor | None, list[tf.Tensor]]:
        """Sends each process its part of tensors, once all have agreed.

        Args:
            program: what the process does, which must be the same in all.
            numbers: up to two int64 scalars; there are as many of any program.
            problem: why it cannot, a string scalar; empty or None: it can.
            failed: makes the operation that fails, of whether all is well and what to say if not. None:
                tf.debugging.Assert.
            counts: (processes, tables), how many items of each table go to each process. None: nothing
                is sent.
            parts: for each table, one or more times, as many items as counts says.

        Returns:
            The largest of each of the numbers over all processes, two of them; the counts and the parts
            that the others sent to this one.

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
        words = tf.zeros([], tf.int64)
        if counts is not None:
            words = _words(counts, [_item_bytes(part) for part in parts])
        # As many in all, so that whatever is called meets any other.
        none = [tf.zeros([], tf.int64)] * (2 - len(numbers))
        head = tf.stack([words, *numbers, *none, tf.cast(letters, tf.int64), digest, -digest])
        heads = tf.tile(head[tf.newaxis], [self.processes, 1])
        predicted = self._predicted_size()
        room = tf.gather(_SIZES, predicted)

        def packed(size: tf.Tensor) -> tf.Tensor:
            first = heads if counts is None else tf.concat([heads, counts], axis=1)
            return _packed(first, counts, parts, _HEAD + tf.gather(_SIZES, size))

        buffers = tf.cond(
            words <= room,
            lambda: packed(predicted),
            lambda: _packed(heads, None, (), _HEAD + room),
        )
        # Every process tells every other, at once. A ring of TensorFlow's all-reduce passes numbers on
        # from one to the next, twice around.
        received = self._collective(
            "AllToAll",
            _HEADED + predicted,
            buffers,
            # Here alone, since who has come so far goes on: TensorFlow holds a thread or two for each
            # collective with a timeout until that is over, however soon the collective is.
            timeout_seconds=self.timeout_seconds,
        )
        most = tf.ensure_shape(tf.reduce_max(received[:, :_HEAD], axis=0), [_HEAD])
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
            most = tf.identity(most)
        size = _size(most[0])
        learned = self._learn(size, most[-2], tf.cast(most[0] > room, tf.int64))
        with tf.control_dependencies([] if learned is None else [learned]):  # in all, or in none
            agreed = tf.unstack(tf.identity(most[1:3]), num=2)
        if counts is None:
            return agreed, None, []
        received = tf.cond(
            most[0] <= room,
            lambda: received,
            lambda: self._collective("AllToAll", _RESENT + size, packed(size)),
        )
        first = _HEAD + counts.shape[1]
        sent = tf.ensure_shape(received[:, _HEAD:first], counts.shape)
        return agreed, sent, _unpacked(received, first, sent, parts)

    def forget_sizes(self) -> None:
        """Predicts and counts as if nothing had been sent yet; all processes must, at one moment."""
        memory = np.zeros([_FIRST_PLACE + _PLACES], np.int64)
        memory[_NEXT] = _FIRST_PLACE
        self.remember_sizes(memory)

    def sizes(self) -> tf.Tensor:
        """What forget_sizes forgets, for remember_sizes."""
        with tf.device("CPU:0"):
            return tf.raw_ops.ReadVariableOp(resource=self._memory, dtype=tf.int64)

    def remember_sizes(self, memory: np.ndarray[Any, Any] | tf.Tensor) -> None:
        """Predicts and counts as when sizes() gave this; all processes must, at one moment."""
        with tf.device("CPU:0"):
            tf.raw_ops.AssignVariableOp(resource=self._memory, value=memory)

    def metrics(self) -> dict[str, tf.Tensor]:
        """How often processes have exchanged keys, and how often their size was predicted too small."""
        return {"exchanges": self._remembered(_EXCHANGES), "resends": self._remembered(_RESENDS)}

    def _predicted_size(self) -> tf.Tensor:
        """The number in _SIZES of the next buffers with a head: the same in all processes."""
        return tf.cast((self._remembered(self._remembered(_NEXT)) + _FALL - 1) // _FALL, tf.int32)

    def _learn(self, size: tf.Tensor, digest: tf.Tensor, resends: tf.Tensor) -> tf.Operation | None:
        """Remembers the size that was needed after the last two programs, and the digest of this one.

        Returns:
            The operation that does it; eagerly None.
        """
        exchanges, resends_before, place, last = tf.unstack(
            self._remembered([_EXCHANGES, _RESENDS, _NEXT, _LAST]), num=4
        )
        needed = tf.cast(size, tf.int64) * _FALL
        following = _FIRST_PLACE + (31 * last + digest) % _PLACES
        excess = self._remembered(place) - needed
        fall = tf.where(excess > _FALL, excess // 4, 1)
        predicted = needed + tf.maximum(excess - fall, 0)
        with tf.device("CPU:0"):
            return tf.raw_ops.ResourceScatterUpdate(
                resource=self._memory,
                indices=tf.stack([_EXCHANGES, _RESENDS, _NEXT, _LAST, place]),
                updates=tf.stack(
                    [exchanges + 1, resends_before + resends, following, digest % _PLACES, predicted]
                ),
            )

    def _remembered(self, places: int | Sequence[int] | tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            places = tf.convert_to_tensor(places, tf.int64)
            return tf.raw_ops.ResourceGather(resource=self._memory, indices=places, dtype=tf.int64)

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
                ordering_token=[self._memory],  # which also tells tf.function not to leave it out
                **options,
            )

    def _grouped(self, keys: Sequence[tf.Tensor], distinct: bool) -> Any:
        shard_ids = [tf.zeros([0], tf.int32)] * len(keys)  # key mod processes
        return ops.dynemb_group_by_shard(keys, shard_ids, receivers=self.processes, distinct=distinct)


def _packed(
    first: tf.Tensor, counts: tf.Tensor | None, parts: Sequence[tf.Tensor], words: tf.Tensor
) -> tf.Tensor:
    """Buffers of so many words, one for each process.

    Args:
        first: int64 (processes, n), with what each buffer begins.
        counts: as of _exchanged; None: there are no parts.
        parts: likewise.
        words: of a buffer.
    """
    return ops.dynemb_pack(
        [tf.reshape(first, [-1]), *parts], _counts_after(first.shape, counts, parts), words
    )


def _unpacked(
    buffers: tf.Tensor, first: int, counts: tf.Tensor, parts: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What lies in buffers after the first words: counts of parts like these."""
    _, *got = ops.dynemb_unpack(
        buffers,
        _counts_after([counts.shape[0], first], counts, parts),
        P=[tf.int64, *(part.dtype for part in parts)],
        dims=[-1, *(_dim(part) for part in parts)],
    )
    return got


def _counts_after(
    first: Sequence[int], counts: tf.Tensor | None, parts: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Counts of all parts where the first has numbers of this shape."""
    of_first = tf.fill([first[0], 1], tf.constant(first[1], tf.int64))
    if counts is None:
        return of_first
    return tf.concat([of_first, tf.tile(counts, [1, len(parts) // counts.shape[1]])], axis=1)


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
