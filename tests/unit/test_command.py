"""The command `tf-dynemb`: what it lists, that it goes to the right module, and what shells complete."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.snapshot import SnapshotReader
from tf_dynemb_cli import command

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments, program=("-m", "tf_dynemb_cli"), unset=()):
    env = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, *program, *arguments],
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_it_lists_its_commands(arguments, capsys):
    try:
        status = command.main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status == 0
    listed = capsys.readouterr().out
    for name, (what, _) in command.COMMANDS.items():
        assert f"{name} " in listed and what.split()[0] in listed


WITHOUT_TENSORFLOW = (
    "import sys; sys.modules['tensorflow'] = None; from tf_dynemb_cli import command; "
    "sys.exit(command.main(sys.argv[1:]))"
)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [([], "snapshot"), (["--print-completion", "bash"], "--dead-norm")]
    + [([name, "--help"], f"usage: tf-dynemb {name} ") for name in command.COMMANDS]
    + [(["snapshot", "compact", "--help"], "CHAIN"), (["storage", "verify", "--help"], "FOLDER")],
    ids=" ".join,
)
def test_what_needs_no_tensorflow_does_not_import_it(arguments, says):
    status, printed, said = run(*arguments, program=("-c", WITHOUT_TENSORFLOW))
    assert (status, said) == (0, "") and says in printed
    if arguments[-1:] == ["--help"]:  # what has a default says which
        assert "None" not in printed


def test_tensorflow_says_nothing_of_itself(tmp_path):
    """Of oneDNN it does so at any level of logging."""
    tf_dynemb.snapshot.save(tmp_path, tf_dynemb.Variable(dim=3, name="users"))
    for arguments in (["--version"], ["snapshot", "verify", str(tmp_path)]):
        status, printed, said = run(*arguments, unset=("TF_ENABLE_ONEDNN_OPTS", "TF_CPP_MIN_LOG_LEVEL"))
        assert (status, printed.count("\n"), "oneDNN" in said) == (0, 1, False)


def test_there_is_no_other_command(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["lunch"])
    assert ended.value.code == 2
    assert "invalid choice: 'lunch'" in capsys.readouterr().err


def test_version(capsys):
    assert command.main(["--version"]) == 0
    want = f"tf_dynemb {tf_dynemb.__version__}, TensorFlow {tf.__version__}\n"
    assert capsys.readouterr().out == want


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["snapshot", "info", "folder"],
        ["storage", "info", "folder"],
        ["redis", "folder"],
        ["server", "--cluster", "ps=localhost:2222", "--job", "ps"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_without_tensorflow_it_says_so_in_one_line(arguments):
    status, printed, said = run(*arguments, program=("-c", WITHOUT_TENSORFLOW))
    line = printed + said
    assert "tf_dynemb needs TensorFlow" in line and line.count("\n") == 1
    if arguments == ["--version"]:
        assert status == 0 and line.startswith(
            f"tf_dynemb {tf_dynemb.__version__}, which cannot be imported: "
        )
    else:
        assert status == 2 and line.startswith(f"tf-dynemb {arguments[0]}: ")


@pytest.mark.parametrize("name", ["launch", "server", "snapshot", "storage"])
def test_commands_are_modules_too(name):
    status, printed, _ = run("--help", program=("-m", f"tf_dynemb.{name}"))
    assert status == 0 and printed.startswith(f"usage: python -m tf_dynemb.{name} ")


def test_a_feed_of_no_folder_says_so(tmp_path):
    status, printed, said = run("feed", str(tmp_path / "none"), "--listen", "99")
    assert status == 2 and "--listen: got '99', want HOST:PORT" in said
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tf_dynemb_cli",
            "feed",
            str(tmp_path / "none"),
            "--listen",
            "127.0.0.1:0",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        printed = server.stdout.readline()
        server.terminate()
        said = server.stderr.read()
    assert printed.startswith("feed://127.0.0.1:") and "none is no folder yet" in said


def test_launch(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:])")
    status, printed, _ = run("launch", "-n", "2", str(script), "--epochs", "3")
    assert status == 0
    assert sorted(printed.splitlines()) == [f"[{i}] ['--epochs', '3']" for i in range(2)]
    status, _, error = run("launch", str(script))
    assert status == 2
    assert error.endswith("tf-dynemb launch: error: the following arguments are required: -n\n")


def test_server(capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(SystemExit):
        command.main(["server", "--cluster", "ps"])
    assert "tf-dynemb server: error: --cluster: got 'ps'" in capsys.readouterr().err


def test_snapshot_reports_as_json(tmp_path, capsys):
    table = tf_dynemb.Variable(dim=3, name="users")
    table.upsert(np.arange(5), np.ones([5, 3], np.float32))
    folder, other = str(tmp_path / "a"), str(tmp_path / "b")
    tf_dynemb.snapshot.save(folder, table)
    table.upsert([0, 9], np.zeros([2, 3], np.float32))
    tf_dynemb.snapshot.save(other, table)

    def report(*arguments):
        status = command.main(["snapshot", *arguments, "--json", "--noprogress"])
        return status, json.loads(capsys.readouterr().out)

    status, info = report("info", folder)
    with SnapshotReader(folder) as reader:
        assert (status, info["id"], info["base"]) == (0, reader.id, None)
    (users,) = info["tables"]
    described = {name: users[name] for name in ("name", "rows", "key_dtype", "value_dtype", "dim")}
    assert described == {
        "name": "users",
        "rows": 5,
        "key_dtype": "int64",
        "value_dtype": "float32",
        "dim": 3,
    }
    assert report("verify", folder) == (0, {"snapshot": folder, "rows": 5})
    status, (difference,) = report("diff", folder, other)
    assert status == 1
    assert [difference[name] for name in ("same", "changed", "only_second")] == [4, 1, 1]


def test_errors_name_the_command(tmp_path, capsys):
    assert command.main(["snapshot", "info", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("tf-dynemb snapshot info: ")


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["sn"], ["snapshot"]),
        (["snapshot", "in"], ["info"]),
        (["snapshot", "top", "folder", "--b"], ["--by"]),
        (["storage", "ver"], ["verify"]),
        (["storage", "compact", "folder", "--j"], ["--json"]),
        (["launch", "--thr"], ["--threads"]),
    ],
)
def test_bash_completes(words, want, capsys, tmp_path):
    assert command.main(["--print-completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    # As bash calls it where the last word is being completed.
    shell = 'source "$1"; shift; COMP_WORDS=(tf-dynemb "$@"); COMP_CWORD=$#; '
    shell += "$(complete -p tf-dynemb | grep -o '[^ ]*_tf_dynemb[^ ]*' | head -1); "
    shell += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", shell, "bash", str(script), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == want, done.stderr
