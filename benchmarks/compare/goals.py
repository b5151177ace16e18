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
    the time of an empty tf.function, of any file, is taken off ours.
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


def _goals():
    for batch, tfra, gather in ((65536, (8, 6), None), (4096, (3, 3), 1.0)):
        work = f"lookup, batch {batch}"
        at = {"batch": batch, "dim": 32}
        for ids, times in zip(("uniform", "zipf"), tfra, strict=True):
            yield Goal(f"{work}, {ids}", "lookup", {**at, "ids": ids}, ("tfra",), times)
        for dim in (8, 32, 128) if gather is None else (32,):
            least = 0.9 if dim == 128 else 1.0
            yield Goal(f"{work}, dim {dim}", "lookup", {**at, "dim": dim}, ("tf_gather",), least)
    big = {"batch": 65536, "dim": 32}
    yield Goal(
        "lookup, batch 65536, less an empty call", "lookup", big, ("native",), 0.8, less_empty=True
    )
    half = {"absent": 0.5, "initializer": "uniform"}
    present = {"absent": 0.0}
    yield Goal("lookup, half absent (of present)", "missing", half, (OURS,), 0.6, against_point=present)

    static = ("tf_gather", "torch")
    for optimizer, tfra, peers, best in (
        ("adam", (10, 6), static, (3, 2)),
        ("adagrad", (8, 5), (*static, "fbgemm"), (3, 2)),
        ("sgd", (4, 2.7), (*static, "fbgemm"), (1.5, 1.3)),
    ):
        for i, ids in enumerate(("uniform", "zipf")):
            at = {"optimizer": optimizer, "batch": 65536, "ids": ids, "new": 0}
            work = f"{optimizer}, batch 65536, {ids}"
            yield Goal(work, "train", at, ("tfra",), tfra[i])
            yield Goal(work, "train", at, peers, best[i])
            yield Goal(work, "train", at, ("native",), 0.65)
    for ids, times in (("uniform", 5), ("zipf", 3.5)):
        at = {"optimizer": "adam", "batch": 4096, "ids": ids, "new": 0}
        yield Goal(f"adam, batch 4096, {ids}", "train", at, ("tfra",), times)
        yield Goal(f"adam, batch 4096, {ids}", "train", at, static, 2)
    new = {"optimizer": "adam", "new": 0.2}
    yield Goal("adam, 20 % new ids", "train", new, ("tfra",), 5)
    yield Goal("adam, 20 % new ids", "train", new, ("native",), 0.9)
    yield Goal("lookup, 10M rows", "lookup10m", {}, ("native",), 0.8)
    yield Goal("lookup, 10M rows", "lookup10m", {}, ("tf_gather",), 1.0)

    for optimizer, times in (("none", 2.5), ("adam", 8)):
        at = {"optimizer": optimizer}
        work = "growth by upsert" if optimizer == "none" else "growth by training"
        yield Goal(work, "growth", at, ("tfra",), times)
        for metric, most in (
            ("slowest/median batch", 4),
            ("peak/final RSS", 1.1),
            ("bytes/minimum", 1.15),
        ):
            yield Goal(f"{work}: {metric}", "growth", at, at_most=most, metric=metric)

    of_case = {"metric": "examples/s"}
    yield Goal("DLRM", "dlrm", {"tables": 1}, ("tfra",), 1.5, **of_case)
    yield Goal("DLRM", "dlrm", {"tables": 1}, ("torch",), 1.1, **of_case)
    per_feature = {"tables": 26}
    yield Goal(
        "DLRM (torch: 26 tables)",
        "dlrm",
        {"tables": 1},
        ("torch",),
        1.1,
        against_point=per_feature,
        **of_case,
    )
    yield Goal("DLRM (of one without embeddings)", "dlrm", {}, ("empty",), 0.8, **of_case)
    for do in ("save", "restore"):
        yield Goal(do, "checkpoint", {"do": do}, ("native",), 0.8, metric="MB/s")
        yield Goal(do, "checkpoint", {"do": do}, ("torch",), 1.0, metric="MB/s")
    extra = "extra RSS MB"
    yield Goal(f"save: {extra}", "checkpoint", {"do": "save"}, at_most=64, metric=extra)
    yield Goal("import: s", "import", {}, at_most=0.3, metric="library s")
    yield Goal("import: .so MB", "import", {}, at_most=10, metric=".so MB")
    # As a rate the first step is at least 1 / 1.2 of the static model's.
    yield Goal("first step", "first_step", {}, ("tf_gather",), 1 / 1.2, metric="first step s")


GOALS = tuple(_goals())
LESS_IS_BETTER = ("first step s",)


def load(path) -> list[dict]:
    """Records of a file of run.py or of the anchors; those of the latter have medians for samples.

    Raises:
        ValueError: a file of neither.
        OSError: a file that cannot be read.
    """
    text = pathlib.Path(path).read_text()
    try:
        return _records(text, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        want = "the --json of benchmarks/run.py or the --out of anchors/run.py"
        raise ValueError(f"{path}: want {want} ({type(error).__name__}: {error})") from error


def _records(text, path):
    with contextlib.suppress(json.JSONDecodeError):  # several objects, a line each
        whole = json.loads(text)
        if "records" in whole:
            return [{**record, "file": path} for record in whole["records"] if "samples" in record]
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


@dataclasses.dataclass(frozen=True, order=True)
class Reached:
    """How far a goal is reached at a point.

    Attributes:
        value: how many times as good as the best peer, or the figure itself.
        point: in words.
        without: peers of the goal that were not measured there.
    """

    value: float
    point: str
    without: tuple = ()


def measured(goal, records) -> list[Reached]:
    """What was reached at each point that was measured."""
    points = _chosen(records, goal.case, goal.where)
    against = _chosen(records, goal.case, {**goal.where, **goal.against_point})
    empties = {others: row for (_, others), row in points.items() if "empty" in row}
    reached = []
    for (file, others), row in points.items():
        if OURS not in row:
            continue
        shown = ("threads", "dim", "batch", "ids")
        place = ", ".join(f"{name} {value}" for name, value in others if name in shown)
        numbers = _samples(row[OURS], goal.metric)
        if goal.less_empty:
            numbers = _less_empty(numbers, goal.where["batch"], empties.get(others, {}))
        if goal.at_most is not None:
            reached += [Reached(statistics.median(numbers), place)] if numbers else []
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
            reached.append(Reached(min(found.values()), place, without))
    return reached
