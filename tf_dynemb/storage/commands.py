"""What `tf-dynemb storage` does, by command; tf_dynemb_cli/storage.py describes their arguments."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

from tf_dynemb.snapshot import report
from tf_dynemb.storage import folders
from tf_dynemb.storage.folders import Damage, FlushedFolders, StorageDamagedError, StorageError
from tf_dynemb.storage.tiers import Disk


def _sum(numbers: Iterable[int | None]) -> int | None:
    """None if one of them is unknown."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _all_given(opened: FlushedFolders, paths: Sequence[str]) -> None:
    if len(paths) < opened.folders:
        raise StorageError(
            f"{paths[0]}: it is the first of {opened.folders} folders of its table, got {len(paths)}; "
            "give all of them, in the order in which Disk has them"
        )


def _bytes_on_disk(paths: Sequence[str]) -> int:
    """Of all files of the table, those that no flush has as well."""
    size = 0
    for path in filter(os.path.isdir, paths):
        for entry in os.scandir(path):
            with contextlib.suppress(FileNotFoundError):  # a table has just removed it
                size += entry.stat().st_size if entry.name.startswith("tier-") else 0
    return size


def _rows(opened: FlushedFolders) -> int | None:
    return _sum(file.rows for file in opened.files if file.kind == "index")


def _describe(opened: FlushedFolders, paths: Sequence[str]) -> dict[str, Any]:
    of_rows = [file for file in opened.files if file.kind == "rows"]
    # Several shards may have one file, in which each says dead what is not its own.
    one_of_each = list({file.file: file for file in opened.files}.values())
    live_bytes = _sum(file.live_bytes for file in of_rows)
    file_bytes = _sum(file.bytes for file in one_of_each)
    record_bytes = _sum(
        _sum([file.live_bytes, file.dead_bytes]) for file in one_of_each if file.kind == "rows"
    )
    missing = [path for path in paths if not os.path.isdir(path)]
    missing += [f"folder {n} of {opened.folders}" for n in range(len(paths) + 1, opened.folders + 1)]
    return {
        "folders": list(paths),
        "missing_folders": missing,
        "table": opened.table or None,
        "step": opened.step,
        "shards": 1 + max(file.shard for file in opened.files),
        "rows": _rows(opened),
        **report.schema_record(opened.schema),
        "file_bytes": file_bytes,
        "live_bytes": live_bytes,
        "dead_bytes": _sum([record_bytes, None if live_bytes is None else -live_bytes]),
        "space_amplification": file_bytes / live_bytes if file_bytes and live_bytes else None,
        "bytes_on_disk": _bytes_on_disk(paths),
        "files": [dataclasses.asdict(file) for file in opened.files],
        "damages": [dataclasses.asdict(damage) for damage in opened.damages],
    }


def info(asked: argparse.Namespace) -> None:
    """What the folders of a table hold, as of its last flush."""
    paths = Disk(asked.folders).paths
    with FlushedFolders(paths) as opened:
        found = _describe(opened, paths)
    if asked.json:
        report.print_json(found)
        return

    def size(name: str) -> str:
        return "unknown" if found[name] is None else f"{found[name] / 2**20:.1f} MiB"

    table = f"table {found['table']}, " if found["table"] else ""
    print(f"{' '.join(paths)}: {table}flushed as step {found['step']}")
    rows = "unknown" if found["rows"] is None else found["rows"]
    print(f"  rows {rows}, shards {found['shards']}; {report.schema_line(opened.schema)}")
    ratio = found["space_amplification"]
    print(
        f"  files {size('file_bytes')}, of which live {size('live_bytes')}, dead {size('dead_bytes')}"
        + (f"; space amplification {ratio:.2f}" if ratio else "")
    )
    print(f"  on disk {size('bytes_on_disk')}, with what came after the flush")
    for path in found["missing_folders"]:
        print(f"  missing: {path}")
    for damage in opened.damages:
        print(f"  {_said(damage)}")
    report.show([{n: "" if v is None else v for n, v in file.items()} for file in found["files"]], False)


def _said(damage: Damage) -> str:
    at = "" if damage.offset is None else f"byte {damage.offset}: "
    return f"{damage.file}: {at}{damage.what}"


def verify(asked: argparse.Namespace) -> int:
    """Read all files of the last flush; exit status 1 if anything is damaged, with what and where."""
    paths = Disk(asked.folders).paths
    try:
        with FlushedFolders(paths) as opened:
            _all_given(opened, paths)
            total = sum(file.bytes or 0 for file in opened.files)
            with report.progress_bar(total, "verify", "B", asked) as bar:
                opened.verify(bar.update)
        found = {"step": opened.step, "rows": _rows(opened), "bytes": total}
        damages = opened.damages
    except StorageDamagedError as error:
        path = os.path.join(paths[0], "FLUSHED")
        found = {"step": None, "rows": None, "bytes": None}
        damages = [Damage(path, None, str(error).removeprefix(f"{path}: "))]
    if asked.json:
        damages_found = [dataclasses.asdict(damage) for damage in damages]
        report.print_json({"folders": paths, **found, "damages": damages_found})
    elif damages:
        print("\n".join(map(_said, damages)))
    else:
        print(f"{' '.join(paths)}: {found['rows']} rows as of step {found['step']}, undamaged")
    return int(bool(damages))


def compact(asked: argparse.Namespace) -> None:
    """Rewrite files so that dead rows take no space; no table may have the folders."""
    paths = Disk(asked.folders).paths
    with FlushedFolders(paths) as opened:
        _all_given(opened, paths)
    before = _bytes_on_disk(paths)
    folders.compact(paths)
    found = {"folders": paths, "step": opened.step, "rows": _rows(opened)}
    found |= {"bytes_before": before, "bytes_after": _bytes_on_disk(paths)}
    if asked.json:
        report.print_json(found)
    else:
        print(
            f"{' '.join(paths)}: {found['rows']} rows as of step {found['step']}, "
            f"{before} bytes before, {found['bytes_after']} bytes after"
        )


COMMANDS = {"info": info, "verify": verify, "compact": compact}
ERRORS = (StorageError, OSError, ValueError, MemoryError)
