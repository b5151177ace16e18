"""A fit that goes on in the middle of an epoch, beside one that was never interrupted: to the bit."""

import json
import signal

import keras
import numpy as np
import pytest
import restart_training
import tensorflow as tf
from replicas import mirrored
from restart_training import IDS, KILLED_AT, SAVE_FREQ, SEED, Interrupt, Interrupted, train
from workers import end_job, run_job, start_job

import tf_dynemb
from tf_dynemb.distribute.batches import Batches
from tf_dynemb.distribute.repetition import repeats_itself

PROGRAM = "restart_training.py"
TIMEOUT_SECONDS = 180  # for a busy machine; alone it is a fraction


def stop():
    raise Interrupted


def assert_goes_on(resumed, uninterrupted, begin):
    """What came of the life from (epoch, batches) `begin` on is that of an uninterrupted one."""
    epoch, batches = begin
    for part in ("rows", "dense", "optimizer"):
        assert resumed[part] == uninterrupted[part], part
    assert len(uninterrupted["rows"]) > 10
    assert resumed["seen"] == [
        one for one in uninterrupted["seen"] if (one[0], one[1]) >= (epoch, batches)
    ]
    assert resumed["epochs"] == uninterrupted["epochs"][epoch:]
    for name, numbers in uninterrupted["history"].items():
        got = resumed["history"].get(name, [])  # none of a validation that is not in each epoch
        assert got == numbers[len(numbers) - len(got) :], name
        assert len(got) == len(resumed["epochs"]) or (name.startswith("val_") and len(numbers) < 3), name


@pytest.mark.parametrize(("processes", "data"), [(1, "arrays"), (2, "arrays"), (2, "files")])
def test_a_killed_training_goes_on_at_the_batch(processes, data, tmp_path):
    restart_training.write_files(tmp_path)
    job = start_job(processes, PROGRAM, tmp_path, "killed", data)
    try:
        assert job[0].wait(TIMEOUT_SECONDS) == -signal.SIGKILL
    finally:
        end_job(job)
    run_job(processes, PROGRAM, tmp_path, "resumed", data, timeout=TIMEOUT_SECONDS)
    results = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(processes)]
    for result in results:
        steps = [one[:2] for one in result["uninterrupted"]["seen"]]
        saved = (steps.index(list(KILLED_AT[data])) + 1) // SAVE_FREQ * SAVE_FREQ
        assert_goes_on(result["resumed"], result["uninterrupted"], steps[saved])
    rows = set().union(*(result["uninterrupted"]["rows"] for result in results))
    assert rows == set(map(str, IDS.ravel().tolist()))  # all examples, of whichever process
    assert not (tmp_path / "backup").exists()


SCENES = ("arrays", "dataset", "stream", "short_stream", "in_order", "files", "parquet")


