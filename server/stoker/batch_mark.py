"""The decorator for entry scripts that take whole batches. Imports little: scripts import it before any framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_Run = TypeVar("_Run", bound=Callable[..., object])
_MARK = "__stoker_batched__"


@dataclass(frozen=True, slots=True)
class BatchedInput:
    """The input of a batched `run`: rows of `shape` (without the batch axis) and numpy `dtype` name."""

    shape: tuple[int, ...]
    dtype: str


def batched(*, shape: tuple[int, ...], dtype: str = "float32") -> Callable[[_Run], _Run]:
    """Mark an entry script's `run` as taking a batch.

    `run(data)` is then called with one numpy array of shape `(rows, *shape)`, C-contiguous, gathered from
    the requests of many callers. It returns an array or a list whose first axis has the same length; each
    caller gets the part that belongs to its rows. The array is valid only during the call.

    Args:
        shape: Shape of one row, without the batch axis; `()` for scalars.
        dtype: Name of the numpy dtype, for instance `float32` or `uint8`.
    """
    if any(not isinstance(size, int) or size < 1 for size in shape):
        raise ValueError(f"shape must hold positive integers, got {shape!r}")

    def mark(run: _Run) -> _Run:
        setattr(run, _MARK, BatchedInput(tuple(shape), dtype))
        return run

    return mark


def batched_input(run: object) -> BatchedInput | None:
    """Return the input declaration of a decorated `run`; None for an undecorated one."""
    mark = getattr(run, _MARK, None)
    return mark if isinstance(mark, BatchedInput) else None
