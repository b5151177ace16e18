"""Ways in which a request could meet two generations: they are refused, or are of one."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from feed_models import agreeing, export_and_load, publish_until
from side_by_side import again_and_again, wait_until
from table_rows import int64

import tf_dynemb
from tf_dynemb.base.captures import uses_in
from tf_dynemb.serving import Follower, Publisher, follower_status, one_generation

SPEC = [tf.TensorSpec([None], tf.int64, "ids")]
KEYS = tf.range(50, dtype=tf.int64)
IN_A_BATCH = r"that reads 'first' in a batch.*want the batch around the wrapped function"


def batched(function, splits=False):
    batch = tf.nondifferentiable_batch_function(
        2, 100, 16, max_enqueued_batches=100, enable_large_batch_splitting=splits
    )
    return lambda ids: batch(function)(ids)


def mapped(function):
    return lambda ids: tf.data.Dataset.from_tensors(ids).map(function).get_single_element()


def called(function):
    return tf.function(function, input_signature=SPEC)


@pytest.fixture(name="module")
def fixture_module(tmp_path):
    module = tf.Module()
    module.model = agreeing()
    module.count = tf.Variable(0, name="count")  # which does not follow
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        yield module


def all_of(module):
    return called(lambda ids: tf.concat(module.model(ids), -1))


# --- A signature that reads beside a wrapped function -------------------------------------------------


def rows(module, ids):
    return module.model.get_layer("second").table.lookup(ids)


def weights(module, ids):
    return module.model.get_layer("dense").bias + tf.cast(ids[:1], tf.float32) * 0


def branched(module, ids):
    return tf.cond(ids[0] > 0, lambda: rows(module, ids), lambda: tf.zeros([50, 4]))


def looped(module, ids):
    def again(i, total):
        return i + 1, total + tf.reduce_sum(rows(module, ids[i : i + 1]))

    return tf.while_loop(lambda i, _: i < 3, again, (0, 0.0))[1]


def in_a_function(module, ids):
    return called(lambda ids: rows(module, ids))(ids)


def in_a_batch(module, ids):
    return batched(lambda ids: rows(module, ids))(ids)


def in_a_map(module, ids):
    return mapped(lambda ids: rows(module, ids))(ids)


def in_a_handle(read):
    """Of a weight whose handle an operation gives."""

    def way(module, ids):
        bias = module.model.get_layer("dense").bias.value
        return tf.raw_ops.ReadVariableOp(resource=read(bias.handle, ids), dtype=tf.float32)

    return way


def returned(handle, ids):
    return tf.function(lambda: handle)()


def chosen(handle, ids):
    return tf.cond(ids[0] > 0, lambda: tf.identity(handle), lambda: handle)


def carried(handle, ids):
    return tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, h), (0, handle))[1]


def selected(handle, ids):
    return tf.raw_ops.IdentityN(input=[ids, handle])[1]


HANDLES = [returned, chosen, carried, selected]
WAYS = [rows, weights, branched, looped, in_a_function, in_a_batch, in_a_map]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_signature_that_reads_beside_a_wrapped_function_is_refused(way, module, tmp_path):
    wrapped = one_generation(all_of(module))
    serve = called(lambda ids: {"wrapped": wrapped(ids), "beside": way(module, ids)})
    name = "dense/bias" if way is weights else "second"
    with pytest.raises(ValueError, match=f"signature 'serving_default' that reads '{name}' in a func"):
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)


@pytest.mark.parametrize("read", HANDLES, ids=lambda read: read.__name__)
def test_a_signature_that_reads_by_a_handle_is_refused(read, module, tmp_path):
    wrapped, way = one_generation(all_of(module)), in_a_handle(read)
    serve = called(lambda ids: {"wrapped": wrapped(ids), "beside": way(module, ids)})
    with pytest.raises(ValueError, match="signature 'serving_default' that reads 'dense/bias' in a f"):
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)


def test_a_dense_weight_that_no_wrapped_function_reads_is_refused(module, tmp_path):
    """It would stay as it was exported, beside rows that go on."""
    wrapped = one_generation(called(lambda ids: rows(module, ids)))
    serve = called(lambda ids: {"rows": wrapped(ids), "beside": weights(module, ids)})
    with pytest.raises(
        ValueError, match="signature 'serving_default' that reads 'dense/bias' in a func"
    ):
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)


def test_a_signature_may_read_what_does_not_follow_beside_a_wrapped_function(module, tmp_path):
    wrapped = one_generation(all_of(module))
    serve = called(lambda ids: {"rows": wrapped(ids), "count": module.count.read_value()})
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    assert set(served(ids=KEYS)) == {"rows", "count"}


def twice(wrapped, ids):
    return wrapped(ids) + wrapped(-ids)


def in_a_loop(wrapped, ids):
    return tf.while_loop(lambda i, _: i < 3, lambda i, _: (i + 1, wrapped(ids)), (0, wrapped(ids)))[1]


def for_each(wrapped, ids):
    return tf.map_fn(lambda i: wrapped(i[None])[0], ids, fn_output_signature=tf.float32)


def of_a_dataset(wrapped, ids):
    rows = tf.data.Dataset.from_tensor_slices(ids).batch(10).map(wrapped)
    return rows.reduce(tf.zeros([10, 13]), lambda a, b: a + b)


def in_branches_and_beside(wrapped, ids):
    return in_branches(wrapped, ids) + wrapped(ids)


SEVERAL = [twice, in_a_loop, for_each, of_a_dataset, in_branches_and_beside]


@pytest.mark.parametrize("way", SEVERAL, ids=lambda way: way.__name__)
def test_a_signature_that_calls_wrapped_functions_several_times_is_refused(way, module, tmp_path):
    """Each call is of one generation, and the signature would be of several."""
    wrapped = one_generation(all_of(module))
    serve = called(lambda ids: way(wrapped, ids))
    with pytest.raises(ValueError, match=r"function 'serving_default' that calls .* several times"):
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    serve = one_generation(called(lambda ids: way(all_of(module), ids)))
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)


@pytest.mark.parametrize("saving", ["for_serving", "follow", "save"])
def test_a_model_that_follows_is_called_once_within_another_one(saving, tmp_path):
    """It follows by itself there too, and each call of it is of one generation."""
    with tf_dynemb.for_serving(follow=tmp_path / "feed"):
        agreeing().export(tmp_path / "inner", verbose=False)
    module = tf.Module()
    module.inner = tf.saved_model.load(tmp_path / "inner")

    def all_of_it(ids):
        return tf.concat(module.inner.serve(ids), -1)

    twice_called = called(lambda ids: all_of_it(ids) + all_of_it(-ids))
    other = {"follow": tmp_path / "other"} if saving == "follow" else {}
    # Without for_serving() it is noticed as well, once that was used.
    with contextlib.nullcontext() if saving == "save" else tf_dynemb.for_serving(**other):
        with pytest.raises(ValueError, match=r"several times.* of models that follow that feed and"):
            tf.saved_model.save(module, str(tmp_path / "model"), signatures=twice_called)
        if saving == "follow":
            with pytest.raises(ValueError, match="calls a model that was loaded and follows a feed by"):
                one_generation(called(all_of_it))
            return
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=called(all_of_it))
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    assert served(ids=KEYS)["output_0"].shape == (50, 13)


def towers(tmp_path, feeds):
    """A module with two loaded models, each with a part of one model, that follow these feeds."""
    whole, module = agreeing(), tf.Module()
    for number, feed in enumerate(feeds):
        part = keras.Model(whole.input, whole.outputs[number])
        with tf_dynemb.for_serving(follow=feed):
            part.export(tmp_path / str(number), verbose=False)
    module.towers = [tf.saved_model.load(tmp_path / str(number)) for number in range(2)]
    return module


@pytest.mark.parametrize("layers", [False, True])
def test_two_models_that_follow_one_feed_are_not_called_by_one_signature(layers, tmp_path):
    """Each would be of one generation, and the signature of two."""
    feed = tmp_path / "feed"
    module = towers(tmp_path, [feed, feed])
    with tf_dynemb.for_serving(), pytest.raises(ValueError, match="several times.* one call of one"):
        if layers:
            ids = keras.Input((), dtype="int64", name="ids")
            parts = [
                keras.layers.TFSMLayer(str(tmp_path / str(number)), call_endpoint="serve")(ids)
                for number in range(2)
            ]
            keras.Model(ids, parts).export(str(tmp_path / "both"), verbose=False)
        else:
            serve = called(lambda ids: tf.concat([one.serve(ids) for one in module.towers], -1))
            tf.saved_model.save(module, str(tmp_path / "both"), signatures=serve)


def test_models_that_follow_feeds_of_their_own_are_called_by_one_signature(tmp_path):
    module = towers(tmp_path, [tmp_path / "one", tmp_path / "other"])
    serve = called(lambda ids: tf.concat([one.serve(ids) for one in module.towers], -1))
    with tf_dynemb.for_serving():
        tf.saved_model.save(module, str(tmp_path / "both"), signatures=serve)
    served = tf.saved_model.load(str(tmp_path / "both")).signatures["serving_default"]
    assert served(ids=KEYS)["output_0"].shape == (50, 12)


@pytest.mark.parametrize("inner", ["tables", "none"])
def test_a_model_without_a_table_of_its_own_cannot_follow(inner, tmp_path):
    module = tf.Module()
    if inner == "tables":
        module.inner = export_and_load(agreeing(), str(tmp_path / "inner"))
        serve = called(lambda ids: tf.concat(module.inner.serve(ids), -1))
    else:
        module.weight = tf.Variable(1.0)
        serve = called(lambda ids: module.weight * tf.cast(ids, tf.float32))
    with (
        tf_dynemb.for_serving(follow=tmp_path / "feed"),
        pytest.raises(ValueError, match="'serving_default' of a model whose .* look up no table"),
    ):
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=one_generation(serve))


def test_a_wrapped_function_that_writes_to_a_table_is_refused(module):
    table = module.model.get_layer("second").table

    def counting(ids):
        table.upsert(ids, tf.ones([tf.size(ids), 4]))
        return table.lookup(ids)

    with pytest.raises(ValueError, match="that writes to 'second', a table that only the feed may"):
        one_generation(called(counting))


def in_branches(wrapped, ids):
    return tf.switch_case(
        tf.cast(ids[0], tf.int32),
        [
            lambda: wrapped(ids),
            lambda: wrapped(-ids),
            lambda: tf.cond(ids[1] > 0, lambda: wrapped(ids), lambda: wrapped(-ids)),
        ],
    )


def test_a_signature_may_call_a_wrapped_function_in_each_branch(module, tmp_path):
    wrapped = one_generation(all_of(module))
    serve = called(lambda ids: in_branches(wrapped, ids))
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    for ids in ([0, 1], [1, 0], [2, 1], [2, 0]):
        assert served(ids=int64(ids))["output_0"].shape == (2, 13)


def test_a_signature_that_calls_a_wrapped_function_twice_within_one_is_of_one_generation(
    module, tmp_path
):
    wrapped = one_generation(all_of(module))
    serve = one_generation(called(lambda ids: tf.concat([wrapped(ids), wrapped(-ids)], 0)))
    tf.saved_model.save(module, str(tmp_path / "model"), signatures={"serve": serve})
    served = tf.saved_model.load(str(tmp_path / "model"))
    keys = tf.concat([KEYS, -KEYS], 0)
    assert numbers_served(served, module.model, tmp_path, keys) >= {float(n) for n in range(1, 20)}


# --- Batches ------------------------------------------------------------------------------------------


def of_a_batch(module):
    return batched(all_of(module))


def of_a_batch_after_a_lookup(module):
    def serve(ids):
        first = all_of(module)(ids)
        with tf.control_dependencies([first]):
            return first + batched(all_of(module))(tf.identity(ids))

    return serve


def of_a_batch_in_a_branch(module):
    return lambda ids: tf.cond(
        ids[0] > 0, lambda: batched(all_of(module))(ids), lambda: tf.zeros([1, 13])
    )


@pytest.mark.parametrize(
    "way", [of_a_batch, of_a_batch_after_a_lookup, of_a_batch_in_a_branch], ids=lambda way: way.__name__
)
def test_a_wrapped_function_that_reads_in_a_batch_is_refused(way, module):
    with pytest.raises(ValueError, match=IN_A_BATCH):
        one_generation(called(way(module)))


def test_an_exported_model_that_reads_in_a_batch_is_refused(module, tmp_path):
    class Batching(keras.Model):
        def call(self, ids):
            return tf.ensure_shape(batched(all_of(module))(ids), [None, 13])

    model = Batching()
    model.inner = module.model
    model(KEYS)
    with pytest.raises(ValueError, match=IN_A_BATCH):
        model.export(
            str(tmp_path / "model"),
            verbose=False,
            input_signature=[keras.InputSpec(shape=(None,), dtype="int64")],
        )


def test_a_wrapped_function_may_batch_what_reads_nothing(module):
    wrapped = one_generation(called(lambda ids: all_of(module)(batched(lambda ids: ids + 0)(ids))))
    assert wrapped(KEYS).shape == (50, 13)


def test_a_batch_around_a_wrapped_function_is_of_one_generation(module, tmp_path):
    serve = called(batched(one_generation(all_of(module))))
    tf.saved_model.save(module, str(tmp_path / "model"), signatures={"serve": serve})
    served = tf.saved_model.load(str(tmp_path / "model"))
    # Of three calls of 40 ids two fit into a batch, and a part of the third would.
    assert numbers_served(served, module.model, tmp_path, asked=40) >= {float(n) for n in range(1, 20)}


def test_a_batch_that_splits_calls_around_a_wrapped_function_is_refused(module, tmp_path):
    """As tf.nondifferentiable_batch_function makes them by default."""
    serve = called(batched(one_generation(all_of(module)), splits=True))
    message = "in a batch, where a call may be split .* want .*enable_large_batch_splitting=False"
    with pytest.raises(ValueError, match=message):
        tf.saved_model.save(module, str(tmp_path / "model"), signatures={"serve": serve})


def test_tf_data_in_a_wrapped_function_is_of_one_generation(module, tmp_path):
    serve = one_generation(called(mapped(all_of(module))))
    tf.saved_model.save(module, str(tmp_path / "model"), signatures={"serve": serve})
    served = tf.saved_model.load(str(tmp_path / "model"))
    assert numbers_served(served, module.model, tmp_path) >= {float(n) for n in range(1, 20)}


def numbers_served(served, model, tmp_path, keys=KEYS, asked=50):
    """The numbers of which requests were while generations came, each of which was of one."""
    publisher, seen = Publisher(model, tmp_path / "feed"), set()
    call = served.signatures["serve"]

    def request():
        (answer,) = call(ids=KEYS[:asked]).values()
        seen.add(tuple(np.unique(answer)))

    with again_and_again(request, request, request):
        for number in publish_until(model, publisher, keys, lambda: True, least=19):
            wait_until(lambda: (float(number),) in seen)  # noqa: B023
    assert follower_status(served).errors == 0
    assert {len(numbers) for numbers in seen} == {1}
    return {number for (number,) in seen}


# --- A wrapped function within another one ------------------------------------------------------------


@pytest.mark.parametrize("within", [batched, mapped], ids=lambda within: within.__name__)
def test_a_wrapped_function_that_another_one_calls_in_another_step_is_refused(within, module):
    inner = one_generation(all_of(module))
    op = {"batched": "BatchFunction", "mapped": "MapDataset"}[within.__name__]
    message = f"that calls a function of one_generation in {op}.*want one_generation around one of"
    with pytest.raises(ValueError, match=message):
        one_generation(called(lambda ids: all_of(module)(ids) + within(inner)(ids)))


def test_a_wrapped_function_that_returns_a_dataset_is_refused(module):
    """Its lookups would run when it is read, after the call."""
    rows = lambda ids: tf.data.Dataset.from_tensors(ids).map(all_of(module))  # noqa: E731
    with pytest.raises(ValueError, match="that returns a Dataset, .*; want tensors"):
        one_generation(called(rows))


# --- Uses of what a function captures -----------------------------------------------------------------


def test_uses_are_found_in_functions_within_functions():
    variables = [tf.Variable(float(n), name=f"v{n}") for n in range(4)]
    first, second, third, fourth = variables

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def function(n):
        def again(i, total):
            inner = tf.switch_case(n, [second.read_value, lambda: third + 1.0])
            return i + 1, total + inner

        total = tf.while_loop(lambda i, _: tf.cast(i, tf.float32) < first, again, (0, 0.0))[1]
        parts = tf.data.Dataset.range(3).map(lambda i: fourth + tf.cast(i, tf.float32))
        return total + parts.reduce(0.0, lambda a, b: a + b)

    names = {id(variable.handle): variable.name[:2] for variable in variables}
    found = {
        (names[id(use.handle)], tuple(around.op for around in use.around))
        for use in uses_in(function.get_concrete_function())
    }
    assert found == {
        ("v0", ("While",)),
        ("v1", ("While", "Case")),
        ("v2", ("While", "Case")),
        ("v3", ("MapDataset",)),
    }


# --- Two followers ------------------------------------------------------------------------------------


def copy_of(what, tmp_path):
    """What a Follower takes, twice: objects that share their tables."""
    if what == "variable":
        table = tf_dynemb.Variable(dim=1, name="t")
        return table, {"t": table}
    if what == "sharded":
        table = tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 2, name="t")
        return table, table
    loaded = export_and_load(agreeing(), str(tmp_path / "model"))
    return loaded, loaded


@pytest.mark.parametrize("what", ["variable", "sharded", "loaded"])
def test_a_second_follower_of_a_model_is_refused_until_the_first_is_closed(what, tmp_path):
    one, same = copy_of(what, tmp_path)
    first = Follower(one, tmp_path / "feed", name="one")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"table '\w+', which the Follower 'one' of .*feed follows"):
            Follower(same, tmp_path / "other", name="two")
    first.close()
    with Follower(same, tmp_path / "other", name="two") as second:
        first.close()  # again, which leaves the second one's
        with pytest.raises(ValueError, match="the Follower 'two'"):
            Follower(one, tmp_path / "feed")
        assert second.poll().generation is None
    third = Follower(one, tmp_path / "feed")
    del third  # as good as closed
    Follower(one, tmp_path / "feed").close()


def test_followers_of_copies_follow_one_feed(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    table.upsert(int64([7]), [[1.0]])
    Publisher(table, tmp_path / "feed").publish()
    copies = [tf_dynemb.Variable(dim=1, name="t") for _ in range(2)]
    followers = [Follower(copy, tmp_path / "feed") for copy in copies]
    assert [follower.poll().generation for follower in followers] == [1, 1]
