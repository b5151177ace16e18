"""The Criteo example: its reader beside Python's csv, models beside NumPy, made-up lines, resuming."""

import csv
import gzip
import importlib.util
import os
import pathlib
import random
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_rs_here import need_keras_rs
from table_rows import rows_of

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

need_keras_rs()

import criteo_data  # noqa: E402
import dlrm_criteo  # noqa: E402

SAMPLE = ROOT.parent / "shared" / "data" / "criteo-sample" / "criteo_200.csv"
SMALL = ["--bottom=16", "--top=16", "--dim=4", "--quiet"]


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """DeepCTR's sample where it lies beside the checkout, or else 200 lines like it."""
    if SAMPLE.exists():
        return str(SAMPLE)
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("criteo") / "criteo_200.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(criteo_data.COLUMNS)
        for _ in range(200):
            counts = [draw.choice(["", "-1.0", f"{draw.randrange(10**5)}.0"]) for _ in range(13)]
            ids = [draw.choice(["", f"{draw.randrange(2**32):08x}"]) for _ in range(26)]
            writer.writerow([draw.randrange(2), *counts, *ids])
    return str(path)


@pytest.fixture(scope="module")
def rows(sample):
    """The sample's fields, without its header, as Python reads them."""
    with open(sample, newline="") as file:
        return list(csv.reader(file))[1:]


def as_numbers(rows):
    """Labels, counts and ids of the fields of lines, by Python's own int and float."""
    labels = [float(row[0]) for row in rows]
    counts = [[float(field or 0) for field in row[1:14]] for row in rows]
    ids = [[int(field, 16) if field else -1 for field in row[14:]] for row in rows]
    return labels, counts, ids


def write(path, rows, separator="\t"):
    text = "".join(separator.join(row) + "\n" for row in rows)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        file.write(text)
    return str(path)


def blocks(source):
    """Line numbers, labels, counts and ids of all blocks, as lists."""
    parts = [[part.tolist() for part in block] for block in source.blocks().as_numpy_iterator()]
    return tuple(sum(column, []) for column in zip(*parts, strict=True))


def everything(source, **arguments):
    """All examples of a source as lists of (label, numbers, ids)."""
    found = []
    for inputs, label in criteo_data.batches(source, 64, **arguments).as_numpy_iterator():
        assert len(label) <= 64
        columns = label.tolist(), inputs["numbers"].tolist(), inputs["ids"].tolist()
        found += zip(*columns, strict=True)
    return found


# --- reading -----------------------------------------------------------------------------------------


def test_every_row_of_the_sample_is_what_csv_reads(sample, rows):
    assert len(rows) == 200
    line, *fields = blocks(criteo_data.Files([sample]))
    assert line == list(range(2, 202))
    assert tuple(fields) == as_numbers(rows)


