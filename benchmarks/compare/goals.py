"""What this project wants to reach, and how far it is: `python benchmarks/goals.py`.

Goals are about one million rows of dim 32 unless they say otherwise. What was measured may come from
benchmarks/run.py (--json) and from ../shared/anchors (--out): cases, peers and metrics have the same
names. Figures of different files are not compared.
"""

import contextlib
import dataclasses
import json
import pathlib
import statistics

from compare.report import OURS, ratio

# What a record does not say.
DEFAULTS = {"new": 0, "absent": 0, "optimizer": "none", "tables": 1, "initializer": "zeros"}


@dataclasses.dataclass(frozen=True)
class Goal:
    """To be `at_least` times as good as the best peer, at every point of a case that `where` chooses.

    Without peers: our figure is `at_most`. against_point: the peers are at another point. less_empty:
    the time of an empty tf.function, of any file, is taken off ours. everywhere: values of a parameter
    that all have to be measured.
    """

    work: str
    case: str
    where: dict
    peers: tuple = ()
    at_least: float | None = None
    at_most: float | None = None
    metric: str = "Mkeys/s"
    against_point: dict = dataclasses.field(default_factory=dict)
    less_empty: bool = False
    everywhere: dict = dataclasses.field(default_factory=dict)


def _goals():
    million, both_ids = {"rows": 1_000_000}, {"ids": ("uniform", "zipf")}
    threads = {"threads": (1, 2)}
    for batch, tfra, gather in ((65536, (8, 6), None), (4096, (3, 3), 1.0)):
        work = f"lookup, batch {batch}"
        at = {**million, "batch": batch, "dim": 32}
        for ids, times in zip(("uniform", "zipf"), tfra, strict=True):
            where = {**at, "ids": ids}
            yield Goal(f"{work}, {ids}", "lookup", where, ("tfra",), times, everywhere=threads)
        for dim in (8, 32, 128) if gather is None else (32,):
            least = 0.9 if dim == 128 else 1.0
            points = {**both_ids, **(threads if dim == 32 else {})}
            where = {**at, "dim": dim}
            yield Goal(f"{work}, dim {dim}", "lookup", where, ("tf_gather",), least, everywhere=points)
    yield Goal(
        "lookup, batch 65536, less an empty call",
        "lookup",
        {**million, "batch": 65536, "dim": 32},
        ("native",),
        0.8,
        less_empty=True,
        everywhere={**both_ids, **threads},
    )
    half = {**million, "absent": 0.5, "initializer": "uniform"}
    present = {"absent": 0.0}
    yield Goal("lookup, half absent (of present)", "missing", half, (OURS,), 0.6, against_point=present)

    static = ("tf_gather", "torch")
    for optimizer, tfra, peers, best in (
        ("adam", (10, 6), static, (3, 2)),
        ("adagrad", (8, 5), (*static, "fbgemm"), (3, 2)),
        ("sgd", (4, 2.7), (*static, "fbgemm"), (1.5, 1.3)),
    ):
        for i, ids in enumerate(("uniform", "zipf")):
            at = {**million, "optimizer": optimizer, "batch": 65536, "ids": ids, "new": 0}
            work = f"{optimizer}, batch 65536, {ids}"
            yield Goal(work, "train", at, ("tfra",), tfra[i])
            yield Goal(work, "train", at, peers, best[i])
            yield Goal(work, "train", at, ("native",), 0.65)
    for ids, times in (("uniform", 5), ("zipf", 3.5)):
        at = {**million, "optimizer": "adam", "batch": 4096, "ids": ids, "new": 0}
        yield Goal(f"adam, batch 4096, {ids}", "train", at, ("tfra",), times)
        yield Goal(f"adam, batch 4096, {ids}", "train", at, static, 2)
    new, batches = {**million, "optimizer": "adam", "new": 0.2}, {"batch": (65536, 4096)}
    yield Goal("adam, 20 % new ids", "train", new, ("tfra",), 5, everywhere=batches)
    yield Goal("adam, 20 % new ids", "train", new, ("native",), 0.9, everywhere=batches)
    many = {"rows": 10_000_000}
    yield Goal("lookup, 10M rows", "lookup10m", many, ("native",), 0.8, everywhere=both_ids)
    yield Goal("lookup, 10M rows", "lookup10m", many, ("tf_gather",), 1.0, everywhere=both_ids)

    for optimizer, times in (("none", 2.5), ("adam", 8)):
        at = {"optimizer": optimizer, "keys": 5_000_000}
        work = "growth by upsert" if optimizer == "none" else "growth by training"
        yield Goal(work, "growth", at, ("tfra",), times)
        for metric, most in (
            ("slowest/median batch", 4),
            ("peak/final RSS", 1.1),
            ("bytes/minimum", 1.15),
        ):
            yield Goal(f"{work}: {metric}", "growth", at, at_most=most, metric=metric)

    of_case = {"metric": "examples/s"}
    dlrm = {"batch": 4096}
    one_table = {**dlrm, "tables": 1}
    yield Goal("DLRM", "dlrm", one_table, ("tfra",), 1.5, **of_case)
    yield Goal("DLRM", "dlrm", one_table, ("torch",), 1.1, **of_case)
    per_feature = {"tables": 26}
    yield Goal(
        "DLRM (torch: 26 tables)",
        "dlrm",
        one_table,
        ("torch",),
        1.1,
        against_point=per_feature,
        **of_case,
    )
    work, tables = "DLRM (of one without embeddings)", {"tables": (1, 26)}
    yield Goal(work, "dlrm", dlrm, ("empty",), 0.8, everywhere=tables, **of_case)
    two_million = {"rows": 2_000_000}
    for do in ("save", "restore"):
        yield Goal(do, "checkpoint", {**two_million, "do": do}, ("native",), 0.8, metric="MB/s")
        yield Goal(do, "checkpoint", {**two_million, "do": do}, ("torch",), 1.0, metric="MB/s")
    extra, save = "extra RSS MB", {**two_million, "do": "save"}
    yield Goal(f"save: {extra}", "checkpoint", save, at_most=64, metric=extra)
    yield Goal("import: s", "import", {}, at_most=0.3, metric="library s")
    yield Goal("import: .so MB", "import", {}, at_most=10, metric=".so MB")
    # As a rate the first step is at least 1 / 1.2 of the static model's.
    first = {"batch": 4096}
    yield Goal("first step", "first_step", first, ("tf_gather",), 1 / 1.2, metric="first step s")


