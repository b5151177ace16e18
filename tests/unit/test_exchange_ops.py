"""The ops by which processes exchange keys and rows, against NumPy; and what they refuse."""

import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf

from tf_dynemb.base.op_library import ops
from tf_dynemb.shard.exchange import listening, shared_memory, stages

PART_DTYPES = (tf.int64, tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.bool)


def grouped(keys, processes, by_hash=None, distinct=True):
    by_hash = [False] * len(keys) if by_hash is None else by_hash
    return ops.dynemb_group_by_process(keys, processes=processes, by_hash=by_hash, distinct=distinct)


@pytest.mark.parametrize("distinct", [True, False])
def test_keys_are_grouped_by_process_in_batch_order(distinct):
    draw = np.random.default_rng(3)
    keys = [draw.integers(-50, 50, n) for n in (200, 0, 70)]
    by_hash = [False, True, True]
    groups, places, counts = grouped(keys, 3, by_hash, distinct)
    for table, batch in enumerate(keys):
        owners = np.full(len(batch), -1)
        for process in range(3):
            mine = ops.dynemb_owned(batch, process=process, processes=3, by_hash=by_hash[table])
            owners[mine.numpy()] = process
        if not by_hash[table]:
            np.testing.assert_array_equal(owners, batch % 3)
        want = []
        for process in range(3):
            of_process = batch[owners == process].tolist()
            of_process = list(dict.fromkeys(of_process)) if distinct else of_process
            assert counts[process, table] == len(of_process)
            want += of_process
        assert groups[table].numpy().tolist() == want
        np.testing.assert_array_equal(groups[table].numpy()[places[table].numpy()], batch)
        if not distinct:
            assert sorted(places[table].numpy()) == list(range(len(batch)))


def test_a_hash_spreads_ids_of_any_pattern():
    """Multiples of 4 are all of process 0 by the remainder; 5 standard deviations of a fair share."""
    ids = np.arange(4000) * 4
    _, _, counts = grouped([ids, ids], 4, [False, True])
    assert counts[:, 0].numpy().tolist() == [4000, 0, 0, 0]
    assert np.all(np.abs(counts[:, 1] - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75))


def alone():
    """The exchange of a process that is alone: what it sends comes back."""
    handle, port = ops.dynemb_listen()
    assert 1 <= int(port) <= 65535
    ops.dynemb_connect(handle, ["127.0.0.1:1"], "sixteen letters.", index=0, timeout_seconds=9)
    return handle


def exchanged(parts, counts, handle=None, problem="", numbers=(), dims=None, **options):
    if dims is None:
        dims = [int(part.shape[1]) if part.shape.rank == 2 else -1 for part in parts]
    return ops.dynemb_exchange(
        alone() if handle is None else handle,
        problem,
        tf.constant(numbers, tf.int64),
        counts,
        parts,
        dims=dims,
        program="a test",
        **options,
    )


@pytest.mark.parametrize("dtype", PART_DTYPES, ids=lambda dtype: dtype.name)
def test_parts_of_any_dtype_come_out_as_they_went_in(dtype):
    counts = tf.constant([[3, 2]], tf.int64)
    numbers = [tf.range(n) % 2 for n in (3, 2 * 3, 3 * 2, 2)]
    shapes = [[3], [2, 3], [3, 2], [2]]
    parts = [tf.cast(tf.reshape(n, s), dtype) for n, s in zip(numbers, shapes, strict=True)]
    handle = alone()
    largest, sent, got = exchanged(parts, counts, handle, numbers=[7, -3])
    assert largest.numpy().tolist() == [7, -3] and sent.numpy().tolist() == [[3, 2]]
    for one, want in zip(got, parts, strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one.numpy(), want.numpy())
    calls, sent_bytes, messages, _ = ops.dynemb_exchange_calls(handle)
    assert (int(calls), int(sent_bytes), int(messages)) == (1, 0, 0)  # to others


