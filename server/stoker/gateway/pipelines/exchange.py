"""The exchange of a pipeline: it passes requests to the exchanges of the models of its steps.

Contract: the part of `stoker.gateway.rows.exchange` that services and dialects use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from stoker.errors import DeadlineExceeded, NotReady, Overloaded, StokerError
from stoker.errors.serving import unforeseen
from stoker.gateway.pipelines.run import PipelineRun
from stoker.gateway.rows.failures import device_lost
from stoker.gateway.rows.ticket import SlicedAnswer
from stoker.wire.packed import pack, unpack

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.pipelines.whole_calls import PipelineCall
    from stoker.gateway.rows.ticket import BodyT, Decode, Rows
    from stoker.gateway.scoring.service import Service
    from stoker.pipelines.joined import JoinedPipeline

__all__ = ["PipelineExchange"]

logger = logging.getLogger(__name__)

_TIMED: Final = b"step-%s;dur=%.3f"


class PipelineExchange:
    """The requests to one pipeline in one frontend. Belongs to one event loop; not thread-safe.

    Attributes:
        joined: The pipeline.
        arena: Holds only the signature that callers see; there are no rows.
        lost: Whether the exchange is closed.
        rows_done: Always 0: rows are counted by the models of the steps.
        timeliness: Always None: the models of the steps refuse requests that would be late.
    """

    lost = False
    rows_done = 0
    timeliness = None

    def __init__(
        self,
        joined: JoinedPipeline,
        target: Callable[[int], Service],
        following: Callable[[int], Service],
        clock_ns: Callable[[], int],
    ) -> None:
        """Create it for the models of the steps.

        Args:
            joined: The pipeline.
            target: Returns the service of a step's model as it is now; raises StokerError if it is not served.
            following: The same for the next request of a step: weights may choose another version of the model.
            clock_ns: `time.monotonic_ns`.
        """
        self.joined = joined
        self.arena = SimpleNamespace(signature=joined.signature)
        self._target, self._following, self._clock_ns = target, following, clock_ns
        self._runs: dict[PipelineCall, PipelineRun] = {}

    @property
    def leased_rows(self) -> int:
        """Rows of the requests in progress."""
        return sum(call.rows for call in self._runs)

    @property
    def idle(self) -> bool:
        """Whether no request is in progress."""
        return not self._runs

    def refusal(self, call: PipelineCall) -> StokerError | None:
        """The error that would be raised for any request now; None if a request may be read."""
        for step in self.joined.graph.first:
            try:
                exchange = self._target(step).choose()
            except StokerError as error:
                refused: StokerError | None = error
            else:
                refused = NotReady("The device restarts.") if exchange is None else exchange.refusal(call)
            if refused is not None:
                return refused.within(f"Step {self.joined.pipeline.steps[step].name}")
        return None

    def submit(self, call: PipelineCall, rows: Rows) -> None:
        """Start a request; see `Exchange.submit`."""
        self._start(call, dict(zip(self.joined.graph.inputs, rows, strict=True)), len(rows[0]))

    def submit_decoded(self, call: PipelineCall, body: BodyT, decode: Decode[BodyT]) -> None:
        """Start a request whose rows are decoded from a body; see `Exchange.submit_decoded`."""
        self.submit(call, decode(body, None))

    def submit_body(self, call: PipelineCall, body: bytes | memoryview) -> None:
        """Start a request whose tensors are packed; see `Exchange.submit_body`."""
        self._start(call, unpack(bytes(body)), 1)

    def _start(self, call: PipelineCall, tensors: dict[str, np.ndarray], rows: int) -> None:
        run = PipelineRun(call, self.joined, tensors, self._following, self._finish)
        call.exchange = self
        call.rows, call.rows_left, call.row_numbers = rows, 0, []
        call.enqueued_ns = self._clock_ns()
        self._runs[call] = run
        try:
            call.check_quota()
            run.start()
            call.claim(rows)
            run.proceed()
        except BaseException:
            if self._runs.pop(call, None) is not None:
                run.stop()
            raise

    def _finish(self, run: PipelineRun) -> None:
        """Complete a request whose last step has ended, or that has failed."""
        call = run.whole
        if self._runs.pop(call, None) is None:
            return
        if run.error is not None:
            call.fail(run.error)
            return
        try:
            self._fill(call, run)
        except Exception as error:
            logger.exception("the answer of a pipeline could not be assembled")
            call.fail(unforeseen(error))
        else:
            call.settle()

    def _fill(self, call: PipelineCall, run: PipelineRun) -> None:
        """Set the answer and the times of a request, as an exchange with a device does."""
        times = run.on_the_way()
        call.turn_ns = times.turn_ns
        call.started_ns = call.enqueued_ns + times.queue_ns + times.turn_ns
        call.finished_ns = call.started_ns + times.compute_ns
        steps = self.joined.pipeline.steps
        call.step_lines = b"server-timing: %s\r\n" % b", ".join(
            _TIMED % (steps[step].name.encode(), sum(times) / 1e6) for step, times in run.times.items()
        )
        call.sliced = self._answer(run)

    def _answer(self, run: PipelineRun) -> SlicedAnswer:
        signature, tensors = self.joined.signature, run.tensors
        answer = SlicedAnswer(signature, 0)
        if signature.takes == "tensors":
            answer.texts = [[pack({name: tensors[name] for name in self.joined.graph.outputs})]]
        elif signature.outputs[0].variable:
            answer.texts = [list(tensors[signature.outputs[0].name])]
        else:
            answer.arrays = [tensors[spec.name] for spec in signature.outputs]
        return answer

    def give_up(self, call: PipelineCall) -> None:
        """Cancel the steps of a request that have not started."""
        run = self._runs.pop(call, None)
        if run is not None:
            run.stop()

    def overloaded(self) -> Overloaded:
        """The error for a request for which there is no room."""
        return Overloaded("The pipeline has no room for this request now; try again later.", retry_after_s=1)

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """The error for a request that has missed its target."""
        del lasts_ns, rows
        return DeadlineExceeded()

    def done_since(self, since_ns: int, most: int) -> Sequence[int]:
        """None: there are no rows from which past requests could be read."""
        del since_ns, most
        return ()

    def ring(self) -> None:
        """Does nothing: the exchanges of the steps' models ring at the end of the loop's turn."""

    def sweep(self, now_ns: int) -> None:
        """Does nothing: each step has the deadline of its request, and is failed by its own exchange."""

    def close(self) -> None:
        """Close it; requests in progress are answered with an error."""
        self.lost = True
        calls: Iterable[PipelineCall] = list(self._runs)
        for call in calls:
            call.fail(device_lost())