@pytest.mark.parametrize("scene", SCENES)
def test_data_are_where_they_were(scene, tmp_path):
    """Interrupted twice, the second time before an epoch has ended."""
    restart_training.write_files(tmp_path)

    def live(folder, interrupt, seed=SEED):
        tf.random.set_seed(1)  # datasets have it in their seeds
        data = getattr(restart_training, scene)(tmp_path)
        return train(tf.distribute.get_strategy(), folder, data, interrupt, seed=seed)

    uninterrupted = live(None, Interrupt())
    order = [(epoch, batch) for epoch, batch, _ in uninterrupted["seen"]]
    first = len(order) - 2 * SAVE_FREQ - 1  # behind a validation
    with pytest.raises(Interrupted):
        live(tmp_path, Interrupt(*order[first], stop))
    second = first + SAVE_FREQ
    interrupt = Interrupt(*order[second], stop)
    with pytest.raises(Interrupted):
        live(tmp_path, interrupt, seed=1)
    saved = [(last + 1) // SAVE_FREQ * SAVE_FREQ for last in (first, second)]
    assert interrupt.seen == uninterrupted["seen"][saved[0] : second + 1]
    assert_goes_on(live(tmp_path, Interrupt(), seed=2), uninterrupted, order[saved[1]])


def go_on(folder, strategy=None, at=(-1, 0), function=stop, **options):
    """A life, which ends by what a function does after a batch; arrays."""
    interrupt = Interrupt(*at, function)
    strategy = strategy or tf.distribute.get_strategy()
    return train(strategy, folder, restart_training.arrays(), interrupt, **options)


@pytest.fixture(scope="module")
def uninterrupted():
    return go_on(None)


@pytest.mark.parametrize("batch", [8, 9])
def test_a_backup_at_the_end_of_an_epoch(batch, tmp_path, uninterrupted):
    """Nothing is left of the epoch but its validation, or a batch; its logs are those of all batches."""
    with pytest.raises(Interrupted):
        go_on(tmp_path, at=(0, batch), save_freq=batch + 1)
    with pytest.raises(Interrupted):  # the backup is before the callback that interrupts
        go_on(tmp_path, at=(1, 0), save_freq=100)
    assert_goes_on(go_on(tmp_path), uninterrupted, (0, batch + 1))


def test_whole_epochs(tmp_path, uninterrupted):
    with pytest.raises(Interrupted):
        go_on(tmp_path, at=(2, 3), save_freq="epoch")
    assert_goes_on(go_on(tmp_path, save_freq="epoch"), uninterrupted, (2, 0))


@pytest.mark.parametrize("scene", ["arrays", "files"])
def test_replicas_of_a_process(scene, tmp_path):
    """Of files each replica has batches of its own."""
    restart_training.write_files(tmp_path)
    data = getattr(restart_training, scene)(tmp_path)

    def live(folder, *at):
        return train(mirrored(), folder, data, Interrupt(*at, stop) if at else Interrupt())

    uninterrupted = live(None)
    order = [one[:2] for one in uninterrupted["seen"]]
    assert len(order) == {"arrays": 30, "files": 15}[scene]
    with pytest.raises(Interrupted):
        live(tmp_path, *order[7])
    assert_goes_on(live(tmp_path), uninterrupted, order[6])


def test_other_replicas_go_on_with_the_same_batches(tmp_path):
    """One where there were two: up to the order in which floats are added."""
    uninterrupted = go_on(None, dropout=0.0)
    with pytest.raises(Interrupted):
        go_on(tmp_path, mirrored(), at=(1, 6), dropout=0.0)
    resumed = go_on(tmp_path, dropout=0.0)
    assert [one[:2] for one in resumed["seen"]] == [
        [e, b] for e, b, _ in uninterrupted["seen"] if (e, b) >= (1, 5)
    ]
    assert resumed["rows"].keys() == uninterrupted["rows"].keys()
    for key, row in uninterrupted["rows"].items():
        # 30 steps of Adam, whose first steps are as large for a gradient that is rounding as for any.
        np.testing.assert_allclose(resumed["rows"][key], row, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("other", ["replicas", "files", "data"])
def test_other_parts_of_files_are_refused_within_an_epoch(other, tmp_path):
    """After as many batches they would be other records: some never came, and others twice."""
    restart_training.write_files(tmp_path)
    files = restart_training.files(tmp_path)

    def live(data, strategy=None, at=(-1, 0), **options):
        strategy = strategy or tf.distribute.get_strategy()
        return train(strategy, tmp_path, data, Interrupt(*at, stop), **options)

    with pytest.raises(Interrupted):
        live(files, at=(1, 6))
    strategy, data = None, files
    if other == "replicas":
        strategy = mirrored()
    elif other == "files":
        with tf.io.TFRecordWriter(str(tmp_path / "3.tfrecord")):
            data = restart_training.files(tmp_path)
    else:
        data = restart_training.arrays()
    with pytest.raises(ValueError, match="after 5 batches of epoch 1 of FileBatches") as caught:
        live(data, strategy)
    path = str(tmp_path / "backup" / "latest.weights.h5")
    assert path in str(caught.value)
    got = str(caught.value).partition("; got ")[2]
    assert {"replicas": "2 replica", "files": "FileBatches", "data": "other data"}[other] in got
    # What it says to do instead.
    model = restart_training.made(strategy or tf.distribute.get_strategy())
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    assert int(model.optimizer.iterations.numpy()) == 15
    history = tf_dynemb.distribute.fit(model, **data, epochs=2, initial_epoch=1, verbose=0)
    assert history.epoch == [1]


def test_files_within_an_epoch_of_arrays_are_refused(tmp_path):
    restart_training.write_files(tmp_path)
    with pytest.raises(Interrupted):
        go_on(tmp_path, at=(1, 6))
    files = restart_training.files(tmp_path)
    with pytest.raises(ValueError, match="of epoch 1 of other data; got FileBatches"):
        train(tf.distribute.get_strategy(), tmp_path, files, Interrupt())


@pytest.mark.parametrize("save_freq", ["epoch", 10])
def test_other_parts_of_files_go_on_with_an_epoch(save_freq, tmp_path):
    """Of which nothing was read, or all of its 10 batches; the files are in another folder then."""
    restart_training.write_files(tmp_path)
    files, options = restart_training.files(tmp_path), {"save_freq": save_freq}
    with pytest.raises(Interrupted):
        train(tf.distribute.get_strategy(), tmp_path, files, Interrupt(1, 3, stop), **options)
    (tmp_path / "moved").mkdir()
    for number in range(5):
        (tmp_path / f"{number}.tfrecord").rename(tmp_path / "moved" / f"{number}.tfrecord")
    files = restart_training.files(tmp_path / "moved")
    resumed = train(mirrored(), tmp_path, files, Interrupt(), **options)
    assert [one[:2] for one in resumed["seen"]] == [[e, b] for e in (1, 2) for b in range(5)]


class Died(BaseException):
    """As if the process had been killed there: nobody catches it."""


@pytest.mark.parametrize("last", ["save_weights", "rename", "GFile"])
def test_what_a_save_leaves_that_is_not_finished(last, tmp_path, uninterrupted, monkeypatch):
    """The state before, until the file has its name."""
    with pytest.raises(Interrupted):
        go_on(tmp_path, at=(0, 4))

    def die(*arguments, **options):
        raise Died

    def fails():
        if last == "save_weights":
            monkeypatch.setattr(keras.Model, last, die)
        else:
            monkeypatch.setattr(tf.io.gfile, last, die)

    with pytest.raises(Died):
        go_on(tmp_path, at=(0, 4), function=fails)
    monkeypatch.undo()
    assert_goes_on(go_on(tmp_path), uninterrupted, (0, 6 if last == "GFile" else 3))


def cut_off(content):
    return content[:500]


def with_zeros(content):
    middle = len(content) // 2
    return content[:middle] + bytes(4000) + content[middle + 4000 :]


@pytest.mark.parametrize("damage", [cut_off, with_zeros])
def test_a_damaged_file_with_one_before_it(damage, tmp_path, uninterrupted):
    folder = tmp_path / "backup"
    backup = keras.callbacks.BackupAndRestore(folder, save_freq=SAVE_FREQ, double_checkpoint=True)

    def live(at=(-1, 0), callbacks=(backup,)):
        model, interrupt = restart_training.made(tf.distribute.get_strategy()), Interrupt(*at, stop)
        np.random.seed(SEED)
        tf_dynemb.distribute.fit(
            model, **restart_training.arrays(), epochs=3, verbose=0, callbacks=[*callbacks, interrupt]
        )
        return interrupt.seen

    with pytest.raises(Interrupted):
        live((0, 7))
    path = folder / "latest.weights.h5"
    path.write_bytes(damage(path.read_bytes()))
    assert live() == uninterrupted["seen"][3:]
    folder.mkdir()
    path.write_bytes(b"nothing")
    with pytest.raises(OSError):
        live()


def test_what_keras_has_written(tmp_path):
    """After an epoch; within one its fit does not say where it was."""
    make = restart_training.made
    model = make(tf.distribute.get_strategy())
    data = restart_training.in_order()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(Interrupted):
        model.fit(data["x"], epochs=3, callbacks=[backup, Interrupt(1, 1, stop)], verbose=0)
    interrupt = Interrupt()
    model = make(tf.distribute.get_strategy())
    tf_dynemb.distribute.fit(model, data["x"], epochs=3, callbacks=[backup, interrupt], verbose=0)
    assert interrupt.seen[0][:2] == [1, 0]
    within = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)
    with pytest.raises(Interrupted):
        model.fit(data["x"], callbacks=[within, Interrupt(0, 6, stop)], verbose=0)
    with pytest.raises(ValueError, match="Keras' own fit has begun.* want one of save_freq='epoch'"):
        tf_dynemb.distribute.fit(model, data["x"], callbacks=[within], verbose=0)


class Own(keras.callbacks.BackupAndRestore):
    pass


def test_backups_whose_place_fit_cannot_take(tmp_path):
    model = restart_training.made(tf.distribute.get_strategy())
    within = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)
    for callbacks in (
        [Own(tmp_path / "backup", save_freq=2)],
        keras.callbacks.CallbackList([within], model=model),
    ):
        with pytest.raises(ValueError, match="got save_freq=2 of a .*, want keras.callbacks.Backup"):
            tf_dynemb.distribute.fit(model, **restart_training.in_order(), callbacks=callbacks)


