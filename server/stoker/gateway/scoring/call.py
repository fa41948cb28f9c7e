"""One scoring request between its body and its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from stoker.errors import (
    DeadlineExceeded,
    DeviceLost,
    NonFiniteOutput,
    OutputTooLarge,
    ScoringTimeout,
    StokerError,
)
from stoker.gateway.http.answers import (
    CLOSE_LINE,
    Respond,
    code_line,
    error_body,
    error_lines,
    failed_line,
    json_lines,
)
from stoker.gateway.http.request_ids import RequestIds, fresh_id_lines
from stoker.gateway.rows.exchange import Exchange
from stoker.gateway.rows.ticket import Ticket
from stoker.wire.envelope import ScriptAnswer
from stoker.wire.packed import unpack

if TYPE_CHECKING:
    from stoker.gateway.scoring.dialect import Dialect
    from stoker.gateway.scoring.service import Service

__all__ = ["Call", "JoiningCall"]

logger = logging.getLogger(__name__)

_CLIENT_GONE: Final = 499
_NO_CONTENT: Final = 204
_JSON_TYPE_LINE: Final = b"content-type: application/json\r\n"
_TIMING_LINE: Final = b"server-timing: parse;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\n"
# Formatting a float costs several times what formatting two integers does.
_SCORED_LINES: Final = (
    b"%bcontent-length: %d\r\n%b%bserver-timing: "
    b"parse;dur=%d.%03d, queue;dur=%d.%03d, %btotal;dur=%d.%03d\r\n"
)


class Call(Ticket):
    """One scoring request between its body and its answer."""

    __slots__ = ("_again", "_ids", "_respond", "_service", "dialect", "received_ns", "request")

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
        self.is_open = True
        self.sliced = None
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
        if begun:
            return ScoringTimeout(self._service.timeout_ns // 1_000_000)
        return super().lateness(begun=False)

    def await_rows(self, exchange: Exchange) -> None:
        """Its rows come later: until then the exchange has nothing of it to give up."""
        self.exchange = exchange
        self.row_numbers = []

    def check_wanted(self) -> None:
        """Raise DeadlineExceeded if nobody waits for the answer any more; called on any thread."""
        if not self.wanted or time.monotonic_ns() >= self.deadline_ns:
            raise DeadlineExceeded("The request was not answered within its timeout.")

    def complete(self) -> None:
        """Answer with what the device gave; with an error if that cannot be encoded."""
        service = self._service
        try:
            if self.error is not None:
                if not self._runs_again(self.error):
                    self.refuse(self.error)
            elif self.dialect is not None:
                self._answer_in(self.dialect, self._tensors())
            elif service.script is not None:
                self._complete_script(ScriptAnswer.unpack(self.output_texts(0)[0]))
            else:
                self.answer_scored(service.encode(self), time.monotonic_ns())
        except StokerError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # nobody else would ever answer this request
            self.refuse_for_fault(error)

    def _runs_again(self, error: StokerError) -> bool:
        if isinstance(error, DeviceLost):
            return self._service.run_elsewhere(self)
        return isinstance(error, OutputTooLarge) and self._service.run_in_larger_rows(self)

    def answer_scored(
        self, body: bytes, now_ns: int, type_lines: bytes = _JSON_TYPE_LINE, *, counted: bool = False
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
        parse_us, queue_us, total_us = (
            parse_ns // 1000, (started_ns - enqueued_ns) // 1000, total_ns // 1000,
        )  # fmt: skip
        executed, computed = _compute_texts((finished_ns - started_ns) // 1000)
        lines = _SCORED_LINES % (
            type_lines,
            len(body),
            fresh_id_lines() if self._ids is None else self._ids.lines,
            # Only Azure's clients look for what `run` did.
            executed if self.dialect is None else b"",
            parse_us // 1000,
            parse_us % 1000,
            queue_us // 1000,
            queue_us % 1000,
            computed,
            total_us // 1000,
            total_us % 1000,
        )
        if counted:
            self._service.metrics.note_times(parse_ns, total_ns)
        else:
            self._service.metrics.note_scored(self.rows, parse_ns, total_ns)
        self._answer(200, lines, body)

    def complete_empty(self, exchange: Exchange) -> None:
        """Answer a request without rows: nothing has to be run for it."""
        self.exchange = exchange
        self.rows = 0
        self.enqueued_ns = self.started_ns = self.finished_ns = time.monotonic_ns()
        self.settle()

    def _tensors(self) -> dict[str, np.ndarray]:
        """The outputs by name."""
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

    def _answer_in(self, dialect: Dialect, outputs: Mapping[str, np.ndarray]) -> None:
        try:
            answer = dialect.answer(self, outputs)
        except StokerError as error:
            self.refuse(error)
            return
        now_ns = time.monotonic_ns()
        if answer is None:
            parse_ns, total_ns = self.enqueued_ns - self.received_ns, now_ns - self.received_ns
            self._service.metrics.note_scored(self.rows, parse_ns, total_ns)
            self._answer(200, b"", b"")
        else:
            lines, body = answer
            self.answer_scored(body, now_ns, lines)

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
        """Answer with an error; of one that a device has logged, the log says whose request it was."""
        self._service.count_refusal(error)
        if error.error_id is not None:
            logger.error(
                "request %s: scoring %s failed under error id %s",
                self.ids.request_id.decode("latin-1"),
                self._service.name,
                error.error_id,
            )
        status, body = (
            (error.status, error_body(error)) if self.dialect is None else self.dialect.refusal(error)
        )
        lines = json_lines(body) + self.ids.lines + error_lines(error)
        if self.dialect is not None:
            lines += code_line(error)
        self._answer(status, lines, body)

    def refuse_for_fault(self, error: BaseException) -> None:
        """Answer with an error that should not have been, and write it into the log under the request's id."""
        request_id = self.ids.request_id.decode("latin-1")
        logger.error("request %s: scoring %s failed", request_id, self._service.name, exc_info=error)
        # What raised may have been the answer's last step.
        if self.wanted:
            self.refuse(StokerError("An unexpected internal error occurred. Check the logs for more info."))

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
        if self._service.closes:
            lines += CLOSE_LINE
        respond(status, lines, body)


