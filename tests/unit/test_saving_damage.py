"""Damaged files: a restore is refused and leaves the tables as they were, or gives what was saved."""

import errno
import os
import pathlib
import re
import zipfile
import zlib

import h5py
import keras
import numpy as np
import pytest
import saving_models as m
import tensorflow as tf
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.table import keras_files as saving

LAYERS = ("items", "tags_table")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A trained model in every format, and its rows."""
    folder = tmp_path_factory.mktemp("saved")
    keras.utils.set_random_seed(4)
    model = m.trained()
    keys = int64(range(10**6, 10**6 + 2000))  # so that most of the files is rows
    m.tables(model)[0].upsert(keys, m.tables(model)[0].lookup(keys))
    model.save(folder / "m.keras")
    model.save_weights(folder / "m.weights.h5")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "c"))
    return folder, m.rows(model)


@pytest.fixture(scope="module")
def target():
    """A model with other rows, into which damaged files are loaded: none may change it."""
    return m.trained(5, shards=3)


def flipped(h5, name):
    """Flips one bit in the middle of an array."""
    data = np.array(h5[name])
    raw = bytearray(data.tobytes())
    raw[len(raw) // 2] ^= 4
    h5[name][...] = np.frombuffer(bytes(raw), data.dtype).reshape(data.shape)


def shortened(h5, name):
    data = np.array(h5[name])
    del h5[name]
    h5[name] = data[:-1]


def gone(h5, name):
    del h5[name]


DAMAGE = {"flipped": flipped, "shortened": shortened, "gone": gone}
PARTS = ["keys_0", "values_0", "slots_0", "meta_0"]
ROW_ARRAYS = ["schema", "snapshots", "chunks", "crc32", *PARTS, "crc32_0"]


def damage_array(h5, name, damage):
    """Damages an array; one that is empty, or a number that cannot be shorter, goes."""
    if h5[name].size == 0 or (damage == "shortened" and not h5[name].shape):
        damage = "gone"
    DAMAGE[damage](h5, name)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("array", ROW_ARRAYS)
def test_every_array_of_weights(array, damage, saved, target, tmp_path):
    path = tmp_path / "m.weights.h5"
    path.write_bytes((saved[0] / path.name).read_bytes())
    names = []

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and "schema" in item.parent:
            names.append(name)

    with h5py.File(path, "r+") as h5:
        h5.visititems(visit)
        assert {name.rpartition("/")[2] for name in names} == set(ROW_ARRAYS)
        for name in names:
            if name.endswith(f"/{array}"):
                damage_array(h5, name, damage)
    refused(target, path)


def refused(model, path, match="damaged|holds no rows"):
    before = m.rows(model)
    with pytest.raises(ValueError, match=match):
        model.load_weights(path)
    assert m.rows(model) == before


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("array", ROW_ARRAYS)
def test_every_array_of_an_archive(array, damage, saved, target, tmp_path):
    """In a `.keras` whose own checksums are right, so that ours are asked."""
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(saved[0] / "m.keras") as old, zipfile.ZipFile(path, "w") as new:
        members = [name for name in old.namelist() if "rows-" in name]
        assert len(members) == 2
        for name in old.namelist():
            if name in members:
                file = tmp_path / "rows.h5"
                file.write_bytes(old.read(name))
                with h5py.File(file, "r+") as h5:
                    damage_array(h5, array, damage)
                new.write(file, name)
            else:
                new.writestr(name, old.read(name))
    refused(target, path)
    with pytest.raises(ValueError, match="damaged|holds no rows"):
        keras.models.load_model(path)


def paths(h5, name):
    """Where in a file there are arrays of a name."""
    found = []
    h5.visit(lambda item: found.append(item) if item.endswith(f"/{name}") else None)
    return found


OTHERS = {
    "a group": lambda h5, name: h5.create_group(name),
    "a link to nothing": lambda h5, name: h5.update({name: h5py.SoftLink("/nothing")}),
    "strings": lambda h5, name: h5.update({name: ["a", "b"]}),
    "not ASCII": lambda h5, name: h5.update(
        {name: np.frombuffer(b"dynemb-table 1\n\xff 1\n", np.uint8)}
    ),
    "a float": lambda h5, name: h5.update({name: 1.5}),
    "a list": lambda h5, name: h5.update({name: [1]}),
    "more than memory": lambda h5, name: h5.create_dataset(name, (2**60,), np.int64, chunks=(8,)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_others_in_place_of_arrays(other, saved, target, tmp_path):
    """What HDF5 allows and a store of rows has not: the error is ours, whatever h5py and NumPy say."""
    path = tmp_path / "m.weights.h5"
    for array in ROW_ARRAYS:
        path.unlink(missing_ok=True)  # Keras leaves it open
        path.write_bytes((saved[0] / path.name).read_bytes())
        with h5py.File(path, "r+") as h5:
            for group in [h5[name].parent for name in paths(h5, "schema")]:
                del group[array]
                OTHERS[other](group, array)
        refused(target, path, "(items|tags_table): the file (is damaged|holds no rows)")


def test_damaged_groups_of_weights(saved, target, tmp_path):
    """Where h5py cannot even say whether there is an array."""
    path, texts = tmp_path / "m.weights.h5", []
    good = (saved[0] / path.name).read_bytes()
    at = good.find(b"HEAP")
    while at >= 0:
        path.unlink(missing_ok=True)
        path.write_bytes(good[: at + 16] + b"\x7f" * 8 + good[at + 24 :])  # where its free list begins
        try:
            target.load_weights(path)
        except Exception as error:  # mostly one of h5py's own, about groups of Keras
            texts += re.findall("for object <Embedding.*?>:\\s*(.*)", str(error))
        at = good.find(b"HEAP", at + 1)
    ours = [text for text in texts if re.match("(items|tags_table): the file is damaged: ", text)]
    # Keras 3.12 looks for a group before it asks the layer, and says what h5py does.
    keras_own = [
        text for text in texts if text.startswith("Unable to synchronously check link existence")
    ]
    assert ours and len(ours) + len(keras_own) == len(texts)


def test_names_of_files_in_an_archive(saved, target, tmp_path):
    """A name that leads out of the archive is not followed, though there are rows."""
    path, elsewhere = tmp_path / "m.keras", tmp_path / "rows-0.h5"
    with zipfile.ZipFile(saved[0] / "m.keras") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if "rows-" in name:
                elsewhere.write_bytes(content)
            if name.endswith("weights.h5"):
                (tmp_path / "v.h5").write_bytes(content)
                with h5py.File(tmp_path / "v.h5", "r+") as h5:
                    names = paths(h5, "rows_file_in_assets")
                    for item in names:
                        del h5[item]
                        h5[item] = np.frombuffer(os.fsencode(elsewhere), np.uint8)
                content = (tmp_path / "v.h5").read_bytes()
            new.writestr(name, content)
    assert len(names) == 2
    refused(target, path, "the file is damaged: its rows are in .*, want rows-<32 hex digits>")
    with pytest.raises(ValueError, match="the file is damaged: its rows are in"):
        keras.models.load_model(path)


def test_rows_in_an_archive_that_are_no_hdf5(saved, target, tmp_path):
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(saved[0] / "m.keras") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"text" if "rows-" in name else old.read(name))
    refused(target, path, "items: the file is damaged: OSError: ")
    with pytest.raises(ValueError, match="items: the file is damaged: OSError: "):
        keras.models.load_model(path)


def test_rows_that_are_gone_from_an_archive(saved, target, tmp_path):
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(saved[0] / "m.keras") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if "rows-" not in name:
                new.writestr(name, old.read(name))
        new.writestr("assets/other", b"")  # Keras reads assets if there are any
    refused(target, path)
    with pytest.raises(ValueError, match="rows-"):
        keras.models.load_model(path)


FORGERIES = {
    "one less": lambda array: array[:-1],
    "one axis more": lambda array: array[..., None],
    "one axis": lambda array: array.reshape(-1),
    "other dtype": lambda array: array.astype(np.float32),
    "twice": lambda array: np.concatenate([array, array]),
    "others": lambda array: array + 1,
    "negative": lambda array: -array,
    "zeros": lambda array: array * 0,
    "huge": lambda array: np.full_like(array, np.iinfo(array.dtype).max),
}


def forge(h5, name, change):
    """Changes an array of a table's only chunk and makes all checksums right; returns old and new."""
    names = [n for n in (*PARTS, "string_lengths_0", "string_bytes_0") if n in h5]
    old = np.array(h5[name])
    new = change(old)
    del h5[name]
    h5[name] = new
    chunk = b"".join(np.array(h5[n]).tobytes() for n in names)
    h5["crc32_0"][...] = zlib.crc32(chunk)
    sums = np.array([zlib.crc32(chunk)], np.int64).tobytes()
    head = b"".join(np.array(h5[n]).tobytes() for n in ("schema", "snapshots"))
    h5["crc32"][...] = zlib.crc32(head + sums)
    return old, new


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("keys", ["int64", "string"])
def test_made_up_arrays_with_right_checksums(keys, forgery, tmp_path):
    """Numbers that can be are loaded; what cannot be the rows of a table leaves it as it was."""
    layer = tf_dynemb.keras.Embedding(3, key_dtype=keys, keep_keys=keys == "string")
    model = keras.Sequential([keras.Input((), dtype=keys), layer, keras.layers.Dense(1)])
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
    ids = tf.constant(["a", "b", "c"]) if keys == "string" else int64([1, 2, 3])
    model.train_on_batch(ids, np.ones(3))
    saved, path = tmp_path / "m.weights.h5", tmp_path / "forged.weights.h5"
    model.save_weights(saved)
    layer.table.clear()
    layer.table.upsert(ids[:1], tf.ones([1, 3]))
    before = rows_of(layer.table)
    numbers = ("values_0", "slots_0", "meta_0") + (("keys_0",) if keys == "int64" else ())
    strings = ("string_lengths_0", "string_bytes_0") if keys == "string" else ()
    for name in (*PARTS, *strings):
        path.write_bytes(saved.read_bytes())
        with h5py.File(path, "r+") as h5:
            group = h5.visit(lambda item: item[:-7] if item.endswith("/schema") else None)
            old, new = forge(h5[group], name, FORGERIES[forgery])
        alike = new.dtype == old.dtype and new.shape == old.shape
        distinct = name != "keys_0" or len(np.unique(new)) == len(old)
        if alike and (np.array_equal(new, old) or (name in numbers and distinct)):
            model.load_weights(path)
            assert len(rows_of(layer.table)) == 3
            layer.table.clear()
            layer.table.upsert(ids[:1], tf.ones([1, 3]))
        else:
            with pytest.raises(ValueError):
                model.load_weights(path)
            assert rows_of(layer.table) == before, name


