"""One scoring request between its body and its answer, and what it needs of its dialect and its service.

A protocol makes a call to a service. The call's dialect submits it to an exchange; when the device has handed its
rows back, the exchange completes the call, whose dialect writes the answer.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from stoker.arena import NORMAL_TIER
from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    ImageTooLarge,
    MethodNotAllowed,
    ModelTooLarge,
    NotReady,
    OutOfScope,
    Overloaded,
    QuotaExceeded,
    RequestError,
    RequestOverQuota,
    ScoringTimeout,
    StokerError,
    TooManySequences,
    Unauthorized,
    unexpected_error,
)
from stoker.gateway.http.request_ids import RequestIds, fresh_id_lines
from stoker.gateway.http.responses import CLOSE_LINE, JSON_TYPE_LINE, Respond, error_lines, json_lines
from stoker.gateway.rows.ticket import Ticket
from stoker.gateway.rows.urgency import DEFAULT_URGENCY
from stoker.gateway.scoring.server_timing import SCORED_LINES, THREE_DIGITS, compute_texts, turn_text
from stoker.system.logs import with_facts

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.readiness import Readiness
    from stoker.gateway.rows.ticket import Exchange, Rows
    from stoker.gateway.scoring.load_reports import LoadFormat, LoadReports
    from stoker.gateway.scoring.service_facts import Limits, ServiceFacts
    from stoker.metrics.counters import ModelMetrics
    from stoker.tensors import Signature
    from stoker.wire.script_requests import RequestHead

logger = logging.getLogger(__name__)


def request_facts(ids: RequestIds, service: ServiceBase, **more: Any) -> dict[str, dict[str, Any]]:
    """Return `extra` for a log record about a request to a service."""
    request_id = ids.request_id.decode("latin-1")
    return with_facts(
        request_id=request_id, trace_id=ids.trace_id, model=service.name, version=service.version, **more
    )


_CLIENT_GONE: Final = 499


UnlockedDecoder = Callable[[bytes], "Rows | None"]
"""Decodes the rows of a body without Python's global interpreter lock; returns None if `Dialect.submit` has to
decide."""


class Dialect(ABC):
    """One protocol for one kind of request: decodes requests, and encodes their answers.

    One object serves many requests, so the state of a request is kept in its call.
    """

    __slots__ = ()

    @abstractmethod
    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode a body, and submit its content."""

    def blocks_on_long(self, service: ServiceBase, body: bytes, head: RequestHead | None) -> bool:
        """Whether decoding a long body blocks for long; it is then decoded beside the event loop."""
        del service, body, head
        return True

    def unlocked_decoder(self, body: bytes) -> UnlockedDecoder | None:
        """Return a decoder that runs on a thread without Python's interpreter lock.

        None if there is none for this model.
        """
        del body
        return None

    @abstractmethod
    def complete(self, call: Call) -> None:
        """Answer a request whose rows are done; an exception is answered by `refusal`."""

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer requests of one row each, all of this dialect, with their rows of the model's only output.

        Where it raises, none of them has been answered.
        """
        del rows
        for call in calls:
            call.settle()

    @abstractmethod
    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return status, further header lines, and the JSON of an error."""

    def timeout_ns(self, service: ServiceBase, body: bytes) -> int | None:
        """Return how long the caller waits, by the request itself; None if it does not say or cannot be read."""
        del service, body
        return None


class ServiceBase:
    """The part of a service that its calls and their dialects use.

    Attributes:
        signature: The model's tensors; None before it is loaded.
        dialect: The dialect of requests that come without one.
        readiness: Whether its frontend drains, and answers close their connections.
        codecs: The codecs that dialects keep for the loaded model, by class.
        load_reports: Reports its load to balancers; None if that is not set up.
    """

    facts: ServiceFacts
    limits: Limits
    metrics: ModelMetrics
    signature: Signature | None
    dialect: Dialect
    readiness: Readiness
    codecs: dict[type, Any]
    load_reports: LoadReports | None
    call_type: type[Call]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.facts.name

    @property
    def version(self) -> str:
        """The model's version."""
        return self.facts.version

    def count_refusal(self, error: StokerError, tier: int = NORMAL_TIER) -> None:
        """Count an error answer to a request of a tier."""
        self.metrics.count_request(error.status)
        if error.refusal is not None:
            self.metrics.count_refusal(error.refusal.reason, tier)
        reason = _rejection_reason(error)
        if reason is not None:
            self.metrics.count_rejection(reason)

    def run_again(self, call: Call, error: StokerError) -> bool:
        """Run a failed request again; False if that would not help or is not allowed."""
        del call, error
        return False

    def not_ready(self) -> NotReady:
        """Return the error for a request while no device process has the model."""
        return NotReady(f"{self.name} is not ready: it is loading or its device restarts.", retry_after_s=1)


