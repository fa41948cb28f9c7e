"""Writes metrics of runs as event files of TensorBoard, without TensorBoard or TensorFlow.

A file consists of records: length, checksum of the length, an `Event` protocol buffer, checksum of the event.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from stoker.system.durable import private_folder
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.plotting import curves_of, thinned

__all__ = ["crc32c", "event_record", "write_logdir"]

_POLYNOMIAL: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_VERSION: Final = b"brain.Event:2"
_FOLDERS: Final = ("outputs", "logs")


def _table() -> tuple[int, ...]:
    rows = []
    for number in range(256):
        value = number
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """The CRC-32C checksum (Castagnoli's polynomial)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + _MASK) & 0xFFFFFFFF)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked(length) + event + _masked(event)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def event_record(name: str, value: float, step: int, time_s: float) -> bytes:
    """Encode one value of a metric as a record.

    Args:
        name: The metric's name.
        value: The value; stored as float32.
        step: The step.
        time_s: When it was measured, in seconds since 1970.
    """
    # Event{wall_time = 1, step = 2, summary = 5}, Summary{value = 1}, Value{tag = 1, simple_value = 2}.
    kept = _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", max(min(value, 3.4e38), -3.4e38))
    return _record(
        b"\x09" + struct.pack("<d", time_s) + b"\x10" + _varint(max(step, 0)) + _bytes(5, _bytes(1, kept))
    )


def write_logdir(folders: Sequence[RunFolder], place: Path) -> Path:
    """Make a folder for TensorBoard with each run's metrics, and the event files its script has written itself.

    Args:
        folders: The runs.
        place: The folder; its previous content is removed.
    """
    shutil.rmtree(place, ignore_errors=True)
    for folder in folders:
        home = private_folder(place / folder.id)
        began_s = folder.record().created_ms / 1000
        (home / "events.out.tfevents.0.stoker").write_bytes(b"".join(_events(folder, began_s)))
        for number in folder.attempts():
            for name in _FOLDERS:
                _link(folder.attempt(number) / "work" / name, home / name)
        for name in _FOLDERS:
            _link(folder.path / name, home / name)
    return place


def _events(folder: RunFolder, began_s: float) -> Iterable[bytes]:
    yield _record(b"\x09" + struct.pack("<d", began_s) + _bytes(3, _VERSION))
    for name, curve in curves_of(folder.metric_lines()).items():
        places, values, _ = thinned(curve)
        yield from (
            event_record(name, value, int(step), began_s) for step, value in zip(places, values, strict=True)
        )


def _link(written: Path, place: Path) -> None:
    if (
        written.is_dir()
        and not written.is_symlink()
        and any(written.iterdir())
        and not os.path.lexists(place)
    ):
        place.symlink_to(written)
