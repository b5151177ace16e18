"""A SavedModel of for_serving(follow=...): it follows a feed by itself, without a Follower."""

import functools
import gc
import os
import random
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from damaged_feeds import (
    damage_delta,
    damage_manifest,
    damage_weights,
    double,
    remove_data,
    remove_manifest,
)
from feed_models import (
    IDS,
    agreeing,
    change,
    export_following,
    go_on,
    make_model,
    publish_until,
    set_all,
    tables_of,
    wait_for,
    wants_full,
)
from side_by_side import again_and_again, wait_until
from table_rows import int64

import tf_dynemb
from tf_dynemb.serving import Follower, Publisher, follower_status
from tf_dynemb.serving.feed import Feed
from tf_dynemb.table.following import Following


def followers(tmp_path):
    return [name for name in os.listdir(tmp_path / "feed" / "followers") if not name.endswith(".new")]


def test_it_is_the_trainer_at_every_generation(tmp_path):
    model, draw, states = make_model(), random.Random(7), {}
    served = tf.saved_model.load(export_following(model, tmp_path))
    before = model(IDS)
    publisher = Publisher(model, tmp_path / "feed")
    assert follower_status(served).generation is None
    np.testing.assert_array_equal(served.serve(IDS), before)
    for number in range(1, 7):
        go_on(model, publisher, draw, states)
        status = wait_for(served, number)
        np.testing.assert_array_equal(served.serve(IDS), model(IDS))
        (output,) = served.signatures["serving_default"](ids=IDS).values()
        np.testing.assert_array_equal(output, model(IDS))
    assert (status.errors, status.full_copies, status.lag_generations) == (0, 1, 0)
    assert status.rows > 0 and status.erased > 0
    assert len(followers(tmp_path)) == 1
    late = tf.saved_model.load(str(tmp_path / "model"))
    wait_for(late, 6)
    np.testing.assert_array_equal(late.serve(IDS), model(IDS))
    assert len(followers(tmp_path)) == 2
    # The thread ends with the model.
    del late
    gc.collect()
    assert len(followers(tmp_path)) == 1
    del served
    gc.collect()
    assert followers(tmp_path) == []


def test_a_model_that_follows_by_itself_takes_no_other_follower(tmp_path):
    served = tf.saved_model.load(export_following(make_model(), tmp_path))
    with pytest.raises(ValueError, match="follows a feed by itself"):
        Follower(served, tmp_path / "feed")


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_narrow_values_are_those_of_an_export(dtype, tmp_path):
    model, draw = make_model(), random.Random(3)
    served = tf.saved_model.load(export_following(model, tmp_path, dtype))
    with Publisher(model, tmp_path / "feed", value_dtype=dtype) as publisher:
        for _ in range(3):
            change(model, draw)
            publisher.publish()
    assert wait_for(served, 3).errors == 0
    with tf_dynemb.for_serving(dtype):
        model.export(str(tmp_path / "again"), verbose=False)
    again = tf.saved_model.load(str(tmp_path / "again"))
    np.testing.assert_array_equal(served.serve(IDS), again.serve(IDS))


