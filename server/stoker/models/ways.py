"""The ways in which an imported model can run: files that answer alike, with their measurements on a device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stoker.settings.choices import WAY_NAMES, Provider


class Way(Struct, frozen=True):
    """One way to run a model.

    Attributes:
        framework: The framework that loads its file.
        entry: Its file or folder, relative to the files of the version.
        provider: The execution provider of an ONNX model on a GPU.
    """

    framework: Literal["onnx", "tensorflow", "torch"]
    entry: str
    provider: Provider = "cuda"


class WayResult(Struct, frozen=True):
    """The measurements of one way on one device.

    Attributes:
        problem: The reason why it does not run; empty if it runs. Only then the other fields count.
        differs: The difference of its answers from the original's; empty within the tolerance.
        difference: The largest difference from the original's float32 answers, relative to the largest number of
            an output; None where answers cannot be compared.
        flips: The number of compared outputs whose class differs.
        compared: The number of requests whose answers have to agree.
        remarks: Differences on inputs whose answers need not agree.
        batched: Whether rows of different callers may share a batch.
        isolation: The reason, for the operator.
        one_row_ms: Time of a batch of one row, or of one request.
        best_rows, best_ms: The batch with the most rows a second, and its time.
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


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways of a registered version, as its manifest has them.

    Attributes:
        original: The way of the imported file.
        default: The way that was chosen at the import.
        place: The device and the libraries of the import; see `describe_place`.
        tolerance: The largest difference with which a way agrees, relative to the largest number of an output.
        max_batch_rows: The most rows of a batch that was measured.
        batched: Whether the rows of the original may share a batch.
        ways: The original and the ways that agreed with it.
        results: The measurements of the import, also of ways that were left out.
    """

    original: str
    default: str
    place: str
    tolerance: float
    max_batch_rows: int
    batched: bool
    ways: Mapping[str, Way]
    results: tuple[WayResult, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not {self.original, self.default} <= self.ways.keys() <= set(WAY_NAMES):
            raise ValueError(f"unknown ways {', '.join(self.ways)}")

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


def digest_of(checksums: Mapping[str, str]) -> str:
    """Return the digest of files by their SHA-256 sums."""
    return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()
