"""Publisher: a trainer's side of a feed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import positive, whole
from tf_dynemb.serving.feed import Feed, FeedDamagedError, FeedError, Generation, Part
from tf_dynemb.serving.lease import Lease
from tf_dynemb.serving.retention import FollowersSeen, FullCopyAnswer, first_to_keep
from tf_dynemb.serving.served import dense_weights
from tf_dynemb.serving.stream import Stream
from tf_dynemb.shard.group import Group
from tf_dynemb.snapshot.files import SnapshotError, SnapshotReader
from tf_dynemb.snapshot.tables import save_tables, tables_by_name
from tf_dynemb.table.devices import server_of
from tf_dynemb.table.serving import serving_dtype

# Of files and of processes; what training goes on after.
_FAILURES = (FeedError, SnapshotError, tf.errors.OpError, OSError)
_LEAST_FULL_BYTES = 1 << 20
_REMOVED_AT_MOST = 16  # old generations, after one is published
_SHARE_OF_EXPIRY = 0.01  # of the time, for looking for rows whose time is over


class Publisher(keras.callbacks.Callback):
    """Publishes what training changes, for models that serve to follow.

    Each generation has the rows that were written since the one before, values alone, the keys that
    were erased or evicted, and all dense weights. It becomes visible in one step, when all of it is in
    the feed. The first generation of a publisher has all rows; later ones have them beside the changes
    each time that the changes since the last full copy have become as large as it.

    `publish()` publishes at once. As a callback of `fit` it publishes between two steps when it is time,
    and when training ends; in a loop of yours, call `step()` after each step. Training waits while a
    generation is written, so its rows and weights are those after one step.

    Tables that are spread over processes are published by all of them together: each makes a publisher
    with the same arguments and calls `publish` as a step of the training. Parameter servers write the
    rows that they have themselves; call `publish` or `step` where no step is under way. See the page
    "Online learning, end to end".

    Args:
        model_or_tables: a Keras model that is built, or a layer where that is all that is served; or
            tables alone, a Variable or a dict of them by name: then followers keep the dense weights
            that they have.
        path: the feed's folder, on any of TensorFlow's file systems; of several processes, and of
            parameter servers, one that they share.
        every_seconds: publish after the first step that ends so long after the last generation.
        every_steps: publish after every so many steps. With neither only `publish` publishes, and the
            end of `fit`.
        stream: "host:port", at which the folder is served to followers on other machines, by a process
            beside this one: they name it feed://host:port, or feeds://host:port with a certificate. Port
            0 is any that is free; `address` says which. Where the environment has TF_DYNEMB_FEED_SECRET,
            followers must have the same. Needs aiohttp.
        stream_certificate: of TLS, a PEM file.
        stream_key: of the certificate, a PEM file. None: it is in the same file.
        value_dtype: tf.float16 or tf.bfloat16 for models exported so, see `for_serving`; tf.int8 for
            models of any floating dtype: 8 bits for a number and 32 for each row, with errors of up to
            1/254 of the row's largest number. None: values as they are.
        full_copy_ratio: a full copy is made when the changes since the last one have so many times its
            bytes.
        keep_generations: so many of the newest generations stay, and what is needed to begin there.
        keep_seconds: generations that are no older stay as well.
        forget_followers_after_seconds: what a follower needs stays until its heartbeat has been the same
            for so long.
        lease_seconds: on file systems that cannot lock: after so long a silence another publisher may
            take over.

    Raises:
        FeedInUseError: another publisher publishes into the feed; the message says which.
        FeedError: the folder cannot be written, as of a disk that is full. All is as before; make the
            publisher again when there is room.
        TypeError: no tables; a value_dtype that tables cannot be narrowed to; a path that is none.
        ValueError: a number out of range; both every_seconds and every_steps; every_seconds or a path
            elsewhere for tables that are spread over processes or on servers; a stream of a
            folder that is not of this machine, or that cannot listen there.

    Example:

    >>> import keras, numpy as np, tempfile, tensorflow as tf, tf_dynemb
    >>> feed = tempfile.mkdtemp()
    >>> ids = keras.Input((), dtype="int64")
    >>> scores = keras.layers.Dense(1)(tf_dynemb.keras.Embedding(4, name="users")(ids))
    >>> model = keras.Model(ids, scores)
    >>> model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
    >>> publisher = tf_dynemb.serving.Publisher(model, feed, every_steps=10)
    >>> model.export(f"{feed}-model", verbose=False)
    >>> _ = model.fit(np.arange(320), np.ones(320), callbacks=[publisher], verbose=0)
    >>> served = tf.saved_model.load(f"{feed}-model")
    >>> follower = tf_dynemb.serving.Follower(served, feed)
    >>> follower.poll().generation
    1
    >>> with follower.reading():
    ...     same = served.serve(tf.range(9, dtype=tf.int64)) == model(tf.range(9, dtype=tf.int64))
    >>> bool(tf.reduce_all(same))
    True
    """

    def __init__(
        self,
        model_or_tables: Any,
        path: str | os.PathLike[str],
        every_seconds: float | None = None,
        every_steps: int | None = None,
        *,
        stream: str | None = None,
        stream_certificate: str | os.PathLike[str] | None = None,
        stream_key: str | os.PathLike[str] | None = None,
        value_dtype: tf.DType | str | None = None,
        full_copy_ratio: float = 1.0,
        keep_generations: int = 64,
        keep_seconds: float | None = None,
        forget_followers_after_seconds: float = 300.0,
        lease_seconds: float = 30.0,
    ) -> None:
        super().__init__()
        if every_seconds is not None and every_steps is not None:
            raise ValueError(
                f"every_seconds and every_steps: got {every_seconds} and {every_steps}, want one of them"
            )
        self.every_seconds = None if every_seconds is None else positive("every_seconds", every_seconds)
        self.every_steps = None if every_steps is None else whole("every_steps", every_steps)
        self._full_copy_ratio = positive("full_copy_ratio", full_copy_ratio)
        self._keep_generations = whole("keep_generations", keep_generations)
        self._keep_seconds = None if keep_seconds is None else positive("keep_seconds", keep_seconds)
        self._values_as = serving_dtype(value_dtype, tf.int8)
        self._tables = tables_by_name(model_or_tables)
        self._weights = dense_weights(model_or_tables)
        self._tables_alone = not isinstance(model_or_tables, keras.Layer)
        self._group = Group(self._tables.values())
        self._feed = Feed(path)
        if self._group.processes > 1 and every_seconds is not None:
            raise ValueError(
                f"every_seconds: got {every_seconds!r} for tables that are spread over processes, whose "
                "clocks differ; want every_steps"
            )
        devices = [device for table in self._tables.values() for device in table.devices]
        if self._group.processes > 1 or any(server_of(device) for device in devices):
            if not self._feed.is_local:
                raise ValueError(
                    f"path: got {self._feed.path} for tables that are spread over processes or on "
                    "servers, want a folder that they share"
                )
        if self._feed.is_stream:
            raise ValueError(
                f"path: got {self._feed.path}, where a feed is served; want the folder, and "
                "stream='host:port' to serve it"
            )
        if stream is not None and not self._feed.is_local:
            raise ValueError(
                f"stream: got {stream!r} for {self._feed.path}, want a folder of this machine; "
                "followers read another file system themselves"
            )
        if stream is None and (stream_certificate is not None or stream_key is not None):
            raise ValueError("stream_certificate, stream_key: got them without stream, want it as well")
        self._stream: Stream | None = None
        self._start_stream: Callable[[], Stream] | None = None
        if stream is not None:
            self._start_stream = functools.partial(
                Stream, self._feed.path, stream, stream_certificate, stream_key
            )
        self._seen = FollowersSeen(
            positive("forget_followers_after_seconds", forget_followers_after_seconds)
        )
        self._lease_seconds = positive("lease_seconds", lease_seconds)
        self._lease: Lease | None = None
        self._generations: list[Generation] = []  # those in the feed
        self._last_number = 0
        self._answers: dict[str, FullCopyAnswer] = {}  # by followers, that ask for a full copy
        self._alive: dict[str, dict[str, Any]] = {}  # heartbeats of followers
        self._state = ""  # of the tables, which the next delta continues; "" if there is none
        self._full_bytes = self._bytes_since_full = 0
        self._steps = self._steps_of_epochs = 0
        self._published_at = time.monotonic()
        self._published_steps = 0
        self._look_for_expired_at = -float("inf")
        self._process = os.getpid()
        self._publishing = threading.Lock()  # one generation at a time
        self._group.run(self._begin_feed)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def generation(self) -> int:
        """The number of the newest generation of the feed, 0 if there is none. Of the first process."""
        return self._generations[-1].number if self._generations else 0

    @property
    def address(self) -> str | None:
        """What followers on other machines name, feed://host:port; None without `stream`."""
        return None if self._stream is None else self._stream.address

    def publish(self) -> int:
        """Publishes a generation now.

        Returns:
            Its number.

        Raises:
            FeedInUseError: another publisher has taken the feed over.
            tf.errors.OpError, OSError: it could not be written, or another process has failed. There is
                no new generation then, and the next one has its changes; but where another process died
                when all had written, it may be there.
            tf.errors.InvalidArgumentError: a value that value_dtype cannot hold.
            ValueError: the publisher is closed.
            RuntimeError: in a tf.function, or in a process forked from the one that made the publisher.
        """
        self._check_caller("publish")
        with self._publishing:
            return self._publish()

    def _publish(self) -> int:
        plan = json.loads(self._group.run(self._begin_generation)[0])
        number, folder = plan["number"], plan["folder"]
        try:
            delta = full = None
            if plan["base"]:
                self._remove_expired()
                with contextlib.suppress(_Unknown):
                    delta = self._save(folder, "delta", plan["base"])
            if delta is None or plan["wants_full"]:
                # Beside a delta, which the next one continues, it need not be a base.
                full = self._save(folder, "full", follow=delta is None)

            def commit() -> str:
                if self._group.index == 0:
                    self._commit(number, folder, delta, full)
                return ""

            self._group.run(commit)
        except BaseException as error:
            if self._group.index == 0:
                with contextlib.suppress(*_FAILURES):
                    self._end_failed(number, folder)
            # What is in place is published, whatever the file system has said of it.
            in_place = self._group.processes == 1 and self._last_number == number
            if not (in_place and isinstance(error, _FAILURES)):
                raise
        self._published_at = time.monotonic()
        self._published_steps = self._steps
        if self._group.index == 0:
            with contextlib.suppress(*_FAILURES):
                self._remove_old()
            self._keep_streaming()
        return number

    def _end_failed(self, number: int, folder: str) -> None:
        """Removes the data of a generation, unless Ctrl-C came when it was in place already."""
        if self._last_number == number:
            return
        if self._feed.has(number):
            generation = self._feed.read(number)
            if generation.folder == folder:
                self._note(generation)
                return
        self._feed.remove_data(folder)

    def step(self) -> None:
        """Counts a step of training; publishes if it is time. A failure is a warning.

        Raises:
            RuntimeError: in a tf.function, which runs it once, or in a process forked from the one that
                made the publisher.
        """
        self._check_caller("step")
        self._steps += 1
        self._publish_if_due()

    def _check_caller(self, method: str) -> None:
        if tf.inside_function():
            raise RuntimeError(f"Publisher.{method} works eagerly; call it outside of tf.function")
        if os.getpid() != self._process:
            raise RuntimeError(
                f"Publisher.{method}: got a call in process {os.getpid()}, forked from {self._process}, "
                "which publishes; want it there"
            )

    def close(self) -> None:
        """Gives the feed up for other publishers; followers at `address` reach it no more."""
        if os.getpid() != self._process:
            return  # the process that it was forked from publishes on
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Publishes when it is time."""
        self._steps = self._steps_of_epochs + batch + 1
        self._publish_if_due()

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Goes on counting where an earlier training ended."""
        self._steps_of_epochs = self._steps

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Goes on counting in the next epoch, whose batches start at 0."""
        self._steps_of_epochs = self._steps

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Publishes what came since the last time."""
        optimizer: Any = getattr(self.model, "optimizer", None)
        while hasattr(optimizer, "inner_optimizer"):
            optimizer = optimizer.inner_optimizer
        # With use_ema fit has put the averages in the place of what the last step has left.
        if self._steps > self._published_steps or getattr(optimizer, "use_ema", False):
            self._publish_or_warn()

    def _publish_if_due(self) -> None:
        if self.every_steps is not None:
            due = self._steps // self.every_steps > self._published_steps // self.every_steps
        else:
            since = time.monotonic() - self._published_at
            due = self.every_seconds is not None and since >= self.every_seconds
        if due:
            self._publish_or_warn()

    def _publish_or_warn(self) -> None:
        try:
            self.publish()
        except _FAILURES as error:
            self._published_at = time.monotonic()
            self._published_steps = self._steps
            warnings.warn(
                f"{self._feed.path}: no generation was published, the next one will have its changes: "
                f"{type(error).__name__}: {error}",
                stacklevel=3,
            )

    def _begin_feed(self) -> str:
        if self._group.index == 0:
            with self._feed.begun():
                with self._feed.writable():
                    self._lease = Lease(self._feed, self._lease_seconds)
                try:
                    with self._feed.writable():
                        self._read_feed()
                    if self._start_stream is not None:
                        self._stream = self._start_stream()
                except BaseException:
                    self._lease.release(as_before=True)
                    raise
        return ""

    def _read_feed(self) -> None:
        for number in self._feed.listed()[0]:
            self._last_number = number
            with contextlib.suppress(FeedDamagedError):  # of no use to anybody
                self._generations.append(self._feed.read(number))
        self._feed.remove_leftovers(self._generations)

    def _begin_generation(self) -> str:
        if self._group.index > 0:
            return ""
        if self._lease is None:
            raise ValueError("publish: the publisher is closed; make another one")
        self._lease.check()
        number = self._last_number + 1
        self._hear_followers()
        for name in self._seen.forgotten:
            self._feed.remove_heartbeat(name)
        limit = max(self._full_bytes, _LEAST_FULL_BYTES) * self._full_copy_ratio
        wants_full = self._bytes_since_full > limit or any(
            name not in self._answers or self._answers[name].is_due(beat, number)
            for name, beat in self._requests().items()
        )
        folder = self._feed.new_folder(number)
        return json.dumps(
            {"number": number, "folder": folder, "base": self._state, "wants_full": wants_full}
        )

    def _hear_followers(self) -> None:
        self._alive = self._seen.alive(self._feed.heartbeats())
        # Of those that load one it is not known yet whether they can use it.
        asks = {n for n, b in self._alive.items() if b.get("wants_full") or b.get("needs") is not None}
        self._answers = {name: answer for name, answer in self._answers.items() if name in asks}

    def _requests(self) -> dict[str, Any]:
        """The followers that want a full copy, with the number of the heartbeat that says so."""
        return {name: beat.get("beat") for name, beat in self._alive.items() if beat.get("wants_full")}

    def _remove_expired(self) -> None:
        """Has the rows leave whose time is over: changes have what has left, not what has expired.

        By passes over the tables, which take a part of the time at most, the more seldom the longer.
        """
        began = time.monotonic()
        if began < self._look_for_expired_at:
            return
        for table in self._tables.values():
            for part in table.resource.parts:
                if part.expires:
                    part.remove_expired()
        took = time.monotonic() - began
        self._look_for_expired_at = began + took / _SHARE_OF_EXPIRY

    @contextlib.contextmanager
    def _place(self, *names: str) -> Iterator[str]:
        """The local folder that all processes write into."""
        if self._group.index > 0:
            yield self._feed.place(*names)
        else:
            with self._feed.writing(*names) as place:
                yield place

    def _save(self, folder: str, kind: str, base: str = "", follow: bool = True) -> Part:
        with self._place("data", folder, kind) as place:
            try:
                identity = save_tables(place, self._tables, base, follow, self._values_as, durable=False)
            except (tf.errors.FailedPreconditionError, tf.errors.AbortedError) as error:
                # The tables do not know what has changed: here, or in another process.
                here = isinstance(error, tf.errors.FailedPreconditionError)
                if base and (here or "FailedPreconditionError" in error.message):
                    raise _Unknown from error
                raise
            with SnapshotReader(place) as reader:
                tables = reader.tables.values()
                return Part(
                    snapshot=identity,
                    base=base,
                    rows=sum(table.rows for table in tables),
                    erased=sum(table.erased for table in tables),
                    file_bytes=sum(table.file_bytes for table in tables),
                )

    def _commit(self, number: int, folder: str, delta: Part | None, full: Part | None) -> None:
        arrays = {name: np.asarray(variable.numpy()) for name, variable in self._weights.items()}
        generation = Generation(
            feed=self._generations[-1].feed if self._generations else self._feed.new_folder(0)[-8:],
            number=number,
            step=self._steps,
            created_seconds=time.time(),
            folder=folder,
            delta=delta,
            full=full,
            weights=self._feed.write_weights(folder, arrays, self._tables_alone),
        )
        assert self._lease is not None  # _begin_generation has looked
        self._lease.check()
        self._feed.commit(generation)
        self._note(generation)

    def _note(self, generation: Generation) -> None:
        """That a generation is in place, which the next one continues.

        The number is noted last, so that _end_failed can see whether all is.
        """
        self._state = generation.state
        if generation.delta is not None:
            self._bytes_since_full += generation.delta.file_bytes
        if generation.full is not None:
            self._full_bytes, self._bytes_since_full = generation.full.file_bytes, 0
            for name, beat in self._requests().items():
                times = self._answers[name].times if name in self._answers else 0
                self._answers[name] = FullCopyAnswer(beat, generation.number, times + 1)
        earlier = [each for each in self._generations if each.number < generation.number]
        self._generations = [*earlier, generation]
        self._last_number = generation.number

    def _keep_streaming(self) -> None:
        if self._stream is not None:
            try:
                self._stream.keep_running()
            except (ValueError, OSError) as error:
                warnings.warn(f"{self._feed.path}: {error}; followers wait", stacklevel=4)

    def _remove_old(self) -> None:
        """Removes generations that nobody needs, the oldest first.

        A few each time: after a pin of days there are thousands, for which training must not wait.

        Manifests go first. Who pins the feed, or says in a heartbeat what it needs, looks for them after
        that, and this looks for pins and heartbeats after it has removed them; so one of the two sees
        the other, and they come back.
        """
        first = self._first_to_keep()
        old = [each for each in self._generations[:_REMOVED_AT_MOST] if each.number < first]
        if not old:
            return
        first = 0
        try:
            for each in old:
                self._feed.remove_manifest(each.number)
            self._hear_followers()
            first = self._first_to_keep(gone=old[-1].number)
        finally:
            for each in old:
                if each.number < first:
                    self._feed.remove_data(each.folder)
                    self._generations.pop(0)
                else:
                    self._feed.commit(each)

    def _first_to_keep(self, gone: int = 0) -> int:
        """The number of the first generation that stays. `gone`: those up to it need not be listed.

        Raises:
            FeedError: the feed cannot be listed as it is.
        """
        numbers, pins = self._feed.listed()
        known = {each.number: each.state for each in self._generations if each.number > gone}
        if any(self._feed.has(number) for number in known.keys() - set(numbers)):
            raise FeedError(f"{self._feed.path}: a listing has not all that is there")
        needed = [pin.number for pin in pins if known.get(pin.number) == pin.state]
        for beat in self._alive.values():
            if isinstance(beat.get("generation"), int):
                needed.append(beat["generation"] + 1)
            if isinstance(beat.get("needs"), int):  # what it loads now
                needed.append(beat["needs"])
        return first_to_keep(
            self._generations, self._keep_generations, self._keep_seconds, needed, time.time()
        )


class _Unknown(Exception):
    """The tables do not know what has changed since the last generation."""
