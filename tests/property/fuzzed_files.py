"""The program of test_fuzzed_files.py: random mutants of good files, loaded into a target with rows.

python fuzzed_files.py FIRST SECONDS KIND=COUNT ..

tries of each kind the mutants FIRST, FIRST + 1, .. until both seconds and count are reached, and prints
how many had which outcome.

A mutant is damaged anywhere in its bytes, or well-formed and of other arrays, columns and members, with
checksums put right in most. What loads is compared with what h5py, NumPy or PyArrow alone find in the
file, and, where only bytes were changed that a checksum covers, with the good file. What does not has
one of a few errors that names the file or the table, and leaves the target as it was.
"""

import contextlib
import faulthandler
import io
import json
import pathlib
import random
import re
import resource
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib

import h5py
import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from process_memory import address_space_bytes
from table_rows import rows_of, values_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.table import keras_files as saving
from tf_dynemb_cli.snapshot import main

NUMBERS = [0, 1, -1, 2, 3, 7, 255, 256, 65535, 2**20, 2**31 - 1, 2**31, 2**32, 2**60, 2**63 - 1]
NUMBERS += [-(2**63)]
DTYPES = "i1 i4 i8 >i8 u1 u8 f2 f4 f8 ? c8 S3 U3 M8[s] V8 O".split()
WORDS = "keys values strings string_lengths schema other".split()
WORDS += "slots/momentum slots/other meta/count meta/x".split()


