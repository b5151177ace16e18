"""What is measured: the setups and points of each case as data, and what one sample of it does.

A setup is a process with threads and tables; its points are measured in it one after the other, and the
peers take turns sample by sample. A sample is {metric: number}; a case's first metric is its main one.
"""

import abc
import dataclasses
import importlib
import itertools
import os
import pathlib
import shutil

import numpy as np

from compare import measure
from compare.peers import ADAGRAD_START, EPSILON, LEARNING_RATE, Clicks, Spec, Unsupported
from compare.streams import ABSENT, NEW, Numbers, ids_of, row_values

BATCHES, IDS = (65536, 4096), ("uniform", "zipf")
IDS_IN_TURN = 1 << 21  # distinct batches hold so many ids in all: more than a cache has rows


def product(**axes):
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


class Case(abc.ABC):
    """One thing to measure.

    points: of each setup. alone: a process for each sample, where memory or a first time is measured.
    """

    name = ""
    title = ""
    metrics = {"Mkeys/s": "more"}  # or "less", whichever is better
    rounds = 7
    alone = False
    axis = None  # what the plot has as its x axis, where the case is about how cost grows

    @abc.abstractmethod
    def setups(self):
        """[(setup, points)]: a setup is {"threads": ..., and what Spec has}."""

    def prepare(self, peer, setup):
        """Starts the library, shows that it is right, and makes and fills tables."""
        peer.start(setup["threads"])
        spec = spec_of(setup)
        check(peer, spec.optimizer, min(spec.tables, 2))
        peer.create(spec)
        for table in range(spec.tables):
            fill(peer, spec, table)
        return spec

    @abc.abstractmethod
    def sampler(self, peer, spec, point, seconds):
        """A function that takes one sample, of at least so many seconds where that can be chosen."""


def spec_of(setup) -> Spec:
    fields = {field.name for field in dataclasses.fields(Spec)}
    return Spec(**{name: value for name, value in setup.items() if name in fields})


def fill(peer, spec, table):
    for begin in range(0, spec.rows, 1 << 18):
        numbers = np.arange(begin, min(spec.rows, begin + (1 << 18)))
        peer.fill(table, ids_of(peer, numbers), row_values(len(numbers), spec.dim))


def check(peer, optimizer, tables=1):
    """Raises AssertionError unless rows are found, and one step with repeated ids moves them rightly.

    Of several tables the first is looked at, the others are trained beside it on other ids.
    """
    if not peer.is_table:
        return
    spec = Spec(rows=50, dim=4, optimizer=optimizer, tables=tables)
    peer.create(spec)
    for table in range(tables):
        fill(peer, spec, table)
    rows = row_values(spec.rows, spec.dim)
    batch = np.array([7, 49, 7, 0, 12, 49, 7])

    def look_up(numbers):
        return np.array(peer.to_numpy(peer.lookup(peer.ids(ids_of(peer, numbers)))))

    np.testing.assert_array_equal(look_up(batch), rows[batch])
    if optimizer == "none":
        return
    peer.train([peer.ids(ids_of(peer, (batch + table) % spec.rows)) for table in range(tables)])
    gradient = np.zeros_like(rows)
    np.add.at(gradient, batch, (rows[batch] - 1) / len(batch))
    scale = {
        "sgd": 1.0,
        "adagrad": 1 / (np.sqrt(ADAGRAD_START + gradient**2) + EPSILON),
        "adam": 1 / (np.abs(gradient) + EPSILON),  # of the first step, where the corrections cancel
    }[optimizer]
    expected = rows - LEARNING_RATE * scale * gradient
    # Rounding of float32, which the quotients of the first step of Adam enlarge.
    np.testing.assert_allclose(look_up(np.arange(spec.rows)), expected, rtol=0, atol=1e-5)


def needs_new_rows(peer):
    if not peer.is_table:
        raise Unsupported("no rows")
    if peer.takes_row_numbers:
        raise Unsupported("a fixed number of rows")


def rate(step, keys, seconds):
    """A sampler of keys per second of step(0), step(1), ..."""
    n = measure.repeats(step, seconds)

    def sample():
        took = measure.run(step, n)
        return {"Mkeys/s": n * keys / took / 1e6, "us/step": took / n * 1e6}

    return sample


