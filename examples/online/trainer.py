"""The trainer of the example of online learning: learns from a stream of ratings, and from clicks.

MovieLens' ratings come in time order, so many a second; 4 stars or more count as a click, fewer as a
movie that was shown and not clicked. Clicks of other users are sent to it over HTTP and are trained on
at once. What has changed is published every half second, for servers to follow.

    POST /events    [{"user": 7, "movie": 50, "clicked": true}, ...]
    GET  /status    {"examples": 20480, "generation": 12}

In `--folder` it makes the SavedModel `recommender/1`, which follows `feed` there, and movies.json, the
candidates with their features and titles. With `--stream` the model follows an address of the trainer
instead, as it does on other machines. run.py starts it; alone it is started so:

    python examples/online/trainer.py --folder=FOLDER
"""

from __future__ import annotations

import http.server
import itertools
import json
import os
import pathlib
import queue
import sys
import threading
import time
from collections.abc import Iterator

os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

sys.path.append(str(pathlib.Path(__file__).parents[1]))

import movielens_data  # noqa: E402

import tf_dynemb  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string("folder", None, "Where model, feed and movies.json go.", required=True)
flags.DEFINE_string("ratings", None, "A file of MovieLens' ratings; without one they are made up.")
flags.DEFINE_integer("history", 20_000, "Ratings that are learned before serving.", lower_bound=1000)
flags.DEFINE_integer("rate", 1000, "Ratings a second from then on.", lower_bound=1)
flags.DEFINE_float("publish_every", 0.5, "Seconds between two generations.", lower_bound=0.01)
flags.DEFINE_integer("dim", 8, "Numbers per vector.", lower_bound=1)
flags.DEFINE_bool("stream", False, "Serve the feed over a socket, and have the model follow that.")
flags.DEFINE_integer("port", 0, "Where to listen for clicks, on this machine; 0: any free port.")

LIKED = 4.0  # stars
BLOCK = 32  # ratings in a step
HISTORY_BLOCK = 256  # in one before serving
LARGEST_BODY_BYTES = 1 << 20  # of clicks
CANDIDATES = 200  # movies among which is recommended: those rated most


def recommender(genres: int, dim: int) -> keras.Model:
    """The chance of a click: (user's vector) . (movie's vector) + bias of each, through a sigmoid.

    A movie is its id and its genres. A user without a row has a vector of zeros, and so gets the movies
    that are liked most by all.
    """
    inputs = {
        "user": keras.Input((), dtype="int64", name="user"),
        "movie": keras.Input((), dtype="int64", name="movie"),
        "genres": keras.Input((genres,), dtype="string", name="genres"),
    }
    small = keras.initializers.RandomUniform(-0.1, 0.1)
    user = tf_dynemb.Embedding(1 + dim, initializer="zeros", name="users")(inputs["user"])
    movie = tf_dynemb.Embedding(1 + dim, initializer=small, name="movies")(inputs["movie"])
    movie += tf_dynemb.Embedding(
        1 + dim, initializer=small, key_dtype="string", combiner="mean", mask_key="", name="genres_of"
    )(inputs["genres"])
    liking = keras.ops.sum(user[:, 1:] * movie[:, 1:], axis=-1) + user[:, 0] + movie[:, 0]
    model = keras.Model(inputs, keras.ops.sigmoid(liking))
    # The sum, not the mean: a click weighs the same alone and among others.
    loss = keras.losses.BinaryCrossentropy(reduction="sum")
    optimizer = keras.optimizers.Adagrad(0.15, initial_accumulator_value=0.05)
    model.compile(tf_dynemb.DynamicEmbeddingOptimizer(optimizer), loss)
    return model


class Trainer:
    """A model, and the events that it learns from."""

    def __init__(self, ratings: movielens_data.Ratings):
        self._ratings = ratings
        features = ratings.features(ratings.users[:1], ratings.movies[:1])
        self.model = recommender(features["genres"].shape[1], FLAGS.dim)
        self.clicks: queue.SimpleQueue[list[tuple[int, int, bool]]] = queue.SimpleQueue()
        self.examples = 0

    def learn(self, users, movies, clicked) -> None:
        """One step, of arrays (n,)."""
        features = self._ratings.features(np.asarray(users), np.asarray(movies))
        inputs = {name: tf.constant(features[name]) for name in ("user", "movie", "genres")}
        self.model.train_on_batch(inputs, tf.constant(clicked, tf.float32))
        self.examples += len(clicked)

    def learn_ratings(self, block: slice) -> None:
        """One step, of ratings of the stream."""
        ratings = self._ratings
        self.learn(ratings.users[block], ratings.movies[block], ratings.stars[block] >= LIKED)

    def stream(self, publisher: tf_dynemb.serving.Publisher) -> None:
        """Goes on for ever: ratings at their rate, over and over again, and clicks as they come."""
        due = time.monotonic()
        for block in itertools.cycle(blocks(FLAGS.history, len(self._ratings), BLOCK)):
            due = max(due + BLOCK / FLAGS.rate, time.monotonic())
            for events in self._clicks_until(due):
                self.learn(*zip(*events, strict=True))
                publisher.step()
            self.learn_ratings(block)
            publisher.step()

    def _clicks_until(self, due: float) -> Iterator[list]:
        """Those that have come, also when it is late already, and those that come until then."""
        while True:
            try:
                yield self.clicks.get(timeout=max(0, due - time.monotonic()))
            except queue.Empty:
                return