def test_a_profile_shows_exchanges_until_they_are_done(tmp_path):
    """That of a process that was first ends after that of the other one has begun."""
    xplane = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    handles, ports = zip(*(ops.dynemb_listen() for _ in range(2)), strict=True)
    hosts = [f"127.0.0.1:{int(port)}" for port in ports]
    counts, part = tf.constant([[0], [3]], tf.int64), tf.zeros([3, 8])

    def connect(index):
        ops.dynemb_connect(handles[index], hosts, "sixteen letters.", index=index, timeout_seconds=60)

    def exchange(index):
        exchanged([part], counts if index == 0 else tf.reverse(counts, [0]), handles[index])

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(connect, range(2)))
        with tf.profiler.experimental.Profile(str(tmp_path)):
            first = threads.submit(exchange, 0)
            for _ in range(100):  # some milliseconds, in which the first one begins
                tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
            exchange(1)
            first.result()
    (profile,) = tmp_path.glob("**/*.xplane.pb")
    spans = []
    for plane in xplane.XSpace.FromString(profile.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                if plane.event_metadata[event.metadata_id].name == "DynembExchange: a test":
                    start = line.timestamp_ns * 1000 + event.offset_ps
                    spans.append((start, start + event.duration_ps))
    (_, first_end), (second_start, second_end) = sorted(spans)
    assert second_start < first_end and second_start < second_end


TWO = tf.zeros([2], tf.int64)
SECRET = "sixteen letters."


def connect(addresses, secret=SECRET, index=0, **options):
    handle, _ = ops.dynemb_listen()
    return ops.dynemb_connect(handle, addresses, secret, index=index, timeout_seconds=0.1, **options)


REFUSED = {
    "keys of rank 2": (lambda: grouped([tf.zeros([1, 1], tf.int64)], 2), "rank|vectors"),
    "too many processes": (lambda: grouped([TWO], 2**40), "processes"),
    "a rule too few": (lambda: grouped([TWO], 2, []), "by_hash"),
    "an exchange that is not connected": (
        lambda: exchanged([TWO], [[2]], ops.dynemb_listen()[0]),
        "not connected",
    ),
    "another number of processes": (lambda: exchanged([TWO], [[2], [0]]), "want one for each"),
    "parts without counts": (
        lambda: exchanged([TWO], tf.zeros([1, 0], tf.int64)),
        "counts: got those of no tables",
    ),
    "counts without parts": (lambda: exchanged([], [[2]]), "want one for each"),
    "counts that are not the items": (lambda: exchanged([TWO], [[3]]), "which has 2 items"),
    "counts of rank 1": (lambda: exchanged([TWO], [2]), "rank|shapes"),
    "negative counts": (lambda: exchanged([TWO], [[-2]]), "which has 2 items"),
    "items of no numbers": (lambda: exchanged([tf.zeros([2, 0])], [[2]]), "dims: got 0"),
    "another dim": (lambda: exchanged([tf.zeros([2, 1])], [[2]], dims=[2]), "parts: got shape"),
    "a dim too many": (lambda: exchanged([TWO], [[2]], dims=[-1, -1]), "dims: got 2"),
    "parts of rank 3": (lambda: exchanged([tf.zeros([2, 1, 1])], [[2]], dims=[1]), "parts: got shape"),
    "numbers of rank 2": (lambda: exchanged([], [[]], numbers=[[1]]), "rank|shapes"),
    "a refusal": (lambda: exchanged([], tf.zeros([1, 0], tf.int64), problem="no"), "process 0: no"),
    "a refusal for want of room": (
        lambda: exchanged([], tf.zeros([1, 0], tf.int64), problem="no", refusal="exhausted"),
        "process 0: no",
    ),
    "a port that cannot be": (lambda: ops.dynemb_listen(port=70000), "port: got 70000"),
    "an index too large": (lambda: connect(["127.0.0.1:1"], index=1), "index: got 1"),
    "a third stage": (lambda: connect(["127.0.0.1:1"], stages=3), "stages: got 3, want 1 or 2"),
    "a short secret": (lambda: connect(["127.0.0.1:1"], secret="short"), "secret: got 5 bytes"),
    "two secrets": (lambda: connect(["127.0.0.1:1"], secret=[SECRET, SECRET]), "secret: got 2"),
    "nobody there": (lambda: connect(["127.0.0.1:1", "127.0.0.1:2"], index=1), "to process 0 at"),
    "nobody comes": (lambda: connect(["127.0.0.1:1", "127.0.0.1:2"]), "to process 1 at"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(
        (
            tf.errors.InvalidArgumentError,
            tf.errors.ResourceExhaustedError,
            tf.errors.FailedPreconditionError,
            tf.errors.UnavailableError,
        ),
        match=message,
    ):
        call()


def test_ports_of_the_environment(monkeypatch):
    """The first free one of those that it names."""
    name = "TF_DYNEMB_EXCHANGE_PORTS"
    handle, port = ops.dynemb_listen()
    monkeypatch.setenv(name, str(int(port)))
    with pytest.raises(tf.errors.UnavailableError, match=f"{name}={int(port)}: none is free"):
        listening()
    last = min(int(port) + 50, 65535)
    monkeypatch.setenv(name, f"{max(1, last - 50)}-{last}")
    assert last - 50 <= int(listening()[1]) <= last and handle.dtype == tf.resource
    for text in ("many", "0", "9-8", "1-70000", "-"):
        monkeypatch.setenv(name, text)
        with pytest.raises(ValueError, match=f"{name}: got '{text}', want a port, or first-last"):
            listening()


def test_stages_of_the_environment(monkeypatch):
    name = "TF_DYNEMB_EXCHANGE_STAGES"
    monkeypatch.delenv(name, raising=False)
    assert [stages(processes) for processes in (2, 127, 128, 1024)] == [1, 1, 2, 2]
    for text in ("1", "2"):
        monkeypatch.setenv(name, text)
        assert [stages(processes) for processes in (2, 1024)] == [int(text)] * 2
    for text in ("0", "3", "two"):
        monkeypatch.setenv(name, text)
        with pytest.raises(ValueError, match=f"{name}: got '{text}', want 1 or 2"):
            stages(2)


def test_shared_memory_of_the_environment(monkeypatch):
    name = "TF_DYNEMB_EXCHANGE_SHARED_MEMORY"
    monkeypatch.delenv(name, raising=False)
    assert shared_memory()
    for text in ("0", "1"):
        monkeypatch.setenv(name, text)
        assert shared_memory() == bool(int(text))
    for text in ("2", "no"):
        monkeypatch.setenv(name, text)
        with pytest.raises(ValueError, match=f"{name}: got '{text}', want 0 or 1"):
            shared_memory()


@pytest.mark.parametrize("allowed", [(True, True), (True, False), (False, True)])
def test_memory_is_shared_where_both_allow_it(allowed):
    handles, ports = zip(*(ops.dynemb_listen() for _ in range(2)), strict=True)
    hosts = [f"127.0.0.1:{int(port)}" for port in ports]

    def connect(index):
        ops.dynemb_connect(
            handles[index],
            hosts,
            "sixteen letters.",
            index=index,
            shared_memory=allowed[index],
            timeout_seconds=60,
        )

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(connect, range(2)))
    assert [int(ops.dynemb_exchange_calls(handle)[3]) for handle in handles] == [int(all(allowed))] * 2


def test_refusals_in_a_graph_are_errors_of_their_calls_alone():
    """A call that fails at once is done while the op that began it still returns."""
    handle, none = alone(), tf.zeros([1, 0], tf.int64)

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def call(problem):
        return exchanged([], none, handle, problem)[1]

    for _ in range(3000):
        with pytest.raises(tf.errors.InvalidArgumentError, match="process 0: no"):
            call("no")
    assert call("").shape == [1, 0]


def test_a_problem_is_the_error_that_it_is_said_to_be():
    none = tf.zeros([1, 0], tf.int64)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        exchanged([], none, problem="no", refusal="exhausted")
    with pytest.raises(tf.errors.InvalidArgumentError):
        exchanged([], none, problem="no")
