"""The only place that touches what TensorFlow and Keras do not promise to keep, each with its reason.

What rows or gradients depend on is looked for when this module is imported, and its absence is an
ImportError. What only costs speed or comfort warns, with what is lost.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

# Keras versions from the first to below the second; TensorFlow must be the one of the build.
KERAS_VERSIONS = ("3.12", "4")


def check_keras_version(version: str) -> None:
    """Raises ImportError for a version of Keras that is not supported."""
    first, end = (_numbers(bound) for bound in KERAS_VERSIONS)
    if not first <= _numbers(version) < end:
        raise ImportError(
            f"tf_dynemb works with Keras from {KERAS_VERSIONS[0]} to below {KERAS_VERSIONS[1]}, found "
            f"Keras {version}; `pip install 'keras>={KERAS_VERSIONS[0]},<{KERAS_VERSIONS[1]}'`"
        )


def check_keras_backend(backend: str) -> None:
    """Raises ImportError for a Keras that computes with another library than TensorFlow."""
    if backend != "tensorflow":
        raise ImportError(
            f"tf_dynemb works with Keras on TensorFlow, found Keras on {backend}; set the environment "
            'variable KERAS_BACKEND=tensorflow before keras is imported, or "backend" in '
            "~/.keras/keras.json"
        )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)


def required(owner: object | str, name: str, purpose: str) -> Any:
    """An attribute of a module, given by its name, or of another object.

    Raises:
        ImportError: it does not exist; says what cannot work without it.
    """
    where = owner if isinstance(owner, str) else getattr(owner, "__name__", owner)
    try:
        return getattr(importlib.import_module(owner) if isinstance(owner, str) else owner, name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"tf_dynemb needs {where}.{name}, which is missing in TensorFlow {tf.__version__} with "
            f"Keras {keras.__version__}: {purpose}. Install another Keras, from {KERAS_VERSIONS[0]} to "
            f"below {KERAS_VERSIONS[1]}"
        ) from error


check_keras_version(keras.__version__)
check_keras_backend(keras.backend.backend())
_WHILE_BODY_GRADIENT = required(
    "tensorflow.python.ops.while_v2",
    "_WhileBodyGradFuncGraph",
    "gradients of lookups in loops could not be told from others, and would be wrong",
)


def _code_of(function: Any, variables: set[str], purpose: str, inner: str = "") -> types.CodeType:
    """The code of a function, or of the one named `inner` that it makes, which has these variables.

    Raises:
        ImportError: as `required`.
    """
    code: types.CodeType | None = function.__code__
    if inner:
        made = (each for each in function.__code__.co_consts if isinstance(each, types.CodeType))
        code = next((each for each in made if each.co_name == inner), None)
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars} if code else set()
    if code is None or not variables <= names:
        what = f"a function {inner or function.__name__} with the variables {sorted(variables)}"
        return required(function, what, purpose)
    return code


# What looks at callers, since Keras says nothing of it: where it is elsewhere, importing fails.
_PADDING = "exports of ragged models could count padding as ids, and serve wrong numbers"
_RUN_THROUGH_GRAPH = _code_of(
    required(required("keras.src.ops.function", "Function", _PADDING), "_run_through_graph", _PADDING),
    {"self", "node", "tensor_dict"},
    _PADDING,
)
_SIGNATURE = required(
    required("keras.src.backend.tensorflow.layer", "TFLayer", _PADDING),
    "_default_save_signature",
    _PADDING,
)
_code_of(inspect.unwrap(_SIGNATURE.fget), {"self"}, _PADDING, "serving_default")
_EXPORT = "keras.src.export."
if not keras.export.ExportArchive.__module__.startswith(_EXPORT):
    required(keras.export, f"ExportArchive of {_EXPORT}", _PADDING)
_SHARING = "clones of models would have a table for each layer, where layers share one"
_CLONE_LAYER = _code_of(
    required("keras.src.models.cloning", "_wrap_clone_function", _SHARING),
    {"layer", "cache", "clone_function"},
    _SHARING,
    "wrapped_clone_function",
)
_VARIABLE_ACCESSED = required(
    "tensorflow.python.ops.resource_variable_ops",
    "variable_accessed",
    "tapes would not see that tables are looked up",
)
_UNTRAINED = "tables that a compiled model does not have would silently stay untrained"
_GLOBAL_ATTRIBUTE = required("keras.src.backend.common.global_state", "get_global_attribute", _UNTRAINED)
required(required("keras.src.layers.layer", "CallContext", _UNTRAINED)(None), "entry_layer", _UNTRAINED)
required(
    keras.optimizers.Optimizer,
    "_use_weight_decay",
    "exclude_from_weight_decay would have no effect on tables",
)
required(
    keras.optimizers.Optimizer,
    "_get_variable_index",
    "global_clipnorm could not clip accumulated gradients of tables and dense variables together",
)
for _name in (
    "_trackable_children",
    "_serialize_to_tensors",
    "_restore_from_tensors",
    "_copy_trackable_to_cpu",
    "_gather_saveables_for_checkpoint",
):
    required(tf.Module, _name, "checkpoints and SavedModels would not hold the rows")
required(tf.Module, "_update_uid", "counts of ids would outlive the restore of a checkpoint without any")


_SAVED_MODEL = "tensorflow.python.saved_model.save"
required(_SAVED_MODEL, "save", "SavedModels would lack the values of variables")


# Mixins that give public names to the methods by which TensorFlow saves objects. It asks which of them a
# class has, so that each has its own mixin.


if TYPE_CHECKING:
    Trackable = Any  # what the classes with the mixins are too
else:
    Trackable = object


class SavesChildren(Trackable):
    """Says what is saved with an object."""

    def children_to_save(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
        """Of the children that TensorFlow has found; save_type is "checkpoint" or "savedmodel"."""
        raise NotImplementedError  # abstract: each class with the mixin has its own

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        return self.children_to_save(super()._trackable_children(save_type, **kwargs), save_type)


class RestoresTensors:
    """Says what is done with the tensors of a checkpoint."""

    def restore_tensors(self, tensors: dict[str, tf.Tensor]) -> Any:
        """Takes them; returns an operation in a graph."""

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        return self.restore_tensors(restored_tensors)


class SavesTensors(RestoresTensors):
    """Says which tensors of its own an object has in a checkpoint."""

    def tensors_to_save(self) -> dict[str, tf.Tensor]:
        """The tensors by name."""
        raise NotImplementedError  # abstract: each class with the mixin has its own

    def copy_to_cpu(self, copies: dict[Any, Any]) -> None:
        """Puts a copy of this object as it is now into `copies`, for a thread that writes it."""

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return self.tensors_to_save()

    def _copy_trackable_to_cpu(self, object_map: dict[Any, Any]) -> None:
        self.copy_to_cpu(object_map)


def restore_of(trackable: Any) -> int:
    """The number of the last restore of a checkpoint that had an object in it; -1: there was none.

    TensorFlow numbers all of its objects before it restores any, and has no public getter.
    """
    return getattr(trackable, "_update_uid", -1)


class SavedBySaver:
    """Says what tf.compat.v1.train.Saver saves of an object in its var_list."""

    def saveables(self) -> dict[str, Any]:
        """Functions of a name that give a saveable, by what they add to the name."""
        raise NotImplementedError  # abstract: each class with the mixin has its own

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        return self.saveables()


def register_read_only(op_type: str) -> None:
    """Tells tf.function that an op only reads its resources.

    Automatic control dependencies take an unknown op on a resource for a writer and run two lookups of
    one table one after the other. There is no public way to say otherwise; without it lookups are
    slower, not wrong, so a TensorFlow that lacks it is no error.
    """
    try:
        from tensorflow.python.framework import auto_control_deps_utils as utils

        utils.register_read_only_resource_op(op_type)
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"lookups of one table in a tf.function run one after the other, since this TensorFlow does "
            f"not let {op_type} be registered as reading only: {error}",
            stacklevel=2,
        )


def crosses_loop() -> bool:
    """Whether a gradient that is being built must be summed over the turns of a tf.while_loop.

    TensorFlow has no public name for the graph of a loop body's gradient. A whole training step inside
    a loop, as with fit(steps_per_execution=4), is not meant: its gradient is built inside the body.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if isinstance(graph, _WHILE_BODY_GRADIENT):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def is_in_xla_function() -> bool:
    """Whether a function is being traced that XLA compiles.

    TensorFlow has no public name for it. Only the words of an error depend on it, so a TensorFlow that
    lacks it is none.
    """
    if tf.executing_eagerly():
        return False
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return False
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def resource_of(variable: keras.Variable) -> tf.Tensor:
    """The resource of a variable, which tapes and graphs are told is read.

    What reads a variable publicly adds an operation for each; an op of ours takes the resources of many.
    """
    _VARIABLE_ACCESSED(variable)
    if hasattr(variable, "values") and tf.distribute.in_cross_replica_context():
        variable = variable.values[0]  # nothing trains here: a model is being built, or predicts
    return variable.handle


