"""A feed over a socket: followers of feed://host:port are the trainer, and who may do what there."""

import contextlib
import gc
import http.client
import http.server
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
import trustme
from side_by_side import wait_until
from test_serving_feed import damage_delta, go_on, make_model, values_of
from test_serving_follow import IDS, wait_for

import tf_dynemb
from tf_dynemb.serving import Follower, Publisher, follower_status, stream
from tf_dynemb.serving.feed import Feed

HERE = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch):
    for name in ("TF_DYNEMB_FEED_SECRET", "TF_DYNEMB_FEED_CA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_follower_stays(tmp_path):
    """A follower that is left over would follow the next test whose server gets the same port."""
    yield
    if (tmp_path / "model").exists():
        gc.collect()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Files of a certificate of this machine, its key, and of who has signed it."""
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return folder


@pytest.fixture
def server(tmp_path):
    """Serves tmp_path / "feed"; gives host and port."""
    with served(tmp_path / "feed") as address:
        yield address


class served:
    def __init__(self, folder, *flags):
        command = [
            sys.executable,
            "-m",
            "tf_dynemb_cli",
            "feed",
            str(folder),
            f"--listen={HERE}",
            *flags,
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def __enter__(self):
        return self.process.stdout.readline().strip().partition("://")[2]

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()
        assert self.process.returncode == 0


def host_and_port(address):
    host, _, port = address.partition("://")[2].rpartition(":")
    return host, int(port)


def exported(model, tmp_path, follow, poll_seconds=0.005):
    with tf_dynemb.for_serving(follow=follow, poll_seconds=poll_seconds):
        model.export(tmp_path / "model", verbose=False)
    return tf.saved_model.load(str(tmp_path / "model"))


@pytest.mark.parametrize("protected", [False, True])
def test_followers_are_the_trainer_at_every_generation(protected, certificates, tmp_path, monkeypatch):
    """One in C++, inside a SavedModel, and one in Python; with a secret and TLS, and without."""
    tls = {}
    if protected:
        monkeypatch.setenv("TF_DYNEMB_FEED_SECRET", "sesame")
        monkeypatch.setenv("TF_DYNEMB_FEED_CA", str(certificates / "authority.pem"))
        tls = {
            "stream_certificate": certificates / "certificate.pem",
            "stream_key": certificates / "key.pem",
        }
    model, draw, states = make_model(), random.Random(7), {}
    with Publisher(model, tmp_path / "feed", stream=HERE, **tls) as publisher:
        assert publisher.address.startswith("feeds://" if protected else "feed://")
        loaded = exported(model, tmp_path, publisher.address)
        other = make_model(seed=1)
        with Follower(other, publisher.address, "python", background=True) as follower:
            for number in range(1, 7):
                go_on(model, publisher, draw, states)
                status = wait_for(loaded, number)
                wait_until(lambda number=number: follower.status.generation == number)
                np.testing.assert_array_equal(loaded.serve(IDS), model(IDS))
                assert values_of(other) == states[number]
            assert (status.errors, status.full_copies) == (0, 1)
            assert (follower.status.errors, follower.status.full_copies) == (0, 1)
            late = make_model(seed=2)
            late_follower = Follower(late, publisher.address, "late")
            assert late_follower.poll().generation == 6
            assert values_of(late) == states[6]
            assert late_follower.rollback(4).generation == 4
            assert values_of(late) == states[4]
            beats = Feed(tmp_path / "feed").heartbeats()
            assert {"python", "late"} < beats.keys() and len(beats) == 3
            assert beats["late"]["generation"] == 4
            late_follower.close()
        assert len(Feed(tmp_path / "feed").heartbeats()) == 1


@pytest.mark.parametrize("secret", [None, "Sesame", "sesame1"])
def test_who_does_not_know_the_secret_gets_nothing(secret, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_DYNEMB_FEED_SECRET", "sesame")
    model = make_model()
    with Publisher(model, tmp_path / "feed", stream=HERE) as publisher:
        publisher.publish()
        if secret is None:
            monkeypatch.delenv("TF_DYNEMB_FEED_SECRET")
        else:
            monkeypatch.setenv("TF_DYNEMB_FEED_SECRET", secret)
        loaded = exported(model, tmp_path, publisher.address)
        follower = Follower(make_model(seed=1), publisher.address)
        status = follower.poll()
        assert status.generation is None and "want the secret of this feed" in status.last_error
        wait_until(lambda: "want the secret of this feed" in follower_status(loaded).last_error)
        assert follower_status(loaded).generation is None
        assert Feed(tmp_path / "feed").heartbeats() == {}
        # With the right one they go on.
        monkeypatch.setenv("TF_DYNEMB_FEED_SECRET", "sesame")
        assert follower.poll().generation == 1
        wait_for(loaded, 1)


def test_a_server_that_nobody_vouches_for_is_not_followed(certificates, tmp_path):
    tls = {
        "stream_certificate": certificates / "certificate.pem",
        "stream_key": certificates / "key.pem",
    }
    model = make_model()
    with Publisher(model, tmp_path / "feed", stream=HERE, **tls) as publisher:
        publisher.publish()
        status = Follower(model, publisher.address).poll()
        assert status.generation is None
        assert "TF_DYNEMB_FEED_CA names a file of certificates to trust" in status.last_error
        # Nor does it answer who speaks without TLS.
        status = Follower(model, publisher.address.replace("feeds:", "feed:")).poll()
        assert status.generation is None and "feeds:// for one with it" in status.last_error


def test_followers_go_on_when_the_server_has_died(tmp_path):
    """At the same port, from the generation that they have: no second full copy."""
    model, draw, states = make_model(), random.Random(3), {}
    publisher = Publisher(model, tmp_path / "feed", stream=HERE)
    address = publisher.address
    loaded = exported(model, tmp_path, address)
    go_on(model, publisher, draw, states)
    wait_for(loaded, 1)
    publisher._stream._process.send_signal(signal.SIGKILL)
    publisher._stream._process.wait()
    wait_until(lambda: follower_status(loaded).errors > 0)
    go_on(model, publisher, draw, states)
    assert publisher.address == address
    status = wait_for(loaded, 2)
    np.testing.assert_array_equal(loaded.serve(IDS), model(IDS))
    assert status.full_copies == 1
    # Another trainer, whose first generation is a full copy.
    publisher.close()
    again = Publisher(model, tmp_path / "feed", stream=address.partition("://")[2])
    go_on(model, again, draw, states)
    assert wait_for(loaded, 3).full_copies == 2
    np.testing.assert_array_equal(loaded.serve(IDS), model(IDS))
    again.close()


def test_a_port_that_another_has_taken_meanwhile_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_START_AGAIN_SECONDS", 0.0)
    model = make_model()
    with Publisher(model, tmp_path / "feed", stream=HERE) as publisher:
        host, port = host_and_port(publisher.address)
        publisher._stream._process.kill()
        publisher._stream._process.wait()
        with socket.create_server((host, port)):
            publisher.publish()  # starts it again
            publisher._stream._process.wait()
            with pytest.warns(UserWarning, match="Address already in use.*followers wait"):
                assert publisher.publish() == 2
            publisher._stream._process.wait()
        with pytest.warns(UserWarning, match="Address already in use"):
            publisher.publish()
        follower = Follower(make_model(seed=1), publisher.address)
        wait_until(lambda: follower.poll().generation == 3)


def test_what_is_damaged_is_noticed_and_healed(tmp_path):
    model, draw, states = make_model(), random.Random(7), {}
    with Publisher(model, tmp_path / "feed", stream=HERE) as publisher:
        for _ in range(3):
            go_on(model, publisher, draw, states)
        damage_delta(tmp_path, 3)
        other = make_model(seed=1)
        follower = Follower(other, publisher.address)
        status = follower.poll()
        assert (status.generation, status.newest) == (2, 3) and values_of(other) == states[2]
        go_on(model, publisher, draw, states)
        assert follower.poll().generation == 4 and values_of(other) == states[4]


def test_a_follower_that_takes_nothing_keeps_nobody(tmp_path):
    """It asks for a file larger than all buffers and reads none of it; generations come and go."""
    model, draw, states = make_model(), random.Random(7), {}
    with Publisher(model, tmp_path / "feed", stream=HERE, keep_generations=1) as publisher:
        go_on(model, publisher, draw, states)
        large = tmp_path / "feed" / "data" / Feed(tmp_path / "feed").read(1).folder / "large"
        large.write_bytes(bytes(64 << 20))
        stuck = socket.create_connection(host_and_port(publisher.address))
        stuck.sendall(f"GET /data/{large.parent.name}/large HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert stuck.recv(8) == b"HTTP/1.1"
        other = make_model(seed=1)
        follower = Follower(other, publisher.address)
        for number in range(2, 6):
            go_on(model, publisher, draw, states)
            assert follower.poll().generation == number and values_of(other) == states[number]
        stuck.close()


def test_the_server_ends_with_its_trainer(tmp_path):
    program = (
        "import sys, tf_dynemb; from tf_dynemb.serving import Publisher\n"
        "table = tf_dynemb.Variable(dim=2)\n"
        "publisher = Publisher(table, sys.argv[1], stream='127.0.0.1:0')\n"
        "print(publisher.address, flush=True)\n"
        "sys.stdin.read()\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "feed")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    host, port = host_and_port(trainer.stdout.readline().strip())
    with socket.create_connection((host, port)) as connection:
        trainer.kill()
        trainer.communicate()
        assert connection.recv(1) == b""  # it is closed

    def is_free():
        try:
            socket.create_server((host, port)).close()
        except OSError:
            return False
        return True

    wait_until(is_free)


@contextlib.contextmanager
def answering(answer):
    """A server that is none of ours: answer(handler) is what it does; gives its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer(self)

        do_HEAD = do_PUT = do_DELETE = do_GET

        def log_message(self, *_):
            pass

        def say(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"feed://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_says_nothing_does_not_keep_a_model(tmp_path):
    """The request is broken off when the model goes; who has never answered hears no farewell."""
    asked, ended = threading.Event(), threading.Event()

    def say_nothing(handler):
        asked.set()
        ended.wait()

    with answering(say_nothing) as address:
        loaded = exported(make_model(), tmp_path, address)
        assert asked.wait(60)
        assert loaded.serve(IDS).shape == (200, 2)
        begun = time.monotonic()
        del loaded
        gc.collect()
        # A second; without that it would be ten, after which a silent server is given up, or twenty.
        assert time.monotonic() - begun < 8
        ended.set()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda h: h.say(301, Location=f"https://elsewhere{h.path}"),
            "got HTTP status 301 to 'https://",
        ),
        (lambda h: h.say(404, b"<html>"), "HTTP status 404"),
        (lambda h: h.say(200, b"<html>welcome</html>"), "got '<html>.*want a number; no feed is served"),
        (lambda h: h.say(500, b"no\n"), "HTTP status 500: no"),
    ],
)
def test_an_address_where_no_feed_is_served_is_an_error(answer, message, tmp_path):
    with answering(answer) as address:
        loaded = exported(make_model(), tmp_path, address)
        with Follower(make_model(seed=1), address, background=True) as follower:
            wait_until(lambda: re.search(message, follower.status.last_error))
            wait_until(lambda: re.search(message, follower_status(loaded).last_error))
            assert follower.status.generation is follower_status(loaded).generation is None