def test_erased_keys_are_erased(tmp_path):
    model = make_model()
    served = tf.saved_model.load(export_following(model, tmp_path))
    publisher = Publisher(model, tmp_path / "feed")
    users, items = tables_of(model)
    for table in (users, items):
        table.upsert(int64(range(20)), tf.ones((20, table.dim)))
    publisher.publish()
    for table in (users, items):
        table.remove(int64(range(5)))
    publisher.publish()
    assert wait_for(served, 2).erased == 10
    np.testing.assert_array_equal(served.serve(IDS), model(IDS))


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
    model, draw, states = make_model(), random.Random(7), {}
    path = export_following(model, tmp_path)
    publisher, outputs = Publisher(model, tmp_path / "feed"), {}
    for number in range(1, 5):
        go_on(model, publisher, draw, states)
        outputs[number] = model(IDS)
    harm(tmp_path, 3)
    served = tf.saved_model.load(path)
    wait_until(lambda: re.search(message, follower_status(served).last_error))
    wait_until(lambda: wants_full(tmp_path / "feed"))
    status = follower_status(served)
    assert (status.generation, status.newest, status.lag_generations) == (2, 4, 2)
    np.testing.assert_array_equal(served.serve(IDS), outputs[2])
    # It has asked for a full copy.
    go_on(model, publisher, draw, states)
    assert Feed(tmp_path / "feed").read(5).full is not None
    wait_for(served, 5)
    np.testing.assert_array_equal(served.serve(IDS), model(IDS))
    wait_until(lambda: not wants_full(tmp_path / "feed"))
    errors = follower_status(served).errors
    go_on(model, publisher, draw, states)
    assert wait_for(served, 6).errors == errors
    np.testing.assert_array_equal(served.serve(IDS), model(IDS))


def test_a_keras_model_with_a_loaded_one_in_it_has_its_status(tmp_path):
    model = make_model()
    inner = keras.layers.TFSMLayer(export_following(model, tmp_path), call_endpoint="serve")
    ids = keras.Input((), dtype="int64", name="ids")
    outer = keras.Model(ids, inner(ids))
    tables_of(model)[0].upsert(IDS[:9], tf.ones([9, 3]))
    Publisher(model, tmp_path / "feed").publish()
    assert wait_for(outer, 1).rows == follower_status(inner).rows == 9
    np.testing.assert_array_equal(outer(IDS), model(IDS))


def test_a_model_that_does_not_fit_the_feed_serves_on(tmp_path):
    model = make_model()
    served = tf.saved_model.load(export_following(model, tmp_path))
    before = served.serve(IDS)
    users = tf_dynemb.Variable(dim=3, initializer="uniform", name="users")
    Publisher(users, tmp_path / "feed").publish()
    wait_until(lambda: "items" in follower_status(served).last_error)
    assert follower_status(served).generation is None
    np.testing.assert_array_equal(served.serve(IDS), before)


def test_a_feed_without_a_dense_weight_of_the_model_is_an_error(tmp_path):
    served = tf.saved_model.load(export_following(agreeing(), tmp_path))
    ids = keras.Input((), dtype="int64")
    first, second = (tf_dynemb.keras.Embedding(d, name=n) for d, n in ((8, "first"), (4, "second")))
    outputs = [keras.layers.Dense(1, name="another")(first(ids)), second(ids)]
    Publisher(keras.Model(ids, outputs), tmp_path / "feed").publish()
    wait_until(lambda: "without the dense weight 'dense/" in follower_status(served).last_error)
    assert follower_status(served).generation is None


@keras.saving.register_keras_serializable("test_serving_follow")
class Places(keras.layers.Layer):
    """Gives the numbers at the places of ids: of a variable that is no weight, in a dtype."""

    def __init__(self, dtype_of_places, **options):
        super().__init__(**options)
        self.places = tf.Variable(tf.cast([1, 2, 3], dtype_of_places), name="places")

    def call(self, ids):
        return tf.cast(tf.gather(self.places, ids), tf.int64)


@pytest.mark.parametrize("dtype", ["int64", "int32", "complex64", "float32"])
def test_a_variable_that_a_model_reads_and_the_feed_lacks_is_an_error(dtype, tmp_path):
    ids = keras.Input((), dtype="int64", name="ids")
    items = tf_dynemb.keras.Embedding(1, initializer="zeros", name="items")
    model = keras.Model(ids, items(Places(dtype, name="remap")(ids)))
    served = tf.saved_model.load(export_following(model, tmp_path))
    Publisher(model, tmp_path / "feed").publish()
    wait_until(lambda: "without the dense weight 'places'" in follower_status(served).last_error)
    assert "where add_weight puts it" in follower_status(served).last_error
    assert follower_status(served).generation is None


