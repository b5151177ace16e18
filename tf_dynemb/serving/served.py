"""What a feed is about: the tables of a model by name, and its dense weights by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dynemb.base.op_library import ops
from tf_dynemb.serving.feed import Generation
from tf_dynemb.shard.partitioner import default_partition_fn
from tf_dynemb.snapshot.tables import tables_by_name
from tf_dynemb.table.handle import TableHandle
from tf_dynemb.table.limits import Limits
from tf_dynemb.table.table_resource import TableResource
from tf_dynemb.table.variable import Variable


class LoadedTable(TableResource):
    """A table that tf.saved_model.load has made, of which there is a handle alone."""

    def __init__(self, handle: tf.Tensor, name: str, schema: str) -> None:
        self._handle_of_loaded = handle
        shards = int(tf.size(ops.dynemb_size(handle)[0]))
        super().__init__(
            schema,
            shards,
            default_partition_fn,
            init_rows=0,
            adopt_seed=True,
            checkpoint=False,
            limits=Limits(name),
            device="",
        )

    def _create_resource(self) -> tf.Tensor:
        return self._handle_of_loaded


class Served:
    """The tables and dense weights of a model that serves.

    Args:
        model: a Keras model or layer, a Variable, a dict of them by name, or what tf.saved_model.load
            gave.

    Raises:
        TypeError: something else.
        ValueError: it has no table, or several of one name; or it follows a feed by itself.
    """

    def __init__(self, model: Any) -> None:
        if isinstance(model, (Variable, Mapping, keras.Layer)):
            self.tables = {name: table.resource for name, table in tables_by_name(model).items()}
            self._variables = _by_name(_dense_variables(model))
            self._floating = _floating(_dense_variables(model))
        elif hasattr(model, "signatures"):
            if follower_thread(model) is not None:
                raise ValueError(
                    "loaded_or_model: got a model that follows a feed by itself, want one exported "
                    "without `follow`, or no Follower: each would apply what the other has applied"
                )
            objects = list(tf.train.TrackableView(model).descendants())
            self.tables = _tables_among(objects)
            self._variables = _by_name(o for o in objects if isinstance(o, tf.Variable))
            signatures = model.signatures.values()
            self._floating = _floating(v for one in signatures for v in one.variables)
        else:
            raise TypeError(
                f"loaded_or_model: got {type(model).__name__}, want what tf.saved_model.load gave, a "
                "Keras model or layer, a tf_dynemb.Variable, or a dict of them"
            )

    def table_ids(self) -> dict[int, str]:
        """The tables' names by their ids, which all handles of a table in this process share."""
        return {
            int(ops.dynemb_describe(part.resource_handle)[2]): name
            for name, table in self.tables.items()
            for part in table.parts
        }

    def check(self, generation: Generation) -> None:
        """Raises ValueError unless the model has the dense weights of a generation, and no others."""
        weights = generation.weights
        missing = sorted(self._floating - set(weights.names))
        if missing and not weights.tables_alone:
            raise ValueError(
                f"loaded_or_model: got a model with the dense weights {missing} that the feed does not "
                "have, which would grow old; want a feed of the whole model, or of tables alone: "
                "Publisher(model), Publisher(layer.table)"
            )
        for name, dtype, shape in zip(weights.names, weights.dtypes, weights.shapes, strict=True):
            if name not in self._variables:
                raise ValueError(
                    f"loaded_or_model: got a model without the dense weight {name!r} of the feed; want "
                    f"one of the same layers and names, it has {sorted(self._variables)}"
                )
            for variable in self._variables[name]:
                if variable.dtype.name != dtype or tuple(variable.shape) != shape:
                    raise ValueError(
                        f"loaded_or_model: got {variable.dtype.name} {tuple(variable.shape)} for the "
                        f"dense weight {name!r}, want {dtype} {shape}, as the feed has it"
                    )

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets dense weights by name."""
        for name, array in arrays.items():
            for variable in self._variables[name]:  # Keras' exports have a second copy of each
                variable.assign(array)


def follower_thread(loaded: Any) -> tf.saved_model.experimental.TrackableResource | None:
    """What makes a model follow a feed by itself, of one that tf.saved_model.load gave."""
    view = tf.train.TrackableView(loaded)
    # A table has it as its child, see TableResource.children_to_save.
    for follower in (view.children(one).get("follower") for one in view.descendants()):
        if isinstance(follower, tf.saved_model.experimental.TrackableResource):
            return follower
    return None


def dense_weights(model: Any) -> dict[str, tf.Variable]:
    """The dense weights of a Keras model or layer by name; of tables alone none.

    Raises:
        ValueError: two have one name; or the model is not built, so that some are not there yet.
    """
    if isinstance(model, keras.Layer) and not model.built:
        raise ValueError(
            f"model_or_tables: got {model.name}, which is not built, want one that was called once or "
            "begins with a keras.Input"
        )
    named = _by_name(_dense_variables(model))
    for name, variables in named.items():
        if len(variables) > 1:
            raise ValueError(
                f"model_or_tables: got {len(variables)} dense weights named {name!r}, by which "
                "followers find them; give the layers names of their own"
            )
    return {name: variables[0] for name, variables in named.items()}


def _dense_variables(model: Any) -> list[tf.Variable]:
    if not isinstance(model, keras.Layer):
        return []
    return [w.value for w in model.weights if not isinstance(w, TableHandle)]


def _by_name(variables: Iterable[tf.Variable]) -> dict[str, list[tf.Variable]]:
    named: dict[str, list[tf.Variable]] = {}
    for variable in variables:
        named.setdefault(variable.name.removesuffix(":0"), []).append(variable)
    return named


def _floating(variables: Iterable[tf.Variable]) -> set[str]:
    """Names of those that training changes: no counters, nor handle weights, which have no numbers."""
    floats = [v for v in variables if v.dtype.is_floating and v.shape.num_elements() != 0]
    return set(_by_name(floats))


def _tables_among(objects: Iterable[object]) -> dict[str, LoadedTable]:
    found: dict[str, LoadedTable] = {}
    ids: set[int] = set()  # of tables; one that was in parts has a resource for each
    for resource in objects:
        if not isinstance(resource, tf.saved_model.experimental.TrackableResource):
            continue
        handle = resource.resource_handle
        try:
            name, schema, identity = (part.numpy() for part in ops.dynemb_describe(handle))
        except tf.errors.InvalidArgumentError:
            continue  # a resource of another kind, such as a vocabulary
        if int(identity) in ids:
            continue
        ids.add(int(identity))
        name = name.decode()
        if not name:
            raise ValueError(
                "loaded_or_model: got a table in shards with a partitioner of its own, which a "
                "SavedModel does not give to Python; follow with the Keras model, or export a table of "
                "one shard"
            )
        if name in found:
            raise ValueError(
                f"loaded_or_model: got several tables named {name!r}, want names of their own; a "
                "SavedModel of an older version may have the parts of one, export that again"
            )
        found[name] = LoadedTable(handle, name, schema.decode())
    if not found:
        raise ValueError("loaded_or_model: got a SavedModel without tables, want one with some")
    return found
