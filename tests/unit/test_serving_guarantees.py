"""What "Online learning, end to end" guarantees of followers, in the ways in which it could break."""

import contextlib
import functools
import gc
import http.client
import http.server
import json
import os
import random
import threading
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from feed_models import (
    IDS,
    agreeing,
    change,
    export_following,
    make_model,
    publish_until,
    set_all,
    values_of,
    wait_for,
)
from side_by_side import again_and_again, wait_until
from table_rows import int64

import tf_dynemb
from tf_dynemb.policies import LFU, LRU, Score, SmallNorm
from tf_dynemb.serving import Follower, Publisher, follower_status, one_generation, rollback
from tf_dynemb.serving import publisher as publisher_module
from tf_dynemb.serving.feed import Feed
from tf_dynemb.serving.switch import Switch
from tf_dynemb.table.table_resource import TableResource

KEYS = tf.range(100, dtype=tf.int64)


def numbers_in(outputs):
    return {float(number) for output in tf.nest.flatten(outputs) for number in np.unique(output)}


def follower_file(feed):
    (name,) = [name for name in os.listdir(feed / "followers") if not name.endswith(".new")]
    return name


# --- What a follower needs stays ----------------------------------------------------------------------


def publish_many(table, publisher, times):
    """Of which the newest alone would stay, and each has a full copy."""
    for _ in range(times):
        table.upsert(int64([7]), [[float(publisher.generation + 1)]])
        publisher._bytes_since_full = 1 << 60
        publisher.publish()


def small_feed(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t", initializer="zeros")
    publisher = Publisher(table, tmp_path / "feed", keep_generations=2)
    publish_many(table, publisher, 3)
    return table, publisher


def test_a_full_copy_that_takes_long_to_load_stays(tmp_path, monkeypatch):
    """For a follower that begins, too: by the time that it has it, others may have come and gone."""
    table, publisher = small_feed(tmp_path)
    other = tf_dynemb.Variable(dim=1, name="t", initializer="zeros")
    follower = Follower(other, tmp_path / "feed")
    install, installed = follower._install, []

    def slowly(generation, *then):
        publish_many(table, publisher, 5)
        install(generation, *then)
        installed.append(generation.number)

    monkeypatch.setattr(follower, "_install", slowly)
    status = follower.poll()
    assert (status.generation, status.errors) == (3, 0) and installed == [3]
    status = follower.poll()
    assert (status.generation, status.errors, status.full_copies) == (8, 0, 1)
    assert other.lookup(int64([7])).numpy() == [[8.0]]
    assert Feed(tmp_path / "feed").numbers()[0] == 3
    publish_many(table, publisher, 3)
    assert Feed(tmp_path / "feed").numbers()[0] > 3


class Beats:
    """The heartbeats that a follower in Python writes; `has_more` is set at the third from now on."""

    def __init__(self, follower, monkeypatch):
        self.said, self.has_more = [], threading.Event()
        self._put, self._enough = follower._feed.put, 3
        monkeypatch.setattr(follower._feed, "put", self.put)

    def put(self, place, content):
        self._put(place, content)
        self.said.append(json.loads(content))
        if len(self.said) >= self._enough:
            self.has_more.set()

    def wait_for_more(self):
        self._enough = len(self.said) + 3
        self.has_more.clear()
        assert self.has_more.wait(60)


@pytest.mark.parametrize("what", ["_install", "_apply"])
def test_a_follower_tells_that_it_lives_while_it_loads(what, tmp_path, monkeypatch):
    table, publisher = small_feed(tmp_path)
    other = tf_dynemb.Variable(dim=1, name="t", initializer="zeros")
    follower = Follower(other, tmp_path / "feed", heartbeat_seconds=0.001)
    if what == "_apply":
        follower.poll()
        table.upsert(int64([7]), [[5.0]])
        publisher.publish()
    beats, load = Beats(follower, monkeypatch), getattr(follower, what)

    def slowly(*generations):
        beats.wait_for_more()
        load(*generations)

    monkeypatch.setattr(follower, what, slowly)
    assert follower.poll().generation == publisher.generation
    during = {(beat["generation"], beat["needs"]) for beat in beats.said[:-1]}
    assert during >= ({(None, 3)} if what == "_install" else {(3, None)})
    assert [beat["beat"] for beat in beats.said] == sorted(beat["beat"] for beat in beats.said)
    before = len(beats.said)
    assert not [one for one in threading.enumerate() if one.name == "tf_dynemb-heartbeat"]
    assert len(beats.said) == before


def feed_of_changes(tmp_path, generations):
    table = tf_dynemb.Variable(dim=1, name="t", initializer="zeros")
    with Publisher(table, tmp_path / "feed") as publisher:
        for number in range(generations):
            table.upsert(int64([7]), [[float(number)]])
            publisher.publish()


@pytest.mark.parametrize("pinned", [False, True])
def test_a_follower_tells_of_each_generation_while_it_catches_up(pinned, tmp_path, monkeypatch):
    feed_of_changes(tmp_path, 12)
    follower = Follower(tf_dynemb.Variable(dim=1, name="t"), tmp_path / "feed")
    follower.pin(1)
    follower.unpin()
    if pinned:
        rollback(tmp_path / "feed", 12)
    beats = Beats(follower, monkeypatch)
    assert follower.poll().generation == 12
    assert [beat["generation"] for beat in beats.said] == list(range(1, 13))


def test_a_model_tells_of_each_generation_while_it_catches_up(tmp_path):
    feed_of_changes(tmp_path, 12)
    module = tf.Module()
    module.table = table = tf_dynemb.Variable(dim=1, name="t", initializer="zeros")
    spec = tf.TensorSpec([None], tf.int64)
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.005):
        serve = one_generation(
            tf.function(lambda ids: {"rows": table.lookup(ids)}, input_signature=[spec])
        )
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    served = tf.saved_model.load(str(tmp_path / "model"))
    wait_for(served, 12)
    feed = Feed(tmp_path / "feed")
    wait_until(lambda: [beat["generation"] for beat in feed.heartbeats().values()] == [12])
    (beat,) = feed.heartbeats().values()
    assert beat["beat"] >= 12
    del served


