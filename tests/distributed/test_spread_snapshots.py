"""Snapshots and checkpoints of spread tables: two processes save, three restore and save, two again."""

import json
import pathlib
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf
from workers import end_job, run_job, start_job

import tf_dynemb
from tf_dynemb import snapshot

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

from processes import owners_of  # noqa: E402

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
    for index, process in enumerate(saw["restore_and_save"]):
        for name, by_hash in (("users", True), ("items", False)):
            keys = np.array(process["keys"][name], np.int64)
            assert len(keys) > 10
            np.testing.assert_array_equal(owners_of(keys, 3, by_hash), index)


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


# --- a process is killed in the middle of a save -----------------------------------------------------

KILLED = {"last_dies_in_a_file": 3, "first_dies_in_the_manifest": 2}  # scenes, and how many processes
VICTIMS = {"last_dies_in_a_file": 2, "first_dies_in_the_manifest": 0}
# TensorFlow's heartbeats notice after 10 seconds, and then there is a busy machine.
NOTICED_SECONDS = 60


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of each scene, and how its processes ended; both at once, for most of it is waiting."""
    folders = {scene: tmp_path_factory.mktemp(scene) for scene in KILLED}
    jobs = {scene: start_job(n, PROGRAM, folders[scene], scene) for scene, n in KILLED.items()}
    try:
        for job in jobs.values():
            for process in job:
                process.communicate(timeout=300)
    finally:
        for job in jobs.values():
            end_job(job)
    return {scene: (folders[scene], [process.returncode for process in jobs[scene]]) for scene in jobs}


@pytest.mark.parametrize("scene", KILLED)
def test_a_save_in_which_a_process_is_killed_leaves_the_one_before(killed, scene):
    folder, ended = killed[scene]
    assert ended[VICTIMS[scene]] == -signal.SIGXFSZ
    names = {path.name for path in (folder / "kept").iterdir()}
    before = {path.name for path in (folder / "copy").iterdir()}
    if scene == "last_dies_in_a_file":  # the first process has tidied up
        assert names == before
    else:
        (draft,) = (name for name in names - before if name.startswith("MANIFEST-"))
        assert (folder / "kept" / draft).stat().st_size == 100
    # All that was there is as it was, to the bit, with the manifest.
    assert "MANIFEST" in before <= names
    for name in before:
        assert (folder / "kept" / name).read_bytes() == (folder / "copy" / name).read_bytes()
    tables = {name: tf_dynemb.Variable(dim=dim, name=name) for name, dim in DIMS.items()}
    snapshot.restore(folder / "kept", tables)
    of_each = [json.loads((folder / f"rows-{index}.json").read_text()) for index in range(KILLED[scene])]
    for name, table in tables.items():
        want = {int(key): row for rows in of_each for key, row in rows[name].items()}
        assert dict(zip(*(part.numpy().tolist() for part in table.export()), strict=True)) == want
    # The next save takes its place, and away what the dead one has left.
    identity = snapshot.save(folder / "kept", tables)
    names = sorted(path.name for path in (folder / "kept").iterdir())
    assert names[:2] == ["LOCK", "MANIFEST"]
    assert all(name.startswith(f"rows-{identity}-") for name in names[2:])


@pytest.mark.parametrize("scene", KILLED)
def test_the_others_have_an_error_when_a_process_is_killed_in_a_save(killed, scene):
    folder, ended = killed[scene]
    for index in set(range(KILLED[scene])) - {VICTIMS[scene]}:
        path = folder / f"survivor-{index}.json"
        if not path.exists():
            # The first one had the cluster's service, without which TensorFlow may end the others.
            assert VICTIMS[scene] == 0 and ended[index] != 0
            continue
        survivor = json.loads(path.read_text())
        assert survivor["said"].split(":")[0] in ("UnavailableError", "AbortedError", "InternalError")
        assert survivor["seconds"] < NOTICED_SECONDS
