"""One infer request of gRPC, from its message to its answer, which may come in pieces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from stoker.errors import InvalidInput, StokerError, cut
from stoker.gateway.grpc.calls import RpcCall, log_fault
from stoker.gateway.grpc.contents import fill_typed
from stoker.gateway.grpc.messages import SERVICE, ModelInferResponse, ModelStreamInferResponse
from stoker.gateway.grpc.metadata import error_fields, error_text
from stoker.gateway.grpc.requests import FINAL_ASKED, RequestDecoder, RequestMessage
from stoker.gateway.grpc.responses import IS_FINAL, AnswerWriter
from stoker.gateway.http.body_budget import Allowance
from stoker.gateway.http.responses import parse_error, split_lines
from stoker.gateway.protocols.endpoint import ScoringRequest, piecewise
from stoker.gateway.regions.regions import Places
from stoker.gateway.scoring.call_options import Asker
from stoker.wire.oip_tensors import DATATYPES, datatype_of, to_raw
from stoker.wire.script_requests import RequestHead
from stoker.wire.script_tensors import body_of, outputs_of, tensors_like

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.grpc.framing import Reservation
    from stoker.gateway.http.responses import Answer
    from stoker.gateway.scoring.service import Service
    from stoker.gateway.scoring.streams import ScriptStreams
    from stoker.tensors import SequenceStep
    from stoker.wire.http2.fields import Fields
    from stoker.wire.oip_requests import InferRequest

__all__ = ["Dispatcher", "Inference", "InferenceOwner", "PieceRequest", "PiecewiseInference", "Scored"]

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


class Scored(Protocol):
    """What is under way for an inquiry."""

    def abandon(self) -> None:
        """Give it up: nobody waits for the answer."""


class Dispatcher(Protocol):
    """Who finds the model of an inquiry; see `stoker.gateway.grpc.infer.Scoring`."""

    def score(self, inference: Inference, content: bytes) -> Scored:
        """Hand a message to the service that it is for; raises StokerError if it is refused."""


class InferenceOwner(Protocol):
    """What asks: a call, or a stream of which one message asks."""

    def begin_pieces(self, inference: Inference) -> None:
        """Take note that its answer comes in pieces.

        Raises:
            NotSupported: It takes one answer alone.
        """

    def piece(self, inference: Inference, content: bytes) -> None:
        """Take a piece, a `ModelStreamInferResponse`."""

    async def drain(self) -> None:
        """Wait while the caller has too much left to take."""

    def answered(self, inference: Inference, content: bytes) -> None:
        """Take an answer, a `ModelInferResponse`; behind pieces the last one, empty for none."""

    def refused(self, inference: Inference, fields: Fields, text: str) -> None:
        """Take an error: the fields that would end a call with it, and what it says."""


class Inference:
    """One infer request, from its message to its answer.

    Attributes:
        request: What its message says without the model; None until it has been read.
        decoded: What it says to the model; set when it is submitted.
        writer: What writes its answer; set then too.
        places: The shared memory that its outputs go to; set then too where its caller may have some.
    """

    __slots__ = (
        "_allowance",
        "_owner",
        "_reservation",
        "_scored",
        "call",
        "decoded",
        "places",
        "request",
        "writer",
    )

    decoded: InferRequest
    writer: AnswerWriter
    places: Places | None

    def __init__(self, call: RpcCall, owner: InferenceOwner, reservation: Reservation | None) -> None:
        """Begin.

        Args:
            reservation: The room that its message has taken while it arrived, which is given back with the answer.
        """
        self.call = call
        self._reservation = reservation
        self.request: RequestMessage | None = None
        self._owner = owner
        self._scored: Scored | None = None
        self._allowance: Allowance | None = None

    def ask(self, scoring: Dispatcher, content: bytes) -> None:
        """Score a message; its inquirer is told once, at once or later."""
        try:
            self._scored = scoring.score(self, content)
        except StokerError as error:
            self.refuse(error.with_traceback(None))
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            self.refuse(log_fault(error, self.call, "" if self.request is None else self.request.model_name))

    def cover(self, allowance: Allowance, size_bytes: int) -> None:
        """Hold room for a large message until it is answered: as its caller's now, and no more as the connection's.

        Raises:
            Overloaded: There is none.
        """
        self._let_go()
        self._allowance = allowance
        allowance.cover(size_bytes)

    def refuse(self, error: StokerError) -> None:
        """Tell the inquirer of an error."""
        self._end()
        self._owner.refused(self, error_fields(error), error_text(error))

    def abandon(self) -> None:
        """Its caller has gone."""
        scored = self._scored
        self._end()
        if scored is not None:
            scored.abandon()

    def begin_pieces(self) -> None:
        """Be answered in pieces; raises as `InferenceOwner.begin_pieces`."""
        self._owner.begin_pieces(self)

    def piece(self, content: bytes) -> None:
        """Take a piece of the answer."""
        self._owner.piece(self, content)

    async def drain(self) -> None:
        """Wait while the caller has too much left to take."""
        await self._owner.drain()

    def __call__(self, status: int, lines: bytes, body: bytes) -> None:
        """Take what a scored call answers."""
        self._end()
        if status == _SCORED:
            self._owner.answered(self, body)
        else:
            fields = [field for field in split_lines(lines) if field[0] in _REFUSAL]
            self._owner.refused(self, list(dict(fields).items()), body.decode())

    def _let_go(self) -> None:
        if self._allowance is not None:
            self._allowance.release()
            self._allowance = None
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _end(self) -> None:
        """Forget what has been scored: the two know each other, and only a collection of garbage would free them."""
        self._let_go()
        self._scored = None


# Infer requests to scripts that yield: each piece is an answer of its stream, as of Triton's decoupled models.
_OK: Final = 200
_MAX_FORM_BYTES: Final = 1 << 20
_MAX_TEXT_CHARS: Final = 1024
_DTYPES: Final = {datatype: dtype for dtype, datatype in DATATYPES.items()}
_PATH: Final = f"/{SERVICE}/ModelStreamInfer"
_HOP_FIELDS: Final = (b"content-type", b"te", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")


class PieceRequest(NamedTuple):
    """What a `ModelInferRequest` says to a script that yields.

    Attributes:
        marks_end: Whether an answer without outputs is to say that there are no more.
        timeout_ns: How long the caller waits for the first piece, or None.
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
        """Read a request.

        Args:
            sequences: Whether the script is given the state of a sequence.

        Raises:
            StokerError: It cannot be read, or makes no body.
        """
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