GOALS = tuple(_goals())
LESS_IS_BETTER = ("first step s",)


def load(path) -> list[dict]:
    """Records of a file of run.py or of the anchors; those of the latter have medians for samples.

    Raises:
        ValueError: a file of neither.
        OSError: a file that cannot be read.
    """
    try:
        return _records(pathlib.Path(path).read_text(), path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        want = "the --json of benchmarks/run.py or the --out of anchors/run.py"
        raise ValueError(f"{path}: want {want} ({type(error).__name__}: {error})") from error


def _records(text, path):
    with contextlib.suppress(json.JSONDecodeError):  # several objects, a line each
        whole = json.loads(text)
        if "records" in whole:
            return [{**record, "file": path} for record in whole["records"] if record.get("samples")]
    if not text.strip():
        raise ValueError("it is empty")
    found = []
    for record in map(json.loads, text.splitlines()):
        common = {name: record[name] for name in ("case", "setup", "point")}
        common |= {"peer": record["anchor"], "file": path}
        medians = {name: numbers["median"] for name, numbers in record.get("metrics", {}).items()}
        if medians:
            found.append({**common, "samples": [medians]})
    return found


def _parameters(record) -> dict:
    return {**DEFAULTS, **record["setup"], **record["point"]}


def _chosen(records, case, where):
    """(file, what else distinguishes points) -> peer's name -> record, of the points of a case."""
    points = {}
    for record in records:
        parameters = _parameters(record)
        if record["case"] == case and all(parameters.get(n) == v for n, v in where.items()):
            others = tuple(sorted((n, str(v)) for n, v in parameters.items() if n not in where))
            points.setdefault((record["file"], others), {})[record["peer"]] = record
    return points


def _samples(record, metric):
    return [sample[metric] for sample in record["samples"] if metric in sample]


def _less_empty(numbers, keys, row):
    """Mkeys/s on the time less that of an empty call; none where that is not known or not less."""
    if "empty" not in row:
        return []
    off = statistics.median(_samples(row["empty"], "us/step"))
    return [keys / (keys / rate - off) for rate in numbers if keys / rate > off]


@dataclasses.dataclass(frozen=True)
class Reached:
    """How far a goal is reached at a point.

    Attributes:
        value: how many times as good as the best peer, or the figure itself.
        parameters: what else than the goal's `where` makes the point, values as text.
        without: peers of the goal that were not measured there.
    """

    value: float
    parameters: dict
    without: tuple = ()

    @property
    def point(self) -> str:
        shown = ("tables", "threads", "dim", "batch", "ids")
        named = {n: v for n, v in self.parameters.items() if n in shown and (n, v) != ("tables", "1")}
        return ", ".join(f"{name} {value}" for name, value in named.items())


def measured(goal, records) -> list[Reached]:
    """What was reached at each point that was measured."""
    points = _chosen(records, goal.case, goal.where)
    against = _chosen(records, goal.case, {**goal.where, **goal.against_point})
    empties = {others: row for (_, others), row in points.items() if "empty" in row}
    reached = []
    for (file, others), row in points.items():
        if OURS not in row:
            continue
        numbers = _samples(row[OURS], goal.metric)
        if goal.less_empty:
            numbers = _less_empty(numbers, goal.where["batch"], empties.get(others, {}))
        if goal.at_most is not None:
            reached += [Reached(statistics.median(numbers), dict(others))] if numbers else []
            continue
        better = "less" if goal.metric in LESS_IS_BETTER else "more"
        theirs = against.get((file, others), {})
        ratios = {
            peer: ratio(numbers, _samples(theirs[peer], goal.metric), better)
            for peer in goal.peers
            if peer in theirs
        }
        found = {peer: times for peer, times in ratios.items() if times}
        if found:
            without = tuple(peer for peer in goal.peers if peer not in found)
            reached.append(Reached(min(found.values()), dict(others), without))
    return reached


def not_measured(goal, reached) -> list[str]:
    """What of a goal is not known: values of parameters, and peers."""
    missing = [
        f"{name} {value}"
        for name, values in goal.everywhere.items()
        for value in values
        if all(found.parameters.get(name) != str(value) for found in reached)
    ]
    return missing + sorted({peer for found in reached for peer in found.without})
