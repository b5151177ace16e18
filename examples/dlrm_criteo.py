r"""Click prediction on Criteo's logs with DLRM, or DCN, and embeddings of ids that nobody listed.

The 26 categorical features go through one EmbeddingBagCollection without vocabularies: an id of 8 hex
digits is its own key, and gets a row when it is first trained. Beside it there is nothing special: a
Keras model, `fit`, a progress bar, AUC on examples that are held out, checkpoints, TensorBoard.

    P=.venv/bin/python                                        # after `make build`
    $P examples/dlrm_criteo.py --synthetic 1000000            # made-up lines of the same shape
    $P examples/dlrm_criteo.py criteo_sample.csv --batch 32 --epochs 5
    $P examples/dlrm_criteo.py day_*.gz --interaction cross --optimizer adam --steps 100000 \
        --checkpoints run1 --save-every 5000 --logdir run1/log
    $P examples/dlrm_criteo.py day_*.gz ... --checkpoints run1 --resume
    $P examples/dlrm_criteo.py --synthetic 1000000 --workers 2

The last one is trained by two processes, each with half of the rows and of each batch; the result is
that of one. So it is wherever TF_CONFIG says that there are several, as on many machines: see
docs/distribution.md, and dlrm_criteo_ray.py. The data is criteo_data.py's business.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import time
import warnings

os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "0")

import criteo_data
import keras
import keras_rs
import numpy as np
import tensorflow as tf

import tf_dynemb
from tf_dynemb.compat import torchrec

OPTIMIZERS = {"adagrad": (keras.optimizers.Adagrad, 0.05), "adam": (keras.optimizers.Adam, 0.001)}


class ClickModel(keras.Model):
    """Log-odds (n, 1) of a click, of batches of criteo_data: DLRM or DCN-V2.

    DLRM (Naumov et al., 2019, https://arxiv.org/abs/1906.00091): the bottom MLP makes a vector of the
    numbers; the top MLP sees it and the dot products of every two vectors, the ids' and this one.
    DCN-V2, stacked (Wang et al., 2020, https://arxiv.org/abs/2008.13535): all vectors side by side are
    crossed three times on their way to the top MLP.

    Args:
        dim: numbers per id.
        interaction: "dot" or "cross".
        shards: of each table.
        device: where tables are, such as "/GPU:0"; None: in host memory.
        bottom: widths of the bottom MLP, to which a layer of `dim` is added.
        top: widths of the top MLP, to which a layer of 1 is added.
    """

    def __init__(
        self, dim=16, interaction="dot", shards=1, device=None, bottom=(512, 256, 64), top=(512, 256)
    ):
        super().__init__(name="dlrm" if interaction == "dot" else "dcn")
        self.bags = torchrec.EmbeddingBagCollection(
            [
                torchrec.EmbeddingBagConfig(
                    name=name,
                    feature_names=[name],
                    embedding_dim=dim,
                    num_embeddings=None,
                    table_size=shards,
                )
                for name in criteo_data.IDS
            ],
            device=device,
        )
        self.bottom = _mlp([*bottom, dim], last="relu")
        self.dot = keras_rs.layers.DotInteraction() if interaction == "dot" else None
        self.crosses = [keras_rs.layers.FeatureCross() for _ in range(0 if self.dot else 3)]
        self.top = _mlp([*top, 1], last=None)

    def call(self, batch):
        numbers = self.bottom(batch["numbers"])
        vectors = self.bags(jagged(batch["ids"]))
        if self.dot:
            pairs = self.dot([numbers, *vectors.to_dict().values()])
            every = len(criteo_data.IDS) + 1
            pairs = tf.ensure_shape(pairs, [None, every * (every - 1) // 2])  # unknown within a graph
            return self.top(tf.concat([numbers, pairs], axis=1))
        crossed = everything = tf.concat([numbers, vectors.values()], axis=1)
        for cross in self.crosses:
            crossed = cross(everything, crossed)
        return self.top(crossed)

    def tables(self) -> dict[str, tf_dynemb.Variable]:
        """The table of each feature."""
        return {name: self.bags.embedding_bags[name].weight for name in criteo_data.IDS}


def _mlp(widths: list[int], last: str | None) -> keras.Sequential:
    activations = ["relu"] * (len(widths) - 1) + [last]
    return keras.Sequential(
        [keras.layers.Dense(*layer) for layer in zip(widths, activations, strict=True)]
    )


def jagged(ids: tf.Tensor) -> tf_dynemb.KeyedJaggedTensor:
    """Bags of ids (n, 26): one id each, or none where it is missing."""
    ids = tf.transpose(ids)  # a KeyedJaggedTensor has all examples of the first feature first
    present = tf.not_equal(ids, criteo_data.MISSING)
    return tf_dynemb.KeyedJaggedTensor(
        keys=criteo_data.IDS,
        values=tf.boolean_mask(ids, present),
        lengths=tf.reshape(tf.cast(present, tf.int32), [-1]),
    )


def make_model(optimizer: str = "adagrad", lr: float | None = None, **arguments) -> ClickModel:
    """A ClickModel that is built and compiled, in the scope of a strategy or none; it has no rows yet.

    Args:
        optimizer: a key of OPTIMIZERS.
        lr: learning rate; None: the usual one of the optimizer.
        **arguments: of ClickModel.
    """
    model = ClickModel(**arguments)
    nobody = tf.fill([1, len(criteo_data.IDS)], tf.constant(criteo_data.MISSING, tf.int64))
    model({"numbers": tf.zeros([1, len(criteo_data.NUMBERS)]), "ids": nobody})
    kind, usual_lr = OPTIMIZERS[optimizer]
    model.compile(
        tf_dynemb.DynamicEmbeddingOptimizer(kind(lr or usual_lr)),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),  # the log loss
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    )
    model.optimizer.build(model.trainable_variables)
    return model


class Progress(keras.callbacks.Callback):
    """Where a training is, how fast it goes, and its checkpoints.

    Args:
        model: what is trained, built and compiled.
        batch: examples per step.
        folder: for checkpoints; None makes none.
        save_every: steps between checkpoints; there is one after each epoch as well. Of several
            processes all save, for each has rows; what is not the chief's is thrown away.
        last_step: where training ends, maybe within an epoch; None: after the last epoch.

    Attributes:
        step: steps done, in all.
        epoch: the epoch to go on with.
        skip: steps of it that are done.
    """

    def __init__(self, model, batch, folder=None, save_every=None, last_step=None):
        super().__init__()
        self.batch, self.save_every, self.last_step = batch, save_every, last_step
        self.step = self.epoch = self.skip = 0
        self._iterations = model.optimizer.iterations
        self._position = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
        self._checkpoint = tf.train.Checkpoint(
            model=model, optimizer=model.optimizer, position=self._position
        )
        self.manager = folder and tf.train.CheckpointManager(self._checkpoint, folder, max_to_keep=2)
        self._ends, self._timed_steps, self._timed_seconds = [], 0, 0.0

    def resume(self) -> None:
        """Takes rows, weights, the optimizer's state and the position from the latest checkpoint."""
        self._checkpoint.restore(self.manager.latest_checkpoint).assert_consumed()
        self.epoch, self.skip = self._position.numpy().tolist()
        self.step = int(self._iterations.numpy())

    def speed(self) -> str:
        """Without the first step of an epoch, which may trace, and the last, which may be smaller."""
        if not self._timed_seconds:
            return "too few to tell a speed"
        return f"{self._timed_steps * self.batch / self._timed_seconds:,.0f} examples per second"

    def on_epoch_begin(self, epoch, logs=None):
        self._ends = []

    def on_train_batch_end(self, batch, logs=None):
        self._ends.append(time.monotonic())
        self.step += 1
        self.skip += 1
        if self.save_every and self.step % self.save_every == 0:
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        if len(self._ends) > 2:
            self._timed_steps += len(self._ends) - 2
            self._timed_seconds += self._ends[-2] - self._ends[0]
        # Keras, too, counts the call that finds that there are no more batches.
        self._iterations.assign(self.step)
        if self.step != self.last_step:  # else the epoch may have been cut short
            self.epoch, self.skip = epoch + 1, 0
        self._save()
        self.model.stop_training = True  # the next epoch has a dataset of its own

    def _save(self):
        if not self.manager:
            return
        self._position.assign([self.epoch, self.skip])
        if is_chief():
            self.manager.save()
        else:
            with tempfile.TemporaryDirectory() as folder:
                self._checkpoint.save(os.path.join(folder, "ckpt"))


def train(model, source, progress: Progress, args: argparse.Namespace) -> dict[str, float]:
    """Trains on from `progress`. Returns log loss ("loss") and "auc" of what is held out, if any is."""
    callbacks = [progress]
    if args.logdir:
        callbacks.append(keras.callbacks.TensorBoard(args.logdir, write_graph=False))
    held_out = criteo_data.batches(source, args.batch, held_out=True).take(args.valid_steps)
    verbose = 2 if args.quiet else "auto"
    fit, evaluate = keras.Model.fit, keras.Model.evaluate
    if tf.distribute.has_strategy():  # Keras' own cannot train in several processes
        fit, evaluate = tf_dynemb.distribute.fit, tf_dynemb.distribute.evaluate
    while progress.epoch < args.epochs and (args.steps is None or progress.step < args.steps):
        # The order of an epoch depends on its number, so that it can be resumed anywhere.
        data = criteo_data.batches(source, args.batch, shuffle=args.seed + progress.epoch)
        data = data.skip(progress.skip).take(-1 if args.steps is None else args.steps - progress.step)
        fit(
            model,
            data,
            initial_epoch=progress.epoch,
            epochs=args.epochs,
            shuffle=False,  # it is already
            validation_data=held_out,
            callbacks=callbacks,
            verbose=verbose,
        )
    return evaluate(model, held_out, verbose=0, return_dict=True)


def report(model: ClickModel, progress: Progress, scores: dict[str, float]) -> str:
    """What came of it, in three lines. All processes must call it."""
    tables = model.tables()
    sizes = [[int(table.size()), int(table.memory_bytes())] for table in tables.values()]
    sizes = over_processes(sizes)
    rows = dict(zip(tables, sizes[:, 0].tolist(), strict=True))
    mib = int(sizes[:, 1].sum()) / 2**20
    most = sorted(rows, key=rows.get, reverse=True)[:3]
    held_out = f"nothing of fewer than {criteo_data.HOLDOUT} lines"
    if scores:
        held_out = f"AUC {scores['auc']:.4f}, log loss {scores['loss']:.4f}"
    return (
        f"held out: {held_out}\n"
        f"trained {progress.step:,} steps, {progress.speed()}\n"
        f"{sum(rows.values()):,} rows in {len(rows)} tables, {mib:,.1f} MiB; most of "
        + ", ".join(f"{name} {rows[name]:,}" for name in most)
    )


# --- several processes -------------------------------------------------------------------------------


def make_strategy() -> tf.distribute.Strategy:
    """That of the processes of TF_CONFIG; to be called before TensorFlow does anything."""
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.get_strategy()


def is_chief() -> bool:
    """Whether this process, in the strategy's scope, is the one that prints and whose files stay."""
    if not tf.distribute.has_strategy():
        return True
    me = tf.distribute.get_strategy().cluster_resolver
    return me.task_id == 0 and (me.task_type == "chief" or "chief" not in me.cluster_spec().jobs)


def over_processes(numbers) -> np.ndarray:
    """Sums of numbers over the processes of the strategy in whose scope we are."""
    strategy = tf.distribute.get_strategy()
    numbers = tf.function(strategy.run)(lambda: tf.constant(numbers, tf.int64))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None).numpy()


# --- the command line --------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    def natural(text: str) -> int:
        number = int(text)
        if number < 1:
            raise argparse.ArgumentTypeError(f"got {text}, want a number from 1 on")
        return number

    def widths(text: str) -> list[int]:
        return [natural(number) for number in text.split(",") if number]

    parser = argparse.ArgumentParser(
        usage="%(prog)s (FILE... | --synthetic LINES) [options]",
        description="Click prediction on Criteo's logs with DLRM or DCN, without vocabularies.",
    )
    held_out = f"Every {criteo_data.HOLDOUT}th line is held out from training, and evaluated on."
    add = parser.add_argument_group("data", held_out).add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help="Criteo's train.txt or day_*, or DeepCTR's .csv; .gz or not",
    )
    add("--synthetic", type=natural, metavar="LINES", help="make up so many lines instead")
    add("--batch", type=natural, metavar="N", default=2048, help="examples per step (%(default)s)")
    add(
        "--valid-steps",
        type=natural,
        metavar="N",
        default=100,
        help="batches to evaluate on, at most (%(default)s)",
    )
    add(
        "--seed",
        type=int,
        metavar="N",
        default=0,
        help="of weights, order and made-up lines (%(default)s)",
    )
    add = parser.add_argument_group("model").add_argument
    add(
        "--interaction",
        choices=["dot", "cross"],
        default="dot",
        help="dot: DLRM; cross: DCN-V2 (%(default)s)",
    )
    add("--dim", type=natural, metavar="N", default=16, help="numbers per id (%(default)s)")
    add(
        "--bottom",
        type=widths,
        metavar="N,N",
        default="512,256,64",
        help="widths of the bottom MLP (%(default)s)",
    )
    add(
        "--top",
        type=widths,
        metavar="N,N",
        default="512,256",
        help="widths of the top MLP (%(default)s)",
    )
    add("--shards", type=natural, metavar="N", default=1, help="of each table (%(default)s)")
    add("--device", metavar="NAME", help="where tables are, such as /GPU:0 (host memory)")
    add = parser.add_argument_group("training").add_argument
    add(
        "--optimizer",
        choices=list(OPTIMIZERS),
        default="adagrad",
        help="of rows and dense weights (%(default)s)",
    )
    add("--lr", type=float, help="learning rate (adagrad: 0.05, adam: 0.001)")
    add(
        "--epochs",
        type=natural,
        metavar="N",
        default=1,
        help="times that all lines are trained on (%(default)s)",
    )
    add("--steps", type=natural, metavar="N", help="end after so many steps in all, wherever that is")
    add("--checkpoints", metavar="FOLDER", help="save there after each epoch")
    add("--save-every", type=natural, metavar="N", help="and after so many steps")
    add("--resume", action="store_true", help="go on from the latest of --checkpoints")
    add("--logdir", metavar="FOLDER", help="write there what TensorBoard shows")
    add("--quiet", action="store_true", help="a line per epoch instead of a progress bar")
    add("--workers", type=natural, metavar="N", help="so many processes of this machine train it")
    return parser


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """What a command line says; exits if that makes no sense."""
    flags = parser()
    args = flags.parse_args(argv)
    if bool(args.files) == (args.synthetic is not None):
        flags.error("give files, or --synthetic LINES")
    return args


