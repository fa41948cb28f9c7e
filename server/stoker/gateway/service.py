"""One served model as a frontend sees it, and the core of scoring that both doors share.

decode -> lease and submit -> (the device) -> encode -> respond. Nothing here knows HTTP beyond header lines.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    InvalidInput,
    MalformedBody,
    NotReady,
    Overloaded,
    RequestError,
    StokerError,
    Unauthorized,
)
from stoker.gateway.answers import CLOSE_LINE, Respond, error_body, error_lines, json_lines
from stoker.metrics import PARSE_STAGE, TOTAL_STAGE, ModelMetrics
from stoker.tensors import Signature
from stoker.wire.scoring import ScoringDecoder, encode_outputs, encode_texts

if TYPE_CHECKING:
    from stoker.exchange import Exchange, Ticket
    from stoker.gateway.request_ids import RequestIds
    from stoker.keyring import KeyVerifier

__all__ = ["Call", "Service"]

logger = logging.getLogger(__name__)

_CLIENT_GONE: Final = 499
_TIMING_LINE: Final = b"server-timing: parse;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\n"


class Service:
    """A served model: its keys, limits, counters, and the exchange to its device process while there is one."""

    def __init__(
        self,
        name: str,
        *,
        verifier: KeyVerifier | None,
        metrics: ModelMetrics,
        timeout_ms: int,
        max_body_bytes: int,
    ) -> None:
        self.name = name
        self.metrics = metrics
        self.timeout_ns = timeout_ms * 1_000_000
        self.max_body_bytes = max_body_bytes
        self.signature: Signature | None = None
        self.exchange: Exchange | None = None
        self.draining = False
        self._verifier = verifier
        self._decoder: ScoringDecoder | None = None

    @property
    def ready(self) -> bool:
        """Whether requests can be scored now."""
        return self.exchange is not None and not self.draining

    def attach(self, exchange: Exchange) -> None:
        """Score through this exchange from now on."""
        self.signature = exchange.arena.signature
        self._decoder = ScoringDecoder(self.signature)
        self.exchange = exchange

    def detach(self, exchange: Exchange) -> None:
        """Stop using an exchange whose device process has gone."""
        if self.exchange is exchange:
            self.exchange = None

    def authorized(self, authorization: bytes) -> bool:
        """Whether the value of the `Authorization` header carries a valid key, or none is needed."""
        return self._verifier is None or self._verifier.verify(authorization)

    def unauthorized(self) -> Unauthorized:
        """The error for a request without a valid key."""
        self.metrics.count_rejection("unauthorized")
        self.metrics.count_request(401)
        return Unauthorized("A valid key is needed: send the header 'Authorization: Bearer <key>'.")

    def too_large(self) -> BodyTooLarge:
        """The error for a body above the limit."""
        self.metrics.count_rejection("body_too_large")
        self.metrics.count_request(413)
        return BodyTooLarge(f"The request body is larger than {self.max_body_bytes / 2**20:g} MiB.")

    def score(self, body: bytes, ids: RequestIds, respond: Respond, received_ns: int) -> Call:
        """Score one request; `respond` is called once, at once or later.

        Args:
            body: The request's body.
            ids: Ids that go into the answer and the log.
            respond: Takes the answer.
            received_ns: When the body was complete, `time.monotonic_ns`.
        """
        call = Call(self, ids, respond, received_ns)
        try:
            call.submit(body)
        except StokerError as error:
            call.fail(error)
        except Exception as error:  # a fault of ours must not cost the connection
            logger.exception("request %s: scoring failed", ids.request_id.decode("latin-1"), exc_info=error)
            call.fail(StokerError("An unexpected internal error occurred. Check the logs for more info."))
        return call

    def decode_and_submit(self, body: bytes, call: Call) -> Ticket:
        """Put a body's rows into the exchange; raises what `ScoringDecoder.decode` and `Exchange.submit` raise."""
        exchange = self.exchange
        if exchange is None or self._decoder is None:
            raise NotReady(
                f"{self.name} is not ready: it is loading or its device restarts.", retry_after_s=1
            )
        if exchange.full:
            raise exchange.overloaded()
        deadline_ns = call.received_ns + self.timeout_ns
        assert self.signature is not None, "set together with the exchange"
        if self.signature.takes == "body":
            return exchange.submit_body(body, call.complete, deadline_ns)
        return exchange.submit(self._decoder.decode(body), call.complete, deadline_ns)

    def encode(self, ticket: Ticket) -> bytes:
        """The answer's body for a ticket without an error."""
        signature = ticket.exchange.arena.signature
        if signature.takes == "body":
            return ticket.output_texts(0)[0]
        if signature.outputs[0].variable:
            return encode_texts(ticket.output_texts(0))
        return encode_outputs(signature.outputs, ticket.outputs())


class Call:
    """One scoring request between its body and its answer."""

    __slots__ = ("_ids", "_respond", "_service", "_ticket", "received_ns")

    def __init__(self, service: Service, ids: RequestIds, respond: Respond, received_ns: int) -> None:
        self.received_ns = received_ns
        self._service = service
        self._ids = ids
        self._respond: Respond | None = respond
        self._ticket: Ticket | None = None

    def submit(self, body: bytes) -> None:
        """Decode the body and queue its rows."""
        service = self._service
        ticket = service.decode_and_submit(body, self)
        self._ticket = ticket
        metrics = service.metrics
        metrics.observe_stage(PARSE_STAGE, ticket.enqueued_ns - self.received_ns)
        metrics.count_rows(ticket.rows)

    def complete(self, ticket: Ticket) -> None:
        """Answer with what the device gave; called by the exchange."""
        if ticket.error is not None:
            self.fail(ticket.error)
            return
        service = self._service
        body = service.encode(ticket)
        now_ns = time.monotonic_ns()
        received_ns, enqueued_ns = self.received_ns, ticket.enqueued_ns
        started_ns, finished_ns = ticket.started_ns, ticket.finished_ns
        timing = _TIMING_LINE % (
            (enqueued_ns - received_ns) / 1e6,
            (started_ns - enqueued_ns) / 1e6,
            (finished_ns - started_ns) / 1e6,
            (now_ns - received_ns) / 1e6,
        )
        service.metrics.observe_stage(TOTAL_STAGE, now_ns - received_ns)
        self._answer(200, json_lines(body) + self._ids.lines + timing, body)

    def fail(self, error: StokerError) -> None:
        """Answer with an error."""
        reason = _rejection(error)
        if reason is not None:
            self._service.metrics.count_rejection(reason)
        body = error_body(error)
        self._answer(error.status, json_lines(body) + self._ids.lines + error_lines(error), body)

    def cancel(self) -> None:
        """The caller has gone: rows that have not started do not run."""
        if self._respond is None:
            return
        self._respond = None
        self._service.metrics.count_request(_CLIENT_GONE)
        if self._ticket is not None:
            self._ticket.cancel()

    def _answer(self, status: int, lines: bytes, body: bytes) -> None:
        respond, self._respond = self._respond, None
        if respond is None:
            return
        self._service.metrics.count_request(status)
        if self._service.draining:
            lines += CLOSE_LINE
        respond(status, lines, body)


def _rejection(error: StokerError) -> str | None:
    match error:
        case Overloaded():
            return "overloaded"
        case NotReady():
            return "not_ready"
        case DeadlineExceeded():
            return "deadline"
        case MalformedBody() | InvalidInput() | RequestError():
            return "malformed"
        case _:
            return None
