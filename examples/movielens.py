"""Online learning on MovieLens: a recommender that learns from ids that nobody listed in advance.

Ratings come in the order in which they were given, block by block. Each block is first predicted, then
trained on (progressive validation): so every number is about ratings that were not seen before, and all
the time there are users and movies that come for the first time. User ids, movie ids, zip codes and
genres go straight into dynamic embeddings, whose rows are born as they are needed.

The same stream is given to rivals (movielens_rivals.py): the mean; user and movie biases; the same model
with hashed ids at equal memory; and with static embeddings that were told every id in advance. Prints a
table, draws the learning curves, saves the dynamic model, and has a fresh process load it and recommend
movies. A second table is of dynamic embeddings that may have half, or a quarter, of the rows.

    make demo                                             # set-up, and then as the next line
    python examples/movielens.py                          # downloads ml-100k
    python examples/movielens.py --ratings ml-1m/ratings.dat --limit 200000
    python examples/movielens.py --short                  # a look, in less than a minute
    python examples/movielens.py --replicas 2             # the dynamic model is trained by two replicas
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import movielens_data
import movielens_report
import movielens_rivals
import numpy as np
import tensorflow as tf
from absl import app, flags, logging
from movielens_report import Result
from tqdm import tqdm

import tf_dynemb
from tf_dynemb.policies import LFU, LRU, MinCount

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "ratings", None, "MovieLens' u.data, ratings.dat or ratings.csv, or a headered .tsv file."
)
flags.DEFINE_string(
    "output", None, "Folder for model, table and curves; by default a new temporary one."
)
flags.DEFINE_string("json", None, "Where to write the table; by default table.json in --output.")
flags.DEFINE_string("png", None, "Where to draw the curves; by default curves.png in --output.")
flags.DEFINE_bool("short", False, "Only 20,000 ratings, one seed and no bounded tables.")
flags.DEFINE_bool(
    "bounded", None, "Also with a half and a quarter of the rows; by default not if short."
)
flags.DEFINE_integer("limit", None, "Only this many ratings, the earliest.", lower_bound=1)
flags.DEFINE_integer("seeds", None, "Runs with different initial values; by default 3.", lower_bound=1)
flags.DEFINE_integer("dim", 8, "Numbers per vector.", lower_bound=1)
flags.DEFINE_integer("replicas", 1, "Replicas that share each block in training.", lower_bound=1)

START = 3.5  # stars: what MovieLens' users give on average, known before the stream begins
BLOCK = 25  # ratings that are predicted, then trained on; a user's first sitting is about a hundred
PASSES = 2  # over each block
LEARNING_RATE = 0.15

# What to tell an embedding of each feature. Users and movies are int64 ids, the default.
FEATURES = {
    "user": {},
    "movie": {},
    "zip": {"key_dtype": "string"},
    "genres": {"key_dtype": "string", "combiner": "mean", "mask_key": ""},
}

# Tables with a share of the rows that the dynamic model has in the end, and which rows they keep. Genres
# are few, and none is rare.
SHARES = {"half": 2, "a quarter": 4}
BOUNDED = ("user", "movie", "zip")
_DECAYED = LFU(half_life_steps=1000)  # an eighth of the stream's steps
BY_TABLE = "by table"
POLICIES = {
    "LRU": dict.fromkeys(BOUNDED, {"eviction": LRU()}),
    "LFU": dict.fromkeys(BOUNDED, {"eviction": LFU()}),
    "LFU with a half-life": dict.fromkeys(BOUNDED, {"eviction": _DECAYED}),
    # Users rate in one sitting, and few come back. The same movies come up all the time.
    BY_TABLE: {
        "user": {"eviction": LRU()},
        "movie": {"eviction": LFU(half_life_steps=4000)},
        "zip": {"eviction": LRU()},
    },
    "LRU, MinCount(2)": dict.fromkeys(BOUNDED, {"eviction": LRU(), "admission": MinCount(2)}),
    "LFU with a half-life, MinCount(2)": dict.fromkeys(
        BOUNDED, {"eviction": _DECAYED, "admission": MinCount(2)}
    ),
}
# By table, the rows that an id of each feature gets beside one of another. Elsewhere all get the same.
WEIGHTS = {"user": 0.85, "movie": 1.49, "zip": 0.15}


def limits(rows: dict[str, int], parts: int, policy: str) -> dict[str, dict]:
    """Arguments of the bounded tables, by feature: together they have 1 / parts of the rows."""
    rows = {feature: number for feature, number in rows.items() if feature in BOUNDED}
    shares = {feature: number // parts for feature, number in rows.items()}
    if policy == BY_TABLE:
        weighted = {feature: WEIGHTS[feature] * number for feature, number in rows.items()}
        scale = sum(shares.values()) / sum(weighted.values())
        shares = {feature: max(1, round(scale * number)) for feature, number in weighted.items()}
    return {
        feature: {"max_rows": share, **POLICIES[policy][feature]} for feature, share in shares.items()
    }


def dynamic_embedding(width: int, initializer, options: dict | None = None):
    """An embedding that is told nothing of the ids to come: no vocabulary, no size.

    `options` are arguments of the features' tables, by the name of the feature.
    """

    def embed(name: str, ids):
        arguments = FEATURES[name] | (options or {}).get(name, {})
        return tf_dynemb.keras.Embedding(
            width, initializer=initializer, name=f"{name}_embedding", **arguments
        )(ids)

    return embed


def recommender(features: dict[str, np.ndarray], embed) -> keras.Model:
    """A model of ratings: (vector of the user) . (vector of the movie) + bias of each.

    What is known of a user adds up to the user's bias and vector, and likewise for a movie (as in Chen
    et al., "SVDFeature", 2012). `embed` makes the embedding of a feature, (n,) -> (n, 1 + dim): bias and
    vector. It is all in which the dynamic model and its rivals differ.
    """
    inputs = {
        name: keras.Input(ids.shape[1:], dtype="string" if ids.dtype == object else "int64", name=name)
        for name, ids in features.items()
    }
    user = sum(embed(name, inputs[name]) for name in ("user", "zip") if name in inputs)
    movie = sum(embed(name, inputs[name]) for name in ("movie", "genres") if name in inputs)
    liking = keras.ops.sum(user[:, 1:] * movie[:, 1:], axis=-1)
    return keras.Model(inputs, START + user[:, 0] + movie[:, 0] + liking)


class Learner:
    """A compiled Keras model that predicts a block of ratings, then learns from it.

    The replicas of the strategy in whose scope the model was made share a block in training.
    """

    def __init__(self, model: keras.Model):
        self.model = model
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)

    def step(self, features: dict[str, np.ndarray], stars: np.ndarray) -> np.ndarray:
        """Predictions (n,) from before this block was learned."""
        return self._step(_tensors(features), tf.convert_to_tensor(stars)).numpy()

    @tf.function(reduce_retracing=True)
    def _step(self, features, stars):
        predictions = self.model(features)
        for _ in range(PASSES):
            self.model.distribute_strategy.run(self._train, args=(features, stars))
        return predictions

    def _train(self, features, stars):
        """What a replica does: of N it has every Nth rating. Gradients are summed over replicas."""
        replica = tf.distribute.get_replica_context()
        mine = slice(replica.replica_id_in_sync_group, None, replica.num_replicas_in_sync)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            predictions = self.model({name: ids[mine] for name, ids in features.items()}, training=True)
            errors = predictions - stars[mine]
            loss = tf.reduce_sum(tf.square(errors)) / tf.cast(tf.size(stars), errors.dtype)
        self.model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def size(self) -> tuple[int, int]:
        """Rows of all embeddings, and the bytes of memory they take with the optimizer's state."""
        rows = sum(rows for rows, _ in self.sizes().values())
        return rows, sum(size for _, size in self.sizes().values())

    def sizes(self) -> dict[str, tuple[int, int]]:
        """The same for each feature."""
        sizes = {}
        for layer in self.model.layers:
            name = layer.name.removesuffix("_embedding")
            if isinstance(layer, tf_dynemb.keras.Embedding):
                sizes[name] = int(layer.table.size()), int(layer.table.memory_bytes())
            elif isinstance(layer, keras.layers.Embedding):
                # Each number has an accumulator beside it.
                sizes[name] = layer.input_dim, layer.input_dim * row_bytes(layer.output_dim)
        return sizes


