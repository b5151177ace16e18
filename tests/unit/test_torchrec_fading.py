"""Counts and scores of virtual tables that fade, against dicts of FBGEMM's numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from table_rows import values_of
from virtual_tables import features, pass_time, step, virtual

import tf_dynemb
from tf_dynemb.compat import torchrec

both = pytest.mark.parametrize("kind", ["bags", "rows"])

POLICIES = {
    "count": lambda **more: torchrec.CountBasedEvictionPolicy(eviction_threshold=3, **more),
    "mixed": lambda **more: torchrec.CountTimestampMixedEvictionPolicy(
        eviction_threshold=3, eviction_ttl_mins=25, **more
    ),
}


@both
@pytest.mark.parametrize("rate", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("name", POLICIES)
def test_counts_that_fade(kind, name, rate, monkeypatch, tmp_path):
    """Against a dict of FBGEMM's numbers: all counts times the rate, then those below leave.

    Of the mixture only those that were not written for 25 minutes. In the middle it goes on in another
    collection, from a checkpoint.
    """
    policy = POLICIES[name](decay_rate=rate, training_id_eviction_trigger_count=6)
    layer, counts, written = virtual(kind, policy, table_size=2), {}, {}
    random, left, stayed = np.random.default_rng(3), 0, 0
    for now in range(120):
        ids = set((random.zipf(1.3, 4) % 40).tolist())
        step(layer, *ids)
        pass_time(layer, monkeypatch, 1)
        counts |= {key: counts.get(key, 0) + 1 for key in ids}
        written |= {key: now for key in ids}
        if now % 10 == 9:
            counts = {key: count * rate for key, count in counts.items()}
            gone = {key for key, count in counts.items() if count < 3}
            stayed += len(gone)
            if name == "mixed":
                gone = {key for key in gone if now + 1 - written[key] >= 25}  # and moments
            if len(counts) <= 6:
                gone = set()
            assert layer.trigger_feature_evict() == {"t": len(gone)}
            left += len(gone)
            counts = {key: count for key, count in counts.items() if key not in gone}
        assert set(values_of(layer.tables["t"])) == set(counts)
        if now == 65:
            path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "c"))
            again = virtual(kind, policy)
            tf.train.Checkpoint(layer=again).restore(path).assert_consumed()
            monkeypatch.undo()
            layer = again
            pass_time(layer, monkeypatch, now + 1)
    assert left > 10 and (name == "count" or stayed > left)


@both
@pytest.mark.parametrize("threshold", [3, 5, 7, 100])
def test_a_row_at_the_threshold_stays(kind, threshold):
    policy = torchrec.FeatureScoreBasedEvictionPolicy(
        inference_eviction_feature_score_threshold=threshold
    )
    layer = virtual(kind, policy)
    step(layer, 1, 2, 3, scores=[threshold, threshold * 0.999, 2 * threshold])
    assert layer.evict_for_inference() == {"t": 1}
    assert set(values_of(layer.tables["t"])) == {1, 3}
    policy = torchrec.CountBasedEvictionPolicy(eviction_threshold=threshold)
    layer = virtual(kind, policy)
    for n in range(threshold):
        step(layer, *([4, 5] if n else [4]))
    assert layer.evict_for_inference() == {"t": 1}
    assert set(values_of(layer.tables["t"])) == {4}


@both
def test_scores_fade_where_none_leaves_in_training(kind):
    policy = torchrec.FeatureScoreBasedEvictionPolicy(
        decay_rate=0.5, inference_eviction_feature_score_threshold=1.5
    )
    layer = virtual(kind, policy)
    step(layer, 1, 2, scores=[2.0, 4.0])
    assert layer.trigger_feature_evict() == {}
    assert layer.evict_for_inference() == {"t": 1}
    assert set(values_of(layer.tables["t"])) == {2}


@both
@pytest.mark.parametrize("trigger_count", [0, 30])
def test_feature_scores_add_up_and_fade(kind, trigger_count, tmp_path):
    """Against a dict of sums; in the middle it goes on from a checkpoint."""
    policy = torchrec.FeatureScoreBasedEvictionPolicy(
        decay_rate=0.8, training_id_eviction_trigger_count=trigger_count, training_id_keep_count=12
    )
    layer, sums = virtual(kind, policy, table_size=3), {}
    random, left = np.random.default_rng(5), 0
    for now in range(80):
        ids = (random.zipf(1.3, 6) % 60).tolist()  # which repeat
        scores = random.exponential(size=6)
        step(layer, *ids, scores=scores)
        for key, score in zip(ids, scores, strict=True):
            sums[key] = sums.get(key, 0) + score
        if now % 8 == 7:
            sums = {key: total * 0.8 for key, total in sums.items()}
            there = len(sums)
            if there > trigger_count:
                best = sorted(sums, key=sums.get, reverse=True)[:12]
                sums = {key: sums[key] for key in best}
            assert layer.trigger_feature_evict() == {"t": there - len(sums)}
            left += there - len(sums)
        assert set(values_of(layer.tables["t"])) == set(sums)
        if now == 43:
            path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "c"))
            layer = virtual(kind, policy)
            tf.train.Checkpoint(layer=layer).restore(path).assert_consumed()
    assert left > 20


@both
def test_feature_scores_with_a_time_to_live(kind, monkeypatch):
    """As FBGEMM: times in place of scores, which may be given nevertheless."""
    policy = torchrec.FeatureScoreBasedEvictionPolicy(training_id_keep_count=1, eviction_ttl_mins=60)
    layer = virtual(kind, policy)
    step(layer, 1, 2, scores=[1, 2])
    assert layer.trigger_feature_evict() == {}
    assert set(values_of(layer.tables["t"])) == {1, 2}
    pass_time(layer, monkeypatch, 61)
    step(layer, 3, scores=[0])
    assert set(values_of(layer.tables["t"])) == {3}
    off = torchrec.FeatureScoreBasedEvictionPolicy(training_id_keep_count=1, enable_eviction=False)
    layer = virtual(kind, off)
    step(layer, 1, 2, scores=[1, 2])
    assert layer.trigger_feature_evict() == {} and len(values_of(layer.tables["t"])) == 2


def sums_of(table):
    """What the rows of a table have in all, by the collection's number of looks."""
    sums, policy = {}, table.config.eviction.policies[0]

    def see(keys, values, numbers):
        sums.update(zip(keys.numpy().tolist(), policy.sums(numbers["score"]).numpy(), strict=True))
        return tf.zeros(tf.shape(keys), tf.bool)

    table.remove_if(see)
    return sums


