"""A feed: what a publisher writes is what a follower serves; what is wrong is noticed and healed."""

import itertools
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from side_by_side import again_and_again, wait_until
from table_rows import int64, rows_of

import tf_dynemb
from tf_dynemb.serving import FeedError, FeedInUseError, Follower, Publisher
from tf_dynemb.serving.feed import Feed, Generation, Part, Weights
from tf_dynemb.serving.retention import first_to_keep

ROOT = pathlib.Path(__file__).parents[2]


def make_model(seed=0):
    """Two tables, one of them in two shards, and a dense layer."""
    keras.utils.set_random_seed(seed)
    users = tf_dynemb.keras.Embedding(3, initializer="uniform", name="users")
    items = tf_dynemb.keras.Embedding(2, devices=["/CPU:0"] * 2, initializer="normal", name="items")
    ids = keras.Input((), dtype="int64", name="ids")
    joined = keras.layers.Concatenate()([users(ids), items(ids)])
    model = keras.Model(ids, keras.layers.Dense(2, name="dense")(joined))
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


def tables_of(model):
    return [model.get_layer(name).table for name in ("users", "items")]


def change(model, draw):
    """Training, upserts and removals of random keys."""
    users, items = tables_of(model)
    keys = int64(draw.sample(range(80), draw.randint(1, 20)))
    kind = draw.choice(["train", "train", "upsert", "remove"])
    if kind == "train":
        model.train_on_batch(keys, np.ones((len(keys), 2), np.float32))
    elif kind == "upsert":
        users.upsert(keys, tf.random.normal((len(keys), 3)))
    else:
        items.remove(keys)


def values_of(model):
    """The values of all rows by table and key, and the dense weights, as bytes."""
    found = [{key: row[0] for key, row in rows_of(table).items()} for table in tables_of(model)]
    return found, [weight.numpy().tobytes() for weight in model.get_layer("dense").weights]


def export(model, path):
    with tf_dynemb.for_serving():
        model.export(path, verbose=False)
    return tf.saved_model.load(path)


def published(tmp_path, generations=3, **options):
    """A model, its publisher, and what the model was at each generation, from 1."""
    model, draw = make_model(), random.Random(7)
    publisher = Publisher(model, tmp_path / "feed", **options)
    states = {}
    for _ in range(generations):
        go_on(model, publisher, draw, states)
    return model, publisher, draw, states


def go_on(model, publisher, draw, states):
    for _ in range(4):
        change(model, draw)
    states[publisher.publish()] = values_of(model)


def manifest_of(tmp_path, number):
    return Feed(tmp_path / "feed").read(number)


@pytest.mark.parametrize("serve_while_loading", [True, False])
def test_a_follower_is_the_trainer_at_every_generation(serve_while_loading, tmp_path):
    model, publisher, draw, states = published(tmp_path, 0)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed", serve_while_loading=serve_while_loading)
    assert follower.poll().generation is None
    for _ in range(8):
        go_on(model, publisher, draw, states)
        status = follower.poll()
        assert status.generation == status.newest == publisher.generation
        assert values_of(other) == states[status.generation]
    assert (status.errors, status.full_copies, status.lag_generations) == (0, 1, 0)
    late = make_model(seed=2)
    assert Follower(late, tmp_path / "feed").poll().generation == 8
    assert values_of(late) == states[8]
    ids = int64(range(-50, 150))  # also ids without rows: the follower has the trainer's seed
    np.testing.assert_array_equal(late(ids), model(ids))


def test_a_feed_that_comes_later_is_no_error(tmp_path):
    model = make_model()
    follower = Follower(model, tmp_path / "feed")
    for _ in range(2):
        status = follower.poll()
        assert (status.generation, status.errors, status.last_error) == (None, 0, "")
    with follower.reading() as generation:
        assert generation is None
    _, _, _, states = published(tmp_path, 1)
    status = follower.poll()
    assert (status.generation, status.errors) == (1, 0) and values_of(model) == states[1]
    assert os.listdir(tmp_path / "feed" / "followers") == [follower.name]


