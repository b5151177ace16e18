"""What hints say of arguments that TensorFlow and Keras have no short name for."""

from __future__ import annotations

from typing import TypeAlias

import keras
import tensorflow as tf

TensorLike: TypeAlias = tf.types.experimental.TensorLike  # a dense tensor, or what becomes one
AnyTensor: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.SparseTensor
Ids: TypeAlias = TensorLike | tf.RaggedTensor | tf.SparseTensor
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
LearningRate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule
