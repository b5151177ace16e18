"""`tf-dynemb storage info|verify|compact`, beside what the tests have trained and written themselves."""

import gc
import io
import json
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import rows_of

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.storage import Disk, HostMemory
from tf_dynemb_cli.storage import main

SMALL = 60_000  # bytes: some hundred rows
DIM = 4
ROW_BYTES = 16 + 4 * DIM  # with its checksum and its key, without an optimizer


def make(folder, **fields):
    storage = [HostMemory(SMALL * len(fields.get("devices", [0]))), Disk(folder)]
    return tf_dynemb.Variable(dim=DIM, name="users", storage=storage, **fields)


def write(folder, rounds=1, rows=2_000, step=3, **fields):
    """Writes rows over and over, flushes, and returns the last ones, key to value."""
    table = make(folder, **fields)
    keys = np.arange(rows)
    for i in range(rounds):
        values = np.random.default_rng(i).normal(size=(rows, DIM)).astype(np.float32)
        table.upsert(tf.constant(keys, tf.int64), values)
    table.flush(step)
    del table
    gc.collect()
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def train(table, steps, ids_of=tf.constant):
    """Trains with Adam, and returns the numbers whose rows there are now."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    seen = set()
    for step in range(steps):
        numbers = np.random.default_rng(step).integers(0, 3_000, 600)
        seen |= set(numbers.tolist())
        ids = ids_of(numbers)
        optimizer.minimize(
            lambda ids=ids: tf.reduce_sum(tf_dynemb.embedding_lookup(table, ids)), [table.handle]
        )
    return seen


def said(capsys, *command):
    """The exit status of a command, and what it prints as JSON."""
    status = main([*map(str, command), "--json", "--noprogress"])
    return status, json.loads(capsys.readouterr().out)


def content(table):
    keys, values = (tensor.numpy().tolist() for tensor in table.export())
    return dict(zip(keys, values, strict=True))


def test_info_says_what_was_trained(tmp_path, capsys):
    folders = [tmp_path / "a", tmp_path / "b"]
    table = make(folders, devices=["/CPU:0"] * 2)
    seen = train(table, 5)
    table.flush(5)
    table.upsert(tf.range(9_000, 12_000, dtype=tf.int64), tf.ones([3_000, DIM]))  # never flushed
    sizes = {path: path.stat().st_size for folder in folders for path in folder.glob("*")}
    status, found = said(capsys, "info", *folders)  # while the table is open
    assert status == 0 and found["damages"] == found["missing_folders"] == []
    about = ("table", "step", "shards", "rows", "dim", "rule", "keep_keys")
    assert {name: found[name] for name in about} == {
        "table": "users",
        "step": 5,
        "shards": 2,
        "rows": len(seen),
        "dim": DIM,
        "rule": "adam",
        "keep_keys": False,
    }
    assert (found["key_dtype"], found["value_dtype"]) == ("int64", "float32")
    assert len(found["slots"]) == 2 and found["folders"] == [str(folder) for folder in folders]
    of_rows = [file for file in found["files"] if file["kind"] == "rows"]
    assert sum(file["rows"] for file in of_rows) == len(seen)
    assert found["live_bytes"] == len(seen) * (16 + 3 * 4 * DIM)
    assert found["dead_bytes"] == sum(file["dead_bytes"] for file in of_rows)
    assert found["file_bytes"] == sum(file["bytes"] for file in found["files"])
    assert found["space_amplification"] == found["file_bytes"] / found["live_bytes"]
    on_disk = sum(size for path, size in sizes.items() if path.name.startswith("tier-"))
    assert found["bytes_on_disk"] == on_disk > found["file_bytes"]
    assert {path: path.stat().st_size for folder in folders for path in folder.glob("*")} == sizes
    assert int(table.size()) == len(seen) + 3_000

    assert main(["info", *map(str, folders), "--noprogress"]) == 0
    head, rows, *_ = capsys.readouterr().out.splitlines()
    assert head == f"{folders[0]} {folders[1]}: table users, flushed as step 5"
    assert rows.startswith(f"  rows {len(seen)}, shards 2; int64 -> float32 x {DIM}; adam (")


def test_info_counts_the_dead(tmp_path, capsys):
    write(tmp_path, rounds=3)
    _, found = said(capsys, "info", tmp_path)
    assert found["live_bytes"] == 2_000 * ROW_BYTES
    # What stayed in memory was written for the flush alone.
    assert 1_000 * ROW_BYTES < found["dead_bytes"] <= 4_000 * ROW_BYTES
    assert found["dead_bytes"] % ROW_BYTES == 0


def test_files_of_several_shards_count_once(tmp_path, capsys):
    want = write(tmp_path, rounds=2)
    table = make(tmp_path, devices=["/CPU:0"] * 3)
    table.flush(4)
    del table
    gc.collect()
    _, found = said(capsys, "info", tmp_path)
    names = [file["file"] for file in found["files"]]
    assert len(set(names)) < len(names) and (found["shards"], found["rows"]) == (3, 2_000)
    sizes = {name: os.path.getsize(name) for name in names}
    assert found["file_bytes"] <= sum(sizes.values()) == found["bytes_on_disk"]
    assert found["live_bytes"] == 2_000 * ROW_BYTES
    assert 0 <= found["dead_bytes"] < found["file_bytes"] - found["live_bytes"]
    assert said(capsys, "verify", tmp_path)[0] == 0
    assert said(capsys, "compact", tmp_path)[0] == 0
    _, found = said(capsys, "info", tmp_path)
    names = [file["file"] for file in found["files"]]
    assert len(set(names)) == len(names) and found["dead_bytes"] == 0
    assert content(make(tmp_path)) == want


def test_a_folder_that_is_missing(tmp_path, capsys):
    folders = [tmp_path / "a", tmp_path / "b"]
    write(folders, rounds=3)
    status, found = said(capsys, "info", folders[0])
    assert (status, found["rows"], found["missing_folders"]) == (0, 2_000, ["folder 2 of 2"])
    for command in ("verify", "compact"):
        assert main([command, str(folders[0]), "--noprogress"]) == 2
        assert "it is the first of 2 folders of its table, got 1" in capsys.readouterr().err
    os.rename(folders[1], tmp_path / "elsewhere")
    status, found = said(capsys, "info", *folders)
    assert (status, found["missing_folders"]) == (0, [str(folders[1])])
    status, found = said(capsys, "verify", *folders)
    assert status == 1
    assert {os.path.dirname(damage["file"]) for damage in found["damages"]} == {str(folders[1])}
    assert {damage["what"] for damage in found["damages"]} == {"it is missing"}
    assert main(["info", str(tmp_path / "elsewhere")]) == 2
    assert "it is not the first folder of its table" in capsys.readouterr().err


@pytest.mark.parametrize("cut", [False, True])
def test_verify_finds_damage_in_its_file(tmp_path, capsys, cut):
    folders = [tmp_path / "a", tmp_path / "b"]
    write(folders, rounds=2)
    status, found = said(capsys, "verify", *folders)
    assert (status, found["damages"], found["rows"], found["step"]) == (0, [], 2_000, 3)
    damaged = [path for folder in folders for path in folder.iterdir() if path.name != "LOCK"]
    assert {path.suffix or path.name for path in damaged} == {".rows", ".index", "FLUSHED", "PART"}
    random = np.random.default_rng(0)
    for path in damaged:
        whole = path.read_bytes()
        for at in (0, len(whole) - 1, *random.integers(1, len(whole) - 1, 5).tolist()):
            flipped = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
            path.write_bytes(whole[:at] if cut else flipped)
            status, found = said(capsys, "verify", *folders)
            assert (status, [damage["file"] for damage in found["damages"]]) == (1, [str(path)])
            if path.suffix == ".rows" and not cut:
                assert 0 <= at - found["damages"][0]["offset"] < max(ROW_BYTES, 300)
        path.write_bytes(whole)
    assert said(capsys, "verify", *folders)[0] == 0


def test_damage_is_said_in_words(tmp_path, capsys):
    write(tmp_path)
    (path,) = tmp_path.glob("*.rows")
    damaged = bytearray(path.read_bytes())
    at = len(damaged) - ROW_BYTES
    key = int.from_bytes(damaged[at + 8 : at + 16], "little")
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert main(["verify", str(tmp_path), "--noprogress"]) == 1
    assert capsys.readouterr().out == f"{path}: byte {at}: the row of key {key} is damaged\n"
    path.unlink()
    assert main(["info", str(tmp_path)]) == 0
    assert f"{path}: it is missing" in capsys.readouterr().out


@pytest.mark.parametrize("devices", [["/CPU:0"], ["/CPU:0"] * 2])
def test_compact_leaves_the_rows_and_takes_less(tmp_path, capsys, devices):
    folders = [tmp_path / "a", tmp_path / "b"]
    want = write(folders, rounds=6, devices=devices)
    before = said(capsys, "info", *folders)[1]
    status, found = said(capsys, "compact", *folders)
    assert (status, found["rows"], found["step"]) == (0, 2_000, 3)
    assert found["bytes_after"] < found["bytes_before"] == before["bytes_on_disk"]
    after = said(capsys, "info", *folders)[1]
    assert before["dead_bytes"] > 0 == after["dead_bytes"]
    assert after["file_bytes"] == after["bytes_on_disk"] == found["bytes_after"]
    assert said(capsys, "verify", *folders)[0] == 0
    table = make(folders, devices=devices)
    assert content(table) == want and table.flushed_step == 3


def test_compact_keeps_slots_and_strings(tmp_path, capsys):
    fields = {"key_dtype": tf.string, "keep_keys": True}
    table = make(tmp_path, **fields)
    seen = train(table, 8, tf.strings.as_string)
    table.flush(8)
    want, words = rows_of(table), set(table.export()[0].numpy())
    assert words == {str(key).encode() for key in seen}
    del table
    gc.collect()
    assert said(capsys, "info", tmp_path)[1]["keep_keys"] is True
    assert said(capsys, "compact", tmp_path)[0] == 0
    table = make(tmp_path, **fields)
    assert rows_of(table) == want and set(table.export()[0].numpy()) == words


def test_compact_is_refused_while_a_table_has_the_folder(tmp_path, capsys):
    want = write(tmp_path, rounds=3)
    table = make(tmp_path)
    names = sorted(os.listdir(tmp_path))
    assert main(["compact", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "another table has its rows in" in error and error.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == names and content(table) == want
    assert said(capsys, "verify", tmp_path)[0] == 0  # which may


def test_compact_says_that_rows_are_damaged(tmp_path, capsys):
    write(tmp_path, rounds=3)
    for path in tmp_path.glob("*.rows"):
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
    status, found = said(capsys, "verify", tmp_path)
    assert main(["compact", str(tmp_path)]) == 2
    assert "rows are damaged" in capsys.readouterr().err
    assert said(capsys, "verify", tmp_path) == (status, found)


_FLUSHES = """
import sys
import tensorflow as tf, tf_dynemb
from tf_dynemb.storage import Disk, HostMemory
table = tf_dynemb.Variable(dim=4, name="users", storage=[HostMemory(60_000), Disk(sys.argv[1])])
ids, step = tf.range(2_000, dtype=tf.int64), 0
while True:
    step += 1
    table.upsert(ids, tf.fill([2_000, 4], float(step)))
    table.flush(step)
    print(step, flush=True)
