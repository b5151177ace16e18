"""The launcher: what its processes are told, what is seen of them, and that they end together.

The programs that it starts here are without TensorFlow, and so is it.
"""

import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tf_dynemb_cli import launcher as launch

ROOT = pathlib.Path(__file__).parents[2]
TIMEOUT_SECONDS = 60  # for what takes a part of one
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
ENVIRONMENT.pop("TF_CONFIG", None)
ENVIRONMENT.pop("TF_NUM_INTRAOP_THREADS", None)

# What programs begin with: `me` is their index, of `all` processes.
HEAD = """
import json, os, signal, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]["index"]
"""
# The process says that it is there; at once, for processes may share the pipe.
READY = """
os.write(1, b"ready %d\\n" % os.getpid())
"""
# And sleeps until it is ended.
SLEEP = f"""
{READY}
while True:
    time.sleep(3600)
"""


def default_signals():
    """As at a terminal, also where the tests run in the background or under nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Launched:
    """The launcher, with a program of these lines."""

    def __init__(self, folder, lines, *flags, arguments=(), environment=ENVIRONMENT, **options):
        script = folder / "script.py"
        script.write_text(HEAD + lines)
        options = {"preexec_fn": default_signals, **options}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tf_dynemb_cli", "launch", *flags, str(script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            **options,
        )

    def ready(self, number):
        """Descriptors of this many processes that are there: readable once they have ended."""
        pids = []
        while len(pids) < number:
            _, word, pid = self.process.stdout.readline().split()
            assert word == b"ready"
            pids.append(os.pidfd_open(int(pid)))
        return pids

    def end(self):
        """Exit status, and what it wrote to stdout and stderr."""
        out, err = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def start(tmp_path):
    """Starts launchers, which are gone in the end."""
    launched = []

    def start(*args, **options):
        launched.append(Launched(tmp_path, *args, **options))
        return launched[-1]

    yield start
    for one in launched:
        one.process.kill()
        one.process.wait()
        one.process.stdout.close()
        one.process.stderr.close()


def assert_gone(processes):
    """That all processes end, by descriptors of them."""
    for process in processes:
        ended, _, _ = select.select([process], [], [], TIMEOUT_SECONDS)
        os.close(process)
        assert ended


# --- what a process is told --------------------------------------------------------------------------


def test_each_process_is_told_its_place_and_nothing_else_is_changed(start):
    told = "print(json.dumps([me, sys.argv[1:], dict(os.environ)]))"
    flags = ["--name", "a b", "-n", "9", "--", "-m"]
    status, out, err = start(told, "-n", "3", arguments=flags).end()
    assert (status, err) == (0, "")
    lines = sorted(out.splitlines())
    assert [line[:4] for line in lines] == ["[0] ", "[1] ", "[2] "]
    clusters = []
    for index, line in enumerate(lines):
        me, arguments, environment = json.loads(line[4:])
        assert (me, arguments) == (index, flags)
        config = json.loads(environment.pop("TF_CONFIG"))
        assert config["task"] == {"type": "worker", "index": index}
        clusters.append(config["cluster"])
        environment.pop("TF_NUM_INTRAOP_THREADS")
        environment.pop("LC_CTYPE", None)  # Python sets it itself where there is no locale
        assert environment == {k: v for k, v in ENVIRONMENT.items() if k != "LC_CTYPE"}
    assert clusters[0] == clusters[1] == clusters[2]
    assert clusters[0].keys() == {"worker"}
    hosts, ports = zip(*(address.split(":") for address in clusters[0]["worker"]), strict=True)
    assert set(hosts) == {"127.0.0.1"} and len(set(ports)) == 3


def test_modules_are_run_as_well(tmp_path):
    (tmp_path / "program.py").write_text(HEAD + "print(__name__, __spec__.name, sys.argv[1:])")
    run = subprocess.run(
        [sys.executable, "-m", "tf_dynemb_cli", "launch", "-n", "1", "-m", "program", "-x"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "[0] __main__ program ['-x']\n", "")


def run_with_servers(folder, chief, server, *flags):
    """In a package of a false server and the launcher alone."""
    (folder / "tf_dynemb").mkdir(exist_ok=True)
    (folder / "tf_dynemb" / "__init__.py").touch()
    shutil.copy(launch.__file__, folder / "tf_dynemb")
    (folder / "tf_dynemb" / "server.py").write_text(HEAD + server)
    (folder / "script.py").write_text(HEAD + chief)
    return subprocess.run(
        [sys.executable, "-m", "tf_dynemb_cli", "launch", *flags, folder / "script.py"],
        capture_output=True,
        text=True,
        cwd=folder,  # where -m looks first
        env=ENVIRONMENT,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )


@pytest.mark.parametrize("status", [0, 5])
def test_with_parameter_servers_the_script_is_run_by_the_chief_alone(status, tmp_path):
    """It reads a line from each server, through a named pipe, and ends; then the servers are ended."""
    os.mkfifo(tmp_path / "pipe")
    server = f"""