def check_folders(args: argparse.Namespace) -> None:
    """That runs do not mix in a folder of checkpoints.

    Raises:
        ValueError: if there is nothing to resume; if there is something, which is not resumed; if a
            resumed run is not the same as at its beginning.
    """
    if args.logdir and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("--logdir needs TensorBoard: pip install tensorboard")
    if not args.checkpoints:
        if args.resume or args.save_every:
            raise ValueError("--resume and --save-every need --checkpoints FOLDER")
        return
    free = "steps epochs valid_steps shards device checkpoints save_every resume logdir quiet workers"
    settings = {name: value for name, value in vars(args).items() if name not in free.split()}
    file = pathlib.Path(args.checkpoints, "settings.json")
    found = tf.train.latest_checkpoint(args.checkpoints)
    if args.resume and not found:
        raise ValueError(f"--resume: there is no checkpoint in {args.checkpoints}")
    if found and not args.resume:
        raise ValueError(f"checkpoints are in {args.checkpoints}: --resume, or take another folder")
    if args.resume:
        before = json.loads(file.read_text())
        changed = [name for name in settings if settings[name] != before[name]]
        if changed:
            name = changed[0]
            raise ValueError(f"--resume: got {name} {settings[name]}, but it was {before[name]} before")
    elif is_chief():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))


