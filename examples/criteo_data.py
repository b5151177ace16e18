"""Criteo's click logs, read from files or made up, as batches of tensors.

A line is a label (1: clicked), 13 counts I1..I13 and 26 ids C1..C26 of 8 hex digits; a field may be
empty. An example of a batch of n is

    numbers  float32 (n, 13)  log(1 + count), and 0 where the count is missing or negative
    ids      int64 (n, 26)    the hex digits as a number below 2^32, MISSING where there are none
    label    float32 (n,)

Nothing is hashed and nobody lists ids in advance. Every HOLDOUT-th line of a file is held out from
training. What is done with the batches is in dlrm_criteo.py.
"""

from __future__ import annotations

import gzip
import pathlib
import re

import numpy as np
import tensorflow as tf

NUMBERS = [f"I{i}" for i in range(1, 14)]
IDS = [f"C{i}" for i in range(1, 27)]
COLUMNS = ["label", *NUMBERS, *IDS]
MISSING = -1

HOLDOUT = 10
BLOCK = 1024  # lines that are parsed at once, by one thread
SHUFFLE = 65_536  # examples in memory, of which the next one is drawn

# Distinct ids of each feature in the training set of the Kaggle challenge, 33,762,565 in all: the row
# "unique" of https://github.com/facebookresearch/dlrm/issues/233
CARDINALITIES = np.array([
    1460, 583, 10131226, 2202607, 305, 23, 12517, 633, 3, 93145, 5683, 8351592, 3194,
    27, 14992, 5461305, 10, 5652, 2172, 3, 7046546, 17, 15, 286180, 104, 142571,
])  # fmt: skip

# The share of lines in which a feature is empty, where it ever is: of the 200 lines of DeepCTR's sample,
# https://github.com/shenweichen/DeepCTR/blob/master/examples/criteo_sample.txt
EMPTY = {"C3": 0.045, "C4": 0.045, "C6": 0.16, "C12": 0.045, "C16": 0.045, "C19": 0.41, "C20": 0.41,
         "C21": 0.045, "C22": 0.795, "C24": 0.045, "C25": 0.41, "C26": 0.41}  # fmt: skip