class Model:
    """FBGEMM's numbers: a look multiplies that of each row by the rate."""

    def __init__(self, rate):
        self.rate, self.sums = rate, {}

    def add(self, ids, scores=None):
        """Scores of ids; None: 1 for each row that a call writes."""
        scores = [1] * len(set(ids)) if scores is None else scores
        for key, score in zip(ids if len(ids) == len(scores) else set(ids), scores, strict=True):
            self.sums[key] = self.sums.get(key, 0) + score

    def look(self):
        self.sums = {key: total * self.rate for key, total in self.sums.items()}

    def check(self, layer):
        # Scores are right to 1e-5 of their sum.
        assert sums_of(layer.tables["t"]) == pytest.approx(self.sums, rel=3e-5)


FADING = {
    "scores": lambda rate: torchrec.FeatureScoreBasedEvictionPolicy(decay_rate=rate),
    "counts": lambda rate: torchrec.CountBasedEvictionPolicy(eviction_threshold=1e-9, decay_rate=rate),
}
each = pytest.mark.parametrize("name", FADING)


def scores_of(name, ids):
    """Scores of ids, if the policy takes any."""
    return {"scores": [0.5 + key % 7 for key in ids]} if name == "scores" else {}


def draws(steps, seed=11):
    random = np.random.default_rng(seed)
    return [(random.zipf(1.3, 6) % 30).tolist() for _ in range(steps)]


def looked_at(name, rate=0.6, steps=12):
    """A collection that was trained, with looks in between, and its model."""
    layer, model = virtual("rows", FADING[name](rate)), Model(rate)
    for now, ids in enumerate(draws(steps)):
        more = scores_of(name, ids)
        step(layer, *ids, **more)
        model.add(ids, **more)
        if now % 3 == 2:
            layer.trigger_feature_evict()
            model.look()
    return layer, model


