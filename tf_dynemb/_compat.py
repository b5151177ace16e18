"""The only place that touches what TensorFlow and Keras do not promise to keep, each with its reason."""

from __future__ import annotations

import tensorflow as tf


def register_read_only(op_type: str) -> None:
    """Tells tf.function that an op only reads its resources.

    Automatic control dependencies take an unknown op on a resource for a writer and run two lookups of
    one table one after the other. There is no public way to say otherwise; without it lookups are
    slower, not wrong, so a TensorFlow that lacks it is no error.
    """
    try:
        from tensorflow.python.framework import auto_control_deps_utils as utils

        utils.register_read_only_resource_op(op_type)
    except (ImportError, AttributeError):
        pass


def crosses_loop() -> bool:
    """Whether a gradient that is being built must be summed over the turns of a tf.while_loop.

    TensorFlow has no public name for the graph of a loop body's gradient. A whole training step inside
    a loop, as with fit(steps_per_execution=4), is not meant: its gradient is built inside the body.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if type(graph).__name__ == "_WhileBodyGradFuncGraph":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def resource_of(variable) -> tf.Tensor:
    """The resource of a variable, which tapes and graphs are told is read.

    What reads a variable publicly adds an operation for each; an op of ours takes the resources of many.
    """
    from tensorflow.python.ops import resource_variable_ops

    resource_variable_ops.variable_accessed(variable)
    if hasattr(variable, "values") and tf.distribute.in_cross_replica_context():
        variable = variable.values[0]  # nothing trains here: a model is being built, or predicts
    return variable.handle


def timeout_of(strategy) -> float | None:
    """The timeout_seconds of the CommunicationOptions that a strategy was made with.

    The strategy has no public getter; where it keeps them elsewhere, that is as if none were given.
    """
    options = getattr(strategy.extended, "_communication_options", None)
    return getattr(options, "timeout_seconds", None)


def outermost_layer():
    """The Keras layer or model whose call is going on, the outermost if they are nested; or None.

    Keras keeps it beside the call and tells only layers, by arguments, what else is in it.
    """
    try:
        from keras.src.backend.common import global_state

        return global_state.get_global_attribute("current_call_ctx").entry_layer
    except (ImportError, AttributeError):
        return None


def built_on(optimizer) -> list:
    """The variables that an optimizer was built on. Keras keeps them and has no public getter."""
    return optimizer._trainable_variables


def excluded_from_weight_decay(optimizer, variable) -> bool:
    """What optimizer.exclude_from_weight_decay was told. Keras has the setter but no public getter."""
    use = getattr(optimizer, "_use_weight_decay", None)
    return use is not None and not use(variable)


def writes_to_memory(store) -> bool:
    """Whether the store that Keras passes to save_own_variables is held in memory until the end.

    In a `.keras` archive it is, in `.weights.h5` it is not. The attribute is that of Keras' H5IOStore;
    where it is missing rows are written to the store, which is right and costs memory only.
    """
    return getattr(store, "archive", None) is not None


def register_keras_structure(cls, flatten, unflatten) -> None:
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
    except ImportError:
        return
    optree.register_pytree_node(cls, flatten, unflatten, namespace="keras")


def check_values_of_type(cls, check) -> None:
    """Has the type of a tf.experimental.ExtensionType check a value before its tensors are taken.

    tf.function casts what it is given to its input_signature, tensor by tensor: it never compares the
    fields that are no tensors. The methods of tf.TypeSpec that it calls for this are for subclasses to
    write, but an ExtensionType may not name them in its Spec.

    Args:
        cls: the class of the values.
        check: function of a type and a value that raises what a value of another type is to raise.
    """
    take_apart = cls.Spec._to_components

    def to_components(self, value):
        check(self, value)
        return take_apart(self, value)

    cls.Spec._to_components = to_components


def with_empty_value(make):
    """Decorates a type of values, so that tf.distribute can give one to a replica that gets no data.

    At the end of a dataset some replicas may get none. TensorFlow makes zeros of spec.shape for them,
    which is no value of a type of several tensors, unless the type has a method of a name that its
    sources ask for and its documentation does not have.

    Args:
        make: function of a type that returns a value of it, without rows as far as the type allows.
    """

    def decorate(cls):
        cls._create_empty_value = make
        return cls

    return decorate


def saveable_of_names(name: str, arrays: dict, restore):
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
        def restore(self, restored_tensors, restored_shapes):
            del restored_shapes
            return restore(dict(zip(arrays, restored_tensors, strict=True)))

    specs = [saveable_object.SaveSpec(tensor, "", f"{name}/{array}") for array, tensor in arrays.items()]
    return Saveable(None, specs, f"{name}/rows")


def restored_epoch(model) -> int | None:
    """The epoch that keras.callbacks.BackupAndRestore has found in its files, or None.

    The callback leaves it on the model, for Keras' own fit, and has no public name for it.
    """
    return getattr(model, "_initial_epoch", None)
