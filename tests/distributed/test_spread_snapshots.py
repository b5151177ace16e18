"""Snapshots and checkpoints of spread tables: two processes save, three restore and save, two again."""

import json

import numpy as np
import pytest
import tensorflow as tf
from workers import run_job

import tf_dynemb
from tf_dynemb import snapshot

PROGRAM = "spread_snapshots.py"
SCENES = {"save": 2, "restore_and_save": 3, "back": 2}
DIMS = {"users": 3, "items": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """After all scenes."""
    path = tmp_path_factory.mktemp("spread_snapshots")
    for scene, processes in SCENES.items():
        run_job(processes, PROGRAM, path, scene)
    return path


@pytest.fixture(scope="module")
def saw(folder):
    """What each process of each scene saw."""
    return {
        scene: [json.loads((folder / f"{scene}-{index}.json").read_text()) for index in range(processes)]
        for scene, processes in SCENES.items()
    }


def content(path):
    """Bytes of value and slots of each key of each table."""
    rows = {}
    with snapshot.open(path) as reader:
        for name in reader.tables:
            for part in reader.rows(name):
                packed = np.concatenate([part.values, *part.slots.values()], axis=1)
                for key, numbers in zip(part.keys.tolist(), packed, strict=True):
                    assert (name, key) not in rows
                    rows[name, key] = numbers.tobytes()
    return rows


@pytest.mark.parametrize(
    "again", ["all_again", "all_back", "chain", "of_checkpoint", "of_checkpoint_back", "all_after"]
)
def test_rows_are_the_same_to_the_bit_in_any_number_of_processes(folder, again):
    want = content(folder / "all")
    assert len(want) > 500
    assert content(folder / again) == want


def test_one_process_alone_restores_what_several_have_saved(folder):
    rows = content(folder / "all")
    assert {len(row) for row in rows.values()} == {3 * 4 * dim for dim in DIMS.values()}  # Adam's slots
    tables = {name: tf_dynemb.Variable(dim=dim, name=name) for name, dim in DIMS.items()}
    others = {name: tf_dynemb.Variable(dim=dim, name=name) for name, dim in DIMS.items()}
    snapshot.restore(folder / "all", tables)
    tf.train.Checkpoint(**others).read(f"{folder / 'checkpoint_again'}-0").assert_consumed()
    for restored in (tables, others):
        values = {
            (name, key): value.tobytes()
            for name, table in restored.items()
            for key, value in zip(*(part.numpy() for part in table.export()), strict=True)
        }
        assert values == {(name, key): row[: 4 * DIMS[name]] for (name, key), row in rows.items()}


def test_each_process_has_the_rows_that_it_owns(saw, folder):
    want = [sum(name == table for name, _ in content(folder / "all")) for table in DIMS]
    for scene in SCENES:
        assert np.sum([process["sizes"] for process in saw[scene]], axis=0).tolist() == want
    assert all(process["owned"] for process in saw["restore_and_save"])


def test_one_manifest_names_the_files_of_all(saw, folder):
    for name, processes in (("all", 2), ("all_again", 3), ("all_back", 2)):
        files = sorted(path.name for path in (folder / name).iterdir())
        with snapshot.open(folder / name) as reader:
            identity = reader.id
        numbers = sorted(int(file.split("-")[2].split(".")[0]) for file in files if "rows-" in file)
        assert files[:2] == ["LOCK", "MANIFEST"]
        assert all(file.startswith(f"rows-{identity}-") for file in files[2:])
        assert numbers == list(range(len(numbers))) and len(numbers) >= 3 * processes
    assert saw["save"][0]["ids"] == saw["save"][1]["ids"]


def test_a_delta_has_what_changed_in_any_of_the_processes(folder):
    full, delta, after = (content(folder / name) for name in ("full", "delta", "all"))
    assert 0 < len(delta) < len(full)
    assert {key: after[key] for key in delta} == delta
    gone = full.keys() - after.keys()
    assert 0 < len(gone) <= 20
    assert {key: row for key, row in full.items() if key not in gone} | delta == after


def test_other_processes_continue_a_chain(folder):
    before, delta, after = (
        content(folder / name) for name in ("all_again", "delta_again", "all_trained")
    )
    assert len(delta) == 200  # 100 keys of each table
    assert before | delta == after != before


# What the first process says and what the second one says.
SAID = {
    "mixed": ["ValueError: tables: got ['here'] of this process alone beside others that are spread"]
    * 2,
    "names": ["writer 1 saves other tables", "AbortedError: process 0: FailedPreconditionError"],
    "arguments": ["AbortedError: process 1: InvalidArgumentError", "id of a snapshot: got 'x'"],
    "folders": ["do all writers save into one folder?", "AbortedError: process 0: FailedPre"],
    "no folder": ["AbortedError: process 1: NotFoundError", "do all writers have the same one?"],
    "first": ["make folder /dev/null: Not a directory", "AbortedError: process 0: NotFoundError"],
    "base": ["base: the table does not know what has changed since this snapshot"] * 2,
    "missing": ["AbortedError: process 1: SnapshotNotFoundError", "SnapshotNotFoundError: there is no"],
    "others": ["all must read one folder, into which nobody saves meanwhile"] * 2,
}


@pytest.mark.parametrize("what", SAID)
def test_what_fails_in_one_process_fails_in_all(saw, what):
    for process, want in zip(saw["back"], SAID[what], strict=True):
        assert want in process["said"][what]
