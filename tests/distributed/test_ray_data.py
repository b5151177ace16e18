"""fit of two workers on a Ray dataset that is split between them, beside one process with all rows."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf

pytest.importorskip("ray", reason="Ray is for Python 3.11 and later")

from local_ray import local_ray  # noqa: E402
from ray_data_program import EPOCHS, made  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
TIMEOUT_SECONDS = 450  # for a busy machine; alone it is a fraction
ROWS, FILES = 32, 4
USERS = np.arange(ROWS) % 11 * (2**40 + 1)
CLICKS = (np.arange(ROWS) % 2).astype(np.float32)
# Sums of float32 in another order.
TOLERANCE = 1e-5


def test_a_dataset_that_ray_splits(tmp_path):
    """A step has all rows of an epoch, so that it is no matter which worker has which of them."""
    data = tmp_path / "data"
    data.mkdir()
    for number, part in enumerate(np.array_split(np.arange(ROWS), FILES)):
        table = pyarrow.table({"user": USERS[part], "click": CLICKS[part]})
        pyarrow.parquet.write_table(table, data / f"{number}.parquet")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment.pop("TF_CONFIG", None)
    with local_ray(tmp_path) as variables:
        program = pathlib.Path(__file__).with_name("ray_data_program.py")
        run = subprocess.run(
            [sys.executable, str(program), str(data), str(ROWS // 2)],
            capture_output=True,
            text=True,
            env=environment | variables,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    result = json.loads(line.removeprefix("RESULT "))

    model = made(tf.distribute.get_strategy())
    history = model.fit(USERS, CLICKS[:, None], batch_size=ROWS, epochs=EPOCHS, shuffle=False, verbose=0)
    np.testing.assert_allclose(result["losses"], history.history["loss"], rtol=TOLERANCE)
    np.testing.assert_allclose(result["kernel"], model.layers[1].kernel.numpy(), rtol=TOLERANCE)
    rows = dict(zip(*(part.numpy().tolist() for part in model.layers[0].table.export()), strict=True))
    assert result["keys"] and set(result["keys"]) < set(rows)  # those that the worker owns
    for key, row in zip(result["keys"], result["rows"], strict=True):
        np.testing.assert_allclose(row, rows[key], rtol=TOLERANCE)
