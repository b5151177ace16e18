"""OneEmbedding's quick start, line by line.

python examples/oneembedding_quickstart.py [--path=FOLDER]

What TensorFlow names otherwise has a comment with OneFlow's name.
"""

from __future__ import annotations

import os
import pathlib
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tf_dynemb
from tf_dynemb.compat import one_embedding

FLAGS = flags.FLAGS
flags.DEFINE_string("path", None, "Folder for snapshots; by default one that is removed afterwards.")


def plain_embedding() -> tf.Tensor:
    """A plain layer, which the quick start begins with."""
    indices = tf.constant([[1, 2, 4, 5], [4, 3, 2, 9]])
    embed = tf_dynemb.keras.Embedding(3)  # flow.nn.Embedding(10, 3)
    return embed(indices)


def run(path: pathlib.Path, steps: int = 3) -> list[float]:
    """Makes three tables, trains them, saves and loads them; the losses of the steps."""
    # Step 1: sizes.
    table_size_array = [39884407, 39043, 17289]
    vocab_size = sum(table_size_array)
    num_tables = len(table_size_array)
    embedding_size = 128
    scales = np.sqrt(1 / np.array(table_size_array))

    # Step 2: tables.
    tables = [
        one_embedding.make_table(one_embedding.make_uniform_initializer(low=-scale, high=scale))
        for scale in scales
    ]

    # Step 3: where rows are kept.
    store_options = one_embedding.make_cached_ssd_store_options(
        cache_budget_mb=8142,
        persistent_path=str(path),
        capacity=vocab_size,
        size_factor=1,
        physical_block_size=512,
    )

    # Step 4: the embedding and what uses it. mlp.to("cuda") has nothing to do: TensorFlow places dense
    # layers itself. Nor has embedding.to("cuda"), which is there: store_options say where rows are.
    embedding = one_embedding.MultiTableEmbedding(
        name="my_embedding",
        embedding_dim=embedding_size,
        dtype=tf.float32,  # flow.float
        key_type=tf.int64,
        tables=tables,
        store_options=store_options,
    )
    embedding.to("cuda")
    # flow.nn.FusedMLP(hidden_features=[512, 256, 128], out_features=1, skip_final_activation=True)
    mlp = keras.Sequential(
        [keras.Input([embedding_size * num_tables])]
        + [keras.layers.Dense(units, "relu") for units in (512, 256, 128)]
        + [keras.layers.Dense(1)]
    )

    # Step 5: a graph that trains. flow.nn.Graph is a tf.function; add_optimizer, for the embedding and
    # for the MLP, is one wrapper, which trains tables and dense variables.
    variables = [*embedding.parameters(), *mlp.trainable_variables]
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1, momentum=0.0))
    optimizer.build(variables)

    @tf.function
    def train_graph(ids):
        with tf.GradientTape() as tape:
            rows = embedding(ids)
            loss = tf.reduce_sum(mlp(tf.reshape(rows, (-1, num_tables * embedding_size))))
        gradients = tape.gradient(loss, variables)  # loss.backward()
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    ids = np.random.randint(0, 1000, (100, num_tables), dtype=np.int64)
    ids_tensor = tf.constant(ids)
    losses = []
    for _ in range(steps):
        losses.append(float(train_graph(ids_tensor)))
        print(losses[-1])

    # Saving and loading.
    trained = embedding(ids_tensor)
    embedding.save_snapshot(str(path / "my_snapshot"))
    train_graph(ids_tensor)
    embedding.load_snapshot(str(path / "my_snapshot"))
    if not np.array_equal(embedding(ids_tensor), trained):
        raise SystemExit("the snapshot does not hold the rows that were saved")
    return losses


def main(argv) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"got {argv[1:]}, want flags only")
    print(plain_embedding().shape)
    if FLAGS.path:
        run(pathlib.Path(FLAGS.path))
        return
    with tempfile.TemporaryDirectory() as folder:
        run(pathlib.Path(folder))


if __name__ == "__main__":
    app.run(main)
