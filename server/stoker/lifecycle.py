"""The life of a servable in a device process: load, warm up, then ready."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import LoadFailed
from stoker.runtimes.base import Device, Runtime, Servable, load_runtime
from stoker.tensors import Signature, check_batch

__all__ = ["Loaded", "load"]

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
