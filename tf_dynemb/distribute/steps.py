"""What is done with a batch: one step of training, of evaluation, of prediction, in all replicas."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_dynemb.distribute.batches import Batches
from tf_dynemb.distribute.losses import check_model, compute_loss, is_overridden
from tf_dynemb.distribute.masks import whole_with_masks
from tf_dynemb.distribute.pipeline import Pipeline, in_replicas
from tf_dynemb.distribute.processes import Processes
from tf_dynemb.distribute.shares import Share
from tf_dynemb.optimizer.dynamic_embedding_optimizer import check_made_in_scope
from tf_dynemb.shard.exchange import AllToAllExchange

# Where a step is not the same in all replicas, or not one step.
_OTHER_STRATEGIES = (
    tf.distribute.ParameterServerStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
    tf.distribute.TPUStrategy,
)
_KNOWN: weakref.WeakKeyDictionary[keras.Model, Steps] = weakref.WeakKeyDictionary()


def steps_of(model: keras.Model) -> Steps:
    """The steps of a model, traced once until it is compiled anew."""
    steps = _KNOWN.get(model)
    if steps is None or not steps.is_of(model):
        steps = _KNOWN[model] = Steps(model)
    return steps


class Steps:
    """The steps of a model as it is compiled."""

    def __init__(self, model: keras.Model) -> None:
        self._model: Callable[[], keras.Model] = weakref.ref(model)
        self._compiled = _compiled(model)
        self.strategy = model.distribute_strategy
        if isinstance(self.strategy, _OTHER_STRATEGIES):
            raise ValueError(
                f"model: it was made in the scope of a {type(self.strategy).__name__}, want a "
                "MirroredStrategy, MultiWorkerMirroredStrategy or OneDeviceStrategy, or none; on "
                "parameter servers train in a loop of your own, as the page 'Parameter servers' does"
            )
        self.processes = Processes(self.strategy)
        self._functions: dict[object, Any] = {}
        self._pipelines: dict[tuple[bool, bool], Pipeline] = {}
        self._built: set[object] = set()

    def is_of(self, model: keras.Model) -> bool:
        """Whether the model has not been compiled since."""
        compiled = _compiled(model)
        return len(compiled) == len(self._compiled) and all(
            old is new for old, new in zip(self._compiled, compiled, strict=True)
        )

    def function(self, kind: str, data: Batches) -> Callable[..., Any]:
        """The function of a batch of such data that does one step.

        Args:
            kind: "train" and "test" return logs, "predict" the outputs.
            data: Batches.
        """
        model = self._model()
        self.build(kind, data)
        key = (kind, data.is_global, model.run_eagerly)
        if key not in self._functions:
            step = {"train": self._train, "test": self._test, "predict": self._predict}[kind]
            in_share = functools.partial(self._in_share, step, data.is_global)
            self._functions[key] = in_replicas(self.strategy, in_share)
            if not model.run_eagerly:
                self._functions[key] = tf.function(self._functions[key], reduce_retracing=True)
        function = self._functions[key]
        if not model.run_eagerly:
            # Traced for batches of any number of examples, so that the last one is not traced anew.
            function.get_concrete_function(data.element_spec)
        return function

    def training(
        self, data: Batches, pipeline: bool, stale_rows: bool
    ) -> Callable[[Iterator[Any]], Iterator[Callable[[], Any]]]:
        """What gives for each of some batches a function that does its step of training, and logs.

        Args:
            data: of which the batches are, the same number in all processes.
            pipeline: whether the ids of the next batch travel while a step is computed.
            stale_rows: whether its rows do.
        """
        is_plain = AllToAllExchange.of(self.strategy) is None or self._model().run_eagerly
        if is_plain or not pipeline:
            train = self.function("train", data)
            return lambda batches: (functools.partial(train, batch) for batch in batches)
        self.build("train", data)
        key = (data.is_global, stale_rows)
        if key not in self._pipelines:
            step = functools.partial(self._in_share, self._train, data.is_global)
            self._pipelines[key] = Pipeline(step, self.strategy, stale_rows)
        return functools.partial(self._pipelines[key].steps, spec=data.element_spec)

    def reset_metrics(self) -> None:
        """Sets metrics to their start in each replica."""
        # In a replica, as the updates: elsewhere numbers would be divided among the replicas.
        if self.strategy.num_replicas_in_sync == 1:
            self.strategy.run(self._model().reset_metrics)
            return
        if "reset" not in self._functions:

            def reset() -> None:
                self.strategy.run(self._model().reset_metrics)

            self._functions["reset"] = tf.function(tf.autograph.experimental.do_not_convert(reset))
        self._functions["reset"]()

    @staticmethod
    def _in_share(step: Callable[[Share], Any], is_global: bool, batch: Any) -> Any:
        return step(Share(batch, is_global))

    def _train(self, share: Share) -> Any:
        model = self._model()
        if is_overridden(model, "train_step"):
            return model.train_step(share.part)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(share.part)
        with tf.GradientTape() as tape:
            y_pred = _call(model, x, training=True)
            loss, update_metrics = self._loss(share, x, y, y_pred, sample_weight, training=True)
            loss = model.optimizer.scale_loss(loss)
        variables = model.trainable_weights
        if variables:
            model.optimizer.apply(tape.gradient(loss, variables), variables)
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return update_metrics()

    def _test(self, share: Share) -> Any:
        model = self._model()
        if is_overridden(model, "test_step"):
            return model.test_step(share.part)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(share.part)
        y_pred = _call(model, x, training=False)
        _, update_metrics = self._loss(share, x, y, y_pred, sample_weight, training=False)
        return update_metrics()

    def _predict(self, share: Share) -> Any:
        return share.whole(self._model().predict_step(share.part))

    def _loss(
        self, share: Share, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool
    ) -> tuple[tf.Tensor, Callable[[], Any]]:
        """What the replica is to minimize, and a function that updates metrics and returns logs."""
        model = self._model()
        if share.replicas > 1:
            y_pred = whole_with_masks(share, y_pred)
            if share.batch is None:
                if is_overridden(model, "compute_metrics"):
                    raise ValueError(
                        f"compute_metrics: {type(model).__name__} has its own, which takes the examples "
                        "of all replicas, but each process has data of its own; give compile() the "
                        "metrics, or fit a tf.data.Dataset of global batches"
                    )
                x, (y, sample_weight) = None, share.whole((y, sample_weight))
            else:
                x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(share.batch)
        loss, own = compute_loss(model, x, y, y_pred, sample_weight, training, share.replicas)

        def update_metrics() -> Any:
            if not share.is_first:  # all have the same numbers
                return {}
            tracker = next(metric for metric in model.metrics if metric.name == "loss")
            tracker.update_state(loss, sample_weight=share.size)
            return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

        return own, update_metrics

    def build(self, kind: str, data: Batches) -> None:
        """Makes the variables of model, metrics and optimizer where the strategy can distribute them."""
        model = self._model()
        if kind != "predict":
            check_model(model, self.strategy.num_replicas_in_sync)
        with self.strategy.scope():
            if not tf.distribute.has_strategy():
                return  # they are made when a step is traced, as Keras does
            if kind not in self._built:
                # Keras makes missing variables when a StatelessScope ends, outside of the graph.
                with keras.StatelessScope():
                    self._trace(data, lambda x, y, y_pred, sample_weight: None)
                if kind != "predict":
                    self._build_metrics(data)
                self._built.add(kind)
            if kind == "train" and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
        if kind == "train" and self.strategy.num_replicas_in_sync > 1:
            check_made_in_scope(model.optimizer)

    def _build_metrics(self, data: Batches) -> None:
        model = self._model()

        def compute(x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
            compute_loss(model, x, y, y_pred, sample_weight, training=False)
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

        # Regularizers ask the scope for their variables.
        known = [(v, v.value) for v in model.trainable_weights if v.regularizer is not None]
        with keras.StatelessScope(known):
            self._trace(data, compute)

    def _trace(self, data: Batches, function: Any) -> None:
        """Calls the model and a function of (x, y, y_pred, sample_weight) in a graph that never runs."""

        def trace(batch: Any) -> None:
            def local(value: Any) -> Any:
                return self.strategy.experimental_local_results(value)[0]

            batch = batch if data.is_global else tf.nest.map_structure(local, batch)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            function(x, y, _call(self._model(), x, training=False), sample_weight)

        traced = tf.function(tf.autograph.experimental.do_not_convert(trace))
        traced.get_concrete_function(data.element_spec)


def _compiled(model: keras.Model) -> list[Any]:
    """What a call of compile() makes anew."""
    return [model.optimizer, *model.metrics[:1]] if model.compiled else []


def _call(model: keras.Model, x: Any, training: bool) -> Any:
    if "training" in inspect.signature(model.call).parameters:
        return model(x, training=training)
    return model(x)