class Drawing(keras.layers.Layer):
    """Adds a count of its calls, and a random number that is 0, to what it is given."""

    def __init__(self, **options):
        super().__init__(**options)
        self.calls = tf.Variable(0, name="calls")
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, rows):
        drawn = self.generator.uniform(tf.shape(rows), maxval=1, dtype=tf.int64)
        return rows + tf.cast(self.calls.assign_add(1), rows.dtype) + tf.cast(drawn, rows.dtype)


def test_what_a_model_writes_itself_need_not_be_in_the_feed(tmp_path):
    ids = keras.Input((), dtype="int64", name="ids")
    items = tf_dynemb.keras.Embedding(1, initializer="zeros", name="items")
    model = keras.Model(ids, Drawing()(items(ids)))
    served = tf.saved_model.load(export_following(model, tmp_path))
    items.table.upsert(int64([7]), [[5.0]])
    Publisher(model, tmp_path / "feed").publish()
    assert wait_for(served, 1).errors == 0
    first, second = (served.serve(int64([7])).numpy().item() for _ in range(2))
    assert first >= 6 and second == first + 1


@pytest.mark.parametrize("follower", ["itself", "python"])
def test_a_feed_of_another_initializer_is_an_error(follower, tmp_path):
    """Ids without a row would read otherwise than in the trainer."""

    def made(initializer):
        ids = keras.Input((), dtype="int64", name="ids")
        return keras.Model(ids, tf_dynemb.keras.Embedding(2, initializer=initializer, name="items")(ids))

    small, large = (keras.initializers.RandomUniform(-x, x, seed=1) for x in (0.05, 5.0))
    model = made(small)
    served = tf.saved_model.load(export_following(model, tmp_path))
    Publisher(made(large), tmp_path / "feed").publish()
    message = "'items'.* without a row read by the initializer 'uniform -5 5'"
    if follower == "itself":
        wait_until(lambda: re.search(message, follower_status(served).last_error))
        assert follower_status(served).generation is None
    else:
        with Follower(model, tmp_path / "feed") as of_model:
            status = of_model.poll()
            assert status.generation is None and re.search(message, status.last_error)


class Later(keras.layers.Layer):
    """Gives its ids when some time has passed after `before` was there: longer than a switch takes."""

    def call(self, ids, before):
        square = tf.fill((150, 150), 1e-3) + tf.reduce_sum(before) * 0
        square = tf.while_loop(
            lambda i, _: i < 60, lambda i, s: (i + 1, tf.nn.softmax(s @ s)), (0, square)
        )[1]
        return ids + tf.cast(tf.reduce_sum(square) * 0, tf.int64)


def test_it_follows_on_another_file_system(tmp_path):
    """Whose files are read into memory: TensorFlow's ram://, of this process."""
    model, draw, states = make_model(), random.Random(7), {}
    feed = f"ram://{tmp_path}/feed"
    publisher = Publisher(model, feed)
    served = tf.saved_model.load(export_following(model, tmp_path, follow=feed))
    for number in range(1, 4):
        go_on(model, publisher, draw, states)
        wait_for(served, number)
        np.testing.assert_array_equal(served.serve(IDS), model(IDS))
    assert follower_status(served).errors == 0


def loaded_in_a_session(path):
    """Functions of ids by the names of a SavedModel's signatures, each a step of one session."""
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph)
    with graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], path)
    calls = {}
    for name, signature in loaded.signature_def.items():
        fetches = [output.name for output in signature.outputs.values()]
        feeds = [each.name for each in signature.inputs.values()]
        calls[name] = session.make_callable(fetches, feeds)
    return session, calls


