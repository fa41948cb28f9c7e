"""One scoring request between its body and its answer, and what it asks of its dialect and of its service.

A door makes a call to a service. The call's dialect submits it to an exchange; when the device has handed its rows
back, the exchange completes the call, whose dialect writes the answer.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from stoker.errors import DeadlineExceeded, ScoringTimeout, StokerError
from stoker.errors.serving import unforeseen
from stoker.gateway.http.answers import CLOSE_LINE, JSON_TYPE_LINE, Respond, error_lines, json_lines
from stoker.gateway.http.request_ids import RequestIds, fresh_id_lines
from stoker.gateway.rows.ticket import Ticket
from stoker.gateway.rows.urgency import USUAL, Urgency
from stoker.gateway.scoring.call_facts import facts_of
from stoker.gateway.scoring.server_timing import SCORED_LINES, THREE_DIGITS, compute_texts, turn_text
from stoker.placed import NORMAL_TIER

if TYPE_CHECKING:
    import numpy as np

    from stoker.errors import NotReady
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.quotas import Quotas
    from stoker.gateway.rows.ticket import Rows
    from stoker.gateway.scoring.load_reports import LoadFormat, LoadReports
    from stoker.metrics.counters import ModelMetrics
    from stoker.non_finite import NonFinite
    from stoker.tensors import Signature
    from stoker.wire.envelope import RequestHead

__all__ = ["Call", "Dialect", "Scorer", "UnlockedReader"]

logger = logging.getLogger(__name__)

_CLIENT_GONE: Final = 499

UnlockedReader = Callable[[bytes], "Rows | None"]
"""Returns the rows of a body, read without Python's interpreter lock; None if `Dialect.submit` has to decide."""


class Dialect(ABC):
    """One way to put requests to a model, and to answer them: a protocol, for one kind of request.

    One object serves many requests, so what it keeps of one is kept by the call.
    """

    __slots__ = ()

    @abstractmethod
    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode a body, and submit what it holds.

        Args:
            call: The request.
            exchange: Where it goes.
            body: Its body.
            head: Its method, query and headers, if somebody is to see them.

        Raises:
            StokerError: The request is refused.
        """

    def reads_long(self, service: Scorer, body: bytes, head: RequestHead | None) -> bool:
        """Whether `submit` takes long for a long body, and does all of it at once: that is done beside the loop."""
        del service, body, head
        return True

    def unlocked_reader(self, body: bytes) -> UnlockedReader | None:
        """Return what reads a long body without Python's interpreter lock, on a thread; None if nothing does."""
        del body
        return None

    @abstractmethod
    def complete(self, call: Call) -> None:
        """Answer a request whose rows are done; what is raised is answered by `refusal`."""

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer requests of one row each, all of this dialect, to a model with one output of fixed size.

        Args:
            calls: The requests.
            rows: Their rows of the output, `[calls, *row_shape]`.

        Raises:
            Exception: None of them has been answered.
        """
        del rows
        for call in calls:
            call.settle()

    @abstractmethod
    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return status, further header lines, and the JSON of an error."""

    def timeout_ns(self, service: Scorer, body: bytes) -> int | None:
        """Return how long the caller of a request waits; None if it does not say, or that cannot be read."""
        del service, body
        return None


class Scorer(Protocol):
    """What calls and their dialects know of a service; see `stoker.gateway.scoring.service.Service`."""

    metrics: ModelMetrics
    signature: Signature | None
    timeout_ns: int
    max_body_bytes: int
    non_finite: NonFinite
    closes: bool
    codecs: dict[type, Any]
    urgency: Urgency | None
    load_reports: LoadReports | None
    quotas: Quotas | None

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def version(self) -> str:
        """The model's version."""

    @property
    def dialect(self) -> Dialect:
        """What its requests speak that do not say so."""

    def count_refusal(self, error: StokerError, tier: int = NORMAL_TIER) -> None:
        """Count a request of a tier that is answered with an error."""

    def run_again(self, call: Call, error: StokerError) -> bool:
        """Run a request again that has failed; False if that would not help, or may not be."""

    def not_ready(self) -> NotReady:
        """Return the error for a request while no device has the model."""