def resource_with(handle: tf.Tensor) -> Any:
    """The object that made the handle of a resource, or None.

    TensorFlow keeps it for the words of its errors and has no public getter. Where it has it elsewhere a
    table in parts is taken for several of one name, and refused, where a SavedModel is to follow.
    """
    reference = getattr(handle, "_parent_trackable", None)
    return None if reference is None else reference()


def timeout_of(strategy: tf.distribute.Strategy) -> float | None:
    """The timeout_seconds of the CommunicationOptions that a strategy was made with.

    The strategy has no public getter. Where it keeps them elsewhere, that is as if none were given, and
    a warning says so.
    """
    try:
        return strategy.extended._communication_options.timeout_seconds
    except AttributeError as error:
        warnings.warn(
            "a process that never comes is waited for half an hour: this TensorFlow does not say which "
            f"timeout_seconds the strategy was made with ({error})",
            stacklevel=2,
        )
        return None


def outermost_layer() -> keras.Layer | None:
    """The Keras layer or model whose call is going on, the outermost if they are nested; or None.

    Keras keeps it beside the call and tells only layers, by arguments, what else is in it.
    """
    context = _GLOBAL_ATTRIBUTE("current_call_ctx")
    return None if context is None else context.entry_layer


def traces_default_signature() -> bool:
    """Whether a function is traced that Keras makes up for a SavedModel, of inputs that it guesses.

    For a model without keras.Inputs it takes floats, and dense tensors for all. tf.saved_model.save and
    model.export trace it for every model, also where other signatures are given. There is no way to
    tell it from a function of the user's but by who calls: TensorFlow traces it when it saves.
    """
    names = ("serving_default", "tf__serving_default")  # as autograph calls it
    return any(
        frame.f_code.co_name in names and isinstance(frame.f_locals.get("self"), keras.Model)
        for frame in _callers()
    )