@pytest.mark.parametrize("in_session", [False, True])
def test_a_request_sees_one_generation_over_tables_and_dense_weights(in_session, tmp_path, monkeypatch):
    """Requests that last longer than a switch, in threads, while generations come fast.

    As functions in Python; and as steps of a session, which is what the loaders of C, C++ and
    TensorFlow Serving make of them.
    """
    ids = keras.Input((), dtype="int64", name="ids")
    first = tf_dynemb.keras.Embedding(8, initializer="zeros", name="first")(ids)
    dense = keras.layers.Dense(1, kernel_initializer="zeros", name="dense")
    early = dense(first)
    later = Later()(ids, first)
    second = tf_dynemb.keras.Embedding(4, initializer="zeros", name="second")(later)
    model = keras.Model(ids, [first, early, second])
    # The same without a pin, which is refused otherwise.
    monkeypatch.setattr(Following, "check_signature", lambda *arguments: None)
    spec = tf.TensorSpec([None], tf.int64, "ids")
    unpinned = tf.function(lambda ids: model(ids), input_signature=[spec])
    keys = tf.range(500, dtype=tf.int64)
    unpinned(keys)
    archive = keras.export.ExportArchive()
    archive.track(model)
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        archive.add_endpoint("serve", model.__call__, [spec])
        archive.add_endpoint("unpinned", unpinned)
        archive.write_out(str(tmp_path / "model"), verbose=False)
    if in_session:
        session, calls = loaded_in_a_session(str(tmp_path / "model"))
    else:
        served = tf.saved_model.load(str(tmp_path / "model"))
        calls = {"serve": served.serve, "unpinned": served.unpinned}
    publisher = Publisher(model, tmp_path / "feed")
    mixtures, seen = {"serve": 0, "unpinned": 0}, set()

    def request(name):
        outputs = calls[name](keys.numpy() if in_session else keys)
        numbers = {float(number) for output in outputs for number in np.unique(output)}
        mixtures[name] += len(numbers) > 1
        if name == "serve":
            seen.update(numbers)

    requests = [functools.partial(request, name) for name in ("serve", "serve", "unpinned")]
    with again_and_again(*requests):
        # Until it is shown that without the pin there are mixtures.
        shown = lambda: mixtures["unpinned"] and len(seen) > 3  # noqa: E731
        for number in publish_until(model, publisher, keys, shown):
            wait_until(lambda: number in seen)  # noqa: B023
    assert mixtures["serve"] == 0
    if in_session:
        session.close()
    else:
        assert follower_status(served).full_copies == 1


def test_an_endpoint_that_reads_a_part_of_a_model_is_loaded_in_a_session(tmp_path):
    """As by TensorFlow's loaders in C and C++; what no endpoint reads is not in the SavedModel."""
    inputs = [keras.Input((), dtype="int64", name=name) for name in ("user", "item")]
    towers = [
        keras.layers.Dense(2, name=f"{each.name}_tower")(tf_dynemb.keras.Embedding(2)(each))
        for each in inputs
    ]
    model = keras.Model(inputs, keras.layers.Dot(1)(towers))
    user_tower = keras.Model(inputs[0], towers[0])
    archive = keras.export.ExportArchive()
    with tf_dynemb.for_serving(follow=tmp_path / "feed"):
        archive.track(model)
        archive.add_endpoint("serve", user_tower.__call__, [tf.TensorSpec([None], tf.int64, "ids")])
        archive.write_out(str(tmp_path / "model"), verbose=False)
    ids = np.arange(3)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "model"))
        signature = loaded.signature_def["serving_default"]
        (output,) = signature.outputs.values()
        got = session.run(output.name, {signature.inputs["ids"].name: ids})
    np.testing.assert_array_equal(got, user_tower(ids))


