"""One infer request of gRPC, from its message to its answer, which may come in pieces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from stoker.errors import InvalidInput, NotSupported, StokerError, cut
from stoker.gateway.grpc.calls import RpcCall, log_fault
from stoker.gateway.grpc.contents import write_typed
from stoker.gateway.grpc.messages import SERVICE, ModelInferResponse, ModelStreamInferResponse
from stoker.gateway.grpc.metadata import error_fields, error_text
from stoker.gateway.grpc.requests import FINAL_ASKED, RequestDecoder, RequestMessage
from stoker.gateway.grpc.responses import IS_FINAL, AnswerWriter
from stoker.gateway.http.body_budget import Allowance
from stoker.gateway.http.responses import parse_error, split_lines
from stoker.gateway.protocols.endpoint import ScoringRequest
from stoker.gateway.protocols.pieces import piecewise
from stoker.gateway.regions.regions import OutputRegions
from stoker.gateway.scoring.call_options import CallOptions
from stoker.wire.datatypes import DATATYPES
from stoker.wire.oip_tensors import datatype_of, to_raw
from stoker.wire.script_requests import RequestHead
from stoker.wire.script_tensors import body_of, outputs_of, tensors_like

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.grpc.framing import Reservation
    from stoker.gateway.http.responses import Answer
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.service import Service
    from stoker.gateway.scoring.streams import ScriptStreams
    from stoker.sequence_steps import SequenceStep
    from stoker.wire.http2.fields import Fields
    from stoker.wire.oip_requests import InferRequest

_SCORED: Final = 200
_REFUSAL: Final = frozenset(
    {
        b"grpc-status",
        b"grpc-message",
        b"error-code",
        b"error-id",
        b"retry-after",
        b"retry-after-ms",
        b"stoker-refused",
        b"grpc-retry-pushback-ms",
    }
)


class Dispatcher(Protocol):
    """Finds the model of an inference; see `stoker.gateway.grpc.infer.InferDispatcher`."""

    def score(self, inference: Inference, content: bytes) -> Call | PiecewiseInference | WaitingInference:
        """Hand a message to the service that it is for; raises StokerError if it is refused."""


class InferenceOwner:
    """A call, or a stream with many inferences. Unless it overrides them, it accepts no answers in pieces."""

    __slots__ = ()

    def begin_pieces(self, inference: Inference) -> None:
        """Expect the answer in pieces."""
        name = "" if inference.request is None else inference.request.model_name
        raise NotSupported(f"'{name}' yields its answer piece by piece: call ModelStreamInfer")

    def send_piece(self, inference: Inference, content: bytes) -> None:
        """Send a piece, a `ModelStreamInferResponse`."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait while the caller has not taken most of what was sent."""
        raise NotImplementedError

    def send_answer(self, inference: Inference, content: bytes) -> None:
        """Send an answer, a `ModelInferResponse`; after pieces the last one, or nothing if it is empty."""
        raise NotImplementedError

    def send_error(self, inference: Inference, fields: Fields, text: str) -> None:
        """Send an error: the fields that would end a call with it, and its message."""
        raise NotImplementedError


class Inference:
    """One infer request, from its message to its answer.

    Attributes:
        request: The message, read without the model; None until it has been read.
        decoded: The message, decoded for the model; set when it is submitted.
        writer: Writes the answer; set when the request is submitted.
        output_regions: The shared memory for the outputs; set when the request is submitted, if there is any.
    """

    __slots__ = (
        "_allowance",
        "_reservation",
        "_scored",
        "call",
        "decoded",
        "output_regions",
        "owner",
        "request",
        "writer",
    )

    decoded: InferRequest
    writer: AnswerWriter
    output_regions: OutputRegions | None

    def __init__(self, call: RpcCall, owner: InferenceOwner, reservation: Reservation | None) -> None:
        """Begin; `reservation` is the memory of the message, which is released with the answer."""
        self.call = call
        self._reservation = reservation
        self.request: RequestMessage | None = None
        self.owner = owner
        self._scored: Call | PiecewiseInference | WaitingInference | None = None
        self._allowance: Allowance | None = None

    def start(self, dispatcher: Dispatcher, content: bytes) -> None:
        """Score a message. The owner sends one answer or error, now or later."""
        try:
            self._scored = dispatcher.score(self, content)
        except StokerError as error:
            self.refuse(error.with_traceback(None))
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            self.refuse(log_fault(error, self.call, "" if self.request is None else self.request.model_name))

    def cover(self, allowance: Allowance, size_bytes: int) -> None:
        """Reserve memory for a large message until it is answered, now from its caller's share."""
        self._release()
        self._allowance = allowance
        allowance.cover(size_bytes)

    def refuse(self, error: StokerError) -> None:
        """Answer with an error."""
        self._end()
        self.owner.send_error(self, error_fields(error), error_text(error))

    def abandon(self) -> None:
        """Give up: the caller has gone."""
        scored = self._scored
        self._end()
        if scored is not None:
            scored.abandon()

    def __call__(self, status: int, lines: bytes, body: bytes) -> None:
        """Send the answer of a scored call."""
        self._end()
        if status == _SCORED:
            self.owner.send_answer(self, body)
        else:
            fields = [field for field in split_lines(lines) if field[0] in _REFUSAL]
            self.owner.send_error(self, list(dict(fields).items()), body.decode())

    def _release(self) -> None:
        if self._allowance is not None:
            self._allowance.release()
            self._allowance = None
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _end(self) -> None:
        """Drop the scored call, which refers to this object: otherwise only the garbage collector could free both."""
        self._release()
        self._scored = None


