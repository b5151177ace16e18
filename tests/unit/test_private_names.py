"""What TensorFlow and Keras do not promise to keep: where it is missing, that is said."""

import ast
import importlib.util
import pathlib
import re
import types

import keras
import pytest
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.layer import TFLayer
from keras.src.layers import layer as layer_module
from keras.src.models import cloning
from keras.src.ops import function as keras_function
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tensorflow.python.ops import resource_variable_ops, while_v2

import tf_dynemb
from tf_dynemb import _compat

PACKAGE = pathlib.Path(tf_dynemb.__file__).parent


def import_again():
    """Runs _compat as at the first import, as a module of its own."""
    spec = importlib.util.spec_from_file_location("compat_again", _compat.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize("version", ["2.15.0", "3.11.3", "4.0.0"])
def test_a_keras_out_of_range_is_refused(version, monkeypatch):
    monkeypatch.setattr(keras, "__version__", version)
    with pytest.raises(ImportError, match=f"Keras from 3.12 to below 4, found Keras {version}; `pip"):
        import_again()


@pytest.mark.parametrize("backend", ["jax", "torch", "numpy"])
def test_a_keras_on_another_library_is_refused(backend):
    with pytest.raises(ImportError, match=f"found Keras on {backend}; set .*KERAS_BACKEND=tensorflow"):
        _compat.check_keras_backend(backend)


def test_the_keras_that_is_installed_is_in_range():
    for version in ("3.12.0", "3.15.1", "3.99.0.dev1", keras.__version__):
        _compat.check_keras_version(version)


@pytest.mark.parametrize(
    ("owner", "name", "lost"),
    [
        (while_v2, "_WhileBodyGradFuncGraph", "gradients of lookups in loops"),
        (resource_variable_ops, "variable_accessed", "tapes would not see"),
        (global_state, "get_global_attribute", "silently stay untrained"),
        (layer_module, "CallContext", "silently stay untrained"),
        (BaseOptimizer, "_use_weight_decay", "exclude_from_weight_decay"),
        (TFLayer, "_default_save_signature", "count padding as ids"),
        (keras_function.Function, "_run_through_graph", "count padding as ids"),
        (cloning, "_wrap_clone_function", "clones of models would have a table for each layer"),
    ],
)
def test_what_is_missing_fails_at_import(owner, name, lost, monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr(owner, name)
        with pytest.raises(ImportError, match=f"needs .*{name}, which is missing in TensorFlow.*{lost}"):
            import_again()
    import_again()


def test_a_call_context_without_its_layer_fails_at_import(monkeypatch):
    monkeypatch.setattr(layer_module, "CallContext", lambda entry_layer: object())
    with pytest.raises(ImportError, match="entry_layer, which is missing"):
        import_again()


def test_functions_that_keep_what_is_looked_for_elsewhere_fail_at_import(monkeypatch):
    """Callers are looked at for these variables."""

    def of_other_names(clone, function=None, recursive=False, cache=None):
        return lambda layer: clone

    with monkeypatch.context() as patch:
        patch.setattr(cloning, "_wrap_clone_function", of_other_names)
        with pytest.raises(ImportError, match="a function wrapped_clone_function with the variables"):
            import_again()
    with monkeypatch.context() as patch:
        patch.setattr(keras_function.Function, "_run_through_graph", lambda self, inputs: inputs)
        with pytest.raises(ImportError, match=r"variables \['node', 'self', 'tensor_dict'\], which is"):
            import_again()
    with monkeypatch.context() as patch:
        patch.setattr(TFLayer, "_default_save_signature", property(lambda self: None))
        with pytest.raises(ImportError, match="a function serving_default .*count padding as ids"):
            import_again()
    with monkeypatch.context() as patch:
        patch.setattr(keras.export.ExportArchive, "__module__", "keras.src.saving.exports")
        with pytest.raises(ImportError, match="ExportArchive of keras.src.export.*count padding as ids"):
            import_again()
    import_again()


def test_the_outermost_layer_is_seen():
    seen = []

    class Outer(keras.layers.Layer):
        def call(self, x):
            seen.append(_compat.outermost_layer())
            return x

    model = keras.Sequential([Outer()])
    model(tf.zeros([1]))
    assert seen[-1] is model and _compat.outermost_layer() is None


def test_a_gradient_that_crosses_a_loop_is_seen():
    crosses = []

    @tf.custom_gradient
    def probe(x):
        def gradient(upstream):
            crosses.append(_compat.crosses_loop())
            return upstream

        return tf.identity(x), gradient

    @tf.function
    def looped(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, probe(y)), (0, x))[1]
        return tape.gradient(y, x)

    looped(tf.constant(1.0))
    assert crosses and all(crosses)


def test_an_exclusion_from_weight_decay_that_is_kept_elsewhere_is_an_error():
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    variable = keras.Variable([1.0], name="excluded")
    assert not _compat.excluded_from_weight_decay(optimizer, variable)
    optimizer.exclude_from_weight_decay(var_names=["excluded"])
    assert _compat.excluded_from_weight_decay(optimizer, variable)
    with pytest.raises(AttributeError):
        _compat.excluded_from_weight_decay(types.SimpleNamespace(), variable)


def test_an_epoch_that_is_kept_elsewhere_is_an_error():
    assert _compat.restored_epoch(keras.Sequential()) is None
    with pytest.raises(RuntimeError, match="m: .*BackupAndRestore cannot say .* at which epoch"):
        _compat.restored_epoch(types.SimpleNamespace(name="m"))


def test_a_timeout_that_is_kept_elsewhere_is_warned_about():
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=7)
    strategy = types.SimpleNamespace(extended=types.SimpleNamespace(_communication_options=options))
    assert _compat.timeout_of(strategy) == 7
    with pytest.warns(UserWarning, match="waited for half an hour"):
        assert _compat.timeout_of(types.SimpleNamespace(extended=types.SimpleNamespace())) is None


@pytest.mark.parametrize(
    "path", [p for p in sorted(PACKAGE.rglob("*.py")) if p.name != "_compat.py"], ids=lambda p: p.name
)
def test_private_modules_are_named_in_one_place(path):
    imports = (
        r"^\s*(?:from|import) (?:tensorflow\.python|keras\.src)|\bsuper\(\)\._(?:trackable|serialize)"
    )
    assert not re.findall(imports, path.read_text(), re.MULTILINE)


def test_private_attributes_are_defined_here():
    """The source does not say whose an object is, so it is told by who defines the name."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_compat.py"]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    defined, used = set(), set()
    for node in nodes:
        is_assigned = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and is_assigned:
            defined.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
            if is_assigned and isinstance(node.value, ast.Name) and node.value.id == "self":
                defined.add(node.attr)
    private = {name for name in used if name.startswith("_") and not name.endswith("__")}
    assert private - defined == {"_replace"}  # of named tuples, which document it
