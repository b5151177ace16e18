"""One shard of a Variable as TensorFlow holds it."""

from __future__ import annotations

import uuid

import tensorflow as tf

from tf_dynemb.base.library import ops


class ShardTable(tf.saved_model.experimental.TrackableResource):
    """A table resource. It carries no rows into checkpoints; the Variable does, for all shards at once."""

    def __init__(self, schema: str, init_rows: int, device: str):
        super().__init__(device=device)
        self._schema = schema
        self._init_rows = init_rows
        # For graphs that a session runs; unique, so that no two models ever share rows by name.
        self._graph_name = f"tf_dynemb_{uuid.uuid4().hex}"
        with tf.init_scope():
            self.resource_handle  # noqa: B018  makes the table now, outside of any function

    def _create_resource(self):
        # Eagerly, and in the functions of a loaded SavedModel, each execution makes a table of its own
        # that lives as long as its handle. A session's graph executes the op in every run and needs
        # the same table each time.
        in_session = not tf.compat.v1.executing_eagerly_outside_functions()
        return ops.dynemb_table(
            schema=self._schema,
            init_rows=self._init_rows,
            shared_name=self._graph_name if in_session else "",
        )
