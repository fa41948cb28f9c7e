"""Has processes measure the ways of an imported model on a device: their answers, times and memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.errors import LoadFailed
from stoker.models.ways import Way, WayResult
from stoker.system.child_orders import order_child

REFERENCE: Final = "reference.npz"
"""The file of a version with inputs for comparing its ways, and the original's float32 answers."""
_MEASURING: Final = "stoker.importing.measuring"


class Bench(Struct, frozen=True):
    """The inputs for measuring ways.

    Attributes:
        name: The model's name, for messages.
        folder: The folder with their files and the reference.
        device: A setting of one device.
        limit_s: The time limit for loading and measuring a way.
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
        LoadFailed: The original cannot be loaded, or answers no made-up input.
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
    return msgspec.convert({"way": name, **answer}, WayResult)
