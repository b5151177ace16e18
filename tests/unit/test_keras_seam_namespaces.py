"""Importing tf_dynemb changes nothing of TensorFlow and Keras: no patch, no new name, no setting."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]

PROGRAM = """
import inspect, json, sys
import h5py, keras, numpy, tensorflow as tf

def packages():
    return {
        name: module
        for name, module in list(sys.modules.items())
        if module is not None and name.split(".")[0] in ("tensorflow", "keras")
    }

def snapshot(modules):
    # Of every module, and of every class in one: names and the objects behind them.
    found = {}
    for module_name, module in modules.items():
        found[module_name] = dict(vars(module))
        for name, value in list(vars(module).items()):
            if inspect.isclass(value) and value.__module__.split(".")[0] in ("tensorflow", "keras"):
                found[f"{module_name}:{name}"] = dict(vars(value))
    return found

for name in dir(tf):  # what TensorFlow loads when it is first asked for
    getattr(tf, name, None)

def settings():
    return [keras.config.floatx(), keras.config.epsilon(), keras.config.dtype_policy().name,
            keras.config.backend(), tf.config.get_soft_device_placement(), tf.config.optimizer.get_jit(),
            tf.executing_eagerly(), tf.config.functions_run_eagerly()]

set_before = settings()
modules = packages()
before = snapshot(modules)

import tf_dynemb

def changes():
    after, changes = snapshot(modules), []
    for place, names in before.items():
        for name in sorted(set(names) | set(after[place])):
            old, new = names.get(name), after[place].get(name)
            newly_loaded = name not in names and inspect.ismodule(new)
            # What Python keeps about classes by itself.
            if old is not new and not newly_loaded and name not in ("__abstractmethods__", "_abc_impl"):
                changes.append(f"{place}.{name}")
    return changes + (["settings"] if settings() != set_before else [])

found = changes()
keras.optimizers.SGD.apply = lambda self: None
tf.nn.embedding_lookup = len
keras.config.set_epsilon(0.5)
print(json.dumps({"modules": len(before), "changes": found, "patched": changes()}))
"""


def test_nothing_of_tensorflow_and_keras_changes():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout
    result = json.loads(output.splitlines()[-1])
    assert result["changes"] == []
    # The comparison sees what a patch would change.
    assert result["modules"] > 1000
    assert "keras.optimizers:SGD.apply" in result["patched"]
    assert "tensorflow.nn.embedding_lookup" in [
        name.replace("._api.v2", "") for name in result["patched"]
    ]
    assert "settings" in result["patched"]