@pytest.mark.parametrize("kind", ["export", "saved_model"])
def test_a_saved_model_that_was_loaded_follows(kind, tmp_path):
    model, publisher, draw, states = published(tmp_path, 1)
    if kind == "export":
        served = export(model, str(tmp_path / "model"))
        call = served.serve
    else:
        tf.saved_model.save(model, str(tmp_path / "model"))
        served = tf.saved_model.load(str(tmp_path / "model"))
        signature = served.signatures["serving_default"]
        call = lambda ids: next(iter(signature(inputs=ids).values()))  # noqa: E731
    follower = Follower(served, tmp_path / "feed")
    ids = int64(range(100))
    for _ in range(3):
        go_on(model, publisher, draw, states)
        assert follower.poll().generation == publisher.generation
        with follower.reading() as generation:
            assert generation == publisher.generation
            np.testing.assert_array_equal(call(ids), model(ids))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_narrow_values_are_those_of_an_export(dtype, tmp_path):
    model = make_model()
    with tf_dynemb.for_serving(dtype):
        model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    with Publisher(model, tmp_path / "feed", value_dtype=dtype) as publisher:
        draw = random.Random(3)
        for _ in range(3):
            change(model, draw)
            publisher.publish()
    follower = Follower(served, tmp_path / "feed")
    assert follower.poll().generation == 3 and follower.status.errors == 0
    with tf_dynemb.for_serving(dtype):
        model.export(str(tmp_path / "again"), verbose=False)
    ids = int64(range(100))
    again = tf.saved_model.load(str(tmp_path / "again"))
    np.testing.assert_array_equal(served.serve(ids), again.serve(ids))
    bytes_of = {"full": [], "delta": []}
    for number in (1, 3):
        generation = manifest_of(tmp_path, number)
        part = "full" if generation.delta is None else "delta"
        bytes_of[part].append(getattr(generation, part).file_bytes)
    assert all(bytes_of.values())


def test_a_value_that_is_too_large_is_an_error_and_then_published(tmp_path):
    table = tf_dynemb.Variable(dim=2, name="t")
    publisher = Publisher(table, tmp_path / "feed", value_dtype=tf.float16)
    publisher.publish()
    table.upsert(int64([1, 2]), [[1.0, 1e6], [2.0, 2.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="beyond those of float16; want a wider"):
        publisher.publish()
    table.upsert(int64([1]), [[1.0, 1.5]])
    assert publisher.publish() == 2
    with tf_dynemb.snapshot.open(delta_folder(tmp_path, 2)) as reader:
        assert sorted(key for rows in reader.rows() for key in rows.keys) == [1, 2]


def delta_folder(tmp_path, number):
    return str(tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "delta")


def test_a_delta_has_values_alone_and_little_more_than_their_bytes(tmp_path):
    table = tf_dynemb.Variable(dim=32, name="t")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    publisher = Publisher(table, tmp_path / "feed")
    publisher.publish()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, tf.range(5000, dtype=tf.int64)))
    optimizer.apply([tape.gradient(loss, table.handle)], [table.handle])
    publisher.publish()
    delta = manifest_of(tmp_path, 2).delta
    assert delta.rows == 5000 and delta.file_bytes <= 1.01 * 5000 * (8 + 4 * 32)
    with tf_dynemb.snapshot.open(delta_folder(tmp_path, 2)) as reader:
        assert reader.tables["t"].schema.slots == () or not reader.tables["t"].schema.slots


def test_strings_of_keys_go_along(tmp_path):
    def make():
        return tf_dynemb.Variable(dim=1, key_dtype="string", keep_keys=True, name="t")

    table, other = make(), make()
    publisher = Publisher(table, tmp_path / "feed", value_dtype=tf.bfloat16)
    narrow = tf_dynemb.Variable(
        dim=1, key_dtype="string", keep_keys=True, value_dtype=tf.bfloat16, name="t"
    )
    plain = Publisher(table, tmp_path / "plain")
    for keys in (["a", "b"], ["c"]):
        table.upsert(tf.constant(keys), tf.ones((len(keys), 1)))
        publisher.publish()
        plain.publish()
    for served, feed in ((other, "plain"), (narrow, "feed")):
        assert Follower(served, tmp_path / feed).poll().generation == 2
        assert sorted(served.export()[0].numpy()) == [b"a", b"b", b"c"]


