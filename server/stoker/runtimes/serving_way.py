"""What a model is to the scheduler: rows of a fixed shape, requests that may be put together, or neither.

A dynamic first axis need not be a batch: it may be time, or words. A model whose rows see each other must not see the
rows of other callers, so its requests run one after the other.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.judgement import judge
from stoker.isolation.reading import Reading
from stoker.isolation.samples import find_sample_feeds, first_rows
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.declared import as_declared, is_reshaped
from stoker.runtimes.packed import Feeds, PackedRuntime, Run
from stoker.servable import Servable
from stoker.system.resources import require_memory
from stoker.tensors import ModelTensors, Signature, TensorSpec

__all__ = ["as_runtime"]

logger = logging.getLogger(__name__)


def as_runtime(
    servable: Servable,
    run: Run,
    tensors: ModelTensors,
    rows_runtime: Callable[[Signature], Runtime],
    read: Callable[[], Reading] | None = None,
    *,
    sampled: bool = True,
    examples: Feeds | None = None,
) -> Runtime:
    """Choose how a model is served; the verdict on its rows is a part of its signature.

    Args:
        servable: The model and its limits.
        run: The model as a function of named tensors.
        tensors: What it declares; `batched` says whether its first axes may be one batch axis.
        rows_runtime: Makes the runtime for rows of a fixed shape.
        read: Reads its graph; None if there is nothing to read.
        sampled: Whether what is declared of it, and the requests that it is known to answer, are for this function.
        examples: Rows that the model itself says it answers, where its operator gives none; None if it says nothing.

    Raises:
        LoadFailed: It is not what was declared of it, its inputs cannot be padded, its sample input does not fit it,
            or the device fails whatever it is given.
    """
    if sampled:
        run, tensors = as_declared(servable.declaration, run, tensors)
    sample = find_sample_feeds(servable, tensors.inputs) if sampled else None
    rows = sample.feeds if sample is not None and sample.rows else examples
    tried = _Tried(run)
    begun_s = time.perf_counter()
    verdict = judge(servable, tried, tensors, read, rows)
    took_ms = 1000 * (time.perf_counter() - begun_s)
    if tried.fault is not None and servable.max_batch_rows > 1:
        raise LoadFailed(f"{servable.path} fails whatever it is given: {tried.fault}") from tried.fault
    unexpected = tensors.batched and not verdict.batched and verdict.how != "said"
    level = logging.WARNING if unexpected else logging.INFO
    logger.log(level, "%s: its requests are %s; that took %.0f ms", servable.name, verdict, took_ms)
    tensors = dataclasses.replace(tensors, batched=verdict.batched)
    _check_padding(servable, tensors)
    by_rows = verdict.batched and not is_reshaped(servable.declaration)
    signature = _row_signature(run, tensors, rows) if by_rows else None
    if signature is None:
        return PackedRuntime(run, tensors, servable, verdict)
    return rows_runtime(dataclasses.replace(signature, verdict=verdict))


class _Tried:
    """A model that remembers what it has failed with, if it has never answered.

    Attributes:
        fault: What is no refusal of inputs, such as a fault of the device; None once a run has succeeded.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._answered = False
        self.fault: Exception | None = None

    def __call__(self, feeds: Feeds) -> Feeds:
        try:
            outputs = self._run(feeds)
        except Exception as error:
            if not self._answered and not isinstance(error, InvalidInput):
                self.fault = error
            raise
        self._answered, self.fault = True, None
        return outputs


def _check_padding(servable: Servable, tensors: ModelTensors) -> None:
    """Raise LoadFailed where padding could not be undone, or would do nothing."""
    infos = {info.name: info for info in tensors.inputs}
    for name, value in servable.pad.items():
        info = infos.get(name)
        if info is None or info.dtype == "string" or -1 not in info.shape[1:]:
            raise LoadFailed(
                f"{servable.name} cannot pad {name!r}: that is no input of numbers with a free size"
            )
        if np.dtype(info.dtype).kind != "f" and not np.array_equal(_cast(value, info.dtype), value):
            raise LoadFailed(f"{servable.name} cannot pad {name!r} with {value}: it holds {info.dtype}")
    if not servable.pad:
        return
    if not tensors.batched:
        raise LoadFailed(f"{servable.name} cannot pad: its requests are not batched")
    for info in tensors.outputs:
        if info.any_rank or -1 in info.shape[1:]:
            raise LoadFailed(
                f"{servable.name} cannot pad: what of {info} belongs to the padding is not known; "
                "only models whose outputs have fixed sizes can"
            )


def _cast(value: float, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _described(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} ({spec.elements:,} numbers)" for spec in specs)


def _row_signature(run: Run, tensors: ModelTensors, sample: Feeds | None) -> Signature | None:
    """The signature per row; None if rows have free sizes or strings, or the model does not take zeros."""
    if any(info.dtype == "string" or -1 in info.shape[1:] for info in tensors.inputs):
        return None
    specs = [TensorSpec(info.name, info.dtype, info.shape[1:], labels=info.labels) for info in tensors.inputs]
    shapes = []
    require_memory(4 * sum(spec.row_bytes for spec in specs), f"two rows of {_described(specs)}")
    for rows in (2, 1):
        feeds = {spec.name: array for spec, array in zip(specs, first_rows(specs, rows, sample), strict=True)}
        try:
            results = run(feeds)
        except OutOfMemory:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a model raises on inputs that were made up
            logger.info("it is served request by request, for it does not take zeros: %s", error)
            return None
        if any(array.dtype == object or array.shape[:1] != (rows,) for array in results.values()):
            return None
        shapes.append({name: (array.dtype.name, array.shape[1:]) for name, array in results.items()})
    if shapes[0] != shapes[1]:
        return None
    labels = {info.name: info.labels for info in tensors.outputs}
    as_objects = {info.name for info in tensors.outputs if info.as_objects}
    outputs = (
        TensorSpec(name, *kind, labels=labels.get(name, ()), as_objects=name in as_objects)
        for name, kind in shapes[0].items()
    )
    return Signature(tuple(specs), tuple(outputs))
