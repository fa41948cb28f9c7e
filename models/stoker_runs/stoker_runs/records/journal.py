"""Append-only files of JSON lines: each line is one write, so that a crash damages at most the last one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["append_line", "numbers_of", "object_of", "plain", "read_chunks", "read_lines", "real"]

_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_CHUNK_BYTES: Final = 1 << 20


def append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append one line with a single write, after terminating an incomplete last line.

    Raises:
        OSError: The file cannot be written.
    """
    line = json.dumps({key: plain(value) for key, value in content.items()}, allow_nan=False).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines in order; incomplete or damaged lines are skipped.

    A missing file has no lines. An unterminated last line is not read, because it may still be being written.
    """
    for chunk in read_chunks(path):
        for line in chunk.split(b"\n"):
            content = object_of(line)
            if content is not None:
                yield content


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file in large chunks, for readers that do not need each line as an object."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        rest = b""
        while chunk := file.read(_CHUNK_BYTES):
            lines, newline, behind = chunk.rpartition(b"\n")
            if newline:
                yield rest + lines
                rest = behind
            else:
                rest += chunk


def plain(value: Any) -> Any:
    """Replace a float that JSON cannot represent by its text; other values stay as they are."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def real(value: Any) -> Any:
    """Inverse of `plain`: the float for its text; other values stay as they are."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def numbers_of(line: Mapping[str, Any]) -> list[tuple[str, list[float]]]:
    """The numbers in a line of metrics, by name: one of a value, those of a list, of a row or table each column's.

    The numbers of a column have the name `METRIC.COLUMN`. Texts and what else is no number are left out.
    """
    name, value, kind = line.get("k"), line.get("v"), line.get("y")
    if not isinstance(name, str):
        return []
    if kind is None:
        found = {name: [value]}
    elif kind == "list" and isinstance(value, list):
        found = {name: value}
    elif kind in ("row", "table") and isinstance(value, dict):
        found = {f"{name}.{key}": one if isinstance(one, list) else [one] for key, one in value.items()}
    else:
        return []
    several = ((key, [_number(value) for value in values]) for key, values in found.items())
    numbers = ((key, [value for value in values if value is not None]) for key, values in several)
    return [(key, values) for key, values in numbers if values]


def _number(value: Any) -> float | None:
    value = real(value)
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def object_of(line: bytes) -> dict[str, Any] | None:
    """The object of one line; None if the line is incomplete or damaged."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
