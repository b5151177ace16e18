"""New users' first clicks, and how long it takes until they change what is recommended.

For one new user after the other it asks the model server for recommendations, sends one click to the
trainer, and asks again until the click has changed them. Each time it asks for the user and for another
unseen one, who clicks nothing, in one request, and so of one generation: before the click both get the
same movies, and the first answer in which they differ has learned of the click.

Needs no TensorFlow. run.py starts it; alone it is started so, with what trainer and server have printed:

    python examples/online/client.py --folder=FOLDER --trainer=URL --server=URL

Afterwards freshness.json is in the folder, and freshness.png if matplotlib is installed.
"""

from __future__ import annotations

import http.client
import json
import pathlib
import random
import statistics
import sys
import time

from absl import app, flags
from online_api import SHOWN, Connection, Recommender, first_generation
from tqdm import tqdm

FLAGS = flags.FLAGS
flags.DEFINE_string("folder", None, "What the trainer has as --folder.", required=True)
flags.DEFINE_string("trainer", None, "Its address.", required=True)
flags.DEFINE_string("server", None, "The model's address.", required=True)
flags.DEFINE_integer("users", 20, "New users, one after the other.", lower_bound=1)
flags.DEFINE_float("patience", 30, "Seconds to wait for a click to be served.", lower_bound=1)


def first_click(recommender: Recommender, trainer: Connection, genre: str) -> dict:
    """What one new user sees, who clicks the first movie of a genre that is not among those shown.

    Returns:
        The click's title and genre, titles `before` and `after`, and the `seconds` in between.

    Raises:
        RuntimeError: the click was not served in time, or two unseen users differ before.
    """
    user, other = (random.getrandbits(63) for _ in range(2))
    before, same = recommender.best([user, other])
    if before != same:
        raise RuntimeError(f"unseen users {user} and {other} get different movies")
    genres = recommender.candidates["genres"]
    choice = next(i for i in range(len(genres)) if genre in genres[i] and i not in before)
    movie = recommender.candidates["movie"][choice]
    began = time.monotonic()
    trainer("POST", "/events", [{"user": user, "movie": movie, "clicked": True}])
    while True:
        after, others = recommender.best([user, other])
        seconds = time.monotonic() - began
        if after != others:
            break
        if seconds > FLAGS.patience:
            raise RuntimeError(f"the click of user {user} was not served within {FLAGS.patience} s")
    return {
        "clicked": recommender.titles[choice],
        "genre": genre,
        "before": [recommender.titles[i] for i in before],
        "after": [recommender.titles[i] for i in after],
        "seconds": seconds,
    }


def genres_to_click(recommender: Recommender) -> list[str]:
    """Those of many candidates, so that some are not among those shown."""
    bags = recommender.candidates["genres"]
    genres = {genre for bag in bags for genre in bag if genre}
    return sorted(genre for genre in genres if sum(genre in bag for bag in bags) > SHOWN)


def show(click: dict) -> None:
    """Prints what the first click of a user has changed, beside each other."""
    print(f"\nA new user clicks {click['clicked']} ({click['genre']}); {click['seconds']:.2f} s later:")
    print(f"  {'before':42}after")
    for before, after in zip(click["before"], click["after"], strict=True):
        print(f"  {before[:40]:42}{after}{'' if after in click['before'] else '   (new)'}")


def show_freshness(seconds: list[float], folder: pathlib.Path) -> None:
    """Prints the distribution, and draws it if matplotlib is there."""
    print(f"\nFrom click to served: median {statistics.median(seconds):.2f} s of {len(seconds)} users")
    width = max(0.1, max(seconds) / 10)
    bins = [int(second / width) for second in seconds]
    for index in range(max(bins) + 1):
        print(f"  from {index * width:.2f} s on  {'#' * bins.count(index)}")
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    axes.plot(
        sorted(seconds), [(i + 1) / len(seconds) for i in range(len(seconds))], drawstyle="steps-post"
    )
    axes.set(xlabel="seconds from click to served", ylabel="share of users", xlim=0, ylim=(0, 1))
    figure.savefig(folder / "freshness.png", dpi=150)
    print(folder / "freshness.png")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"got {argv[1:]}, want flags only")
    folder = pathlib.Path(FLAGS.folder)
    server, trainer = Connection(FLAGS.server), Connection(FLAGS.trainer)
    recommender = Recommender(server, folder)
    genres, clicks = genres_to_click(recommender), []
    if not genres:
        sys.exit(f"client.py: no genre in {folder} has more than {SHOWN} movies: there is none to click")
    try:
        first = first_generation(server, FLAGS.patience)
        with tqdm(range(FLAGS.users), unit=" users") as bar:
            for number in bar:
                time.sleep(random.random())  # users come when they like
                clicks.append(first_click(recommender, trainer, genres[number % len(genres)]))
                bar.set_postfix_str(f"click to served {clicks[-1]['seconds']:.2f} s")
        follower = server("GET")["follower"]
    except (RuntimeError, OSError, http.client.HTTPException) as error:
        sys.exit(f"client.py: {type(error).__name__}: {error}")
    except KeyboardInterrupt:  # run.py says it
        sys.exit(1)
    show(clicks[0])
    show_freshness([click["seconds"] for click in clicks], folder)
    print(f"The server has followed from generation {first} to {follower['generation']}.")
    (folder / "freshness.json").write_text(json.dumps(clicks, indent=1))


if __name__ == "__main__":
    app.run(main)
