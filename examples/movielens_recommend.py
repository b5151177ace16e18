"""Loads the model that movielens.py saved, checks that it answers as it did, and recommends movies.

python examples/movielens_recommend.py --folder FOLDER      # what movielens.py had as --output
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tf_dynemb  # noqa: F401  its layers are in the saved model

FLAGS = flags.FLAGS
flags.DEFINE_string("folder", None, "Folder with model.keras and questions.json.", required=True)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"got {argv[1:]}, want flags only")
    folder = pathlib.Path(FLAGS.folder)
    for name in ("model.keras", "questions.json"):
        if not (folder / name).is_file():
            sys.exit(
                f"--folder: there is no {name} in {folder}; movielens.py --output={folder} makes it"
            )
    model = keras.models.load_model(folder / "model.keras")
    questions = json.loads((folder / "questions.json").read_text())
    print(f"A fresh process (pid {os.getpid()}) has loaded {folder / 'model.keras'}.")

    for question in (questions["last"], questions["unseen"]):
        if not question["predictions"]:
            continue  # few ratings, no other movies
        features = {name: tf.constant(np.array(ids)) for name, ids in question["features"].items()}
        predictions = model.predict_on_batch(features)
        if not np.array_equal(predictions, np.array(question["predictions"], np.float32)):
            sys.exit("The loaded model does not predict what it predicted before it was saved.")
        print(f"{len(predictions)} predictions are the same bit for bit as before the model was saved.")

    user, rated, likes = (questions[name] for name in ("user", "has_rated", "likes"))
    print(f"\nUser {user} has rated {rated} movies, and likes " + "; ".join(likes) + ".")
    expected, titles = np.array(questions["unseen"]["predictions"]), questions["unseen"]["titles"]
    best = np.argsort(-expected, kind="stable")[:10]
    if not len(best):
        print("Too few ratings: no other movie has 20 of them.")
        return
    print(f"{len(best)} that the user has not rated, with the stars to expect:")
    for index in best:
        print(f"  {np.clip(expected[index], *questions['scale']):.2f}  {titles[index]}")


if __name__ == "__main__":
    app.run(main)
