"""Snapshots on the command line.

python -m tf_dynemb.snapshot info     SNAPSHOT                what is in it
python -m tf_dynemb.snapshot verify   SNAPSHOT                reads it from end to end
python -m tf_dynemb.snapshot export   SNAPSHOT FILE           one table to .npz or .parquet
python -m tf_dynemb.snapshot import   SNAPSHOT FILE [FILE..]  from .npz, .parquet, or TFRA's -keys files
python -m tf_dynemb.snapshot compact  SNAPSHOT BASE DELTA..   merges a chain into a new snapshot
python -m tf_dynemb.snapshot diff     SNAPSHOT SNAPSHOT       exit status 1 if they differ
"""

from __future__ import annotations

import datetime

from absl import app, flags

from tf_dynemb.snapshot import convert
from tf_dynemb.snapshot.files import SnapshotError, SnapshotReader

_TABLE = flags.DEFINE_string("table", None, "The table; may be left out where a snapshot has one.")
_DIM = flags.DEFINE_integer("dim", None, "import: numbers per row, of files that do not say it.")
_VALUE_DTYPE = flags.DEFINE_string("value_dtype", "float32", "import: of raw files, their value dtype.")
_KEY_DTYPE = flags.DEFINE_enum(
    "key_dtype", "int64", ["int64", "int32", "string"], "import: the table's key dtype."
)
_PROGRESS = flags.DEFINE_boolean("progress", True, "Whether to show a progress bar.")


def _bar(total: int | None, what: str):
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=" rows", unit_scale=True, disable=not _PROGRESS.value)


def _one_table(path: str) -> str:
    with SnapshotReader(path) as reader:
        names = list(reader.tables)
        if _TABLE.value is None and len(names) == 1:
            return names[0]
        if _TABLE.value is None:
            raise app.UsageError(f"--table: {path} has the tables {names}; say which")
        return reader.known(_TABLE.value)


def _rows_of(path: str, table: str | None = None) -> int:
    with SnapshotReader(path) as reader:
        return sum(info.rows for info in reader.tables.values() if table in (None, info.name))


def info(path: str) -> None:
    """Prints what the manifest says."""
    with SnapshotReader(path) as reader:
        created = datetime.datetime.fromtimestamp(reader.created_seconds, datetime.timezone.utc)
        kind = f"delta of {reader.base}" if reader.base else "full snapshot"
        print(f"{reader.id}  {kind}, of {created:%Y-%m-%d %H:%M:%S} UTC")
        for table in reader.tables.values():
            schema = table.schema
            erased = f", {table.erased} erased keys" if reader.base else ""
            slots = ", ".join(slot.name for slot in schema.slots)
            print(
                f"  {table.name}: {table.rows} rows{erased}, {table.file_bytes / 2**20:.1f} MiB; "
                f"{schema.key_dtype} -> {schema.value_dtype} x {schema.dim}"
                + (f"; {schema.rule} ({slots})" if schema.rule else "")
                + (f"; meta {', '.join(schema.meta)}" if schema.meta else "")
                + ("; strings of keys kept" if schema.strings else "")
            )


def verify(path: str) -> None:
    """Reads everything; an error says what is damaged."""
    with SnapshotReader(path) as reader:
        reader.verify()
    print(f"{path}: {_rows_of(path)} rows, undamaged")


def export(path: str, target: str) -> None:
    """One table to a file."""
    table = _one_table(path)
    with _bar(_rows_of(path, table), "export") as bar:
        rows = convert.export_table(path, table, target, bar.update)
    print(f"{target}: {rows} rows of {table}")


def import_(path: str, *sources: str) -> None:
    """A snapshot of one table from files."""
    if not sources:
        raise app.UsageError("import: got no files")
    with _bar(None, "import") as bar:
        rows = convert.import_table(
            path,
            _TABLE.value or "table",
            sources,
            _DIM.value,
            _VALUE_DTYPE.value,
            _KEY_DTYPE.value,
            bar.update,
        )
    print(f"{path}: {rows} rows")


def compact(path: str, *chain: str) -> None:
    """A chain to one snapshot."""
    with _bar(sum(map(_rows_of, chain)), "compact") as bar:
        identity = convert.compact(path, chain, bar.update)
    print(f"{path}: {identity}, {_rows_of(path)} rows")


def diff(first: str, second: str) -> int:
    """Prints how two snapshots differ."""
    differences = convert.diff(first, second)
    for d in differences:
        print(
            f"{d.table}: {d.same} rows the same, {d.changed} changed, {d.only_first} only in the first, "
            f"{d.only_second} only in the second"
        )
    return int(any(d.changed or d.only_first or d.only_second for d in differences))


_COMMANDS = {
    "info": info,
    "verify": verify,
    "export": export,
    "import": import_,
    "compact": compact,
    "diff": diff,
}


def main(argv: list[str]) -> int | None:
    """Runs one command."""
    if len(argv) < 2 or argv[1] not in _COMMANDS:
        raise app.UsageError(f"want a command: {', '.join(_COMMANDS)}")
    try:
        return _COMMANDS[argv[1]](*argv[2:])
    except TypeError as error:
        if "positional argument" not in str(error):
            raise
        raise app.UsageError(f"{argv[1]}: got {len(argv) - 2} arguments") from error
    except (SnapshotError, OSError, ValueError) as error:
        print(f"tf_dynemb.snapshot {argv[1]}: {error}")
        return 2


if __name__ == "__main__":
    app.run(main)