@pytest.mark.parametrize("names", [["train.txt"], ["day_0.gz"], ["day_0", "day_1.gz", "day_2.tsv"]])
def test_the_same_rows_with_tabs_in_one_file_or_several(names, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(criteo_data, "BLOCK", 32)  # many blocks, and the last is not full
    parts = [rows[i :: len(names)] for i in range(len(names))]
    paths = [write(tmp_path / name, part) for name, part in zip(names, parts, strict=True)]
    line, *fields = blocks(criteo_data.Files(paths))
    assert sorted(line) == sorted(i + 1 for part in parts for i in range(len(part)))
    got = sorted(zip(*fields, strict=True))
    assert got == sorted(zip(*as_numbers(rows), strict=True))


def test_what_fields_can_be(tmp_path):
    ids = ["00000000", "ffffffff", "FFFFFFFF", "0123abcd", ""] + [""] * 21
    counts = ["", "0", "-1", "7", "7.0", "-3.00", "12345678", "5."] + [""] * 5
    path = write(tmp_path / "a.tsv", [["1", *counts, *ids], ["0", *[""] * 39]])
    assert blocks(criteo_data.Files([path])) == (
        [1, 2],
        [1.0, 0.0],
        [[0, 0, -1, 7, 7, -3, 12345678, 5] + [0] * 5, [0] * 13],
        [[0, 2**32 - 1, 2**32 - 1, 0x0123ABCD] + [-1] * 22, [-1] * 26],
    )


def test_numbers_are_logarithms_of_counts(sample, rows):
    _, counts, ids = as_numbers(rows)
    got = everything(criteo_data.Files([sample]))
    want = [i for i in range(200) if (i + 2) % criteo_data.HOLDOUT]
    assert [example[2] for example in got] == [ids[i] for i in want]
    # float32, by another logarithm
    np.testing.assert_allclose(
        [example[1] for example in got], np.log1p(np.maximum([counts[i] for i in want], 0)), rtol=1e-6
    )


GOOD = ["0", *["1"] * 13, *["0a1b2c3d"] * 26]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row[:-1], "got 39 fields, want 40"),
        (lambda row: [*row, ""], "got 41 fields, want 40"),
        (lambda row: [], "got 1 fields, want 40"),
        (lambda row: ["2", *row[1:]], "got '2' as label, want 0 or 1"),
        (lambda row: ["", *row[1:]], "got '' as label, want 0 or 1"),
        (lambda row: [*row[:5], "1e3", *row[6:]], "got '1e3' as I5, want an integer"),
        (lambda row: [*row[:13], "1.5", *row[14:]], "got '1.5' as I13, want an integer"),
        (lambda row: [*row[:14], "0a1b2c3", *row[15:]], "got '0a1b2c3' as C1, want 8 hex digits"),
        (lambda row: [*row[:39], "0a1b2c3g"], "got '0a1b2c3g' as C26, want 8 hex digits"),
        (lambda row: [*row[:14], "0a1b2c3", *row[15:39], "x"], "got '0a1b2c3' as C1"),
        (lambda row: ["é\\", *row[1:]], "got 'é\\' as label, want 0 or 1"),
    ],
)
def test_a_bad_line_is_refused_by_file_line_and_field(change, message, tmp_path):
    good = write(tmp_path / "good.txt", [GOOD] * 3)
    bad = write(tmp_path / "bäd.txt", [GOOD] * 5 + [change(GOOD)] + [GOOD, change(GOOD)])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        everything(criteo_data.Files([good, bad]))
    assert criteo_data.complaint(error.value).startswith(f"{bad}, line 6: {message}")


def test_a_csv_is_counted_with_its_header(tmp_path):
    path = write(tmp_path / "a.csv", [criteo_data.COLUMNS, GOOD, GOOD[:-1]], ",")
    with pytest.raises(SystemExit, match="^[^ ]*a.csv, line 3: got 39 fields, want 40$"):
        dlrm_criteo.main([path, *SMALL])


def test_other_errors_are_no_complaints_about_lines():
    error = tf.errors.InvalidArgumentError(None, None, "assertion failed: [x] [y]")
    assert criteo_data.complaint(error) is None


