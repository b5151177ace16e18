"""Collections whose tables are on a GPU train as those in host memory; what their `device` may be."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from collection_scenes import KINDS, MEAN, collection_of, config_of, jagged, names_of, rows_of, tables_of

import tf_dynemb
from tf_dynemb import _build_info

pytestmark = pytest.mark.skipif(
    not _build_info.CUDA_VERSION,
    reason="the op library was built without CUDA: test_without_cuda.py",
)
GPUS = tf.config.list_logical_devices("GPU")


def configs(kind):
    """Tables of two optimizers, one with rows that ids share, one frozen."""
    adam = keras.optimizers.Adam(0.1)
    pooled = {"pooling": MEAN} if kind == "bags" else {}
    of = functools.partial(
        config_of, kind, dim=3, init_fn=keras.initializers.RandomUniform(-1, 1, seed=3)
    )
    return [
        of("a", ["f", "g"], optimizer="ADAGRAD", lr=0.5, **pooled),
        of("b", ["f"], num_embeddings=4, hash_size=3, optimizer=adam),
        of("c", ["g"], enable_grad=False),
    ]


def batches():
    numbers = np.random.default_rng(5)
    for _ in range(5):
        lengths = numbers.integers(0, 4, [2, 4])
        yield jagged(
            **{
                name: [numbers.integers(-9, 9, [length]).tolist() for length in of_feature]
                for name, of_feature in zip("fg", lengths, strict=True)
            }
        )


def exported(collection):
    for table in [*tables_of(collection).values(), *collection.shared_tables.values()]:
        keys, values = table.export()
        yield dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_function", [False, True])
def test_it_trains_as_in_host_memory(kind, in_function):
    results = []
    for device in ("cuda:0", None):
        collection = collection_of(kind, *configs(kind), device=device)
        optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(collection.trainable_variables)

        def step(batch, collection=collection, optimizer=optimizer):
            with tf.GradientTape() as tape:
                output = collection(batch)
                found = [output[name] for name in names_of(output)]
                found = found if kind == "bags" else [each.values() for each in found]
                loss = tf.add_n([tf.reduce_sum(tf.square(each - 1)) for each in found])
            handles = collection.trainable_variables
            optimizer.apply(tape.gradient(loss, handles), handles)
            return output

        step = tf.function(step, reduce_retracing=True) if in_function else step
        for batch in batches():
            output = step(batch)
        results.append(
            ({name: rows_of(output, name) for name in names_of(output)}, exported(collection))
        )
        where = {
            tf.DeviceSpec.from_string(table.host).device_type for table in tables_of(collection).values()
        }
        assert where == ({"GPU"} if device else {"CPU"})
    (got, got_rows), (want, want_rows) = results
    assert got.keys() == want.keys()
    for name, vectors in want.items():
        np.testing.assert_allclose(got[name], vectors, rtol=1e-5, atol=1e-6)  # sums in another order
    for of_got, of_want in zip(got_rows, want_rows, strict=True):
        assert of_got.keys() == of_want.keys()
        for key, row in of_want.items():
            np.testing.assert_allclose(of_got[key], row, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "device", ["cuda", "cuda:0", "/GPU:0", "GPU:0", tf.DeviceSpec(device_type="GPU")]
)
def test_names_of_a_gpu(device):
    collection = collection_of("bags", config_of("bags"), device=device)
    assert tables_of(collection)["t"].host.endswith("device:GPU:0")
    # What is made from a config is in host memory, as what is loaded.
    again = type(collection).from_config(collection.get_config())
    assert tables_of(again)["t"].host.endswith("device:CPU:0")


@pytest.mark.parametrize(
    "device, table_size, said",
    [
        ("cuda:9", 1, f"device: got 'cuda:9', want .*up to '/GPU:{len(GPUS) - 1}'"),
        ("mps", 1, "device: got 'mps', want None, or one that exists, such as 'cpu', 'cuda:0'"),
        (0, 1, "device: got 0, want"),
        (["/GPU:0"], 1, r"device: got \['/GPU:0'\], want"),
        ("cuda", 3, "EmbeddingBagConfig 't': table_size: got 3, want 1 on the device '/GPU:0'"),
    ],
)
def test_devices_that_cannot_be(device, table_size, said):
    with pytest.raises(ValueError, match=said):
        collection_of("bags", config_of("bags", table_size=table_size), device=device)
