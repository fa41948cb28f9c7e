"""Models as they are: any number of inputs of any shape, batched where their shapes allow it.

A row is a request with all its tensors packed. Requests whose tensors agree in all but the first axis are joined on
that axis and run as one batch; models without a batch axis run request by request. Inputs that the deployment pads
may differ in their free sizes, but by less than a factor of two: a short request must not compute what only a long
one needs. Where a SavedModel serves several signatures, each packed request names its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.batch_monitor import BatchMonitor
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import Outputs, RowFailure
from stoker.tensors import DEFAULT_SIGNATURE, ModelTensors, NamedSignature, Signature, TensorSpec, all_finite
from stoker.wire.packed import pack, signature_of, unpack

_ANSWER_BYTES: Final = 64 << 20
"""The room of an answer even where bodies are short; rows are sparse, so it costs no memory."""

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]


def packed_signature(
    tensors: ModelTensors, deployment: Deployment, isolation: RowIsolation | None
) -> Signature:
    """Return the signature of a model whose rows are packed requests."""
    # A number of two characters of JSON may be one of eight bytes.
    size_bytes = 4 * deployment.max_body_bytes + _ANSWER_BYTES
    row = (TensorSpec("tensors", "uint8", (size_bytes,), variable=True),)
    return Signature(row, row, takes="tensors", tensors=tensors, isolation=isolation)


class PackedRuntime:
    """Runs packed requests through a function of named tensors.

    Attributes:
        signature: What it takes and gives.
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
        """Run requests; one that fails costs nobody else anything."""
        requests = [unpack(bytes(packed)) for packed in inputs[0]]
        answers: list[bytes | RowFailure] = [b""] * len(requests)
        for places in self._batches(requests):
            for place, answer in zip(places, self._answers([requests[i] for i in places]), strict=True):
                answers[place] = answer
        return [answers]

    def fork(self) -> PackedRuntime:
        """Return another runtime of the same model."""
        fork = copy(self)
        # Of the rest nothing changes once it is made.
        fork.monitor = BatchMonitor()
        return fork

    def run_tensors(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """Run one batch of tensors that have been joined."""
        return self._model(feeds)

    def _batches(self, requests: Sequence[Feeds]) -> Iterator[list[int]]:
        """Places of requests that can run as one, each at most `max_batch_rows` long.

        Where NaN and infinities were no part of what is known of the model, requests that hold them are alone.
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
            batch: list[int] = []
            rows = 0
            for place in places:
                more = _rows(requests[place])
                if batch and rows + more > self._max_batch_rows:
                    yield batch
                    batch, rows = [], 0
                batch.append(place)
                rows += more
            yield batch

    def _size_class(self, name: str, array: np.ndarray) -> tuple[int, ...]:
        """Return the properties of an input that two requests must share to run as one."""
        sizes = array.shape[1:]
        if name not in self._pad:
            return sizes
        _, declared = self._pad[name]
        return tuple(
            size.bit_length() if free < 0 else size for size, free in zip(sizes, declared, strict=True)
        )

    def _joined(self, name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
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
                return [pack(self._alone(requests[0]))]
            return [pack(outputs) for outputs in self._together(requests)]
        except BaseException as error:  # noqa: BLE001  # whatever the model raises is told to its caller
            if len(requests) == 1:
                return [RowFailure(error)]
        half = len(requests) // 2
        return self._answers(requests[:half]) + self._answers(requests[half:])

    def _alone(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        outputs = self._model(feeds)
        rows = _rows(feeds) if self._tensors.batched else 1
        arrays = [*feeds.values(), *outputs.values()]
        if any(array.shape[:1] != (rows,) for array in arrays):
            rows = 1
        self.monitor.count_non_finite(feeds.values(), outputs.values(), rows)
        return outputs

    def _together(self, requests: Sequence[Feeds]) -> list[dict[str, np.ndarray]]:
        feeds = {name: self._joined(name, [request[name] for request in requests]) for name in requests[0]}
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


def _rows(feeds: Feeds) -> int:
    return len(next(iter(feeds.values())))


# The signatures of a SavedModel: which are served, and several of them in one model.


_EVERY: Final = "*"
"""Stands for all signatures of a SavedModel."""


def chosen_signatures(path: Path, present: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the signatures to serve, first the one that is meant where a request names none.

    Args:
        wanted: What the settings ask for: names, `*` for all, or nothing.

    Raises:
        LoadFailed: One is not there, or which one is meant is not clear.
    """
    missing = [name for name in wanted if name != _EVERY and name not in present]
    if not present or missing:
        raise LoadFailed(
            f"{path} has no signature {missing[0] if missing else DEFAULT_SIGNATURE!r}, "
            f"it has: {', '.join(present) or 'none'}"
        )
    named = [name for name in wanted if name != _EVERY]
    if not named and DEFAULT_SIGNATURE not in present and len(present) > 1:
        raise LoadFailed(
            f"{path} has no signature {DEFAULT_SIGNATURE!r}, and several others: {', '.join(present)}; name the one "
            "to serve with the setting signature (--signature), the first of several is the default"
        )
    first = named or [DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in present else present[0]]
    further = [name for name in present if name not in first] if _EVERY in wanted else []
    return [*first, *further]


class SignaturesRuntime:
    """Runs packed requests, each through the signature that it names.

    Attributes:
        signature: What it takes and gives.
        monitor: Inspects the batches of all signatures.
    """

    def __init__(self, signatures: Sequence[NamedSignature], runtimes: Mapping[str, PackedRuntime]) -> None:
        """Serve several signatures, the first of them to requests that name none.

        Args:
            runtimes: What runs each, by name; their batches are watched here from now on.
        """
        self._default = signatures[0].name
        self._runtimes = dict(runtimes)
        self._taken_from = self._default
        self.monitor = BatchMonitor()
        for runtime in self._runtimes.values():
            runtime.monitor = self.monitor
        first = self._runtimes[self._default].signature
        isolation = first.isolation
        if isolation is not None and any(one.signature.keeps_state for one in self._runtimes.values()):
            # They share their variables.
            isolation = dataclasses.replace(isolation, keeps_state=True)
        self.signature = dataclasses.replace(first, signatures=tuple(signatures), isolation=isolation)

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Run requests; those of one signature together, as far as they go together."""
        places: dict[str, list[int]] = {}
        requests: list[bytes] = [bytes(packed) for packed in inputs[0]]
        for place, packed in enumerate(requests):
            places.setdefault(signature_of(packed) or self._default, []).append(place)
        answers: list[bytes | RowFailure] = [b""] * len(requests)
        for name, asking in places.items():
            taken = self.monitor.kept_rows
            (given,) = self._runtimes[name].run([[requests[place] for place in asking]])
            if self.monitor.kept_rows is not taken:
                self._taken_from = name
            for place, answer in zip(asking, given, strict=True):
                answers[place] = answer
        return [answers]

    def run_tensors(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """Run one batch of tensors of the signature whose rows `monitor` has kept last."""
        return self._runtimes[self._taken_from].run_tensors(feeds)

    def fork(self) -> SignaturesRuntime:
        """Return another runtime of the same model."""
        forks = {name: runtime.fork() for name, runtime in self._runtimes.items()}
        return SignaturesRuntime(self.signature.signatures, forks)