def flip(path, at):
    """Flips a bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def damage_delta(tmp_path, number):
    flip(max(pathlib.Path(delta_folder(tmp_path, number)).glob("rows-*")), 60)


def remove_manifest(tmp_path, number):
    os.remove(tmp_path / "feed" / "generations" / f"{number:012}")


def damage_manifest(tmp_path, number):
    flip(tmp_path / "feed" / "generations" / f"{number:012}", 40)


def damage_weights(tmp_path, number):
    flip(tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "weights", 3)


def remove_data(tmp_path, number):
    shutil.rmtree(tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder)


def double(tmp_path, number):
    """The manifest of the generation before once more, as that of this one."""
    feed = Feed(tmp_path / "feed")
    before = feed.read(number - 1)
    feed.commit(type(before)(**vars(before) | {"number": number}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (damage_delta, "damaged|checksum"),
        (remove_manifest, "generation 3 is missing"),
        (damage_manifest, "checksum is wrong"),
        (damage_weights, "weights: its checksum is wrong"),
        (remove_data, "weights: it is missing"),
        (double, "generation 3 does not continue the generation 2 that is served"),
    ],
)
def test_what_is_wrong_with_a_generation_is_noticed_and_healed(harm, message, tmp_path):
    model, publisher, draw, states = published(tmp_path, 2)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    assert follower.poll().generation == 2
    go_on(model, publisher, draw, states)
    go_on(model, publisher, draw, states)
    harm(tmp_path, 3)
    status = follower.poll()
    assert status.generation == 2 and status.errors > 0 and status.lag_generations == 2
    assert status.lag_seconds >= 0
    assert values_of(other) == states[2]
    assert re.search(message, status.last_error), status.last_error
    # It has asked for a full copy.
    go_on(model, publisher, draw, states)
    assert manifest_of(tmp_path, 5).full is not None
    assert follower.poll().generation == 5
    assert values_of(other) == states[5]
    errors = follower.status.errors
    go_on(model, publisher, draw, states)
    assert manifest_of(tmp_path, 6).full is None
    assert follower.poll().generation == 6 and follower.status.errors == errors
    assert values_of(other) == states[6]


def test_rollback_and_pinning(tmp_path):
    model, publisher, draw, states = published(tmp_path, 5)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    assert follower.rollback(2).generation == 2
    assert values_of(other) == states[2]
    go_on(model, publisher, draw, states)
    assert follower.poll().pinned == 2 and values_of(other) == states[2]
    follower.pin(4)
    assert follower.poll().generation == 4 and values_of(other) == states[4]
    with pytest.raises(FeedError, match="got generation 99, want one of"):
        follower.rollback(99)
    assert follower.status.pinned == 4
    follower.unpin()
    assert follower.poll().generation == 6 and values_of(other) == states[6]
    follower.pin()
    go_on(model, publisher, draw, states)
    assert follower.poll().generation == 6
    for wrong in (0, -1, "3", 1.5):
        with pytest.raises(ValueError, match="generation: got"):
            follower.rollback(wrong)
    with pytest.raises(ValueError, match="before the first generation"):
        Follower(make_model(), tmp_path / "empty").pin()


def test_a_publisher_that_comes_after_another_goes_on(tmp_path):
    model, publisher, draw, states = published(tmp_path, 3)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    publisher.close()
    with pytest.raises(ValueError, match="the publisher is closed"):
        publisher.publish()
    # As a trainer that went back to a checkpoint: rows that the follower has are not there.
    again = make_model(seed=5)
    for _ in range(3):
        change(again, draw)
    with Publisher(again, tmp_path / "feed") as publisher:
        assert publisher.publish() == 4
        assert follower.poll().generation == 4 and follower.status.errors == 0
        assert values_of(other) == values_of(again)
        change(again, draw)
        assert publisher.publish() == 5
    assert follower.poll().generation == 5
    assert values_of(other) == values_of(again)


def test_another_feed_in_the_folder_is_followed(tmp_path):
    model, publisher, draw, states = published(tmp_path, 5)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    publisher.close()
    shutil.rmtree(tmp_path / "feed")
    model, publisher, draw, states = published(tmp_path, 2)
    assert follower.poll().generation == 2
    assert values_of(other) == states[2]


def test_a_table_that_was_cleared_is_followed(tmp_path):
    model, publisher, draw, states = published(tmp_path, 2)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    tables_of(model)[0].clear()
    go_on(model, publisher, draw, states)
    assert manifest_of(tmp_path, 3).delta is None
    assert follower.poll().generation == 3 and follower.status.errors == 0
    assert values_of(other) == states[3]


def test_a_full_copy_comes_by_size_and_old_generations_go(tmp_path):
    table = tf_dynemb.Variable(dim=64, name="t")
    # Full copies count as 1 MiB at least; a generation has a quarter of that.
    publisher = Publisher(table, tmp_path / "feed", keep_generations=3)
    full = []
    for number in range(1, 13):
        table.upsert(tf.range(1000, dtype=tf.int64), tf.random.normal((1000, 64)))
        publisher.publish()
        if manifest_of(tmp_path, number).full is not None:
            full.append(number)
        # All that are wanted, from a full copy on.
        want = [n for n in full if n <= max(1, number - 2)][-1]
        assert Feed(tmp_path / "feed").numbers() == list(range(want, number + 1))
        assert len(os.listdir(tmp_path / "feed" / "data")) == number + 1 - want
    assert full == [1, 6, 11]


def test_what_a_follower_needs_stays_until_it_is_dead(tmp_path):
    table = tf_dynemb.Variable(dim=64, name="t")
    other = tf_dynemb.Variable(dim=64, name="t")
    options = {"keep_generations": 1, "full_copy_ratio": 0.01}  # a full copy every second time
    publisher = Publisher(table, tmp_path / "feed", **options)

    def go(times):
        for _ in range(times):
            table.upsert(tf.range(100, dtype=tf.int64), tf.random.normal((100, 64)))
            publisher.publish()
        return Feed(tmp_path / "feed").numbers()

    go(1)
    follower = Follower(other, tmp_path / "feed", name="slow")
    assert follower.poll().generation == 1
    assert go(6)[0] <= 2
    beat = json.loads((tmp_path / "feed" / "followers" / "slow").read_text())
    assert beat["generation"] == 1 and beat["pid"] == os.getpid()
    # It goes on by the changes, without a full copy.
    assert follower.poll().generation == 7 and follower.status.full_copies == 1
    assert go(4)[0] >= 5
    # Its file stays as it is: for this publisher it is dead at once.
    publisher.close()
    publisher = Publisher(table, tmp_path / "feed", forget_followers_after_seconds=1e-9, **options)
    assert go(6)[0] > 12
    follower.close()
    assert not os.listdir(tmp_path / "feed" / "followers")


def test_generations_stay_by_age_also_when_the_clock_is_set_to_another_time():
    part = Part("", "", 0, 0, 0)
    weights = Weights((), (), (), 0)

    def first_of(*created_seconds, now_seconds=1000.0):
        generations = [
            Generation("feed", number, 0, created, "", None, part, weights)
            for number, created in enumerate(created_seconds, start=1)
        ]
        return first_to_keep(generations, 1, 60.0, [], now_seconds)

    assert first_of(800, 900, 950, 999) == 3  # at most 60 s old
    assert first_of(800, 850, 900) == 3  # one stays in any case
    assert first_of(9000, 9900, 950, 999) == 3  # the clock was 2 hours ahead
    assert first_of(900, 90_000, 950, 999) == 3  # for a moment
    assert first_of(1030, 999) == 1  # a little


def test_two_publishers_in_one_process(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    first = Publisher(table, tmp_path / "feed")
    with pytest.raises(FeedInUseError, match=rf"into which process {os.getpid()} on .* publishes"):
        Publisher(table, tmp_path / "feed")
    first.close()
    Publisher(table, tmp_path / "feed").close()


def test_a_second_publisher_in_another_process_is_refused_by_name(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    publisher = Publisher(table, tmp_path / "feed")
    program = (
        "import sys, tf_dynemb\n"
        "tf_dynemb.serving.Publisher(tf_dynemb.Variable(dim=1, name='t'), sys.argv[1])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "feed")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 1
    assert f"FeedInUseError: path: got {tmp_path}/feed, into which process {os.getpid()}" in run.stderr
    assert publisher.publish() == 1


def put_ghost(path):
    Feed(path).put(f"{path}/PUBLISHER", b'{"name": "a ghost", "nonce": "x"}')


def test_a_feed_in_another_file_system():
    """TensorFlow's ram:// stands for object stores: no locks, no files for the engine."""
    path = "ram://test_serving_feed/feed"
    model, draw = make_model(), random.Random(1)
    publisher = Publisher(model, path, lease_seconds=0.4)
    with pytest.raises(FeedInUseError, match="into which process"):
        Publisher(model, path, lease_seconds=5.0)
    other = make_model(seed=1)
    follower = Follower(other, path)
    for number in range(1, 5):
        change(model, draw)
        assert publisher.publish() == number
        assert follower.poll().generation == number, follower.status
        assert values_of(other) == values_of(model)
    publisher.close()
    # A lease that nobody holds on to.
    put_ghost(path)
    with Publisher(model, path, lease_seconds=0.1) as publisher:
        assert publisher.publish() == 5
    with Publisher(model, path, lease_seconds=1000.0) as publisher:
        put_ghost(path)
        with pytest.raises(FeedInUseError, match="a ghost"):
            publisher.publish()
    assert follower.poll().generation == 5
    late = make_model(seed=2)
    assert Follower(late, path).poll().generation == 5
    assert values_of(late) == values_of(model)


