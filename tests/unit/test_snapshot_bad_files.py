"""Files that cannot be converted: an error that names file and row, no snapshot, nothing left behind.

Random ones are test_fuzzed_files.py's.
"""

import fcntl
import os
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from snapshot_rows import read, written

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb_cli.snapshot import main

NPZ = {
    "floats for keys": (dict(keys=[1.5, 2.0]), TypeError, "keys: got float64, want int64"),
    "truth values": (dict(keys=[True, False]), TypeError, "keys: got bool, want int64"),
    "too large": (dict(keys=np.array([1, 2**63], np.uint64)), ValueError, f"{2**63} in row 1"),
    "1-D values": (dict(values=[1.0, 2.0]), ValueError, r"values: got shape \(2,\), want \(2, numbers"),
    "0-D keys": (dict(keys=1), ValueError, r"keys: got shape \(\), want \(1,\)"),
    "more values": (dict(values=np.zeros((3, 2))), ValueError, r"values: got shape \(3, 2\), want \(2,"),
    "strings": (dict(keys=["a", "b"]), TypeError, "got strings, want int64; key_dtype='string'"),
    "no schema": (dict(schema=np.array("garbage")), ValueError, "schema"),
    "pickled": (dict(keys=np.array([1, None])), ValueError, "Object arrays cannot be loaded"),
}
PARQUET = {
    "lengths": (dict(values=[[1.0, 2.0, 3.0], [4.0]]), ValueError, "other than 3 numbers in row 1"),
    "no list": (dict(values=[[1.0, 2.0], None]), ValueError, r"values: got nothing \(null\) in row 1"),
    "a hole": (dict(values=[[1.0, 2.0], [None, 1.0]]), ValueError, r"nothing \(null\) in it in row 1"),
    "no key": (dict(keys=[2**60 + 1, None]), ValueError, r"keys: got nothing \(null\) in row 1"),
    "floats for keys": (dict(keys=[1.5, 2.0]), TypeError, "keys: got float64, want int64"),
    "truth values": (dict(keys=[True, False]), TypeError, "keys: got"),
    "1-D values": (dict(values=[1.0, 2.0]), ValueError, r"values: got shape \(2,\), want \(2, numbers"),
    "strings": (dict(keys=["a", "b"]), TypeError, "got strings, want int64; key_dtype='string'"),
}
GOOD = dict(keys=[1, 2], values=[[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_files_that_are_no_rows_are_refused(ending, tmp_path):
    file = tmp_path / f"x.{ending}"
    for parts, error, match in (NPZ if ending == "npz" else PARQUET).values():
        if ending == "npz":
            np.savez(file, **GOOD | parts)
        else:
            pq.write_table(pa.table(GOOD | parts), file)
        with pytest.raises(error, match=match) as raised:
            snapshot.import_table(tmp_path / "s", "t", [file])
        assert str(raised.value).startswith(str(file))
        assert not (tmp_path / "s" / "MANIFEST").exists()
    if ending == "parquet":
        pq.write_table(pa.table(GOOD).replace_schema_metadata({"schema": "garbage"}), file)
        with pytest.raises(ValueError, match="x.parquet: .*schema"):
            snapshot.import_table(tmp_path / "s", "t", [file])
        pq.write_table(pa.table(GOOD), file)
        data = bytearray(file.read_bytes())
        data[4:40] = bytes(36)
        file.write_bytes(data)
        with pytest.raises(OSError, match="x.parquet: "):
            snapshot.import_table(tmp_path / "s", "t", [file])
    rows = dict(keys=np.arange(70_000), values=np.ones((70_000, 2)))  # more than a block
    if ending == "npz":
        np.savez(file, keys=rows["keys"], values=rows["values"][:-1])
    else:
        lists = rows["values"].tolist()
        lists[65_540] = [1.0]
        pq.write_table(pa.table(dict(keys=rows["keys"], values=lists)), file)
    with pytest.raises(ValueError, match=r"shape \(69999, 2\)|from row 65536: .* in row 4,"):
        snapshot.import_table(tmp_path / "s", "t", [file])


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_a_damaged_snapshot_leaves_the_exported_file(ending, tmp_path):
    written(tmp_path / "s", 200_000)
    target = tmp_path / "out" / f"rows.{ending}"
    target.parent.mkdir()
    snapshot.export_table(tmp_path / "s", "t", target)
    before = target.read_bytes()
    (file,) = (tmp_path / "s").glob("rows-*")
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.write_bytes(data)
    with pytest.raises(snapshot.SnapshotDamagedError, match="its checksum differs"):
        snapshot.export_table(tmp_path / "s", "t", target)
    assert target.read_bytes() == before
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_a_flipped_byte_is_found_out(ending, tmp_path):
    """Or lies where no number does, such as a time stamp."""
    file, rows = tmp_path / f"x.{ending}", {1: [0, 1], 2: [2, 3], 3: [4, 5]}
    with snapshot.SnapshotWriter(tmp_path / "a") as writer:
        writer.add_table("t", dim=2)
        writer.write(list(rows), list(rows.values()))
    snapshot.export_table(tmp_path / "a", "t", file)
    good = file.read_bytes()
    for at in range(0, len(good), 3):
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        try:
            snapshot.import_table(tmp_path / "s", "t", [file])
        except (ValueError, OSError) as error:
            assert str(error).startswith(str(file))
        else:
            assert read(tmp_path / "s") == rows


@pytest.mark.parametrize("strings_of_keys", [False, True])
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_strings_that_are_not_those_of_their_keys(ending, strings_of_keys, tmp_path):
    file = tmp_path / f"x.{ending}"
    strings = ["a", "b", "c", "d"]
    keys = tf_dynemb.fingerprint(tf.constant(strings)).numpy()
    for given, wrong in ((strings, None), (["a", "b", "x", "y"], 2)):
        columns = dict(keys=given if strings_of_keys else keys, values=[[1.0]] * 4, strings=strings)
        if wrong and not strings_of_keys:
            columns["strings"] = given
        if ending == "npz":
            np.savez(file, **columns)
        else:
            pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), file)
        arguments = (tmp_path / "s", "t", [file], None, "float32", "string")
        if wrong is None:
            assert snapshot.import_table(*arguments) == 4
        else:
            got = columns["strings"][2]
            with pytest.raises(
                ValueError, match=f"{file}: strings: got .*'{got}'.* in row 2, whose key"
            ):
                snapshot.import_table(*arguments)


def test_joined_strings_without_their_lengths(tmp_path):
    """Strings of one byte each: as many numbers as there are keys, which they are not."""
    np.savez(tmp_path / "x.npz", **GOOD, strings=np.frombuffer(b"ab", np.uint8))
    np.savez(tmp_path / "y.npz", **GOOD, string_lengths=[1, 1])
    np.savez(
        tmp_path / "z.npz", **GOOD, string_lengths=[0.5, 1.5], strings=np.frombuffer(b"ab", np.uint8)
    )
    for name, error, match in (
        ("x", TypeError, "strings: got uint8, want str or bytes; string_lengths is missing"),
        ("y", ValueError, r"\['strings'\] are missing"),
        ("z", TypeError, "string_lengths: got float64, want int64"),
    ):
        with pytest.raises(error, match=match):
            snapshot.import_table(tmp_path / "s", "t", [tmp_path / f"{name}.npz"])


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_schemas_that_are_none(ending, tmp_path):
    file = tmp_path / f"x.{ending}"
    good = "dynemb-table 1\nvalue float32 {}\n"
    for text, match in (
        (good.format(1000) + "\0\nvalue float32 2\n", "want a text without a zero byte"),
        (good.format(2).replace("table 1", "table 7"), "this build reads format 1"),
        (good.format(3), "values: got shape"),
    ):
        if ending == "npz":
            np.savez(file, **GOOD, schema=np.array(text))
        else:
            pq.write_table(pa.table(GOOD).replace_schema_metadata({"schema": text}), file)
        with pytest.raises(ValueError, match=match) as raised:
            snapshot.import_table(tmp_path / "s", "t", [file])
        assert str(raised.value).startswith(str(file))


def bad_files(folder):
    """Files on which the parsers raise errors of all classes."""
    lists = pa.array([[1.0, 2.0], [3.0, 4.0]])
    for name, columns in {
        "keys twice": [("keys", pa.array([1, 2])), ("keys", pa.array([1, 2])), ("values", lists)],
        "structs": [("keys", pa.array([1, 2])), ("values", pa.array([[{"x": 1}], [{"x": 2}]]))],
        "lists of lists": [("keys", pa.array([1, 2])), ("values", pa.array([[[1.0]], [[2.0], [3.0]]]))],
        "durations": [("keys", pa.array([1, 2], pa.duration("s"))), ("values", lists)],
    }.items():
        names, arrays = zip(*columns, strict=True)
        pq.write_table(pa.Table.from_arrays(arrays, names), folder / f"{name}.parquet")
    pq.write_table(pa.table(GOOD), folder / "cut.parquet")
    (folder / "cut.parquet").write_bytes((folder / "cut.parquet").read_bytes()[:-5])
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "empty.npz").write_bytes(b"")
    np.savez(folder / "x.npz", **GOOD)
    good = (folder / "x.npz").read_bytes()
    at = good.index(b"PK\1\2")
    (folder / "encrypted.npz").write_bytes(good[: at + 8] + b"\1" + good[at + 9 :])
    (folder / "unknown compression.npz").write_bytes(good[: at + 10] + b"\x63" + good[at + 11 :])
    (folder / "x.npz").unlink()
    with zipfile.ZipFile(folder / "huge.npz", "w") as archive:
        head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1152921504606846975,), }"
        member = b"\x93NUMPY\1\0" + (len(head) + 1).to_bytes(2, "little") + head + b"\n"
        archive.writestr("keys.npy", member)
        archive.writestr("values.npy", b"text")