class Call(Ticket):
    """One scoring request between its body and its answer.

    Attributes:
        dialect: What it speaks; None is the dialect of the service, whichever that is when it is asked for.
        received_ns: When its body was complete.
        write: Returns header lines (without the length) and body for its outputs by name. A dialect may set it when
            it submits the call; the arrays are valid only until it returns.
        asked: What its door knows of the request, for a dialect of that door; set before it is submitted.
    """

    __slots__ = ("_again", "_ids", "_respond", "_service", "asked", "dialect", "received_ns", "write")

    asked: Any
    write: Callable[[Mapping[str, np.ndarray]], tuple[bytes, bytes]]

    def __init__(
        self,
        service: Scorer,
        ids: RequestIds | None,
        respond: Respond,
        received_ns: int,
        dialect: Dialect | None = None,
    ) -> None:
        # What Ticket.__init__ does, without the call: this runs once a request.
        self.deadline_ns = received_ns + service.timeout_ns
        self.error = None
        self.is_open = True
        self.sliced = None
        self.urgency = service.urgency
        self.turn_ns = 0
        self.received_ns = received_ns
        self._service = service
        self._ids = ids
        self._respond: Respond | None = respond
        self.dialect = dialect

    @property
    def target_ns(self) -> int:
        """Until when its answer is worth something; 0 until its deadline."""
        if self.urgency is None or not self.urgency.lasts_ns:
            return 0
        return min(self.received_ns + self.urgency.lasts_ns, self.deadline_ns)

    def shorten(self, timeout_ns: int | None) -> None:
        """Let its caller wait no longer than this, or as long as it is told anyway; None changes nothing."""
        if timeout_ns is not None:
            self.deadline_ns = min(self.deadline_ns, self.received_ns + timeout_ns)

    def ask_for(self, tier: int | None) -> None:
        """Let it have this tier, as far as its caller may ask for it; None changes nothing."""
        if tier is not None:
            self.urgency = (self.urgency or USUAL).asking(tier)

    def tell_load(self, form: LoadFormat) -> None:
        """Let its answer tell the load of its model, as it is then."""
        respond, reports = self._respond, self._service.load_reports
        if respond is not None and reports is not None:
            self._respond = lambda status, lines, body: respond(status, lines + reports.line(form), body)

    @property
    def service(self) -> Scorer:
        """What it is a call to."""
        return self._service

    @property
    def ids(self) -> RequestIds:
        """The request's ids."""
        if self._ids is None:
            self._ids = RequestIds()
        return self._ids

    @property
    def ran_again(self) -> bool:
        """Whether it runs a second time because its device process has died."""
        return hasattr(self, "_again")

    @ran_again.setter
    def ran_again(self, again: Literal[True]) -> None:
        # Not in `__init__`, which runs once a request: this is for very few of them.
        self._again = again

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the answer."""
        return self._respond is not None

    def lateness(self, *, begun: bool) -> StokerError:
        """504 for a request that waited too long, and what Azure answers where `run` took too long."""
        if begun and self.deadline_ns - self.received_ns >= self._service.timeout_ns:
            return ScoringTimeout(self._service.timeout_ns // 1_000_000)
        if self.submitted:
            lasts_ns = (self.target_ns or self.deadline_ns) - self.received_ns
            # A long body may not have been read yet.
            return self.exchange.missed(lasts_ns, getattr(self, "rows", 1))
        return super().lateness(begun=False)

    def await_rows(self, exchange: Exchange) -> None:
        """Its rows come later: until then the exchange has nothing of it to give up."""
        self.exchange = exchange
        self.row_numbers = []

    def check_wanted(self) -> None:
        """Raise DeadlineExceeded if nobody waits for the answer any more; called on any thread."""
        if not self.wanted or time.monotonic_ns() >= self.deadline_ns:
            raise DeadlineExceeded("The request was not answered within its timeout.")

    @property
    def stages_ns(self) -> dict[str, int]:
        """How long each stage took of what has been run, in their order, as its answer tells them."""
        return {
            "parse": self.enqueued_ns - self.received_ns,
            "queue": self.started_ns - self.enqueued_ns - self.turn_ns,
            **({"turn": self.turn_ns} if self.turn_ns else {}),
            "compute": self.finished_ns - self.started_ns,
        }

    @property
    def submitted(self) -> bool:
        """Whether an exchange knows of it."""
        return hasattr(self, "exchange")

    def complete(self) -> None:
        """Answer with what the device gave; with an error if that cannot be encoded."""
        try:
            if self.error is None:
                (self.dialect or self._service.dialect).complete(self)
            elif not self._service.run_again(self, self.error):
                self.refuse(self.error)
        except StokerError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # nobody else would ever answer this request
            self.refuse_for_fault(error)

    def answer_scored(
        self, body: bytes, now_ns: int, type_lines: bytes = JSON_TYPE_LINE, *, counted: bool = False
    ) -> None:
        """Answer with 200.

        Args:
            body: The body.
            now_ns: The time.
            type_lines: The header lines that say what the body is.
            counted: Whether `ModelMetrics.count_scored` has been told of it, with others.
        """
        received_ns, enqueued_ns = self.received_ns, self.enqueued_ns
        started_ns, finished_ns = self.started_ns, self.finished_ns
        parse_ns = enqueued_ns - received_ns
        total_ns = now_ns - received_ns
        # Before its ids are written: one without any gets some.
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
            # Only Azure's clients look for what `run` did.
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
        """`answer_bare` for one of which `ModelMetrics.count_scored` has been told, with others, at a time."""
        parse_ns, total_ns = self.enqueued_ns - self.received_ns, now_ns - self.received_ns
        self._service.metrics.note_times(parse_ns, total_ns)
        if (remarks := self._service.metrics.remarks) is not None and total_ns > remarks.slow_ns:
            remarks.slow(self, total_ns)
        self.answer(200, b"", body)

    def complete_empty(self, exchange: Exchange) -> None:
        """Answer a request without rows: nothing has to be run for it."""
        self.exchange = exchange
        self.rows = 0
        self.enqueued_ns = self.started_ns = self.finished_ns = time.monotonic_ns()
        self.settle()

    def refuse(self, error: StokerError) -> None:
        """Answer with an error; of one that a device has logged, the log says whose request it was."""
        self._service.count_refusal(error, (self.urgency or USUAL).tier)
        if (remarks := self._service.metrics.remarks) is not None:
            remarks.failed(self, error)
        if error.error_id is not None:
            logger.error(
                "request %s: scoring %s failed under error id %s",
                self.ids.request_id.decode("latin-1"),
                self._service.name,
                error.error_id,
                extra=facts_of(self.ids, self._service, status=error.status, error_id=error.error_id),
            )
        status, lines, body = (self.dialect or self._service.dialect).refusal(error)
        self.answer(status, json_lines(body) + self.ids.lines + error_lines(error) + lines, body)

    def refuse_for_fault(self, error: BaseException) -> None:
        """Answer with an error that should not have been, and write it into the log under the request's id."""
        request_id = self.ids.request_id.decode("latin-1")
        facts = facts_of(self.ids, self._service)
        logger.error(
            "request %s: scoring %s failed", request_id, self._service.name, exc_info=error, extra=facts
        )
        # What raised may have been the answer's last step.
        if self.wanted:
            self.refuse(unforeseen(error))

    def abandon(self) -> None:
        """The caller has gone: rows that have not started do not run."""
        if self._respond is None:
            return
        self._respond = None
        self._service.metrics.count_request(_CLIENT_GONE)
        if self.submitted:
            self.cancel()

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Give the caller the answer, unless they have one or have gone.

        Args:
            status: Its status.
            lines: Its header lines.
            body: Its body.
        """
        respond, self._respond = self._respond, None
        if respond is None:
            return
        if self._service.closes:
            lines += CLOSE_LINE
        if self.urgency is not None:
            lines += self.urgency.lines(status)
        respond(status, lines, body)