def go_on(layer, name, model, steps=4):
    for ids in draws(steps, seed=13):
        more = scores_of(name, ids)
        step(layer, *ids, **more)
        model.add(ids, **more)
    layer.trigger_feature_evict()
    model.look()
    model.check(layer)


def through_checkpoint_of_the_table(layer, again, folder):
    path = tf.train.Checkpoint(t=layer.tables["t"]).save(f"{folder}/c")
    tf.train.Checkpoint(t=again.tables["t"]).restore(path).assert_consumed()


def through_snapshot(layer, again, folder):
    tf_dynemb.snapshot.save(folder / "s", layer)
    tf_dynemb.snapshot.restore(folder / "s", again)


def through_snapshot_of_the_table(layer, again, folder):
    tf_dynemb.snapshot.save(folder / "s", {"x": layer.tables["t"]})
    tf_dynemb.snapshot.restore(folder / "s", {"x": again.tables["t"]})


def through_delta(layer, again, folder):
    base = tf_dynemb.snapshot.save(folder / "s", layer, follow=True)
    layer.trigger_feature_evict()
    tf_dynemb.snapshot.save(folder / "d", layer, base=base)
    tf_dynemb.snapshot.restore([folder / "s", folder / "d"], again)


class WithCollection(keras.Model):
    def __init__(self, collection):
        super().__init__()
        self.collection = collection

    def call(self, inputs):
        return self.collection(inputs)["f"].values()


def through_weights(layer, again, folder):
    models = [WithCollection(one) for one in (layer, again)]
    for model in models:
        model(features(1))
    models[0].save_weights(folder / "w.weights.h5")
    models[1].load_weights(folder / "w.weights.h5")


FILES = {
    "checkpoint": through_checkpoint_of_the_table,
    "snapshot": through_snapshot,
    "snapshot of the table": through_snapshot_of_the_table,
    "delta": through_delta,
    "weights": through_weights,
}


@each
@pytest.mark.parametrize("files", FILES)
def test_the_number_of_looks_goes_where_the_rows_go(name, files, tmp_path):
    """Into a collection that has looked more often, or never."""
    layer, model = looked_at(name)
    before = len(sums_of(layer.tables["t"]))
    for looks in (0, 9):
        again = virtual("rows", FADING[name](0.6))
        for _ in range(looks):
            again.trigger_feature_evict()
        folder = tmp_path / str(looks)
        folder.mkdir()
        FILES[files](layer, again, folder)
        if files == "delta":
            model.look()
        model.check(again)
        copied = Model(model.rate)
        copied.sums = dict(model.sums)
        go_on(again, name, copied)
    assert before == len(model.sums) > 10


def test_rows_of_a_table_whose_scores_do_not_fade(tmp_path):
    """The snapshot has no looks: its scores are those of no look."""
    other = tf_dynemb.Variable(
        dim=2, max_rows=2**62, eviction=tf_dynemb.policies.Score(adds_up=True), name="t"
    )
    other.upsert(tf.constant([1, 2], tf.int64), tf.zeros([2, 2]), scores=[3.0, 4.0])
    tf_dynemb.snapshot.save(tmp_path / "s", other)
    layer, model = looked_at("scores")
    tf_dynemb.snapshot.restore(tmp_path / "s", layer)
    model.sums = {1: 3.0, 2: 4.0}
    model.check(layer)
    go_on(layer, "scores", model)


def test_deltas_of_a_table_that_was_restored_without_looks(tmp_path):
    """The first snapshot has none, and the delta that follows it has them."""
    other = tf_dynemb.Variable(
        dim=2, max_rows=2**62, eviction=tf_dynemb.policies.Score(adds_up=True), name="t"
    )
    other.upsert(tf.constant([1, 2], tf.int64), tf.zeros([2, 2]), scores=[3.0, 4.0])
    base = tf_dynemb.snapshot.save(tmp_path / "full", other)
    layer, model = looked_at("scores")
    tf_dynemb.snapshot.restore(tmp_path / "full", layer, follow=True)
    model.sums = {1: 3.0, 2: 4.0}
    go_on(layer, "scores", model)
    tf_dynemb.snapshot.save(tmp_path / "delta", layer, base=base)
    again, _ = looked_at("scores")
    tf_dynemb.snapshot.restore([tmp_path / "full", tmp_path / "delta"], again)
    model.check(again)
    go_on(again, "scores", model)


