"""One served model as a frontend sees it, and the core of scoring that both doors share.

decode -> lease and submit -> (the device) -> encode -> respond. Nothing here knows HTTP beyond header lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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
from stoker.exchange import Exchange, Ticket
from stoker.gateway.answers import CLOSE_LINE, Respond, error_body, error_lines, json_lines
from stoker.gateway.request_ids import RequestIds, fresh_id_lines
from stoker.metrics import ModelMetrics
from stoker.script_form import ScriptForm
from stoker.tensors import Signature
from stoker.wire.envelope import RequestHead, ScriptAnswer, ScriptRequest
from stoker.wire.scoring import ScoringDecoder, check_text, encode_outputs, encode_texts

if TYPE_CHECKING:
    from stoker.keyring import KeyVerifier

__all__ = ["Call", "Service"]

logger = logging.getLogger(__name__)

_CLIENT_GONE: Final = 499
_JSON_TYPE_LINE: Final = b"content-type: application/json\r\n"
_TIMING_LINE: Final = b"server-timing: parse;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\n"
_SCORED_LINES: Final = _JSON_TYPE_LINE + b"content-length: %d\r\n%b" + _TIMING_LINE


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
        self.authorized: Callable[[bytes], bool] = _open if verifier is None else verifier.verify
        """Whether the value of the `Authorization` header carries a valid key, or none is needed."""
        self._decoder: ScoringDecoder | None = None
        self.script: ScriptForm | None = None
        """How the entry script is called, if the model is one that takes whole bodies."""

    @property
    def ready(self) -> bool:
        """Whether requests can be scored now."""
        return self.exchange is not None and not self.draining

    def attach(self, exchange: Exchange) -> None:
        """Score through this exchange from now on."""
        self.signature = exchange.arena.signature
        self._decoder = ScoringDecoder(self.signature)
        self.script = self.signature.script
        self.exchange = exchange

    def detach(self, exchange: Exchange) -> None:
        """Stop using an exchange whose device process has gone."""
        if self.exchange is exchange:
            self.exchange = None

    def unauthorized(self) -> Unauthorized:
        """The error for a request without a valid key."""
        self.metrics.count_rejection("unauthorized")
        self.metrics.count_request(401)
        return Unauthorized("A valid key is needed: send the header 'Authorization: Bearer <key>'.")

    def too_large(self) -> BodyTooLarge:
        """The error for a body above the limit."""
        self.metrics.count_rejection("body_too_large")
        self.metrics.count_request(413)
        return BodyTooLarge(f"The request body is larger than {self.max_body_bytes / 2**20:.4g} MiB.")

    def score(
        self,
        body: bytes,
        ids: RequestIds | None,
        respond: Respond,
        received_ns: int,
        head: RequestHead | None = None,
    ) -> Call:
        """Score one request; `respond` is called once, at once or later.

        Args:
            body: The request's body.
            ids: Ids that go into the answer and the log; None makes fresh ones.
            respond: Takes the answer.
            received_ns: When the body was complete, `time.monotonic_ns`.
            head: Method, query and headers, for a script that wants them.
        """
        call = Call(self, ids, respond, received_ns)
        exchange, decoder = self.exchange, self._decoder
        if exchange is None or decoder is None:
            call.refuse(
                NotReady(f"{self.name} is not ready: it is loading or its device restarts.", retry_after_s=1)
            )
            return call
        if exchange.full:
            call.refuse(exchange.overloaded())
            return call
        try:
            if self.script is not None:
                exchange.submit_body(call, self._pack(self.script, call.ids.request_id, body, head))
            else:
                exchange.submit(call, decoder.decode(body))
        except StokerError as error:
            call.refuse(error)
        except Exception:
            # A fault of ours must not cost the connection.
            logger.exception("request %s: scoring failed", call.ids.request_id.decode("latin-1"))
            call.refuse(StokerError("An unexpected internal error occurred. Check the logs for more info."))
        return call

    def _pack(self, script: ScriptForm, request_id: bytes, body: bytes, head: RequestHead | None) -> bytes:
        if script.kind == "string":
            check_text(body)
        return ScriptRequest(request_id, body, head=head).pack()

    def encode(self, ticket: Ticket) -> bytes:
        """The answer's body for a ticket of rows without an error."""
        signature = ticket.exchange.arena.signature
        if signature.outputs[0].variable:
            return encode_texts(ticket.output_texts(0))
        return encode_outputs(signature.outputs, ticket.outputs())


