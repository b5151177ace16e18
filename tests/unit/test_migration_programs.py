"""What the page Migrating shows of other libraries runs, word by word, with their names on our dialects.

The programs that it shows beside them run in test_documentation.py.
"""

import importlib
import pathlib
import re
import sys
import types
import unittest.mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_rs_here import need_keras_rs

from tf_dynemb.compat import one_embedding, sok, tfra, torchrec

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "migrating.md"


def module(name, **names):
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


# What stands for the libraries, and what their programs take as given.
FLOW = {"one_embedding": one_embedding, "float": tf.float32, "int64": tf.int64}
LIBRARIES = {
    "TFRA": (
        {"tensorflow_recommenders_addons": module("tfra", dynamic_embedding=tfra)},
        {"tf": tf, "ids": tf.constant([3, 2**40, -7], tf.int64)},
    ),
    "TorchRec": ({"torch": module("torch", tensor=tf.constant), "torchrec": torchrec}, {}),
    "SOK": (
        {"sparse_operation_kit": sok},
        {
            "tf": tf,
            **{"max_vocabulary_size_per_gpu": 1000, "embedding_vec_size": 8},
            **{"slot_num": 2, "nnz_per_slot": 1},
            "dataset": [(tf.constant([[[7], [2**40]], [[8], [7]]], tf.int64), tf.zeros([2]))],
        },
    ),
    "OneEmbedding": ({"oneflow": module("oneflow", **FLOW)}, {}),
    "keras-rs": ({}, {"keras": keras}),  # test_keras_rs has its modules
}


def program_of(library):
    """The first block of a library's section, which is in its own words."""
    section = re.split(rf"^## {library}\n", PAGE.read_text(), flags=re.MULTILINE)[1]
    program = re.search(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[1]
    if library == "OneEmbedding":  # PyTorch's loop is TensorFlow's, as the page says
        program = program.split("optimizer =")[0]
    return program


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run_program(library):
        modules, names = LIBRARIES[library]
        path = tmp_path / "program.py"  # a file, so that tf.function finds its source
        path.write_text(program_of(library))
        names = {"__name__": "program", **names}
        with unittest.mock.patch.dict(sys.modules, modules):
            exec(compile(path.read_text(), str(path), "exec"), names)
        return names

    return run_program


def test_the_page_has_a_program_of_each():
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) == list(LIBRARIES)


def test_tfra(run):
    names = run("TFRA")
    table, ids = names["params"], names["ids"]
    assert int(table.size()) == 3
    momentum, _ = table.get_slot_variables(names["optimizer"])
    # The gradient of each number is 1/3 in each of ten steps.
    np.testing.assert_allclose(momentum.lookup(ids), np.full([3, 4], (1 - 0.9**10) / 3), rtol=1e-5)


def test_torchrec(run, capsys):
    names = run("TorchRec")
    assert capsys.readouterr().out == "(2, 64)\n"
    table = names["ebc"].tables["product_table"]
    bags = names["ebc"](names["features"]).to_dict()["product"]
    rows = table.lookup(tf.constant([1, 2, 5], tf.int64)).numpy()
    np.testing.assert_allclose(bags, [2 * rows[0] + rows[1], rows[2]], rtol=1e-6)


def test_sok(run):
    names = run("SOK")
    (inputs, _) = names["dataset"][0]
    vectors = names["emb_layer"](inputs).numpy()
    assert vectors.shape == (2, 2, 1, 8) and np.abs(vectors).max() <= 0.05
    np.testing.assert_array_equal(vectors[0, 0], vectors[1, 1])  # key 7


def test_one_embedding(run):
    embedding = run("OneEmbedding")["embedding"]
    vectors = embedding(tf.constant([3, 2**40], tf.int64)).numpy()
    assert vectors.shape == (2, 16) and 0.05 < np.abs(vectors).max() <= 0.1


def test_keras_rs(run, capsys, monkeypatch):
    need_keras_rs()
    keras_rs = importlib.import_module("tf_dynemb.compat.keras_rs")
    monkeypatch.setitem(LIBRARIES["keras-rs"][0], "keras_rs", module("keras_rs", layers=keras_rs))
    monkeypatch.setitem(LIBRARIES["keras-rs"][0], "keras_rs.layers", keras_rs)
    names = run("keras-rs")
    assert capsys.readouterr().out == "(2, 16)\n"
    layer, ids = names["layer"], tf.constant([[1, 2, 3], [4, 5, 6]])
    vectors = layer({"seen": ids})["seen"]
    (table,) = layer.tables.values()
    want = tf.reduce_mean(table.lookup(tf.cast(ids, tf.int64)), 1)
    np.testing.assert_allclose(vectors, want, rtol=1e-6)
