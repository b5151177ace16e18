"""What goes wrong in processes that share tables: one has no room, or differs, dies, does not answer.

python spread_failures.py PATH wait WHAT
python spread_failures.py FOLDER cannot_connect VARIABLE VALUE
"""

import os
import pickle
import signal
import sys
import time

import keras
import tensorflow as tf
from spread_program import Program
from workers import says

TIMEOUT_SECONDS = 5


class Failures(Program):
    """Those of a job that goes on, or ends with them."""

    def one_refuses(self):
        """Steps for which one shard has no room, and one process a key that no shard has."""
        last, options = self.count - 1, {"initializer": "ones", "dynamic_input": True}
        of_last = [number * self.count + last for number in range(8)]  # the last process owns them
        dense = self.lib.All2AllDenseEmbedding
        with self.strategy.scope():
            rows, policy = 3 * self.count, self.lib.policies.TimestampRestrictPolicy
            full = dense(rows, 1, 1, 1, name="full", **options)
            cut = dense(rows, 1, 1, 1, name="cut", restrict_policy=policy, **options)
            numbered = dense(rows, 1, 1, 1, name="numbered", use_hashtable=False, **options)
        full, cut, numbered = (self.trainer(layer) for layer in (full, cut, numbered))
        return {
            # Two rows of each; then two more for one with room for one; then what there is room for.
            "full": [full(range(2 * self.count)), full([0, *of_last[2:4]]), full([0, *of_last[:3]])],
            "cut": [cut(range(2 * self.count)), cut(of_last[2:]), cut(of_last[:1])],
            "numbered": [
                numbered([0, last], of=last),
                numbered([0, 3 * self.count], of=last),
                numbered([0, last], of=last),
            ],
        }

    def differing(self):
        """What processes are told that call other things, of every other of them by what they do."""
        odd = self.index % 2
        messages = {}

        def told(what, call):
            try:
                call()
                messages[what] = ""
            except tf.errors.InvalidArgumentError as error:
                messages[what] = str(error)

        def make(**arguments):
            with self.strategy.scope():
                return self.lib.Variable(**arguments)

        table = make(dim=1, name="both")
        one = tf.constant([1], tf.int64)
        calls = (
            lambda: table.lookup(one),
            lambda: table.upsert(one, tf.ones([1, 1])),
            lambda: table.remove(one),
            lambda: make(dim=1, name="more"),
            lambda: table.exchange.total(tf.zeros([1], tf.float64)),
            lambda: table.exchange.gather([one], "a" * 4000 + " long program"),
        )
        for number, call in enumerate(calls):
            told(number, call if odd else calls[number - 1])
        told("shape", lambda: table.upsert(one, tf.ones([2, 1])))

        told("dim", lambda: make(dim=2 + odd, name="made"))
        told("dtype", lambda: make(dim=2, value_dtype=(tf.float32, tf.float16)[odd], name="made"))
        told("start", lambda: make(dim=1, initializer=float(odd), name="made"))
        told("order", lambda: make(dim=2 + odd, name=("a", "b")[odd]))
        tables = [make(dim=4, name=name) for name in ("first", "second")]
        told("place", lambda: tables[odd].lookup(one))
        for what, arguments in (("rows", {}), ("keys", {"use_hashtable": False})):
            with self.strategy.scope():
                layer = self.lib.All2AllDenseEmbedding(
                    (2 + odd) * self.count, 2, 1, 1, dynamic_input=True, name="limited", **arguments
                )
            told(what, lambda layer=layer: layer(one))

        with self.strategy.scope():
            optimizer = self.optimizer(
                (keras.optimizers.SGD, keras.optimizers.Adam)[odd](), [table.handle]
            )
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.lib.embedding_lookup(table, one))
        gradients = tape.gradient(loss, [table.handle])
        told("rule", lambda: optimizer.apply(gradients, [table.handle]))
        return messages

    def survivor(self):
        """The last process dies after a step; the others learn of it, in that step or the next."""
        with self.strategy.scope():
            table = self.lib.Variable(dim=1, name="orphan")
        start = time.monotonic()
        try:
            table.lookup(tf.constant([1], tf.int64))  # it may die before all have got what it sent
            if self.index == self.count - 1:
                os._exit(9)
            table.lookup(tf.constant([1], tf.int64))
        except tf.errors.OpError as error:
            return {"error": type(error).__name__, "seconds": time.monotonic() - start}
        return {}


def wait(path, what):
    """The first process calls the others, which live and never answer.

    Args:
        path: of the file to write.
        what: "lookup" or "making", of a table.
    """
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=TIMEOUT_SECONDS)
    program = Program(options)
    with program.strategy.scope():
        table = program.lib.Variable(dim=1, name="waiting")
    table.lookup(tf.constant([1], tf.int64))
    result = {"timeout_seconds": table.exchange.timeout_seconds}
    if program.index:
        signal.pause()
    start = time.monotonic()
    try:
        if what == "lookup":
            table.lookup(tf.constant([1], tf.int64))
        else:
            with program.strategy.scope():
                program.lib.Variable(dim=1, name="another")
    except tf.errors.OpError as error:
        result |= {"error": str(error), "seconds": time.monotonic() - start}
    with open(path, "wb") as file:
        pickle.dump(result, file)
    os._exit(0)  # the others are still there


def cannot_connect(folder, variable, value):
    """In the last process a variable has another value; what each is told when it makes a table."""
    program = Program()
    if program.index == program.count - 1:
        os.environ[variable] = value
    with program.strategy.scope():
        error = says(program.lib.Variable, dim=1, name="unconnected")
    with open(os.path.join(folder, str(program.index)), "w") as file:
        file.write(error)


if __name__ == "__main__":
    {"wait": wait, "cannot_connect": cannot_connect}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
