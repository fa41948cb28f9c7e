"""Batches of two frontends in flight on a GPU, for any framework."""

import os
from collections.abc import Callable

import numpy as np

from stoker.arena import Arena
from stoker.runtimes.pipeline import CapturedBatch, PipelinedExecution
from stoker.tensors import Signature

SIZES = (1, 2, 4, 8, 16, 32, 48, 64)
CAPACITY = 512


def filled_arena(signature: Signature, seed: int) -> Arena:
    """Return an arena of different rows."""
    fd = Arena.create(signature, CAPACITY)
    try:
        arena = Arena(fd, signature, CAPACITY)
    finally:
        os.close(fd)
    random = np.random.default_rng(seed)
    for array in arena.inputs:
        ids = array.dtype.kind == "i"
        array[...] = random.integers(0, 100, array.shape) if ids else random.random(array.shape, np.float32)
    return arena


def check_batches_in_flight(
    runtime: PipelinedExecution, answers_on_cpu: Callable[[Arena], np.ndarray], seed: int
) -> None:
    """Run rows of two arenas, of all sizes, in random order; each batch has to have the answers of its own rows."""
    arenas = [filled_arena(runtime.signature, 10 * seed + number) for number in range(2)]
    expected = [answers_on_cpu(arena) for arena in arenas]
    for arena in arenas:
        runtime.attach(arena)
    random = np.random.default_rng(seed)
    held: list[tuple[CapturedBatch, np.ndarray]] = []
    for _ in range(400):
        rows = int(random.integers(1, 65))
        split = int(random.integers(rows + 1))
        numbers = [random.permutation(CAPACITY)[:count].astype(np.int32) for count in (split, rows - split)]
        if len(held) == runtime.depth:
            _check(*held.pop(0))
        size = next(size for size in SIZES if size >= rows)
        batch = runtime.begin(list(zip(arenas, numbers, strict=True)), rows, size)
        held.append(
            (batch, np.concatenate([output[own] for output, own in zip(expected, numbers, strict=True)]))
        )
    for batch, rows_expected in held:
        _check(batch, rows_expected)
    for arena in arenas:
        runtime.detach(arena)


def _check(batch: CapturedBatch, expected: np.ndarray) -> None:
    output = batch.result()[0][: len(expected)]
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-3)
    assert batch.computed_ns > 0
    batch.release()