def _rejection_reason(error: StokerError) -> str | None:
    """Return the reason for `stoker_rejections_total`; None for errors that are not counted there."""
    match error:
        case Overloaded() | TooManySequences():
            return "overloaded"
        case NotReady() | ModelTooLarge():
            return "not_ready"
        case DeadlineExceeded():
            return "deadline"
        case Unauthorized() | OutOfScope():
            return "unauthorized"
        case BodyTooLarge() | ImageTooLarge():
            return "body_too_large"
        case QuotaExceeded() | RequestOverQuota():
            return "quota"
        case MethodNotAllowed():
            return None
        case RequestError():
            return "malformed"
        case _:
            return None


class Call(Ticket):
    """One scoring request between its body and its answer, and what it needs of its dialect and its service.

    Attributes:
        dialect: Its dialect; None for the service's, whichever that is when it is needed.
        received_ns: When its body was complete.
        write: Encodes the answer: in most dialects it returns header lines (without the length) and body for outputs
            by name. A dialect may set it when it submits the call; the arrays are valid only until it returns.
        context: Properties of the request that its protocol has set for its dialect before the submission.
    """

    __slots__ = ("_again", "_ids", "_respond", "_service", "context", "dialect", "received_ns", "write")

    context: Any
    write: Callable[..., Any]

    def __init__(
        self,
        service: ServiceBase,
        ids: RequestIds | None,
        respond: Respond,
        received_ns: int,
        dialect: Dialect | None = None,
    ) -> None:
        # Inlined from Ticket.__init__: this runs once per request.
        limits = service.limits
        self.deadline_ns = received_ns + limits.timeout_ns
        self.error = None
        self.is_open = True
        self.sliced = None
        self.urgency = limits.urgency
        self.turn_ns = 0
        self.received_ns = received_ns
        self._service = service
        self._ids = ids
        self._respond: Respond | None = respond
        self.dialect = dialect

    @property
    def target_ns(self) -> int:
        """When its answer stops being of use to the caller; 0: at its deadline."""
        if self.urgency is None or not self.urgency.lasts_ns:
            return 0
        return min(self.received_ns + self.urgency.lasts_ns, self.deadline_ns)

    def shorten(self, timeout_ns: int | None) -> None:
        """Set an earlier deadline. A later one, or None, changes nothing."""
        if timeout_ns is not None:
            self.deadline_ns = min(self.deadline_ns, self.received_ns + timeout_ns)

    def request_tier(self, tier: int | None) -> None:
        """Set the tier, within what the caller may use; None changes nothing."""
        if tier is not None:
            self.urgency = (self.urgency or DEFAULT_URGENCY).with_tier(tier)

    def report_load(self, form: LoadFormat) -> None:
        """Have its answer report the load of its model at that time."""
        respond, reports = self._respond, self._service.load_reports
        if respond is not None and reports is not None:
            self._respond = lambda status, lines, body: respond(status, lines + reports.line(form), body)

    def add_lines(self, lines: bytes) -> None:
        """Have its answer carry further header lines."""
        respond = self._respond
        if respond is not None:
            self._respond = lambda status, others, body: respond(status, others + lines, body)

    def note_texts(self, tokens: int, cut: int) -> None:
        """Record the tokens of its texts; its answer says how many texts were cut."""
        super().note_texts(tokens, cut)
        if cut:
            self.add_lines(b"stoker-cut-texts: %d\r\n" % cut)

    @property
    def service(self) -> ServiceBase:
        """The service that it calls."""
        return self._service

    @property
    def ids(self) -> RequestIds:
        """The request's ids."""
        if self._ids is None:
            self._ids = RequestIds()
        return self._ids

    @property
    def was_rerun(self) -> bool:
        """Whether it runs a second time after its device process died."""
        return hasattr(self, "_again")

    @was_rerun.setter
    def was_rerun(self, again: Literal[True]) -> None:
        # Not set in `__init__`, which runs once per request: very few need it.
        self._again = again

    @property
    def is_awaited(self) -> bool:
        """Whether the caller still waits for the answer."""
        return self._respond is not None

    def timeout_error(self, *, begun: bool) -> StokerError:
        """The error of a request that waited too long: 504, or Azure's error where `run` took too long."""
        if begun and self.deadline_ns - self.received_ns >= self._service.limits.timeout_ns:
            return ScoringTimeout(self._service.limits.timeout_ns // 1_000_000)
        if self.submitted:
            lasts_ns = (self.target_ns or self.deadline_ns) - self.received_ns
            # A long body may not have been decoded yet.
            return self.exchange.missed(lasts_ns, getattr(self, "rows", 1))
        return super().timeout_error(begun=False)

    def check_wanted(self) -> None:
        """Raise DeadlineExceeded if the caller does not wait any more; may be called on any thread."""
        if not self.is_awaited or time.monotonic_ns() >= self.deadline_ns:
            raise DeadlineExceeded("The request was not answered within its timeout.")

    @property
    def stages_ns(self) -> dict[str, int]:
        """The duration of each stage, in order, as the answer reports them."""
        return {
            "parse": self.enqueued_ns - self.received_ns,
            "queue": self.started_ns - self.enqueued_ns - self.turn_ns,
            **({"turn": self.turn_ns} if self.turn_ns else {}),
            "compute": self.finished_ns - self.started_ns,
        }

    def stages_until(self, now_ns: int) -> dict[str, int]:
        """The duration of each stage of a request that fails now, and of all of them as `total`.

        Its last stage is that in which it failed.
        """
        total = {"total": now_ns - self.received_ns}
        enqueued_ns = getattr(self, "enqueued_ns", 0)
        if enqueued_ns < self.received_ns:
            return {**total, "parse": now_ns - self.received_ns}
        started_ns = getattr(self, "started_ns", 0)
        if started_ns < enqueued_ns or getattr(self, "finished_ns", 0) < started_ns:
            return {**total, "parse": enqueued_ns - self.received_ns, "queue": now_ns - enqueued_ns}
        return {**total, **self.stages_ns}

    @property
    def key_name(self) -> str:
        """The name of the caller's key; `default` for the primary and secondary key of a service."""
        return (self.urgency or DEFAULT_URGENCY).caller.name

    @property
    def submitted(self) -> bool:
        """Whether it has been submitted to an exchange."""
        return hasattr(self, "exchange")

    def complete(self) -> None:
        """Answer with the device's outputs, or with an error if they cannot be encoded."""
        try:
            if self.error is None:
                (self.dialect or self._service.dialect).complete(self)
            elif not self._service.run_again(self, self.error):
                self.refuse(self.error)
        except StokerError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # otherwise this request would never be answered
            self.refuse_for_fault(error)

    def answer_scored(
        self, body: bytes, now_ns: int, type_lines: bytes = JSON_TYPE_LINE, *, counted: bool = False
    ) -> None:
        """Answer with 200; `counted` if `ModelMetrics.count_scored` has counted it together with others."""
        received_ns, enqueued_ns = self.received_ns, self.enqueued_ns
        started_ns, finished_ns = self.started_ns, self.finished_ns
        parse_ns = enqueued_ns - received_ns
        total_ns = now_ns - received_ns
        # Before the ids are written: a request without ids gets some.
        if (remarks := self._service.metrics.remarks) is not None and total_ns > remarks.slow_ns:
            remarks.slow(self, total_ns)
        queue_ns = started_ns - enqueued_ns
        executed, computed = compute_texts((finished_ns - started_ns) // 1000)
        if self.turn_ns:
            queue_ns -= self.turn_ns
            computed = turn_text(self.turn_ns // 1000) + computed
        parse_us, queue_us, total_us = parse_ns // 1000, queue_ns // 1000, total_ns // 1000
        lines = SCORED_LINES % (
            type_lines,
            len(body),
            fresh_id_lines() if self._ids is None else self._ids.lines,
            # Only Azure's clients read this header.
            executed if self.dialect is None else b"",
            parse_us // 1000,
            THREE_DIGITS[parse_us % 1000],
            queue_us // 1000,
            THREE_DIGITS[queue_us % 1000],
            computed,
            total_us // 1000,
            THREE_DIGITS[total_us % 1000],
        )
        if counted:
            self._service.metrics.note_times(parse_ns, total_ns)
        else:
            self._service.metrics.note_scored(self.rows, parse_ns, total_ns)
        self.answer(200, lines, body)

    def answer_bare(self, body: bytes = b"") -> None:
        """Answer with 200 and a body, without header lines; or with nothing, if its dialect has taken the outputs."""
        self._service.metrics.count_scored(1, self.rows)
        self.answer_counted(body, time.monotonic_ns())

    def answer_counted(self, body: bytes, now_ns: int) -> None:
        """`answer_bare` for a request that `ModelMetrics.count_scored` has counted together with others."""
        parse_ns, total_ns = self.enqueued_ns - self.received_ns, now_ns - self.received_ns
        self._service.metrics.note_times(parse_ns, total_ns)
        if (remarks := self._service.metrics.remarks) is not None and total_ns > remarks.slow_ns:
            remarks.slow(self, total_ns)
        self.answer(200, b"", body)

    def submission(self) -> bytes | Rows:
        """Return the body or the rows that it was submitted with. Only valid inside its `complete`."""
        return self.inputs() if self.exchange.signature.takes == "rows" else self.body()

    def resubmit(self, exchange: Exchange, submission: bytes | Rows) -> None:
        """Submit it again after `reopen`; if that fails, it is answered with an error.

        A model computes and changes nothing, so its rows may run twice, unless it keeps state.
        """
        try:
            if isinstance(submission, bytes):
                exchange.submit_body(self, submission)
            else:
                exchange.submit(self, submission)
        except StokerError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # the other requests are to be submitted too
            self.refuse_for_fault(error)

    def refuse(self, error: StokerError) -> None:
        """Answer with an error; if a device process has logged it, a log line relates it to the request."""
        self._service.count_refusal(error, (self.urgency or DEFAULT_URGENCY).tier)
        if (remarks := self._service.metrics.remarks) is not None:
            remarks.failed(self, error, time.monotonic_ns())
        if error.error_id is not None:
            logger.error(
                "request %s: scoring %s failed under error id %s",
                self.ids.request_id.decode("latin-1"),
                self._service.name,
                error.error_id,
                extra=request_facts(self.ids, self._service, status=error.status, error_id=error.error_id),
            )
        status, lines, body = (self.dialect or self._service.dialect).refusal(error)
        self.answer(status, json_lines(body) + self.ids.lines + error_lines(error) + lines, body)

    def refuse_for_fault(self, error: BaseException) -> None:
        """Answer with an internal error, and log the exception under the request's id."""
        request_id = self.ids.request_id.decode("latin-1")
        facts = request_facts(self.ids, self._service)
        logger.error(
            "request %s: scoring %s failed", request_id, self._service.name, exc_info=error, extra=facts
        )
        # The exception may have been raised after the answer was given.
        if self.is_awaited:
            self.refuse(unexpected_error(error))

    def abandon(self) -> None:
        """The caller has gone: rows that have not started will not run."""
        if self._respond is None:
            return
        self._respond = None
        self._service.metrics.count_request(_CLIENT_GONE)
        if self.submitted:
            self.cancel()

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Give the caller the answer, unless one was given or the caller has gone."""
        respond, self._respond = self._respond, None
        if respond is None:
            return
        if self._service.readiness.closes:
            lines += CLOSE_LINE
        if self.urgency is not None:
            lines += self.urgency.lines(status)
        respond(status, lines, body)


class JoiningCall(Call):
    """A call to a model with one output of fixed size; calls whose rows return together are answered together."""

    __slots__ = ()

    joins = True

    def complete_together(self, tickets: list[JoiningCall], outputs: np.ndarray) -> None:
        """Answer each with its row of the output, `[tickets, *row_shape]`; if it raises, none has been answered."""
        dialect = self.dialect
        if any(call.dialect is not dialect for call in tickets):
            for call in tickets:
                call.settle()
        else:
            (dialect or self._service.dialect).complete_together(tickets, outputs)