def main(argv: list[str] | None = None) -> ClickModel:
    """Runs a training as the command line says. Returns the model."""
    args = parse(argv)
    if args.workers and "TF_CONFIG" not in os.environ:
        # In place of this process. Those that it starts come here as well, with a TF_CONFIG.
        launcher = [sys.executable, "-m", "tf_dynemb_cli", "launch", "-n", str(args.workers), __file__]
        os.execv(sys.executable, launcher + (sys.argv[1:] if argv is None else argv))
    with make_strategy().scope():
        model, _ = run(args)
    return model


def run(args: argparse.Namespace) -> tuple[ClickModel, str]:
    """Runs a training, in the scope of its strategy. Returns the model and the report."""
    try:
        if args.files:
            source = criteo_data.Files(args.files)
        else:
            source = criteo_data.Synthetic(args.synthetic, args.seed)
        check_folders(args)
    except ValueError as error:
        sys.exit(str(error))
    keras.utils.set_random_seed(args.seed)
    model = make_model(
        args.optimizer,
        args.lr,
        dim=args.dim,
        interaction=args.interaction,
        shards=args.shards,
        device=args.device,
        bottom=args.bottom,
        top=args.top,
    )
    progress = Progress(model, args.batch, args.checkpoints, args.save_every, args.steps)
    if args.resume:
        progress.resume()
    # Keras says so at the end of every file, whose length nobody knows before.
    warnings.filterwarnings("ignore", "Your input ran out of data")
    say(f"{model.name} on {source}, from step {progress.step}")
    try:
        scores = train(model, source, progress, args)
    except tf.errors.InvalidArgumentError as error:
        complaint = criteo_data.complaint(error)
        if complaint is None:
            raise
        sys.exit(complaint)
    text = report(model, progress, scores)
    say(text)
    return model, text


def say(text: str) -> None:
    if is_chief():
        print(text)


if __name__ == "__main__":
    main()
