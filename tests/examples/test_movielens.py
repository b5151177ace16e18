"""The demo: its readers, its rivals, and a small run from end to end."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import mirrored
from tqdm import tqdm

import tf_dynemb

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

import movielens  # noqa: E402
import movielens_data  # noqa: E402
import movielens_report  # noqa: E402
import movielens_rivals  # noqa: E402

# The package under test, also where it is not installed.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}

# What each of MovieLens' releases says of the same three ratings, out of time order.
FILES = {
    "u.data": {
        "u.data": "7\t3\t4\t20\n9\t5\t1\t10\n7\t5\t5\t30\n",
        "u.item": "3|Heat (1995)|01-Jan-1995||http://x|0|1" + "|0" * 17 + "\n"
        "5|Été (1996)|01-Jan-1996||http://x|0|1|1" + "|0" * 16 + "\n",
        "u.user": "7|24|M|writer|85711\n9|53|F|other|V3N4P\n",
    },
    "ratings.dat": {
        "ratings.dat": "7::3::4::20\n9::5::1::10\n7::5::5::30\n",
        "movies.dat": "3::Heat (1995)::Action\n5::Été (1996)::Action|Adventure\n",
        "users.dat": "7::M::24::1::85711\n9::F::53::2::V3N4P\n",
    },
    "ratings.csv": {
        "ratings.csv": "userId,movieId,rating,timestamp\n7,3,4.0,20\n9,5,1.0,10\n7,5,5.0,30\n",
        "movies.csv": 'movieId,title,genres\n3,Heat (1995),Action\n5,"Été (1996)",Action|Adventure\n',
    },
    "ratings.tsv": {
        "ratings.tsv": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "7\t3\t4\t20\n9\t5\t1\t10\n7\t5\t5\t30\n",
        "movies.tsv": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        "3\tHeat\t1995\tAction\n5\tÉté\t1996\tAction Adventure\n",
        "users.tsv": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
        "7\t24\tM\twriter\t85711\n9\t53\tF\tother\tV3N4P\n",
    },
}


def write(folder, name):
    for file, text in FILES[name].items():
        encoding = "utf-8" if file.endswith(("csv", "tsv")) else "latin-1"
        (folder / file).write_text(text, encoding=encoding)
    return folder / name


@pytest.mark.parametrize("name", FILES)
def test_each_release_is_read_in_time_order(name, tmp_path):
    ratings = movielens_data.load(str(write(tmp_path, name)))
    assert ratings.users.tolist() == [9, 7, 7]
    assert ratings.movies.tolist() == [5, 3, 5]
    assert ratings.stars.tolist() == [1.0, 4.0, 5.0]
    assert ratings.titles == {3: "Heat (1995)", 5: "Été (1996)"}
    features = ratings.features(ratings.users[:2], ratings.movies[:2])
    assert features["genres"].tolist() == [["Action", "Adventure"], ["Action", ""]]
    if name == "ratings.csv":  # this release says nothing of users
        assert "zip" not in features
    else:
        assert features["zip"].tolist() == ["V3N4P", "85711"]


def test_without_files_on_movies_and_users_features_are_left_out(tmp_path):
    path = write(tmp_path, "ratings.dat")
    (tmp_path / "movies.dat").unlink()
    (tmp_path / "users.dat").unlink()
    ratings = movielens_data.load(str(path))
    assert sorted(ratings.features(ratings.users, ratings.movies)) == ["movie", "user"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("u.data", "1\t2\t3\t4\n1\tx\t3\t4\n", "line 2: got 'x' as movie, want a 64-bit integer"),
        ("u.data", "1\t2\n", "line 1: got None as rating"),
        ("u.data", "1\t2\tnan\t4\n", "got 'nan' as rating"),
        ("u.data", f"{2**63}\t2\t3\t4\n", "as user, want a 64-bit integer"),
        ("u.data", "", "got no ratings"),
        ("ratings.csv", "userId,movieId,stars\n1,2,3\n", "got the columns"),
        ("ratings.parquet", "", "file of an unknown kind"),
    ],
)
def test_bad_files_are_refused_by_place_and_reason(name, text, message, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        movielens_data.load(str(path))


def test_without_network_ratings_are_made_up(monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(keras.utils, "get_file", no_network)
    ratings = movielens_data.load(None)
    assert "made-up" in ratings.source
    assert 80_000 < len(ratings) < 120_000
    again = movielens_data.made_up()
    np.testing.assert_array_equal(ratings.users, again.users)
    assert len(np.unique(ratings.users)) == 943
    assert set(np.unique(ratings.stars)) == {1, 2, 3, 4, 5}
    assert ratings.users.min() < 0 < ratings.users.max()


def test_auc_is_the_odds_of_the_right_order():
    rng = np.random.default_rng(0)
    positive, scores = rng.random(60) < 0.4, rng.integers(0, 9, 60).astype(float)
    above = scores[positive][:, None] - scores[~positive][None, :]
    odds = np.mean((above > 0) + 0.5 * (above == 0))
    assert movielens_report.auc(positive, scores) == pytest.approx(odds)
    assert np.isnan(movielens_report.auc(np.ones(3, bool), np.arange(3.0)))


def test_static_and_dynamic_model_differ_in_nothing_but_initial_values():
    ratings = movielens_data.made_up(users=60, movies=80).first(2000)
    features = ratings.features(ratings.users, ratings.movies)
    every_id = {name: sorted(set(ids.ravel().tolist()) - {""}) for name, ids in features.items()}
    initializer = keras.initializers.RandomUniform(-0.05, 0.05)
    dynamic = movielens.recommender(features, movielens.dynamic_embedding(5, initializer))
    static = movielens.recommender(features, movielens_rivals.static_embedding(5, initializer, every_id))
    for name, ids in every_id.items():
        rows = dynamic.get_layer(f"{name}_embedding").table.lookup(tf.constant(ids)).numpy()
        padding = np.zeros((1 if name == "genres" else 0, 5))
        static.get_layer(f"{name}_embedding").embeddings.assign(np.concatenate([padding, rows]))
    dynamic.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.15)), loss="mse")
    static.compile(movielens_rivals.LazyAdagrad(0.15), loss="mse")
    dynamic, static = movielens.Learner(dynamic), movielens.Learner(static)
    for start in range(0, len(ratings), 100):
        block = slice(start, start + 100)
        batch = ratings.features(ratings.users[block], ratings.movies[block]), ratings.stars[block]
        # float32 sums in another order: some units in the last place of a few stars
        np.testing.assert_allclose(dynamic.step(*batch), static.step(*batch), rtol=0, atol=1e-5)


def test_replicas_learn_what_one_learns():
    """From blocks that they cannot share evenly, and from one in which a replica has nothing."""
    ratings = movielens_data.made_up(users=60, movies=80).first(3 * movielens.BLOCK + 1)
    features = ratings.features(ratings.users, ratings.movies)
    initializer = keras.initializers.RandomUniform(-0.05, 0.05, seed=3)

    def run(strategy):
        with strategy.scope():
            model = movielens.recommender(features, movielens.dynamic_embedding(5, initializer))
            inner = keras.optimizers.Adagrad(movielens.LEARNING_RATE)
            model.compile(tf_dynemb.DynamicEmbeddingOptimizer(inner), loss="mse")
        learner = movielens.Learner(model)
        predictions, _ = movielens.progressive_validation(learner, ratings, tqdm(disable=True))
        return predictions, learner.sizes(), int(model.optimizer.iterations.numpy())

    got, want = run(mirrored()), run(tf.distribute.get_strategy())
    # float32 sums in another order: some units in the last place of a few stars
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-5)
    assert got[1:] == want[1:]
    assert got[2] == 4 * movielens.PASSES


def test_few_ratings_leave_nothing_to_recommend(tmp_path):
    """No movie has 20 ratings: nothing is asked about unseen ones, and the other program says so."""
    ratings = movielens_data.made_up(users=6, movies=60).first(50)
    features = ratings.features(ratings.users, ratings.movies)
    model = movielens.recommender(features, movielens.dynamic_embedding(2, "uniform"))
    movielens.save(model, ratings, tmp_path)
    run = subprocess.run(
        [sys.executable, EXAMPLES / "movielens_recommend.py", f"--folder={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert run.returncode == 0, run.stderr
    assert "Too few ratings: no other movie has 20 of them." in run.stdout


def test_from_end_to_end(tmp_path):
    ratings = movielens_data.made_up(users=30, movies=60)
    lines = ["user\tmovie\trating\ttimestamp"]
    for when, row in enumerate(zip(ratings.users, ratings.movies, ratings.stars, strict=True)):
        lines.append("\t".join(map(str, (*row, when))))
    (tmp_path / "ratings.tsv").write_text("\n".join(lines))
    run = subprocess.run(
        [
            sys.executable,
            EXAMPLES / "movielens.py",
            "--short",
            "--bounded",
            "--dim=3",
            "--replicas=2",
            f"--ratings={tmp_path / 'ratings.tsv'}",
            f"--output={tmp_path / 'output'}",
            f"--json={tmp_path / 'json' / 'table.json'}",
        ],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert run.returncode == 0, run.stderr
    assert "there is no" in run.stderr.lower()  # files on movies and users
    assert "same bit for bit" in run.stdout
    table = json.loads((tmp_path / "json" / "table.json").read_text())
    results = {result["name"]: result for result in table["results"]}
    shares = ("half of the rows", "a quarter of the rows")
    bounded = {f"{share}, {policy}" for share in shares for policy in movielens.POLICIES}
    assert bounded <= results.keys()
    assert len(results) == 6 + len(bounded) + len(shares)  # hashing with the memory of each share
    # A row each for the users and the movies that came, no more.
    assert results["dynamic"]["rows"] == sum(
        len(set(ids.tolist())) for ids in (ratings.users, ratings.movies)
    )
    assert results["dynamic"]["rmse"][0] < results["mean so far"]["rmse"][0]
    halves = [len(set(ids.tolist())) // 2 for ids in (ratings.users, ratings.movies)]
    for policy in ("LRU", "LFU"):
        assert results[f"half of the rows, {policy}"]["rows"] == sum(halves)
    assert results["half of the rows, by table"]["rows"] == pytest.approx(sum(halves), abs=1)
    assert run.stdout.count("| hashed, memory of") == 2
    assert (tmp_path / "output" / "curves.png").stat().st_size > 10_000


def test_a_bad_path_ends_with_a_message(tmp_path):
    run = subprocess.run(
        [sys.executable, EXAMPLES / "movielens.py", f"--ratings={tmp_path / 'u.data'}"],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert run.returncode == 1
    assert "u.data: there is no such file" in run.stderr
    assert "Traceback" not in run.stderr
