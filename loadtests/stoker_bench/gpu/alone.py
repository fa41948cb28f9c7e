"""The rates of runtimes without a server, each measured in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import orjson

from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import output_of
from stoker_bench.gpu.ceiling import Ceiling

_PYTORCH_START_S: Final = 120.0
"""Most time for importing PyTorch, capturing and exporting."""
_TENSORFLOW_START_S: Final = 180.0
NO_TENSORFLOW: Final = "TensorFlow is not installed: pip install 'tensorflow[and-cuda]'"


@dataclass(frozen=True)
class Alone:
    """The rate of a runtime without a server.

    Attributes:
        rows: Rows per batch.
        ms: The time of a batch.
    """

    runtime: str
    rows: int
    rows_per_s: float
    ms: float


PYTORCH: Final = (
    Alone("PyTorch, captured, 2026-11-26", 1, 1562.5, 0.64),
    Alone("PyTorch, captured, 2026-11-26", 64, 15225.0, 64e3 / 15225),
)
"""BERT-base in FP16 as measured on an H200, for machines without PyTorch."""


def fastest_ways(ceiling: Ceiling, sizes: Sequence[int]) -> list[Alone]:
    """Return the fastest way of ONNX Runtime for each size of batches."""
    found = []
    for rows in sizes:
        best = max((each for each in ceiling.batches if each.rows == rows), key=lambda each: each.rows_per_s)
        found.append(Alone(f"ONNX Runtime, {best.way}", rows, best.rows_per_s, 1e3 * rows / best.rows_per_s))
    return found


def measure_pytorch(
    sizes: str, exported: Path, device: str, seed: int, batches: Sequence[int], seconds: float
) -> list[Alone]:
    """Measure a BERT in PyTorch, and export it.

    Args:
        sizes: A key of `bert.SIZES`.
        exported: The file to write.
        batches: Batch sizes in rows.

    Raises:
        OperatorError: PyTorch is not installed, or fails.
    """
    if find_spec("torch") is None:
        raise BenchedServerError("PyTorch is not installed")
    command = [sys.executable, "-m", "stoker_bench.gpu.torch_alone", "--device", device, "--sizes", sizes]
    command += ["--seed", str(seed), "--seconds", str(seconds), "--export", str(exported)]
    command += ["--batches", *map(str, batches)]
    figures = orjson.loads(output_of(command, _PYTORCH_START_S).splitlines()[-1])
    return [Alone("PyTorch, captured", **each) for each in figures]


def measure_tensorflow(
    folder: Path, device: str, seed: int, rows: int, seconds: float, *, fp16: bool = False
) -> float:
    """Write the perceptron as a SavedModel, and return the rows per second of TensorFlow with it.

    Args:
        rows: Rows per batch.
        fp16: Compute in mixed precision, not with XLA.

    Raises:
        OperatorError: TensorFlow is not installed, or fails.
    """
    if find_spec("tensorflow") is None:
        raise BenchedServerError(NO_TENSORFLOW)
    command = [sys.executable, "-m", "stoker_bench.gpu.tensorflow_alone", str(folder), "--device", device]
    command += ["--seed", str(seed), "--rows", str(rows), "--seconds", str(seconds)]
    command += ["--fp16"] * fp16
    rows_per_s: float = orjson.loads(output_of(command, _TENSORFLOW_START_S).splitlines()[-1])["rows_per_s"]
    return rows_per_s
