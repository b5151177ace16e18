"""Bags and their gradients are those of torch.nn.EmbeddingBag, where PyTorch is installed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb.compat import torchrec
from tf_dynemb.lookup.lookup_bags import BagFeature, lookup_bags

torch = pytest.importorskip("torch")  # which the tests do not ask for: it is some gigabytes

ROWS, DIM, BAGS = 50, 5, 200
# Up to four ids of few draws: bags that are empty, and bags that repeat an id.
_NUMBERS = np.random.default_rng(3)
LENGTHS = _NUMBERS.integers(0, 5, BAGS)
IDS = _NUMBERS.integers(0, ROWS, LENGTHS.sum())
WEIGHTS = _NUMBERS.normal(size=len(IDS)).astype(np.float32)
MATRIX = _NUMBERS.normal(size=(ROWS, DIM)).astype(np.float32)
UPSTREAM = _NUMBERS.normal(size=(BAGS, DIM)).astype(np.float32)


def of_torch(combiner, weighted):
    """Values, the gradient to the matrix, and that to the weights of ids or None."""
    bag = torch.nn.EmbeddingBag(ROWS, DIM, mode=combiner)
    bag.weight.data = torch.tensor(MATRIX)
    offsets = torch.tensor(np.cumsum([0, *LENGTHS[:-1]]))
    weights = torch.tensor(WEIGHTS, requires_grad=True) if weighted else None
    values = bag(torch.tensor(IDS), offsets, weights)
    (values * torch.tensor(UPSTREAM)).sum().backward()
    of_weights = weights.grad.numpy() if weighted else None
    return values.detach().numpy(), bag.weight.grad.numpy(), of_weights


# EmbeddingBag takes weights of ids for sums alone.
@pytest.mark.parametrize(("combiner", "weighted"), [("sum", False), ("mean", False), ("sum", True)])
@pytest.mark.parametrize("shards", [1, 3])
def test_values_and_gradients(combiner, weighted, shards):
    table = tf_dynemb.Variable(dim=DIM, devices=["/CPU:0"] * shards, name="bags")
    table.upsert(np.arange(ROWS), MATRIX)
    weights = tf.Variable(WEIGHTS) if weighted else None

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            values = lookup_bags([table], [BagFeature(0, 0, combiner)], IDS, LENGTHS, weights=weights)
            loss = tf.reduce_sum(values * UPSTREAM)
        return values, tape.gradient(loss, [table.handle.value, weights] if weighted else table.handle)

    values, gradients = step()
    want, of_matrix, of_weights = of_torch(combiner, weighted)
    # Sums of up to four products, of up to some 30 for a row, added up in another order.
    np.testing.assert_allclose(values, want, rtol=1e-5, atol=1e-6)
    slices, *rest = gradients if weighted else [gradients]
    got = np.zeros_like(MATRIX)
    np.add.at(got, slices.indices.numpy(), slices.values.numpy())
    np.testing.assert_allclose(got, of_matrix, rtol=1e-5, atol=1e-5)
    if weighted:
        np.testing.assert_allclose(rest[0], of_weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_training(combiner):
    """Twenty steps of SGD of a collection and of EmbeddingBag."""
    bag = torch.nn.EmbeddingBag(ROWS, DIM, mode=combiner)
    bag.weight.data = torch.tensor(MATRIX)
    torch_optimizer = torch.optim.SGD(bag.parameters(), 0.1)
    collection = torchrec.EmbeddingBagCollection(
        [
            torchrec.EmbeddingBagConfig(
                name="t",
                embedding_dim=DIM,
                feature_names=["f"],
                pooling=torchrec.PoolingType[combiner.upper()],
            )
        ]
    )
    table = collection.embedding_bags["t"].weight
    table.upsert(np.arange(ROWS), MATRIX)
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build(collection.trainable_variables)
    ids = tf_dynemb.KeyedJaggedTensor(["f"], tf.constant(IDS), lengths=tf.constant(LENGTHS))
    offsets = torch.tensor(np.cumsum([0, *LENGTHS[:-1]]))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((collection(ids).values() - UPSTREAM) ** 2)
        variables = collection.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    for _ in range(20):
        loss = step()
        torch_optimizer.zero_grad()
        torch_loss = ((bag(torch.tensor(IDS), offsets) - torch.tensor(UPSTREAM)) ** 2).mean()
        torch_loss.backward()
        torch_optimizer.step()
        np.testing.assert_allclose(loss, torch_loss.item(), rtol=1e-5)
    rows = table.lookup(np.arange(ROWS)).numpy()
    np.testing.assert_allclose(rows, bag.weight.detach().numpy(), rtol=1e-5, atol=1e-5)
