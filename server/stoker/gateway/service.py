"""One served model as a frontend sees it, and the core of scoring that both doors share.

decode -> lease and submit -> (the device) -> encode -> respond. Nothing here knows HTTP beyond header lines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import simdjson

from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    ImageTooLarge,
    MethodNotAllowed,
    NotReady,
    Overloaded,
    RequestError,
    ScoringTimeout,
    StokerError,
    Unauthorized,
    UnsupportedEncoding,
)
from stoker.exchange import Exchange, Rows, Ticket
from stoker.gateway.answers import (
    CLOSE_LINE,
    Respond,
    code_line,
    error_body,
    error_lines,
    failed_line,
    json_lines,
)
from stoker.gateway.image_scoring import ImageScoring, content_type_of
from stoker.gateway.request_ids import RequestIds, fresh_id_lines
from stoker.metrics import ModelMetrics
from stoker.script_form import ScriptForm
from stoker.tensors import ModelTensors, Signature
from stoker.wire.envelope import RequestHead, ScriptAnswer, ScriptRequest
from stoker.wire.images import is_media
from stoker.wire.merging import row_count
from stoker.wire.packed import pack, unpack
from stoker.wire.scoring import ScoringDecoder, check_text, encode_each, encode_outputs, encode_texts
from stoker.wire.tensor_json import decode_tensors, encode_tensors

if TYPE_CHECKING:
    from stoker.gateway.collector import Collector
    from stoker.gateway.dialect import Dialect
    from stoker.keyring import KeyVerifier
    from stoker.tokens import TokenVerifier

__all__ = ["Call", "JoiningCall", "Service"]

logger = logging.getLogger(__name__)

_CLIENT_GONE: Final = 499
_NO_CONTENT: Final = 204
_JSON_TYPE_LINE: Final = b"content-type: application/json\r\n"
_TIMING_LINE: Final = b"server-timing: parse;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\n"
# Formatting a float costs several times what formatting two integers does.
_SCORED_LINES: Final = (
    _JSON_TYPE_LINE
    + b"content-length: %d\r\n%b%bserver-timing: "
    + b"parse;dur=%d.%03d, queue;dur=%d.%03d, %btotal;dur=%d.%03d\r\n"
)


class Service:
    """A served model: its keys, limits, counters, and the exchanges to the device processes of its replicas.

    Attributes:
        exchanges: One for each replica that is ready, those first that have been chosen longest ago.
        exchange: The only one of them; None if there are several or none. Most models have one replica, and its
            exchange is found without a search.
    """

    def __init__(
        self,
        name: str,
        *,
        verifier: KeyVerifier | None,
        metrics: ModelMetrics,
        timeout_ms: int,
        max_body_bytes: int,
        tokens: TokenVerifier | None = None,
        description: str | None = None,
        images: ImageScoring | None = None,
        collector: Collector | None = None,
        version: str = "1",
        framework: str = "",
    ) -> None:
        self.name = name
        self.version = version
        self.framework = framework
        self.metrics = metrics
        self.timeout_ns = timeout_ms * 1_000_000
        self.max_body_bytes = max_body_bytes
        self.signature: Signature | None = None
        self.exchanges: list[Exchange] = []
        self.exchange: Exchange | None = None
        self.draining = False
        self.arriving = 0
        """How many bodies of requests for it are being received."""
        self.tokens = tokens
        self.description = description
        self.images = images
        self.collector = collector
        self.authorized: Callable[[bytes], bool] = _check(verifier, tokens)
        """Whether the value of the `Authorization` header carries a valid key or token, or none is needed."""
        self._decoder: ScoringDecoder | None = None
        self._call: type[Call] = Call
        self._dialect_call: type[Call] = Call
        self._parser = simdjson.Parser()
        self._staged: list[tuple[Call, bytes]] = []
        self._tensors: ModelTensors | None = None
        self.script: ScriptForm | None = None
        """How the entry script is called, if the model is one that takes whole bodies."""
        self.own_swagger: Mapping[str, dict[str, Any]] = {}
        """Descriptions that the user has written, by Swagger version; they win over those that are made."""

    @property
    def direct(self) -> bool:
        """Whether a POST of JSON or text can be scored without its head."""
        return self.script is None or not self._script_wants_head(self.script)

    @property
    def wants_head(self) -> bool:
        """Whether `score` is to get the head of a request that has one."""
        return self.images is not None or not self.direct

    @staticmethod
    def _script_wants_head(script: ScriptForm) -> bool:
        # A schema asks for the content type, whatever the script itself wants.
        return script.wants_head or script.kind != "string"

    @property
    def ready(self) -> bool:
        """Whether requests can be scored now."""
        return bool(self.exchanges) and not self.draining

    @property
    def idle(self) -> bool:
        """Whether no request is between its arrival and its answer; the direct door's bodies are not known here."""
        return (
            not self.arriving
            and not self._staged
            and (self.images is None or self.images.idle)
            and all(exchange.idle for exchange in self.exchanges)
        )

    @property
    def leased_rows(self) -> int:
        """Rows that requests hold now, over all replicas."""
        return sum(exchange.leased_rows for exchange in self.exchanges)

    def attach(self, exchange: Exchange) -> None:
        """Score through this exchange too from now on; what callers see of all replicas is the same."""
        self.signature = exchange.arena.signature
        self._decoder = ScoringDecoder(self.signature)
        self.script = self.signature.script
        self._tensors = self.signature.tensors
        outputs = self.signature.outputs
        self._call = JoiningCall if len(outputs) == 1 and not outputs[0].variable else Call
        if self.images is not None:
            self.images.attach(self.signature)
        self.exchanges.append(exchange)
        self._find_only_exchange()

    def detach(self, exchange: Exchange) -> None:
        """Stop using an exchange whose device process has gone."""
        if exchange in self.exchanges:
            self.exchanges.remove(exchange)
            self._find_only_exchange()

    def _find_only_exchange(self) -> None:
        self.exchange = self.exchanges[0] if len(self.exchanges) == 1 else None

    def least_loaded(self) -> Exchange | None:
        """The exchange whose requests hold the fewest rows; of equals, the one chosen longest ago."""
        chosen, fewest_rows = None, 0
        for exchange in self.exchanges:
            rows = exchange.leased_rows
            # A lost one is in the list until its requests have been told; they may be followed by others at once.
            if (chosen is None or rows < fewest_rows) and not exchange.lost:
                chosen, fewest_rows = exchange, rows
        if chosen is not None:
            self.exchanges.remove(chosen)
            self.exchanges.append(chosen)
        return chosen

    def unauthorized(self, authorization: bytes = b"") -> Unauthorized:
        """The error for a request whose `Authorization` header carries no valid key or token."""
        if self.tokens is not None:
            return self.tokens.refusal(authorization)
        return Unauthorized("A valid key is needed: send the header 'Authorization: Bearer <key>'.")

    def too_large(self) -> BodyTooLarge:
        """The error for a body above the limit."""
        return BodyTooLarge(f"The request body is larger than {self.max_body_bytes / 2**20:.4g} MiB.")

    def count_refusal(self, error: StokerError) -> None:
        """Count a scoring request that is answered with an error."""
        self.metrics.count_request(error.status)
        reason = _rejection(error)
        if reason is not None:
            self.metrics.count_rejection(reason)

    def check_media(self, content_type: bytes) -> None:
        """Refuse an image or a form that a model of rows does not read, and a form that is to be text.

        Raises:
            UnsupportedEncoding: It takes JSON alone, or text.
        """
        if self.images is not None or self.signature is None or not is_media(content_type):
            return
        if self.script is None:
            raise UnsupportedEncoding(
                f"{self.name} takes JSON; images need a model that is served with an image input."
            )
        if self.script.kind == "string" and content_type.lower().startswith(b"multipart/"):
            raise UnsupportedEncoding(
                f"The script of {self.name} takes the body as text, and cannot read multipart; "
                "send what it is to read as the body."
            )

    def score(
        self,
        body: bytes,
        ids: RequestIds | None,
        respond: Respond,
        received_ns: int,
        head: RequestHead | None = None,
        dialect: Dialect | None = None,
    ) -> Call:
        """Score one request; `respond` is called once, at once or later.

        Args:
            body: The request's body.
            ids: Ids that go into the answer and the log; None makes fresh ones.
            respond: Takes the answer.
            received_ns: When the body was complete, `time.monotonic_ns`.
            head: Method, query and headers, for a script that wants them.
            dialect: The protocol that the request speaks, if that is not Azure's.
        """
        if self.collector is not None:
            ids = ids or RequestIds()
            respond = self.collector.watch(body, content_type_of(head), ids.request_id, respond)
        if dialect is None:
            call = self._call(self, ids, respond, received_ns)
        else:
            call = self._dialect_call(self, ids, respond, received_ns, dialect)
        self._submit(call, body, head)
        return call

    def score_soon(
        self, body: bytes, ids: RequestIds | None, respond: Respond, dialect: Dialect | None = None
    ) -> Call:
        """Like `score`, at the end of this turn of the event loop.

        What arrives in one turn is then decoded in one go, while the code and the tables of the decoder are in
        the processor's caches, and goes to the device in one message.
        """
        if self.collector is not None:
            ids = ids or RequestIds()
            respond = self.collector.watch(body, b"", ids.request_id, respond)
        if dialect is None:
            call = self._call(self, ids, respond, time.monotonic_ns())
        else:
            call = self._dialect_call(self, ids, respond, time.monotonic_ns(), dialect)
        if not self._staged:
            asyncio.get_running_loop().call_soon(self._score_staged)
        self._staged.append((call, body))
        return call

    def is_staged(self, call: Call) -> bool:
        """Whether a call waits for the end of this turn of the loop."""
        return any(staged is call for staged, _ in self._staged)

    def _score_staged(self) -> None:
        staged, self._staged = self._staged, []
        for call, body in staged:
            if call.wanted:
                self._submit(call, body, None)
        for exchange in self.exchanges:
            exchange.ring()

    def _submit(self, call: Call, body: bytes, head: RequestHead | None) -> None:
        exchange, decoder = self.exchange or self.least_loaded(), self._decoder
        if exchange is None or decoder is None:
            call.refuse(self._not_ready())
            return
        if exchange.full:
            call.refuse(exchange.overloaded())
            return
        try:
            if call.dialect is not None:
                call.dialect.submit(self, call, exchange, body)
            elif self.script is not None:
                exchange.submit_body(call, self._pack(self.script, call.ids.request_id, body, head))
            elif self.images is not None and self.images.claims(body, head):
                call.await_rows(exchange)
                self.images.read(body, head, call.check_wanted, lambda rows: self._submit_rows(call, rows))
            elif self._tensors is not None:
                exchange.submit_body(call, pack(decode_tensors(body, self._tensors)))
            else:
                exchange.submit(call, decoder.decode(body))
        except StokerError as error:
            call.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not cost the connection
            self._fail(call, error)

    def submit_tensors(self, call: Call, exchange: Exchange, inputs: Mapping[str, np.ndarray]) -> None:
        """Queue a request whose inputs have been checked against `Signature.model_tensors`.

        Raises:
            StokerError: As `Exchange.submit`.
        """
        signature = exchange.arena.signature
        if signature.takes == "tensors":
            exchange.submit_body(call, pack(inputs))
            return
        rows = [inputs[spec.name] for spec in signature.inputs]
        if len(rows[0]):
            exchange.submit(call, rows)
        else:
            call.complete_empty(exchange)

    def _submit_rows(self, call: Call, rows: Rows | BaseException) -> None:
        """Go on with a call whose images have been decoded, or could not be."""
        exchange = self.exchange or self.least_loaded()
        if not call.wanted:
            return
        if isinstance(rows, StokerError):
            call.refuse(rows)
        elif isinstance(rows, BaseException):
            self._fail(call, rows)
        elif exchange is None:
            call.refuse(self._not_ready())
        else:
            try:
                exchange.submit(call, rows)
            except StokerError as error:
                call.refuse(error)

    def _fail(self, call: Call, error: BaseException) -> None:
        request_id = call.ids.request_id.decode("latin-1")
        logger.error("request %s: scoring failed", request_id, exc_info=error)
        call.refuse(StokerError("An unexpected internal error occurred. Check the logs for more info."))

    def _not_ready(self) -> NotReady:
        return NotReady(f"{self.name} is not ready: it is loading or its device restarts.", retry_after_s=1)

    def _pack(self, script: ScriptForm, request_id: bytes, body: bytes, head: RequestHead | None) -> bytes:
        if script.kind == "string":
            check_text(body)
        rows = row_count(self._parser, body, script.merge_key) if script.batching == "merge" else 0
        return ScriptRequest(request_id, body, rows, head).pack()

    def encode(self, ticket: Ticket) -> bytes:
        """The answer's body for a ticket without an error."""
        signature = ticket.exchange.arena.signature
        if signature.tensors is not None:
            return encode_tensors(unpack(ticket.output_texts(0)[0]))
        if signature.outputs[0].variable:
            return encode_texts(ticket.output_texts(0))
        return encode_outputs(signature.outputs, ticket.outputs())


