"""Chooses the way in which an imported model runs on this machine, and keeps the measurements of its devices."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import msgspec

from stoker.gpu.selection import choose_device
from stoker.models.way_measuring import Bench, measure_way
from stoker.models.ways import WayResult, Ways
from stoker.settings.choices import WayName
from stoker.settings.files import settings_text
from stoker.system.durable import private_folder, replace_file

logger = logging.getLogger(__name__)


_LIBRARIES: Final = ("onnxruntime", "onnxruntime-gpu", "tensorflow", "torch")
_MOST_BYTES: Final = 1 << 20
_MOST_FAILURES: Final = 3
"""The most failed measurements of a way on a device."""


def objection(result: WayResult, *, batched: bool) -> str:
    """Return the reason why a way cannot be the default; empty if it can.

    Args:
        batched: Whether rows of the original may share a batch.
    """
    if result.problem or result.differs:
        return result.problem or result.differs
    if batched and not result.batched:
        return f"its rows mix, and those of the original do not: {result.isolation}"
    return ""


def choose_default(results: Sequence[WayResult], original: str, *, batched: bool) -> str:
    """Return the fastest way that agrees with the original and does not mix rows that it keeps apart.

    Args:
        batched: Whether rows of the original may share a batch.
    """
    agreeing = [one for one in results if not objection(one, batched=batched)]
    return min(agreeing, key=lambda one: one.cost).way if agreeing else original


def describe_place(device: str) -> str:
    """Return the conditions of a choice among ways: a device, and the versions of the libraries that may use it.

    Args:
        device: A setting of one device; the first of several.
    """
    from importlib import metadata

    found, _ = choose_device(device, (), lambda _uuid, _framework: None)
    versions = []
    for library in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{library} {metadata.version(library)}")
    return f"{found.kind} ({found.description}); {', '.join(versions) or 'no framework'}"


def choose_here(
    ways: Ways, digest: str, bench: Bench, cache: Path, measure: Callable[..., WayResult] = measure_way
) -> tuple[WayName, str]:
    """Return the default way on this machine, measured again if the import measured on another device.

    Failures may pass (no memory, no time): a failed way is measured again at the next starts, three times in all.

    Args:
        digest: The digest of the files of the version.
        bench: The inputs for measuring, with the device of the model.
        cache: The folder with the measurements of this machine.

    Returns:
        The way, and a line for the operator, which is empty if the import measured on such a device.
    """
    place = describe_place(bench.device)
    if place == ways.place:
        return cast("WayName", ways.default), ""
    file = cache / f"ways-{digest[:16]}.json"
    measured = _read_cache(file)
    known = measured.get(place, [])
    failures = Counter(one.way for one in known if one.problem)
    settled = {one.way for one in known if not one.problem or failures[one.way] >= _MOST_FAILURES}
    if missing := [name for name in ways.ways if name not in settled]:
        logger.info("%s: measuring its ways on %s: %s", bench.name, place, ", ".join(missing))
        known = known + [measure(name, ways.ways[name], bench) for name in missing]
        _write_cache(file, {**measured, place: known})
    latest = {one.way: one for one in known}
    results = [latest[name] for name in ways.ways]
    chosen = choose_default(results, ways.original, batched=ways.batched)
    reasons = {one.way: objection(one, batched=ways.batched) for one in results}
    parts = [
        f"{one.way} {reasons[one.way] or f'{one.one_row_ms:.3g} ms, {one.best_ms:.3g} ms for {one.best_rows} rows'}"
        for one in results
    ]
    return cast("WayName", chosen), f"execution {chosen}, measured on this device: {'; '.join(parts)}"


def _read_cache(file: Path) -> dict[str, list[WayResult]]:
    try:
        return msgspec.json.decode(settings_text(file, _MOST_BYTES), type=dict[str, list[WayResult]])
    except (OSError, ValueError):
        # Missing or damaged: the ways are measured again.
        return {}


def _write_cache(file: Path, measured: Mapping[str, Sequence[WayResult]]) -> None:
    try:
        private_folder(file.parent)
        replace_file(file, msgspec.json.format(msgspec.json.encode(measured)))
    except OSError as error:
        logger.warning("%s cannot be written, so the next start measures again: %s", file, error.strerror)
