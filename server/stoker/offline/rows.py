"""Rows that are scored without a server: batches of tensors, and bodies for entry scripts that take whole bodies."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from stoker.device.loaded_model import LoadedModel
from stoker.errors import BatchFailed, InvalidInput, StokerError
from stoker.runtimes.base import BufferedRuntime, OutOfMemory, RowFailure
from stoker.tensors import TensorSpec, check_batch, finite_rows, number_kind

logger = logging.getLogger(__name__)

Ragged = list[np.ndarray]
"""The rows of an input that differ in their sizes, each `[1, ...]`."""

Feeds = Mapping[str, np.ndarray | Ragged]
"""Inputs by name, of the model's dtypes."""


class RowBatches:
    """Runs the rows of a model whose signature takes `rows`; belongs to the thread that has loaded it."""

    def __init__(self, loaded: LoadedModel, name: str) -> None:
        signature = loaded.signature
        self._runtime = loaded.runtime
        self._name = name
        self._sizes = loaded.sizes
        self._most = loaded.max_batch_rows
        self._inputs, self._outputs = signature.inputs, signature.outputs
        isolation = signature.isolation
        self._separates = isolation is not None and isolation.non_finite_apart
        self._buffers: Sequence[np.ndarray] | None = None
        if isinstance(loaded.runtime, BufferedRuntime):
            self._buffers = loaded.runtime.buffers()

    @property
    def request_rows(self) -> int:
        """Rows of a batch at most."""
        return self._most

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Score rows, however many.

        Args:
            feeds: By input `[rows, *row_shape]` of its dtype.

        Returns:
            By output `[rows, *row_shape]`; of a script that answers with JSON `object[rows]`.

        Raises:
            InvalidInput: The model refuses a row.
            BatchFailed: It fails on a row, or the device has no memory for one.
        """
        inputs = [_whole(feeds[spec.name], spec) for spec in self._inputs]
        rows = len(inputs[0])
        if any(len(array) != rows for array in inputs):
            raise InvalidInput.different_rows((name, len(array)) for name, array in feeds.items())
        outputs = [_empty(spec, rows) for spec in self._outputs]
        for places in self._batches(inputs, rows):
            self._run(inputs, places, outputs)
        return {spec.name: array for spec, array in zip(self._outputs, outputs, strict=True)}

    def _batches(self, inputs: Sequence[np.ndarray], rows: int) -> Iterator[slice | np.ndarray]:
        """Yield the rows of each batch: neighbours; rows that are not finite are alone if so configured."""
        start = 0
        while start < rows:
            stop = min(start + self._most, rows)
            floats = [array[start:stop] for array in inputs if number_kind(array.dtype) == "f"]
            finite = finite_rows(floats, stop - start) if self._separates else None
            if finite is None:
                yield slice(start, stop)
            else:
                if finite.any():
                    yield start + np.flatnonzero(finite)
                yield from (slice(row, row + 1) for row in (start + np.flatnonzero(~finite)).tolist())
            start = stop

    def _run(
        self, inputs: Sequence[np.ndarray], places: slice | np.ndarray, outputs: Sequence[np.ndarray]
    ) -> None:
        """Run rows as one batch; if it fails, in halves, so that the row that fails can be named."""
        batch = [array[places] for array in inputs]
        rows = len(batch[0])
        try:
            answers = self._answers(batch, rows)
        except OutOfMemory as error:
            smaller = self._sizes.smaller(self._sizes.filled(rows))
            if smaller is None or rows == 1:
                raise BatchFailed(f"the device has no memory for one row of {self._name}: {error}") from error
            logger.warning(
                "%s: the device has no memory for %d rows: batches are smaller now", self._name, rows
            )
            self._most = min(self._most, smaller)
            for part in _parts(places, rows, smaller):
                self._run(inputs, part, outputs)
            return
        except Exception as error:
            if rows == 1:
                raise failure_of(error, f"row {_first(places)}") from error
            for part in _parts(places, rows, -(-rows // 2)):
                self._run(inputs, part, outputs)
            return
        for array, answer in zip(outputs, answers, strict=True):
            array[places] = answer

    def _answers(self, batch: Sequence[np.ndarray], rows: int) -> list[np.ndarray]:
        size = self._sizes.filled(rows)
        answers: Sequence[Any] = self._runtime.run(self._laid_out(batch, rows, size))
        return [
            _parsed(answer, rows) if spec.variable else check_batch(spec, answer, size)[:rows]
            for spec, answer in zip(self._outputs, answers, strict=True)
        ]

    def _laid_out(self, batch: Sequence[np.ndarray], rows: int, size: int) -> list[np.ndarray]:
        """Return the batch in the runtime's buffer, padded with zeros to its bucket."""
        if self._buffers is not None:
            for buffer, array in zip(self._buffers, batch, strict=True):
                buffer[:rows] = array
                buffer[rows:size] = 0
            return [buffer[:size] for buffer in self._buffers]
        if size == rows:
            return list(batch)
        return [
            np.concatenate([array, np.zeros((size - rows, *array.shape[1:]), array.dtype)]) for array in batch
        ]


def failure_of(error: BaseException, place: str) -> StokerError:
    """Return the error of rows without an answer: callers can fix rows that the model refuses."""
    if isinstance(error, InvalidInput):
        return InvalidInput(f"{place}: {error}")
    return BatchFailed(f"{place} could not be scored: {str(error) or type(error).__name__}")


def _whole(rows: np.ndarray | Ragged, spec: TensorSpec) -> np.ndarray:
    if isinstance(rows, list):
        raise InvalidInput(f"{spec.name}: rows have {spec.describe_row()} each; these have different sizes.")
    return np.ascontiguousarray(rows)


def _empty(spec: TensorSpec, rows: int) -> np.ndarray:
    return np.empty(rows, object) if spec.variable else np.empty((rows, *spec.shape), spec.dtype)


def _parsed(texts: Sequence[bytes | RowFailure], rows: int) -> np.ndarray:
    """The values of JSON texts, one a row."""
    if len(texts) != rows:
        raise ValueError(f"{len(texts)} answers came for a batch of {rows}")
    values = np.empty(rows, object)
    for place, text in enumerate(texts):
        if isinstance(text, RowFailure):
            raise text.error
        values[place] = orjson.loads(text)
    return values


def _parts(places: slice | np.ndarray, rows: int, size: int) -> Iterator[slice | np.ndarray]:
    for start in range(0, rows, size):
        if isinstance(places, slice):
            yield slice(places.start + start, min(places.start + start + size, places.stop))
        else:
            yield places[start : start + size]


def _first(places: slice | np.ndarray) -> int:
    return int(places.start if isinstance(places, slice) else places[0])