def test_bad_paths(tmp_path):
    csv_file = write(tmp_path / "a.csv", [criteo_data.COLUMNS], ",")
    headless = write(tmp_path / "b.csv.gz", [GOOD], ",")
    tsv_file = write(tmp_path / "a.tsv", [GOOD])
    for paths, message in (
        ([], "want one file or more"),
        ([csv_file, tsv_file], "all .csv or none of them"),
        ([headless], "b.csv.gz, line 1: got '0,1,1.*want the columns label,I1,...,C26"),
        ([str(tmp_path / "c.tsv")], "c.tsv: there is no such file"),
        ([str(tmp_path)], "there is no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            criteo_data.Files(paths)


# --- the pipeline ------------------------------------------------------------------------------------


def test_the_order_depends_on_the_number_that_is_given(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(criteo_data, "BLOCK", 16)
    parts = (rows[:70], rows[70:130], rows[130:])
    source = criteo_data.Files([write(tmp_path / f"{i}.tsv", part) for i, part in enumerate(parts)])
    plain, one, two = (everything(source, shuffle=seed) for seed in (None, 1, 2))
    assert everything(source) == plain
    assert everything(source, shuffle=1) == one
    assert one != two
    assert sorted(one) == sorted(two) == sorted(plain)


def test_every_tenth_line_is_held_out_and_the_others_are_trained_on(sample, rows):
    ids = as_numbers(rows)[2]
    source = criteo_data.Files([sample])
    trained, held_out = everything(source, shuffle=1), everything(source, held_out=True)
    assert [example[2] for example in held_out] == ids[8::10]  # lines 10, 20, ...; line 1 is the header
    assert sorted(example[2] for example in trained + held_out) == sorted(ids)


# --- made-up lines -----------------------------------------------------------------------------------


def test_made_up_ids_are_as_many_and_as_skewed_as_stated():
    """Zipf's law in the stated form; every frequency within 6 standard deviations."""
    lines = 40_000
    _, _, _, ids = (np.array(part) for part in blocks(criteo_data.Synthetic(lines, seed=3)))
    assert ids.shape == (lines, 26)
    logarithms = np.log1p(1 / np.arange(1, max(criteo_data.CARDINALITIES) + 1))
    for name, cardinality, column in zip(criteo_data.IDS, criteo_data.CARDINALITIES, ids.T, strict=True):
        present = column[column != criteo_data.MISSING]
        share = criteo_data.EMPTY.get(name, 0.0)
        assert abs(lines - len(present) - lines * share) <= 6 * np.sqrt(lines * share * (1 - share))
        assert present.min() >= 0 and present.max() < 2**32
        chance = logarithms[:cardinality] / np.log(cardinality + 1)
        assert chance.sum() == pytest.approx(1)
        distinct, counts = np.unique(present, return_counts=True)
        expected = -np.expm1(-len(present) * chance).sum()  # as if each rank were drawn a Poisson number
        assert len(distinct) <= cardinality
        assert abs(len(distinct) - expected) <= 6 * np.sqrt(expected)
        most = np.sort(counts)[::-1][:5]
        mean = len(present) * chance[: len(most)]
        assert (abs(most - mean) <= 6 * np.sqrt(mean * (1 - chance[: len(most)]))).all(), name


def test_fewer_made_up_lines_are_the_first_of_more():
    few, more, other = (
        blocks(criteo_data.Synthetic(lines, seed)) for lines, seed in ((1500, 1), (3000, 1), (1500, 2))
    )
    assert [len(part) for part in more] == [3000] * 4
    assert few == tuple(part[:1500] for part in more)
    assert few[0] == other[0] == list(range(1, 1501))
    assert few[3] != other[3]


def test_clicks_that_are_made_up_can_be_learned():
    source = criteo_data.Synthetic(30_000)
    _, clicks, _, _ = blocks(source)
    assert 0.2 < np.mean(clicks) < 0.3
    model = dlrm_criteo.make_model(dim=4, bottom=[16], top=[16])
    held_out = criteo_data.batches(source, 500, held_out=True)
    auc = [model.evaluate(held_out, verbose=0, return_dict=True)["auc"]]
    for epoch in range(4):  # enough for whatever seeds
        model.fit(criteo_data.batches(source, 500, shuffle=epoch), shuffle=False, verbose=0)
        auc.append(model.evaluate(held_out, verbose=0, return_dict=True)["auc"])
    assert auc[0] < 0.55 < 0.62 < auc[-1]


# --- models ------------------------------------------------------------------------------------------


def in_numpy(model, interaction, numbers, ids):
    """The model's log-odds (n,) by NumPy, of its weights and rows: formulas of the papers, in double."""

    def mlp(x, layers):
        for layer in layers:
            x = x @ np.float64(layer.kernel) + np.float64(layer.bias)
            x = np.maximum(x, 0) if layer.activation is keras.activations.relu else x
        return x

    vectors = [mlp(numbers, model.bottom.layers)]
    for table, column in zip(model.tables().values(), ids.T, strict=True):
        vectors.append(np.where(column[:, None] == -1, 0.0, table.lookup(tf.constant(column)).numpy()))
    if interaction == "dot":
        pairs = [(vectors[i] * vectors[j]).sum(axis=1) for i in range(27) for j in range(i)]
        return mlp(np.column_stack([vectors[0], *pairs]), model.top.layers)[:, 0]
    x = x0 = np.column_stack(vectors)
    for cross in model.crosses:
        x = x0 * (x @ np.float64(cross.dense.kernel) + np.float64(cross.dense.bias)) + x
    return mlp(x, model.top.layers)[:, 0]


def auc_of(clicks, scores):
    above = np.subtract.outer(scores[clicks == 1], scores[clicks == 0])
    return np.mean((above > 0) + 0.5 * (above == 0))


@pytest.mark.parametrize("interaction", ["dot", "cross"])
def test_a_model_learns_the_sample_by_heart_and_is_what_the_papers_say(interaction, sample):
    source = criteo_data.Files([sample])
    data = criteo_data.batches(source, 200).concatenate(criteo_data.batches(source, 200, held_out=True))
    model = dlrm_criteo.make_model(
        "adam", 0.01, dim=4, interaction=interaction, shards=2, bottom=[16], top=[16]
    )
    losses = model.fit(data.cache(), epochs=40, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    inputs, clicks = next(data.unbatch().batch(200).as_numpy_iterator())
    scores = in_numpy(model, interaction, inputs["numbers"], inputs["ids"])
    assert auc_of(clicks, scores) > 0.99
    # Sums of some hundred float32 numbers, beside double.
    np.testing.assert_allclose(model.predict_on_batch(inputs)[:, 0], scores, rtol=1e-4, atol=1e-4)
    for table, column in zip(model.tables().values(), inputs["ids"].T, strict=True):
        assert set(rows_of(table)) == set(column.tolist()) - {criteo_data.MISSING}


# --- the program -------------------------------------------------------------------------------------


def state_of(model):
    """All that training changes: rows with their slots, weights, the optimizer's variables.

    Equal to the bit in equal runs: the models are so small that no sum is divided over threads.
    """
    dense = [variable.numpy().tolist() for variable in model.weights + model.optimizer.variables]
    return {name: rows_of(table) for name, table in model.tables().items()}, dense


@pytest.fixture(scope="module")
def run(sample):
    """A training of three epochs of 12 steps, the last of them smaller."""
    return [sample, *SMALL, "--batch", "16", "--epochs", "3", "--seed", "5", "--optimizer", "adam"]


@pytest.fixture(scope="module")
def uninterrupted(run):
    return state_of(dlrm_criteo.main(run))


class Crash(Exception):
    pass


def test_a_training_that_crashed_goes_on(run, uninterrupted, tmp_path, monkeypatch):
    folder = ["--checkpoints", str(tmp_path)]

    def crash(self, batch, logs=None):
        on_train_batch_end(self, batch, logs)
        if self.step == 19:  # the latest checkpoint is within the second epoch
            raise Crash

    with monkeypatch.context() as patch:
        on_train_batch_end = dlrm_criteo.Progress.on_train_batch_end
        patch.setattr(dlrm_criteo.Progress, "on_train_batch_end", crash)
        with pytest.raises(Crash):
            dlrm_criteo.main([*run, *folder, "--save-every", "4"])
    assert state_of(dlrm_criteo.main([*run, *folder, "--resume"])) == uninterrupted
    # Once more there is nothing to do.
    assert state_of(dlrm_criteo.main([*run, *folder, "--resume"])) == uninterrupted


def test_a_training_that_was_stopped_goes_on_with_other_shards(run, uninterrupted, tmp_path):
    folder = ["--checkpoints", str(tmp_path)]
    # First within an epoch, then at the end of one.
    stopped = dlrm_criteo.main([*run, *folder, "--steps", "7"])
    assert int(stopped.optimizer.iterations) == 7
    stopped = dlrm_criteo.main([*run, *folder, "--resume", "--steps", "24", "--shards", "3"])
    assert int(stopped.optimizer.iterations) == 24
    assert state_of(stopped) != uninterrupted
    assert state_of(dlrm_criteo.main([*run, *folder, "--resume"])) == uninterrupted


def test_bad_command_lines(sample, tmp_path, monkeypatch, capsys):
    full, empty = tmp_path / "full", tmp_path / "empty"
    dlrm_criteo.main([sample, *SMALL, "--steps", "1", "--checkpoints", str(full)])
    find_spec = importlib.util.find_spec
    without = lambda name, *rest: None if name == "tensorboard" else find_spec(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    for flags, message in (
        ([], "give files, or --synthetic LINES"),
        ([sample, "--synthetic", "9"], "give files, or --synthetic LINES"),
        ([sample, "--batch", "0"], "--batch: got 0, want a number from 1 on"),
        ([sample, "--interaction", "sum"], "invalid choice: 'sum'"),
        ([str(tmp_path / "none.csv")], "none.csv: there is no such file"),
        ([sample, "--resume"], "need --checkpoints FOLDER"),
        ([sample, "--save-every", "3"], "need --checkpoints FOLDER"),
        ([sample, "--resume", "--checkpoints", str(empty)], "there is no checkpoint in"),
        (
            [sample, "--checkpoints", str(full)],
            "checkpoints are in .*full: --resume, or take another",
        ),
        (
            [sample, *SMALL, "--dim", "8", "--resume", "--checkpoints", str(full)],
            "--resume: got dim 8, but it was 4 before",
        ),
        ([sample, "--logdir", str(empty)], "--logdir needs TensorBoard: pip install tensorboard"),
    ):
        with pytest.raises(SystemExit) as error:
            dlrm_criteo.main(flags)
        said = str(error.value) if isinstance(error.value.code, str) else capsys.readouterr().err
        assert re.search(message, said), said
    assert not empty.exists()


def test_of_few_lines_nothing_is_held_out(tmp_path, capsys):
    path = write(tmp_path / "few.tsv", [GOOD] * (criteo_data.HOLDOUT - 1))
    dlrm_criteo.main([path, *SMALL])
    said = capsys.readouterr().out
    assert "held out: nothing of fewer than 10 lines\ntrained 1 steps, " in said
    assert "\n26 rows in 26 tables, " in said


def test_from_end_to_end(sample, rows, tmp_path):
    """Trains in one process, and goes on in another."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    trained = [row for number, row in enumerate(rows, 2) if number % criteo_data.HOLDOUT]
    distinct = sum(len({row[i] for row in trained} - {""}) for i in range(14, 40))
    for flags in (["--epochs", "1"], ["--epochs", "2", "--resume"]):
        run = subprocess.run(
            [
                *(sys.executable, EXAMPLES / "dlrm_criteo.py", sample, "--interaction", "cross"),
                *("--batch", "32", "--checkpoints", tmp_path, *SMALL, *flags),
            ],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert run.returncode == 0, run.stderr
        steps = 6 * int(flags[1])
        assert f"dcn on {sample}, from step {steps - 6}" in run.stdout
        assert re.search(r"held out: AUC 0\.\d{4}, log loss \d\.\d{4}\n", run.stdout)
        assert f"trained {steps} steps, " in run.stdout
        assert f"\n{distinct:,} rows in 26 tables, " in run.stdout