class JoiningCall(Call):
    """A call to a model with one output of fixed size: answers that come together are encoded in one go."""

    __slots__ = ()

    joins = True

    def complete_together(self, tickets: list[JoiningCall], outputs: np.ndarray) -> None:
        """Answer each with its row of the output.

        Raises:
            Exception: The rows could not be encoded; none of the calls has been answered.
        """
        if any(call.dialect is not None for call in tickets):
            self._complete_each(tickets, outputs)
            return
        try:
            bodies = self._service.encode_each(outputs, self._service.non_finite)
        except NonFiniteOutput:
            self._complete_each(tickets, outputs)
            return
        now_ns = time.monotonic_ns()
        # Once for all: a shared counter costs as much as the rest of what is counted of a request.
        self._service.metrics.count_scored(len(tickets), len(tickets))
        for call, body in zip(tickets, bodies, strict=True):
            try:
                call.answer_scored(body, now_ns, counted=True)
            except Exception as error:  # noqa: BLE001  # must not reach the other requests
                call.refuse_for_fault(error)

    @staticmethod
    def _complete_each(tickets: list[JoiningCall], outputs: np.ndarray) -> None:
        for index, call in enumerate(tickets):
            call.complete_with(outputs[index : index + 1])

    def complete_with(self, row: np.ndarray) -> None:
        """Answer with the only row of the only output, `[1, *row_shape]`."""
        try:
            if self.dialect is None:
                body = self._service.encode_each(row, self._service.non_finite)[0]
                self.answer_scored(body, time.monotonic_ns())
            else:
                self._answer_in(self.dialect, {self.exchange.arena.signature.outputs[0].name: row})
        except StokerError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # must not reach the other requests
            self.refuse_for_fault(error)


@lru_cache(maxsize=64)
def _compute_texts(compute_us: int) -> tuple[bytes, bytes]:
    """The compute time as header lines and as an entry of `Server-Timing`; all rows of a batch share them."""
    compute_ms = compute_us / 1000
    lines = b"x-ms-run-function-failed: False\r\nx-ms-run-fn-exec-ms: %.3f\r\n" % compute_ms
    return lines, b"compute;dur=%.3f, " % compute_ms
