"""Answers to infer requests: gRPC messages as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.gateway.grpc.contents import has_typed, write_typed
from stoker.gateway.grpc.messages import ModelInferResponse, ModelStreamInferResponse
from stoker.wire.oip_requests import InferRequest, RegionOutput, WantedOutput
from stoker.wire.oip_responses import classified
from stoker.wire.oip_tensors import datatype_of, to_raw
from stoker.wire.protobuf import length_delimited

IS_FINAL: Final = "triton_final_response"
"""The parameter that marks the last answer of a stream to its request."""

_MAX_HEADS: Final = 1024
_FIELDS: Final = ModelInferResponse.DESCRIPTOR.fields_by_name
_ID: Final = _FIELDS["id"].number
_RAW: Final = _FIELDS["raw_output_contents"].number
_ANSWER: Final = ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number
_LAST: Final = ModelInferResponse(parameters={IS_FINAL: {"bool_param": True}}).SerializeToString()


class _Row(NamedTuple):
    """The common part of answers with one row of the only output.

    Attributes:
        head: The bytes before the id; None if the answer is more than the raw row.
        prefix: The bytes before the row.
    """

    wanted: tuple[WantedOutput, ...]
    shape: tuple[int, ...]
    head: bytes | None
    prefix: bytes


class AnswerWriter:
    """Writes the answers of one model.

    All but the data and the id is the same for all answers with outputs of the same shapes, and is encoded once.
    """

    def __init__(self, model: str, version: str, *, batched: bool) -> None:
        self._model, self._version, self._batched = model, version, batched
        self._heads: dict[Any, tuple[bytes, bool, tuple[bool, ...]]] = {}
        self._row: _Row | None = None

    def write(self, request: InferRequest, outputs: Mapping[str, np.ndarray]) -> bytes:
        """Return a `ModelInferResponse`: raw if the request was, or if an output has no typed contents.

        The library would copy raw contents twice.
        """
        arrays = [
            classified(wanted, outputs[wanted.name], batched=self._batched) for wanted in request.wanted
        ]
        key = (request.wanted, *[array.shape for array in arrays])
        known = self._heads.get(key)
        if known is None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            known = self._heads[key] = self._head(request, arrays)
        head, raw, elsewhere = known
        if not raw:
            return _typed(head, request.id, arrays)
        if elsewhere:
            # Clients count the contents: each output has some, even if empty.
            arrays = [array[:0] if place else array for array, place in zip(arrays, elsewhere, strict=True)]
        parts = [head]
        if request.id:
            identifier = request.id.encode()
            parts += length_delimited(_ID, len(identifier)), identifier
        for array in arrays:
            content = to_raw(array)
            parts += length_delimited(_RAW, len(content)), content
        return b"".join(parts)

    def write_row(self, request: InferRequest, rows: np.ndarray, content: bytes) -> bytes | None:
        """Write the answer to a request for nothing but one raw row, `content`, of `rows`; None for any other."""
        row = self._row
        if row is None or row.wanted is not request.wanted or row.shape != rows.shape[1:]:
            row = self._row = self._row_of(request, rows)
        if row.head is None:
            return None
        if request.id:
            identifier = request.id.encode()
            return b"".join(
                (row.head, length_delimited(_ID, len(identifier)), identifier, row.prefix, content)
            )
        return b"".join((row.head, row.prefix, content))

    def _row_of(self, request: InferRequest, rows: np.ndarray) -> _Row:
        wanted, array = request.wanted, rows[:1]
        raw = len(wanted) == 1 and type(wanted[0]) is WantedOutput and wanted[0].binary
        little = rows.dtype.newbyteorder("<") == rows.dtype
        if not raw or wanted[0].classes or rows.dtype == object or not little:
            return _Row(wanted, rows.shape[1:], None, b"")
        head, _, _ = self._head(request, [array])
        return _Row(wanted, rows.shape[1:], head, length_delimited(_RAW, array.nbytes))

    def _head(self, request: InferRequest, arrays: list[np.ndarray]) -> tuple[bytes, bool, tuple[bool, ...]]:
        """Return the common part of answers with these shapes; whether they are raw; which outputs are in regions."""
        answer = ModelInferResponse(model_name=self._model, model_version=self._version)
        for wanted, array in zip(request.wanted, arrays, strict=True):
            answer.outputs.add(name=wanted.name, datatype=datatype_of(array), shape=array.shape)
        raw = any(wanted.binary for wanted in request.wanted)
        elsewhere = tuple(isinstance(wanted, RegionOutput) for wanted in request.wanted)
        raw = raw or not all(map(has_typed, arrays))
        return answer.SerializeToString(), raw, elsewhere if any(elsewhere) else ()


def _typed(head: bytes, identifier: str, arrays: list[np.ndarray]) -> bytes:
    answer = ModelInferResponse.FromString(head)
    answer.id = identifier
    for output, array in zip(answer.outputs, arrays, strict=True):
        write_typed(output.contents, array)
    content: bytes = answer.SerializeToString()
    return content


def stream_answer(answer: bytes) -> bytes:
    """Return a `ModelStreamInferResponse` with an answer, the only one to its request."""
    return b"".join((length_delimited(_ANSWER, len(answer) + len(_LAST)), answer, _LAST))