class SlowServer(http.server.ThreadingHTTPServer):
    """Between a follower and a stream: the first rows of a full copy come when they are let go."""

    daemon_threads = True

    def __init__(self, address):
        super().__init__(("127.0.0.1", 0), Relay)
        self.behind, self.is_asked, self.may_go = address, threading.Event(), threading.Event()
        self.asked = []  # the paths

    def handle_error(self, request, client_address):
        pass  # a follower that was unloaded


class Relay(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def relay(self):
        self.server.asked.append(self.path)
        if "/full/rows" in self.path:
            self.server.is_asked.set()
            self.server.may_go.wait(60)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(self.server.behind, timeout=60)
        with contextlib.closing(connection):
            named = {name: self.headers[name] for name in ("Range",) if name in self.headers}
            connection.request(self.command, self.path, body, named)
            answer = connection.getresponse()
            content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (
                "transfer-encoding",
                "connection",
                "content-length",
                "server",
                "date",
            ):
                self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_DELETE = relay  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def slow_stream(tmp_path):
    """A model, its publisher, and what followers connect to."""
    model = agreeing()
    publisher = Publisher(model, tmp_path / "feed", stream="127.0.0.1:0", keep_generations=2)
    server = SlowServer(publisher.address.removeprefix("feed://"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield model, publisher, server
    server.may_go.set()
    server.shutdown()
    thread.join()
    publisher.close()


def test_a_thread_that_loads_for_long_keeps_what_it_loads(slow_stream, tmp_path):
    model, publisher, server = slow_stream

    def publish(number):
        set_all(model, KEYS, number)
        publisher._bytes_since_full = 1 << 60
        publisher.publish()

    publish(1)
    with tf_dynemb.for_serving(follow=f"feed://127.0.0.1:{server.server_port}", poll_seconds=0.005):
        model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    assert server.is_asked.wait(60)
    beat = Feed(tmp_path / "feed").heartbeats()[follower_file(tmp_path / "feed")]
    assert (beat["generation"], beat["needs"]) == (None, 1)
    for number in range(2, 8):
        publish(number)
    assert Feed(tmp_path / "feed").numbers()[0] == 1
    server.may_go.set()
    wait_for(served, 7)
    status = follower_status(served)
    assert (status.errors, status.full_copies) == (0, 1)
    assert numbers_in(served.serve(KEYS)) == {7.0}


def test_each_file_of_a_generation_is_fetched_by_one_request(slow_stream, tmp_path):
    """Up to 4 MiB of it: requests cost both machines more than the bytes of a generation do."""
    model, publisher, server = slow_stream
    server.may_go.set()
    with tf_dynemb.for_serving(follow=f"feed://127.0.0.1:{server.server_port}", poll_seconds=0.005):
        model.export(str(tmp_path / "model"), verbose=False)
    served, keys = tf.saved_model.load(str(tmp_path / "model")), tf.range(10_000, dtype=tf.int64)
    for number in (1, 2):
        set_all(model, keys, number)
        publisher.publish()
        assert wait_for(served, number).errors == 0
    folder = f"/data/{Feed(tmp_path / 'feed').read(2).folder}"
    delta = tmp_path / "feed" / folder[1:] / "delta"
    names = [name for name in os.listdir(delta) if name != "LOCK"]
    assert max(os.path.getsize(delta / name) for name in names) > 100_000
    files = [f"{folder}/weights", f"{folder}/delta/", *(f"{folder}/delta/{name}" for name in names)]
    assert sorted(path for path in server.asked if path.startswith(folder)) == sorted(files)


def test_a_thread_that_has_all_asks_for_little(slow_stream, tmp_path):
    """Where each look is a request, it looks for the generation that it serves at heartbeats alone."""
    model, publisher, server = slow_stream
    server.may_go.set()
    with tf_dynemb.for_serving(follow=f"feed://127.0.0.1:{server.server_port}", poll_seconds=0.005):
        model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    set_all(model, KEYS, 1)
    publisher.publish()
    wait_for(served, 1)
    manifest = next(path for path in reversed(server.asked) if path.startswith("/generations/0"))
    before = len(server.asked)
    wait_until(lambda: len([path for path in server.asked[before:] if path == "/generations/"]) >= 4)
    assert server.asked[before:].count(manifest) <= 1


# --- A request sees one generation --------------------------------------------------------------------


def test_a_switch_leaves_alone_what_the_feed_does_not_have(tmp_path):
    """Such as a count of requests, which goes on while a generation is read."""
    module = tf.Module()
    module.table = table = tf_dynemb.Variable(dim=1, initializer="zeros", name="t")
    module.count = tf.Variable(0, name="count", dtype=tf.int64)
    module.scale = tf.Variable(1.0, name="scale")  # of a feed of tables alone, which has no weights
    spec = tf.TensorSpec([], tf.int64)

    @tf.function(input_signature=[spec])
    def serve(times):
        rows = table.lookup(int64([7]))

        def again(i):
            with tf.control_dependencies([module.count.assign_add(1), module.scale.assign_add(1.0)]):
                # It takes a while, so that a switch waits for it.
                return (
                    i + 1 + tf.cast(tf.reduce_sum(tf.fill((40, 40), 1.0) @ tf.zeros((40, 40))), tf.int64)
                )

        (done,) = tf.while_loop(lambda i: i < times, lambda i: (again(i),), (tf.constant(0, tf.int64),))
        return {"rows": rows, "done": done}

    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        serve = one_generation(serve)
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    served = tf.saved_model.load(str(tmp_path / "model"))
    publisher, total = Publisher(table, tmp_path / "feed"), 0
    times = tf.constant(200, tf.int64)

    def count():
        nonlocal total
        total += int(served.signatures["serving_default"](times=times)["done"])
        return total >= 200 * 200 and (follower_status(served).generation or 0) > 3

    with again_and_again(publisher.publish):
        wait_until(count, 240)
    assert follower_status(served).errors == 0
    assert int(served.count) == total and float(served.scale) == total + 1.0


def test_a_function_without_outputs_sees_one_generation_too(tmp_path):
    """What it writes to is all that is known of it."""
    module = tf.Module()
    module.model = model = agreeing()
    module.seen = tf.Variable(tf.zeros([3], tf.int64), name="seen")
    keys = tf.range(9, dtype=tf.int64)

    @tf.function(input_signature=[])
    def look():
        first, _, _ = model(keys)
        wait = tf.while_loop(
            lambda i, _: i < 300,
            lambda i, s: (i + 1, tf.nn.softmax(s @ s)),
            (0, tf.fill((60, 60), 1e-3) + tf.reduce_sum(first) * 0),
        )[1]
        with tf.control_dependencies([wait]):
            _, second, dense = model(keys)
        module.seen.assign(tf.cast([first[0, 0], second[0, 0], dense[0, 0]], tf.int64))

    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        module.look = one_generation(look)
        tf.saved_model.save(module, str(tmp_path / "model"))
    served = tf.saved_model.load(str(tmp_path / "model"))
    publisher, numbers = Publisher(model, tmp_path / "feed"), set()

    def train():
        set_all(model, keys, publisher.generation + 1)
        publisher.publish()

    def look_again():
        served.look()
        seen = set(served.seen.numpy().tolist())
        assert len(seen) == 1, seen
        numbers.update(seen)
        return len(numbers) >= 10

    with again_and_again(train):
        wait_until(look_again)


def test_a_function_without_control_dependencies_sees_one_generation_too(tmp_path):
    """Those of tf.compat.v1.wrap_function have no control outputs: nothing waits for their ends."""
    module = tf.Module()
    module.model = model = agreeing()
    spec = [tf.TensorSpec([None], tf.int64, "ids")]

    def late(ids):
        first, _, _ = model(ids)
        wait = tf.while_loop(
            lambda i, _: i < 300,
            lambda i, s: (i + 1, tf.nn.softmax(s @ s)),
            (0, tf.fill((60, 60), 1e-3) + tf.reduce_sum(first) * 0),
        )[1]
        _, second, dense = model(ids + tf.cast(tf.reduce_sum(wait) * 0, tf.int64))
        return tf.stack([first[0, 0], second[0, 0], dense[0, 0]])

    old = tf.compat.v1.wrap_function(late, spec)
    assert not old.graph.control_outputs
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        module.serve = one_generation(tf.function(lambda ids: old(ids), input_signature=spec))
        tf.saved_model.save(module, str(tmp_path / "model"))
    served = tf.saved_model.load(str(tmp_path / "model"))
    publisher, mixed, seen = Publisher(model, tmp_path / "feed"), [], set()

    def request():
        numbers = set(served.serve(KEYS).numpy().tolist())
        mixed.extend([numbers] * (len(numbers) > 1))
        seen.update(numbers)

    with again_and_again(request, request):
        *_, last = publish_until(model, publisher, KEYS, lambda: len(seen) > 10)
        assert wait_for(served, last).errors == 0
    assert not mixed


def test_two_models_follow_one_feed_in_one_process(tmp_path):
    """And each call is of one generation, of which the two may have different ones."""
    model = agreeing()
    path = export_following(model, tmp_path)
    models = [tf.saved_model.load(path), tf.saved_model.load(path)]
    publisher, mixed, seen = Publisher(model, tmp_path / "feed"), [], [set(), set()]

    def request(index):
        numbers = numbers_in(models[index].serve(KEYS))
        seen[index] |= numbers
        mixed.extend([numbers] * (len(numbers) > 1))

    with again_and_again(*[functools.partial(request, index % 2) for index in range(4)]):
        for number in publish_until(model, publisher, KEYS, lambda: min(map(len, seen)) > 2):
            publisher._bytes_since_full = 1 << 60 if number % 3 == 0 else 0
            if number == 15:
                third = tf.saved_model.load(path)  # that comes and goes meanwhile
                wait_for(third, 15)
                del third
                gc.collect()
        for one in models:
            assert wait_for(one, number).errors == 0
    assert not mixed
    assert len(os.listdir(tmp_path / "feed" / "followers")) == 2


def test_each_call_within_one_function_is_of_one_generation(tmp_path):
    """A tf.function that calls two signatures, and one of them twice, is several requests."""
    model = agreeing()
    archive = keras.export.ExportArchive()
    spec = [tf.TensorSpec([None], tf.int64, "ids")]
    with tf_dynemb.for_serving(follow=tmp_path / "feed", poll_seconds=0.001):
        archive.track_and_add_endpoint("serve", model, spec)
        archive.add_endpoint("again", lambda ids: model(ids), spec)
        archive.write_out(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))

    @tf.function(input_signature=spec)
    def outer(ids):
        mapped = tf.map_fn(
            lambda one: served.serve(one[None])[0][0, 0], ids[:8], fn_output_signature=tf.float32
        )
        return [served.serve(ids), served.again(ids), served.serve(ids)], mapped

    publisher, mixed, seen = Publisher(model, tmp_path / "feed"), [], set()

    def request():
        calls, _ = outer(KEYS)
        for numbers in map(numbers_in, calls):
            mixed.extend([numbers] * (len(numbers) > 1))
            seen.update(numbers)

    with again_and_again(*[request] * 3):
        *_, last = publish_until(model, publisher, KEYS, lambda: len(seen) > 2)
        assert wait_for(served, last).errors == 0
    assert not mixed


def test_models_that_come_and_go_during_switches(tmp_path):
    model, draw = make_model(), random.Random(2)
    path = export_following(model, tmp_path)
    publisher = Publisher(model, tmp_path / "feed")

    def use(served):
        wait_until(lambda: follower_status(served).generation is not None)
        served.serve(IDS)
        assert follower_status(served).errors == 0

    def train():
        change(model, draw)
        publisher.publish()

    with again_and_again(train):
        for _ in range(6):
            use(tf.saved_model.load(path))
            gc.collect()
    assert os.listdir(tmp_path / "feed" / "followers") == []
    late = make_model(seed=4)
    assert Follower(late, tmp_path / "feed").poll().generation == publisher.generation
    assert values_of(late) == values_of(model)


def test_a_request_may_end_in_another_thread(tmp_path):
    """As those of web frameworks do, which enter and leave a context in threads of a pool."""
    switch = Switch()
    with contextlib.ExitStack() as stack:
        thread = threading.Thread(target=stack.enter_context, args=(switch.request(),))
        thread.start()
        thread.join()
        with pytest.raises(TimeoutError, match="1 requests took longer"), switch.change(0.01):
            pass
    for _ in range(2):
        with switch.change(1.0):
            pass
        with switch.request(), switch.request(), pytest.raises(RuntimeError), switch.change(1.0):
            pass


# --- The follower is the trainer ----------------------------------------------------------------------


@pytest.mark.parametrize("devices", [None, ["/CPU:0"] * 3], ids=["one shard", "three shards"])
def test_rows_whose_time_is_over_are_not_served(devices, tmp_path, monkeypatch):
    """At any generation, if there is time to look for them before each; no write comes to their keys."""
    monkeypatch.setattr(publisher_module, "_SHARE_OF_EXPIRY", 1.0)
    expiry = tf_dynemb.policies.TTL(steps=3)
    table = tf_dynemb.Variable(dim=1, name="t", initializer="zeros", eviction=expiry, devices=devices)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([table.handle])
    other = tf_dynemb.Variable(dim=1, name="t", initializer="zeros")
    follower, ids, last_trained = Follower(other, tmp_path / "feed"), np.arange(5020), {}
    with Publisher(table, tmp_path / "feed", full_copy_ratio=1e9) as publisher:
        for step in range(10):
            batch = range(5000) if step == 0 else [5000 + step, 5000 + step // 2]
            last_trained |= dict.fromkeys(batch, step)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_dynemb.embedding_lookup(table, int64(list(batch))))
            optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])
            publisher.publish()
            assert follower.poll().errors == 0 and follower.status.generation == step + 1
            lives = {key for key, trained in last_trained.items() if step - trained <= 3}
            values, has = other.lookup(int64(ids), return_exists=True)
            assert set(ids[has.numpy()].tolist()) == lives
            np.testing.assert_array_equal(values, table.lookup(int64(ids)))
    assert follower.status.full_copies == 1 and follower.status.erased >= 5000