class Call(Ticket):
    """One scoring request between its body and its answer."""

    __slots__ = ("_ids", "_respond", "_service", "dialect", "received_ns", "request")

    request: Any
    """What a dialect keeps of the request until it is answered."""

    def __init__(
        self,
        service: Service,
        ids: RequestIds | None,
        respond: Respond,
        received_ns: int,
        dialect: Dialect | None = None,
    ) -> None:
        # What Ticket.__init__ does, without the call: this runs once a request.
        self.deadline_ns = received_ns + service.timeout_ns
        self.error = None
        self._open = True
        self._feed = None
        self.received_ns = received_ns
        self._service = service
        self._ids = ids
        self._respond: Respond | None = respond
        self.dialect = dialect

    @property
    def service(self) -> Service:
        """What it is a call to."""
        return self._service

    @property
    def ids(self) -> RequestIds:
        """The request's ids."""
        if self._ids is None:
            self._ids = RequestIds()
        return self._ids

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the answer."""
        return self._respond is not None

    def lateness(self, *, begun: bool) -> StokerError:
        """504 for a request that waited too long, and what Azure answers where `run` took too long."""
        if begun:
            return ScoringTimeout(self._service.timeout_ns // 1_000_000)
        return super().lateness(begun=False)

    def await_rows(self, exchange: Exchange) -> None:
        """Its rows come later: until then the exchange has nothing of it to give up."""
        self.exchange = exchange
        self._numbers = []

    def check_wanted(self) -> None:
        """Raise DeadlineExceeded if nobody waits for the answer any more; called on any thread."""
        if not self.wanted or time.monotonic_ns() >= self.deadline_ns:
            raise DeadlineExceeded("The request was not answered within its timeout.")

    def complete(self) -> None:
        """Answer with what the device gave."""
        if self.error is not None:
            self.refuse(self.error)
            return
        service = self._service
        if self.dialect is not None:
            self._complete_dialect(self.dialect)
            return
        if service.script is not None:
            self._complete_script(ScriptAnswer.unpack(self.output_texts(0)[0]))
            return
        self.answer_scored(service.encode(self), time.monotonic_ns())

    def answer_scored(self, body: bytes, now_ns: int) -> None:
        """Answer with 200 and this body."""
        received_ns, enqueued_ns = self.received_ns, self.enqueued_ns
        started_ns, finished_ns = self.started_ns, self.finished_ns
        parse_ns = enqueued_ns - received_ns
        total_ns = now_ns - received_ns
        parse_us, queue_us, total_us = (
            parse_ns // 1000, (started_ns - enqueued_ns) // 1000, total_ns // 1000,
        )  # fmt: skip
        executed, computed = _compute_texts((finished_ns - started_ns) // 1000)
        lines = _SCORED_LINES % (
            len(body),
            fresh_id_lines() if self._ids is None else self._ids.lines,
            executed,
            parse_us // 1000,
            parse_us % 1000,
            queue_us // 1000,
            queue_us % 1000,
            computed,
            total_us // 1000,
            total_us % 1000,
        )
        self._service.metrics.note_scored(self.rows, parse_ns, total_ns)
        self._answer(200, lines, body)

    def complete_empty(self, exchange: Exchange) -> None:
        """Answer a request without rows: nothing has to be run for it."""
        self.exchange = exchange
        self.rows = 0
        self.enqueued_ns = self.started_ns = self.finished_ns = time.monotonic_ns()
        self.settle()

    def tensors(self) -> dict[str, np.ndarray]:
        """The outputs by name; arrays are valid only until the answer is written."""
        signature = self.exchange.arena.signature
        if signature.takes == "tensors":
            return unpack(self.output_texts(0)[0])
        if not self.rows:
            empty = [np.empty((0, *spec.shape), spec.dtype) for spec in signature.outputs]
            return {spec.name: array for spec, array in zip(signature.outputs, empty, strict=True)}
        if signature.outputs[0].variable:
            texts = np.empty(self.rows, object)
            texts[:] = self.output_texts(0)
            return {signature.outputs[0].name: texts}
        return {spec.name: array for spec, array in zip(signature.outputs, self.outputs(), strict=True)}

    def _complete_dialect(self, dialect: Dialect) -> None:
        try:
            lines, body = dialect.answer(self)
        except StokerError as error:
            self.refuse(error)
            return
        parse_ns, total_ns, timing = self._timing()
        self._service.metrics.note_scored(self.rows, parse_ns, total_ns)
        self._answer(
            200, b"".join((lines, b"content-length: %d\r\n" % len(body), self.ids.lines, timing)), body
        )

    def _timing(self) -> tuple[int, int, bytes]:
        """Parse and total time in nanoseconds, and the header line of all stages."""
        parse_ns = self.enqueued_ns - self.received_ns
        total_ns = time.monotonic_ns() - self.received_ns
        line = _TIMING_LINE % (
            parse_ns / 1e6,
            (self.started_ns - self.enqueued_ns) / 1e6,
            (self.finished_ns - self.started_ns) / 1e6,
            total_ns / 1e6,
        )
        return parse_ns, total_ns, line

    def _complete_script(self, answer: ScriptAnswer) -> None:
        parse_ns, total_ns, timing = self._timing()
        executed = (
            b"" if answer.exec_ns is None else b"x-ms-run-fn-exec-ms: %.3f\r\n" % (answer.exec_ns / 1e6)
        )
        lines = b"".join(
            (
                answer.lines or _JSON_TYPE_LINE,
                # An answer that has no content has no length either (RFC 9110, section 8.6).
                b"" if answer.status == _NO_CONTENT else b"content-length: %d\r\n" % len(answer.body),
                self.ids.lines,
                failed_line(answer.failed),
                executed,
                timing,
            )
        )
        metrics = self._service.metrics
        if answer.status == 200:
            metrics.note_scored(1, parse_ns, total_ns)
        else:
            metrics.count_request(answer.status)
        self._answer(answer.status, lines, answer.body)

    def refuse(self, error: StokerError) -> None:
        """Answer with an error."""
        self._service.count_refusal(error)
        status, body = (
            (error.status, error_body(error)) if self.dialect is None else self.dialect.refusal(error)
        )
        lines = json_lines(body) + self.ids.lines + error_lines(error)
        if self.dialect is not None:
            lines += code_line(error)
        self._answer(status, lines, body)

    def abandon(self) -> None:
        """The caller has gone: rows that have not started do not run."""
        if self._respond is None:
            return
        self._respond = None
        self._service.metrics.count_request(_CLIENT_GONE)
        if not self._service.is_staged(self):
            self.cancel()

    def _answer(self, status: int, lines: bytes, body: bytes) -> None:
        respond, self._respond = self._respond, None
        if respond is None:
            return
        if self._service.draining:
            lines += CLOSE_LINE
        respond(status, lines, body)


class JoiningCall(Call):
    """A call to a model with one output of fixed size: answers that come together are encoded in one go."""

    __slots__ = ()

    joins = True

    def complete_together(self, tickets: list[Call], outputs: np.ndarray) -> None:
        """Answer each with its row of the output."""
        now_ns = time.monotonic_ns()
        for call, body in zip(tickets, encode_each(outputs), strict=True):
            try:
                call.answer_scored(body, now_ns)
            except Exception:
                logger.exception("the completion of a request raised")


@lru_cache(maxsize=64)
def _compute_texts(compute_us: int) -> tuple[bytes, bytes]:
    """The compute time as header lines and as an entry of `Server-Timing`; all rows of a batch share them."""
    compute_ms = compute_us / 1000
    lines = b"x-ms-run-function-failed: False\r\nx-ms-run-fn-exec-ms: %.3f\r\n" % compute_ms
    return lines, b"compute;dur=%.3f, " % compute_ms


def _check(verifier: KeyVerifier | None, tokens: TokenVerifier | None) -> Callable[[bytes], bool]:
    """What a service takes: keys, tokens, either, or, with neither, everything."""
    if tokens is None:
        return _open if verifier is None else verifier.verify
    if verifier is None:
        return tokens.verify
    takes_token, takes_key = tokens.verify, verifier.verify
    return lambda authorization: takes_token(authorization) or takes_key(authorization)


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
        case Unauthorized():
            return "unauthorized"
        case BodyTooLarge() | ImageTooLarge():
            return "body_too_large"
        case MethodNotAllowed():
            return None
        case RequestError():
            return "malformed"
        case _:
            return None