def _tensors(features: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(ids) for name, ids in features.items()}


def row_bytes(width: int) -> int:
    """Of a row of a static embedding: float32 values, and Adagrad's accumulators beside them."""
    return width * 2 * 4


def progressive_validation(
    learner, ratings: movielens_data.Ratings, bar: tqdm
) -> tuple[np.ndarray, list]:
    """Predicts each block and then trains on it.

    Returns:
        Predictions (n,), each from before its rating was seen, cut to the scale of stars; and pairs of
        ratings so far and rows by feature, as they grow.
    """
    predictions, growth = np.zeros(len(ratings), np.float32), []
    for start in range(0, len(ratings), BLOCK):
        block = slice(start, min(start + BLOCK, len(ratings)))
        features = ratings.features(ratings.users[block], ratings.movies[block])
        predictions[block] = learner.step(features, ratings.stars[block])
        bar.update(block.stop - block.start)
        is_tick = start // BLOCK % 40 == 0 or block.stop == len(ratings)
        if is_tick and isinstance(learner, Learner):
            growth.append((block.stop, {name: rows for name, (rows, _) in learner.sizes().items()}))
    return np.clip(predictions, ratings.stars.min(), ratings.stars.max()), growth


def race(name: str, make_learner, ratings: movielens_data.Ratings, seeds: int, bar: tqdm):
    """Runs one contender with each seed. Returns its Result, and its last learner."""
    runs, growth = [], []
    for seed in range(seeds):
        bar.set_description(f"{name}, seed {seed}")
        keras.utils.set_random_seed(seed)
        began = time.monotonic()
        learner = make_learner(seed)
        predictions, growth = progressive_validation(learner, ratings, bar)
        runs.append((predictions, time.monotonic() - began))
    rows, size_bytes = learner.size()
    return Result(name, ratings.stars, runs, rows, size_bytes, growth), learner