with open({str(tmp_path / "pipe")!r}, "w") as pipe:
    print(os.environ["TF_CONFIG"], file=pipe)
time.sleep(3600)
"""
    chief = f"""
lines = [os.environ["TF_CONFIG"] + "\\n"]
while len(lines) < 4:
    with open({str(tmp_path / "pipe")!r}) as pipe:
        lines += pipe
print("".join(lines))
sys.exit({status})
"""
    run = run_with_servers(tmp_path, chief, server, "-n", "2", "--ps", "1")
    assert run.returncode == status
    if status:
        assert (
            "[launch] chief failed, exit status 5; SIGTERM to worker 0, worker 1, ps 0\n" in run.stderr
        )
        assert run.stderr.endswith("\n[launch] chief failed, exit status 5\n")
    else:
        assert run.stderr == ""
    configs = [json.loads(line.removeprefix("[chief] ")) for line in run.stdout.split("\n")[:4]]
    (cluster,) = {json.dumps(config["cluster"]) for config in configs}
    assert {k: len(v) for k, v in json.loads(cluster).items()} == {"chief": 1, "worker": 2, "ps": 1}
    tasks = sorted(tuple(config["task"].values()) for config in configs)
    assert tasks == [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]


def test_a_server_that_ends_before_the_training_is_a_failure(tmp_path):
    server = "time.sleep(0 if config['task']['type'] == 'ps' else 3600)"
    run = run_with_servers(tmp_path, SLEEP, server, "-n", "1", "--ps", "1")
    assert run.returncode == 1
    assert run.stderr.endswith("[launch] ps 0 ended before the training, exit status 1\n")


@pytest.mark.parametrize(
    ("flags", "before", "want"),
    [
        ([], None, str(max(1, len(os.sched_getaffinity(0)) // 2))),
        ([], "5", "5"),
        (["--threads", "3"], "5", "3"),
        (["--threads", "0"], "5", None),
    ],
)
def test_threads(start, flags, before, want):
    environment = {**ENVIRONMENT, **({"TF_NUM_INTRAOP_THREADS": before} if before else {})}
    told = "print(os.environ.get('TF_NUM_INTRAOP_THREADS'))"
    status, out, _ = start(told, "-n", "2", *flags, environment=environment).end()
    assert status == 0
    assert sorted(out.splitlines()) == [f"[0] {want}", f"[1] {want}"]


def test_nobody_else_gets_a_port_that_is_reserved():
    (held,) = launch.reserve_ports(1)
    address = held.getsockname()
    with held, socket.socket() as other, socket.socket() as server:
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC's servers do
        server.bind(address)
        server.listen()
        socket.create_connection(address).close()


def test_tensorflow_is_not_imported(start, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow is imported')")
    path = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    launched = start("print('here')", "-n", "1", environment={**ENVIRONMENT, "PYTHONPATH": path})
    assert launched.end() == (0, "[0] here\n", "")


# --- what is seen of them ----------------------------------------------------------------------------


def test_lines_stay_whole_and_say_whose_they_are(start):
    lines = """
for i in range(2000):
    for file in (sys.stdout, sys.stderr):
        file.write(f"{me} {i} ")
        file.write("x" * (i % 100) + "\\n")