def test_a_server_that_knows_no_parts_of_files(tmp_path):
    """It sends all of a file each time: right for a small one, an error for a large one."""
    small, large = bytes(range(256)) * 5000, bytes(65 << 20)
    files = {"/data/small": small, "/data/large": large}
    with answering(lambda h: h.say(200, files[h.path])) as address:
        tf.io.gfile.copy(f"{address}/data/small", str(tmp_path / "small"))
        assert (tmp_path / "small").read_bytes() == small
        with pytest.raises(tf.errors.FailedPreconditionError, match="sends parts of files"):
            tf.io.gfile.copy(f"{address}/data/large", str(tmp_path / "large"))


def test_a_server_that_sends_less_than_was_asked_for(tmp_path):
    """A part that is shorter is no end of the file."""
    content = bytes(range(256)) * 100

    def a_little(handler):
        first = int(re.match(r"bytes=(\d+)-", handler.headers.get("Range", "bytes=0-"))[1])
        part = content[first : first + 1000]
        where = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        handler.say(206 if part else 416, part, Content_Range=where)

    with answering(a_little) as address:
        tf.io.gfile.copy(f"{address}/data/some", str(tmp_path / "some"))
        assert (tmp_path / "some").read_bytes() == content


def test_a_listing_that_lags_behind_does_not_make_followers_spin(tmp_path):
    """newer-than tells of a generation that the folder, as a cache has it, does not show yet."""
    polls = []

    def behind(handler):
        if handler.path.startswith("/newer-than/"):
            handler.say(200, b"1\n")
        elif handler.path == "/generations/":
            polls.append(handler.path)
            handler.say(200)
        else:
            handler.say(200)

    with answering(behind) as address:
        loaded = exported(make_model(), tmp_path, address, poll_seconds=3600)
        with Follower(make_model(), address, background=True, poll_seconds=3600):
            wait_until(lambda: len(polls) >= 4)  # two of each, and then an hour's pause
            assert follower_status(loaded).errors == 0
            with Follower(make_model(), address) as other:
                for _ in range(100):  # which gives the others time for many more
                    other.poll()
            assert len(polls) == 4 + 100
    del loaded


