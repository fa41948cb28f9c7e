"""What stands where a model has its exchange with a device: requests go to the exchanges of the steps' models.

Contract: that of `stoker.gateway.rows.exchange`, as far as services and dialects use it.
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
        arena: Has the signature that callers see; there are no rows.
        lost: Whether it is closed.
        rows_done: Nothing is counted here.
        timeliness: Who is late is said by the steps' models.
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
        """Stand before the models of the steps.

        Args:
            joined: The pipeline.
            target: Finds the model of a step now; raises StokerError if it is not there.
            following: The same for a request that goes there now: it may be the turn of another version.
            clock_ns: `time.monotonic_ns`.
        """
        self.joined = joined
        self.arena = SimpleNamespace(signature=joined.signature)
        self._target, self._following, self._clock_ns = target, following, clock_ns
        self._runs: dict[PipelineCall, PipelineRun] = {}

    @property
    def leased_rows(self) -> int:
        """Rows of the requests that are under way."""
        return sum(call.rows for call in self._runs)

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return not self._runs

    def refusal(self, call: PipelineCall) -> StokerError | None:
        """The error for a request that cannot be taken, whatever it says; None if it may be read."""
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
        """Begin with a request; see `Exchange.submit`."""
        self._start(call, dict(zip(self.joined.graph.inputs, rows, strict=True)), len(rows[0]))

    def submit_decoded(self, call: PipelineCall, body: BodyT, decode: Decode[BodyT]) -> None:
        """Begin with a request whose rows are read out of a body; see `Exchange.submit_decoded`."""
        self.submit(call, decode(body, None))

    def submit_body(self, call: PipelineCall, body: bytes | memoryview) -> None:
        """Begin with a request whose tensors are packed; see `Exchange.submit_body`."""
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
        """Complete a request whose last step has ended, or one of whose steps has failed."""
        call = run.whole
        if self._runs.pop(call, None) is None:
            return
        if run.error is not None:
            call.fail(run.error)
            return
        try:
            self._fill(call, run)
        except Exception as error:
            logger.exception("the answer of a pipeline could not be put together")
            call.fail(unforeseen(error))
        else:
            call.settle()

    def _fill(self, call: PipelineCall, run: PipelineRun) -> None:
        """Give a request its answer and its times, as an exchange with a device does."""
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
        """Let nothing of a request run that has not begun."""
        run = self._runs.pop(call, None)
        if run is not None:
            run.stop()

    def overloaded(self) -> Overloaded:
        """The error for a request that finds no room."""
        return Overloaded("The pipeline has no room for this request now; try again later.", retry_after_s=1)

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """The error for a request that has missed its time."""
        del lasts_ns, rows
        return DeadlineExceeded()

    def done_since(self, since_ns: int, most: int) -> Sequence[int]:
        """None: there are no rows to read requests of."""
        del since_ns, most
        return ()

    def ring(self) -> None:
        """Nothing: the exchanges of the steps' models ring at the end of the loop's turn."""

    def sweep(self, now_ns: int) -> None:
        """Nothing: a step waits no longer than its request, and says so."""

    def close(self) -> None:
        """End; requests under way are answered with an error."""
        self.lost = True
        calls: Iterable[PipelineCall] = list(self._runs)
        for call in calls:
            call.fail(device_lost())