"""
    status, *outputs = start(lines, "-n", "3").end()
    assert status == 0
    for output in outputs:
        for index in range(3):
            want = [f"[{index}] {index} {i} {'x' * (i % 100)}" for i in range(2000)]
            assert [line for line in output.splitlines() if line.startswith(f"[{index}]")] == want
        assert len(output.splitlines()) == 3 * 2000


@pytest.mark.parametrize(
    ("printed", "want"),
    [
        (b"a\n\nb\n", b"[0] a\n[0] \n[0] b\n"),
        (b"no end", b"[0] no end\n"),
        (b"10 %\r50 %\r100 %\nnext\n", b"[0] 100 %\n[0] next\n"),
        (b"\r10 %\r100 %", b"[0] 100 %\n"),
        (b"from Windows\r\n", b"[0] from Windows\r\n"),
        (b"\xff\xfe\x00\n", b"[0] \xff\xfe\x00\n"),
        (b"", b""),
        (b"\r" * 70_000 + b"\n" * 2, b"[0] \r\n[0] \n"),
        (b"y" * 10_000_000 + b"\n", b"[0] " + b"y" * 10_000_000 + b"\n"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_lines_become(start, printed, want, tmp_path):
    (tmp_path / "printed").write_bytes(printed)
    lines = "sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
    launched = start(lines, "-n", "1", arguments=[str(tmp_path / "printed")])
    out, _ = launched.process.communicate(timeout=TIMEOUT_SECONDS)
    assert out == want


def test_a_terminal_shows_progress_bars(start, tmp_path):
    control, terminal = os.openpty()
    script = tmp_path / "script.py"
    script.write_text("print('1 %\\r2 %\\rdone')")
    command = [sys.executable, "-m", "tf_dynemb_cli", "launch", "-n", "1", str(script)]
    with open(control, "rb", buffering=0) as screen:
        process = subprocess.Popen(command, stdout=terminal, env=ENVIRONMENT)
        os.close(terminal)
        seen = b""
        while b"done" not in seen:
            seen += screen.read(1000)
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert seen.startswith(b"[0] 1 %\r[0] 2 %\r[0] done")


# --- the end -----------------------------------------------------------------------------------------


def test_it_waits_for_the_last(start, tmp_path):
    """Those that end early and well end nobody."""
    os.mkfifo(tmp_path / "pipe")
    lines = """
if me == 1:
    print("ready", os.getpid(), flush=True)
    open(sys.argv[1]).read()
print("done", me)
"""
    launched = start(lines, "-n", "2", arguments=[str(tmp_path / "pipe")])
    seen = {launched.process.stdout.readline().split()[1] for _ in range(2)}
    assert seen == {b"ready", b"done"}
    (tmp_path / "pipe").write_text("go on")
    assert launched.end() == (0, "[1] done 1\n", "")


def test_when_one_fails_the_others_are_ended_and_its_status_is_that_of_all(start):
    lines = (
        """
if me == 1:
    sys.stdin.read()  # which is empty
    sys.exit(7)
"""
        + SLEEP
    )
    status, out, err = start(lines, "-n", "3").end()
    assert status == 7
    assert err == "[launch] 1 failed, exit status 7; SIGTERM to 0, 2\n[launch] 1 failed, exit status 7\n"


def test_the_traceback_is_seen_before_the_end(start):
    status, _, err = start("raise ValueError('of no use')", "-n", "1").end()
    assert status == 1
    assert err.endswith("[0] ValueError: of no use\n[launch] 0 failed, exit status 1\n")


def test_one_that_was_killed(start):
    lines = "if me == 0: os.kill(os.getpid(), signal.SIGKILL)" + SLEEP
    status, _, err = start(lines, "-n", "2").end()
    assert status == 128 + signal.SIGKILL
    assert err.endswith("[launch] 0 was killed by SIGKILL, exit status 137\n")


@pytest.mark.parametrize("how", ["fails", "is told"])
def test_those_that_do_not_end_are_killed(start, how):
    lines = (
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
        + SLEEP
    )
    launched = start(lines, "-n", "2", "--grace", "0.2")
    processes = launched.ready(2)
    if how == "fails":
        signal.pidfd_send_signal(processes[1], signal.SIGKILL)
    else:
        launched.process.terminate()
    status, _, err = launched.end()
    assert status == 128 + signal.SIGKILL
    assert "[launch] after 0.2 seconds: SIGKILL to " in err
    assert_gone(processes)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_are_passed_on(start, name):
    """To processes that take their time, and end well; and to those that die of it."""
    # No handlers of Python's: one does not run if its signal comes just before the program sleeps.
    lines = f"""
number = getattr(signal, sys.argv[2])
signal.signal(number, signal.SIG_DFL)
if sys.argv[1] == "well":
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    {READY.strip()}
    print("got", signal.Signals(signal.sigwait([number])).name)
    sys.exit()
{SLEEP}"""
    for end in "well", "badly":
        launched = start(lines, "-n", "2", arguments=[end, name])
        processes = launched.ready(2)
        launched.process.send_signal(signal.Signals[name])
        status, out, err = launched.end()
        if end == "well":
            assert status == 0
            assert sorted(out.splitlines()) == [f"[{i}] got {name}" for i in range(2)]
        else:
            assert status == 128 + signal.Signals[name]
        assert f"[launch] got {name}, which goes to 0, 1\n" in err
        assert_gone(processes)


def test_no_signal_is_missed(start):
    """Each comes when the launcher has just dealt with the one before, and is about to wait."""
    lines = f"""
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGTERM])
{READY}
while signal.sigwait([signal.SIGHUP, signal.SIGTERM]) == signal.SIGHUP:
    os.write(1, b"got it\\n")