def keras_exports() -> bool:
    """Whether a model is called by model.export or keras.export.ExportArchive. As above."""
    return any(frame.f_globals.get("__name__", "").startswith(_EXPORT) for frame in _callers())


def layer_given_dense_for_ragged() -> tuple[Any, Any]:
    """The layer that a Functional model calls for dense ids, made of ragged or sparse ones; None: none.

    And the outermost Functional model that is being called, or None. The layer's ids are such if they
    depend on an Input, or on what another layer gave, that is ragged or sparse in the model. As above.
    """
    layer = model = None
    for frame in _callers():
        if frame.f_code is not _RUN_THROUGH_GRAPH:
            continue
        values = frame.f_locals
        model = values["self"]
        if layer is None and _is_given_dense_for_ragged(values["node"], values["tensor_dict"]):
            layer = values["node"].operation
    return (None, None) if layer is None else (layer, model)


def _is_given_dense_for_ragged(node: Any, values: dict[int, Any]) -> bool:
    """Whether a value that a call depends on is a tensor where the model was made of no dense one.

    Args:
        node: the call, of a Functional model.
        values: what stands for the model's KerasTensors, by their ids.
    """
    nodes, seen = [node], {id(node)}
    for each in nodes:
        for place in each.input_tensors:
            is_dense = isinstance(values.get(id(place)), tf.Tensor)
            if is_dense and (getattr(place, "ragged", False) or getattr(place, "sparse", False)):
                return True
        nodes += [parent for parent in each.parent_nodes if id(parent) not in seen]
        seen.update(map(id, nodes))
    return False


