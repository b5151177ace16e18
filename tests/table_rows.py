"""What tests of tables share: the rows of a table as Python sees them."""

import tensorflow as tf

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


def int64(keys) -> tf.Tensor:
    return tf.constant(keys, tf.int64)


def ids(*numbers) -> tf.Tensor:
    return int64(numbers)


def keys_of(table) -> set:
    return set(table.export()[0].numpy().tolist())


def write(table, *keys) -> None:
    """Rows of ones."""
    table.upsert(int64(keys), tf.ones([len(keys), table.dim]))


def metrics_of(table) -> dict:
    return {name: int(number) for name, number in table.metrics().items()}


def values_of(table) -> dict:
    """Key to the list of its values; fails if a key appears twice."""
    keys, values = (tensor.numpy().tolist() for tensor in table.export())
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, values, strict=True))


def rows_of(table) -> dict:
    """Key to the bytes of all there is in its row: value, slots, meta."""
    keys, *parts = (part.numpy() for part in table.resource.export_rows()[:4])
    assert len(set(keys.tolist())) == len(keys)
    return {int(key): tuple(part[i].tobytes() for part in parts) for i, key in enumerate(keys.tolist())}


def rows_as_json(table) -> dict:
    """rows_of, as JSON holds it."""
    return {str(key): [part.hex() for part in parts] for key, parts in rows_of(table).items()}


def with_whole_gradients(rows, ids) -> tf.Tensor:
    """A loss whose gradients any order of sums gets right: 2 - ids % 5 for each number of a row."""
    return tf.reduce_sum(2.0 * rows) - tf.reduce_sum(tf.cast(ids % 5, tf.float32)[:, None] * rows)


def schema_of(table) -> str:
    return table.resource.schema_now()