def test_training_goes_on_when_a_generation_cannot_be_written(tmp_path):
    model, publisher, draw, states = published(tmp_path, 2, every_steps=2)
    data = tmp_path / "feed" / "data"
    shutil.move(data, tmp_path / "away")
    data.write_text("in the way")
    with pytest.warns(UserWarning, match="no generation was published, the next one will have its"):
        publisher.step()
        publisher.step()
    change(model, draw)
    os.remove(data)
    shutil.move(tmp_path / "away", data)
    publisher.step()
    publisher.step()
    assert publisher.generation == 3
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    assert follower.poll().generation == 3
    assert values_of(other) == values_of(model)


def test_leftovers_of_a_publisher_that_was_killed_go(tmp_path):
    model, publisher, draw, states = published(tmp_path, 2)
    publisher.close()
    (tmp_path / "feed" / "data" / "000000000003-0123abcd" / "delta").mkdir(parents=True)
    (tmp_path / "feed" / "generations" / "000000000003.0123abcd.new").write_text("half")
    with Publisher(model, tmp_path / "feed"):
        assert len(os.listdir(tmp_path / "feed" / "data")) == 2
        assert len(os.listdir(tmp_path / "feed" / "generations")) == 2


def agreeing():
    ids = keras.Input((), dtype="int64", name="ids")
    first = tf_dynemb.keras.Embedding(8, initializer="zeros", name="first")(ids)
    second = tf_dynemb.keras.Embedding(4, initializer="zeros", name="second")(ids)
    dense = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=True, name="dense")
    return keras.Model(ids, [first, second, dense(first) * 0 + dense.bias])


