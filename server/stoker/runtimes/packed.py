"""Models with any number of inputs of any shape, batched where their shapes allow it.

A row is a request with all its tensors packed. Requests whose tensors agree in all but the first axis are joined on
that axis and run as one batch; models without a batch axis run request by request. Inputs that the deployment pads
may differ in their free sizes, but by less than a factor of two, so that a short request does not cost as much as a
long one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final

import numpy as np

from stoker.deployment import Deployment
from stoker.isolation.batch_monitor import BatchMonitor
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import Outputs, RowFailure
from stoker.tensors import ModelTensors, Signature, TensorSpec, all_finite
from stoker.wire.packed import pack, unpack

_ANSWER_BYTES: Final = 64 << 20
"""The least room for an answer, however short bodies are. Rows are sparse, so it costs no memory."""

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]


def packed_signature(
    tensors: ModelTensors, deployment: Deployment, isolation: RowIsolation | None
) -> Signature:
    """Return the signature of a model whose rows are packed requests."""
    # Two characters of JSON may become a number of eight bytes.
    size_bytes = 4 * deployment.max_body_bytes + _ANSWER_BYTES
    row = (TensorSpec("tensors", "uint8", (size_bytes,), variable=True),)
    return Signature(row, row, takes="tensors", tensors=tensors, isolation=isolation)


class PackedRuntime:
    """Runs packed requests through a function of named tensors.

    Attributes:
        signature: Its inputs and outputs.
        monitor: Inspects its batches.
        choice: See `ChosenRuntime`; empty unless the loader of its framework has set it.
    """

    choice = ""

    def __init__(
        self, run: Run, tensors: ModelTensors, deployment: Deployment, isolation: RowIsolation | None = None
    ) -> None:
        """Wrap `run`, which each fork calls from a thread of its own.

        Args:
            run: Takes the inputs by name and returns the outputs by name; strings are `object` arrays of `bytes`.
            deployment: Its limits: `max_batch_rows` elements of the batch axis in one call, unless one request alone
                has more.
        """
        self._model = run
        self._tensors = tensors
        self._max_batch_rows = deployment.max_batch_rows
        self._separates = isolation is not None and isolation.non_finite_apart
        self.monitor = BatchMonitor()
        self._pad = {
            info.name: (np.asarray(deployment.pad[info.name]).astype(info.dtype), info.shape[1:])
            for info in tensors.inputs
            if info.name in deployment.pad
        }
        self.signature = packed_signature(tensors, deployment, isolation)

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Run requests. A request that fails does not affect the others."""
        requests = [unpack(bytes(packed)) for packed in inputs[0]]
        answers: list[bytes | RowFailure] = [b""] * len(requests)
        for places in self._batches(requests):
            for place, answer in zip(places, self._answers([requests[i] for i in places]), strict=True):
                answers[place] = answer
        return [answers]

    def fork(self) -> PackedRuntime:
        """Return another runtime of the same model."""
        fork = copy(self)
        # All other attributes are constant.
        fork.monitor = BatchMonitor()
        return fork

    def run_tensors(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """Run one batch of joined tensors."""
        return self._model(feeds)

    def _batches(self, requests: Sequence[Feeds]) -> Iterator[list[int]]:
        """Yield the places of requests that run as one batch of at most `max_batch_rows` rows.

        A request with NaN or infinities is alone if the test of the model's rows did not cover them.
        """
        if not self._tensors.batched:
            yield from ([place] for place in range(len(requests)))
            return
        alike: dict[Any, list[int]] = {}
        for place, feeds in enumerate(requests):
            if self._separates and not all(map(all_finite, feeds.values())):
                yield [place]
                continue
            key = tuple((name, self._size_class(name, array)) for name, array in sorted(feeds.items()))
            alike.setdefault(key, []).append(place)
        for places in alike.values():
            yield from split_by_rows(places, [_rows(requests[i]) for i in places], self._max_batch_rows)

    def _size_class(self, name: str, array: np.ndarray) -> tuple[int, ...]:
        """Return the properties of an input that two requests must share to run as one."""
        sizes = array.shape[1:]
        if name not in self._pad:
            return sizes
        _, declared = self._pad[name]
        return tuple(
            size.bit_length() if free < 0 else size for size, free in zip(sizes, declared, strict=True)
        )

    def _join(self, name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
        sizes = {array.shape[1:] for array in arrays}
        if len(sizes) == 1:
            return np.concatenate(arrays)
        value, _ = self._pad[name]
        rows = [len(array) for array in arrays]
        joined = np.full((sum(rows), *map(max, *sizes)), value)
        for start, array in zip(np.cumsum([0, *rows]), arrays, strict=False):
            joined[start : start + len(array), *map(slice, array.shape[1:])] = array
        return joined

    def _answers(self, requests: Sequence[Feeds]) -> list[bytes | RowFailure]:
        try:
            if len(requests) == 1:
                return [pack(self._run_one(requests[0]))]
            return [pack(outputs) for outputs in self._run_joined(requests)]
        except BaseException as error:  # noqa: BLE001  # the caller gets any error of the model
            if len(requests) == 1:
                return [RowFailure(error)]
        half = len(requests) // 2
        return self._answers(requests[:half]) + self._answers(requests[half:])

    def _run_one(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        outputs = self._model(feeds)
        rows = _rows(feeds) if self._tensors.batched else 1
        arrays = [*feeds.values(), *outputs.values()]
        if any(array.shape[:1] != (rows,) for array in arrays):
            rows = 1
        self.monitor.count_non_finite(feeds.values(), outputs.values(), rows)
        return outputs

    def _run_joined(self, requests: Sequence[Feeds]) -> list[dict[str, np.ndarray]]:
        feeds = {name: self._join(name, [request[name] for request in requests]) for name in requests[0]}
        outputs = self._model(feeds)
        bounds = np.cumsum([_rows(request) for request in requests])
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != bounds[-1]:
                raise ValueError(f"output {name!r} has shape {list(array.shape)} for a batch of {bounds[-1]}")
        self.monitor.count_non_finite(feeds.values(), outputs.values(), int(bounds[-1]))
        if self.monitor.wants_rows:
            self.monitor.keep_rows(feeds, outputs, [0, *bounds.tolist()])
        parts = {name: np.split(array, bounds[:-1]) for name, array in outputs.items()}
        return [{name: parts[name][index] for name in outputs} for index in range(len(requests))]


def split_by_rows(places: Sequence[int], rows: Sequence[int], most_rows: int) -> Iterator[list[int]]:
    """Split places of requests into batches of at most `most_rows` rows, or of one longer request.

    Args:
        rows: The rows of each request.
    """
    batch: list[int] = []
    total = 0
    for place, count in zip(places, rows, strict=True):
        if batch and total + count > most_rows:
            yield batch
            batch, total = [], 0
        batch.append(place)
        total += count
    yield batch


def _rows(feeds: Feeds) -> int:
    return len(next(iter(feeds.values())))