def test_a_pinned_function_within_a_pinned_function_does_not_wait_for_itself(tmp_path):
    model = agreeing()
    archive = keras.export.ExportArchive()
    spec = [tf.TensorSpec([None], tf.int64, "ids")]
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        inner = archive.track_and_add_endpoint("inner", model, spec)

        def twice(ids):
            return [a + b for a, b in zip(inner(ids), inner(ids), strict=True)]

        archive.add_endpoint("twice", twice, spec)
        archive.write_out(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    publisher, keys = Publisher(model, tmp_path / "feed"), tf.range(100, dtype=tf.int64)
    for number in range(1, 20):
        set_all(model, keys, number)
        publisher.publish()
        numbers = {float(n) for output in served.twice(keys) for n in np.unique(output)}
        assert len(numbers) == 1
    assert wait_for(served, 19).errors == 0


def test_a_request_that_fails_does_not_hold_up_generations(tmp_path):
    module = tf.Module()
    module.table = table = tf_dynemb.Variable(dim=1, initializer="zeros", name="t")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def serve(ids):
        rows = table.lookup(ids)
        with tf.control_dependencies([tf.debugging.assert_less(ids, tf.constant(9, tf.int64))]):
            return {"rows": tf.identity(rows)}

    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        serve = tf_dynemb.serving.one_generation(serve)
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    served = tf.saved_model.load(str(tmp_path / "model"))
    call, publisher = served.signatures["serving_default"], Publisher(table, tmp_path / "feed")
    for number in range(1, 6):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Condition x < y"):
            call(ids=int64([99]))
        table.upsert(int64([1]), [[float(number)]])
        publisher.publish()
        assert wait_for(served, number).errors == 0
        assert call(ids=int64([1]))["rows"].numpy().tolist() == [[float(number)]]


def test_the_signature_that_tensorflow_takes_of_a_model_follows(tmp_path):
    model = agreeing()
    with tf_dynemb.for_serving(follow=tmp_path / "feed"):
        tf.saved_model.save(model, str(tmp_path / "model"))
    served = tf.saved_model.load(str(tmp_path / "model"))
    set_all(model, tf.range(9, dtype=tf.int64), 3)
    Publisher(model, tmp_path / "feed").publish()
    wait_for(served, 1)
    outputs = served.signatures["serving_default"](inputs=tf.range(9, dtype=tf.int64))
    assert {float(n) for output in outputs.values() for n in np.unique(output)} == {3.0}


def test_a_process_that_ends_without_unloading_ends(tmp_path):
    """As a server that is stopped: the thread is joined before what it works with is destroyed."""
    model = make_model()
    path = export_following(model, tmp_path)
    Publisher(model, tmp_path / "feed").publish()
    program = (
        "import sys, tensorflow as tf, tf_dynemb\n"
        "served = tf.saved_model.load(sys.argv[1])\n"
        "while tf_dynemb.serving.follower_status(served).generation != 1: pass\n"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=300)
    assert followers(tmp_path) == []


def test_bad_arguments(tmp_path):
    for options, error, message in [
        ({"follow": 7}, TypeError, "follow: got 7, want the path of a feed's folder"),
        ({"follow": ""}, TypeError, "follow: got ''"),
        ({"follow": "feed://"}, ValueError, "follow: got 'feed://', want feed://host:port"),
        ({"follow": "feeds:///x"}, ValueError, "follow: got 'feeds:///x', want feed://host:p"),
        ({"follow": "x", "poll_seconds": 0}, ValueError, "poll_seconds: got 0, want a number > 0"),
        (
            {"follow": "x", "longest_wait_seconds": 1e6},
            ValueError,
            "longest_wait_seconds: got 1000000.0, want a number > 0 and < 1000000",
        ),
        ({"follow": "x", "serve_while_loading": 1}, TypeError, "got 1, want True or False"),
    ]:
        with pytest.raises(error, match=message), tf_dynemb.for_serving(**options):
            pass
    with pytest.raises(ValueError, match=r"want it inside of tf_dynemb.for_serving\(follow=...\)"):
        tf_dynemb.serving.one_generation(lambda: None)
    module = tf.Module()
    module.table = table = tf_dynemb.Variable(dim=1, name="t")
    spec = [tf.TensorSpec([None], tf.int64)]
    module.serve = tf.function(table.lookup, input_signature=spec)
    with tf_dynemb.for_serving(follow=tmp_path / "feed"):
        with pytest.raises(TypeError, match="want a tf.function with an input_signature"):
            tf_dynemb.serving.one_generation(tf.function(table.lookup))
        with pytest.raises(ValueError, match="signature 'serving_default' that reads 't'"):
            tf.saved_model.save(module, str(tmp_path / "model"))
        with pytest.raises(ValueError, match="of whose functions none is wrapped"):
            alone = tf.Module()
            alone.table = table
            tf.saved_model.save(alone, str(tmp_path / "model"))
        with pytest.raises(ValueError, match="'serving_default' that reads 't' in a function of"):
            tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.serve)
        with pytest.raises(ValueError, match="signature 'mine' that reads 't'.*want .*one_generation"):
            serve = module.serve.get_concrete_function()
            tf.saved_model.save(module, str(tmp_path / "model"), signatures={"mine": serve})
    twins = [tf_dynemb.Variable(dim=1, name="t") for _ in range(2)]
    both = tf.function(lambda ids: [twin.lookup(ids) for twin in twins], input_signature=spec)
    with (
        tf_dynemb.for_serving(follow=tmp_path / "feed"),
        pytest.raises(ValueError, match="two tables or dense weights named 't'"),
    ):
        tf_dynemb.serving.one_generation(both)
    module.table = odd = tf_dynemb.Variable(
        dim=1,
        devices=["/CPU:0"] * 2,
        partitioner=lambda keys, shards: tf.cast(keys // 7 % shards, tf.int32),
        name="odd",
    )
    with tf_dynemb.for_serving(follow=tmp_path / "feed"):
        serve = tf_dynemb.serving.one_generation(tf.function(odd.lookup, input_signature=spec))
        with pytest.raises(ValueError, match="a partitioner of its own"):
            tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    with pytest.raises(TypeError, match="loaded: got int"):
        follower_status(7)
    tf.saved_model.save(tf.Module(), str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="a model that does not follow"):
        follower_status(tf.saved_model.load(str(tmp_path / "plain")))


def test_a_signature_of_ones_own_is_wrapped_or_refused(tmp_path):
    """Of a Keras model, whose own functions are wrapped: by tf.saved_model.save and ExportArchive."""
    ids = keras.Input((), dtype="int64", name="ids")
    rows = tf_dynemb.keras.Embedding(1, name="users")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    spec = [tf.TensorSpec([None], tf.int64, "ids")]
    mine = tf.function(lambda ids: {"out": model(ids)}, input_signature=spec)
    weights = tf.function(lambda ids: {"out": model.layers[-1].kernel + 1.0}, input_signature=spec)

    def archived(**endpoints):
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serve", model.call, spec)
        for name, endpoint in endpoints.items():
            archive.add_endpoint(name, endpoint)
        archive.write_out(str(tmp_path / "model"), verbose=False)

    mine(tf.constant([1], tf.int64))  # traced before
    with tf_dynemb.for_serving(follow=tmp_path / "feed"):
        with pytest.raises(ValueError, match="signature 'mine' that reads 'users' in a function"):
            archived(mine=mine)
        with pytest.raises(ValueError, match="signature 'weights' that reads 'dense.*/kernel"):
            archived(weights=weights)
        with pytest.raises(ValueError, match="signature 'serving_default' that reads 'users'"):
            tf.saved_model.save(model, str(tmp_path / "model"), signatures=mine)
        archived(mine=tf_dynemb.serving.one_generation(mine))
    served = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(
        served.signatures["mine"](ids=tf.constant([4], tf.int64))["out"],
        model(tf.constant([4], tf.int64)),
    )
    with tf_dynemb.for_serving():  # which does not follow
        tf.saved_model.save(model, str(tmp_path / "alone"), signatures=mine)
