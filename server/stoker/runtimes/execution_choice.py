"""The choice of a model's execution by measuring: executions that agree with plain calls compete, the fastest wins.

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
"""The largest difference of an execution's outputs, relative to the largest output."""


def sample_rows(specs: Sequence[TensorSpec], rows: int, seed: int) -> list[np.ndarray]:
    """Make plausible inputs `[rows, *row_shape]` of a few repeated rows, the same each time for a seed."""
    random = np.random.default_rng(seed)
    return [np.resize(_random(random, spec), (rows, *spec.shape)) for spec in specs]


def _random(random: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    shape = (_SAMPLE_ROWS, *spec.shape)
    if spec.kind == "f":
        return random.random(shape).astype(spec.numpy_dtype)
    # They may be indices into small tables.
    return random.integers(0, 2, shape).astype(spec.numpy_dtype)


def feasible_sizes(name: str, runtime: Runtime, sizes: Sequence[int]) -> list[int]:
    """Return the sizes of batches for which the device has memory, ascending."""
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

    A candidate is compared with the plain runtime on every size, because each may be prepared separately. It is
    measured on the smallest and the largest in turn; its figure is the product of both times, so that a gain of 10 %
    counts the same in both.

    Args:
        plain: The runtime with correct answers, which is chosen if none is faster.
        candidates: Makes the other runtimes, by name.
        sizes: Sizes of batches in rows; at least one.
        forced: Whether to choose the one candidate at any speed.

    Raises:
        LoadFailed: The forced candidate cannot run, or answers differently; or a candidate has broken the device.
    """
    ends = sorted({min(sizes), max(sizes)})
    best = plain
    best_ms = _times_ms(plain, ends, clock_ns)
    figures = [f"copied {_in_words(best_ms)}"]
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
        figures.append(f"{kind} {_in_words(times_ms)}")
        if forced or np.prod(times_ms) < np.prod(best_ms):
            best, best_ms, chosen = candidate, times_ms, kind
    logger.debug(
        "%s: execution %s; ms for batches of %s rows: %s",
        name,
        chosen,
        " and ".join(map(str, ends)),
        ", ".join(figures),
    )
    return best


def check_still_runs(name: str, plain: Runtime, rows: int, kind: str, failure: Exception) -> None:
    """Raise LoadFailed if CUDA computes nothing any more after the failure of a candidate."""
    try:
        plain.run(sample_rows(plain.signature.inputs, rows, 1))
    except Exception as error:
        raise LoadFailed(
            f"{name}: since execution {kind} was tried ({failure}) not even plain calls succeed ({error}); "
            "set execution: copied"
        ) from error


def check_agreement(candidate: Runtime, plain: Runtime, sizes: Sequence[int]) -> None:
    """Raise ValueError unless both agree for all sizes. Two rounds show answers of an earlier batch.

    The plain runtime runs only the largest size, because ONNX Runtime plans convolutions again for each other size.
    Smaller batches have the first rows of it.
    """
    for seed in (1, 2):
        inputs = sample_rows(plain.signature.inputs, max(sizes), seed)
        expected: Sequence[np.ndarray] = plain.run(inputs)  # type: ignore[assignment]  # rows of numbers
        for rows in sizes:
            outputs: Sequence[np.ndarray] = candidate.run([array[:rows] for array in inputs])  # type: ignore[assignment]
            difference = largest_difference(outputs, [array[:rows] for array in expected])
            if difference > TOLERANCE:
                raise ValueError(
                    f"its outputs for {rows} rows differ by {difference:.2g} from those of plain calls"
                )


def _times_ms(runtime: Runtime, sizes: Sequence[int], clock_ns: Callable[[], int]) -> list[float]:
    """Return the median time of a batch of each size, gathered where the worker would gather it.

    The sizes take turns, as under load: unless kernels are captured, ONNX Runtime plans its convolutions again for
    each batch whose size differs from the one before.
    """
    samples = {rows: sample_rows(runtime.signature.inputs, rows, 3) for rows in sizes}
    times_ns: dict[int, list[int]] = {rows: [] for rows in sizes}
    for _ in range(1 + _RUNS):
        for rows, inputs in samples.items():
            gathered = _gather(runtime, inputs)
            begun_ns = clock_ns()
            runtime.run(gathered)
            times_ns[rows].append(clock_ns() - begun_ns)
    # The first batch of a size may take longer than all others.
    return [statistics.median(times_ns[rows][1:]) / 1e6 for rows in sizes]


def _gather(runtime: Runtime, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    if not isinstance(runtime, BufferedRuntime):
        return inputs
    buffers = [buffer[: len(array)] for buffer, array in zip(runtime.buffers(), inputs, strict=True)]
    for buffer, array in zip(buffers, inputs, strict=True):
        buffer[...] = array
    return buffers


def _in_words(times_ms: Sequence[float]) -> str:
    return " / ".join(f"{time_ms:.3f}" for time_ms in times_ms)
