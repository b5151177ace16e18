"""What `tf-dynemb snapshot` does, by command; tf_dynemb_cli/snapshot.py describes their arguments."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from collections.abc import Container
from typing import Any

from tf_dynemb.snapshot import convert, report, statistics
from tf_dynemb.snapshot.files import SnapshotError, SnapshotReader, TableInfo


def _bar(total: int | None, what: str, asked: argparse.Namespace) -> Any:
    return report.progress_bar(total, what, " rows", asked)


def _one_table(path: str, table: str | None) -> str:
    with SnapshotReader(path) as reader:
        names = [name for name in reader.tables if not _counts_for_another(name, reader.tables)]
        if table is None and len(names) == 1:
            return names[0]
        if table is None:
            raise ValueError(f"--table: {path} has the tables {names}; say which")
        return reader.known(table)


def _counts_for_another(name: str, names: Container[str]) -> bool:
    """Whether it is what counts for another table: its candidates, their sketch, or looks."""
    other, _, what = name.rpartition(".")
    return what in ("candidates", "sketch", "looks") and other in names


def _rows_of(path: str, table: str | None = None) -> int:
    with SnapshotReader(path) as reader:
        return sum(info.rows for info in reader.tables.values() if table in (None, info.name))


def _record(table: TableInfo) -> dict[str, Any]:
    return {
        "name": table.name,
        "rows": table.rows,
        "erased": table.erased,
        "bytes": table.file_bytes,
        **report.schema_record(table.schema),
    }


def info(asked: argparse.Namespace) -> None:
    """What is in a snapshot."""
    with SnapshotReader(asked.snapshot) as reader:
        created = datetime.datetime.fromtimestamp(reader.created_seconds, datetime.timezone.utc)
        tables = list(reader.tables.values())
        if asked.json:
            of_snapshot = {"id": reader.id, "base": reader.base or None, "created": created.isoformat()}
            report.print_json({**of_snapshot, "tables": [_record(table) for table in tables]})
            return
        kind = f"delta of {reader.base}" if reader.base else "full snapshot"
        print(f"{reader.id}  {kind}, of {created:%Y-%m-%d %H:%M:%S} UTC")
        for table in tables:
            erased = f", {table.erased} erased keys" if reader.base else ""
            print(
                f"  {table.name}: {table.rows} rows{erased}, {table.file_bytes / 2**20:.1f} MiB; "
                + report.schema_line(table.schema)
            )


def verify(asked: argparse.Namespace) -> None:
    """Read it from end to end; an error says what is damaged."""
    rows = _rows_of(asked.snapshot)
    with SnapshotReader(asked.snapshot) as reader, _bar(rows, "verify", asked) as bar:
        reader.verify(bar.update)
    if asked.json:
        report.print_json({"snapshot": asked.snapshot, "rows": rows})
    else:
        print(f"{asked.snapshot}: {rows} rows, undamaged")


def export(asked: argparse.Namespace) -> None:
    """One table to .npz or .parquet."""
    table = _one_table(asked.snapshot, asked.table)
    with _bar(_rows_of(asked.snapshot, table), "export", asked) as bar:
        rows = convert.export_table(asked.snapshot, table, asked.file, bar.update)
    print(f"{asked.file}: {rows} rows of {table}")


def import_(asked: argparse.Namespace) -> None:
    """A snapshot of one table, from .npz, .parquet, or TFRA's -keys files."""
    with _bar(None, "import", asked) as bar:
        rows = convert.import_table(
            asked.snapshot,
            asked.table,
            asked.files,
            asked.dim,
            asked.value_dtype,
            asked.key_dtype,
            bar.update,
            asked.keep_keys,
        )
    print(f"{asked.snapshot}: {rows} rows")


def compact(asked: argparse.Namespace) -> None:
    """Merge a chain, a full snapshot and its deltas, into a new snapshot."""
    with _bar(sum(map(_rows_of, asked.chain)), "compact", asked) as bar:
        identity = convert.compact(asked.snapshot, asked.chain, bar.update)
    print(f"{asked.snapshot}: {identity}, {_rows_of(asked.snapshot)} rows")


def diff(asked: argparse.Namespace) -> int:
    """How two snapshots differ; exit status 1 if they do."""
    with _bar(_rows_of(asked.snapshot) + _rows_of(asked.other), "diff", asked) as bar:
        differences = convert.diff(asked.snapshot, asked.other, bar.update)
    if asked.json:
        report.print_json([dataclasses.asdict(d) for d in differences])
    for d in [] if asked.json else differences:
        print(
            f"{d.table}: {d.same} rows the same, {d.changed} changed, {d.only_first} only in the first, "
            f"{d.only_second} only in the second" + ("" if d.same_schema else "; made of other things")
        )
    return int(any(differences))


def stats(asked: argparse.Namespace) -> None:
    """Sizes, L2 norms and dead rows of each table, and the spread of what policies keep."""
    report.check_can_draw(asked.png)
    with SnapshotReader(asked.snapshot) as reader:
        names = list(reader.tables) if asked.table is None else [reader.known(asked.table)]
        with _bar(sum(reader.tables[name].rows for name in names), "stats", asked) as bar:
            found = [statistics.stats(reader, name, asked.dead_norm, bar.update) for name in names]
    report.show([each.summary() for each in found], asked.json)
    if asked.png:
        report.draw_stats(found, asked.png)


def top(asked: argparse.Namespace) -> None:
    """The rows that were trained most, or have the most of what --by says."""
    report.check_can_draw(asked.png)
    table = _one_table(asked.snapshot, asked.table)
    with SnapshotReader(asked.snapshot) as reader:
        with _bar(reader.tables[table].rows, "top", asked) as bar:
            rows = statistics.top(reader, table, asked.by, asked.rows, bar.update)
    report.show(rows, asked.json)
    if asked.png:
        report.draw_top(rows, asked.by, table, asked.png)


def sample(asked: argparse.Namespace) -> None:
    """Rows at random, with their values."""
    report.check_can_draw(asked.png)
    table = _one_table(asked.snapshot, asked.table)
    with SnapshotReader(asked.snapshot) as reader:
        with _bar(reader.tables[table].rows, "sample", asked) as bar:
            rows = statistics.sample(reader, table, asked.rows, asked.seed, bar.update)
    report.show(rows, asked.json)
    if asked.png:
        report.draw_sample(rows, table, asked.png)


COMMANDS = {
    "info": info,
    "verify": verify,
    "export": export,
    "import": import_,
    "compact": compact,
    "diff": diff,
    "stats": stats,
    "top": top,
    "sample": sample,
}
ERRORS = (SnapshotError, OSError, ValueError, TypeError, MemoryError, ImportError)