def set_all(model, ids, number):
    for name in ("first", "second"):
        table = model.get_layer(name).table
        table.upsert(ids, tf.fill((len(ids), table.dim), float(number)))
    model.get_layer("dense").bias.assign([float(number)])


def publish_until(model, publisher, ids, seen_enough, least=30):
    """Publishes generations, of which all numbers are the generation's, and yields each.

    At least so many, and until seen_enough(), which says what others have seen of them; fails if that
    takes too long.
    """
    until = time.monotonic() + 120
    for number in itertools.count(publisher.generation + 1):
        if number > least and seen_enough():
            return
        assert time.monotonic() < until, "it took too long"
        set_all(model, ids, number)
        publisher.publish()
        yield number


@pytest.mark.parametrize("loaded", [True, False])
def test_requests_under_load_see_one_generation(loaded, tmp_path):
    """Requests of several calls, which last longer than a switch, while generations come fast."""
    model, ids = agreeing(), tf.range(3000, dtype=tf.int64)
    publisher = Publisher(model, tmp_path / "feed")
    set_all(model, ids, 1)
    publisher.publish()
    if loaded:
        served = export(agreeing(), str(tmp_path / "model")).serve
        follower = Follower(
            served_object := tf.saved_model.load(str(tmp_path / "model")),
            tmp_path / "feed",
            background=True,
            poll_seconds=0.001,
        )
        served = served_object.serve
    else:
        other = agreeing()
        served = tf.function(lambda ids: other(ids))
        follower = Follower(other, tmp_path / "feed", background=True, poll_seconds=0.001)
    wrong, seen = [], set()

    def request():
        with follower.reading() as generation:
            numbers = set()
            for part in np.array_split(ids.numpy(), 3):
                for output in served(tf.constant(part)):
                    numbers |= set(np.unique(output))
        if generation is not None:
            seen.add(generation)
            if numbers != {float(generation)}:
                wrong.append((generation, numbers))

    with again_and_again(*[request] * 3):
        *_, last = publish_until(model, publisher, ids, lambda: len(seen) > 2)
        wait_until(lambda: last in seen)
    follower.close()
    assert not wrong and follower.status.errors == 0