def writes_legacy_h5() -> bool:
    """Whether a model is being written to a plain `.h5`, or read from one.

    Keras has no public getter. Where it says it elsewhere such files are written without their rows.
    """
    return bool(_GLOBAL_ATTRIBUTE("use_legacy_config"))


def saves_saved_model() -> bool:
    """Whether a SavedModel is being saved.

    TensorFlow asks objects for tensors as for a checkpoint, without saying which of both it saves, and
    its own context of saving is over by then. Where it saves elsewhere, what it has saved cannot be
    loaded: the weights of handles are missing.
    """
    return any(frame.f_globals.get("__name__") == _SAVED_MODEL for frame in _callers())


def layer_being_cloned() -> tuple[keras.Layer, dict[int, Any], Callable[[Any], Any]] | None:
    """The layer of which keras.models.clone_model makes another one now; None: it makes none.

    And its clones by the ids of what they are of, and its function that makes one. Keras tells a layer
    nothing of it: it makes one of a config, as of any.
    """
    for frame in _callers():
        if frame.f_code is _CLONE_LAYER:
            values = frame.f_locals
            return values["layer"], values["cache"], values["clone_function"]
    return None


def counts_parameters() -> bool:
    """Whether summary or count_params of Keras asks for the shape of a weight, to multiply it.

    Asked by the getter of the shape. Where Keras has these functions elsewhere its totals leave the rows
    of tables out.
    """
    for frame in itertools.islice(_callers(), 4):  # a comprehension may lie between
        if frame.f_globals.get("__name__") == "keras.src.utils.summary_utils":
            return True
    return False


_SAVER = "a Saver would leave the rows of tables out"
_BUILD_SAVER = _code_of(required(tf.compat.v1.train.Saver, "_build", _SAVER), {"self"}, _SAVER)
_SAVEABLES = "tensorflow.python.training.saving.saveable_object_util"
_SAVERS_ASK = [required(_SAVEABLES, f, _SAVER) for f in ("op_list_to_dict", "saveable_objects_for_op")]
_CODES_OF_SAVERS = {function.__code__ for function in _SAVERS_ASK}


def var_list_of_saver() -> Any:
    """What the tf.compat.v1.train.Saver has that is being built; None: there is none.

    What asks for saveables is a SavedModel or a checkpoint otherwise, which has the rows already.
    """
    for frame in _callers():
        if frame.f_code is _BUILD_SAVER:
            return frame.f_locals["self"]._var_list
    return None


def save_beside(
    variable: tf.Variable, children: Callable[[Any], dict[str, Any]], check: Callable[[Any], None]
) -> None:
    """Has checkpoints of one tf.Variable hold more than it, and a Saver say what it would leave out.

    A Saver asks a variable for nothing of this: who asks for an attribute is looked at.

    Args:
        variable: any; its class becomes one of its own.
        children: function of it, of what a checkpoint saves with it by name.
        check: function of it, called when it is in the var_list of a Saver; may raise.
    """
    kind: Any = type(variable)
    variable.__class__ = _kind_with_children(kind, children, check)


@functools.cache
def _kind_with_children(
    kind: Any, children: Callable[[Any], dict[str, Any]], check: Callable[[Any], None]
) -> Any:
    class WithChildren(SavesChildren, kind):
        def children_to_save(self, found: dict[str, Any], save_type: str) -> dict[str, Any]:
            return found | children(self) if save_type == "checkpoint" else found

        @property
        def _in_graph_mode(self) -> Any:
            if sys._getframe(1).f_code in _CODES_OF_SAVERS:
                check(self)
            own = vars(self).get("_in_graph_mode")
            return super()._in_graph_mode if own is None else own

    class WithChildrenOnReplicas(WithChildren):
        def _gather_saveables_for_checkpoint(
            self,
        ) -> Any:  # which a Saver asks those of several replicas
            check(self)
            return super()._gather_saveables_for_checkpoint()

    return WithChildrenOnReplicas if issubclass(kind, tf.distribute.DistributedValues) else WithChildren


_COMPILE = inspect.unwrap(keras.Model.compile).__code__


