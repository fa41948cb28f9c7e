"""Entry scripts: `run` once per batch where it is decorated with `stoker.batched`, else once per request."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stoker.entry_script import EntryScript, encode_result, encode_rows
from stoker.errors import LoadFailed
from stoker.runtimes.base import Outputs, RowFailure, Runtime
from stoker.script_form import ScriptForm
from stoker.servable import Device, Servable
from stoker.tensors import NUMERIC_DTYPES, Signature, TensorSpec
from stoker.wire.envelope import HEAD_ROOM_BYTES, ScriptAnswer, ScriptRequest

__all__ = ["BatchedScript", "BodyScript", "load_script"]

_MAX_ROW_JSON_BYTES = 1 << 20


def load_script(servable: Servable, device: Device, threads: int) -> Runtime:
    """Execute and initialise an entry script.

    Raises:
        LoadFailed: The script breaks its contract or `init` raised.
    """
    os.environ["STOKER_DEVICE"] = str(device)
    os.environ["STOKER_INTRA_OP_THREADS"] = str(threads)
    script = EntryScript(servable.path, servable.model_dir)
    if script.batched is None:
        return BodyScript(script.run, servable.max_body_bytes)
    return BatchedScript(script)


class BodyScript:
    """An undecorated `run(raw_data)`: the body as text in, JSON text out, one request at a time."""

    def __init__(self, run: Callable[[str], Any], max_body_bytes: int) -> None:
        self._run = run
        size_bytes = max_body_bytes + HEAD_ROOM_BYTES
        request = TensorSpec("request", "uint8", (size_bytes,), variable=True)
        answer = TensorSpec("answer", "uint8", (size_bytes,), variable=True)
        self.signature = Signature((request,), (answer,), takes="body", script=ScriptForm())

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Call the script for each request; one that raises fails alone."""
        return [[self._answer(body) for body in inputs[0]]]

    def _answer(self, packed: Any) -> bytes | RowFailure:
        request = ScriptRequest.unpack(packed)
        try:
            begun_ns = time.perf_counter_ns()
            result = self._run(request.body.decode("utf-8-sig"))
            exec_ns = time.perf_counter_ns() - begun_ns
            return ScriptAnswer(encode_result(result), exec_ns=exec_ns).pack()
        # SystemExit too: a script that calls sys.exit() must not end the server.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return RowFailure(error)


class BatchedScript:
    """A `run` decorated with `stoker.batched`."""

    def __init__(self, script: EntryScript) -> None:
        taken = script.batched
        assert taken is not None, "the caller has looked"
        self._run = script.run
        try:
            spec = TensorSpec("data", taken.dtype, taken.shape)
        except ValueError as error:
            raise LoadFailed(f"stoker.batched: {error}") from error
        self.signature = Signature((spec,), (_learn_output(script.run, spec),))
        self._texts = self.signature.outputs[0].variable

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Call the script once with the whole batch.

        Raises:
            ValueError: It returned another number of rows.
        """
        result = self._call(inputs[0])
        if len(result) != len(inputs[0]):
            raise ValueError(f"run() returned {len(result)} rows for a batch of {len(inputs[0])}")
        return [encode_rows(result)] if self._texts else [np.asarray(result)]

    def _call(self, batch: Any) -> Any:
        try:
            return self._run(batch)
        except SystemExit as error:
            raise RuntimeError(f"run() called sys.exit({error.code!r})") from error


def _learn_output(run: Callable[..., Any], spec: TensorSpec) -> TensorSpec:
    """See what `run` returns for two rows of zeros: an array of numbers, or anything else as JSON per row."""
    zeros = np.zeros((2, *spec.shape), spec.dtype)
    try:
        result = run(zeros)
        rows = len(result)
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"run() fails on a batch of two rows of zeros: {error!r}") from error
    if rows != 2:
        raise LoadFailed(f"run() returned {rows} rows for a batch of 2")
    if isinstance(result, np.ndarray) and result.dtype.name in NUMERIC_DTYPES:
        return TensorSpec("result", result.dtype.name, result.shape[1:])
    return TensorSpec("result", "uint8", (_MAX_ROW_JSON_BYTES,), variable=True)
