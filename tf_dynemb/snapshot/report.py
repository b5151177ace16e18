"""What the command line shows: tables by rich, which comes with Keras, JSON, charts."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from tf_dynemb.snapshot.statistics import TableStatistics
from tf_dynemb.table.schema import Schema


def progress_bar(total: int | None, what: str, unit: str, asked: argparse.Namespace) -> Any:
    """A bar of tqdm on a terminal, unless --noprogress says otherwise."""
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, unit_scale=True, disable=asked.noprogress or None)


def print_json(what: object) -> None:
    """Prints JSON, for people to read as well; numbers that are not finite as null."""
    print(json.dumps(_finite(what), indent=2, allow_nan=False))


def _finite(what: Any) -> Any:
    if isinstance(what, float):
        return what if math.isfinite(what) else None
    if isinstance(what, dict):
        return {name: _finite(part) for name, part in what.items()}
    return [_finite(part) for part in what] if isinstance(what, (list, tuple)) else what


def schema_record(schema: Schema) -> dict[str, Any]:
    """What a row is made of, for print_json."""
    return {
        "key_dtype": schema.key_dtype,
        "value_dtype": schema.value_dtype.name,
        "dim": schema.dim,
        "rule": schema.rule,
        "slots": [slot.name for slot in schema.slots],
        "meta": list(schema.meta),
        "keep_keys": schema.strings,
    }


def schema_line(schema: Schema) -> str:
    """The same in words."""
    slots = ", ".join(slot.name for slot in schema.slots)
    return (
        f"{schema.key_dtype} -> {schema.value_dtype} x {schema.dim}"
        + (f"; {schema.rule} ({slots})" if schema.rule else "")
        + (f"; meta {', '.join(schema.meta)}" if schema.meta else "")
        + ("; strings of keys kept" if schema.strings else "")
    )


def show(records: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Prints a line for each record, or JSON. A record in a record has columns such as "norm.max"."""
    if as_json:
        print_json(list(records))
        return
    flat = [_flat(record) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    table = RichTable(box=None)
    for name in names:
        table.add_column(name, justify="left" if name in ("table", "file") else "right", no_wrap=True)
    for record in flat:
        table.add_row(*(_cell(record.get(name, "")) for name in names))
    console = Console(width=10**6 if not Console().is_terminal else None, highlight=False, markup=False)
    console.print(table)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, what in record.items():
        inner = what if isinstance(what, dict) else None
        flat |= {name: what} if inner is None else {f"{name}.{part}": n for part, n in inner.items()}
    return flat


def _cell(what: object) -> str:
    if isinstance(what, float):
        return f"{what:.6g}"
    if isinstance(what, list):
        return " ".join(f"{number:.4g}" for number in what)
    return str(what)


def check_can_draw(png: str | None) -> None:
    """ImportError if a chart is wanted and matplotlib is not installed."""
    if png and importlib.util.find_spec("matplotlib") is None:
        raise ImportError("--png needs matplotlib: pip install matplotlib")


def draw_stats(found: Sequence[TableStatistics], png: str) -> None:
    """A histogram of norms, and of counts if there are some, for each table."""
    names = ["norm"] + (["count"] if any("count" in each.numbers for each in found) else [])
    figure, all_axes = _subplots(len(found), len(names))
    for each, row in zip(found, all_axes, strict=True):
        for name, axes in zip(names, row, strict=True):
            numbers = np.asarray(each.numbers.get(name, ()), np.float64)
            finite = numbers[np.isfinite(numbers)]
            title = f"{each.table}: {each.rows:,} rows"
            if len(finite):
                axes.hist(finite, bins=50, log=True)
            if len(finite) < len(numbers):
                title += f", {len(numbers) - len(finite):,} not finite"
            axes.set(title=title, xlabel=name, ylabel="rows")
    figure.savefig(png, dpi=130)


def draw_top(rows: Sequence[dict[str, Any]], by: str, table: str, png: str) -> None:
    """A bar for each row."""
    figure, ((axes,),) = _subplots(1, 1)
    axes.barh([str(row["key"]) for row in rows], [row[by] for row in rows])
    axes.invert_yaxis()
    axes.set(title=f"{table}: {len(rows)} rows", xlabel=by, ylabel="key")
    figure.savefig(png, dpi=130)


def draw_sample(rows: Sequence[dict[str, Any]], table: str, png: str) -> None:
    """A line of colours for each row, one for each number."""
    figure, ((axes,),) = _subplots(1, 1)
    if rows:
        image = axes.imshow([row["value"] for row in rows], aspect="auto", interpolation="nearest")
        figure.colorbar(image)
        axes.set_yticks(range(len(rows)), [str(row["key"]) for row in rows])
    axes.set(title=f"{table}: {len(rows)} rows", xlabel="column", ylabel="key")
    figure.savefig(png, dpi=130)


def _subplots(rows: int, columns: int) -> tuple[Any, Any]:
    """A figure of its own, without pyplot, which has a state; axes as a list of lists."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * columns, 4 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)
