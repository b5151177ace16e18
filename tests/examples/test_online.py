"""The example of online learning: clicks change what the model server recommends; bad requests do not.

The server is the C++ program of examples/online/server, which `make test` builds before.
"""

import contextlib
import gzip
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
import tensorflow as tf

ONLINE = pathlib.Path(__file__).parents[2] / "examples" / "online"
sys.path.insert(0, str(ONLINE))

from online_api import Connection, Recommender  # noqa: E402
from online_processes import OPS, SERVER, environment, started  # noqa: E402
from side_by_side import wait_until  # noqa: E402

pytestmark = pytest.mark.skipif(
    not SERVER.exists(),
    reason="the model server is not built: `make online_server`, which needs the packages "
    "libcpp-httplib-dev and nlohmann-json3-dev",
)


def run(folder, *flags):
    """Starts run.py."""
    return subprocess.Popen(
        [sys.executable, ONLINE / "run.py", "--short", f"--folder={folder}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        # Shells have programs ignore it that they start in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def address(folder, announced):
    """What a process of run.py says of where it is; None if it does not yet."""
    with contextlib.suppress(FileNotFoundError):
        text = (folder / f"{announced}.log").read_text()
        if found := re.search(rf"^{announced}:? (http://\S+)$", text, re.MULTILINE):
            return found[1]
    return None


def answers(url):
    with contextlib.suppress(ConnectionError):  # refused, or reset by a server that ends
        socket.create_connection(Connection(url).address).close()
        return True
    return False


def reply(connection, method, path, body=None):
    """The HTTP status and the JSON."""
    status, text = connection.send(method, path, body)
    return status, json.loads(text)


def at_root(connection):
    return Connection("http://{}:{}".format(*connection.address))


@pytest.mark.parametrize("stream", [False, True])
def test_first_clicks_change_what_is_recommended(stream, tmp_path):
    process = run(tmp_path, f"--stream={stream}")
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    clicks = json.loads((tmp_path / "freshness.json").read_text())
    assert len(clicks) == 3
    for click in clicks:
        assert click["before"] != click["after"]
        assert click["clicked"] not in click["before"]
        assert 0 < click["seconds"] < 30
    first, last = map(int, re.search(r"generation (\d+) to (\d+)", out).groups())
    assert last >= first + 3  # one after each click, for users come after the click before is served
    assert (tmp_path / "freshness.png").stat().st_size > 10_000
    assert not any(answers(address(tmp_path, name)) for name in ("training", "serving"))


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example with made-up ratings while users click: its folder, the trainer, the server.

    Ctrl-C ends it, and both processes.
    """
    folder = tmp_path_factory.mktemp("online")
    ratings = write_ratings(folder / "ratings.tsv")
    process = run(folder, f"--ratings={ratings}", "--users=1000000")
    try:
        wait_until(lambda: address(folder, "serving") or process.poll() is not None, 120)
        assert process.poll() is None, process.stderr.read()
        trainer, server = address(folder, "training"), address(folder, "serving")
        yield folder, Connection(trainer), Connection(server)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert not answers(trainer) and not answers(server)


def write_ratings(path):
    """6,000 ratings of 40 users and 60 movies, half of which have another genre than the others."""
    draw = random.Random(5)
    rows = [(draw.randrange(40), draw.randrange(60), draw.randint(1, 5), n) for n in range(6000)]
    lines = ["user\tmovie\trating\ttimestamp", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    movies = [f"{movie}\tMovie {movie}\t{'Action' if movie % 2 else 'Drama'}" for movie in range(60)]
    path.with_name("movies.tsv").write_text("\n".join(["movie\ttitle\tgenres", *movies]))
    return path


def metric(server, name):
    """A number of the follower in the text for Prometheus."""
    text = at_root(server).send("GET", "/metrics")[1].decode()
    (value,) = re.findall(rf"^:tf_dynemb:follower:{name}{{.*}} (\S+)$", text, re.MULTILINE)
    assert f"# TYPE :tf_dynemb:follower:{name} " in text
    return int(value)


def test_the_server_follows_the_trainer(example):
    _, trainer, server = example
    start = trainer("GET", "/status")["generation"]
    wait_until(lambda: (server("GET")["follower"]["generation"] or 0) > start + 2)
    follower = server("GET")["follower"]
    assert follower["newest"] >= follower["generation"]
    assert (follower["errors"], follower["full_copies"]) == (0, 1)
    assert metric(server, "generation") >= follower["generation"]
    assert metric(server, "errors") == 0
    assert trainer("GET", "/status")["examples"] > 5000


def test_clicks_on_a_genre_recommend_it(example):
    """Of a user's choice between 30 movies of each of two genres, more in the genre that is clicked."""
    folder, trainer, server = example
    recommender, user, other = Recommender(server, folder), 2**62 + 1, 2**62 + 2
    action = [i for i, bag in enumerate(recommender.candidates["genres"]) if "Action" in bag]
    movies = recommender.candidates["movie"]
    before, same = recommender.best([user, other])
    assert before == same
    events = [{"user": user, "movie": movie, "clicked": i in action} for i, movie in enumerate(movies)]
    for _ in range(5):
        assert trainer("POST", "/events", events) == {"accepted": 60}

    def shows_more():
        mine, others = (len(set(best) & set(action)) for best in recommender.best([user, other]))
        return mine > others and mine >= 8

    wait_until(shows_more)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[", "Expecting value"),
        (b"[" * 100_000, "recursion"),
        (b"\xff", "codec can't decode"),
        (b"[]", "want a list of events"),
        (b"{}", "want a list of events"),
        (b"[7]", "got the event 7"),
        (b'[{"user": 1, "movie": 2}]', "want user, movie and clicked"),
        (b'[{"user": 1.5, "movie": 2, "clicked": true}]', "want 64-bit integers"),
        (b'[{"user": 9223372036854775808, "movie": 2, "clicked": true}]', "want 64-bit integers"),
        (b'[{"user": 1, "movie": 2, "clicked": 1}]', "want true or false"),
    ],
)
def test_bad_events_are_refused(example, body, message):
    _, trainer, _ = example
    status, answer = reply(trainer, "POST", "/events", body)
    assert status == 400
    assert message in answer["error"]


# --- the server alone --------------------------------------------------------------------------------


class Module(tf.Module):
    """Of each dtype that the server reads an input and an output, which is another value."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.float32, "floats"),
            tf.TensorSpec([None, 2], tf.float64, "doubles"),
            tf.TensorSpec([None], tf.int32, "ints"),
            tf.TensorSpec([None], tf.int64, "longs"),
            tf.TensorSpec([None], tf.bool, "bools"),
            tf.TensorSpec([None], tf.string, "strings"),
        ]
    )
    def everything(self, floats, doubles, ints, longs, bools, strings):
        return {
            "floats": floats / 2,
            "doubles": doubles[:, ::-1],
            "ints": ints + 1,
            "longs": -longs,
            "bools": ~bools,
            "strings": strings + "!",
            "some_bytes": strings,
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def half(self, ids):
        tf.debugging.assert_non_negative(ids)
        return {"half": ids // 2}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float16, "halves")])
    def narrow(self, halves):
        return {"output": halves}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def repeat(self, ids):
        return {"output": tf.repeat(ids, 2)}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, "matrix")])
    def total(self, matrix):
        return {"total": tf.reduce_sum(matrix)}


def command(model, port=0):
    return [SERVER, f"--ops={OPS}", f"--model=m={model}", f"--port={port}"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m" / "7"
    module = Module()
    signatures = {name: getattr(module, name) for name in ("everything", "narrow", "repeat", "total")}
    tf.saved_model.save(module, str(path), {"serving_default": module.half, **signatures})
    return path


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with started(command(model), tmp_path_factory.mktemp("server"), "serving") as (process, url):
        yield Connection(url)
        assert process.poll() is None


ROWS = [
    {
        "floats": 0.1,
        "doubles": [1e300, 0.1],
        "ints": -(2**31),
        "longs": 2**53 + 1,
        "bools": True,
        "strings": "é\n",
    },
    {
        "floats": 1,
        "doubles": [2, -3],
        "ints": 2**31 - 2,
        "longs": -(2**63) + 1,
        "bools": False,
        "strings": {"b64": "/w=="},
    },
]


def everything(server, **request):
    return server("POST", ":predict", {"signature_name": "everything", **request})


def test_each_dtype_is_exact(server):
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    outputs = everything(server, inputs=columns)["outputs"]
    assert outputs["floats"] == (tf.constant([0.1, 1]) / 2).numpy().tolist()
    assert outputs["doubles"] == [[0.1, 1e300], [-3, 2]]
    assert outputs["ints"] == [-(2**31) + 1, 2**31 - 1]
    assert outputs["longs"] == [-(2**53) - 1, 2**63 - 1]
    assert outputs["bools"] == [False, True]
    assert outputs["strings"][0] == "é\n!"
    assert outputs["some_bytes"] == [{"b64": "w6kK"}, {"b64": "/w=="}]
    rows = everything(server, instances=ROWS)["predictions"]
    assert rows == [{name: column[n] for name, column in outputs.items()} for n in range(2)]


def test_one_input_and_output_need_no_names(server):
    for request, answer in [
        ({"instances": [4, 7]}, {"predictions": [2, 3]}),
        ({"instances": [{"ids": 4}]}, {"predictions": [2]}),
        ({"inputs": [4, 7]}, {"outputs": [2, 3]}),
        ({"inputs": {"ids": [4, 7]}}, {"outputs": [2, 3]}),
        ({"inputs": []}, {"outputs": []}),
        ({"inputs": [[1, 2], [3, 4]], "signature_name": "total"}, {"outputs": 10.0}),
        ({"inputs": [[3.4028235e38]], "signature_name": "total"}, {"outputs": 2.0**128 - 2.0**104}),
    ]:
        assert server("POST", ":predict", request) == answer
        assert server("POST", "/versions/7:predict", request) == answer


def test_what_the_server_says_of_a_model_that_does_not_follow(server):
    status = server("GET")
    assert status == server("GET", "/versions/7")
    (version,) = status["model_version_status"]
    assert (version["version"], version["state"]) == ("7", "AVAILABLE")
    assert status["follower"] is None
    signatures = server("GET", "/metadata")["metadata"]["signature_def"]
    assert signatures["serving_default"]["inputs"] == {"ids": {"dtype": "int64", "shape": "[?]"}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body is no JSON"),
        ('{"inputs": [1}', "the body is no JSON"),
        ("[1]", 'want an object with either "instances" or "inputs"'),
        ('{"inputs": [1], "instances": [1]}', "either"),
        ('{"inputs": {"id": [1]}}', "id: the model has no such input; it has"),
        ('{"inputs": {}}', "ids: this input is missing"),
        ('{"inputs": [1.5]}', "ids: got 1.5, want int64"),
        ('{"inputs": ["1"]}', 'ids: got "1", want int64'),
        ('{"inputs": [null]}', "ids: got null, want int64"),
        ('{"inputs": [9223372036854775808]}', "ids: got 9223372036854775808, want int64"),
        ('{"inputs": [[1e300]], "signature_name": "total"}', "matrix: got 1e+300, want float"),
        ('{"inputs": 7}', "ids: got the shape [], want [?]"),
        ('{"inputs": [[1, 2]]}', "ids: got the shape [1,2], want [?]"),
        ('{"inputs": [1, [2]]}', "ids: got [2], want int64"),
        ('{"instances": [1, 2], "signature_name": "repeat"}', "has no value for each"),
        ('{"inputs": [[1, 2], [3]], "signature_name": "total"}', "want lists of one length"),
        ('{"inputs": ' + "[" * 257 + "]" * 257 + "}", "lists too deep"),
        ('{"inputs": ' + "[" * 300_000 + "]" * 300_000 + "}", "nested too deep"),
        ('{"inputs":' * 300_000 + "1" + "}" * 300_000, "nested too deep"),
        ('{"inputs": ["' + "[" * 300 + '\\"["]}', 'got "['),
        ('{"inputs": [-1]}', "x >= 0"),
        ('{"instances": []}', "got no list with something in it"),
        ('{"instances": 3}', "got no list with something in it"),
        ('{"instances": [{"ids": 1}, {}]}', "got ids in 1 of 2"),
        ('{"instances": [[1, 2]], "signature_name": "total"}', "has no value for each"),
        ('{"instances": [1], "signature_name": "everything"}', "want objects"),
        ('{"inputs": [1], "signature_name": "no"}', 'signature_name: there is no "no"'),
        ('{"inputs": [1], "signature_name": 1}', "signature_name: there is no 1"),
    ],
)
def test_a_bad_request_is_refused(server, body, message):
    status, answer = reply(server, "POST", ":predict", body)
    assert status == 400, answer
    assert message in answer["error"]


def test_a_shape_far_larger_than_the_body_is_refused(server):
    """By its first list it would be a matrix of 300,000 times 300,000."""
    matrix = [[0.0] * 300_000] + [0.0] * 299_999
    request = {"inputs": matrix, "signature_name": "total"}
    status, answer = reply(server, "POST", ":predict", json.dumps(request))
    assert (status, "got 0.0 beside lists of 300000" in answer["error"]) == (400, True)


def test_other_errors_have_their_status(server):
    for method, path, status in [
        ("POST", "/v1/models/other:predict", 404),
        ("POST", "/v1/models/m/versions/8:predict", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/m:predict", 404),
        ("GET", "/", 404),
        ("POST", "/v1/models/m:classify", 404),
        ("PUT", "/v1/models/m", 405),
    ]:
        body = '{"inputs": [1]}' if method == "POST" else None
        got, answer = reply(at_root(server), method, path, body)
        assert got == status, path
        assert answer["error"]
    request = {"inputs": [0.5], "signature_name": "narrow"}
    status, answer = reply(server, "POST", ":predict", json.dumps(request))
    assert (status, "got the dtype half" in answer["error"]) == (501, True)


def test_no_bytes_bring_the_server_down(server):
    """Requests with some bytes changed; and what is no HTTP at all, or promises too much."""
    draw, seen = random.Random(3), set()
    good = json.dumps({"signature_name": "everything", "instances": ROWS}).encode()
    for _ in range(300):
        body = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            body[draw.randrange(len(body))] = draw.choice(b'[]{},:"0-e\\x\xff')
        seen.add(reply(server, "POST", ":predict", bytes(body))[0])
    assert seen == {200, 400}
    for raw in (
        b"\0" * 100,
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n",
        b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    ):
        with socket.create_connection(server.address) as connection:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    assert server("POST", ":predict", {"inputs": [8]}) == {"outputs": [4]}


PREDICT = "/v1/models/m:predict"


def test_a_large_body_is_read_whatever_type_it_says_to_have(server):
    """urllib, as curl -d, says that it is a form."""
    ids = list(range(20_000))
    url = "http://{}:{}{}".format(*server.address, PREDICT)
    with urllib.request.urlopen(url, json.dumps({"inputs": ids}).encode()) as response:
        assert json.load(response)["outputs"] == [i // 2 for i in ids]


def test_a_form_of_parts_is_refused(server):
    connection = http.client.HTTPConnection(*server.address)
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    connection.request("POST", PREDICT, b"--b\r\n\r\n{}\r\n--b--\r\n", kind)
    response = connection.getresponse()
    assert (response.status, response.will_close) == (415, True)
    assert "want a body of JSON" in json.load(response)["error"]


@pytest.mark.parametrize("way", ["length", "chunked", "gzip"])
@pytest.mark.parametrize("path", [PREDICT, "/v1/models/other:predict", "/"])
def test_a_body_that_is_too_large_is_refused(server, path, way):
    """Also where its size is not known before it is read."""
    body = b" " * (17 << 20)
    connection = http.client.HTTPConnection(*server.address)
    if way == "chunked":
        connection.request("POST", path, iter([body]), encode_chunked=True)
    elif way == "gzip":
        connection.request("POST", path, gzip.compress(body), {"Content-Encoding": "gzip"})
    else:
        connection.request("POST", path, body)
    response = connection.getresponse()
    assert (response.status, response.will_close) == (413, True)
    assert json.load(response) == {"error": "want a body of at most 16777216 bytes"}
    assert server("POST", ":predict", {"inputs": [8]}) == {"outputs": [4]}


@pytest.mark.parametrize("request_line", [f"POST {PREDICT}", "POST /", "PUT /"])
def test_a_body_without_end_is_not_read_for_ever(server, request_line):
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(f"{request_line} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(256):
                connection.sendall(chunk)


def test_a_connection_is_closed_after_many_requests(server):
    """So that those that wait for one of the server's threads have their turn."""
    connection, count, closes = http.client.HTTPConnection(*server.address), 0, False
    while not closes and count < 2000:
        connection.request("GET", "/v1/models/m")
        response = connection.getresponse()
        response.read()
        count, closes = count + 1, response.will_close
    assert count == 1000


def test_metrics_have_all_their_digits(server):
    def has_many_digits():
        server("GET")
        text = at_root(server).send("GET", "/metrics")[1].decode()
        (number,) = re.findall(
            r'^:model_server:request_microseconds_sum{status="200"} (.+)$', text, re.M
        )
        assert float(number) > 0
        return len(re.sub(r"e.*|\D", "", number)) > 6

    wait_until(has_many_digits, 20)


def test_two_servers_do_not_share_a_port(server, model):
    host, port = server.address
    done = subprocess.run(command(model, port), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert f"cannot listen on {host}:{port}; is the port taken" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_is_loaded_ends_the_server(tmp_path, number):
    """It waits to read a pipe into which nothing is written."""
    os.mkfifo(tmp_path / "saved_model.pb")
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command(tmp_path), stderr=file, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0"}
        )
    try:
        wait_until(lambda: "Reading SavedModel from" in log.read_text())
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    finally:
        process.kill()
        process.wait()


def test_a_signal_ends_a_server_and_a_second_at_once(model, tmp_path):
    with started(command(model), tmp_path, "serving") as (process, _):
        process.send_signal(signal.SIGTERM)  # as soon as it says that it serves
        assert process.wait(30) == 0
    with (
        started(command(model), tmp_path, "serving") as (process, url),
        socket.create_connection(Connection(url).address) as busy,
    ):
        connection = Connection(url)
        connection("GET")  # the thread of this one waits for the next request
        busy.sendall(f"POST {PREDICT} HTTP/1.1\r\nContent-Length: 9\r\n\r\n".encode())
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not answers(url))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        ([], 1, "want --model=NAME=PATH"),
        (["--model=m"], 1, "want --model=NAME=PATH"),
        (["--model=m=nowhere"], 1, "nowhere has neither a SavedModel nor folders of one"),
        (["--model=m=nowhere", "--ops=nowhere.so"], 1, "nowhere.so"),
        (["--port=x"], 2, "Flags:"),
        (["something"], 2, "Flags:"),
    ],
)
def test_a_server_that_cannot_begin_says_why(flags, status, message):
    done = subprocess.run(
        [SERVER, f"--ops={OPS}", *flags],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr


def test_without_a_server_the_example_says_how_to_build_it(tmp_path):
    process = run(tmp_path, f"--server={tmp_path / 'model_server'}")
    assert "`make online_server` builds it" in process.communicate()[1]
    assert process.returncode == 1


def test_users_need_a_genre_to_choose_from(tmp_path):
    movies = {"movie": [1, 2], "genres": [["Action"], [""]], "title": ["One", "Two"]}
    (tmp_path / "movies.json").write_text(json.dumps(movies))
    nowhere = "http://127.0.0.1:9/v1/models/m"
    flags = [f"--folder={tmp_path}", f"--trainer={nowhere}", f"--server={nowhere}"]
    client = [sys.executable, ONLINE / "client.py", *flags]
    done = subprocess.run(client, capture_output=True, text=True, check=False, env=environment())
    assert (done.returncode, "no genre in" in done.stderr) == (1, True), done.stderr