def mutated(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Other bytes in one place, or in a few more; parts of another good file too."""
    while True:
        at = draw.randrange(len(data) + 1)
        part = slice(at, at + draw.randrange(2 ** draw.randrange(10)))
        match draw.randrange(8):
            case 0 | 1 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
            case 2 | 3:
                number = struct.pack("<q", draw.choice(NUMBERS))[: draw.choice([1, 2, 4, 8])]
                data = data[:at] + number + data[at + len(number) :]
            case 4:
                data = data[:at]
            case 5:
                data = data[:at] + data[part.stop :]
            case 6:
                data = data[:at] + data[part] + data[at:]
            case 7:
                data = data[:at] + other[part] + data[part.stop :]
        if draw.random() < 0.6:
            return data


def other_array(array: np.ndarray, draw: random.Random) -> np.ndarray:
    """Of another dtype or shape, or with another number; the same where that cannot be."""
    changed = array.copy()
    unlike = (TypeError, ValueError, IndexError, OverflowError)
    with contextlib.suppress(*unlike), np.errstate(all="ignore"):
        match draw.randrange(10):
            case 0 | 1:
                changed = array.astype(draw.choice(DTYPES))
            case 2 | 3 | 4 if array.size:
                number = np.array(draw.choice(NUMBERS))
                changed.reshape(-1)[draw.randrange(array.size)] = number.astype(array.dtype)
            case 5:
                changed = array[draw.randrange(3) :]
            case 6:
                changed = np.concatenate([array, array[: draw.randrange(1, 3)]])
            case 7:
                shapes = [(-1,), (*array.shape, 1), (1, *array.shape), (1, -1)]
                changed = array.reshape(draw.choice(shapes))
            case 8:
                changed = draw.choice([array[:0], array[::-1], np.asfortranarray(array), np.array(7)])
            case 9:
                changed = np.frombuffer(mutated(array.tobytes(), b"\0 1\n", draw), array.dtype)
    return changed


def group_of_rows(h5: h5py.File) -> h5py.Group:
    """The group with the arrays of the table."""
    found = [h5]
    h5.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Group) else None)
    (group,) = (group for group in found if "schema" in group and "chunks" in group)
    return group


def chunk_arrays(group: h5py.Group) -> list[list[np.ndarray]]:
    """The arrays of each chunk, in the order of saving.py."""
    names = ["keys", "values", "slots", "meta"]
    if b"strings" in group["schema"][()].tobytes().split(b"\n"):
        names += ["string_lengths", "string_bytes"]
    return [[group[f"{name}_{i}"][()] for name in names] for i in range(int(group["chunks"][()]))]


def mutate_h5(path: pathlib.Path, draw: random.Random) -> None:
    """Changes arrays, their attributes and links; then makes the checksums right, mostly."""
    with h5py.File(path, "r+") as h5:
        group = group_of_rows(h5)
        for _ in range(draw.choice([1, 1, 2])):
            name = draw.choice(sorted(group))
            if not isinstance(group.get(name, getlink=True), h5py.HardLink) or name not in group:
                continue
            is_array = isinstance(group[name], h5py.Dataset) and group[name].size < 2**20
            array = np.asarray(group[name][()]) if is_array else np.zeros(3)
            match draw.randrange(14):
                case 0:
                    group[name].attrs[draw.choice(["dtype", "shape", "x"])] = "bfloat16"
                case 1:
                    group[f"{draw.choice(sorted(group))}9"] = array
                case 2:
                    del group[name]
                case 3:
                    group.move(name, name + "x")
                case 4:
                    del group[name]
                    group.create_group(name)
                case 5:
                    del group[name]
                    group[name] = draw.choice(
                        [h5py.SoftLink("/none"), h5py.SoftLink(name), h5py.ExternalLink("none.h5", "/")]
                    )
                case 6:
                    del group[name]
                    shape = (2**40,) * array.ndim
                    group.create_dataset(name, shape, array.dtype, chunks=bool(shape))
                case 7 if array.ndim:
                    del group[name]
                    group.create_dataset(name, data=array, chunks=True, compression="gzip")
                case _:
                    del group[name]
                    changed = other_array(array, draw)
                    if changed.dtype.kind in "OU":
                        changed = changed.astype(str).astype(h5py.string_dtype())
                    if changed.dtype.kind == "M":
                        changed = changed.astype(np.int64)
                    group[name] = changed
        if draw.random() < 0.7:
            make_right(group)


def make_right(group: h5py.Group) -> None:
    """Checksums that fit the arrays, unless something is missing."""
    with contextlib.suppress(Exception):
        chunks = [b"".join(array.tobytes() for array in chunk) for chunk in chunk_arrays(group)]
        sums = list(map(zlib.crc32, chunks))
        for i, number in enumerate(sums):
            group[f"crc32_{i}"][...] = number
        head = group["schema"][()].tobytes() + group["snapshots"][()].tobytes()
        group["crc32"][...] = zlib.crc32(head + np.array(sums, np.int64).tobytes())


def mutate_zip(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Members that are missing, twice, renamed, compressed or of other bytes, in a good archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = draw.randrange(len(members))
    name, content = members[at]
    how = zipfile.ZIP_STORED
    match draw.randrange(6):
        case 0:
            del members[at]
        case 1:
            members.append((name, mutated(content, other, draw)))
        case 2:
            members[at] = (draw.choice([name[1:], name + "x", f"{draw.choice(WORDS)}.npy"]), content)
        case 3:
            how = draw.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
        case _:
            members[at] = (name, mutated(content, other, draw))
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", how) as archive:
        warnings.simplefilter("ignore")  # about names that come twice
        for member in members:
            archive.writestr(*member)
    return made.getvalue()


def mutate_npz(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Arrays that are missing, too many, and of other dtypes and shapes."""
    if draw.random() < 0.3:
        return mutate_zip(data, other, draw)
    arrays = dict(np.load(io.BytesIO(data)))
    for _ in range(draw.choice([1, 1, 2])):
        name = draw.choice(sorted(arrays))
        if name == "schema" and draw.random() < 0.7:
            arrays[name] = np.array(mutated_text(str(arrays[name]), draw))
            continue
        match draw.randrange(8):
            case 0:
                if len(arrays) > 1:
                    del arrays[name]
            case 1:
                arrays[draw.choice(WORDS)] = arrays[name]
            case _:
                arrays[name] = other_array(arrays[name], draw)
    made = io.BytesIO()
    draw.choice([np.savez, np.savez_compressed])(made, **arrays)
    return made.getvalue()


def mutated_text(text: str, draw: random.Random) -> str:
    """A line that is missing, twice, elsewhere, or with another word."""
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(draw.randrange(len(lines)), lines[at])
        case 2:
            words = lines[at].split(" ")
            words[draw.randrange(len(words))] = str(draw.choice([*NUMBERS, "float32", "x", "", "nan"]))
            lines[at] = " ".join(words)
        case 3:
            lines.insert(at, "\0")
            lines.append(f"value float32 {draw.choice([1, 2, 1000])}")
        case 4:
            return mutated(text.encode(), b" \n\0value", draw).decode("latin-1")
    return "\n".join(lines)


def other_column(column: pa.ChunkedArray, draw: random.Random) -> pa.Array:
    """Of another type, with nulls, or lists of other lengths; the same where that cannot be."""
    values = column.to_pylist()
    at = draw.randrange(len(values) or 1)
    types = [pa.int8(), pa.int32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string()]
    types += [pa.binary(), pa.large_binary(), pa.bool_(), pa.decimal128(30, 2), pa.timestamp("s")]
    types += [pa.struct({"x": pa.int64()}), pa.map_(pa.int64(), pa.int64()), pa.null(), pa.date32()]
    lists = [pa.list_, pa.large_list, pa.list_view, lambda of: pa.list_(of, 3)]
    numbers = [None, *NUMBERS, float("nan"), 1e300, "x", b"\xff", [], [1.5], [None] * 3, [1.5] * 3, True]
    with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
        match draw.randrange(8):
            case 0:
                return column.cast(draw.choice(types)).combine_chunks()
            case 1:
                return pa.array([draw.choice(numbers) for _ in values])
            case 2:
                return column.combine_chunks().dictionary_encode()
            case 3:
                return pa.array(values, draw.choice(lists)(draw.choice(types)))
            case 4:
                return pa.nulls(len(values), draw.choice([column.type, *types]))
            case 5 if isinstance(values[at], list):
                values[at] = draw.choice([values[at][1:], values[at] + [1.0], [values[at]], [None] * 3])
                return pa.array(values)
            case 6:
                return pa.array([value if isinstance(value, list) else [value] for value in values])
            case _:
                values[at] = draw.choice(numbers)
                return pa.array(values, column.type)
    return column.combine_chunks()


def mutate_parquet(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Columns that are missing, too many, twice, and of other types; the schema's text changed."""
    table = pq.read_table(io.BytesIO(data))
    for _ in range(draw.choice([1, 1, 2])):
        at = draw.randrange(table.num_columns)
        name = table.column_names[at]
        match draw.randrange(8):
            case 0:
                if table.num_columns > 1:
                    table = table.remove_column(at)
            case 1:
                table = table.append_column(draw.choice(WORDS), table.column(at))
            case 2 if table.schema.metadata:
                text = mutated_text(table.schema.metadata[b"schema"].decode(), draw)
                table = table.replace_schema_metadata({"schema": text} if draw.random() < 0.8 else None)
            case _:
                table = table.set_column(at, name, other_column(table.column(at), draw))
    made = io.BytesIO()
    options = dict(
        row_group_size=draw.choice([3, 7, 1000]),
        compression=draw.choice(["none", "snappy", "zstd"]),
        data_page_version=draw.choice(["1.0", "2.0"]),
        use_dictionary=draw.random() < 0.5,
        write_page_checksum=draw.random() < 0.5,
    )
    try:
        pq.write_table(table, made, **options)
    except (pa.ArrowException, OSError):  # what Parquet has no form for
        return mutated(data, other, draw)
    return made.getvalue()


class Refused(Exception):
    """The file was refused as it should be."""


class KerasFiles:
    """`.weights.h5` and `.keras`, loaded into models whose tables have rows, slots and meta."""

    def __init__(self, folder: pathlib.Path, suffix: str):
        saving.CHUNK_BYTES = 512  # so that there are several chunks
        self._path, self._suffix, self._models, self._good = folder / f"m{suffix}", suffix, [], []
        for key_dtype in ("string", "int64"):
            layer = tf_dynemb.keras.Embedding(
                3,
                key_dtype=key_dtype,
                keep_keys=key_dtype == "string",
                restrict_policy=tf_dynemb.FrequencyRestrictPolicy,
            )
            model = keras.Sequential([keras.Input((), dtype=key_dtype), layer, keras.layers.Dense(1)])
            model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
            for first in (0, 7):
                ids = tf.range(first, first + 20, dtype=tf.int64) * (1 - first)
                ids = tf.strings.as_string(ids) if key_dtype == "string" else ids
                layer.table.clear()
                model.train_on_batch(ids, np.ones(20))
                model.save(self._path) if suffix == ".keras" else model.save_weights(self._path)
                self._good.append((self._path.read_bytes(), self._content(layer.table)))
            self._models.append((model, layer.table))

    def attempt(self, draw: random.Random) -> str:
        which = draw.randrange(4)
        model, table = self._models[which // 2]
        good, content = self._good[which]
        other = self._good[which ^ 1][0]
        in_bytes = draw.random() < 0.4
        self._path.unlink()  # which Keras leaves open after an error, and HDF5 knows
        if in_bytes:
            self._path.write_bytes(mutated(good, other, draw))
        elif self._suffix == ".weights.h5":
            self._path.write_bytes(good)
            mutate_h5(self._path, draw)
        elif draw.random() < 0.3:
            self._path.write_bytes(mutate_zip(good, other, draw))
        else:
            self._mutate_rows(good, draw)
        before = self._content(table)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of variables that Keras passes over
                model.load_weights(self._path)
        except Exception as error:
            # Keras reads layers and optimizer one by one, and collects what they raise.
            text, got = str(error), self._content(table)
            assert "for object <Embedding" not in text or f"{table.name}: " in text, text
            if got != before:  # another object is damaged
                assert "<Embedding" not in text, text
                assert got == (content if in_bytes else self._found(table))
            raise Refused from error
        got = self._content(table)
        if in_bytes:
            assert got == content
        else:
            assert got == self._found(table)
        return "loaded"

    def _mutate_rows(self, good: bytes, draw: random.Random) -> None:
        """Mutates the file with the rows, in an archive that is as it must be."""
        rows_file = self._path.with_name("rows.h5")
        with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(self._path, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                if "rows-" in name:
                    rows_file.write_bytes(content)
                    mutate_h5(rows_file, draw)
                    content = rows_file.read_bytes()
                new.writestr(name, content)

    def _content(self, table):
        return rows_of(table), set(values_of(table))

    def _found(self, table):
        """What h5py alone finds in the file."""
        file = self._path
        if self._suffix == ".keras":
            with zipfile.ZipFile(file) as archive:
                (member,) = {name for name in archive.namelist() if "rows-" in name}
                file = io.BytesIO(archive.read(member))
        with h5py.File(file, "r") as h5:
            rows, strings = {}, set()
            for keys, values, slots, meta, *rest in chunk_arrays(group_of_rows(h5)):
                for i, key in enumerate(keys.tolist()):
                    rows[key] = tuple(part[i].tobytes() for part in (values, slots, meta))
                if rest:
                    ends = np.cumsum(rest[0]).tolist()
                    whole = rest[1].tobytes()
                    strings |= {whole[a:b] for a, b in zip([0, *ends], ends, strict=False)}
        return rows, strings if table.keep_keys else set(rows)


class TableFiles:
    """.npz and .parquet, imported by the command line into a folder with a snapshot."""

    def __init__(self, folder: pathlib.Path, suffix: str):
        self._path, self._target = folder / f"file{suffix}", folder / "target"
        self._mutate = mutate_npz if suffix == ".npz" else mutate_parquet
        self._read = self._read_npz if suffix == ".npz" else self._read_parquet
        self._checked = suffix == ".npz"
        self._good = []
        for key_dtype, dtype in ((tf.string, "float32"), (tf.int64, "bfloat16")):
            table = tf_dynemb.Variable(
                key_dtype=key_dtype,
                value_dtype=dtype,
                dim=3,
                keep_keys=key_dtype == tf.string,
                restrict_policy=tf_dynemb.FrequencyRestrictPolicy,
                name="table",
            )
            optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
            for first in (0, 7):
                ids = tf.range(first, first + 20, dtype=tf.int64) * (1 - first)
                ids = tf.strings.as_string(ids) if key_dtype == tf.string else ids
                table.clear()
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids))
                optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])
                snapshot.save(folder / "saved", table)
                snapshot.export_table(folder / "saved", "table", self._path)
                self._import()
                self._good.append((self._path.read_bytes(), self._content()))

    def attempt(self, draw: random.Random) -> str:
        which = draw.randrange(len(self._good))
        (good, content), other = self._good[which], self._good[which ^ 1][0]
        in_bytes = draw.random() < 0.4
        self._path.write_bytes((mutated if in_bytes else self._mutate)(good, other, draw))
        before = self._files()
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            status = self._import("--key-dtype", draw.choice(["int64", "string"]))
        if status:
            assert status == 2
            line = text.getvalue()
            assert line.startswith("tf-dynemb snapshot import: "), line
            assert line.count("\n") == 1, line
            assert str(self._path) in line or line.split(": ")[1] == "keys", line
            assert self._files() == before
            raise Refused
        got = self._content()
        if in_bytes and got == content:
            return "loaded"
        assert not (in_bytes and self._checked)
        self._compare(got)
        return "loaded, with other bytes where no checksum is" if in_bytes else "loaded"

    def _import(self, *flags: str) -> int:
        command = ["import", str(self._target), str(self._path), "--noprogress", *flags]
        with contextlib.redirect_stdout(io.StringIO()):
            return main(command)

    def _files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self._target.iterdir()}

    def _content(self) -> dict[str, list]:
        """The arrays of the snapshot, by their names in files."""
        with snapshot.open(self._target) as reader:
            schema = reader.tables["table"].schema
            blocks = list(reader.rows("table"))
        parts = {}
        for rows in blocks:
            named = {"keys": rows.keys, "values": rows.values}
            named |= {"strings": rows.strings} if schema.strings else {}
            named |= {f"slots/{name}": part for name, part in rows.slots.items()}
            named |= {f"meta/{name}": part for name, part in rows.meta.items()}
            for name, part in named.items():
                parts[name] = parts.get(name, []) + part.tolist()
        return {"schema": schema.text} | parts

    def _compare(self, got: dict) -> None:
        """The snapshot holds what NumPy or PyArrow alone find in the file."""
        found = self._read()
        has_schema = "schema" in found
        if has_schema:
            # But for numbers, which come out in another form, and lines that may be left out.
            words, got_words = (set(re.findall(r"[a-z]\w*", text["schema"])) for text in (found, got))
            assert words <= got_words, (found["schema"], got["schema"])
        text = got.pop("schema")
        kind = text.split("value ")[1].split(" ")[0]
        for name in found if has_schema else ("keys", "values"):
            if name not in got:
                continue
            want = found[name]
            if name == "keys" and len(want) and isinstance(want[0], (str, bytes)):
                want = fingerprints(want)
            if name == "values":
                bits = has_schema and kind == "bfloat16" and np.asarray(want).dtype == np.uint16
                dtype = tf.as_dtype(kind).as_numpy_dtype
                want = np.asarray(want).view(dtype) if bits else np.asarray(want).astype(dtype)
            if name == "strings":
                want = [text.encode() if isinstance(text, str) else text for text in want]
            have, want = np.asarray(got[name]), np.asarray(want)
            if name == "values" or name.startswith("slots/"):
                have, want = have.astype(np.float64), want.astype(np.float64)  # whose NaN are equal
            np.testing.assert_array_equal(have, want, name)
        if not has_schema:
            assert set(got) == {"keys", "values"}

    def _read_npz(self) -> dict:
        with np.load(self._path) as file:
            found = {name: file[name] for name in file.files}
        if "schema" in found:
            found["schema"] = str(found["schema"])
        if "string_lengths" in found:
            ends = np.cumsum(found.pop("string_lengths")).tolist()
            whole = found["strings"].tobytes()
            found["strings"] = [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return found

    def _read_parquet(self) -> dict:
        file = pq.ParquetFile(self._path)
        table, metadata = file.read(), file.schema_arrow.metadata or {}
        found = dict(zip(table.column_names, (part.to_pylist() for part in table.columns), strict=True))
        found.pop("schema", None)  # a column of somebody's
        if b"schema" in metadata:
            found["schema"] = metadata[b"schema"].decode()
        if "uint16" in str(table.schema.field("values").type):
            found["values"] = np.array(found["values"], np.uint16)
        return found


def fingerprints(strings) -> list[int]:
    return tf_dynemb.fingerprint(tf.constant(list(strings), tf.string)).numpy().tolist()


KINDS = {".weights.h5": KerasFiles, ".keras": KerasFiles, ".npz": TableFiles, ".parquet": TableFiles}


def run(suffix: str, first: int, count: int, seconds: float) -> dict[str, int]:
    """Mutants of one kind; returns how many had which outcome."""
    outcomes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = KINDS[suffix](pathlib.Path(folder), suffix)
        end, number = time.monotonic() + seconds, first
        # A file that asks for more memory than there is gets an error instead.
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes() + 2**32, most))
        while number < first + count or time.monotonic() < end:
            print(suffix, number, end="\r", file=sys.stderr)  # stays there after a crash
            faulthandler.dump_traceback_later(60, exit=True)  # one that hangs
            try:
                outcome = files.attempt(random.Random(f"{suffix} {number}"))
            except Refused:
                outcome = "refused"
            except BaseException:
                print(f"failed: fuzzed_files.py {number} 0 {suffix}=1", file=sys.stderr)
                raise
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            number += 1
    faulthandler.cancel_dump_traceback_later()
    return outcomes


if __name__ == "__main__":
    faulthandler.enable()
    start, duration, *kinds = sys.argv[1:]
    for kind, least in (argument.split("=") for argument in kinds):
        print(
            json.dumps({"kind": kind} | run(kind, int(start), int(least), float(duration))), flush=True
        )