"""


def test_a_table_of_another_process_flushes_meanwhile(tmp_path, capsys):
    command = [sys.executable, "-c", _FLUSHES, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(5):
            step = int(process.stdout.readline())
            status, found = said(capsys, "verify", tmp_path)
            assert (status, found["damages"], found["rows"]) == (0, [], 2_000)
            assert found["step"] >= step
            status, found = said(capsys, "info", tmp_path)
            assert (status, found["damages"], found["rows"]) == (0, [], 2_000)
        assert main(["compact", str(tmp_path)]) == 2
        assert "another table has its rows in" in capsys.readouterr().err
        process.kill()


def test_a_kill_leaves_the_rows(tmp_path, capsys):
    """The C++ test kills at each operation on files; this one a process, wherever it is then."""
    want = write(tmp_path, rounds=6)
    program = "import tf_dynemb.storage.commands; from tf_dynemb_cli.storage import main; "
    program += "print(1, flush=True); main()"
    command = [sys.executable, "-c", program, "compact", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGKILL)
    assert said(capsys, "verify", tmp_path)[0] == 0
    table = make(tmp_path)
    assert content(table) == want and table.flushed_step == 3


@pytest.mark.parametrize("command", ["info", "verify", "compact"])
def test_what_is_no_folder_of_a_flush(tmp_path, capsys, command):
    table = tf_dynemb.Variable(dim=2, name="plain")
    snapshot.save(tmp_path / "snapshot", table)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("text")
    write(tmp_path / "later")
    (tmp_path / "later" / "FLUSHED").write_text("dynemb-tier 9\nmore\n")

    def refused(*folders):
        assert main([command, *map(str, folders), "--noprogress"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"tf-dynemb storage {command}: ") and error.count("\n") == 1
        return error

    for name in ("none", "empty", "snapshot"):
        assert f"{tmp_path / name}: there is no flush in it" in refused(tmp_path / name)
    assert not (tmp_path / "none").exists() and os.listdir(tmp_path / "empty") == []
    assert "file" in refused(tmp_path / "file")
    assert "got format version 9, this reader knows up to 2; open it with the version" in refused(
        tmp_path / "later"
    )
    assert "none of them twice" in refused(tmp_path / "later", tmp_path / "later")
    with pytest.raises(SystemExit) as ended:
        main([command])
    assert ended.value.code == 2


@pytest.mark.parametrize("command", ["info", "compact"])
def test_a_damaged_manifest(tmp_path, capsys, command):
    write(tmp_path)
    (tmp_path / "FLUSHED").write_text("dynemb-tier 1\nno more\n")
    assert main([command, str(tmp_path)]) == 2
    assert "FLUSHED: its last line is not the checksum" in capsys.readouterr().err


def test_an_empty_table(tmp_path, capsys):
    table = make(tmp_path)
    table.flush(0)
    del table
    gc.collect()
    status, found = said(capsys, "info", tmp_path)
    assert (status, found["rows"], found["live_bytes"], found["space_amplification"]) == (0, 0, 0, None)
    assert said(capsys, "verify", tmp_path)[0] == 0 == said(capsys, "compact", tmp_path)[0]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_terminals_show_progress(tmp_path, capsys, monkeypatch):
    write(tmp_path)
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    for flags, shows in (([], True), (["--noprogress"], False)):
        monkeypatch.setattr(sys, "stderr", Terminal())
        assert main(["verify", str(tmp_path), *flags]) == 0
        assert ("verify: 100%" in sys.stderr.getvalue()) is shows