def test_data_that_have_become_fewer(tmp_path):
    with pytest.raises(Interrupted):
        go_on(tmp_path, at=(0, 6))
    model = restart_training.made(tf.distribute.get_strategy())
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    data = restart_training.in_order()["x"].take(5)
    with pytest.raises(ValueError, match="got 5 batches in the epoch .* go on after 6, want the data"):
        tf_dynemb.distribute.fit(model, data, callbacks=[backup], verbose=0)


def numbers():
    return tf.data.Dataset.range(10)


ALIKE = {
    "range": (True, numbers),
    "map": (True, lambda: numbers().map(lambda n: n + 1).batch(3).prefetch(2)),
    "files": (True, lambda: tf.data.TextLineDataset([__file__]).interleave(lambda line: numbers())),
    "stateless": (True, lambda: numbers().map(lambda n: tf.random.stateless_uniform([], [1, n]))),
    "shuffled once": (True, lambda: numbers().shuffle(9, 1, reshuffle_each_iteration=False)),
    "shuffled": (False, lambda: numbers().shuffle(9, 1)),
    "shuffled inside": (False, lambda: numbers().flat_map(lambda n: numbers().shuffle(9, 1))),
    "drawn": (False, lambda: numbers().map(lambda n: tf.random.uniform([], seed=1))),
    "Python": (False, lambda: numbers().map(lambda n: tf.numpy_function(abs, [n], tf.int64))),
    "generator": (
        False,
        lambda: tf.data.Dataset.from_generator(range, args=[3], output_signature=tf.TensorSpec([])),
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_iterations_that_are_certainly_alike(name):
    alike, make = ALIKE[name]
    assert repeats_itself(make()) == alike


def test_epochs_that_are_alike_are_not_read():
    read = []

    def note(number):
        read.append(int(number))
        return number

    data = Batches(numbers().batch(4))
    data.pass_over_epoch()
    data.pass_over_batches(1)
    assert [batch.numpy().tolist() for batch in data.epoch()] == [[4, 5, 6, 7], [8, 9]]
    assert len(list(data.epoch())) == 3
    noted = Batches(numbers().map(lambda n: tf.numpy_function(note, [n], tf.int64)))
    noted.pass_over_epoch()
    assert read == list(range(10))  # a Python function may give others each time