def test_the_command_line_says_in_one_line_what_parsers_of_others_say(tmp_path, capsys):
    bad_files(tmp_path)
    files = sorted([*tmp_path.glob("*.npz"), *tmp_path.glob("*.parquet")])
    assert len(files) == 10
    for file in files:
        assert main(["import", str(tmp_path / "s"), str(file), "--noprogress"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"tf-dynemb snapshot import: {file}: ")
        assert error.count("\n") == 1
        assert not (tmp_path / "s" / "MANIFEST").exists()


def test_without_pyarrow_the_command_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["import", str(tmp_path / "s"), "x.parquet", "--noprogress"]) == 2
    assert "import: Parquet files need pyarrow; `pip install pyarrow`" in capsys.readouterr().err


KILLED = """
import os, signal, sys
from tf_dynemb import snapshot
snapshot.export_table(sys.argv[1], "t", sys.argv[2], lambda rows: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_export_leaves_what_the_next_one_overwrites(tmp_path):
    written(tmp_path / "s", 2000)
    target = tmp_path / "out" / "rows.npz"
    target.parent.mkdir()
    target.write_bytes(b"old")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "s"), str(target)]
    assert subprocess.run(command, check=False, env=environment).returncode == -9
    (left,) = set(target.parent.iterdir()) - {target}
    assert target.read_bytes() == b"old"
    left.write_bytes(bytes(10**6))  # more than the next one writes
    assert snapshot.export_table(tmp_path / "s", "t", target) == 2000
    assert list(target.parent.iterdir()) == [target]
    snapshot.import_table(tmp_path / "t", "t", [target])
    assert read(tmp_path / "t") == read(tmp_path / "s")


def test_one_export_into_a_file_at_a_time(tmp_path):
    written(tmp_path / "s", 2000)
    target = tmp_path / "out" / "rows.npz"
    target.parent.mkdir()

    def another(rows):
        with pytest.raises(BlockingIOError, match=f"{target}: another process is exporting into it"):
            snapshot.export_table(tmp_path / "s", "t", target)

    assert snapshot.export_table(tmp_path / "s", "t", target, another) == 2000
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("end", ["in place", "removed"])
def test_who_gets_the_lock_too_late_leaves_the_file_alone(end, tmp_path, monkeypatch):
    """The other process has put its file in place, or removed it, between our open and our lock."""
    written(tmp_path / "s", 10)
    target, flock = tmp_path / "rows.npz", fcntl.flock

    def late(file, how):
        (left,) = tmp_path.glob(".rows.npz*")
        left.write_bytes(b"of the other")
        left.rename(target) if end == "in place" else left.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BlockingIOError, match="another process is exporting"):
        snapshot.export_table(tmp_path / "s", "t", target)
    assert end == "removed" or target.read_bytes() == b"of the other"
