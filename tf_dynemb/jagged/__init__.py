"""Features of unequal numbers of ids, and the vectors that became of them: TorchRec's three values.

They go where TensorFlow's own values go:

- tf.function, tf.cond, tf.while_loop, tf.map_fn, SavedModels. With an input_signature of
  KeyedJaggedTensor.Spec a function takes batches of all sizes, and refuses other keys.
- tf.data: a dataset of batches may be unbatched, shuffled, batched and rebatched. Making one value of a
  batch of dicts in map(), as below, costs the least: nothing is taken apart.
- Keras: a subclassed model or layer takes one as an input, alone or in a dict; fit, evaluate and predict
  take a dataset of them. In a functional model inputs are tensors, of which a layer makes the value;
  other layers take it, and from a KeyedTensor one gets the tensors for Keras' own layers. Not taken is a
  value as x of fit: make it Dataset.from_tensor_slices((value, labels)).batch(n). predict joins a
  KeyedTensor and a JaggedTensor of all batches; of a KeyedJaggedTensor it cannot, and says so.
- Keras' files: a `.keras` has functional models as they are, if their outputs are tensors (to_dict() of
  a KeyedTensor has them); one that returns a value is refused, for Keras could not load it. A subclassed
  model has to build its layers in build(input_shape), where the shape of a value is a dict, for Keras
  loads it without a batch. As SavedModel export a functional model; a subclassed one Keras traces with
  floats for all inputs, so give a tf.Module its layers, and a tf.function with a Spec that calls the
  model.
- tf.distribute: datasets are distributed, and replicas may get no examples. Custom loops are fine;
  Keras' fit over several replicas averages a first batch to learn its shapes, which it can do with
  dense tensors alone, not with a tf.RaggedTensor either.

Example: features of a dataset, in a model.

>>> import keras, tensorflow as tf, tf_dynemb
>>> features = {"tags": tf.ragged.constant([[1, 2], [], [3]]), "user": tf.constant([7, 8, 9])}
>>> labels = tf.constant([[1.0], [0.0], [1.0]])
>>> dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(2)
>>> dataset = dataset.map(
...     lambda features, labels: (tf_dynemb.KeyedJaggedTensor.from_tensors(features), labels)
... )
>>> class Counts(keras.Model):
...     def __init__(self):
...         super().__init__()
...         self.dense = keras.layers.Dense(1)
...
...     def call(self, kjt):
...         counts = tf.reshape(kjt.lengths(), [len(kjt.keys()), -1])
...         return self.dense(tf.transpose(counts))
>>> model = Counts()
>>> model.compile("sgd", "mse")
>>> len(model.fit(dataset, verbose=0).history["loss"])
1
"""

from tf_dynemb.base.public_names import shows
from tf_dynemb.jagged.jagged_tensor import JaggedTensor
from tf_dynemb.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from tf_dynemb.jagged.keyed_tensor import KeyedTensor

__all__ = [
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
]
__dir__ = shows(__all__)
