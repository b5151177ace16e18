"""Every way of saving, from N shards onto M: keys, values, slots, meta, and what training goes on to."""

import keras
import pytest
import saving_models as m
import tensorflow as tf
from table_rows import int64, rows_of, values_of

import tf_dynemb


def checkpoint_of(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


# Each saves a model to a folder and restores it into another one.


def checkpoint(model, other, folder):
    checkpoint_of(other).restore(checkpoint_of(model).save(folder / "c")).assert_consumed()


def written(model, other, folder):
    """Without the save counter."""
    checkpoint_of(other).read(checkpoint_of(model).write(folder / "c")).assert_consumed()


def manager(model, other, folder):
    tf.train.CheckpointManager(checkpoint_of(model), folder, max_to_keep=1).save()
    manager = tf.train.CheckpointManager(checkpoint_of(other), folder, max_to_keep=1)
    assert manager.restore_or_initialize() == manager.latest_checkpoint


def archive(model, other, folder):
    model.save(folder / "m.keras")
    other.load_weights(folder / "m.keras")


def weights(model, other, folder):
    model.save_weights(folder / "m.weights.h5")
    other.load_weights(folder / "m.weights.h5")


def saved_model(model, other, folder):
    tf.saved_model.save(model, folder / "m")
    tf.train.Checkpoint(other).restore(str(folder / "m/variables/variables")).expect_partial()


def model_checkpoint(model, other, folder):
    callback = keras.callbacks.ModelCheckpoint(folder / "m.keras")
    callback.set_model(model)
    callback.on_epoch_end(0, {})
    other.load_weights(folder / "m.keras")


def model_checkpoint_of_weights(model, other, folder):
    callback = keras.callbacks.ModelCheckpoint(folder / "m.weights.h5", save_weights_only=True)
    callback.set_model(model)
    callback.on_epoch_end(0, {})
    other.load_weights(folder / "m.weights.h5")


def backup_and_restore(model, other, folder):
    callback = keras.callbacks.BackupAndRestore(folder / "backup")
    callback.set_model(model)
    callback.on_epoch_end(0, {})
    callback.set_model(other)
    callback.on_train_begin()


WAYS = [
    checkpoint,
    written,
    manager,
    archive,
    weights,
    saved_model,
    model_checkpoint,
    model_checkpoint_of_weights,
    backup_and_restore,
]
SHARDS = [(1, 3), (3, 2), (2, 1)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """By number of shards: a trained model, its state, and the state that two more steps lead to."""
    out = {}
    for shards in (1, 2, 3):
        keras.utils.set_random_seed(6)
        model = m.trained(shards=shards)
        state = m.state(model)
        path = checkpoint_of(model).save(tmp_path_factory.mktemp("source") / "c")
        m.train(model, 3, 5)
        after = m.state(model)
        checkpoint_of(model).restore(path)
        assert m.state(model) == state != after
        out[shards] = model, state, after
    return out


@pytest.fixture(scope="module")
def targets():
    """By number of shards: another model, with rows that must give way."""
    return {shards: m.trained(1, shards=shards) for shards in (1, 2, 3)}


@pytest.mark.parametrize("before, after", SHARDS)
@pytest.mark.parametrize("way", WAYS)
def test_all_that_training_changes(way, before, after, sources, targets, tmp_path):
    (model, state, state_later), other = sources[before], targets[after]
    way(model, other, tmp_path)
    assert m.state(model) == state  # saving changes nothing
    assert m.state(other) == state
    for table in m.tables(other):
        shard_ids = [key % after for key in rows_of(table)]
        sizes = [int(table.size(shard)) for shard in range(after)]
        assert sizes == [shard_ids.count(shard) for shard in range(after)]
    m.train(other, 3, 5)
    assert m.state(other) == state_later


@pytest.mark.parametrize("before, after", SHARDS)
def test_rows_of_an_export(before, after, sources, targets, tmp_path):
    """Keras' export keeps tables in a list; slots are among what it holds of them."""
    model, other = sources[before][0], targets[after]
    model.export(tmp_path / "m", verbose=False)
    resources = [table.resource for table in m.tables(other)]
    exported = tf.train.Checkpoint(_misc_assets=resources)
    exported.restore(str(tmp_path / "m/variables/variables")).expect_partial()
    assert m.rows(other) == m.rows(model)


@pytest.mark.parametrize("before, after", SHARDS)
@pytest.mark.parametrize("way", [checkpoint, archive, weights, saved_model])
def test_meta(way, before, after, tmp_path):
    """Of a table whose policy counts how often each row was written."""

    def make(shards):
        policy, devices = tf_dynemb.FrequencyRestrictPolicy, ["/CPU:0"] * shards
        layer = tf_dynemb.keras.Embedding(2, restrict_policy=policy, devices=devices)
        ids = keras.Input((), dtype="int64")
        model = keras.Model(ids, layer(ids))
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad()), "mse")
        return m.ready(model), layer.table

    (model, saved), (other, restored) = make(before), make(after)
    for times in range(1, 6):
        keys = int64(range(-4 * times, 4 * times))
        saved.upsert(keys, tf.random.normal([8 * times, 2]))
    way(model, other, tmp_path)
    assert rows_of(restored) == rows_of(saved)
    counts = {key: int.from_bytes(meta, "little") for key, (*_, meta) in rows_of(restored).items()}
    assert counts == {key: 5 - (key if key >= 0 else -key - 1) // 4 for key in range(-20, 20)}


def test_training_that_was_interrupted_goes_on(tmp_path):
    """BackupAndRestore under fit: two epochs, an error, and two more on other shards equal four."""
    batches = [m.batch(step) for step in range(4)]
    inputs = {name: tf.concat([batch[name] for batch in batches], 0) for name in batches[0]}
    dataset = tf.data.Dataset.from_tensor_slices((inputs, tf.ones([32, 1]))).batch(8)

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def model(shards):
        keras.utils.set_random_seed(8)
        return m.make(shards=shards)

    straight = model(2)
    straight.fit(dataset, epochs=4, verbose=0)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(InterruptedError):
        model(2).fit(dataset, epochs=4, verbose=0, callbacks=[Interrupt(), backup])
    keras.utils.set_random_seed(9)
    resumed = m.make(shards=3)
    resumed.fit(dataset, epochs=4, verbose=0, callbacks=[backup])
    assert m.state(resumed) == m.state(straight)


def test_a_table_that_the_checkpoint_lacks_keeps_its_rows(tmp_path):
    """And is named by assert_existing_objects_matched."""
    saved, new = tf_dynemb.Variable(dim=1, name="saved"), tf_dynemb.Variable(dim=1, name="new")
    saved.upsert(int64([1]), [[1.0]])
    new.upsert(int64([2]), [[2.0]])
    path = tf.train.Checkpoint(saved=saved).save(tmp_path / "c")
    saved.clear()
    status = tf.train.Checkpoint(saved=saved, new=new).restore(path)
    assert (values_of(saved), values_of(new)) == ({1: [1.0]}, {2: [2.0]})
    status.expect_partial()
    for check in (status.assert_existing_objects_matched, status.assert_consumed):
        with pytest.raises(AssertionError):
            check()


def test_a_table_of_the_checkpoint_that_has_no_object(tmp_path):
    """It is left there; assert_consumed says so; an object that comes later gets its rows."""
    first, second = tf_dynemb.Variable(dim=1, name="first"), tf_dynemb.Variable(dim=2, name="second")
    first.upsert(int64([1]), [[1.0]])
    second.upsert(int64([2]), [[2.0, 3.0]])
    path = tf.train.Checkpoint(first=first, second=second).save(tmp_path / "c")
    root = tf.train.Checkpoint(first=tf_dynemb.Variable(dim=1, devices=["/CPU:0"] * 2))
    status = root.restore(path)
    assert values_of(root.first) == {1: [1.0]}
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError, match="second"):
        status.assert_consumed()
    status.expect_partial()
    root.second = tf_dynemb.Variable(dim=2, devices=["/CPU:0"] * 3)
    assert values_of(root.second) == {2: [2.0, 3.0]}
    status.assert_consumed()


def test_a_part_of_a_checkpoint(sources, targets, tmp_path):
    """Of one that holds all: what is not asked for stays as it is."""

    def parts(model):
        items, tags = m.tables(model)
        return {"items": items, "tags": tags, "dense": model.layers[-1]}

    def state(model):
        return dict(
            zip(parts(model), (*m.rows(model), [w.tobytes() for w in m.dense(model)]), strict=True)
        )

    model, other = sources[3][0], targets[2]
    path = tf.train.Checkpoint(**parts(model)).save(tmp_path / "c")
    want = state(model)
    for names in (["items"], ["items", "tags"], ["dense"], ["tags", "dense"]):
        m.train(other, 7, 8)
        before = state(other)
        assert all(before[name] != want[name] for name in before)
        root = tf.train.Checkpoint(**{name: parts(other)[name] for name in names})
        status = root.restore(path)
        status.assert_existing_objects_matched()
        with pytest.raises(AssertionError):
            status.assert_consumed()
        status.expect_partial()
        assert state(other) == {name: (want if name in names else before)[name] for name in before}