def model_being_compiled() -> keras.Model | None:
    """The model whose compile asks a layer for an attribute; None where somebody else asks.

    Asked by the getter of that attribute. From 3.15 on compile asks all layers whether they are
    trainable; where it does not, what compile could find is found when the optimizer is built.
    """
    for frame in itertools.islice(_callers(), 4):  # a comprehension may lie between
        if frame.f_code is _COMPILE:
            return frame.f_locals["self"]
    return None


_WRAPPED = "wrapped_by_tf_dynemb"


def wrap_exported_functions(wrap: Callable[[Any], Any]) -> None:
    """Has Keras wrap the functions that it makes of a model for a SavedModel; once for all.

    Of model.export and keras.export.ExportArchive, and the signature that tf.saved_model.save takes
    where none is given. Users see neither before it is saved. Where a Keras has them elsewhere this is
    an error: a request would see rows and weights of two generations.

    Args:
        wrap: function of a tf.function that returns what takes its place, or itself.
    """
    purpose = "a SavedModel could not be made to follow a feed"
    archive = required("keras.src.backend.tensorflow.export", "TFExportArchive", purpose)
    layer = required("keras.src.backend.tensorflow.layer", "TFLayer", purpose)
    # That of the backend; before Keras 3.14 it had the name of the one that users call, which calls it.
    method = "add_endpoint" if "add_endpoint" in vars(archive) else "_backend_add_endpoint"
    add_endpoint = required(archive, method, purpose)
    signature = required(layer, "_default_save_signature", purpose)
    is_saving = required("tensorflow.python.saved_model.save_context", "in_save_context", purpose)
    if hasattr(add_endpoint, _WRAPPED):
        return

    def wrapped_add_endpoint(
        self: Any, name: str, fn: Callable[..., Any], input_signature: Any = None, **options: Any
    ) -> Any:
        return wrap(add_endpoint(self, name, fn, input_signature, **options))

    @functools.wraps(signature.fget)
    def wrapped_signature(self: Any) -> Any:
        function = signature.fget(self)
        # An ExportArchive looks at all of a model for resources, and saves this of none of its models.
        return wrap(function) if function is not None and is_saving() else function

    setattr(wrapped_add_endpoint, _WRAPPED, True)
    setattr(archive, method, wrapped_add_endpoint)
    layer._default_save_signature = property(wrapped_signature)


def check_saved_signatures(check: Callable[[str, Any], None]) -> None:
    """Has each signature checked that a SavedModel is saved with, however it is saved; once for all.

    Args:
        check: function of a signature's name and its concrete function, which raises for a wrong one.
    """
    purpose = "a SavedModel could mix two generations of a feed"
    serialization: Any = importlib.import_module("tensorflow.python.saved_model.signature_serialization")
    canonicalize = required(serialization, "canonicalize_signatures", purpose)
    if hasattr(canonicalize, _WRAPPED):
        return

    @functools.wraps(canonicalize)
    def checked(*args: Any, **kwargs: Any) -> Any:
        signatures, *others = canonicalize(*args, **kwargs)
        for name, concrete in signatures.items():
            check(name, concrete)
        return (signatures, *others)

    setattr(checked, _WRAPPED, True)
    serialization.canonicalize_signatures = checked


