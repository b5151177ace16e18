"""A feed over a socket: followers of feed://host:port are the trainer, and who may do what there."""

import contextlib
import gc
import http.client
import http.server
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from damaged_feeds import damage_delta
from feed_models import IDS, export_following, go_on, make_model, values_of, wait_for
from feed_servers import HERE
from side_by_side import wait_until

import tf_dynemb
from tf_dynemb.serving import Follower, Publisher, follower_status, stream
from tf_dynemb.serving.feed import Feed

pytestmark = pytest.mark.usefixtures("no_settings_of_feeds")


@pytest.fixture(autouse=True)
def _no_follower_stays(tmp_path):
    """A follower that is left over would follow the next test whose server gets the same port."""
    yield
    if (tmp_path / "model").exists():
        gc.collect()


def table():
    return tf_dynemb.Variable(dim=2)


def host_and_port(address):
    host, _, port = address.partition("://")[2].rpartition(":")
    return host, int(port)


def exported(model, tmp_path, address, **options):
    return tf.saved_model.load(export_following(model, tmp_path, follow=address, **options))


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


def test_generations_come_whole_in_parts(tmp_path):
    """By a server between, which sends at most 150 bytes of a file at a time."""
    model, draw, states, parts = make_model(), random.Random(7), {}, []
    with Publisher(model, tmp_path / "feed", stream=HERE) as publisher:

        def a_little(handler):
            headers = {}
            if "Range" in handler.headers:
                first = int(re.match(r"bytes=(\d+)-", handler.headers["Range"])[1])
                headers["Range"] = f"bytes={first}-{first + 149}"
            connection = http.client.HTTPConnection(*host_and_port(publisher.address))
            # `say` leaves the body out where HEAD is asked, and says how long it is.
            method = handler.command.replace("HEAD", "GET")
            connection.request(method, handler.path, headers=headers)
            answer = connection.getresponse()
            part = answer.headers.get("Content-Range")
            handler.say(answer.status, answer.read(), **({"Content-Range": part} if part else {}))
            parts.append(part)

        with answering(a_little) as address:
            loaded = exported(model, tmp_path, address)
            for number in range(1, 4):
                go_on(model, publisher, draw, states)
                wait_for(loaded, number)
                np.testing.assert_array_equal(loaded.serve(IDS), model(IDS))
            del loaded
            gc.collect()
    assert len(list(filter(None, parts))) > 30


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
