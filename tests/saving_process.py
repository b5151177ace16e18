"""A process of its own for tests of saving: `python saving_process.py COMMAND FOLDER`; prints JSON.

start    trains 10 steps, saves in every format, trains 10 more, and says what came out of it.
resume   loads what `start` saved, each in turn, trains 10 more, and says what came out of it.
large    saves and loads a large table, and says how much memory that took.
reload   loads models TIMES times, drops each, and says how much memory was held after each.
"""

import gc
import hashlib
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import saving_models as m
import tensorflow as tf
from process_memory import peak_mib, resident_mib, without_huge_pages

import tf_dynemb

OPTIMIZERS = ("scheduled", "ftrl")
FORMATS = ("checkpoint", "m.keras", "m.weights.h5")
# Ten steps before and ten after.
HALF, END = 10, 20

# Of the large table: 600,000 rows of 64 float32, 154 MB.
ROWS, DIM = 600_000, 64


def digest(model):
    tables, dense, optimizer = m.state(model)
    text = repr([sorted(table.items()) for table in tables] + dense + optimizer).encode()
    return hashlib.sha256(text).hexdigest()


def start(folder):
    out = {}
    for optimizer in OPTIMIZERS:
        digests = set()
        for saving in (False, True):  # 20 steps straight, and with saves in between
            keras.utils.set_random_seed(7)
            model = m.make(optimizer, eager=False)
            m.train(model, 0, HALF)
            if saving:
                place = folder / optimizer
                place.mkdir()
                checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
                checkpoint.save(place / "checkpoint" / "c")
                model.save(place / "m.keras")
                model.save_weights(place / "m.weights.h5")
                half = digest(model)
            m.train(model, HALF, END)
            digests.add(digest(model))
        (out[optimizer],) = digests
        assert half != out[optimizer]
    return out


def resume(folder):
    out = {}
    for optimizer in OPTIMIZERS:
        out[optimizer] = {}
        for form in FORMATS:
            place = folder / optimizer / form
            if form == "m.keras":
                model = keras.models.load_model(place)
            else:
                model = m.ready(m.make(optimizer, shards=3, eager=False))
                if form == "m.weights.h5":
                    model.load_weights(place)
                else:
                    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
                    checkpoint.restore(tf.train.latest_checkpoint(place)).assert_consumed()
            m.train(model, HALF, END)
            out[optimizer][form] = digest(model)
    return out


def table_of(rows):
    layer = tf_dynemb.keras.Embedding(DIM, name="large", devices=["/CPU:0"] * 2)
    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, layer(inputs))
    for first in range(0, rows, 1_000):
        layer.table.upsert(np.arange(first, first + 1_000), np.full([1_000, DIM], first, np.float32))
    return model


def large(folder):
    """By how much each call raises the peak of the process."""
    without_huge_pages()
    calls = {
        "save_weights": lambda model, name: model.save_weights(folder / f"{name}.weights.h5"),
        "save": lambda model, name: model.save(folder / f"{name}.keras"),
        "load_weights": lambda model, name: model.load_weights(folder / f"{name}.weights.h5"),
        "load_weights of .keras": lambda model, name: model.load_weights(folder / f"{name}.keras"),
        "load_model": lambda model, name: keras.models.load_model(folder / f"{name}.keras"),
    }
    small = table_of(10_000)
    for call in calls.values():
        call(small, "small")  # what Keras and HDF5 take for themselves, once
    model = table_of(ROWS)
    table = model.layers[1].table
    out = {"table": int(table.memory_bytes()) / 2**20}
    for name, call in calls.items():
        if name.startswith("load"):  # the rows that there are stay until the new ones are there
            table.clear()
        before = peak_mib()
        loaded = call(model, "large") or model
        out[name] = peak_mib() - before
        assert int(loaded.layers[1].table.size()) == ROWS
    return out


def checkpoint(folder):
    """By how much tf.train.Checkpoint raises the peak when it saves, and what the rows take, in MiB."""
    without_huge_pages()
    tf.train.Checkpoint(model=table_of(10_000)).write(str(folder / "small"))
    model = table_of(2 * ROWS)
    before = peak_mib()
    tf.train.Checkpoint(model=model).write(str(folder / "large"))
    return {"rows": 2 * ROWS * (8 + 4 * DIM) / 2**20, "grown": peak_mib() - before}


def reload(folder):
    """MiB held after each load, of a table of 16,000 rows of 64 float32 (4 MiB) in two formats."""
    model = table_of(16_000)
    model.export(folder / "m", verbose=False)
    model.save(folder / "m.keras")
    ids = tf.constant([3, 10_001], tf.int64)
    want = model(ids).numpy()
    ways = {
        "tf.saved_model.load": lambda: tf.saved_model.load(str(folder / "m")),
        "load_model": lambda: keras.models.load_model(folder / "m.keras"),
    }
    out = {}
    for name, load in ways.items():
        out[name] = []
        for _ in range(int(os.environ["TIMES"])):
            loaded = load()
            got = loaded.serve(ids) if hasattr(loaded, "serve") else loaded(ids)
            np.testing.assert_array_equal(got, want)
            del loaded
            gc.collect()
            out[name].append(resident_mib())
    return out


if __name__ == "__main__":
    command, path = sys.argv[1:]
    if command in ("start", "resume"):
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.threading.set_intra_op_parallelism_threads(1)
    print(json.dumps(globals()[command](pathlib.Path(path))))
