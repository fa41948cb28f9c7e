"""What a model is to the scheduler: rows of a fixed shape, requests that may be put together, or neither.

A dynamic first axis need not be a batch: it may be time, or words. So two rows are run together and each alone; a
model for which that makes a difference must not see the rows of other callers.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

import numpy as np

from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.packed import PackedRuntime, Run
from stoker.servable import Servable
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec

__all__ = ["as_runtime", "rows_are_independent", "sample_feeds"]

logger = logging.getLogger(__name__)

_FREE_SIZE = 8
_RTOL, _ATOL = 1e-2, 1e-3


def as_runtime(
    servable: Servable,
    run: Run,
    tensors: ModelTensors,
    rows_runtime: Callable[[Signature], Runtime],
) -> Runtime:
    """Choose how a model is served, and say so in the log if its requests are not batched.

    Args:
        servable: The model and its limits.
        run: The model as a function of named tensors.
        tensors: What it declares; `batched` says whether its first axes may be one batch axis.
        rows_runtime: Makes the runtime for rows of a fixed shape.

    Raises:
        LoadFailed: A model that takes rows of a fixed shape fails on zeros, or its inputs cannot be padded.
    """
    signature = None
    batched = tensors.batched
    if batched and all(info.dtype != "string" and -1 not in info.shape[1:] for info in tensors.inputs):
        signature = _row_signature(servable, run, tensors)
    if batched:
        independent = rows_are_independent(servable.name, run, tensors.inputs)
        if independent is False:
            logger.warning(
                "%s: what two rows give together is not what each gives alone; its requests are not batched",
                servable.name,
            )
        batched = independent is True or (independent is None and signature is not None)
    tensors = dataclasses.replace(tensors, batched=batched)
    _check_padding(servable, tensors)
    if batched and signature is not None:
        return rows_runtime(signature)
    return PackedRuntime(run, tensors, servable)


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
        if -1 in info.shape[1:]:
            raise LoadFailed(
                f"{servable.name} cannot pad: what of {info} belongs to the padding is not known; "
                "only models whose outputs have fixed sizes can"
            )


def _cast(value: float, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _row_signature(servable: Servable, run: Run, tensors: ModelTensors) -> Signature | None:
    """The signature per row; None if an output has strings, or rows whose shape changes with the batch."""
    shapes = []
    for rows in (2, 1):
        zeros = {info.name: np.zeros((rows, *info.shape[1:]), info.dtype) for info in tensors.inputs}
        try:
            results = run(zeros)
        except Exception as error:
            raise LoadFailed(f"{servable.path} fails on a batch of {rows} rows of zeros: {error}") from error
        if any(array.dtype == object or array.shape[:1] != (rows,) for array in results.values()):
            return None
        shapes.append({name: (array.dtype.name, array.shape[1:]) for name, array in results.items()})
    if shapes[0] != shapes[1]:
        return None
    inputs = tuple(TensorSpec(info.name, info.dtype, info.shape[1:]) for info in tensors.inputs)
    return Signature(inputs, tuple(TensorSpec(name, *kind) for name, kind in shapes[0].items()))


def sample_feeds(inputs: Sequence[TensorInfo], rows: int) -> dict[str, np.ndarray]:
    """Make plausible inputs of `rows` rows, the same each time; free sizes other than the batch are 8."""
    random = np.random.default_rng(20260721)
    feeds = {}
    for info in inputs:
        sizes = [_FREE_SIZE if size < 0 else size for size in info.shape[1:]]
        feeds[info.name] = _sample(random, info.dtype, (rows, *sizes))
    return feeds


def _sample(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "string":
        words = np.empty(shape, object)
        words[...] = b"word"
        return words
    if np.dtype(dtype).kind == "f":
        return random.random(shape).astype(dtype)
    # Small enough to be an index into whatever a model looks up.
    return random.integers(0, 2, shape).astype(dtype)


def rows_are_independent(name: str, run: Run, inputs: Sequence[TensorInfo]) -> bool | None:
    """Run two different rows together and each alone, and compare.

    Args:
        name: The model's name, for the log.
        run: The model, a function of named tensors.
        inputs: Its inputs; the first axis of each is the one in question.

    Returns:
        Whether the answers agree within 1 %; None if the model does not take inputs that were made up.
    """
    feeds = sample_feeds(inputs, 2)
    try:
        together = run(feeds)
        alone = [run({key: array[i : i + 1] for key, array in feeds.items()}) for i in (0, 1)]
    except Exception as error:  # noqa: BLE001  # whatever a model raises on inputs that were made up
        logger.info("%s: whether its rows are independent cannot be tried out: %s", name, error)
        return None
    return all(_agree(array, [part[key] for part in alone]) for key, array in together.items())


def _agree(together: np.ndarray, alone: Sequence[np.ndarray]) -> bool:
    if together.ndim == 0 or len(together) != 2 or any(part.shape[:1] != (1,) for part in alone):
        return False
    joined = np.concatenate(alone)
    if joined.shape != together.shape:
        return False
    if together.dtype.kind in "fc":
        return bool(np.allclose(together, joined, rtol=_RTOL, atol=_ATOL, equal_nan=True))
    return bool((together == joined).all())
