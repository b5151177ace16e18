"""dlrm_criteo.py under Ray Train: the same training, by the machines of a Ray cluster.

    pip install 'ray[train]'

    P=.venv/bin/python
    $P examples/dlrm_criteo_ray.py --synthetic 1000000 --workers 2                # this machine
    RAY_ADDRESS=host:6379 $P examples/dlrm_criteo_ray.py day_*.gz --workers 64    # that cluster

Ray's TensorflowTrainer starts the workers and sets TF_CONFIG in each, which is all that the training
needs; the options are those of dlrm_criteo.py. Each worker changes to the folder in which this was
started, and finds the examples where they lie here: on a cluster all machines share these folders, and
all have tf_dynemb installed.
"""

from __future__ import annotations

import os
import pathlib

import dlrm_criteo
from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def train(config: dict) -> str:
    """What each worker does, in a process of its own. Returns the report."""
    import sys

    sys.path.insert(0, config["examples"])
    import dlrm_criteo

    os.chdir(config["folder"])
    with dlrm_criteo.make_strategy().scope():
        _, report = dlrm_criteo.run(config["args"])
    return report


def main() -> None:
    args = dlrm_criteo.parse()
    trainer = TensorflowTrainer(
        train,
        train_loop_config={
            "args": args,
            "folder": os.getcwd(),
            "examples": str(pathlib.Path(__file__).parent.resolve()),
        },
        scaling_config=ScalingConfig(num_workers=args.workers or 1),
    )
    print(trainer.fit().return_value)


if __name__ == "__main__":
    main()
