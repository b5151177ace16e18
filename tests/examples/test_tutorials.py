"""The ports of TorchRec's tutorial and of OneEmbedding's quick start print what is printed there."""

import contextlib
import io
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import torchrec_tutorial  # noqa: E402

# What the tutorial prints, by the word before it, and PyTorch's `tensor(...)` left out.
TABLE = str(torchrec_tutorial.WEIGHTS)
PRINTED = {
    "Weights:": TABLE,
    "Embedding Collection Table:": TABLE,
    "Embedding Bag Collection Table:": TABLE,
    "Input row IDS:": "[[1, 3]]",
    "Embedding Collection Results:": (
        "[[[0.1830, 0.0326, 0.8241, 0.2995], [0.7800, 0.1797, 0.0167, 0.7401]]]"
    ),
    "Embedding Bag Collection Results:": "[[0.4815, 0.1062, 0.4204, 0.5198]]",
    "Mean:": "[[0.4815, 0.1062, 0.4204, 0.5198]]",
    "First Batch:": "[5]",
    "Second Batch:": "[7, 1]",
    "List of Values:": "[[5], [7, 1]]",
    "Lengths:": "[3, 1, 2, 2]",
    "Values:": "[1, 2, 1, 5, 2, 3, 4, 1]",
}
SHAPES = {
    "Embedding Collection Results:": "(1, 2, 4)",
    "Embedding Bag Collection Results:": "(1, 4)",
}
TEXTS = {
    "the collection's tables": """
ModuleDict(
  (product_table): EmbeddingBag(4096, 64, mode='sum')
  (user_table): EmbeddingBag(4096, 64, mode='sum')
)
""",
    "a JaggedTensor": """
JaggedTensor({
    [[5], [7, 1]]
})
""",
    "a KeyedJaggedTensor": """
KeyedJaggedTensor({
    "product": [[1, 2, 1], [5]],
    "user": [[2, 3], [4, 1]]
})
""",
    "keys of the input": "\nKeys: ['product', 'user']\n",
    "keys of the dictionary": "\nto_dict: ['product', 'user']\n",
    "the result": """
['product', 'user']
(2, 128)
product (2, 64)
user (2, 64)
""",
}


@pytest.fixture(scope="module")
def output():
    """What the program prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        torchrec_tutorial.main()
    return "\n" + printed.getvalue()


def after(output: str, word: str) -> str:
    """What stands between a word and the next line that starts with one."""
    return re.split(r"\n(?! *[\[\d])", output.split(f"\n{word}", 1)[1])[0]


@pytest.mark.parametrize("word", PRINTED)
def test_numbers(output, word):
    got, want = (
        [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]
        for text in (after(output, word), PRINTED[word])
    )
    # The weights that the tutorial prints are rounded to four digits, as are their means.
    np.testing.assert_allclose(got, want, rtol=0, atol=1.01e-4)
    assert after(output, word).count("[") == PRINTED[word].count("[")


@pytest.mark.parametrize("word", SHAPES)
def test_shapes(output, word):
    assert f"\nShape: {SHAPES[word]}" in output.split(f"\n{word}", 1)[1][:120]


def test_offsets(output):
    """By hand without the first 0, of a JaggedTensor with it."""
    assert re.findall(r"\nOffsets: (.*)", output) == ["[1, 3]", "[0, 1, 3]"]


@pytest.mark.parametrize("what", TEXTS)
def test_texts(output, what):
    assert TEXTS[what] in output


def test_quick_start(tmp_path):
    """The loss, a sum that SGD makes smaller without end, falls; the program checks its snapshot."""
    import oneembedding_quickstart

    assert oneembedding_quickstart.plain_embedding().shape == (2, 4, 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "one_embedding store options")  # of a device, of blocks
        losses = oneembedding_quickstart.run(tmp_path)
    assert np.isfinite(losses).all() and losses[0] > losses[1]