class Call(Ticket):
    """One scoring request between its body and its answer."""

    __slots__ = ("_ids", "_respond", "_service", "received_ns")

    def __init__(self, service: Service, ids: RequestIds | None, respond: Respond, received_ns: int) -> None:
        # What Ticket.__init__ does, without the call: this runs once a request.
        self.deadline_ns = received_ns + service.timeout_ns
        self.error = None
        self._open = True
        self._feed = None
        self.received_ns = received_ns
        self._service = service
        self._ids = ids
        self._respond: Respond | None = respond

    @property
    def ids(self) -> RequestIds:
        """The request's ids."""
        if self._ids is None:
            self._ids = RequestIds()
        return self._ids

    def complete(self) -> None:
        """Answer with what the device gave."""
        if self.error is not None:
            self.refuse(self.error)
            return
        service = self._service
        if service.script is not None:
            self._complete_script(ScriptAnswer.unpack(self.output_texts(0)[0]))
            return
        body = service.encode(self)
        received_ns, enqueued_ns = self.received_ns, self.enqueued_ns
        started_ns, finished_ns = self.started_ns, self.finished_ns
        parse_ns = enqueued_ns - received_ns
        total_ns = time.monotonic_ns() - received_ns
        lines = _SCORED_LINES % (
            len(body),
            fresh_id_lines() if self._ids is None else self._ids.lines,
            parse_ns / 1e6,
            (started_ns - enqueued_ns) / 1e6,
            (finished_ns - started_ns) / 1e6,
            total_ns / 1e6,
        )
        service.metrics.note_scored(self.rows, parse_ns, total_ns)
        self._answer(200, lines, body)

    def _complete_script(self, answer: ScriptAnswer) -> None:
        now_ns = time.monotonic_ns()
        parse_ns = self.enqueued_ns - self.received_ns
        executed = (
            b"" if answer.exec_ns is None else b"x-ms-run-fn-exec-ms: %.3f\r\n" % (answer.exec_ns / 1e6)
        )
        lines = b"".join(
            (
                answer.lines or _JSON_TYPE_LINE,
                b"content-length: %d\r\n" % len(answer.body),
                self.ids.lines,
                b"x-ms-run-function-failed: %b\r\n" % (b"True" if answer.failed else b"False"),
                executed,
                _TIMING_LINE
                % (
                    parse_ns / 1e6,
                    (self.started_ns - self.enqueued_ns) / 1e6,
                    (self.finished_ns - self.started_ns) / 1e6,
                    (now_ns - self.received_ns) / 1e6,
                ),
            )
        )
        metrics = self._service.metrics
        if answer.status == 200:
            metrics.note_scored(1, parse_ns, now_ns - self.received_ns)
        else:
            metrics.count_request(answer.status)
        self._answer(answer.status, lines, answer.body)

    def refuse(self, error: StokerError) -> None:
        """Answer with an error."""
        metrics = self._service.metrics
        metrics.count_request(error.status)
        reason = _rejection(error)
        if reason is not None:
            metrics.count_rejection(reason)
        body = error_body(error)
        self._answer(error.status, json_lines(body) + self.ids.lines + error_lines(error), body)

    def abandon(self) -> None:
        """The caller has gone: rows that have not started do not run."""
        if self._respond is None:
            return
        self._respond = None
        self._service.metrics.count_request(_CLIENT_GONE)
        self.cancel()

    def _answer(self, status: int, lines: bytes, body: bytes) -> None:
        respond, self._respond = self._respond, None
        if respond is None:
            return
        if self._service.draining:
            lines += CLOSE_LINE
        respond(status, lines, body)


def _open(_: bytes) -> bool:
    return True


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
