"""for_serving(follow=..., serve_while_loading=False): nothing is served while a full copy is loaded."""

import random
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from damaged_feeds import damage_full
from feed_models import IDS, export_following, go_on, make_model, wait_for
from process_memory import measured_environment
from side_by_side import wait_until

import tf_dynemb
from tf_dynemb.serving import Publisher, follower_status


def test_it_serves_from_the_first_copy_that_is_whole(tmp_path):
    """Its rows are freed before; a copy that is damaged leaves it without, until there is another."""
    model, draw, states = make_model(), random.Random(7), {}
    publisher = Publisher(model, tmp_path / "feed")
    go_on(model, publisher, draw, states)
    damage_full(tmp_path, 1)
    served = tf.saved_model.load(export_following(model, tmp_path, serve_while_loading=False))
    wait_until(lambda: follower_status(served).errors)
    with pytest.raises(tf.errors.FailedPreconditionError, match="serves nothing meanwhile .*checksum"):
        served.serve(IDS)
    assert follower_status(served).generation is None
    for number in range(2, 4):
        go_on(model, publisher, draw, states)
        wait_for(served, number)
        np.testing.assert_array_equal(served.serve(IDS), model(IDS))
    assert follower_status(served).full_copies == 1


def test_a_copy_that_fits_no_table_frees_no_row(tmp_path):
    model = make_model()
    served = tf.saved_model.load(export_following(model, tmp_path, serve_while_loading=False))
    want = served.serve(IDS)
    other = tf_dynemb.Variable(dim=7, name="users")
    with Publisher(other, tmp_path / "feed") as publisher:
        publisher.publish()
    wait_until(lambda: follower_status(served).errors)
    np.testing.assert_array_equal(served.serve(IDS), want)


MEASURED = """
import sys, time
import tensorflow as tf
import tf_dynemb
from process_memory import peak_mib, without_huge_pages

without_huge_pages()
served = tf.saved_model.load(sys.argv[1])
for generation in 1, 2:
    while tf_dynemb.serving.follower_status(served).generation != generation:
        time.sleep(0.01)
    print(peak_mib(), flush=True)
"""


def test_there_is_no_second_copy_of_a_table(tmp_path):
    """While a second full copy is loaded: by the peaks of processes with and without the option."""
    layer = tf_dynemb.keras.Embedding(64, name="table")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    options = {"beside": True, "in place": False}
    for name, option in options.items():
        export_following(model, tmp_path, name=name, serve_while_loading=option)
    rows = 400_000
    layer.table.upsert(tf.range(rows, dtype=tf.int64), tf.ones((rows, 64)))
    Publisher(model, tmp_path / "feed").publish()
    programs = {
        name: subprocess.Popen(
            [sys.executable, "-c", MEASURED, str(tmp_path / name)],
            env=measured_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in options
    }
    firsts = {name: float(program.stdout.readline()) for name, program in programs.items()}
    Publisher(model, tmp_path / "feed").publish()  # as of a trainer that was started anew
    grown = {}
    for name, program in programs.items():
        grown[name] = float(program.communicate(timeout=300)[0]) - firsts[name]
        assert program.returncode == 0
    copy_mib = rows * 64 * 4 / 2**20
    # What else a process holds varies by some MiB.
    assert grown["beside"] > 0.8 * copy_mib and grown["in place"] < 0.3 * copy_mib, grown