def replicas_of_cpu(number: int) -> tf.distribute.Strategy:
    """A strategy of so many replicas, logical devices of the CPU; to be called before anything else."""
    if number == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(number)])


def race_all(
    ratings: movielens_data.Ratings,
    dim: int,
    seeds: int,
    strategy: tf.distribute.Strategy,
    with_bounds: bool,
) -> tuple[list[Result], list[Result], keras.Model]:
    """Results of all contenders, the dynamic model first, of bounded ones, and that model as trained.

    The dynamic model is trained under the strategy. All of its replicas share the rows. Bounded tables
    have a share of the rows that it has in the end, and are hashed beside it into as much memory.
    """
    width = 1 + dim
    features = ratings.features(ratings.users, ratings.movies)
    every_id = {name: sorted(set(ids.ravel().tolist()) - {""}) for name, ids in features.items()}

    def initializer():
        return keras.initializers.RandomUniform(-0.05, 0.05)

    def learner(embed, optimizer) -> Learner:
        model = recommender(features, embed)
        model.compile(optimizer, loss="mse")
        return Learner(model)

    def dynamic(seed, options=None, strategy=strategy):
        with strategy.scope():
            optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(LEARNING_RATE))
            return learner(dynamic_embedding(width, initializer(), options), optimizer)

    def static(seed, optimizer_class=movielens_rivals.LazyAdagrad):
        embed = movielens_rivals.static_embedding(width, initializer(), every_id)
        return learner(embed, optimizer_class(LEARNING_RATE))

    def hashed(seed, sizes=None):
        # What the dynamic tables took in the end, index, keys and slack included, hashing gets in rows.
        sizes = sizes or trained.sizes()
        equal_rows = {name: size // row_bytes(width) for name, (_, size) in sizes.items()}
        embed = movielens_rivals.hashed_embedding(width, initializer(), equal_rows, salt=seed)
        return learner(embed, movielens_rivals.LazyAdagrad(LEARNING_RATE))

    runs = (4 + (len(SHARES) * (len(POLICIES) + 1) if with_bounds else 0)) * seeds + 2
    with tqdm(total=len(ratings) * runs, unit=" ratings", unit_scale=True) as bar:
        result, trained = race("dynamic", dynamic, ratings, seeds, bar)
        results = [result]
        for name, make, runs in (
            ("static, told every id", static, seeds),
            ("static, Keras' own Adagrad", lambda seed: static(seed, keras.optimizers.Adagrad), seeds),
            ("hashed, equal memory", hashed, seeds),
            ("user and movie biases", lambda seed: movielens_rivals.Biases(START), 1),
            ("mean so far", lambda seed: movielens_rivals.Mean(START), 1),
        ):
            result, _ = race(name, make, ratings, runs, bar)
            results.append(result)
        bounded = []
        for share, parts in SHARES.items() if with_bounds else ():
            rows = {feature: number for feature, (number, _) in trained.sizes().items()}
            for name in POLICIES:
                options = limits(rows, parts, name)

                def make(seed, options=options):
                    return dynamic(seed, options, tf.distribute.get_strategy())

                result, last = race(f"{share} of the rows, {name}", make, ratings, seeds, bar)
                bounded.append(result)

            def make(seed, sizes=last.sizes()):  # noqa: B008  those of this share
                return hashed(seed, sizes)

            result, _ = race(f"hashed, memory of {share}", make, ratings, seeds, bar)
            bounded.append(result)
        bar.set_description("done")
    return results, bounded, trained.model


def save(model: keras.Model, ratings: movielens_data.Ratings, folder: pathlib.Path) -> None:
    """Saves the model, and questions with our answers, so that a fresh process can compare its own.

    They are the last ratings of the stream, and all movies that the user with the most likings has not
    rated, of those that were rated 20 times or more.
    """
    model.save(folder / "model.keras")
    users, likings = np.unique(ratings.users[ratings.stars >= 4], return_counts=True)
    user = users[np.argmax(likings)] if len(users) else ratings.users[0]
    rated = ratings.users == user
    movies, counts = np.unique(ratings.movies, return_counts=True)
    unseen = np.setdiff1d(movies[counts >= 20], ratings.movies[rated])
    best = np.argsort(-ratings.stars[rated], kind="stable")[:5]

    def titles(movies: np.ndarray) -> list[str]:
        return [ratings.titles.get(movie, f"movie {movie}") for movie in movies.tolist()]

    def ask(users: np.ndarray, movies: np.ndarray) -> dict:
        features = ratings.features(users, movies)
        # As in the process that loads the model, so that bits are the same. Keras gives the answers of
        # each replica, one after the other.
        predictions = model.predict_on_batch(_tensors(features))[: len(movies)] if len(movies) else []
        return {
            "features": {name: ids.tolist() for name, ids in features.items()},
            "predictions": np.asarray(predictions).tolist(),
            "titles": titles(movies),
        }

    questions = {
        "scale": [float(ratings.stars.min()), float(ratings.stars.max())],
        "user": int(user),
        "has_rated": int(rated.sum()),
        "likes": titles(ratings.movies[rated][best]),
        "last": ask(ratings.users[-1000:], ratings.movies[-1000:]),
        "unseen": ask(np.full(len(unseen), user), unseen),
    }
    (folder / "questions.json").write_text(json.dumps(questions))


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"got {argv[1:]}, want flags only")
    strategy = replicas_of_cpu(FLAGS.replicas)
    seeds = FLAGS.seeds or (1 if FLAGS.short else 3)
    limit = FLAGS.limit or (20_000 if FLAGS.short else None)
    folder = pathlib.Path(FLAGS.output or tempfile.mkdtemp(prefix="movielens_"))
    table = pathlib.Path(FLAGS.json or folder / "table.json")
    curves = pathlib.Path(FLAGS.png or folder / "curves.png")
    try:
        for path in (folder, table.parent, curves.parent):
            path.mkdir(parents=True, exist_ok=True)
        ratings = movielens_data.load(FLAGS.ratings).first(limit)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    users, movies = len(np.unique(ratings.users)), len(np.unique(ratings.movies))
    logging.info("%s: %d ratings by %d users of %d movies", ratings.source, len(ratings), users, movies)

    with_bounds = not FLAGS.short if FLAGS.bounded is None else FLAGS.bounded
    results, bounded, model = race_all(ratings, FLAGS.dim, seeds, strategy, with_bounds)
    print(movielens_report.table(results))
    print(movielens_report.verdict(results))
    if bounded:
        print(movielens_report.table([results[0], *bounded]))
    movielens_report.write_json([*results, *bounded], ratings.source, table)
    movielens_report.draw(results, bounded, curves)
    save(model, ratings, folder)
    logging.info("Model: %s, table: %s, curves: %s", folder / "model.keras", table, curves)
    recommend = pathlib.Path(__file__).with_name("movielens_recommend.py")
    return subprocess.run([sys.executable, recommend, f"--folder={folder}"], check=False).returncode


if __name__ == "__main__":
    app.run(main)
