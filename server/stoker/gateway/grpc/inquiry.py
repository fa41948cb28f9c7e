"""One infer request of gRPC, from its message to its answer, and who asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from stoker.errors import StokerError
from stoker.gateway.grpc.calls import RpcCall, fault
from stoker.gateway.grpc.heads import refusal_fields, shown
from stoker.gateway.http.responses import split_lines

if TYPE_CHECKING:
    from stoker.gateway.grpc.request_messages import RequestMessage
    from stoker.gateway.grpc.responses import AnswerWriter
    from stoker.gateway.grpc.room import Hold
    from stoker.gateway.http.body_budget import Allowance
    from stoker.gateway.regions.regions import Places
    from stoker.wire.http2.fields import Fields
    from stoker.wire.oip_requests import InferRequest

__all__ = ["Dispatcher", "Inquirer", "Inquiry", "Scored"]

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

    def score(self, inquiry: Inquiry, content: bytes) -> Scored:
        """Hand a message to the service that it is for; raises StokerError if it is refused."""


class Inquirer(Protocol):
    """What asks: a call, or a stream of which one message asks."""

    def begin_pieces(self, inquiry: Inquiry) -> None:
        """Take note that its answer comes in pieces.

        Raises:
            NotSupported: It takes one answer alone.
        """

    def piece(self, inquiry: Inquiry, content: bytes) -> None:
        """Take a piece, a `ModelStreamInferResponse`."""

    async def room(self) -> None:
        """Wait while the caller has too much left to take."""

    def answered(self, inquiry: Inquiry, content: bytes) -> None:
        """Take an answer, a `ModelInferResponse`; behind pieces the last one, empty for none."""

    def refused(self, inquiry: Inquiry, fields: Fields, text: str) -> None:
        """Take an error: the fields that would end a call with it, and what it says."""


class Inquiry:
    """One infer request, from its message to its answer.

    Attributes:
        call: The call or stream that it came on.
        request: What its message says without the model; None until it has been read.
        decoded: What it says to the model; set when it is submitted.
        writer: What writes its answer; set then too.
        places: The shared memory that its outputs go to; set then too where its caller may have some.
    """

    __slots__ = (
        "_allowance",
        "_hold",
        "_inquirer",
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

    def __init__(self, call: RpcCall, inquirer: Inquirer, hold: Hold | None) -> None:
        """Begin.

        Args:
            call: The call or stream that it came on.
            inquirer: Who is told the answer.
            hold: The room that its message has taken while it arrived, which is given back with the answer.
        """
        self.call = call
        self._hold = hold
        self.request: RequestMessage | None = None
        self._inquirer = inquirer
        self._scored: Scored | None = None
        self._allowance: Allowance | None = None

    def ask(self, scoring: Dispatcher, content: bytes) -> None:
        """Score a message; its inquirer is told once, at once or later."""
        try:
            self._scored = scoring.score(self, content)
        except StokerError as error:
            self.refuse(error.with_traceback(None))
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            self.refuse(fault(error, self.call, "" if self.request is None else self.request.model_name))

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
        self._inquirer.refused(self, refusal_fields(error), shown(error))

    def abandon(self) -> None:
        """Its caller has gone."""
        scored = self._scored
        self._end()
        if scored is not None:
            scored.abandon()

    def begin_pieces(self) -> None:
        """Be answered in pieces; raises as `Inquirer.begin_pieces`."""
        self._inquirer.begin_pieces(self)

    def piece(self, content: bytes) -> None:
        """Take a piece of the answer."""
        self._inquirer.piece(self, content)

    async def room(self) -> None:
        """Wait while the caller has too much left to take."""
        await self._inquirer.room()

    def __call__(self, status: int, lines: bytes, body: bytes) -> None:
        """Take what a scored call answers."""
        self._end()
        if status == _SCORED:
            self._inquirer.answered(self, body)
        else:
            fields = [field for field in split_lines(lines) if field[0] in _REFUSAL]
            self._inquirer.refused(self, list(dict(fields).items()), body.decode())

    def _let_go(self) -> None:
        if self._allowance is not None:
            self._allowance.release()
            self._allowance = None
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _end(self) -> None:
        """Forget what has been scored: the two know each other, and only a collection of garbage would free them."""
        self._let_go()
        self._scored = None