class Lookup(Case):
    name = "lookup"
    title = "Look up rows that are there, in a tf.function (PyTorch: under no_grad)"
    rows = 1_000_000

    def setups(self):
        points = product(batch=BATCHES, ids=IDS)
        return [
            ({"threads": threads, "rows": self.rows, "dim": dim}, points)
            for dim in (32, 8, 128)
            for threads in (1, 2)
        ]

    def sampler(self, peer, spec, point, seconds):
        batches = self._batches(peer, spec, point)
        return rate(lambda i: peer.lookup(batches[i % len(batches)]), point["batch"], seconds)

    def _batches(self, peer, spec, point):
        numbers, n = Numbers(spec.rows, point.get("ids", "uniform")), point["batch"]
        absent, distinct = point.get("absent", 0.0), point.get("distinct", 1.0)
        return [
            peer.ids(ids_of(peer, numbers.draw(n, distinct, absent, ABSENT + i * n)))
            for i in range(max(2, min(512, IDS_IN_TURN // n)))
        ]


class Lookup10M(Lookup):
    name = "lookup10m"
    title = "Look up in ten million rows"

    def setups(self):
        setup = {"threads": 1, "rows": 10_000_000, "dim": 32}
        return [(setup, product(batch=(65536,), ids=IDS))]


class Missing(Lookup):
    name = "missing"
    title = "Look up where half of the ids have no row, or all have one; uniform initial values"

    def setups(self):
        setup = {"threads": 1, "rows": self.rows, "dim": 32, "initializer": "uniform"}
        return [(setup, product(absent=(0.5, 0.0), batch=BATCHES))]

    def prepare(self, peer, setup):
        needs_new_rows(peer)
        return super().prepare(peer, setup)


class Train(Lookup):
    name = "train"
    title = "Training step: look up, gradient, update"
    # Steps of a sample with new ids: as many for all peers, so that tables grow alike.
    new_steps = {65536: 8, 4096: 64}

    def setups(self):
        points = [
            *product(batch=BATCHES, ids=IDS),
            *product(batch=BATCHES, ids=("uniform",), new=(0.2,)),
        ]
        return [
            ({"threads": 2, "rows": self.rows, "dim": 32, "optimizer": optimizer}, points)
            for optimizer in ("sgd", "adagrad", "adam")
        ]

    def sampler(self, peer, spec, point, seconds):
        if point.get("new"):
            return self._growing(peer, spec, point)
        batches = self._batches(peer, spec, point)
        n = len(batches)
        steps = [[batches[(i + t) % n] for t in range(spec.tables)] for i in range(n)]
        return rate(lambda i: peer.train(steps[i % n]), point["batch"] * spec.tables, seconds)

    def _growing(self, peer, spec, point):
        needs_new_rows(peer)
        n = point["batch"]
        steps, numbers = self.new_steps.get(n, 8), Numbers(spec.rows, point["ids"])
        fresh = itertools.count(NEW + n * 2**32, n)

        def sample():
            batches = [
                peer.ids(ids_of(peer, numbers.draw(n, 1.0, point["new"], next(fresh))))
                for _ in range(steps)
            ]
            took = measure.run(lambda i: peer.train([batches[i]]), steps)
            return {"Mkeys/s": steps * n / took / 1e6, "us/step": took / steps * 1e6}

        sample()
        return sample


class Tables(Train):
    name = "tables"
    title = "Training step of 1 and of 26 tables, and of one with the ids of 26"
    metrics = {"Mkeys/s": "more", "us/step": "less"}

    def setups(self):
        both = {"threads": 2, "dim": 16, "optimizer": "adam"}
        return [
            ({**both, "rows": 50_000, "tables": 1}, product(batch=(4096,), ids=("zipf",))),
            ({**both, "rows": 50_000, "tables": 26}, product(batch=(4096,), ids=("zipf",))),
            ({**both, "rows": 26 * 50_000, "tables": 1}, product(batch=(26 * 4096,), ids=("zipf",))),
        ]


class Growth(Case):
    name = "growth"
    title = "Five million new rows, 65536 at a time, in a table that starts small"
    metrics = {
        "Mkeys/s": "more",
        "slowest/median batch": "less",
        "bytes/minimum": "less",
        "peak/final RSS": "less",
    }
    rounds = 5
    alone = True

    def setups(self):
        points = [{"keys": 5_000_000, "batch": 65536}]
        setup = {"threads": 2, "rows": 1000, "dim": 32}
        return [({**setup, "optimizer": optimizer}, points) for optimizer in ("none", "adam")]

    def prepare(self, peer, setup):
        needs_new_rows(peer)
        return super().prepare(peer, setup)

    def sampler(self, peer, spec, point, seconds):
        n = point["batch"]
        values = peer.values(row_values(n, spec.dim))

        def write(numbers):
            ids = peer.ids(ids_of(peer, numbers))
            if spec.optimizer == "none":
                return measure.seconds(lambda: peer.upsert(ids, values))
            return measure.seconds(lambda: peer.train([ids]))

        def sample():
            took = []
            write(np.arange(n) % spec.rows)  # what is compiled at the first call is not growth
            measure.forget_peak()
            before = measure.resident()
            for begin in range(0, point["keys"], n):
                took.append(write(NEW + np.arange(begin, begin + n)))
            final, peak, rows = measure.resident() - before, measure.peak() - before, n * len(took)
            return {
                "Mkeys/s": rows / sum(took) / 1e6,
                "slowest/median batch": max(took) / float(np.median(took)),
                "bytes/minimum": final * 2**20 / rows / spec.row_bytes,
                "peak/final RSS": peak / final if final else 1.0,
            }

        return sample


class Dlrm(Case):
    name = "dlrm"
    title = "Fit a small DLRM with Adam; `empty` is the same model with zeros for its 26 rows"
    metrics = {"examples/s": "more"}

    def setups(self):
        setup = {"threads": 2, "examples": 65536, "vocabulary": 100_000, "batch": 4096, "dim": 16}
        return [(setup, [{"tables": 1}, {"tables": 26}])]

    def prepare(self, peer, setup):
        peer.start(setup["threads"])
        check(peer, "adam")
        return setup

    def sampler(self, peer, setup, point, seconds):
        n, random = setup["examples"], np.random.default_rng(5)
        ids = Numbers(setup["vocabulary"], "zipf").draw(n * 26).reshape(n, 26)
        clicks = Clicks(
            ids=ids_of(peer, ids),
            numbers=random.random((n, 13), np.float32),
            labels=random.integers(0, 2, (n, 1)).astype(np.float32),
            vocabulary=setup["vocabulary"],
            batch=min(n, setup["batch"]),
            dim=setup["dim"],
            tables=point["tables"],
        )
        fit = peer.dlrm(clicks)
        fit()
        return lambda: {"examples/s": n / measure.seconds(fit)}


class Checkpoint(Case):
    name = "checkpoint"
    title = "Save rows with Adam's slot variables and restore them in another process (--tmp: where)"
    metrics = {"MB/s": "more", "extra RSS MB": "less", "file MB": "less"}
    rounds = 3
    alone = True

    def setups(self):
        setup = {"threads": 2, "rows": 2_000_000, "dim": 32, "optimizer": "adam"}
        return [(setup, [{"do": "save"}, {"do": "restore"}])]

    def prepare(self, peer, setup):
        """Makes an empty table."""
        if not peer.is_table:
            raise Unsupported("nothing to save")
        peer.start(setup["threads"])
        check(peer, "adam")
        peer.create(spec_of(setup))
        return spec_of(setup)

    def sampler(self, peer, spec, point, seconds):
        folder = pathlib.Path(os.environ["COMPARE_TMP"]) / f"checkpoint_{peer.name}"
        expected = folder.with_suffix(".npy")
        probe = peer.ids(ids_of(peer, np.arange(0, spec.rows, 997)))

        def save():
            fill(peer, spec, 0)
            for begin in range(0, spec.rows, 65536):  # so that all rows have slot variables
                numbers = np.arange(begin, min(begin + 65536, spec.rows))
                peer.train([peer.ids(ids_of(peer, numbers))])
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            result = measure.with_peak(lambda: peer.save(str(folder)))
            np.save(expected, peer.to_numpy(peer.lookup(probe)))
            return result

        def restore():
            result = measure.with_peak(lambda: peer.restore(str(folder)))
            np.testing.assert_array_equal(peer.to_numpy(peer.lookup(probe)), np.load(expected))
            return result

        def sample():
            took, extra = save() if point["do"] == "save" else restore()
            return {
                "MB/s": spec.rows * spec.row_bytes / took / 1e6,
                "extra RSS MB": extra,
                "file MB": measure.folder_bytes(folder) / 1e6,
            }

        return sample


class Import(Case):
    name = "import"
    title = "Import the library, beyond what it needs (files are cached)"
    metrics = {"library s": "less", "with what it needs s": "less", ".so MB": "less"}
    alone = True

    def setups(self):
        return [({"threads": 2}, [{}])]

    def prepare(self, peer, setup):
        if not peer.modules:
            raise Unsupported("no library")

    def sampler(self, peer, spec, point, seconds):
        def sample():
            times = [measure.seconds(lambda m=m: importlib.import_module(m)) for m in peer.modules]
            folder = pathlib.Path(importlib.import_module(peer.modules[-1]).__file__).parent
            return {
                "library s": times[-1],
                "with what it needs s": sum(times),
                ".so MB": measure.folder_bytes(folder, "*.so*") / 1e6,
            }

        return sample


class FirstStep(Case):
    name = "first_step"
    title = "The first training step of a Keras model of one embedding and one dense layer, with Adam"
    metrics = {"first step s": "less", "model s": "less"}
    alone = True

    def setups(self):
        return [({"threads": 2, "rows": 10_000, "dim": 32}, [{"batch": 4096}])]

    def prepare(self, peer, setup):
        peer.start(setup["threads"])
        return setup

    def sampler(self, peer, setup, point, seconds):
        ids = ids_of(peer, np.arange(point["batch"]))
        made = []

        def sample():
            model_took = measure.seconds(
                lambda: made.append(peer.small_model(setup["rows"], setup["dim"]))
            )
            return {"first step s": measure.seconds(lambda: made[0](ids)), "model s": model_took}

        return sample


class Serving(Case):
    name = "serving"
    title = "Time of one lookup in a SavedModel that was loaded"
    metrics = {"p50 us": "less", "p99 us": "less"}

    def setups(self):
        points = product(batch=(1, 32, 1024))
        return [({"threads": t, "rows": 1_000_000, "dim": 32}, points) for t in (1, 2)]

    def prepare(self, peer, setup):
        spec = super().prepare(peer, setup)
        folder = pathlib.Path(os.environ["COMPARE_TMP"]) / f"served_{peer.name}"
        shutil.rmtree(folder, ignore_errors=True)
        look_up = peer.served(str(folder))
        shutil.rmtree(folder, ignore_errors=True)
        return spec, look_up

    def sampler(self, peer, prepared, point, seconds):
        spec, look_up = prepared
        numbers = Numbers(spec.rows, "zipf")
        batches = [peer.ids(ids_of(peer, numbers.draw(point["batch"]))) for _ in range(512)]
        n = max(200, measure.repeats(lambda i: look_up(batches[i % 512]), seconds))

        def sample():
            took = [measure.seconds(lambda b=batches[i % 512]: look_up(b)) for i in range(n)]
            p50, p99 = np.percentile(took, (50, 99)) * 1e6
            return {"p50 us": float(p50), "p99 us": float(p99)}

        return sample


class Scaling(Train):
    """Lookups, and steps of Adam, along one axis."""

    metrics = {"ns/key": "less"}
    base = {"threads": 2, "rows": 1_000_000, "dim": 32}
    point = {"batch": 65536, "ids": "uniform"}

    def __init__(self, axis, values):
        self.name, self.axis = f"scaling_{axis}", axis
        self.title = f"How the time of a key depends on {axis}"
        self._values = values

    def setups(self):
        of_setup = self.axis in self.base
        both = [{**self.base, "optimizer": optimizer} for optimizer in ("none", "adam")]
        if not of_setup:
            points = [{**self.point, self.axis: value} for value in self._values]
            return [(setup, points) for setup in both]
        setups = [{**setup, self.axis: value} for setup in both for value in self._values]
        if self.axis == "dim":  # no more memory than at dim 32
            setups = [{**s, "rows": min(s["rows"], 32_000_000 // s["dim"])} for s in setups]
        return [(setup, [self.point]) for setup in setups]

    def sampler(self, peer, spec, point, seconds):
        if spec.optimizer == "none":
            sample = Lookup.sampler(self, peer, spec, point, seconds)
        else:
            sample = super().sampler(peer, spec, point, seconds)
        return lambda: {"ns/key": 1e3 / sample()["Mkeys/s"]}


SCALING = [
    Scaling("rows", (10**4, 10**5, 10**6, 10**7, 3 * 10**7)),
    Scaling("dim", (4, 8, 16, 32, 64, 128, 256, 512, 1024)),
    Scaling("batch", (1, 10, 100, 1000, 10**4, 10**5, 10**6)),
    Scaling("threads", (1, 2, 4, 8, 16)),
    Scaling("distinct", (1.0, 0.5, 0.2, 0.1, 0.01)),
]
CASES = {
    case.name: case
    for case in (
        Lookup(),
        Lookup10M(),
        Missing(),
        Train(),
        Tables(),
        Growth(),
        Dlrm(),
        Checkpoint(),
        Import(),
        FirstStep(),
        Serving(),
        *SCALING,
    )
}
