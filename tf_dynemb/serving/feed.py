"""The feed: a folder of numbered generations, on any of TensorFlow's file systems.

    generations/<number>       a generation's manifest. The generation exists when this file does
    generations/pinned-<number>-<state>    followers stay at this generation; of several, at the oldest
    data/<number>-<random>/    what the manifest names: the snapshots `delta` and `full`, and `weights`
    followers/<name>           heartbeat of a follower
    PUBLISHER                  who publishes

A manifest is put in place in one step, after everything that it names, and is never changed. So a kill
at any moment leaves generations that are whole, and at most a folder of data that no manifest names,
which the next publisher removes. Nothing is synced to the disk, which would cost more than the rest:
what a crash of the machine loses is found by checksums, and the next publisher begins with all rows.
The dense weights have a checksum in the manifest; snapshots have their own (cc/core/snapshot/FORMAT.md).
cc/kernels/feed.cc reads the same files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_dynemb.base.checks import STREAMS, feed_path
from tf_dynemb.snapshot.files import SnapshotError, SnapshotReader, crc32c

_FORMAT = 1
_DIGITS = 12
_PINNED = "pinned-"
# What a publisher names: the data of a generation; and its manifest, or a file that was to become one.
_FOLDER = re.compile(r"\d{12}-[0-9a-f]{8}")
_MANIFEST = re.compile(r"\d{12}(\.[0-9a-f]{8}\.new)?")
_DRAFT = re.compile(r".*\.[0-9a-f]{1,8}\.new")  # of heartbeats; see put
_OLD_DRAFT_SECONDS = 3600.0  # which nobody is about to rename
_LISTING_BYTES = 1 << 24


class FeedError(Exception):
    """A feed could not be read or written; the message says which, where and why."""


class FeedInUseError(FeedError):
    """Another publisher publishes into the feed; the message names it."""


class FeedMismatchError(FeedError):
    """The feed is of other tables than those that follow it."""


class FeedDamagedError(FeedError):
    """Bytes are missing or are not what was written."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A snapshot of a generation.

    Attributes:
        snapshot: its id.
        base: of a delta, the id of the state that it continues; "" of a full copy.
        rows: how many rows it has.
        erased: how many keys it erases.
        file_bytes: on disk.
    """

    snapshot: str
    base: str
    rows: int
    erased: int
    file_bytes: int


@dataclasses.dataclass(frozen=True)
class Weights:
    """The dense weights of a generation, which lie one after the other in the file `weights`.

    Attributes:
        names: of the variables.
        dtypes: their names.
        shapes: of the variables.
        crc32c: of the file.
        tables_alone: the publisher has tables and no model, so that followers keep their dense weights.
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    crc32c: int
    tables_alone: bool = False


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a manifest says.

    Attributes:
        feed: id of the feed, which a folder keeps for its life.
        number: of the generation, from 1.
        step: of the trainer.
        created_seconds: since 1970-01-01 UTC, by the trainer's clock.
        folder: the name of the folder of its data.
        delta: what changed since the generation before; None where that is not known.
        full: all rows; None in most generations. A generation has one of the two at least.
        weights: the dense weights.
    """

    feed: str
    number: int
    step: int
    created_seconds: float
    folder: str
    delta: Part | None
    full: Part | None
    weights: Weights

    @property
    def state(self) -> str:
        """Id of the state of the tables, which the delta of the next generation continues."""
        part = self.delta or self.full
        assert part is not None  # there is one of the two at least
        return part.snapshot

    def to_text(self) -> str:
        """Two lines: the fields as JSON, and the checksum of that line."""
        line = json.dumps({"format": _FORMAT} | dataclasses.asdict(self), sort_keys=True)
        return f"{line}\n{crc32c(line.encode()):08x}\n"

    @classmethod
    def parse(cls, text: str, place: str) -> Generation:
        """Of to_text. `place`: for errors.

        Raises:
            FeedDamagedError: it is not such a text.
            FeedError: it is of a later version.
        """
        line, _, checksum = text.partition("\n")
        if checksum != f"{crc32c(line.encode()):08x}\n":
            raise FeedDamagedError(f"{place}: got a manifest whose checksum is wrong; it is damaged")
        fields = json.loads(line)
        version = fields.pop("format")
        if version != _FORMAT:
            raise FeedError(
                f"{place}: got format {version}, this version reads {_FORMAT}; update tf_dynemb here"
            )
        weights = fields["weights"]
        weights["shapes"] = tuple(tuple(shape) for shape in weights["shapes"])
        weights["names"], weights["dtypes"] = tuple(weights["names"]), tuple(weights["dtypes"])
        weights.setdefault("tables_alone", not weights["names"])  # of feeds that do not say so
        for part in ("delta", "full"):
            fields[part] = fields[part] and Part(**fields[part])
        return cls(**fields | {"weights": Weights(**weights)})


class Pin(NamedTuple):
    """The generation that followers of a feed stay at.

    Attributes:
        number: of the generation.
        state: its `state`; in another feed, put in the place of that one, the number has another.
    """

    number: int
    state: str


class Feed:
    """The files of a feed.

    Args:
        path: a folder of this machine, or of another of TensorFlow's file systems, such as
            gs://bucket/feed; or feed://host:port, where a publisher's `stream` serves one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = feed_path("path", path)
        # Whether the engine can read and write there itself.
        self.is_local = "://" not in self.path
        # Whether it is a folder that another machine serves.
        self.is_stream = self.path.startswith(STREAMS)

    def place(self, *names: str) -> str:
        """The path of what is in the feed."""
        return "/".join((self.path, *names))

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Makes the folders, as far as there are none; where the body fails, those that it made go.

        Raises:
            FeedError: it cannot be written, or holds something else than a feed.
        """
        with self.writable():
            self._check_no_other_files()
        folders = [self.place(name) for name in ("generations", "data", "followers")]
        missing: list[str] = []
        try:
            with self.writable():
                missing += [folder for folder in folders if not tf.io.gfile.exists(folder)]
                place = self.path
                while place != os.path.dirname(place) and not tf.io.gfile.exists(place):
                    missing.append(place)
                    place = os.path.dirname(place) or "."
                for folder in folders:
                    tf.io.gfile.makedirs(folder)
            yield
        except BaseException:
            if self.is_local:  # elsewhere a folder is a part of names, as a rule
                for folder in missing:
                    with contextlib.suppress(OSError):  # somebody has put something into it
                        os.rmdir(folder)
            raise

    def _check_no_other_files(self) -> None:
        found = set(_names_in(self.path))
        # File systems have names of their own in the root of a volume.
        other = {name for name in found if not name.startswith(".")}
        other -= {"followers", "PUBLISHER", "lost+found"}
        if other and self.is_local and "generations" not in found:
            raise FeedError(
                f"path: got {self.path}, which is no feed and holds {sorted(other)[:5]}; want a new or "
                "empty folder, or that of a feed"
            )

    @contextlib.contextmanager
    def writable(self) -> Iterator[None]:
        """Raises FeedError where the body, which begins to publish, meets an error of files."""
        try:
            yield
        except (tf.errors.OpError, OSError) as error:
            raise FeedError(
                f"path: got {self.path}, where no publisher can begin: "
                f"{getattr(error, 'message', error)}; want a folder that this process may read and "
                "write, on a file system with room"
            ) from error

    def look(self) -> tuple[list[int], Pin | None]:
        """The numbers of the generations that there are, ascending; and the one that is pinned.

        Raises:
            tf.errors.OpError: of a stream, nobody answers, or no feed is served there.
        """
        numbers, pins = self._parse_names(_names_in(self.place("generations"), self.is_stream))
        return numbers, min(pins, default=None)

    def listed(self) -> tuple[list[int], list[Pin]]:
        """The numbers of the generations, ascending; and all pins. Of a folder that must be a feed.

        Raises:
            FeedError: it is none, or cannot be listed.
        """
        try:
            return self._parse_names(_names_in(self.place("generations"), must_be=True))
        except tf.errors.OpError as error:
            raise FeedError(
                f"{self.path}: got a folder that is no feed, or that cannot be listed now; want the one "
                f"that a Publisher publishes into ({error.message})"
            ) from error

    @staticmethod
    def _parse_names(names: Sequence[str]) -> tuple[list[int], list[Pin]]:
        pins = [_pin_of(name.removeprefix(_PINNED)) for name in names if name.startswith(_PINNED)]
        return (
            sorted(number for number in map(_number_of, names) if number is not None),
            [pin for pin in pins if pin is not None],
        )

    def numbers(self) -> list[int]:
        """The numbers of the generations that there are, ascending. Raises as `look`."""
        return self.look()[0]

    def has(self, number: int) -> bool:
        """Whether there is such a generation, whatever a listing says."""
        return tf.io.gfile.exists(self.place("generations", _text_of(number)))

    def pin(self, pin: Pin) -> None:
        """Makes followers stay at a generation; of several, at the oldest."""
        self.put(self._place_of_pin(pin), b"")

    def remove_pin(self, pin: Pin) -> None:
        """Removes one, if it is there."""
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(self._place_of_pin(pin))

    def _place_of_pin(self, pin: Pin) -> str:
        return self.place("generations", f"{_PINNED}{_text_of(pin.number)}-{pin.state}")

    def check(self, number: int) -> Generation:
        """A generation that can be reached: looks for all files on the way, with their sizes.

        Raises:
            FeedError: there is no such generation, or no way to it.
            FeedDamagedError: a file on the way is missing or has another size; or a manifest, or the
                weights, are damaged.
        """
        chain = chain_to(number, self.read)
        for each in chain:
            kind, part = ("full", each.full) if each is chain[0] else ("delta", each.delta)
            place = self.place("data", each.folder, kind)
            try:
                with tempfile.TemporaryDirectory(prefix="tf_dynemb-") as folder:
                    tf.io.gfile.copy(f"{place}/MANIFEST", os.path.join(folder, "MANIFEST"))
                    with SnapshotReader(folder) as reader:
                        assert part is not None  # it is in the chain
                        check_id(place, reader.id, part.snapshot)
                for name, want in reader.files.items():
                    got = tf.io.gfile.stat(f"{place}/{name}").length
                    if got != want:
                        raise FeedDamagedError(f"{place}/{name}: got {got} bytes, want {want}")
            except tf.errors.NotFoundError as error:
                raise FeedDamagedError(f"{place}: it is missing, or a part of it") from error
            except SnapshotError as error:
                raise FeedDamagedError(f"{place}: {error}") from error
        self.read_weights(chain[-1])
        return chain[-1]

    def wait_for_newer(self, number: int) -> int:
        """Of a stream: the newest generation when it is after `number`; whatever it is after a second.

        Raises:
            tf.errors.OpError: nobody answers.
            FeedError: the answer is no number.
        """
        place = self.place("newer-than", str(number))
        with tf.io.gfile.GFile(place, "rb") as file:
            text = file.read(_LISTING_BYTES).decode(errors="replace")
        if not text.strip().isdecimal():
            raise FeedError(f"{place}: got {text[:80]!r}, want a number; no feed is served there")
        return int(text)

    def read(self, number: int) -> Generation:
        """A generation.

        Raises:
            FeedError: it does not exist, or has a later format.
            FeedDamagedError: it is damaged.
        """
        place = self.place("generations", _text_of(number))
        try:
            generation = Generation.parse(_bytes_of(place).decode(errors="replace"), place)
        except tf.errors.NotFoundError as error:
            raise FeedError(f"{place}: there is no generation {number}") from error
        if generation.number != number:
            raise FeedDamagedError(f"{place}: got generation {generation.number}, want {number}")
        return generation

    def commit(self, generation: Generation) -> None:
        """Makes a generation exist, in one step. Its data must be there."""
        place = self.place("generations", _text_of(generation.number))
        self.put(place, generation.to_text().encode())

    def put(self, place: str, content: bytes) -> None:
        """Puts a file in place in one step."""
        if self.is_stream:  # where a file appears when it is whole
            with tf.io.gfile.GFile(place, "wb") as file:
                file.write(content)
            return
        draft = f"{place}.{uuid.uuid4().hex[:8]}.new"
        try:
            with tf.io.gfile.GFile(draft, "wb") as file:
                file.write(content)
            tf.io.gfile.rename(draft, place, overwrite=True)
        except BaseException:
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.remove(draft)
            raise

    def new_folder(self, number: int) -> str:
        """A name for the data of a generation that nothing else has or had."""
        return f"{_text_of(number)}-{uuid.uuid4().hex[:8]}"

    @contextlib.contextmanager
    def writing(self, *names: str) -> Iterator[str]:
        """A local folder for the engine to write to, whose files are in the feed afterwards."""
        place = self.place(*names)
        if self.is_local:
            os.makedirs(place)
            try:
                yield place
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
            return
        with tempfile.TemporaryDirectory(prefix="tf_dynemb-") as folder:
            yield folder
            tf.io.gfile.makedirs(place)
            for name in _files_in(folder):
                tf.io.gfile.copy(os.path.join(folder, name), f"{place}/{name}", overwrite=True)

    @contextlib.contextmanager
    def reading(self, *names: str, private: bool = False) -> Iterator[str]:
        """A local folder with files of the feed. `private`: a copy, which nobody removes."""
        place = self.place(*names)
        if self.is_local and not private:
            yield place
            return
        with tempfile.TemporaryDirectory(prefix="tf_dynemb-") as folder:
            try:
                for name in _files_in(place):
                    tf.io.gfile.copy(f"{place}/{name}", os.path.join(folder, name), overwrite=True)
            except tf.errors.NotFoundError as error:
                raise FeedError(f"{place}: it was removed while it was being read") from error
            yield folder

    def write_weights(
        self, folder: str, arrays: Mapping[str, np.ndarray], tables_alone: bool = False
    ) -> Weights:
        """Writes the dense weights of a generation by name."""
        content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
        self.put(self.place("data", folder, "weights"), content)
        return Weights(
            names=tuple(arrays),
            dtypes=tuple(array.dtype.name for array in arrays.values()),
            shapes=tuple(array.shape for array in arrays.values()),
            crc32c=crc32c(content),
            tables_alone=tables_alone,
        )

    def read_weights(self, generation: Generation) -> dict[str, np.ndarray]:
        """The dense weights of a generation by name.

        Raises:
            FeedError: they have been removed.
            FeedDamagedError: they are damaged.
        """
        place = self.place("data", generation.folder, "weights")
        try:
            content = _bytes_of(place)
        except tf.errors.NotFoundError as error:
            raise FeedDamagedError(f"{place}: it is missing") from error
        weights = generation.weights
        if crc32c(content) != weights.crc32c:
            raise FeedDamagedError(f"{place}: its checksum is wrong; it is damaged")
        arrays, first = {}, 0
        for name, dtype, shape in zip(weights.names, weights.dtypes, weights.shapes, strict=True):
            numbers = int(np.prod(shape))
            array = np.frombuffer(content, tf.as_dtype(dtype).as_numpy_dtype, numbers, first)
            first += array.nbytes
            arrays[name] = array.reshape(shape)
        return arrays

    def remove_manifest(self, number: int) -> None:
        """Makes a generation exist no more; its data stays."""
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(self.place("generations", _text_of(number)))

    def remove_data(self, folder: str) -> None:
        """Removes a folder of data, if it is there."""
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.rmtree(self.place("data", folder))

    def remove_leftovers(self, generations: Sequence[Generation]) -> None:
        """Removes what belongs to none of them, such as what was left by processes that were killed.

        Files of other names, which no publisher gives, stay.
        """
        folders = {generation.folder for generation in generations}
        manifests = {_text_of(generation.number) for generation in generations}
        for name in _names_in(self.place("data")):
            if name not in folders and _FOLDER.fullmatch(name):
                self.remove_data(name)
        for name in _names_in(self.place("generations")):
            if name not in manifests and _MANIFEST.fullmatch(name):
                with contextlib.suppress(tf.errors.NotFoundError):
                    tf.io.gfile.remove(self.place("generations", name))
        for name in filter(_DRAFT.fullmatch, _names_in(self.place("followers"))):
            place = self.place("followers", name)
            with contextlib.suppress(tf.errors.OpError):  # it is of somebody else
                if time.time() - tf.io.gfile.stat(place).mtime_nsec * 1e-9 > _OLD_DRAFT_SECONDS:
                    tf.io.gfile.remove(place)

    def remove_heartbeat(self, follower: str) -> None:
        """Removes what a follower said of itself, if it is there."""
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(self.place("followers", follower))

    def heartbeats(self) -> dict[str, dict[str, Any] | None]:
        """What each follower says of itself, by its name; None where that cannot be read now.

        What is no heartbeat is left out.
        """
        found: dict[str, dict[str, Any] | None] = {}
        for name in _names_in(self.place("followers")):
            if _DRAFT.fullmatch(name):
                continue
            try:
                beat = json.loads(_bytes_of(self.place("followers", name)))
            except (tf.errors.NotFoundError, ValueError, RecursionError):
                continue
            except tf.errors.OpError:
                found[name] = None
                continue
            if isinstance(beat, dict):
                found[name] = beat
        return found


def chain_to(number: int, read: Callable[[int], Generation]) -> list[Generation]:
    """The newest generation with a full copy that is not after `number`, and all up to it.

    Args:
        number: of the last.
        read: gives a generation by its number.

    Raises:
        FeedError: one is missing, or there is no full copy.
        FeedDamagedError: one is damaged, or does not continue the one before.
    """
    chain: list[Generation] = []
    for each in range(number, 0, -1):
        chain.insert(0, read(each))
        after = chain[1].delta if len(chain) > 1 else None
        if after is not None and (after.base, chain[1].feed) != (chain[0].state, chain[0].feed):
            raise FeedDamagedError(f"generation {each + 1} does not continue generation {each}")
        if chain[0].full is not None:
            return chain
        if chain[0].delta is None:
            break
    raise FeedError(f"the feed has no full copy from which to reach generation {number}")


def check_id(folder: str, got: str, want: str) -> None:
    """Raises FeedDamagedError unless a snapshot is the one that the manifest names."""
    if got != want:
        raise FeedDamagedError(f"{folder}: got snapshot {got}, want {want}, as the manifest says")


def _text_of(number: int) -> str:
    return f"{number:0{_DIGITS}}"


def _number_of(text: str) -> int | None:
    return int(text) if len(text) == _DIGITS and text.isdecimal() else None


def _pin_of(text: str) -> Pin | None:
    number, state = _number_of(text[:_DIGITS]), text[_DIGITS + 1 :]
    if number is None or not re.fullmatch("-[0-9a-f]{16}", text[_DIGITS:]):
        return None
    return Pin(number, state)


def _names_in(folder: str, must_be: bool = False) -> list[str]:
    """Files and folders, of object stores with a slash at the end; none if there is no such folder."""
    try:
        # gfile.listdir says that a folder is missing whatever has happened to it.
        if folder.startswith(STREAMS):
            with tf.io.gfile.GFile(f"{folder}/", "rb") as listing:
                return listing.read(_LISTING_BYTES).decode().split()
        try:
            names = tf.io.gfile.listdir(folder)
        except tf.errors.NotFoundError:
            tf.io.gfile.stat(folder)
            names = tf.io.gfile.listdir(folder)
        return [name.rstrip("/") for name in names]
    except tf.errors.NotFoundError:
        if must_be:
            raise
        return []


def _files_in(folder: str) -> list[str]:
    """The files of a snapshot, which must be there."""
    return [name for name in _names_in(folder, must_be=True) if name != "LOCK"]


def _bytes_of(place: str) -> bytes:
    with tf.io.gfile.GFile(place, "rb") as file:
        return file.read()