"""
    launched = start(lines, "-n", "1", "--grace", str(2 * TIMEOUT_SECONDS))
    processes = launched.ready(1)
    for number in range(10_000):
        launched.process.send_signal(signal.SIGHUP)
        came, _, _ = select.select([launched.process.stdout], [], [], TIMEOUT_SECONDS)
        assert came, f"signal {number} was missed"
        assert launched.process.stdout.readline() == b"[0] got it\n"
    launched.process.terminate()
    assert launched.end()[0] == 0
    assert_gone(processes)


def test_a_signal_that_is_ignored_stays_so(start):
    """As nohup has it."""
    launched = start(SLEEP, "-n", "1", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    processes = launched.ready(1)
    for number in (signal.SIGHUP, signal.SIGTERM):
        launched.process.send_signal(number)
    status, _, err = launched.end()
    assert status == 128 + signal.SIGTERM
    assert "SIGHUP" not in err
    assert_gone(processes)


# Each process starts one of its own, and both ignore SIGTERM.
FAMILY = (
    """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    me = "child"
"""
    + SLEEP
)


def test_a_launcher_that_is_told_to_end_leaves_nobody_behind(start):
    launched = start(FAMILY, "-n", "2", "--grace", "0")
    processes = launched.ready(4)
    launched.process.terminate()
    launched.process.wait(TIMEOUT_SECONDS)
    assert_gone(processes)


def test_a_launcher_that_is_killed_leaves_no_process_of_the_training_behind(start):
    launched = start(SLEEP, "-n", "2")
    processes = launched.ready(2)
    launched.process.kill()
    launched.process.wait(TIMEOUT_SECONDS)
    assert_gone(processes)


def test_what_a_process_leaves_behind_is_ended_with_it(start):
    """It holds the pipe of its parent, which ends well and is done at once."""
    lines = """
theirs, mine = os.pipe()
if os.fork() == 0:
    print("ready", os.getpid(), flush=True)
    os.write(mine, b"go on")
    time.sleep(3600)
os.read(theirs, 5)
"""
    status, out, err = start(lines, "-n", "1").end()
    assert (status, err) == (0, "")
    try:
        assert_gone([os.pidfd_open(int(out.split()[2]))])
    except ProcessLookupError:
        pass


def test_when_nobody_reads_all_is_ended(start):
    lines = SLEEP.replace("time.sleep(3600)", "print('y' * 10_000, flush=True)")
    launched = start(lines, "-n", "2")
    processes = []
    while len(processes) < 2:
        words = launched.process.stdout.readline().split()
        if words[1] == b"ready":
            processes.append(os.pidfd_open(int(words[2])))
    launched.process.stdout.close()
    err = launched.process.stderr.read().decode()
    status = launched.process.wait(TIMEOUT_SECONDS)
    assert status == 128 + signal.SIGPIPE
    assert err.endswith("[launch] nobody reads the output, exit status 141\n")
    assert_gone(processes)


def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_everything(tmp_path):
    """Programs with which a terminal or a pipe is shared may set that."""
    script = tmp_path / "script.py"
    script.write_text("for i in range(20_000): print(i)")
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    command = [sys.executable, "-m", "tf_dynemb_cli", "launch", "-n", "1", str(script)]
    process = subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, env=ENVIRONMENT)
    while select.select([], [writing], [], 0)[1]:  # until it is full
        os.sched_yield()
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read().splitlines() == [f"[0] {i}".encode() for i in range(20_000)]
    assert process.communicate(timeout=TIMEOUT_SECONDS)[1] == b"" and process.returncode == 0


def test_an_output_that_is_closed_from_the_beginning_is_none(tmp_path):
    (tmp_path / "script.py").write_text("print(1)")
    command = f"{sys.executable} -m tf_dynemb_cli launch -n 1 {tmp_path / 'script.py'} >&-"
    ended = subprocess.run(command, shell=True, env=ENVIRONMENT, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (0, b"")


# --- the command line --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["script.py"], "the following arguments are required: -n"),
        (["-n", "2"], "the following arguments are required: SCRIPT"),
        (["-n", "0", "script.py"], "argument -n: got 0, want 1 or more"),
        (["-n", "two", "script.py"], "argument -n: invalid int value: 'two'"),
        (["-n", "2", "--ps", "-1", "script.py"], "argument --ps: got -1, want 0 or more"),
        (["-n", "2", "none.py"], "none.py: there is no such file"),
    ],
)
def test_bad_command_lines(flags, message, capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(SystemExit) as error:
        launch.main(flags)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_a_process_of_a_cluster_starts_no_other(capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(SystemExit):
        launch.main(["-n", "2", __file__])
    assert "TF_CONFIG is set: this is a process of a cluster already" in capsys.readouterr().err
