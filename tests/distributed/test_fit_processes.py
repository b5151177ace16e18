"""tf_dynemb.distribute.fit over three replicas of a process, and over two processes, beside Keras'."""

import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_program import STARS, Scenes
from workers import end_job, start_job, wait_for_job

TIMEOUT_SECONDS = 450  # for a busy machine; alone it is a fraction
# Sums of float32 that replicas add up in another order than one, over 50 steps.
TOLERANCE = 1e-5
SCENES = ("integers", "adam", "strings", "files", "restored", "own_data", "jagged")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Folders, printed lines and results: of Keras, three replicas, two processes, and one of them."""
    folder = tmp_path_factory.mktemp("fit")
    folders = [folder / name for name in ("keras", "replicas", "processes")]
    single = [folder / name for name in ("no config", "config of one")]
    for one in folders + single:
        one.mkdir()
    processes = start_job(1, "fit_program.py", folders[1], 3) + start_job(
        2, "fit_program.py", folders[2]
    )
    for config, path in enumerate(single):
        processes += start_job(1, "fit_program.py", path, config=bool(config))
    try:
        # Meanwhile, with one replica.
        functions = types.SimpleNamespace(
            fit=keras.Model.fit, evaluate=keras.Model.evaluate, predict=keras.Model.predict
        )
        scenes = Scenes(tf.distribute.get_strategy(), functions, folders[0])
        alone = scenes.all()
        scenes.folder = folder
        scenes.kept()
        printed = wait_for_job(processes, TIMEOUT_SECONDS)
    finally:
        end_job(processes)
    for process, output in zip(processes, printed, strict=True):
        assert process.returncode == 0, output
    replicas = json.loads((folders[1] / "0.json").read_text())
    chief, other = (json.loads((folders[2] / f"{i}.json").read_text()) for i in range(2))
    single = [json.loads((path / "0.json").read_text()) for path in single]
    return types.SimpleNamespace(
        alone=alone,
        replicas=replicas,
        chief=chief,
        other=other,
        single=single,
        folders=folders,
        printed=printed[:3],
    )


def rows_of_all(*results):
    """The rows of all processes. What two of them have is the same."""
    rows = {}
    for result in results:
        for key, row in result["rows"].items():
            assert rows.setdefault(key, row) == row
    return rows


def assert_same(rows, result, wanted, tolerance):
    def close(got, want):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)

    assert rows.keys() == wanted["rows"].keys()
    for key, row in rows.items():
        close(row, wanted["rows"][key])
    for got, want in zip(result["dense"], wanted["dense"], strict=True):
        close(got, want)
    assert result["steps"] == wanted["steps"] and result["epochs"] == wanted["epochs"]
    assert result["history"].keys() == wanted["history"].keys()
    for name, numbers in wanted["history"].items():
        close(result["history"][name], numbers)
    for name in ("numbers", "outputs"):
        if name in wanted:
            close(result[name], wanted[name])


@pytest.mark.parametrize("scene", SCENES)
def test_as_keras_with_one_replica(outcome, scene):
    # What is rounded nowhere is the same to the bit.
    tolerance = 0.0 if scene == "integers" else TOLERANCE
    wanted = outcome.alone[scene]
    assert len(wanted["rows"]) > 10
    result = outcome.replicas[scene]
    assert_same(result["rows"], result, wanted, tolerance)
    results = outcome.chief[scene], outcome.other[scene]
    for result in results:
        assert_same(rows_of_all(*results), result, wanted, tolerance)


@pytest.mark.parametrize("scene", [*SCENES, "shuffled"])
def test_all_processes_have_the_same_numbers(outcome, scene):
    for part in ("dense", "history", "steps", "epochs"):
        assert outcome.chief[scene][part] == outcome.other[scene][part]


def test_one_worker_alone_is_as_no_strategy(outcome):
    """With a TF_CONFIG of one worker, and without TF_CONFIG."""
    for result in outcome.single:
        # TensorFlow's sums of floats differ in their last bit once in many runs on a busy machine.
        for scene, tolerance in (("integers", 0.0), ("kept", TOLERANCE)):
            assert_same(result[scene]["rows"], result[scene], outcome.alone[scene], tolerance)
        assert result["kept"]["same"] == outcome.alone["kept"]["same"] == [True] * 4
        assert "0 5" in result["kept"]["rows"] and "0 -6" not in result["kept"]["rows"]


def test_ids_never_seen_make_no_rows(outcome):
    """What evaluate and predict gave of them is compared with Keras' beside all else."""
    alone, *others = (result["jagged"] for result in (outcome.alone, outcome.chief, outcome.other))
    assert not any(result["grown"] for result in (alone, *others))
    sizes = [result["sizes"] for result in others]
    assert [sum(of_processes) for of_processes in zip(*sizes, strict=True)] == alone["sizes"]
    assert min(alone["sizes"]) > 5


def test_arrays_are_shuffled_alike(outcome):
    chief, other = outcome.chief["shuffled"], outcome.other["shuffled"]
    assert_same(rows_of_all(chief, other), chief, outcome.replicas["shuffled"], TOLERANCE)
    assert outcome.replicas["shuffled"]["history"]["loss"][0] != pytest.approx(np.mean(STARS**2))


def test_one_process_ends_the_training_of_all(outcome):
    for result in (outcome.replicas, outcome.chief, outcome.other):
        assert result["shuffled"]["stopped"] == 7


def test_files_are_the_chiefs(outcome):
    for folder in outcome.folders:
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert {name for name in names if not name.endswith(".json")} == {
            "log.csv",
            "checkpoints/1.keras",
            "checkpoints/2.keras",
            "checkpoints/3.keras",
            "backup/latest.weights.h5",
        }
        assert len((folder / "log.csv").read_text().splitlines()) == 4
    alone, _, several = outcome.folders
    wanted, model = (
        keras.saving.load_model(folder / "checkpoints/3.keras") for folder in (alone, several)
    )
    assert model.layers[1].table.size() == wanted.layers[1].table.size() > 10
    ids = np.arange(-9, 9).reshape(6, 3) * (2**40 + 1)
    np.testing.assert_allclose(
        model.predict(ids, verbose=0), wanted.predict(ids, verbose=0), rtol=TOLERANCE
    )


def test_the_chief_alone_prints(outcome):
    replicas, chief, other = outcome.printed
    assert "Epoch 3/9" in replicas and "Epoch 3/9" in chief and "Epoch" not in other
