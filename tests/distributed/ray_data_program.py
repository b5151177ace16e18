"""Two workers of Ray Train, each trained on its share of a Ray dataset: what test_ray_data.py compares.

ray_data_program.py FOLDER reads FOLDER/*.parquet, and prints what worker 0 came to.
"""

import json
import pathlib
import sys

import ray
from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

EPOCHS = 3


def train(config):
    import ray.train
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    sys.path.insert(0, config["folder"])
    import ray_data_program

    import tf_dynemb

    shard = ray.train.get_dataset_shard("train")

    def mine(context):
        batches = shard.to_tf("user", "click", batch_size=config["batch_size"])
        return batches.map(lambda users, clicks: (users, clicks[:, None]))

    data = strategy.distribute_datasets_from_function(mine)
    model = ray_data_program.made(strategy)
    history = tf_dynemb.distribute.fit(model, data, epochs=EPOCHS, verbose=0)
    keys, rows = (part.numpy().tolist() for part in model.layers[0].table.export())
    kernel = model.layers[1].kernel.numpy().tolist()
    return {"losses": history.history["loss"], "kernel": kernel, "keys": keys, "rows": rows}


def made(strategy):
    import keras

    import tf_dynemb

    with strategy.scope():
        draw = keras.initializers.RandomUniform(-1, 1, seed=5)
        model = keras.Sequential(
            [
                keras.Input((), dtype="int64"),
                tf_dynemb.keras.Embedding(4, initializer=draw),
                keras.layers.Dense(1, kernel_initializer=draw),
            ]
        )
        model.compile(tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def main(folder, batch_size):
    ray.init(num_cpus=4)  # two for the workers; the data need some too
    data = ray.data.read_parquet(str(folder))
    here = str(pathlib.Path(__file__).parent.resolve())
    trainer = TensorflowTrainer(
        train,
        train_loop_config={"folder": here, "batch_size": batch_size},
        scaling_config=ScalingConfig(num_workers=2),
        datasets={"train": data},
    )
    print("RESULT", json.dumps(trainer.fit().return_value))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
