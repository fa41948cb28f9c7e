"""Models of several signatures, such as SavedModels: the choice of signatures, and a runtime that serves them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.batch_monitor import BatchMonitor
from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.runtimes.base import Outputs, RowFailure, Runtime
from stoker.runtimes.packed import Feeds, PackedRuntime, Run
from stoker.runtimes.wrapping import wrap_model
from stoker.tensors import DEFAULT_SIGNATURE, Method, ModelTensors, NamedSignature, Signature
from stoker.wire.packed import signature_of

_ALL: Final = "*"
"""Stands for all signatures of a model."""


def choose_signatures(path: Path, present: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the signatures to serve. The first one answers requests that name none.

    Args:
        present: The signatures of the model.
        wanted: The setting: names, `*` for all, or nothing.

    Raises:
        LoadFailed: The model lacks a signature, or the default is ambiguous.
    """
    missing = [name for name in wanted if name != _ALL and name not in present]
    if not present or missing:
        raise LoadFailed(
            f"{path} has no signature {missing[0] if missing else DEFAULT_SIGNATURE!r}, "
            f"it has: {', '.join(present) or 'none'}"
        )
    named = [name for name in wanted if name != _ALL]
    if not named and DEFAULT_SIGNATURE not in present and len(present) > 1:
        raise LoadFailed(
            f"{path} has no signature {DEFAULT_SIGNATURE!r}, and several others: {', '.join(present)}; name the one "
            "to serve with the setting signature (--signature), the first of several is the default"
        )
    first = named or [DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in present else present[0]]
    further = [name for name in present if name not in first] if _ALL in wanted else []
    return [*first, *further]


def name_signature(runtime: Runtime, name: str, tensors: ModelTensors, method: Method = "predict") -> None:
    """Name the only signature of a runtime.

    Args:
        tensors: Its tensors before the choice of a runtime.
    """
    served = runtime.signature.model_tensors
    assert served is not None, "only scripts have none"
    named = NamedSignature(name, _restore_properties(served, tensors), method)
    runtime.signature = dataclasses.replace(runtime.signature, signatures=(named,))


def pack_signature(
    label: str,
    deployment: Deployment,
    run: Run,
    tensors: ModelTensors,
    read: Callable[[], GraphAnalysis] | None = None,
    *,
    is_default: bool,
    examples: Feeds | None = None,
    computed_in: str | None = None,
) -> PackedRuntime:
    """Return the runtime of one of several signatures: its requests are packed, even if all rows are numbers.

    The operator's declaration and sample are for the default signature.

    Args:
        label: Names the signature in messages.
    """
    names = {info.name for info in tensors.inputs}
    own = dataclasses.replace(
        deployment,
        name=f"{deployment.name}, {label}",
        pad={name: value for name, value in deployment.pad.items() if name in names},
    )

    def pack_rows(rows: Signature) -> Runtime:
        assert rows.model_tensors is not None, "rows of numbers have them"
        return PackedRuntime(run, _restore_properties(rows.model_tensors, tensors), own, rows.isolation)

    runtime = wrap_model(
        own, run, tensors, pack_rows, read, sampled=is_default, examples=examples, computed_in=computed_in
    )
    assert isinstance(runtime, PackedRuntime), "`pack_rows` and `wrap_model` make no other"
    return runtime


def _restore_properties(served: ModelTensors, own: ModelTensors) -> ModelTensors:
    """Return the tensors of a runtime with the properties of an estimator's that a signature of rows lacks."""
    nullable = {info.name: info.nullable for info in own.inputs}
    inputs = tuple(
        dataclasses.replace(info, nullable=nullable.get(info.name, False)) for info in served.inputs
    )
    return dataclasses.replace(served, inputs=inputs, estimator=own.estimator, table=own.table)


class SignaturesRuntime:
    """Runs packed requests, each through the signature that it names.

    Attributes:
        signature: Its inputs and outputs.
        monitor: Inspects the batches of all signatures.
    """

    def __init__(self, signatures: Sequence[NamedSignature], runtimes: Mapping[str, PackedRuntime]) -> None:
        """Serve several signatures. The first one answers requests that name none.

        Args:
            runtimes: The runtime of each signature by name; `monitor` replaces the monitors of all.
        """
        self._default = signatures[0].name
        self._runtimes = dict(runtimes)
        self._kept_signature = self._default
        self.monitor = BatchMonitor()
        for runtime in self._runtimes.values():
            runtime.monitor = self.monitor
        first = self._runtimes[self._default].signature
        isolation = first.isolation
        if isolation is not None and any(one.signature.keeps_state for one in self._runtimes.values()):
            # The signatures share their variables.
            isolation = msgspec.structs.replace(isolation, keeps_state=True)
        self.signature = dataclasses.replace(first, signatures=tuple(signatures), isolation=isolation)

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Run requests. Requests of one signature share batches."""
        places: dict[str, list[int]] = {}
        requests: list[bytes] = [bytes(packed) for packed in inputs[0]]
        for place, packed in enumerate(requests):
            places.setdefault(signature_of(packed) or self._default, []).append(place)
        answers: list[bytes | RowFailure] = [b""] * len(requests)
        for name, own in places.items():
            kept_before = self.monitor.kept_rows
            (results,) = self._runtimes[name].run([[requests[place] for place in own]])
            if self.monitor.kept_rows is not kept_before:
                self._kept_signature = name
            for place, answer in zip(own, results, strict=True):
                answers[place] = answer
        return [answers]

    def run_tensors(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """Run one batch of tensors of the signature from which `monitor` last kept rows."""
        return self._runtimes[self._kept_signature].run_tensors(feeds)

    def fork(self) -> SignaturesRuntime:
        """Return another runtime of the same model."""
        forks = {name: runtime.fork() for name, runtime in self._runtimes.items()}
        return SignaturesRuntime(self.signature.signatures, forks)
