"""SavedModels by TensorFlow: one signature by rows if its rows allow it, several by packed requests."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.isolation.difference import largest_difference
from stoker.runtimes.base import Runtime
from stoker.runtimes.execution_choice import feasible_sizes, sample_rows
from stoker.runtimes.rows_runtime import RowsRuntime
from stoker.runtimes.saved_model import SavedModel, SavedSignature
from stoker.runtimes.signatures import SignaturesRuntime, choose_signatures, name_signature, pack_signature
from stoker.runtimes.tensorflow_setup import import_tensorflow
from stoker.runtimes.wrapping import wrap_model
from stoker.tensors import NamedSignature, Signature

logger = logging.getLogger(__name__)

_XLA_TOLERANCE: Final = 1e-2


def load_saved_model(deployment: Deployment, device: Device, threads: int) -> Runtime:
    """Load the chosen signatures of a SavedModel.

    A single signature is served row by row or request by request, several are served request by request.

    Raises:
        LoadFailed: The folder cannot be loaded, the signature is ambiguous or has tensors of types that are not
            served, or XLA cannot compile it.
    """
    computed_in = deployment.acceleration.precision if device.kind == "cuda" else None
    tensorflow = import_tensorflow(device, threads, deployment.acceleration, keras=False)
    model = SavedModel(tensorflow, deployment.path)
    names = choose_signatures(deployment.path, model.signatures, deployment.signatures)
    if len(names) == 1:
        return _serve_one(model, names[0], deployment, computed_in)
    signatures, runtimes = [], {}
    for name in names:
        try:
            signature = SavedSignature(model, name)
        except LoadFailed as error:
            if name in deployment.signatures or name == names[0]:
                raise
            logger.info("%s: the signature %s is left out: %s", deployment.name, name, error)
            continue
        runtimes[name] = pack_signature(
            f"signature {name}",
            deployment,
            signature.run,
            signature.tensors,
            signature.read,
            is_default=name == names[0],
            computed_in=computed_in,
        )
        _restore_state(runtimes[name], signature)
        tensors = runtimes[name].signature.tensors
        assert tensors is not None, "packed rows have them"
        signatures.append(NamedSignature(name, tensors, model.method(name)))
    _check_padding(deployment, signatures)
    if deployment.acceleration.xla:
        logger.warning("%s: xla does nothing for a model that serves several signatures", deployment.name)
    return SignaturesRuntime(signatures, runtimes)


def _serve_one(model: SavedModel, name: str, deployment: Deployment, computed_in: str | None) -> Runtime:
    signature = SavedSignature(model, name)

    def rows_runtime(rows: Signature) -> Runtime:
        runtime = TensorFlowRuntime(signature, rows)
        if deployment.acceleration.xla:
            runtime.compile(deployment.name, deployment.batch_buckets or ())
        return runtime

    runtime = wrap_model(
        deployment, signature.run, signature.tensors, rows_runtime, signature.read, computed_in=computed_in
    )
    _restore_state(runtime, signature)
    name_signature(runtime, name, signature.tensors, model.method(name))
    return runtime


def _restore_state(runtime: Runtime, signature: SavedSignature) -> None:
    """Restore the variables that the tests of rows have changed, and mark the model as stateful."""
    isolation = runtime.signature.isolation
    if signature.state and isolation is not None:
        signature.restore()
        isolation = msgspec.structs.replace(isolation, keeps_state=True)
        runtime.signature = dataclasses.replace(runtime.signature, isolation=isolation)


def _check_padding(deployment: Deployment, signatures: Sequence[NamedSignature]) -> None:
    known = {info.name for signature in signatures for info in signature.tensors.inputs}
    for name in deployment.pad:
        if name not in known:
            raise LoadFailed(
                f"{deployment.name} cannot pad {name!r}: no signature that is served has this input"
            )


class TensorFlowRuntime(RowsRuntime):
    """A signature whose inputs are batches of rows of a fixed shape; several threads may run it."""

    def __init__(self, model: SavedSignature, signature: Signature) -> None:
        super().__init__(model.run, signature)
        self._model = model
        self._compiled: Mapping[int, Any] = {}

    def compile(self, name: str, sizes: Sequence[int]) -> None:
        """Compile the signature with XLA for batches of these sizes; batches of other sizes run without it.

        Raises:
            LoadFailed: XLA cannot compile the signature, or the compiled one answers differently.
        """
        if not sizes:
            logger.warning(
                "%s: xla does nothing without batch_buckets, because it compiles fixed sizes", name
            )
            return
        begun_s = time.perf_counter()
        compiled = {}
        for rows in feasible_sizes(name, self, sizes):
            inputs = sample_rows(self.signature.inputs, rows, 1)
            expected = self.run(inputs)
            try:
                compiled[rows] = self._model.compile(rows)
                outputs = self._run_compiled(inputs, compiled[rows])
            except Exception as error:
                raise LoadFailed(f"{name}: XLA cannot compile it for {rows} rows: {error}") from error
            difference = largest_difference(outputs, expected)
            if difference > _XLA_TOLERANCE:
                raise LoadFailed(
                    f"{name}: compiled with XLA its outputs differ by {difference:.2g} of the largest one; "
                    "leave xla out"
                )
        self._compiled = compiled
        took_s = time.perf_counter() - begun_s
        logger.info(
            "%s: compiled with XLA for batches of %s rows in %.1f s",
            name,
            ", ".join(map(str, compiled)),
            took_s,
        )

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        return self._run_compiled(inputs, self._compiled.get(len(inputs[0])))

    def restore(self) -> None:
        """See `RestoringRuntime`."""
        self._model.restore()

    def _run_compiled(self, inputs: Sequence[Any], compiled: Any) -> Sequence[np.ndarray]:
        results = self._model.run(dict(zip(self._inputs, inputs, strict=True)), compiled)
        return [results[name] for name in self._outputs]
