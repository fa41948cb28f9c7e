"""Reads the records that a server has collected of a model, as files or as a journal."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.collecting.record_files import _JOURNAL, _JSON_COLUMNS, _JSONL, _PARQUET, _by_age


def last_records(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the last records in a model's folder, at most `count`, by time; incomplete lines are skipped.

    Raises:
        OSError: A file cannot be read.
        ImportError: There are Parquet files, and pyarrow is not installed.
    """
    found: list[dict[str, Any]] = []
    hour: tuple[str, ...] = ()
    for path in reversed(_by_age(folder)):
        # Several writers share an hour; earlier hours only have older records.
        if len(found) >= count and path.parts[-5:-1] != hour:
            break
        hour = path.parts[-5:-1]
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile, or a journal that became Parquet
            found += deque(_records(path), maxlen=count)
    found.sort(key=lambda record: str(record["time"]))
    return found[-count:] if count else []


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == _PARQUET:
        from pyarrow import parquet

        for batch in parquet.ParquetFile(path).iter_batches():
            for record in batch.to_pylist():
                time = record["time"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
                yield _plain({**record, "time": time})
        return
    if path.suffix not in (_JSONL, _JOURNAL):
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                record = json.loads(line)
                yield _plain(record) if path.suffix == _JOURNAL else record


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as in JSON lines, from one whose inputs and outputs are JSON texts."""
    return {
        name: json.loads(value) if name in _JSON_COLUMNS else value
        for name, value in record.items()
        if value is not None
    }
