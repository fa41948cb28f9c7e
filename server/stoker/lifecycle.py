"""The life of a servable in a device process: load, warm up, then ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.servable import Device, Servable
from stoker.tensors import Signature, check_batch

__all__ = ["Loaded", "load", "load_runtime"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A servable that is ready to serve.

    Attributes:
        runtime: The loaded runtime.
        load_s: Seconds until it was loaded.
        warm_up_s: Seconds that its first batches took.
    """

    runtime: Runtime
    load_s: float
    warm_up_s: float

    @property
    def signature(self) -> Signature:
        """What the servable takes and gives."""
        return self.runtime.signature


def load(servable: Servable, device: Device, threads: int) -> Loaded:
    """Load a servable and run its first batches, the smallest and the largest, so that no caller pays for them.

    Raises:
        LoadFailed: It cannot be loaded, or it fails on zeros.
    """
    begun = time.perf_counter()
    runtime = load_runtime(servable, device, threads)
    loaded = time.perf_counter()
    if runtime.signature.takes == "rows":
        for rows in sorted({1, servable.max_batch_rows}):
            _warm_up(runtime, servable, rows)
    return Loaded(runtime, loaded - begun, time.perf_counter() - loaded)


def _warm_up(runtime: Runtime, servable: Servable, rows: int) -> None:
    inputs = [np.zeros((rows, *spec.shape), spec.dtype) for spec in runtime.signature.inputs]
    try:
        outputs: Any = runtime.run(inputs)
        for spec, batch in zip(runtime.signature.outputs, outputs, strict=True):
            if not spec.variable:
                check_batch(spec, batch, rows)
    except Exception as error:
        raise LoadFailed(f"{servable.name} fails on a batch of {rows} rows of zeros: {error}") from error


def load_runtime(servable: Servable, device: Device, threads: int) -> Runtime:
    """Load a servable onto a device.

    Args:
        servable: What to load.
        device: Where it runs.
        threads: Threads that one CPU operation may use.

    Raises:
        LoadFailed: It cannot be loaded; the message says why.
    """
    load = _loader(servable.framework)
    return load(servable, device, threads)


def _loader(framework: str) -> Callable[[Servable, Device, int], Runtime]:
    match framework:
        case "onnx":
            from stoker.runtimes.onnx import load_onnx

            return load_onnx
        case "tensorflow":
            from stoker.runtimes.tensorflow import load_saved_model

            return load_saved_model
        case "script":
            from stoker.runtimes.script import load_script

            return load_script
        case _:
            raise LoadFailed(
                f"framework {framework!r} cannot be served by itself; register it with an entry script (score.py)"
            )
