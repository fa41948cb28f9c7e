"""The dialects of named tensors and of Azure's scoring endpoint; which one a model gets depends on its signature."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stoker.errors import NonFiniteOutput, StokerError, UnsupportedEncoding
from stoker.gateway.http.responses import JSON_TYPE_LINE, code_line, error_answer, error_body
from stoker.gateway.scoring.call import Dialect
from stoker.settings.choices import NonFinite
from stoker.wire.images import is_media
from stoker.wire.json_bodies import MAX_VALUES
from stoker.wire.packed import pack, unpack
from stoker.wire.scoring import ScoringDecoder, encode_each, encode_outputs, encode_texts
from stoker.wire.tensor_json import (
    ColumnNames,
    TensorDecoder,
    encode_tensors,
)

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Decode, Exchange, Ticket
    from stoker.gateway.scoring.call import Call, UnlockedDecoder
    from stoker.tensors import ModelTensors, Signature
    from stoker.wire.script_requests import RequestHead


class AzureDialect(Dialect):
    """A way to decode and answer requests at Azure's scoring endpoint; made for one model when it is loaded.

    Attributes:
        direct: Whether a POST of JSON or text can be scored without its head, so that the fast path takes it.
        wants_head: Whether `submit` needs the head of a request.
    """

    direct = True
    wants_head = False

    def check_media(self, content_type: bytes) -> None:
        """Refuse a `Content-Type` that the model does not accept."""

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return status, no header lines, and Azure's JSON of an error."""
        return error.status, b"", error_body(error)


class Unloaded(AzureDialect):
    """Takes the place of the dialect of a model that has not been loaded yet."""

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Raise NotReady."""
        del exchange, body, head
        raise call.service.not_ready()

    def complete(self, call: Call) -> None:
        """Raise NotReady."""
        raise call.service.not_ready()


class JsonDialect(AzureDialect):
    """The base of dialects for models that take JSON."""

    def __init__(self, name: str) -> None:
        self._name = name

    @abstractmethod
    def encode(self, ticket: Ticket) -> bytes:
        """Return the body of the answer to a scored request. Only valid inside its `complete`."""

    def complete(self, call: Call) -> None:
        """Answer with JSON."""
        call.answer_scored(self.encode(call), time.monotonic_ns())

    def check_media(self, content_type: bytes) -> None:
        """Refuse images and forms."""
        if is_media(content_type):
            raise UnsupportedEncoding(
                f"{self._name} takes JSON; images need a model that is served with an image input."
            )


class RowsDialect(JsonDialect):
    """Rows of numbers or texts, and answers that are rows of numbers or texts."""

    def __init__(self, name: str, signature: Signature, non_finite: NonFinite) -> None:
        """Create it for a model with this signature; `non_finite` says how NaN and infinities are written."""
        super().__init__(name)
        self._decoder = ScoringDecoder(signature)
        self._decode: Decode[bytes] = self._decoder.decode
        self._in_place = self._decoder.reads_natively
        if signature.callers is not None:
            texts = TensorDecoder(signature.callers).decode
            self._in_place, self._decode = False, lambda body, _: [*texts(body).values()]
        self._non_finite = non_finite
        # Chosen once, so that requests need not check.
        names = _column_names(signature.model_tensors)
        self._encode_outputs = encode_outputs if names is None else names.encode_outputs
        self._encode_each = encode_each if names is None else names.encode_each

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the rows of a body."""
        del head
        if self._in_place:
            exchange.submit_decoded(call, body, self._decode)
        else:
            exchange.submit(call, self._decode(body, None))

    def unlocked_decoder(self, body: bytes) -> UnlockedDecoder | None:
        """The C++ decoder, where it is installed."""
        # The length of longer ones has to be counted first, which holds the interpreter lock.
        return self._decoder.native_rows if self._in_place and len(body) <= MAX_VALUES else None

    def encode(self, ticket: Ticket) -> bytes:
        """Return the rows of the only output, or a JSON object of outputs by name."""
        outputs = ticket.exchange.signature.outputs
        if outputs[0].variable:
            return encode_texts(ticket.output_texts(0))
        return self._encode_outputs(outputs, ticket.outputs(), self._non_finite)

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Encode all rows as one text, and answer each request with its part."""
        try:
            bodies = self._encode_each(rows, self._non_finite)
        except NonFiniteOutput:
            super().complete_together(calls, rows)
            return
        now_ns = time.monotonic_ns()
        # Counted once for all: a shared counter costs as much as all other counting of a request.
        calls[0].service.metrics.count_scored(len(calls), len(calls))
        for call, body in zip(calls, bodies, strict=True):
            try:
                call.answer_scored(body, now_ns, counted=True)
            except Exception as error:  # noqa: BLE001  # must not reach the other requests
                call.refuse_for_fault(error)


class PackedDialect(JsonDialect):
    """Tensors of any shape, packed into one row."""

    def __init__(self, name: str, tensors: ModelTensors, non_finite: NonFinite) -> None:
        """Create it for a model with these tensors; `non_finite` says how NaN and infinities are written."""
        super().__init__(name)
        self._decode = TensorDecoder(tensors).decode
        self._non_finite = non_finite
        names = _column_names(tensors)
        self._encode_tensors = encode_tensors if names is None else names.encode_tensors

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the tensors of a body."""
        del head
        exchange.submit_body(call, pack(self._decode(body)))

    def encode(self, ticket: Ticket) -> bytes:
        """Return the only output, or a JSON object of outputs by name."""
        return self._encode_tensors(unpack(ticket.output_texts(0)[0]), self._non_finite)