def _callers() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def built_on(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables that an optimizer was built on. Keras keeps them and has no public getter."""
    return optimizer._trainable_variables


def excluded_from_weight_decay(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """What optimizer.exclude_from_weight_decay was told. Keras has the setter but no public getter."""
    # From Keras 3.16 on, where the other one knows only what the optimizer was built on.
    if hasattr(optimizer, "_is_excluded_from_weight_decay"):
        return optimizer._is_excluded_from_weight_decay(variable)
    return not optimizer._use_weight_decay(variable)


def count_of_calls(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The variable in which a Keras optimizer counts the calls of its apply.

    `iterations` counts updates, which are fewer if gradients are accumulated, and is no variable then.
    """
    return optimizer._iterations if optimizer.gradient_accumulation_steps else optimizer.iterations


def accumulated_gradient(
    optimizer: keras.optimizers.Optimizer, variable: keras.Variable
) -> keras.Variable:
    """The sum of the gradients of a variable since the last update, of an optimizer that is built.

    Keras has no public getter. Without it global_clipnorm could not clip dense variables and tables
    together.
    """
    return optimizer._accumulated_gradients[optimizer._get_variable_index(variable)]


def archive_of(store: Any) -> Any:
    """The `.keras` archive that a store of Keras lies in; None if it is a file of its own."""
    return getattr(store, "archive", None)


def writes_to_memory(store: Any) -> bool:
    """Whether the store that Keras passes to save_own_variables is held in memory until the end.

    In a `.keras` archive it is, in `.weights.h5` it is not. The attribute is that of Keras' H5IOStore;
    where it is missing rows are written to the store, which is right and costs memory only.
    """
    return archive_of(store) is not None


def register_keras_structure(
    cls: type[Any], flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]
) -> None:
    """Makes a class a structure of tensors for Keras, as lists and dicts are.

    Layers take such a structure as an input, cast and trace its tensors, and return it. Keras has no
    public way to say so: it keeps its structures in optree, whose interface is public, under a name that
    Keras chose. Where Keras uses something else a layer refuses the class as positional argument and
    takes it by keyword.

    Args:
        cls: the class.
        flatten: function of an instance that returns (children, metadata, names of the children).
        unflatten: function of (metadata, children) that returns an instance.
    """
    try:
        import optree
    except ImportError as error:
        warnings.warn(
            f"layers take a {cls.__name__} by keyword only, since Keras' optree is missing: {error}",
            stacklevel=2,
        )
        return
    optree.register_pytree_node(cls, flatten, unflatten, namespace="keras")


def check_values_of_type(cls: type[Any], check: Callable[[Any, Any], None]) -> None:
    """Has the type of a tf.experimental.ExtensionType check a value before its tensors are taken.

    tf.function casts what it is given to its input_signature, tensor by tensor: it never compares the
    fields that are no tensors. The methods of tf.TypeSpec that it calls for this are for subclasses to
    write, but an ExtensionType may not name them in its Spec.

    Args:
        cls: the class of the values.
        check: function of a type and a value that raises what a value of another type is to raise.
    """
    take_apart = cls.Spec._to_components

    def to_components(self: Any, value: Any) -> Any:
        check(self, value)
        return take_apart(self, value)

    cls.Spec._to_components = to_components


def with_empty_value(make: Callable[[Any], Any]) -> Callable[[type[Any]], type[Any]]:
    """Decorates a type of values, so that tf.distribute can give one to a replica that gets no data.

    At the end of a dataset some replicas may get none. TensorFlow makes zeros of spec.shape for them,
    which is no value of a type of several tensors, unless the type has a method of a name that its
    sources ask for and its documentation does not have.

    Args:
        make: function of a type that returns a value of it, without rows as far as the type allows.
    """

    def decorate(cls: type[Any]) -> type[Any]:
        cls._create_empty_value = make
        return cls

    return decorate


def saveable_of_names(
    name: str, arrays: dict[str, Any], restore: Callable[[dict[str, tf.Tensor]], Any]
) -> Any:
    """What tf.compat.v1.train.Saver takes to save arrays under name/array and to restore them.

    Saver takes any Trackable as well, but calls all of them "", so that only one of them is saved. The
    class is in the documentation of Saver and has no public name.

    Args:
        name: what begins the names.
        arrays: tensors by name.
        restore: function of such a dict that returns an operation.
    """
    from tensorflow.python.training.saving import saveable_object

    class Saveable(saveable_object.SaveableObject):
        def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: Any) -> Any:
            del restored_shapes
            return restore(dict(zip(arrays, restored_tensors, strict=True)))

    specs = [saveable_object.SaveSpec(tensor, "", f"{name}/{array}") for array, tensor in arrays.items()]
    return Saveable(None, specs, f"{name}/rows")


def restored_epoch(model: keras.Model) -> int | None:
    """The epoch that keras.callbacks.BackupAndRestore has found in its files, or None.

    The callback leaves it on the model, for Keras' own fit, and has no public name for it.

    Raises:
        RuntimeError: the model has no such attribute; training would begin anew.
    """
    try:
        return model._initial_epoch
    except AttributeError as error:
        raise RuntimeError(
            f"{model.name}: keras.callbacks.BackupAndRestore cannot say to tf_dynemb.distribute.fit at "
            f"which epoch it goes on, since Keras {keras.__version__} keeps it elsewhere ({error})"
        ) from error
