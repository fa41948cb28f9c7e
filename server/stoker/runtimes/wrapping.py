"""How a model is served: as rows of a fixed shape, as requests that may share a batch, or one request at a time.

A dynamic first axis need not be a batch: it may be time, or words. Rows that affect each other must not share a batch
with rows of other callers, so the requests of such a model run one after the other. What the operator's configuration
declares is checked against the model first, and reshapes its tensors for callers.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from stoker.deployment import Declaration, DeclaredTensor, Deployment
from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.batching import GraphAnalysis, decide_batching
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import PROBE_ROWS, OutOfMemory, Runtime
from stoker.runtimes.packed import Feeds, PackedRuntime, Run
from stoker.runtimes.text import text_runtime
from stoker.samples.sample import find_sample_feeds, first_rows
from stoker.system.resources import require_memory
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec

logger = logging.getLogger(__name__)


def apply_declaration(
    declaration: Declaration | None, run: Run, tensors: ModelTensors
) -> tuple[Run, ModelTensors]:
    """Apply the tensors that the configuration declares to a model.

    A fixed size of an input that the model leaves free is fixed from now on; outputs that are not declared are left
    out; tensors whose shape is declared to be another one than the model's are reshaped on their way.

    Raises:
        LoadFailed: The model is another one than the declared; the message says in what.
    """
    if declaration is None:
        return run, tensors
    source = declaration.source
    inputs = _declared(source, "input", declaration.inputs, tensors.inputs)
    outputs = _declared(source, "output", declaration.outputs, tensors.outputs)
    missing = [info.name for info in tensors.inputs if info.name not in {one.name for one in inputs}]
    if missing:
        raise LoadFailed(f"{source}: the model's input {missing[0]!r} is missing there; add it")
    batched = tensors.batched and declaration.batched is not False
    shown = dataclasses.replace(tensors, inputs=inputs, outputs=outputs, batched=batched)
    ways_in = {one.name: one for one in declaration.inputs if one.model_shape is not None}
    ways_out = {one.name: one for one in declaration.outputs if one.model_shape is not None}
    names = [info.name for info in outputs]

    def reshaped(feeds: Feeds) -> Mapping[str, np.ndarray]:
        taken = {name: _into_model(ways_in.get(name), array) for name, array in feeds.items()}
        results = run(taken)
        return {name: _out_of_model(ways_out.get(name), results[name]) for name in names}

    changed = ways_in or ways_out or len(names) < len(tensors.outputs)
    return (reshaped if changed else run), shown


def is_reshaped(declaration: Declaration | None) -> bool:
    """Whether callers see other shapes than the model: then only `run` of `apply_declaration` serves them."""
    return declaration is not None and any(
        one.model_shape is not None for one in (*declaration.inputs, *declaration.outputs)
    )


def _declared(
    source: str, side: str, declared: Sequence[DeclaredTensor], there: Sequence[TensorInfo]
) -> tuple[TensorInfo, ...]:
    """The tensors of one side as callers see them, in the model's order."""
    infos = {info.name: info for info in there}
    for one in declared:
        info = infos.get(one.name)
        if info is None:
            names = ", ".join(infos)
            raise LoadFailed(
                f"{source}: the model has no {side} {one.name!r}; its {side}s are {names}; correct the name"
            )
        in_model = one.shape if one.model_shape is None else one.model_shape
        if one.dtype != info.dtype or not (info.any_rank or _compatible(in_model, info.shape)):
            given = TensorInfo(one.name, one.dtype, in_model)
            raise LoadFailed(f"{source}: the {side} {given} is {info} in the model; correct it there")
    if not declared:
        return tuple(there)
    by_name = {one.name: one for one in declared}
    return tuple(_shown(side, by_name[info.name], info) for info in there if info.name in by_name)


def _compatible(declared: tuple[int, ...], model: tuple[int, ...]) -> bool:
    return len(declared) == len(model) and all(
        -1 in (one, other) or one == other for one, other in zip(declared, model, strict=True)
    )


def _shown(side: str, declared: DeclaredTensor, info: TensorInfo) -> TensorInfo:
    if declared.labels and not info.as_objects:
        info = dataclasses.replace(info, labels=declared.labels)
    if declared.model_shape is not None:
        return dataclasses.replace(info, shape=declared.shape)
    if side == "output":
        return info
    if info.any_rank:
        return dataclasses.replace(info, shape=declared.shape, any_rank=False)
    sizes = zip(declared.shape, info.shape, strict=True)
    return dataclasses.replace(info, shape=tuple(one if model < 0 else model for one, model in sizes))


def _into_model(way: DeclaredTensor | None, array: np.ndarray) -> np.ndarray:
    if way is None or way.model_shape is None:
        return array
    return _reshape(way.name, array, way.shape, way.model_shape)


def _out_of_model(way: DeclaredTensor | None, array: np.ndarray) -> np.ndarray:
    if way is None or way.model_shape is None:
        return array
    return _reshape(way.name, array, way.model_shape, way.shape)


