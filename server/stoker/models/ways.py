"""The ways in which an imported model can run: files that answer alike, and what was measured of each on a device."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from stoker.errors import LoadFailed
from stoker.gpu.selection import choose_device
from stoker.settings.choices import WAY_NAMES, Provider, WayName
from stoker.settings.files import settings_text
from stoker.system.child_orders import order_child
from stoker.system.durable import private_folder, replace_file

logger = logging.getLogger(__name__)

REFERENCE: Final = "reference.npz"
"""The file of a version with the inputs that its ways were compared on, and the original's float32 answers."""
_MEASURING: Final = "stoker.importing.measuring"
_LIBRARIES: Final = ("onnxruntime", "onnxruntime-gpu", "tensorflow", "torch")
_MOST_BYTES: Final = 1 << 20
_MOST_FAILURES: Final = 3
"""How often a way is measured on a device where that fails."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a model.

    Attributes:
        framework: What loads its file.
        entry: Its file or folder, relative to the files of the version.
        provider: What runs an ONNX model on a GPU.
    """

    framework: Literal["onnx", "tensorflow", "torch"]
    entry: str
    provider: Provider = "cuda"


@dataclass(frozen=True, slots=True)
class WayResult:
    """The measurements of one way on one device.

    Attributes:
        problem: Why it does not run; empty if it runs. Then the other fields hold.
        differs: Why its answers are not those of the original; empty if they are, within the tolerance.
        difference: The largest difference from the original's float32 answers, relative to the largest number of
            an output; None where answers cannot be compared.
        flips: In how many compared outputs the class differs.
        compared: The number of requests whose answers have to agree.
        remarks: What differs on inputs whose answers need not agree.
        batched: Whether rows of different callers may share a batch.
        isolation: How that is known, in words.
        one_row_ms: Time of a batch of one row, or of one request.
        best_rows, best_ms: The batch that does the most rows a second, and its time.
        memory_bytes: Peak memory of its process on the host.
        load_s: Seconds until it was ready.
    """

    way: str
    problem: str = ""
    differs: str = ""
    difference: float | None = None
    flips: int = 0
    compared: int = 0
    remarks: tuple[str, ...] = ()
    batched: bool = False
    isolation: str = ""
    one_row_ms: float = 0.0
    best_rows: int = 1
    best_ms: float = 0.0
    memory_bytes: int = 0
    load_s: float = 0.0

    @property
    def cost(self) -> float:
        """The rank of a way: the time of one row and the time a row in the best batch have equal weight."""
        return self.one_row_ms * self.best_ms / self.best_rows

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> WayResult:
        """Inverse of `dataclasses.asdict`."""
        return cls(**{**content, "remarks": tuple(content["remarks"])})


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways of a registered version, as its manifest has them.

    Attributes:
        original: The way that the imported file is.
        default: The way that was chosen at the import.
        place: The device and the libraries that it was chosen on; see `describe_place`.
        tolerance: The largest difference with which a way agrees, relative to the largest number of an output.
        max_batch_rows: The most rows of a batch that was measured.
        batched: Whether the rows of the original may share a batch.
        ways: The original and those that agreed with it.
        results: What was measured at the import, also of ways that were left out.
    """

    original: str
    default: str
    place: str
    tolerance: float
    max_batch_rows: int
    batched: bool
    ways: Mapping[str, Way]
    results: tuple[WayResult, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Ways:
        """Inverse of `to_json`.

        Raises:
            TypeError, KeyError, ValueError: It is something else.
        """
        ways = {name: Way(**way) for name, way in content["ways"].items()}
        if not {content["original"], content["default"]} <= ways.keys() <= set(WAY_NAMES):
            raise ValueError(f"unknown ways {', '.join(ways)}")
        results = tuple(map(WayResult.from_json, content["results"]))
        return cls(**{**content, "ways": ways, "results": results})


# Which way is the default.


def objection(result: WayResult, *, batched: bool) -> str:
    """Return why a way cannot be the default; empty if it can.

    Args:
        batched: Whether rows of the original may share a batch.
    """
    if result.problem or result.differs:
        return result.problem or result.differs
    if batched and not result.batched:
        return f"its rows mix, and those of the original do not: {result.isolation}"
    return ""


def choose_default(results: Sequence[WayResult], original: str, *, batched: bool) -> str:
    """Return the fastest way that agrees with the original and keeps rows apart as it does; else the original.

    Args:
        batched: Whether rows of the original may share a batch.
    """
    agreeing = [one for one in results if not objection(one, batched=batched)]
    return min(agreeing, key=lambda one: one.cost).way if agreeing else original


# Measuring.


@dataclass(frozen=True, slots=True)
class Bench:
    """The inputs for measuring ways.

    Attributes:
        name: The model's name, for messages.
        folder: The folder that has their files and the reference.
        device: A setting of one device.
        limit_s: How long loading and measuring a way may take.
    """

    name: str
    folder: Path
    device: str
    tolerance: float
    max_batch_rows: int
    limit_s: float

    def order(self, way: Way, **more: Any) -> dict[str, Any]:
        """Return the order of a process that loads a way; see `stoker.importing.measuring`."""
        return {
            "name": self.name,
            "framework": way.framework,
            "path": str(self.folder / way.entry),
            "model_dir": str(self.folder),
            "provider": way.provider,
            "reference": str(self.folder / REFERENCE),
            "device": self.device,
            "tolerance": self.tolerance,
            "max_batch_rows": self.max_batch_rows,
            **more,
        }


def record_reference(bench: Bench, original: Way) -> dict[str, Any]:
    """Have a process run the original in float32 and write its answers.

    Returns:
        `signature` as `Signature.to_json` gives it, and the names of the inputs that need not agree in `remarks`.

    Raises:
        LoadFailed: It cannot be loaded, or answers nothing that was made up.
    """
    order = bench.order(original, record=True)
    return order_child(_MEASURING, order, bench.limit_s, bench.name, "loaded and run")


def measure_way(name: str, way: Way, bench: Bench) -> WayResult:
    """Have a process load a way, compare its answers with the reference, and time its batches.

    A process that crashes or hangs is a result too.
    """
    try:
        order = bench.order(way, allow_pickle=name == "aoti")
        answer = order_child(_MEASURING, order, bench.limit_s, bench.name, "loaded and measured")
    except LoadFailed as error:
        return WayResult(name, problem=" ".join(str(error).split()))
    difference = answer["difference"]
    answer["difference"] = None if difference is None or not math.isfinite(difference) else difference
    return WayResult.from_json({"way": name, **answer})


def describe_place(device: str) -> str:
    """Return what a choice among ways holds for: a device, and the versions of the libraries that may use it.

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

    A failure may pass (no memory, no time): a way that failed is measured at the next starts too, three times in all.

    Args:
        digest: Of the files of the version.
        bench: What to measure with, on the device that the model will have.
        cache: The folder of what was measured on this machine.

    Returns:
        The way, and a line for the operator; empty where the import measured on such a device.
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


def digest_of(checksums: Mapping[str, str]) -> str:
    """Return the digest of files by their SHA-256 sums."""
    return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()


def _read_cache(file: Path) -> dict[str, list[WayResult]]:
    try:
        content = json.loads(settings_text(file, _MOST_BYTES))
        return {place: list(map(WayResult.from_json, results)) for place, results in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Missing or damaged: what it held is measured again.
        return {}


def _write_cache(file: Path, measured: Mapping[str, Sequence[WayResult]]) -> None:
    content = {place: list(map(asdict, results)) for place, results in measured.items()}
    try:
        private_folder(file.parent)
        replace_file(file, json.dumps(content, indent=2).encode())
    except OSError as error:
        logger.warning("%s cannot be written, so the next start measures again: %s", file, error.strerror)