def places(path, number):
    """Offsets all over a file."""
    size = path.stat().st_size
    return [size * i // number for i in range(number)]


def outcomes(load, model, path, want, damage, offsets):
    """Loads `path` damaged at each offset; returns how many were refused.

    What is not refused was damaged where no row lies, and must give the rows that were saved; a table
    whose neighbour's rows are damaged may have been loaded.
    """
    original = path.read_bytes()
    number = 0
    for offset in offsets:
        before = m.rows(model)
        path.write_bytes(damage(original, offset))
        try:
            load(path)
        except Exception:
            number += 1
            for got, was, saved_rows in zip(m.rows(model), before, want, strict=True):
                assert got in (was, saved_rows)
        else:
            assert m.rows(model) == want
    path.write_bytes(original)
    return number


def flip(data, offset):
    return data[:offset] + bytes([data[offset] ^ 16]) + data[offset + 1 :]


def cut(data, offset):
    return data[:offset]


@pytest.mark.parametrize("file", ["m.weights.h5", "m.keras"])
@pytest.mark.parametrize("damage", [flip, cut])
def test_bytes_all_over_keras_files(file, damage, saved, tmp_path):
    folder, want = saved
    model = m.trained(5, shards=3)
    path = tmp_path / file
    path.write_bytes((folder / file).read_bytes())
    offsets = places(path, 40)
    number = outcomes(model.load_weights, model, path, want, damage, offsets)
    # Half of the bytes and more are rows. A cut file never opens.
    assert number >= (len(offsets) // 2 if damage is flip else len(offsets))


@pytest.mark.parametrize("damage", [flip, cut])
def test_bytes_all_over_a_checkpoint(damage, saved, target, tmp_path):
    """Its data file has a checksum for each tensor: nothing is restored from it."""
    folder, _ = saved
    for name in os.listdir(folder):
        if name.startswith("c."):
            (tmp_path / name).write_bytes((folder / name).read_bytes())
    path = next(pathlib.Path(tmp_path).glob("c.data*"))
    original, before = path.read_bytes(), m.rows(target)
    checkpoint = tf.train.Checkpoint(model=target)
    for offset in places(path, 25):
        path.write_bytes(damage(original, offset))
        try:
            checkpoint.restore(str(tmp_path / "c")).expect_partial()
        except (tf.errors.OpError, IndexError):  # as TensorFlow says that a file is too short
            assert m.rows(target) == before
        else:
            # A wrong byte in what is not restored: the optimizer's variables.
            assert damage is flip and m.rows(target) == saved[1]
            for table, rows in zip(m.tables(target), before, strict=True):
                restore(table, rows)
    path.write_bytes(original)


def restore(table, rows):
    """Puts rows back, as rows_of gave them."""
    schema = table.resource.export_rows(limit=0)[4]
    dtype = table.value_dtype.as_numpy_dtype
    parts = [np.array([np.frombuffer(row[i], np.uint8) for row in rows.values()]) for i in range(3)]
    values = parts[0].view(dtype)
    table.resource.import_rows(
        tf.constant(list(rows), tf.int64),
        values,
        parts[1],
        parts[2].reshape(len(rows), -1),
        schema,
        True,
    )
    assert rows_of(table) == rows


def test_the_undamaged_files_load(saved, tmp_path):
    folder, want = saved
    for file in ("m.weights.h5", "m.keras"):
        model = m.ready(m.make(shards=3))
        model.load_weights(folder / file)
        assert m.rows(model) == want
    model = m.make()
    tf.train.Checkpoint(model=model).restore(str(folder / "c")).expect_partial()
    assert m.rows(model) == want


def test_too_little_memory_is_no_damage(monkeypatch, tmp_path):
    table = tf_dynemb.Variable(dim=1, name="items")
    table.upsert(int64([1]), [[1.0]])
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        saving.write_rows(table, file)
    before = rows_of(table)

    def fails(*_, **__):
        raise MemoryError("Unable to allocate 8 MiB")

    monkeypatch.setattr(h5py.Dataset, "__array__", fails)
    with pytest.raises(MemoryError, match="^items: there is no memory for what the file holds.*8 MiB"):
        saving.read_rows_of_file(table, tmp_path / "rows.h5")
    assert rows_of(table) == before


@pytest.mark.parametrize(
    "cause", [OSError(errno.ENOSPC, "No space left on device"), PermissionError(errno.EACCES, "no")]
)
def test_what_the_system_says_is_no_damage(cause, monkeypatch, tmp_path):
    """Of a file that is as it was saved: a full disk where an archive is unpacked, for example."""
    model = m.trained()
    model.save(tmp_path / "m.keras")
    before = m.rows(model)

    def fails(*_):
        raise cause

    monkeypatch.setattr(zipfile.ZipFile, "extract", fails)
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        (name, *_) = (n.split("/")[-1] for n in archive.namelist() if "rows-" in n)
        with pytest.raises(type(cause)) as error:
            saving.read_rows_of_archive(m.tables(model)[0], archive, name)
    assert error.value is cause
    assert m.rows(model) == before