class PiecewiseInference:
    """One request that is being answered; what it takes is let go when it has been, or is abandoned."""

    def __init__(
        self,
        inference: Inference,
        service: Service,
        request: PieceRequest,
        asker: Asker,
        streams: ScriptStreams,
    ) -> None:
        self._inference, self._service, self._request = inference, service, request
        waits_ns = [wait_ns for wait_ns in (asker.timeout_ns, request.timeout_ns) if wait_ns is not None]
        tier = asker.tier if request.tier is None else request.tier
        self._asker = asker._replace(
            timeout_ns=min(waits_ns, default=None), tier=tier, sequence=request.sequence or asker.sequence
        )
        self._task = asyncio.ensure_future(self._run(streams))

    def abandon(self) -> None:
        """Its caller has gone: the generator is closed at its next piece."""
        self._task.cancel()

    async def _run(self, streams: ScriptStreams) -> None:
        inference = self._inference
        try:
            end = await self._send(streams)
            if end.status == _OK:
                last = self._message({}).SerializeToString() if self._request.marks_end else b""
                inference(_OK, b"", last)
            else:
                inference(end.status, *_told(end))
        except StokerError as error:
            inference.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            inference.refuse(log_fault(error, inference.call, self._service.name))

    async def _send(self, streams: ScriptStreams) -> Answer:
        """Send the pieces; return what became of the answer."""
        inference, names = self._inference, self._request.outputs
        head, received_ns = _head(inference.call), time.monotonic_ns()
        scoring = ScoringRequest(self._request.body, inference.call.ids, head, received_ns, asker=self._asker)
        with piecewise(self._service, scoring, streams) as pieces:
            if await pieces.begin():
                while (piece := await pieces.next()) is not None:
                    inference.piece(self._in_stream(outputs_of(piece, names)))
                    await inference.drain()
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
                fill_typed(output.contents, array)
        return response


def _head(call: RpcCall) -> RequestHead:
    """What the script may see of a call: its metadata as headers, with the content type of the body that it gets."""
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in call.headers().items()
        if name not in _HOP_FIELDS
    ]
    headers.append(("content-type", "application/json"))
    return RequestHead("POST", _PATH, "", headers, call.address)


def _told(answer: Answer) -> tuple[bytes, bytes]:
    """Fields, as lines, and text of an error: from the JSON of Azure's endpoint, or as a script has written it."""
    told = parse_error(answer.body)
    if told is None:
        return answer.lines, answer.body.decode(errors="replace")[:_MAX_TEXT_CHARS].encode()
    text, code, error_id = told["message"], told.get("code", ""), told.get("error_id", "")
    lines = b"error-code: %b\r\n" % str(code).encode() + (
        b"error-id: %b\r\n" % str(error_id).encode() if error_id else b""
    )
    return answer.lines + lines, str(text).encode()