def test_a_request_that_takes_long_holds_up_no_others(tmp_path):
    model, publisher, draw, states = published(tmp_path, 1)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed", longest_wait_seconds=0.05)
    follower.poll()
    go_on(model, publisher, draw, states)
    with follower.reading():
        worker = threading.Thread(target=follower.poll)
        worker.start()
        worker.join()
        assert "requests took longer than 0.05 s" in follower.status.last_error
        assert values_of(other) == states[1]
        with follower.reading() as generation:  # nested
            assert generation == 1
        with pytest.raises(RuntimeError, match="inside of reading"):
            follower.poll()
    assert follower.poll().generation == 2
    assert values_of(other) == states[2]


def test_a_generation_that_is_applied_in_part_is_not_served(tmp_path, monkeypatch):
    model, publisher, draw, states = published(tmp_path, 1)
    other = make_model(seed=1)
    follower = Follower(other, tmp_path / "feed")
    follower.poll()
    go_on(model, publisher, draw, states)
    table = tables_of(other)[1].resource

    def fail(*_):
        raise tf.errors.DataLossError(None, None, "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(table, "load_snapshot", fail)
        # The last full copy takes its place at once.
        assert follower.poll().generation == 1
        assert values_of(other) == states[1]
        patch.setattr(follower, "_load_full", lambda numbers: False)
        follower.poll()
    with pytest.raises(FeedError, match="between two generations.*the disk failed"), follower.reading():
        pass
    go_on(model, publisher, draw, states)
    assert follower.poll().generation == 3
    with follower.reading():
        assert values_of(other) == states[3]


def test_bad_arguments_of_a_publisher(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    for options, error, message in [
        ({"every_steps": 0}, ValueError, "every_steps: got 0, want a whole number >= 1"),
        ({"every_steps": 1.5}, ValueError, "every_steps: got 1.5"),
        ({"every_seconds": 0}, ValueError, "every_seconds: got 0, want a number > 0"),
        ({"every_seconds": "1"}, ValueError, "every_seconds: got '1'"),
        ({"every_seconds": 1, "every_steps": 1}, ValueError, "got 1 and 1, want one of them"),
        ({"keep_generations": 0}, ValueError, "keep_generations: got 0"),
        ({"keep_seconds": -1}, ValueError, "keep_seconds: got -1"),
        ({"full_copy_ratio": float("nan")}, ValueError, "full_copy_ratio: got nan"),
        ({"forget_followers_after_seconds": 0}, ValueError, "forget_followers_after_seconds: got 0"),
        ({"value_dtype": tf.int32}, TypeError, "value_dtype: got int32, want one of float32"),
    ]:
        with pytest.raises(error, match=message):
            Publisher(table, tmp_path / "feed", **options)
    with pytest.raises(TypeError, match="path: got 7, want the path of a folder"):
        Publisher(table, 7)
    with pytest.raises(TypeError, match="tables: got list, want a Variable"):
        Publisher([table], tmp_path / "feed")
    with pytest.raises(ValueError, match="which is not built, want one that was called once"):
        Publisher(keras.Sequential([tf_dynemb.keras.Embedding(2)]), tmp_path / "feed")
    ids = keras.Input((), dtype="int64")
    rows = tf_dynemb.keras.Embedding(2)(ids)
    twins = []
    for name in "ab":
        layer = keras.layers.Dense(1, name="d")
        layer.build((None, 2))
        twins.append(keras.Sequential([layer], name=name)(rows))
    with pytest.raises(ValueError, match="got 2 dense weights named 'd/kernel'.*names of their own"):
        Publisher(keras.Model(ids, twins), tmp_path / "feed")
    assert not (tmp_path / "feed").exists()


def test_bad_arguments_of_a_follower(tmp_path):
    model, publisher, draw, states = published(tmp_path, 1)
    for options, message in [
        ({"name": "a/b"}, "name: got 'a/b'"),
        ({"name": ""}, "name: got ''"),
        ({"poll_seconds": 0}, "poll_seconds: got 0"),
        ({"heartbeat_seconds": -1}, "heartbeat_seconds: got -1"),
        ({"longest_wait_seconds": None}, "longest_wait_seconds: got None"),
    ]:
        with pytest.raises(ValueError, match=message):
            Follower(model, tmp_path / "feed", **options)
    with pytest.raises(TypeError, match="loaded_or_model: got int, want what tf.saved_model.load gave"):
        Follower(7, tmp_path / "feed")
    plain = tf.Module()
    tf.saved_model.save(plain, str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="a SavedModel without tables"):
        Follower(tf.saved_model.load(str(tmp_path / "plain")), tmp_path / "feed")
    # What does not fit is said, and changes nothing.
    ids = keras.Input((), dtype="int64")
    other = keras.Model(ids, tf_dynemb.keras.Embedding(3, name="users")(ids))
    with pytest.raises(ValueError, match="a model without the dense weight 'dense/kernel'"):
        Follower(other, tmp_path / "feed").poll()
    narrow = tf_dynemb.Variable(dim=3, value_dtype=tf.float16, name="users")
    tables_only = Publisher(tables_of(model)[0], tmp_path / "tables")
    tables_only.publish()
    follower = Follower(narrow, tmp_path / "tables")
    assert "value dtype is float32, the table's is float16" in follower.poll().last_error
    follower = Follower(tf_dynemb.Variable(dim=3, name="others"), tmp_path / "tables")
    assert "others" in follower.poll().last_error


def test_a_partitioner_that_a_saved_model_does_not_tell_is_refused(tmp_path):
    table = tf_dynemb.Variable(
        dim=1,
        devices=["/CPU:0"] * 2,
        partitioner=lambda keys, shards: tf.cast(keys // 7 % shards, tf.int32),
        name="t",
    )
    module = tf.Module()
    module.table = table
    module.lookup = tf.function(table.lookup, input_signature=[tf.TensorSpec([None], tf.int64)])
    tf.saved_model.save(module, str(tmp_path / "model"))
    with pytest.raises(ValueError, match="a partitioner of its own"):
        Follower(tf.saved_model.load(str(tmp_path / "model")), tmp_path / "feed")
    # By the Variable itself it follows.
    table.upsert(tf.range(50, dtype=tf.int64), tf.random.normal((50, 1)))
    Publisher(table, tmp_path / "feed").publish()
    table_rows = rows_of(table)
    follower = Follower(table, tmp_path / "feed")
    assert follower.poll().generation == 1 and rows_of(table) == table_rows