@each
def test_the_table_written_and_trained_outside_of_its_collection(name):
    layer, model = looked_at(name)
    table = layer.tables["t"]
    ids = [3, 4, 40]
    more = scores_of(name, ids)
    table.upsert(tf.constant(ids, tf.int64), tf.zeros([3, 2]), **more)
    model.add(ids, **more)
    model.check(layer)
    shared = tf_dynemb.Embedding(2, table=table)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    @tf.function
    def train(ids, **more):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shared(ids, **more))
        optimizer.apply_gradients([(tape.gradient(loss, table.handle), table.handle)])

    for _ in range(2):  # a graph that was traced before the look
        train(tf.constant(ids, tf.int64), **{k: tf.constant(v) for k, v in more.items()})
        model.add(ids, **more)
        layer.trigger_feature_evict()
        model.look()
    model.check(layer)


@each
def test_calls_that_train_nothing_change_no_sum(name):
    layer, model = looked_at(name)
    ids = [3, 4, 40]
    layer(features(*ids), training=False, **scores_of(name, ids))
    with tf.GradientTape():
        layer(features(*ids), **scores_of(name, ids))
    go_on(layer, name, model)


@each
def test_two_lookups_of_a_step(name):
    """A row is written once, and gets the scores of both."""
    layer, model = looked_at(name)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    first, second = [3, 4, 40, 4], [4, 41]
    with tf.GradientTape() as tape:
        parts = (layer(features(*ids), **scores_of(name, ids)) for ids in (first, second))
        loss = sum(tf.reduce_sum(part["f"].values()) for part in parts)
    variables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    model.add(first + second, **scores_of(name, first + second))
    go_on(layer, name, model)


@each
@pytest.mark.parametrize("every", [1, 2, 3])
def test_gradient_accumulation(name, every):
    """Scores fade from when they were given; a row counts 1 for each update, which writes it."""
    layer, model = virtual("rows", FADING[name](0.6)), Model(0.6)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    )
    waiting = set()
    for now, ids in enumerate(draws(12), start=1):
        more = scores_of(name, ids)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(features(*ids), **more)["f"].values())
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        waiting |= set(ids)
        if more:
            model.add(ids, **more)
        elif now % 2 == 0:
            model.add(sorted(waiting))
        if now % 2 == 0:
            waiting = set()
        if now % every == 0:
            layer.trigger_feature_evict()
            model.look()
    model.check(layer)


def test_a_table_that_no_collection_looks_at_is_refused():
    config = virtual("rows", FADING["counts"](0.6)).tables["t"].config
    tables = {
        "of the policy": tf_dynemb.Variable(
            dim=2, max_rows=9, eviction=FADING["counts"](0.6).eviction, name="t"
        ),
        "of the config": tf_dynemb.Variable.from_config(config.get_config()),
        "of scores": tf_dynemb.Variable(
            dim=2, max_rows=9, eviction=FADING["scores"](0.6).eviction, name="t"
        ),
    }
    for which, table in tables.items():
        scores = {"scores": [1.0]} if which == "of scores" else {}
        with pytest.raises(RuntimeError, match="FadingScores.* for a table of its own, .*want a table"):
            table.upsert(tf.constant([1], tf.int64), tf.zeros([1, 2]), **scores)
        assert int(table.size()) == 0


@each
def test_a_clone_and_a_model_from_a_file_have_looks_of_their_own(name, tmp_path):
    layer, model = looked_at(name)
    again = type(layer).from_config(layer.get_config())
    step(again, 1, **scores_of(name, [1]))
    again.trigger_feature_evict()
    fresh = Model(0.6)
    fresh.add([1], **scores_of(name, [1]))
    fresh.look()
    fresh.check(again)
    model.check(layer)