def _reshape(name: str, array: np.ndarray, now: tuple[int, ...], then: tuple[int, ...]) -> np.ndarray:
    """Reshape an array; free sizes keep their order, as Triton has it."""
    free = [size for size, declared in zip(array.shape, now, strict=False) if declared < 0]
    if len(free) == sum(size < 0 for size in then):
        sizes = iter(free)
        then = tuple(next(sizes) if size < 0 else size for size in then)
    try:
        return array.reshape(then)
    except ValueError:
        raise InvalidInput(
            f"{name}: sizes {list(array.shape)} cannot become {list(then)}, as its configuration says"
        ) from None


# What a model is to the scheduler: rows of a fixed shape, requests that may be put together, or neither.


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
    """Choose how a model is served; the finding on its rows is a part of its signature.

    Args:
        tensors: What it declares; `batched` says whether its first axes may be one batch axis.
        rows_runtime: Makes the runtime for rows of a fixed shape.
        read: Reads its graph; None if there is nothing to read.
        sampled: Whether what is declared of it, and the requests that it is known to answer, are for this function.
        examples: Rows that the model itself says it answers, where its operator gives none; None if it says nothing.
        computed_in: The precision of its products, where it may be lower than that of its tensors.

    Raises:
        LoadFailed: It is not what was declared of it, its inputs cannot be padded, its sample input does not fit it,
            or the device fails whatever it is given.
    """
    if sampled:
        run, tensors = apply_declaration(deployment.declaration, run, tensors)
        if (texts := text_runtime(deployment, run, tensors, read, computed_in)) is not None:
            return texts
    sample = find_sample_feeds(deployment, tensors.inputs) if sampled else None
    rows = sample.feeds if sample is not None and sample.rows else examples
    key = deployment.file_key()
    isolation = _proven.get(key)
    if isolation is None:
        isolation = _find_isolation(deployment, run, tensors, read, rows, computed_in)
        if key and isolation.how == "read" and len(_proven) < _MOST_PROVEN:
            _proven[key] = isolation
    tensors = dataclasses.replace(tensors, batched=isolation.batched)
    _check_padding(deployment, tensors)
    by_rows = isolation.batched and not is_reshaped(deployment.declaration)
    signature = _row_signature(run, tensors, rows, deployment.max_batch_rows) if by_rows else None
    if signature is None:
        return PackedRuntime(run, tensors, deployment, isolation)
    return rows_runtime(dataclasses.replace(signature, isolation=isolation))


_MOST_PROVEN: Final = 10_000
_proven: dict[tuple[object, ...], RowIsolation] = {}
"""The findings on graphs that are loaded on demand: tests at each of many loads would hold up those that serve."""


def _find_isolation(
    deployment: Deployment,
    run: Run,
    tensors: ModelTensors,
    read: Callable[[], GraphAnalysis] | None,
    rows: Feeds | None,
    computed_in: str | None,
) -> RowIsolation:
    tried = _FaultRecorder(run)
    begun_s = time.perf_counter()
    isolation = decide_batching(deployment, tried, tensors, read, rows, computed_in)
    took_ms = 1000 * (time.perf_counter() - begun_s)
    if tried.fault is not None and deployment.max_batch_rows > 1:
        raise LoadFailed(f"{deployment.path} fails whatever it is given: {tried.fault}") from tried.fault
    unexpected = tensors.batched and not isolation.batched and isolation.how != "said"
    level = logging.WARNING if unexpected else logging.INFO
    logger.log(level, "%s: its requests are %s; that took %.0f ms", deployment.name, isolation, took_ms)
    return isolation


class _FaultRecorder:
    """Remembers the error of a model that has never answered.

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
                f"{deployment.name} cannot pad: what of {info} belongs to the padding is not known; "
                "only models whose outputs have fixed sizes can"
            )


def _cast(value: float, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _described(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} ({spec.elements:,} numbers)" for spec in specs)


def _row_signature(
    run: Run, tensors: ModelTensors, sample: Feeds | None, max_batch_rows: int
) -> Signature | None:
    """The signature per row; None if rows have free sizes or strings, or the model does not take zeros."""
    if any(info.dtype == "string" or -1 in info.shape[1:] for info in tensors.inputs):
        return None
    specs = [TensorSpec(info.name, info.dtype, info.shape[1:], labels=info.labels) for info in tensors.inputs]
    shapes = []
    # The device may have no memory for more rows than are served at once.
    sizes = [rows for rows in PROBE_ROWS if rows <= max(2, max_batch_rows)]
    most_bytes = 2 * max(sizes) * sum(spec.row_bytes for spec in specs)
    require_memory(most_bytes, f"{max(sizes)} rows of {_described(specs)}")
    for rows in sizes:
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
    if any(shape != shapes[0] for shape in shapes):
        return None
    labels = {info.name: info.labels for info in tensors.outputs}
    as_objects = {info.name for info in tensors.outputs if info.as_objects}
    outputs = (
        TensorSpec(name, *kind, labels=labels.get(name, ()), as_objects=name in as_objects)
        for name, kind in shapes[0].items()
    )
    return Signature(tuple(specs), tuple(outputs))
