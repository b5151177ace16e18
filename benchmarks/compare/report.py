"""Tables and plots of what was measured.

A record is {"case", "setup", "point", "peer"} with "samples", a list of {metric: number}, or with
"unsupported" or "error". Samples of one round were taken one after the other: a ratio is the median
of the ratios of the rounds.
"""

import statistics

from rich import box
from rich.console import Console
from rich.table import Table

from compare.cases import CASES

OURS = "tf_dynemb"


def series(record, metric) -> list[float]:
    return [sample[metric] for sample in record.get("samples", [])]


def spread(numbers) -> float:
    """Half of the interquartile range, in percent of the median."""
    if len(numbers) < 2 or not statistics.median(numbers):
        return 0.0
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return 50 * (high - low) / abs(statistics.median(numbers))


def ratio(ours, theirs, better="more") -> float | None:
    """How many times as good ours is; None where one of them was not measured."""
    rounds = [(a, b) for a, b in zip(ours, theirs, strict=False) if a > 0 and b > 0]
    if not rounds:
        return None
    return statistics.median(a / b if better == "more" else b / a for a, b in rounds)


def by_point(records) -> dict[tuple, dict[str, dict]]:
    """What was asked, as sorted (name, value) pairs -> peer -> record."""
    points = {}
    for record in records:
        key = tuple({**record["setup"], **record["point"]}.items())
        points.setdefault(key, {})[record["peer"]] = record
    return points


def _number(x) -> str:
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def _cell(record, ours, metric, better) -> str:
    if record is None or "samples" not in record:
        return "" if record is None else "n/a" if "unsupported" in record else "error"
    numbers = series(record, metric)
    text = f"{_number(statistics.median(numbers))} ±{spread(numbers):.0f}%"
    if ours is not None and record["peer"] != OURS:
        times = ratio(series(ours, metric), numbers, better)
        text += "" if times is None else f" ({times:.2g}x)"
    return text


def _varying(points) -> tuple[list[str], dict]:
    """Names whose value is not the same in all points, and the others with their value."""
    values = {}
    for point in points:
        for name, value in point:
            values.setdefault(name, set()).add(value)
    every = {name for name in values if all(name in dict(point) for point in points)}
    same = {name: v for name, (v, *more) in values.items() if not more and name in every}
    return [name for name in values if name not in same], same


def markdown(table: Table) -> str:
    """A table of rich's with box.MARKDOWN as text, without the blank lines that rich puts around it."""
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line for line in captured.get().splitlines() if line.strip())


def show(records):
    """Prints a Markdown table per metric for the records of one case."""
    if not records:
        return
    case = CASES[records[0]["case"]]
    points = by_point(records)
    names, same = _varying(points)
    peers = _peers(records)
    print(f"\n### {case.name}: {case.title}\n")
    print(", ".join(f"{n} {v:,}" if isinstance(v, int) else f"{n} {v}" for n, v in same.items()))
    for metric, better in case.metrics.items():
        print(f"\n{metric}, {better} is better; in brackets how many times as good {OURS} is\n")
        table = Table(*names, *peers, box=box.MARKDOWN)
        for point, row in points.items():
            cells = [_cell(row.get(peer), row.get(OURS), metric, better) for peer in peers]
            table.add_row(*(str(dict(point).get(name, "")) for name in names), *cells)
        print(markdown(table))
    for kind, word in (("unsupported", "n/a"), ("error", "error")):
        for peer, reason in sorted({(r["peer"], r[kind]) for r in records if kind in r}):
            print(f"\n- {peer}: {word}, {reason}")


def show_facts(result):
    for title in ("machine", "versions"):
        print()
        for name, value in result[title].items():
            print(f"- {name}: {value}")


def plot(records, path):
    """A panel per case and optimizer: dots of what the peers do, or lines where the case has an axis."""
    from matplotlib.figure import Figure

    panels = {}
    for record in records:
        if "samples" in record:
            panel = record["case"], record["setup"].get("optimizer", "none")
            panels.setdefault(panel, []).append(record)
    if not panels:
        return
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    tallest = max(len(by_point(part)) for part in panels.values())
    height = max(4.0, 0.3 * tallest)
    figure = Figure(figsize=(7 * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, ((name, optimizer), part) in zip(axes, panels.items(), strict=False):
        case = CASES[name]
        metric, better = next(iter(case.metrics.items()))
        draw = _lines if case.axis else _dots
        draw(axis, case, part, metric, f"{metric} ({better} is better)")
        axis.set_title(name if optimizer == "none" else f"{name}, {optimizer}")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.savefig(path, dpi=110)


def _peers(records):
    return list(dict.fromkeys(record["peer"] for record in records))


def _lines(axis, case, records, metric, label):
    for peer in _peers(records):
        points = sorted(
            (
                {**record["setup"], **record["point"]}[case.axis],
                statistics.median(series(record, metric)),
            )
            for record in records
            if record["peer"] == peer
        )
        axis.plot(*zip(*points, strict=True), marker="o", label=peer)
    axis.set(xscale="log", yscale="log", xlabel=case.axis, ylabel=label)


def _dots(axis, case, records, metric, label):
    points = by_point(records)
    names, _ = _varying(points)
    for peer in _peers(records):
        at = [i for i, row in enumerate(points.values()) if peer in row]
        numbers = [series(row[peer], metric) for row in points.values() if peer in row]
        medians = [statistics.median(n) for n in numbers]
        spreads = [spread(n) * median / 100 for n, median in zip(numbers, medians, strict=True)]
        axis.errorbar(medians, at, xerr=spreads, fmt="o", markersize=5, label=peer)
    labels = [", ".join(f"{n} {dict(p)[n]}" for n in names if n in dict(p)) for p in points]
    axis.set_yticks(range(len(points)), labels, fontsize=7)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel=label)