@pytest.mark.parametrize("eviction", [LRU(), LFU(), SmallNorm(), Score(lambda keys: keys * 7 % 61)])
def test_rows_that_were_evicted_are_not_served(eviction, tmp_path):
    """Of a trainer with room for a part of its ids: each generation has what the trainer has."""
    table = tf_dynemb.Variable(dim=2, name="t", initializer="normal", max_rows=60, eviction=eviction)
    other = tf_dynemb.Variable(dim=2, name="t", initializer="normal")
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    optimizer.build([table.handle])
    follower, ids, draw = Follower(other, tmp_path / "feed"), np.arange(400), np.random.default_rng(3)
    with Publisher(table, tmp_path / "feed", full_copy_ratio=1e9) as publisher:
        for step in range(1, 31):
            with tf.GradientTape() as tape:
                rows = tf_dynemb.embedding_lookup(table, int64((400 * draw.random(40) ** 3).astype(int)))
                loss = tf.reduce_sum(rows**2)
            optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])
            if step % 3 == 0:
                publisher.publish()
                assert follower.poll().errors == 0 and follower.status.generation == step // 3
                for got, want in zip(
                    other.lookup(int64(ids), return_exists=True),
                    table.lookup(int64(ids), return_exists=True),
                    strict=True,
                ):
                    np.testing.assert_array_equal(got, want)
    assert int(other.size()) == 60 and follower.status.full_copies == 1
    assert follower.status.erased >= 100 and int(table.metrics()["evicted"]) >= 300


def test_looking_for_rows_whose_time_is_over_takes_a_hundredth_of_the_time(tmp_path, monkeypatch):
    now, passes = [0.0], []

    def look(table):
        passes.append(now[0])
        now[0] += 2.0

    monkeypatch.setattr(
        publisher_module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    )
    monkeypatch.setattr(TableResource, "remove_expired", look)
    expires = tf_dynemb.Variable(dim=1, name="t", eviction=tf_dynemb.policies.TTL(seconds=60))
    stays = tf_dynemb.Variable(dim=1, name="u", eviction=tf_dynemb.policies.LRU(), max_rows=9)
    with Publisher({"t": expires, "u": stays}, tmp_path / "feed") as publisher:
        while now[0] < 1000:
            publisher.publish()
            now[0] += 10.0
    # Of one table; not before the first generation, which has all rows.
    assert passes == [10.0, 212.0, 414.0, 616.0, 818.0]