def test_the_secret_goes_to_the_feed_alone(tmp_path, monkeypatch):
    """Not to a proxy, and not where a server redirects to."""
    got = []
    monkeypatch.setenv("TF_DYNEMB_FEED_SECRET", "sesame")
    with answering(lambda h: got.append(h.path) or h.say(404)) as elsewhere:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, elsewhere.replace("feed:", "http:"))
        place = elsewhere.replace("feed:", "http:")
        with answering(lambda h: h.say(302, Location=f"{place}{h.path}/")) as address:
            with pytest.raises(tf.errors.FailedPreconditionError, match="got HTTP status 302"):
                tf.io.gfile.GFile(f"{address}/data/some", "rb").read(9)
    assert got == []


@pytest.mark.parametrize("secret", ["", "sesame\n", "open sesame", "sésame"])
def test_a_secret_that_cannot_be_sent_is_refused_on_both_sides(secret, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_DYNEMB_FEED_SECRET", secret)
    message = "TF_DYNEMB_FEED_SECRET: want letters, digits and signs of ASCII"
    with pytest.raises(ValueError, match=f"stream: {message}"):
        Publisher(table(), tmp_path / "feed", stream=HERE)
    status = Follower(table(), "feed://127.0.0.1:1").poll()
    assert message in status.last_error


def test_a_server_that_is_started_again_has_the_same_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_DYNEMB_FEED_SECRET", "sesame")
    with Publisher(make_model(), tmp_path / "feed", stream=HERE) as publisher:
        monkeypatch.delenv("TF_DYNEMB_FEED_SECRET")
        publisher._stream._process.kill()
        publisher._stream._process.wait()
        publisher.publish()
        follower = Follower(make_model(seed=1), publisher.address)
        wait_until(lambda: "want the secret" in follower.poll().last_error)


def test_a_forked_child_does_not_keep_the_server(tmp_path):
    """It has the pipe by whose end the server would know that its trainer has gone."""
    with Publisher(table(), tmp_path / "feed", stream=HERE) as publisher:
        process = publisher._stream._process
        child = subprocess.Popen(["sleep", "600"], pass_fds=[process.stdin.fileno()])
        try:
            publisher.close()
            assert process.returncode == 0  # it was asked to end, and not killed
        finally:
            child.kill()
            child.wait()


# --- the server alone ---------------------------------------------------------------------------------


def made(feed):
    with feed.begun():
        return feed


def ask(address, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_reads_files_ranges_and_folders(server, tmp_path):
    feed = Feed(tmp_path / "feed")
    made(feed)
    content = bytes(range(256)) * 9
    (tmp_path / "feed" / "data" / "some").write_bytes(content)
    assert ask(server, "GET", "/data/some") == (200, content)
    assert ask(server, "GET", "/data/some", Range="bytes=256-1279") == (206, content[256:1280])
    assert ask(server, "GET", "/data/some", Range="bytes=5000-6000")[0] == 416
    assert ask(server, "HEAD", "/data/some") == (200, b"")
    assert ask(server, "GET", "/data/") == (200, b"some\n")
    assert ask(server, "GET", "/data")[0] == 301
    assert ask(server, "GET", "/") == (200, b"data\nfollowers\ngenerations\n")
    for folder in ("", "/", "/data", "/data/"):
        assert tf.io.gfile.exists(f"feed://{server}{folder}") and tf.io.gfile.isdir(
            f"feed://{server}{folder}"
        )
    path = f"feed://{server}/data/some"
    assert tf.io.gfile.exists(path) and not tf.io.gfile.exists(f"{path}2")
    assert (tf.io.gfile.stat(path).length, tf.io.gfile.isdir(path)) == (len(content), False)
    assert tf.io.gfile.listdir(f"feed://{server}/data") == ["some"]
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(300)
        assert file.read(700) == content[300:1000] and file.read() == content[1000:]
    tf.io.gfile.copy(path, str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == content
    with pytest.raises(tf.errors.NotFoundError, match="there is no such file in the feed"):
        tf.io.gfile.GFile(f"{path}2", "rb").read(9)
    with pytest.raises(tf.errors.InvalidArgumentError, match="got 'feed://.*want feed://host:port"):
        tf.io.gfile.GFile(f"feed://{server}/data/a b", "rb").read()


@pytest.mark.parametrize(
    "path",
    [
        "/PUBLISHER",
        "/../secret",
        "/data/../../secret",
        "/data/%2e%2e/%2e%2e/secret",
        "/data/..%2f..%2fsecret",
        "/data//etc/passwd",
        "/data/.hidden",
        "/%00",
        "/secret",
    ],
)
def test_nothing_outside_of_the_feed_can_be_read_or_written(path, server, tmp_path):
    made(Feed(tmp_path / "feed"))
    for place in ("secret", "feed/secret", "feed/PUBLISHER", "feed/data/.hidden"):
        (tmp_path / place).write_text("secret")
    for method in ("GET", "PUT", "DELETE", "POST"):
        status, answer = ask(server, method, path, b"changed" if method == "PUT" else None)
        assert status in (400, 404, 405) and b"secret" not in answer, (method, status, answer)
    assert (tmp_path / "secret").read_text() == (tmp_path / "feed/secret").read_text() == "secret"


def test_followers_heartbeats_alone_are_written(server, tmp_path):
    made(Feed(tmp_path / "feed"))
    assert ask(server, "PUT", "/followers/one", b"{}")[0] == 200
    assert ask(server, "PUT", "/followers/one", b'{"beat": 2, "other": [1, 2]}')[0] == 200
    assert Feed(tmp_path / "feed").heartbeats() == {"one": {"beat": 2}}
    whole = {"generation": 3, "wants_full": True, "beat": 7, "host": "a", "pid": 1, "pinned": 2}
    assert ask(server, "PUT", "/followers/one", json.dumps(whole).encode())[0] == 200
    assert Feed(tmp_path / "feed").heartbeats() == {"one": whole}
    bad = [b"", b"[1]", b"[" * 1000, b"{", b'{"generation": "x"}', b'{"wants_full": 1}', b"\xff"]
    for body in [*bad, b'{"generation": true}', b'{"host": null}', b'{"pinned": "2"}']:
        assert ask(server, "PUT", "/followers/one", body)[0] == 400, body
    assert ask(server, "PUT", "/followers/large", bytes(1 << 20))[0] == 413
    assert ask(server, "PUT", "/generations/000000000009", b"{}")[0] == 405
    assert ask(server, "DELETE", "/data/some")[0] == 405
    assert ask(server, "PUT", "/followers/.one", b"{}")[0] == 400
    assert Feed(tmp_path / "feed").heartbeats() == {"one": whole}
    assert os.listdir(tmp_path / "feed" / "followers") == ["one"]
    assert ask(server, "DELETE", "/followers/one")[0] == 200
    assert ask(server, "DELETE", "/followers/one")[0] == 404
    for path in (f"feed://{server}/data/x", f"feed://{server}/generations/1"):
        with pytest.raises(tf.errors.OpError, match="405"):
            with tf.io.gfile.GFile(path, "wb") as file:
                file.write(b"x")
    with pytest.raises(tf.errors.UnimplementedError, match="publish into the folder that is served"):
        tf.io.gfile.makedirs(f"feed://{server}/data/x")


def test_heartbeats_that_are_none_do_not_stop_a_publisher(tmp_path):
    """Files in followers/ that are no JSON objects are ignored; old heartbeats are removed."""
    with Publisher(table(), tmp_path / "feed", forget_followers_after_seconds=1e-9) as publisher:
        (tmp_path / "feed" / "followers" / "deep").write_text("[" * 60000)
        (tmp_path / "feed" / "followers" / "dead").write_text("{}")
        assert publisher.publish() == 1
        assert publisher.publish() == 2
        # One that has not changed for so long is forgotten, and its file removed.
        assert os.listdir(tmp_path / "feed" / "followers") == ["deep"]


def test_what_may_be_cached(tmp_path, monkeypatch):
    feed = Feed(tmp_path / "feed")
    made(feed)
    feed.put(feed.place("data", "some"), b"content")
    feed.put(feed.place("generations", "000000000001"), b"manifest")
    with served(tmp_path / "feed") as address:
        paths = ("/data/some", "/data/none", "/data/", "/generations/000000000001", "/newer-than/0")
        caching = [headers_of(address, path) for path in paths]
        assert caching == ["public, max-age=31536000, immutable"] + 4 * ["no-store"]
    monkeypatch.setenv("TF_DYNEMB_FEED_SECRET", "sesame")
    with served(tmp_path / "feed") as address:
        assert headers_of(address, "/data/some") == "no-store"
        secret = {"Authorization": "Bearer sesame"}
        assert headers_of(address, "/data/some", **secret).startswith("private, ")


def headers_of(address, path, **headers):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    assert answer.headers.get("Vary", "Authorization") == "Authorization"
    return answer.headers["Cache-Control"]


def test_a_newer_generation_is_told_at_once(server, tmp_path):
    """newer-than answers when a generation is added, or after a second; also for a missing folder."""
    assert ask(server, "GET", "/newer-than/0") == (200, b"0\n")
    made(Feed(tmp_path / "feed"))
    assert ask(server, "GET", "/newer-than/0") == (200, b"0\n")
    generations = tmp_path / "feed" / "generations"
    (generations / "000000000005").touch()
    assert ask(server, "GET", "/newer-than/4") == (200, b"5\n")
    (generations / "000000000007.1234.new").touch()
    assert ask(server, "GET", "/newer-than/5") == (200, b"5\n")
    asks = [http.client.HTTPConnection(server, timeout=60) for _ in range(20)]
    for turn in range(6, 9):  # all who wait
        for connection in asks:
            connection.request("GET", f"/newer-than/{turn - 1}")
        (generations / f"{turn:012}").touch()
        assert {connection.getresponse().read() for connection in asks} == {f"{turn}\n".encode()}


def test_more_requests_than_it_may_answer_are_refused(tmp_path):
    """A file that is being sent is one; and of too many connections the oldest are closed."""
    feed = Feed(tmp_path / "feed")
    made(feed)
    feed.put(feed.place("data", "large"), bytes(64 << 20))
    with served(tmp_path / "feed", "--most-requests=2") as address:
        opened = [http.client.HTTPConnection(address, timeout=60) for _ in range(5)]
        for connection in opened:
            connection.request("GET", "/newer-than/0")
        answers = [connection.getresponse().status for connection in opened]
        assert sorted(answers) == [200, 200, 503, 503, 503]
        assert ask(address, "GET", "/newer-than/0")[0] == 200
        stuck = [socket.create_connection(address.split(":")) for _ in range(2)]
        for connection in stuck:
            connection.sendall(b"GET /data/large HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(8) == b"HTTP/1.1"
        assert ask(address, "GET", "/newer-than/0")[0] == 503
        idle = [socket.create_connection(address.split(":")) for _ in range(20)]
        closed = [connection.recv(1) for connection in idle[:10]]
        assert closed == 10 * [b""]
        assert ask(address, "HEAD", "/data/large")[0] == 200  # those that were stuck are cut off as well
        for connection in [*stuck, *idle, *opened]:
            connection.close()


def test_tls_is_spoken_by_others_too(certificates, tmp_path):
    flags = [f"--{name}={certificates / name}.pem" for name in ("certificate", "key")]
    with served(tmp_path / "feed", *flags) as address:
        trusts = ssl.create_default_context(cafile=certificates / "authority.pem")
        with urllib.request.urlopen(f"https://{address}/newer-than/0", context=trusts) as answer:
            assert answer.read() == b"0\n"
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(
                f"https://{address}/newer-than/0", context=ssl.create_default_context()
            )


# --- arguments ----------------------------------------------------------------------------------------


def table():
    return tf_dynemb.Variable(dim=2)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("7700", "stream: got '7700', want HOST:PORT"),
        ("localhost:http", "want HOST:PORT"),
        ("localhost:70000", "want HOST:PORT"),
        (
            "203.0.113.7:0",
            "203.0.113.7:0: Cannot assign requested address; want an address of this machine",
        ),
        ("no.such.host.invalid:0", "stream: .*(not known|resolution|service)"),
    ],
)
def test_an_address_that_cannot_be_is_refused(address, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        Publisher(table(), tmp_path / "feed", stream=address)
    Publisher(table(), tmp_path / "feed").close()  # the feed is not in use


def test_other_arguments_of_streams(certificates, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"stream: {address}: Address already in use"):
            Publisher(table(), tmp_path / "feed", stream=address)
    with pytest.raises(ValueError, match="missing.pem: no certificate with its key can be read"):
        Publisher(table(), tmp_path / "feed", stream=HERE, stream_certificate="missing.pem")
    with pytest.raises(ValueError, match="no certificate with its key"):  # which has no key
        certificate = certificates / "certificate.pem"
        Publisher(table(), tmp_path / "feed", stream=HERE, stream_certificate=certificate)
    with pytest.raises(ValueError, match="got them without stream"):
        Publisher(table(), tmp_path / "feed", stream_key="key.pem")
    with pytest.raises(ValueError, match="stream: got .* for ram://feed"):
        Publisher(table(), "ram://feed", stream=HERE)
    with pytest.raises(ValueError, match="path: got feed://host:7700, where a feed is served"):
        Publisher(table(), "feed://host:7700")
    assert Publisher(table(), tmp_path / "feed").address is None
