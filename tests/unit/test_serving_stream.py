"""A feed over a socket: followers of feed://host:port are the trainer, and who may do what there."""

import gc
import http.client
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
import trustme
from test_serving_feed import damage_delta, go_on, make_model, values_of
from test_serving_follow import IDS, wait_for, wait_until

import tf_dynemb
from tf_dynemb.serving import Follower, Publisher, follower_status
from tf_dynemb.serving.feed import Feed

HERE = "127.0.0.1:0"


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch):
    for name in ("TF_DYNEMB_FEED_SECRET", "TF_DYNEMB_FEED_CA"):
        monkeypatch.delenv(name, raising=False)


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


def exported(model, tmp_path, follow):
    with tf_dynemb.for_serving(follow=follow, poll_seconds=0.005):
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
        assert "got trusted certificates from" in status.last_error
        # Nor does it answer who speaks without TLS.
        status = Follower(model, publisher.address.replace("feeds:", "feed:")).poll()
        assert status.generation is None and status.errors == 1


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


def test_a_port_that_another_has_taken_meanwhile_is_a_warning(tmp_path):
    model = make_model()
    with Publisher(model, tmp_path / "feed", stream=HERE) as publisher:
        host, _, port = publisher.address.partition("://")[2].rpartition(":")
        publisher._stream._process.kill()
        publisher._stream._process.wait()
        with socket.create_server((host, int(port))):
            with pytest.warns(UserWarning, match="Address already in use.*followers wait"):
                assert publisher.publish() == 1
        assert publisher.publish() == 2
        assert Follower(make_model(seed=1), publisher.address).poll().generation == 2


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
        host, _, port = publisher.address.partition("://")[2].rpartition(":")
        stuck = socket.create_connection((host, int(port)))
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
    host, _, port = trainer.stdout.readline().strip().partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        trainer.kill()
        trainer.communicate()
        assert connection.recv(1) == b""  # it is closed

    def is_free():
        try:
            socket.create_server((host, int(port))).close()
        except OSError:
            return False
        return True

    wait_until(is_free)


class Silent(threading.Thread):
    """Accepts connections and never says a word, until the other side closes them."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"feed://127.0.0.1:{self.listening.getsockname()[1]}"
        self.asked = threading.Event()
        self.start()

    def run(self):
        connection, _ = self.listening.accept()
        while connection.recv(1 << 16):
            self.asked.set()


def test_a_server_that_says_nothing_does_not_keep_a_model(tmp_path):
    """The request is broken off when the model goes; otherwise it would take half a minute."""
    silent = Silent()
    loaded = exported(make_model(), tmp_path, silent.address)
    assert silent.asked.wait(60)
    np.testing.assert_array_equal(loaded.serve(IDS).shape, (200, 2))
    del loaded
    gc.collect()
    silent.join(20)
    assert not silent.is_alive()


# --- the server alone ---------------------------------------------------------------------------------


def ask(address, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_reads_files_ranges_and_folders(server, tmp_path):
    feed = Feed(tmp_path / "feed")
    feed.make()
    content = bytes(range(256)) * 9
    (tmp_path / "feed" / "data" / "some").write_bytes(content)
    assert ask(server, "GET", "/data/some") == (200, content)
    assert ask(server, "GET", "/data/some", Range="bytes=256-1279") == (206, content[256:1280])
    assert ask(server, "GET", "/data/some", Range="bytes=5000-6000")[0] == 416
    assert ask(server, "HEAD", "/data/some") == (200, b"")
    assert ask(server, "GET", "/data/") == (200, b"some\n")
    assert ask(server, "GET", "/data")[0] == 301
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
        "/",
    ],
)
def test_nothing_outside_of_the_feed_can_be_read_or_written(path, server, tmp_path):
    Feed(tmp_path / "feed").make()
    for place in ("secret", "feed/secret", "feed/PUBLISHER", "feed/data/.hidden"):
        (tmp_path / place).write_text("secret")
    for method in ("GET", "PUT", "DELETE", "POST"):
        status, answer = ask(server, method, path, b"changed" if method == "PUT" else None)
        assert status in (400, 404, 405) and b"secret" not in answer, (method, status, answer)
    assert (tmp_path / "secret").read_text() == (tmp_path / "feed/secret").read_text() == "secret"


def test_followers_heartbeats_alone_are_written(server, tmp_path):
    Feed(tmp_path / "feed").make()
    assert ask(server, "PUT", "/followers/one", b"{}")[0] == 200
    assert ask(server, "PUT", "/followers/one", b'{"beat": 2}')[0] == 200
    assert Feed(tmp_path / "feed").heartbeats() == {"one": {"beat": 2}}
    assert ask(server, "PUT", "/followers/large", bytes(1 << 20))[0] == 413
    assert ask(server, "PUT", "/generations/000000000009", b"{}")[0] == 405
    assert ask(server, "DELETE", "/data/some")[0] == 405
    assert ask(server, "PUT", "/followers/.one", b"{}")[0] == 400
    assert os.listdir(tmp_path / "feed" / "followers") == ["one"]
    assert ask(server, "DELETE", "/followers/one")[0] == 200
    assert ask(server, "DELETE", "/followers/one")[0] == 404
    for path in (f"feed://{server}/data/x", f"feed://{server}/generations/1"):
        with pytest.raises(tf.errors.OpError, match="405"):
            with tf.io.gfile.GFile(path, "wb") as file:
                file.write(b"x")
    with pytest.raises(tf.errors.UnimplementedError, match="publish into the folder that is served"):
        tf.io.gfile.makedirs(f"feed://{server}/data/x")


def test_a_newer_generation_is_told_at_once(server, tmp_path):
    """Of a folder that is not there yet, too; and after a second whatever there is."""
    assert ask(server, "GET", "/newer-than/0") == (200, b"0\n")
    Feed(tmp_path / "feed").make()
    assert ask(server, "GET", "/newer-than/0") == (200, b"0\n")
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(ask(server, "GET", "/newer-than/6")))
    generations = tmp_path / "feed" / "generations"
    (generations / "000000000005").touch()
    waiting.start()
    for number in range(6, 2000):  # one of which comes while it waits
        if not waiting.is_alive():
            break
        (generations / f"{number:012}").touch()
        waiting.join(0.01)
    assert answers[0][0] == 200 and int(answers[0][1]) >= 7
    (generations / "000000002000.1234.new").touch()
    assert ask(server, "GET", "/newer-than/1999")[1] == answers[0][1] or int(answers[0][1]) < 2000


def test_more_requests_than_it_may_answer_are_refused(tmp_path):
    with served(tmp_path / "feed", "--most-requests=2") as address:
        opened = [http.client.HTTPConnection(address, timeout=60) for _ in range(5)]
        for connection in opened:
            connection.request("GET", "/newer-than/0")
        answers = [connection.getresponse().status for connection in opened]
        assert sorted(answers) == [200, 200, 503, 503, 503]
        assert ask(address, "GET", "/newer-than/0")[0] == 200


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
    ("stream", "message"),
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
def test_an_address_that_cannot_be_is_refused(stream, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        Publisher(table(), tmp_path / "feed", stream=stream)
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
    with pytest.raises(ValueError, match="stream: got it for ram://feed"):
        Publisher(table(), "ram://feed", stream=HERE)
    with pytest.raises(ValueError, match="path: got feed://host:7700, where a feed is served"):
        Publisher(table(), "feed://host:7700")
    assert Publisher(table(), tmp_path / "feed").address is None