# Scripts that yield: each piece is an answer of its stream, as of Triton's decoupled models.
_OK: Final = 200
_MAX_FORM_BYTES: Final = 1 << 20
_MAX_TEXT_CHARS: Final = 1024
_DTYPES: Final = {datatype: dtype for dtype, datatype in DATATYPES.items()}
_PATH: Final = f"/{SERVICE}/ModelStreamInfer"
_HOP_FIELDS: Final = (b"content-type", b"te", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")


class PieceRequest(NamedTuple):
    """A `ModelInferRequest` to a script that yields.

    Attributes:
        marks_end: Whether an answer without outputs follows the last piece.
        timeout_ns: How long the caller waits for the first piece; None for any time.
    """

    id: str
    body: bytes
    outputs: tuple[str, ...]
    raw: bool
    marks_end: bool
    timeout_ns: int | None
    tier: int | None
    sequence: SequenceStep | None

    @classmethod
    def read(cls, model: str, request: RequestMessage, *, sequences: bool = False) -> PieceRequest:
        """Read a request."""
        message = request.parsed(_MAX_FORM_BYTES)
        tensors = tensors_like(
            [(given.name, _dtype(model, given)) for given in message.inputs],
            [output.name for output in message.outputs],
            sequences=sequences,
        )
        decoded = RequestDecoder(model, tensors).decode_parsed(request, message)
        if any(wanted.classes for wanted in decoded.wanted):
            raise InvalidInput(f"'{model}' yields pieces: they have no classes")
        return cls(
            request.id,
            body_of(model, decoded.inputs),
            tuple(wanted.name for wanted in decoded.wanted),
            any(wanted.binary for wanted in decoded.wanted),
            message.parameters[FINAL_ASKED].bool_param if FINAL_ASKED in message.parameters else False,
            decoded.timeout_ns,
            decoded.tier,
            decoded.sequence,
        )


def _dtype(model: str, given: Any) -> str:
    dtype = _DTYPES.get(given.datatype)
    if dtype is None:
        raise InvalidInput(f"input '{cut(given.name)}' for model '{model}' has no datatype that is known")
    return dtype


class WaitingInference:
    """An inference that is scored once its model is loaded."""

    def __init__(self, scoring: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.ensure_future(scoring)

    def abandon(self) -> None:
        """Give up: nothing is scored."""
        self._task.cancel()


class PiecewiseInference:
    """An inference whose answer comes in pieces from a script that yields."""

    def __init__(
        self,
        inference: Inference,
        service: Service,
        request: PieceRequest,
        options: CallOptions,
        streams: ScriptStreams,
    ) -> None:
        self._inference, self._service, self._request = inference, service, request
        waits_ns = [wait_ns for wait_ns in (options.timeout_ns, request.timeout_ns) if wait_ns is not None]
        tier = options.tier if request.tier is None else request.tier
        self._options = options._replace(
            timeout_ns=min(waits_ns, default=None), tier=tier, sequence=request.sequence or options.sequence
        )
        self._task = asyncio.ensure_future(self._run(streams))

    def abandon(self) -> None:
        """Give up: the script's generator is closed at its next piece."""
        self._task.cancel()

    async def _run(self, streams: ScriptStreams) -> None:
        inference = self._inference
        try:
            end = await self._send(streams)
            if end.status == _OK:
                last = self._message({}).SerializeToString() if self._request.marks_end else b""
                inference(_OK, b"", last)
            else:
                inference(end.status, *_error_of(end))
        except StokerError as error:
            inference.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            inference.refuse(log_fault(error, inference.call, self._service.name))

    async def _send(self, streams: ScriptStreams) -> Answer:
        inference, names = self._inference, self._request.outputs
        head, received_ns = script_head(inference.call), time.monotonic_ns()
        scoring = ScoringRequest(
            self._request.body, inference.call.ids, head, received_ns, options=self._options
        )
        with piecewise(self._service, scoring, streams) as pieces:
            if await pieces.begin():
                while (piece := await pieces.next()) is not None:
                    inference.owner.send_piece(inference, self._in_stream(outputs_of(piece, names)))
                    await inference.owner.drain()
            return await pieces.end()

    def _in_stream(self, outputs: Mapping[str, np.ndarray]) -> bytes:
        """An answer behind which others come."""
        response = self._message(outputs)
        response.parameters[IS_FINAL].bool_param = False
        content: bytes = ModelStreamInferResponse(infer_response=response).SerializeToString()
        return content

    def _message(self, outputs: Mapping[str, np.ndarray]) -> Any:
        response = ModelInferResponse(
            model_name=self._service.name, model_version=self._service.version, id=self._request.id
        )
        for name, array in outputs.items():
            output = response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
            if self._request.raw:
                response.raw_output_contents.append(to_raw(array))
            else:
                write_typed(output.contents, array)
        return response


def script_head(call: RpcCall, path: str = _PATH, content_type: str = "application/json") -> RequestHead:
    """Return the head that a script sees: the metadata as headers, with the content type of its body."""
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in call.headers().items()
        if name not in _HOP_FIELDS
    ]
    if content_type:
        headers.append(("content-type", content_type))
    return RequestHead("POST", path, "", headers, call.address)


def _error_of(answer: Answer) -> tuple[bytes, bytes]:
    """Return fields, as lines, and message of an error, from the JSON of Azure's endpoint or a script's text."""
    error = parse_error(answer.body)
    if error is None:
        return answer.lines, answer.body.decode(errors="replace")[:_MAX_TEXT_CHARS].encode()
    text, code, error_id = error["message"], error.get("code", ""), error.get("error_id", "")
    lines = b"error-code: %b\r\n" % str(code).encode() + (
        b"error-id: %b\r\n" % str(error_id).encode() if error_id else b""
    )
    return answer.lines + lines, str(text).encode()
