"""Choosing how a model runs by measuring: each way must give what the plain one gives, and the fastest wins.

See decision 16.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from stoker.errors import LoadFailed
from stoker.isolation.difference import largest_difference
from stoker.runtimes.base import BufferedRuntime, OutOfMemory, Runtime
from stoker.tensors import TensorSpec

logger = logging.getLogger(__name__)

_RUNS = 7
_SAMPLE_ROWS = 8
TOLERANCE: Final = 1e-2
"""Executions whose outputs differ by more, relative to the largest, are not the same."""


def sample_rows(specs: Sequence[TensorSpec], rows: int, seed: int) -> list[np.ndarray]:
    """Make plausible inputs `[rows, *row_shape]`, the same each time for a seed; a few rows, repeated."""
    random = np.random.default_rng(seed)
    return [np.resize(_random(random, spec), (rows, *spec.shape)) for spec in specs]


def _random(random: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    shape = (_SAMPLE_ROWS, *spec.shape)
    if spec.kind == "f":
        return random.random(shape).astype(spec.numpy_dtype)
    # Small enough to be an index into whatever a model looks up.
    return random.integers(0, 2, shape).astype(spec.numpy_dtype)


def feasible_sizes(name: str, runtime: Runtime, sizes: Sequence[int]) -> list[int]:
    """Of sizes of batches those that the device has memory for, ascending."""
    feasible = sorted(sizes)
    while feasible:
        try:
            runtime.run(sample_rows(runtime.signature.inputs, feasible[-1], 0))
        except OutOfMemory as error:
            logger.warning("%s: the device has no memory for %d rows: %s", name, feasible.pop(), error)
        else:
            break
    return feasible


def choose_fastest(
    name: str,
    plain: Runtime,
    candidates: Mapping[str, Callable[[], Runtime]],
    sizes: Sequence[int],
    clock_ns: Callable[[], int],
    *,
    forced: bool = False,
) -> Runtime:
    """Choose between runtimes of the same model.

    A candidate is compared with the plain runtime on every size, for each may be prepared on its own, and measured on
    the smallest and the largest in turn; its figure is the product of both times, so that a gain of 10 % counts the
    same in both.

    Args:
        plain: What is right, and is taken where nothing is faster.
        candidates: Makes the others, by name.
        sizes: Sizes of batches in rows; at least one.
        forced: Whether the one candidate is to be taken, however fast it is.

    Raises:
        LoadFailed: The candidate that is forced cannot run, or gives something else; or one has broken the device.
    """
    ends = sorted({min(sizes), max(sizes)})
    best = plain
    best_ms = _times_ms(plain, ends, clock_ns)
    told = [f"copied {_in_words(best_ms)}"]
    chosen = "copied"
    for kind, make in candidates.items():
        try:
            candidate = make()
            check_agreement(candidate, plain, sorted(sizes))
            times_ms = _times_ms(candidate, ends, clock_ns)
        except Exception as error:
            if forced:
                raise LoadFailed(f"{name} cannot run with execution: {kind}: {error}") from error
            check_still_runs(name, plain, ends[0], kind, error)
            logger.info("%s: execution %s is left out: %s", name, kind, error)
            continue
        told.append(f"{kind} {_in_words(times_ms)}")
        if forced or np.prod(times_ms) < np.prod(best_ms):
            best, best_ms, chosen = candidate, times_ms, kind
    sizes_told = " and ".join(map(str, ends))
    logger.debug("%s: execution %s; ms for batches of %s rows: %s", name, chosen, sizes_told, ", ".join(told))
    return best


def check_still_runs(name: str, plain: Runtime, rows: int, kind: str, failure: Exception) -> None:
    """Raise LoadFailed where the failure of a candidate is one after which CUDA computes nothing any more."""
    try:
        plain.run(sample_rows(plain.signature.inputs, rows, 1))
    except Exception as error:
        raise LoadFailed(
            f"{name}: since execution {kind} was tried ({failure}) not even plain calls succeed ({error}); "
            "set execution: copied"
        ) from error


def check_agreement(candidate: Runtime, plain: Runtime, sizes: Sequence[int]) -> None:
    """Raise ValueError unless both give the same for all sizes; twice, so that a batch that is kept by mistake shows.

    The plain runtime runs the largest size alone, for ONNX Runtime plans convolutions anew for each other one; the
    rows of smaller batches are the first of it.
    """
    for seed in (1, 2):
        inputs = sample_rows(plain.signature.inputs, max(sizes), seed)
        expected: Sequence[np.ndarray] = plain.run(inputs)  # type: ignore[assignment]  # rows of numbers
        for rows in sizes:
            given: Sequence[np.ndarray] = candidate.run([array[:rows] for array in inputs])  # type: ignore[assignment]
            difference = largest_difference(given, [array[:rows] for array in expected])
            if difference > TOLERANCE:
                raise ValueError(
                    f"its outputs for {rows} rows differ by {difference:.2g} from those of plain calls"
                )


def _times_ms(runtime: Runtime, sizes: Sequence[int], clock_ns: Callable[[], int]) -> list[float]:
    """Median time of a batch of each size, gathered where the worker would gather it.

    The sizes take turns, as they do under load: ONNX Runtime plans its convolutions anew for each batch that has
    another size than the one before, unless their kernels are captured.
    """
    samples = {rows: sample_rows(runtime.signature.inputs, rows, 3) for rows in sizes}
    times_ns: dict[int, list[int]] = {rows: [] for rows in sizes}
    for _ in range(1 + _RUNS):
        for rows, inputs in samples.items():
            gathered = _gathered(runtime, inputs)
            begun_ns = clock_ns()
            runtime.run(gathered)
            times_ns[rows].append(clock_ns() - begun_ns)
    # The first batch of a size may be dearer than all others.
    return [statistics.median(times_ns[rows][1:]) / 1e6 for rows in sizes]


def _gathered(runtime: Runtime, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    if not isinstance(runtime, BufferedRuntime):
        return inputs
    buffers = [buffer[: len(array)] for buffer, array in zip(runtime.buffers(), inputs, strict=True)]
    for buffer, array in zip(buffers, inputs, strict=True):
        buffer[...] = array
    return buffers


def _in_words(times_ms: Sequence[float]) -> str:
    return " / ".join(f"{time_ms:.3f}" for time_ms in times_ms)
