"""The choice of how a model is served: by rows of a fixed shape, by requests that share batches, or one at a time.

A dynamic first axis need not be a batch: it may be time, or words. Rows that affect each other must not share a batch
with rows of other callers, so the requests of such a model run one after the other.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from stoker.deployment import Deployment, KeptFindings
from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.batching import decide_batching
from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import PROBE_ROWS, OutOfMemory, Runtime
from stoker.runtimes.declarations import apply_declaration, is_reshaped
from stoker.runtimes.packed import Feeds, PackedRuntime, Run
from stoker.runtimes.text import text_runtime
from stoker.samples.sample import find_sample_feeds, first_rows
from stoker.system.resources import require_memory
from stoker.tensors import ModelTensors, Signature, TensorSpec

logger = logging.getLogger(__name__)


def wrap_model(
    deployment: Deployment,
    run: Run,
    tensors: ModelTensors,
    rows_runtime: Callable[[Signature], Runtime],
    read: Callable[[], GraphAnalysis] | None = None,
    *,
    sampled: bool = True,
    examples: Feeds | None = None,
    computed_in: str | None = None,
) -> Runtime:
    """Choose how a model is served; the result of the test of its rows is a part of its signature.

    Args:
        tensors: The tensors of the model; `batched` says whether its first axes may be one batch axis.
        rows_runtime: Makes the runtime for rows of a fixed shape.
        read: Reads the graph; None if there is none.
        sampled: Whether the operator's declaration and sample requests are for `run`.
        examples: Rows from the model's own file, used if its operator gives no sample; None if there are none.
        computed_in: The precision of the products if it may be lower than that of the tensors.

    Raises:
        LoadFailed: The model does not fit its declaration, its padding or its sample input, or the device fails for
            all inputs.
    """
    if sampled:
        run, tensors = apply_declaration(deployment.declaration, run, tensors)
        if deployment.text is not None:
            texts = text_runtime(deployment, run, tensors, read, computed_in)
            if texts is not None:
                return texts
    sample = find_sample_feeds(deployment, tensors.inputs) if sampled else None
    rows = sample.feeds if sample is not None and sample.rows else examples
    key = deployment.file_key()
    isolation = _proofs.get(key)
    if isolation is None:
        isolation = _find_isolation(deployment, run, tensors, read, rows, computed_in)
        if isolation.how == "read":
            _proofs.keep(key, isolation)
    tensors = dataclasses.replace(tensors, batched=isolation.batched)
    _check_padding(deployment, tensors)
    by_rows = isolation.batched and not is_reshaped(deployment.declaration)
    signature = _row_signature(run, tensors, rows, deployment.max_batch_rows) if by_rows else None
    if signature is None:
        return PackedRuntime(run, tensors, deployment, isolation)
    return rows_runtime(dataclasses.replace(signature, isolation=isolation))


_proofs: Final = KeptFindings[RowIsolation]()


def _find_isolation(
    deployment: Deployment,
    run: Run,
    tensors: ModelTensors,
    read: Callable[[], GraphAnalysis] | None,
    rows: Feeds | None,
    computed_in: str | None,
) -> RowIsolation:
    recorder = _FaultRecorder(run)
    begun_s = time.perf_counter()
    isolation = decide_batching(deployment, recorder, tensors, read, rows, computed_in)
    took_ms = 1000 * (time.perf_counter() - begun_s)
    if recorder.fault is not None and deployment.max_batch_rows > 1:
        raise LoadFailed(f"{deployment.path} fails for all inputs: {recorder.fault}") from recorder.fault
    unexpected = tensors.batched and not isolation.batched and isolation.how != "said"
    level = logging.WARNING if unexpected else logging.INFO
    logger.log(level, "%s: its requests are %s; that took %.0f ms", deployment.name, isolation, took_ms)
    return isolation


class _FaultRecorder:
    """Records the error of a model that has never answered.

    Attributes:
        fault: An error that is no refusal of inputs, such as a fault of the device; None once a run has succeeded.
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


def _check_padding(deployment: Deployment, tensors: ModelTensors) -> None:
    """Raise LoadFailed if padding cannot be undone or has no effect."""
    infos = {info.name: info for info in tensors.inputs}
    for name, value in deployment.pad.items():
        info = infos.get(name)
        if info is None or info.dtype == "string" or -1 not in info.shape[1:]:
            raise LoadFailed(
                f"{deployment.name} cannot pad {name!r}: that is no input of numbers with a free size"
            )
        if info.kind != "f" and not np.array_equal(_cast(value, info.dtype), value):
            raise LoadFailed(f"{deployment.name} cannot pad {name!r} with {value}: it holds {info.dtype}")
    if not deployment.pad:
        return
    if not tensors.batched:
        raise LoadFailed(f"{deployment.name} cannot pad: its requests are not batched")
    for info in tensors.outputs:
        if info.any_rank or -1 in info.shape[1:]:
            raise LoadFailed(
                f"{deployment.name} cannot pad: the part of {info} that belongs to the padding is unknown; "
                "only a model whose outputs have fixed sizes can"
            )


def _cast(value: float, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _row_signature(
    run: Run, tensors: ModelTensors, sample: Feeds | None, max_batch_rows: int
) -> Signature | None:
    """Return the signature per row; None if rows have free sizes or strings, or the model does not take zeros."""
    if any(info.dtype == "string" or -1 in info.shape[1:] for info in tensors.inputs):
        return None
    specs = [TensorSpec(info.name, info.dtype, info.shape[1:], labels=info.labels) for info in tensors.inputs]
    shapes = []
    # The device may have no memory for more rows than `max_batch_rows`.
    sizes = [rows for rows in PROBE_ROWS if rows <= max(2, max_batch_rows)]
    most_bytes = 2 * max(sizes) * sum(spec.row_bytes for spec in specs)
    described = ", ".join(f"{spec.name} ({spec.elements:,} numbers)" for spec in specs)
    require_memory(most_bytes, f"{max(sizes)} rows of {described}")
    for rows in sizes:
        feeds = {spec.name: array for spec, array in zip(specs, first_rows(specs, rows, sample), strict=True)}
        try:
            results = run(feeds)
        except OutOfMemory:
            raise
        except Exception as error:  # noqa: BLE001  # a model may raise any error for made-up inputs
            logger.info("it is served request by request because it does not take zeros: %s", error)
            return None
        if any(array.dtype == object or array.shape[:1] != (rows,) for array in results.values()):
            return None
        shapes.append({name: (array.dtype.name, array.shape[1:]) for name, array in results.items()})
    if any(shape != shapes[0] for shape in shapes):
        return None
    labels = {info.name: info.labels for info in tensors.outputs}
    as_objects = {info.name for info in tensors.outputs if info.as_objects}
    outputs = (
        TensorSpec(name, *kind, labels=labels.get(name, ()), as_objects=name in as_objects)
        for name, kind in shapes[0].items()
    )
    return Signature(tuple(specs), tuple(outputs))
