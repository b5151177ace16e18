"""The server of a feed alone: which files it reads and writes for whom, and when it refuses."""

import http.client
import json
import os
import socket
import ssl
import urllib.error
import urllib.request

import pytest
import tensorflow as tf
from feed_servers import make_certificates, served
from side_by_side import wait_until

import tf_dynemb
from tf_dynemb.serving import Publisher
from tf_dynemb.serving.feed import Feed

pytestmark = pytest.mark.usefixtures("no_settings_of_feeds")


@pytest.fixture
def server(tmp_path):
    """Serves tmp_path / "feed"; gives host and port."""
    with served(tmp_path / "feed") as address:
        yield address


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
    table = tf_dynemb.Variable(dim=2)
    with Publisher(table, tmp_path / "feed", forget_followers_after_seconds=1e-9) as publisher:
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
        for connection in opened:  # which wait and do not count
            connection.request("GET", "/newer-than/0")
        assert ask(address, "GET", "/generations/")[0] == 200
        assert [connection.getresponse().status for connection in opened] == 5 * [200]
        stuck = [socket.create_connection(address.split(":")) for _ in range(2)]
        for connection in stuck:
            connection.sendall(b"GET /data/large HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(8) == b"HTTP/1.1"
        assert ask(address, "GET", "/generations/")[0] == 503
        assert ask(address, "GET", "/newer-than/0")[0] == 200
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


@pytest.mark.parametrize(("before", "after"), [("ECDSA", "ECDSA"), ("ECDSA", "RSA"), ("RSA", "ECDSA")])
def test_a_renewed_certificate_is_used_by_connections_that_begin_then(before, after, tmp_path):
    place, other, errors = tmp_path / "tls", tmp_path / "other", tmp_path / "errors"
    for folder, kind in ((place, before), (other, after)):
        folder.mkdir()
        make_certificates(folder, kind)
    first, second = ((folder / "certificate.pem").read_text() for folder in (place, other))
    flags = [f"--{name}={place / name}.pem" for name in ("certificate", "key")]
    with served(tmp_path / "feed", *flags, errors=errors) as address:
        host, port = address.split(":")

        def has(certificate):
            return ssl.get_server_certificate((host, int(port))).split() == certificate.split()

        assert has(first)
        (place / "certificate.pem").write_text(second)  # without its key
        wait_until(lambda: "no certificate with its key" in errors.read_text())
        assert has(first)
        os.replace(other / "key.pem", place / "key.pem")
        wait_until(lambda: has(second))
        trusts = ssl.create_default_context(cafile=other / "authority.pem")
        with urllib.request.urlopen(f"https://{address}/newer-than/0", context=trusts) as answer:
            assert answer.read() == b"0\n"