def blocks(start: int, stop: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, stop)) for begin in range(start, stop, size)]


def events_of(body: bytes) -> list[tuple[int, int, bool]]:
    """The events in the body of a request.

    Raises:
        ValueError: it has another form.
    """
    events = json.loads(body)
    if not isinstance(events, list) or not events:
        raise ValueError("want a list of events")
    found = []
    for event in events:
        if not isinstance(event, dict) or event.keys() != {"user", "movie", "clicked"}:
            raise ValueError(f"got the event {event}, want user, movie and clicked")
        user, movie, clicked = event["user"], event["movie"], event["clicked"]
        if not all(type(id_) is int and -(2**63) <= id_ < 2**63 for id_ in (user, movie)):
            raise ValueError(f"got user {user} and movie {movie}, want 64-bit integers")
        if not isinstance(clicked, bool):
            raise ValueError(f"got {clicked} as clicked, want true or false")
        found.append((user, movie, clicked))
    return found


def listen(trainer: Trainer, publisher: tf_dynemb.serving.Publisher) -> str:
    """Takes clicks in a thread from now on. Returns where."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            if self.path != "/status":
                self.reply(404, {"error": f"there is no {self.path}"})
                return
            self.reply(200, {"examples": trainer.examples, "generation": publisher.generation})

        def do_POST(self):
            try:
                length = int(self.headers["Content-Length"] or 0)
                if not 0 <= length <= LARGEST_BODY_BYTES:
                    raise ValueError(f"got {length} bytes, want no more than {LARGEST_BODY_BYTES}")
                body = self.rfile.read(length)
            except ValueError as error:
                self.close_connection = True  # what follows is no request
                self.reply(400, {"error": str(error)})
                return
            if self.path != "/events":
                self.reply(404, {"error": f"there is no {self.path}"})
                return
            try:
                events = events_of(body)
            except (ValueError, RecursionError) as error:
                self.reply(400, {"error": str(error)})
                return
            trainer.clicks.put(events)
            self.reply(200, {"accepted": len(events)})

        def reply(self, status: int, answer: dict) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", FLAGS.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def write_candidates(ratings: movielens_data.Ratings, path: pathlib.Path) -> None:
    """Movies to recommend, as the model is asked about them, with their titles; most rated first."""
    movies, counts = np.unique(ratings.first(FLAGS.history).movies, return_counts=True)
    movies = movies[np.argsort(-counts, kind="stable")][:CANDIDATES]
    features = ratings.features(np.zeros_like(movies), movies)
    titles = [ratings.titles.get(movie, f"movie {movie}") for movie in movies.tolist()]
    candidates = {name: features[name].tolist() for name in ("movie", "genres")}
    path.write_text(json.dumps(candidates | {"title": titles}))


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"got {argv[1:]}, want flags only")
    folder = pathlib.Path(FLAGS.folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        ratings = movielens_data.read(pathlib.Path(FLAGS.ratings)) if FLAGS.ratings else None
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    ratings = ratings or movielens_data.made_up()
    if not ratings.genres or len(ratings) <= FLAGS.history:
        sys.exit(f"--ratings: want more than {FLAGS.history} of them, and genres of the movies")
    print(f"{len(ratings)} ratings: {ratings.source}")
    keras.utils.set_random_seed(0)
    trainer = Trainer(ratings)
    for block in blocks(0, FLAGS.history, HISTORY_BLOCK):
        trainer.learn_ratings(block)
    trainer.learn(ratings.users[:1], ratings.movies[:1], [True])  # traced now, not at the first click
    write_candidates(ratings, folder / "movies.json")
    with tf_dynemb.serving.Publisher(
        trainer.model,
        folder / "feed",
        every_seconds=FLAGS.publish_every,
        stream="127.0.0.1:0" if FLAGS.stream else None,
    ) as publisher:
        with tf_dynemb.for_serving(follow=publisher.address or folder / "feed"):
            trainer.model.export(folder / "recommender" / "1", verbose=False)
        publisher.publish()
        print("training:", listen(trainer, publisher), flush=True)
        trainer.stream(publisher)


if __name__ == "__main__":
    app.run(main)