def _column_names(tensors: ModelTensors | None) -> ColumnNames | None:
    """Writes outputs as objects by column names; None if they are lists."""
    if tensors is None or not any(info.as_objects for info in tensors.outputs):
        return None
    return ColumnNames(tensors.outputs)


class TensorDialect(Dialect):
    """A protocol of named tensors. Its `submit` sets `Call.write`, and ends with `submit_tensors`."""

    __slots__ = ()

    def complete(self, call: Call) -> None:
        """Answer with what `Call.write` returns for the outputs."""
        self._answer(call, named_outputs(call))

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer each with its row."""
        name = calls[0].exchange.signature.outputs[0].name
        for index, call in enumerate(calls):
            try:
                self._answer(call, {name: rows[index : index + 1]})
            except StokerError as error:
                call.refuse(error)
            except Exception as error:  # noqa: BLE001  # must not reach the other requests
                call.refuse_for_fault(error)

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        lines, body = call.write(outputs)
        call.answer_scored(body, time.monotonic_ns(), lines)

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return `{"error": ...}`, with the error's code as a header."""
        status, body = error_answer(error)
        return status, code_line(error), body


def write_json(
    encode: Callable[[Mapping[str, np.ndarray]], bytes], outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, bytes]:
    """Encode outputs as JSON; for `Call.write`, as a `partial`."""
    return JSON_TYPE_LINE, encode(outputs)


def submit_tensors(
    call: Call, exchange: Exchange, inputs: Mapping[str, np.ndarray], signature_name: str = ""
) -> None:
    """Queue a request whose inputs have been checked against `Signature.model_tensors`, or that name in `named`."""
    signature = exchange.signature
    if signature.takes == "tensors":
        exchange.submit_body(call, pack(inputs, signature_name))
        return
    rows = [inputs[spec.name] for spec in signature.inputs]
    if len(rows[0]):
        exchange.submit(call, rows)
    else:
        call.complete_empty(exchange)


def named_outputs(call: Ticket) -> dict[str, np.ndarray]:
    """Return the outputs of a request by name; strings are an `object` array. Only valid inside its `complete`."""
    signature = call.exchange.signature
    if signature.takes == "tensors":
        return unpack(call.output_texts(0)[0])
    outputs = signature.outputs
    if not call.rows:
        return {spec.name: np.empty((0, *spec.shape), spec.dtype) for spec in outputs}
    if outputs[0].variable:
        texts = np.empty(call.rows, object)
        texts[:] = call.output_texts(0)
        return {outputs[0].name: texts}
    return {spec.name: array for spec, array in zip(outputs, call.outputs(), strict=True)}
