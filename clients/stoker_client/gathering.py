"""The common part of `score_many` and `score_batches`: hands out batches in order, takes answers in any order."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from tqdm import tqdm

from stoker_client.answers import Answer, join_answers
from stoker_client.bodies import refuse_masked
from stoker_client.errors import InvalidRows, StokerClientError

if TYPE_CHECKING:
    from stoker_client.bodies import Rows
    from stoker_client.flow import ServiceCalls
    from stoker_client.steps import Flow
    from stoker_client.urgency import Urgency

__all__ = ["Batch", "Gathering", "check_batch_rows", "check_concurrency"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that go in one request.

    Attributes:
        label: Its name in messages.
        advance: How far its answer moves the progress bar.
    """

    index: int
    rows: Rows
    label: str
    advance: int


class Gathering:
    """Batches on their way out and answers on their way in; safe to use from several threads.

    Iterating hands out each batch to one worker only. As a context manager it owns the progress bar, which
    shows only where standard error is a terminal.
    """

    def __init__(self, batches: Iterator[Batch], *, total: int | None, unit: str, progress: bool) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self._answers: dict[int, Answer] = {}
        self._advances: dict[int, int] = {}
        self._ended = False
        self._bar = tqdm(total=total, unit=unit, desc="scoring", disable=None if progress else True)

    @classmethod
    def of_rows(cls, rows: Rows, batch_rows: int, *, progress: bool) -> Self:
        """Split rows into batches of `batch_rows`, the last one smaller.

        Raises:
            InvalidRows: The rows are neither an array with a first axis nor a sequence.
            ValueError: `batch_rows` is below 1.
        """
        check_batch_rows(batch_rows)
        sliceable = _sliceable(rows)
        total = len(sliceable)
        starts = range(0, total, batch_rows)
        ends = (min(start + batch_rows, total) for start in starts)
        batches = (
            Batch(index, sliceable[start:end], f"rows {start} to {end - 1}", end - start)
            for index, (start, end) in enumerate(zip(starts, ends, strict=True))
        )
        return cls(batches, total=total, unit="row", progress=progress)

    @classmethod
    def of_batches(cls, batches: Iterable[Rows], *, progress: bool) -> Self:
        """Use the caller's batches; each is drawn only when it is about to be sent."""
        total = len(batches) if isinstance(batches, Sequence | np.ndarray) else None
        numbered = (Batch(index, rows, f"batch {index}", 1) for index, rows in enumerate(batches))
        return cls(numbered, total=total, unit="batch", progress=progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            self._bar.close()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            with self._lock:
                batch = next(self._batches, None)
            if batch is None:
                return
            yield batch

    def flow(self, batch: Batch, calls: ServiceCalls, urgency: Urgency) -> Flow[None]:
        """Score one batch and keep its answer; an error gets a note that names the batch."""
        try:
            answer = yield from calls.score_rows(batch.rows, urgency)
        except StokerClientError as error:
            error.add_note(
                f"while {batch.label} were scored" if batch.advance > 1 else f"while scoring {batch.label}"
            )
            raise
        with self._lock:
            if self._ended:
                return
            self._answers[batch.index] = answer
            self._advances[batch.index] = batch.advance
            self._bar.update(batch.advance)

    def in_order(self) -> list[Answer]:
        """The answers, one a batch."""
        return [self._answers[index] for index in range(len(self._answers))]

    def joined(self) -> Answer:
        """The answers put together by rows.

        Raises:
            UnexpectedAnswer: They do not have one entry a row, or have different forms.
        """
        return join_answers(self.in_order(), [self._advances[index] for index in range(len(self._advances))])


def check_batch_rows(batch_rows: int) -> None:
    """Check a number of rows per request.

    Raises:
        ValueError: It is below 1.
    """
    if batch_rows < 1:
        raise ValueError(f"batch_rows has to be 1 or more, not {batch_rows}")


def check_concurrency(concurrency: int) -> None:
    """Check a number of requests in flight.

    Raises:
        ValueError: It is below 1.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency has to be 1 or more, not {concurrency}")


def _sliceable(rows: Rows) -> Sequence[object] | np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return rows
    refuse_masked(rows)
    array = np.asarray(rows)
    if array.ndim == 0:
        raise InvalidRows(f"expected rows along the first axis, got one value of type {type(rows).__name__}")
    return array
