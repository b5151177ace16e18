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
    # Of every module, and of every class in one: names and the objects behind them. The objects are held,
    # so that no id is used twice.
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

if PATCH:
    keras.optimizers.SGD.apply = lambda self: None
    tf.nn.embedding_lookup = len
import tf_dynemb

after = snapshot(modules)
changes = []
for place, names in before.items():
    for name in sorted(set(names) | set(after[place])):
        old, new = names.get(name), after[place].get(name)
        newly_loaded = name not in names and inspect.ismodule(new)
        # What Python keeps about classes by itself.
        if old is not new and not newly_loaded and name not in ("__abstractmethods__", "_abc_impl"):
            changes.append(f"{place}.{name}")
if settings() != set_before:
    changes.append("settings")
new_optimizers = set(dir(keras.optimizers)) - set(before["keras.optimizers"])
print(json.dumps({"modules": len(before), "changes": changes, "new": sorted(new_optimizers)}))
"""


def run(patch):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = PROGRAM.replace("PATCH", str(patch))
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def test_nothing_of_tensorflow_and_keras_changes():
    result = run(patch=False)
    assert result["changes"] == [] and result["new"] == []
    assert result["modules"] > 1000


def test_the_comparison_sees_a_patch():
    changes = run(patch=True)["changes"]
    assert "keras.optimizers:SGD.apply" in changes
    assert any(change.endswith("nn.embedding_lookup") for change in changes)
