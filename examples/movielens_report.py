"""What movielens.py shows of its runs: the table, a verdict in words, and the learning curves."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

NOTE = """RMSE, AUC: mean ± standard deviation over seeds. Seconds: of one run. MiB: values and optimizer
state; of dynamic tables also keys, index and free room. Hashing gets rows for all that memory.
"""
LIKED = 4.0  # stars from which on a rating counts as positive for AUC


@dataclasses.dataclass
class Result:
    """What one contender did.

    Attributes:
        name: its name.
        stars: the true ratings (n,).
        runs: for each seed predictions (n,) and seconds.
        rows: rows of all its embeddings at the end.
        size_bytes: memory of these with the optimizer's state.
        growth: pairs of ratings so far and rows by feature.
    """

    name: str
    stars: np.ndarray
    runs: list[tuple[np.ndarray, float]]
    rows: int
    size_bytes: int
    growth: list[tuple[int, dict[str, int]]]

    def rmse(self) -> list[float]:
        """For each seed."""
        return [float(np.sqrt(np.mean((p - self.stars) ** 2))) for p, _ in self.runs]

    def auc(self) -> list[float]:
        """For each seed."""
        return [auc(self.stars >= LIKED, predictions) for predictions, _ in self.runs]

    def seconds(self) -> float:
        """Of one run, on average."""
        return float(np.mean([seconds for _, seconds in self.runs]))


def auc(positive: np.ndarray, scores: np.ndarray) -> float:
    """The odds that a positive scores higher than a negative, a tie counting half; NaN for one class."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # the mean rank of equal scores, from 1
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return float("nan")
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def table(results: list[Result]) -> str:
    """The table, in Markdown."""
    lines = [
        "| | RMSE | AUC (4 stars or more) | rows | MiB | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        cells = [
            result.name,
            _spread(result.rmse()),
            _spread(result.auc()),
            f"{result.rows:,}",
            f"{result.size_bytes / 2**20:.2f}",
            f"{result.seconds():.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    widths = [max(len(line.split("|")[i]) for line in lines) for i in range(1, 7)]
    aligned = []
    for line in lines:
        fill = "-" if line.startswith("|---") else " "
        cells = [c.ljust(w, fill) for c, w in zip(line.split("|")[1:-1], widths, strict=True)]
        aligned.append("|" + "|".join(cells) + "|")
    return "\n".join(aligned)


def _spread(numbers: list[float]) -> str:
    mean = f"{np.mean(numbers):.4f}"
    return mean if len(numbers) == 1 else f"{mean} ± {np.std(numbers, ddof=1):.4f}"


def verdict(results: list[Result]) -> str:
    """What the columns mean, and the first result against the others, with the spread over seeds."""
    ours, *others = results
    lines = [NOTE]
    for other in others:
        difference = np.mean(ours.rmse()) - np.mean(other.rmse())
        text = f"{ours.name} against {other.name}: RMSE {difference:+.4f}"
        if len(ours.runs) > 1:
            spread = np.sqrt(sum(np.var(r.rmse(), ddof=1) for r in (ours, other) if len(r.runs) > 1))
            word = "better" if difference < 0 else "worse"
            word = "as good, within the spread" if abs(difference) <= 2 * spread else word
            text += f" ± {spread:.4f}: {word}"
        lines.append(text)
    return "\n".join(lines)


def write_json(results: list[Result], source: str, path: pathlib.Path) -> None:
    """Writes the table for machines: numbers for each seed."""
    rows = [
        {
            "name": result.name,
            "rmse": result.rmse(),
            "auc": [None if np.isnan(number) else number for number in result.auc()],
            "rows": result.rows,
            "mib": result.size_bytes / 2**20,
            "seconds": [seconds for _, seconds in result.runs],
        }
        for result in results
    ]
    document = {"ratings": source, "number": len(results[0].stars), "results": rows}
    path.write_text(json.dumps(document, indent=2) + "\n")


# Colours that the colour-blind tell apart (Okabe and Ito, 2008).
_COLOURS = ["#0072B2", "#E69F00", "#CC79A7", "#D55E00", "#009E73", "#56B4E9"]


def draw(results: list[Result], bounded: list[Result], path: pathlib.Path) -> None:
    """Draws the RMSE so far as the stream goes on, and how the tables of the dynamic model grow.

    Beside them, if there are any, the RMSE of bounded tables by their rows.
    """
    widths = (3, 2, 2) if bounded else (3, 2)
    figure, (left, right, *more) = plt.subplots(
        1, len(widths), figsize=(2.4 * sum(widths), 5), width_ratios=widths, layout="constrained"
    )
    number = len(results[0].stars)
    # From 1/20 on, before which the curves jump about; 500 points.
    counts = np.unique(np.linspace(max(1, number // 20), number, 500, dtype=int))
    curves = [_rmse_so_far(result)[counts - 1] for result in results]
    for index, (result, curve) in enumerate(zip(results, curves, strict=True)):
        # Dashes on top of the dynamic model's line, for the two lie on each other.
        style = {"linewidth": 3.0} if index == 0 else {"linewidth": 1.6}
        if index == 1:
            style = {"linewidth": 1.8, "linestyle": (0, (4, 4)), "zorder": 9}
        label = f"{result.name}: {curve[-1]:.3f}" + (", off the chart" if result is results[-1] else "")
        left.plot(counts, curve, color=_COLOURS[index], label=label, **style)
    # The mean is far above all others.
    shown = np.concatenate(curves[:-1])
    margin = 0.05 * (shown.max() - shown.min())
    left.set(title="RMSE so far, each rating predicted before it was seen", ylabel="RMSE (stars)")
    left.set_ylim(shown.min() - margin, shown.max() + margin)
    left.legend(framealpha=1, edgecolor="white")

    growth = results[0].growth
    for name, colour in zip(growth[-1][1], _COLOURS, strict=False):
        rows = [rows[name] for _, rows in growth]
        right.plot([step for step, _ in growth], rows, color=colour, linewidth=2)
        right.annotate(
            f"{name}: {rows[-1]:,}",
            (number, rows[-1]),
            (5, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    right.set(title="Rows of the dynamic embeddings", ylim=0)
    right.margins(y=0.08)
    for axes in (left, right):
        axes.set(xlabel="ratings so far", xlim=(0, number))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.grid(color="#e0e0e0")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    right.yaxis.set_major_formatter("{x:,.0f}")
    if bounded:
        _draw_bounded(results[0], bounded, more[0])
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_bounded(unbounded: Result, bounded: list[Result], axes) -> None:
    """A bar for each, and a line where the RMSE without a bound is."""
    means = [float(np.mean(result.rmse())) for result in bounded]
    spreads = [float(np.std(result.rmse())) for result in bounded]
    names = [result.name for result in bounded]
    colours = [_COLOURS[3 if name.startswith("hashed") else 0] for name in names]
    axes.barh(names, means, xerr=spreads, color=colours)
    axes.axvline(float(np.mean(unbounded.rmse())), color="black", linestyle="--", label="no bound")
    axes.invert_yaxis()
    least, most = min(means + unbounded.rmse()), max(means)
    margin = 0.2 * (most - least) or 0.01
    axes.set(title="RMSE of bounded tables", xlabel="RMSE (stars)", xlim=(least - margin, most + margin))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(framealpha=1, edgecolor="white")


def _rmse_so_far(result: Result) -> np.ndarray:
    squares = np.mean([(p - result.stars) ** 2 for p, _ in result.runs], axis=0, dtype=np.float64)
    return np.sqrt(np.cumsum(squares) / np.arange(1, len(squares) + 1))