def batches(source: Files | Synthetic, batch: int, *, held_out=False, shuffle=None) -> tf.data.Dataset:
    """Batches ({"numbers": ..., "ids": ...}, label) as above; the last may be smaller.

    Args:
        source: where lines come from.
        batch: examples per batch.
        held_out: gives the examples that are held out, instead of all others.
        shuffle: an integer; examples are shuffled, in an order that depends on it and nothing else.
            None keeps the order of the lines.
    """

    def examples(line, label, counts, ids):
        wanted = tf.equal(line % HOLDOUT == 0, held_out)
        label, counts, ids = (tf.boolean_mask(part, wanted) for part in (label, counts, ids))
        return {"numbers": tf.math.log1p(tf.maximum(counts, 0)), "ids": ids}, label

    data = source.blocks().map(examples, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    if shuffle is not None:
        data = data.shuffle(SHUFFLE, seed=shuffle, reshuffle_each_iteration=False)
    data = data.batch(batch, num_parallel_calls=tf.data.AUTOTUNE)
    if isinstance(source, Synthetic):
        number = source.rows // HOLDOUT if held_out else source.rows - source.rows // HOLDOUT
        data = data.apply(tf.data.experimental.assert_cardinality(-(-number // batch)))
    return data.prefetch(tf.data.AUTOTUNE)


# --- files -------------------------------------------------------------------------------------------


class Files:
    """Lines of Criteo's .txt and .tsv files, without header, or of .csv files with one; .gz or not.

    Args:
        paths: of files, all with tabs or all .csv. Lines of several files come in turns.

    Raises:
        ValueError: for paths that are no files, of both kinds, or a .csv without the right header.
    """

    def __init__(self, paths: list[str]):
        kinds = {pathlib.Path(path.removesuffix(".gz")).suffix == ".csv" for path in paths}
        if len(kinds) != 1:
            raise ValueError(f"got {paths}, want one file or more, all .csv or none of them")
        self.paths = paths
        self.has_header = kinds.pop()
        self.separator = "," if self.has_header else "\t"
        for path in paths:
            if not pathlib.Path(path).is_file():
                raise ValueError(f"{path}: there is no such file")
            if self.has_header:
                _check_header(path)

    def __str__(self):
        return ", ".join(self.paths)

    def blocks(self) -> tf.data.Dataset:
        """Line numbers int64 (n,), labels, counts and ids of up to BLOCK lines of one file.

        Iterating raises tf.errors.InvalidArgumentError at the first bad line; `complaint` reads it.
        """
        return (
            tf.data.Dataset.from_tensor_slices(self.paths)
            .interleave(self._lines, min(len(self.paths), 8), num_parallel_calls=tf.data.AUTOTUNE)
            .map(self._parse, num_parallel_calls=tf.data.AUTOTUNE)
        )

    def _lines(self, path):
        kind = tf.where(tf.strings.regex_full_match(path, r".*\.gz"), "GZIP", "")
        lines = tf.data.TextLineDataset(path, compression_type=kind).enumerate(1)
        blocks = lines.skip(1 if self.has_header else 0).batch(BLOCK)
        return blocks.map(lambda line, text: (path, line, text))

    def _parse(self, path, line, text):
        """The fields of n lines: line, label (n,), counts (n, 13), 0 where missing, ids (n, 26)."""
        good = tf.strings.regex_full_match(text, _line_pattern(self.separator))

        def place_and_reason():
            number = _first(tf.strings.as_string(line), good)
            return tf.strings.join([path, ", line ", number, ": ", self._reason(_first(text, good))])

        bad = tf.cond(tf.reduce_all(good), lambda: "", place_and_reason)
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(bad, ""), [bad])]):
            text = tf.identity(text)
        fields = tf.reshape(tf.strings.split(text, self.separator).values, [-1, len(COLUMNS)])
        label, counts, ids = tf.split(fields, [1, len(NUMBERS), len(IDS)], axis=1)
        counts = tf.where(tf.equal(counts, ""), "0", counts)
        return line, tf.strings.to_number(label[:, 0]), tf.strings.to_number(counts), from_hex(ids)

    def _reason(self, text):
        """What is wrong with a bad line."""
        fields = tf.strings.split(text, self.separator)
        number = tf.size(fields)

        def bad_field():
            parts = tf.split(fields, [1, len(NUMBERS), len(IDS)])
            patterns = [_LABEL, f"({_COUNT})?", f"({_ID})?"]
            good = tf.concat(list(map(tf.strings.regex_full_match, parts, patterns)), axis=0)
            want = ["0 or 1"] + ["an integer"] * len(NUMBERS) + ["8 hex digits"] * len(IDS)
            got = ["got '", _first(fields, good), "' as ", _first(COLUMNS, good)]
            return tf.strings.join([*got, ", want ", _first(want, good)])

        def bad_number():
            return tf.strings.join(
                ["got ", tf.strings.as_string(number), f" fields, want {len(COLUMNS)}"]
            )

        return tf.cond(tf.equal(number, len(COLUMNS)), bad_field, bad_number)


_LABEL, _COUNT, _ID = "[01]", r"-?[0-9]+(\.0*)?", "[0-9a-fA-F]{8}"  # DeepCTR's counts are 260.0


def _line_pattern(separator: str) -> str:
    """What a whole line must match: after that no field can fail."""
    return f"{_LABEL}({separator}({_COUNT})?){{13}}({separator}({_ID})?){{26}}"


def _first(values, good):
    """The first of values (n,) that is not good, (n,) bool."""
    return tf.gather(values, tf.argmin(tf.cast(good, tf.int32)))


def _check_header(path: str) -> None:
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        header = file.readline().strip()
    if header != ",".join(COLUMNS):
        raise ValueError(f"{path}, line 1: got {header[:60]!r}..., want the columns label,I1,...,C26")


def complaint(error: tf.errors.InvalidArgumentError) -> str | None:
    """What was wrong with a line: file, number, field; None if the error is about something else."""
    found = re.search(r"assertion failed: \[(.*, line \d+: .*)\]", str(error))
    # TensorFlow prints strings as C does: quotes and what is not ASCII with backslashes.
    return found and found.group(1).encode().decode("unicode_escape").encode("latin-1").decode()


def from_hex(texts: tf.Tensor) -> tf.Tensor:
    """Texts (...) of 8 hex digits each as int64, MISSING where a text is empty."""
    missing = tf.equal(texts, "")
    letters = tf.io.decode_raw(tf.where(missing, "00000000", texts), tf.uint8)  # (..., 8)
    digits = tf.gather(tf.constant(_DIGITS), tf.cast(letters, tf.int32))
    powers = tf.constant([16**i for i in range(7, -1, -1)], tf.int64)
    return tf.where(missing, tf.constant(MISSING, tf.int64), tf.reduce_sum(digits * powers, axis=-1))


_DIGITS = np.zeros(256, np.int64)  # what each letter of ASCII counts
for _digit in "0123456789abcdefABCDEF":
    _DIGITS[ord(_digit)] = int(_digit, 16)


# --- made up -----------------------------------------------------------------------------------------


class Synthetic:
    """Made-up lines: ids as skewed and as many as Criteo's, and clicks that a model can learn.

    Of the c ids of a feature, the one of rank r has probability log(1 + 1/r) / log(c + 1): Zipf's law
    with exponent 1, integrated from r to r + 1. A click has the log-odds

        BIAS + 0.5 * sum of the effects of the line's ids + 0.3 * sum of weight * log(1 + count)

    where effects, in [-1, 1), and weights are fixed numbers without meaning. Line i depends on (seed, i)
    alone, so that fewer lines are the first of more.

    Args:
        rows: how many lines.
        seed: an integer.
    """

    def __init__(self, rows: int, seed: int = 0):
        self.rows, self.seed = rows, seed

    def __str__(self):
        return f"{self.rows:,} made-up lines"

    def blocks(self) -> tf.data.Dataset:
        """As Files.blocks."""
        numbers = tf.data.Dataset.range(-(-self.rows // BLOCK))
        return numbers.map(self._block, num_parallel_calls=tf.data.AUTOTUNE)

    def _block(self, number):
        draws = iter(range(4))

        def uniform(width):
            seed = tf.stack([tf.constant(self.seed, tf.int64), number * 4 + next(draws)])
            return tf.random.stateless_uniform((BLOCK, width), seed, dtype=tf.float64)

        cardinalities = tf.constant(CARDINALITIES, tf.float64)
        ranks = tf.minimum(tf.floor((cardinalities + 1) ** uniform(len(IDS))), cardinalities)
        empty = uniform(len(IDS)) < tf.constant([EMPTY.get(name, 0.0) for name in IDS], tf.float64)
        ids = tf.where(empty, tf.constant(MISSING, tf.int64), _scatter(tf.cast(ranks, tf.int64)))

        # Of counts, most are small and some are large; half of the logarithms are 0 (log-logistic).
        chance = uniform(len(NUMBERS))
        counts = tf.floor(tf.minimum(chance / (1 - chance), 1e6) * 2 - 1)
        counts = tf.cast(tf.maximum(counts, 0), tf.float32)

        click = uniform(1)[:, 0] < tf.sigmoid(tf.cast(self._log_odds(ids, counts), tf.float64))
        line = number * BLOCK + tf.range(1, BLOCK + 1, dtype=tf.int64)
        rows = tf.minimum(self.rows - number * BLOCK, BLOCK)  # the last block may be cut
        return tuple(part[:rows] for part in (line, tf.cast(click, tf.float32), counts, ids))

    @staticmethod
    def _log_odds(ids, counts):
        """(n,) of ids (n, 26) and counts (n, 13): the hidden model."""
        effects = tf.cast((ids * 0x85EBCA6B) & 0xFFFFFFFF, tf.float32) / 2**31 - 1
        effects = tf.where(tf.equal(ids, MISSING), 0.0, effects)
        weights = tf.constant(np.cos(np.arange(len(NUMBERS))), tf.float32)
        return (
            BIAS
            + 0.5 * tf.reduce_sum(effects, axis=1)
            + 0.3 * tf.linalg.matvec(tf.math.log1p(counts), weights)
        )


BIAS = -1.9  # so that about a quarter are clicks, as in Criteo's


def _scatter(ranks: tf.Tensor) -> tf.Tensor:
    """Ids below 2^32 of ranks (n, 26), without order; one to one in a feature, for the factor is odd."""
    offsets = tf.range(len(IDS), dtype=tf.int64) * 0x9E3779B9
    return (ranks * 0x9E3779B1 + offsets) & 0xFFFFFFFF
