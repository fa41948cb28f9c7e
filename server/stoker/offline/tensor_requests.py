"""Tensors of any shape, split into requests if the model allows it; each request runs as in a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stoker.device.loaded_model import LoadedModel
from stoker.errors import BatchFailed, InvalidInput
from stoker.offline.rows import Feeds, failure_of
from stoker.runtimes.base import RowFailure
from stoker.tensors import finite_rows, number_kind
from stoker.wire.packed import pack, unpack
from stoker.wire.tensor_json import check_rows

_Request = dict[str, np.ndarray]


class TensorRequests:
    """Runs a model whose signature takes `tensors`; belongs to the thread that has loaded it."""

    def __init__(self, loaded: LoadedModel, batch_rows: int | None) -> None:
        """Take a loaded model.

        Args:
            batch_rows: Rows of a request; None for the default.
        """
        self._runtime = loaded.runtime
        # Of several signatures requests that name none mean the first.
        self._tensors = loaded.signature.named[0].tensors
        self._most = loaded.max_batch_rows
        isolation = loaded.signature.isolation
        self._separates = isolation is not None and isolation.non_finite_apart
        self._batch_rows = batch_rows

    @property
    def request_rows(self) -> int | None:
        """Rows of a request; None if a call is one request because the model's rows depend on each other."""
        if self._batch_rows is not None:
            return self._batch_rows
        if self._tensors.batched:
            return self._most
        # A model with a first axis of 1 accepts one row at a time.
        sizes = {info.shape[0] if info.shape else -1 for info in self._tensors.inputs}
        fixed = sizes.pop()
        return fixed if fixed > 0 and not sizes else None

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Score one call.

        Args:
            feeds: By input an array with its batch axis, or rows of different sizes.

        Returns:
            By output an array; rows of different sizes are `object[rows]`.

        Raises:
            InvalidInput: The inputs do not fit each other, or the model refuses them.
            BatchFailed: The model fails, or its answers are none of rows.
        """
        rows = _row_count(feeds)
        requests = list(self._requests(feeds, rows))
        answers: list[Mapping[str, np.ndarray]] = []
        # Rows that come as requests of their own are joined by the runtime, as far as they are alike.
        together = self._most if any(isinstance(one, list) for one in feeds.values()) else 1
        for start in range(0, len(requests), together):
            answers += self._answers(requests[start : start + together], start)
        if len(answers) == 1:
            return dict(answers[0])
        return _joined(answers, [_rows(request) for request in requests])

    def _requests(self, feeds: Feeds, rows: int | None) -> Iterator[_Request]:
        if any(isinstance(one, list) for one in feeds.values()):
            yield from (
                {
                    name: one[row] if isinstance(one, list) else one[row : row + 1]
                    for name, one in feeds.items()
                }
                for row in range(rows or 0)
            )
            return
        arrays = {name: one for name, one in feeds.items() if isinstance(one, np.ndarray)}
        size = self.request_rows
        if size is None:
            yield arrays
            return
        check_rows(arrays, self._tensors)
        if not rows:
            raise InvalidInput("All inputs need the same number of rows, 1 at least.")
        for part in self._cuts(arrays, rows, size):
            yield {name: array[part] for name, array in arrays.items()}

    def _cuts(self, arrays: _Request, rows: int, size: int) -> Iterator[slice]:
        """Return the bounds of requests: `size` rows each, and rows with non-finite numbers alone."""
        alone: list[int] = []
        if self._separates and self._tensors.batched:
            finite = finite_rows(
                [array for array in arrays.values() if number_kind(array.dtype) == "f"], rows
            )
            alone = [] if finite is None else np.flatnonzero(~finite).tolist()
        bounds = [*alone, rows]
        start = 0
        for bound in bounds:
            while start < bound:
                stop = min(start + size, bound)
                yield slice(start, stop)
                start = stop
            if bound < rows:
                yield slice(bound, bound + 1)
                start = bound + 1

    def _answers(self, requests: Sequence[_Request], first: int) -> Iterator[Mapping[str, np.ndarray]]:
        packed = [pack(request) for request in requests]
        try:
            (given,) = self._runtime.run([packed])
        except Exception as error:
            raise failure_of(error, f"request {first}") from error
        for number, answer in enumerate(given, first):
            if isinstance(answer, RowFailure):
                raise failure_of(answer.error, f"request {number}") from answer.error
            yield unpack(bytes(answer))


def _row_count(feeds: Feeds) -> int | None:
    """Rows of all inputs; None if they differ, so that they can be no batch axis."""
    counts = {len(one) if isinstance(one, list) or one.ndim else None for one in feeds.values()}
    if any(isinstance(one, list) for one in feeds.values()) and len(counts) > 1:
        raise InvalidInput.different_rows((name, len(one)) for name, one in feeds.items())
    return counts.pop() if len(counts) == 1 else None


def _rows(request: _Request) -> int:
    array = next(iter(request.values()))
    return len(array) if array.ndim else 1


def _joined(answers: Sequence[Mapping[str, np.ndarray]], counts: Sequence[int]) -> dict[str, np.ndarray]:
    """The answers of all requests as if they had been one."""
    joined = {}
    for name in answers[0]:
        parts = [answer[name] for answer in answers]
        for part, rows in zip(parts, counts, strict=True):
            if part.ndim == 0 or len(part) != rows:
                raise BatchFailed(
                    f"output {name!r} has the shape {list(part.shape)} for {rows} rows, so the answers of several "
                    "requests cannot be put together; score each request in a call of its own"
                )
        if len({part.shape[1:] for part in parts}) == 1:
            joined[name] = np.concatenate(parts)
        else:
            joined[name] = np.empty(sum(counts), object)
            joined[name][:] = [row for part in parts for row in part]
    return joined
