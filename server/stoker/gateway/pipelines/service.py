"""A pipeline as callers see it: a model that is ready while the models of all its steps are."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from stoker.errors import InvalidSettings, NotReady, Overloaded, StokerError, unexpected_error
from stoker.gateway.pipelines.run import PipelineCall, PipelineRun
from stoker.gateway.rows.exchange import device_lost
from stoker.gateway.rows.ticket import Exchange, SlicedAnswer
from stoker.gateway.scoring.load_reports import LoadFormat, LoadReports
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.models.pipelines import JoinedPipeline, join
from stoker.settings.pipelines import VERSION
from stoker.settings.versions import VersionStatus
from stoker.wire.packed import pack, unpack

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.rows.ticket import BodyT, Decode, Rows
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.service import ServiceOptions
    from stoker.gateway.scoring.service_facts import Limits, ServiceFacts
    from stoker.keys.access import Access
    from stoker.metrics.counters import ModelMetrics
    from stoker.metrics.memory import MetricMemory
    from stoker.settings.pipelines import Pipeline, Step
    from stoker.tensors import Signature

logger = logging.getLogger(__name__)


class PipelineLoadReports(LoadReports):
    """Reports the load of one pipeline, which has no rows of its own that could wait."""

    def __init__(self, metrics: MetricMemory, slot: int, models: Callable[[], Iterable[Service]]) -> None:
        super().__init__(metrics, slot)
        self._models = models

    def line(self, form: LoadFormat) -> bytes:
        """Return the header line."""
        reports = [service.load_reports for service in self._models() if service.load_reports is not None]
        lines = [(one.line(form), one.utilization) for one in reports]
        return max(lines, key=lambda pair: pair[1])[0] if lines else super().line(form)


_TIMED: Final = b"step-%s;dur=%.3f"


class PipelineExchange(Exchange):
    """The requests to one pipeline in one frontend; the exchanges of the models of its steps run them."""

    def __init__(
        self,
        joined: JoinedPipeline,
        target: Callable[[int], Service],
        following: Callable[[int], Service],
        clock_ns: Callable[[], int],
    ) -> None:
        """Create it for the models of the steps.

        Args:
            target: Returns the service of a step's model as it is now; raises StokerError if it is not served.
            following: The same for the next request of a step: weights may choose another version of the model.
        """
        self.joined = joined
        self.signature = joined.signature
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
            call.fail(unexpected_error(error))
        else:
            call.settle()

    def _fill(self, call: PipelineCall, run: PipelineRun) -> None:
        """Set the answer and the times of a request, as an exchange with a device does."""
        times = run.critical_path_times()
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

    def cancel(self, call: PipelineCall) -> None:
        """Cancel the steps of a request that have not started."""
        run = self._runs.pop(call, None)
        if run is not None:
            run.stop()

    def overloaded(self) -> Overloaded:
        """The error for a request for which there is no room."""
        return Overloaded("The pipeline has no room for this request now; try again later.", retry_after_s=1)

    def close(self) -> None:
        """Close it; requests in progress are answered with an error."""
        self.lost = True
        calls: Iterable[PipelineCall] = list(self._runs)
        for call in calls:
            call.fail(device_lost())


NUMBER: Final = str(VERSION)
"""The only version of each pipeline: what it computes depends on the versions of its models."""


class PipelineService(Service):
    """A pipeline that is served.

    Attributes:
        joined: The definition joined with its models, as they were when all were last available; None before that.
        unready_reason: Why it cannot be scored now; empty if it can.
    """

    joined: JoinedPipeline | None

    def __init__(
        self,
        pipeline: Pipeline,
        models: Mapping[str, ServedModel],
        facts: ServiceFacts,
        access: Access,
        metrics: ModelMetrics,
        limits: Limits,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        **options: Unpack[ServiceOptions],
    ) -> None:
        super().__init__(facts, access, metrics, limits, **options)
        self.call_type = PipelineCall
        self.pipeline, self.joined, self.unready_reason = pipeline, None, ""
        self._models, self._clock_ns = models, clock_ns
        self._steps: list[Service | None] = [None] * len(pipeline.steps)
        self._is_broken = False

    def attach(self, exchange: Exchange) -> None:
        """Use this exchange too from now on."""
        super().attach(exchange)
        self.call_type = PipelineCall

    def refresh(self) -> bool:
        """Join the pipeline with the models that are served now; to be called when those may have changed.

        Returns whether `unready_reason` has changed.
        """
        before = self.unready_reason
        self._is_broken, self.unready_reason = False, ""
        self._steps = [self._served(step) for step in self.pipeline.steps]
        try:
            joined = self._join()
        except NotReady as error:
            self.unready_reason = str(error)
        except InvalidSettings as error:
            self._is_broken, self.unready_reason = True, str(error)
        if self.replicas.only is not None and (self.unready_reason or joined is not self.joined):
            self.detach(self.replicas.only)
        if not self.unready_reason:
            self.joined = joined
            if self.replicas.only is None:
                target, following = partial(self._target, joined), partial(self._next, joined)
                self.attach(PipelineExchange(joined, target, following, self._clock_ns))
        self.metrics.set_ready_replicas(int(self.ready))
        return self.unready_reason != before

    @property
    def models(self) -> list[Service]:
        """The models of its steps that are served."""
        return [service for service in self._steps if service is not None]

    def served_model(self, slot: int) -> ServedModel:
        """The state that callers see; for a pipeline that needs an operator's action, why it is not served."""
        if not self._is_broken:
            version = ServedVersion(VersionStatus(slot, "AVAILABLE"), self)
        else:
            version = ServedVersion(VersionStatus(slot, "END", self.unready_reason, NotReady.code))
        return ServedModel({NUMBER: version}, NUMBER)

    def not_ready(self) -> NotReady:
        """Return the error for requests while a model of a step is not available; it names the step."""
        return NotReady(
            f"{self.name} is not ready: {self.unready_reason or 'it is loading'}.", retry_after_s=1
        )

    def run_again(self, call: Call, error: StokerError) -> bool:
        """Always False: the models of the steps have repeated what may be repeated."""
        del call, error
        return False

    def _served(self, step: Step) -> Service | None:
        """The version of a step's model that is the default now; None if it is not served."""
        model = self._models.get(step.model)
        if model is None:
            return None
        number: str | None = model.default
        if step.version is not None:
            number = str(step.version)
        elif step.label is not None:
            number = model.labels.get(step.label)
        version = None if number is None else model.versions.get(number)
        return None if version is None else version.service

    def _join(self) -> JoinedPipeline:
        """Join the pipeline with its models; returns the present join if the models are the same.

        Raises:
            NotReady: A model is being loaded, or its device restarts.
            InvalidSettings: A model is not served, or the tensors of two models do not match.
        """
        signatures: list[Signature] = []
        for step, service in zip(self.pipeline.steps, self._steps, strict=True):
            if service is None:
                raise InvalidSettings(f"step {step.name}: {_shown(step)} is not served")
            if service.signature is None or not service.exchanges:
                raise NotReady(f"step {step.name}: {_shown(step)} is loading or its device restarts")
            signatures.append(service.signature)
        if self.joined is not None and self.joined.models == tuple(signatures):
            return self.joined
        return join(self.pipeline, signatures)

    def _target(self, joined: JoinedPipeline, number: int) -> Service:
        """Return the model of a step for a request that began with this join.

        Raises:
            NotReady: The model is not served any more, or has been replaced by another one since.
        """
        service, known = self._steps[number], joined.models[number]
        step = self.pipeline.steps[number]
        if service is None:
            raise NotReady(f"{_shown(step)} is not served any more.", retry_after_s=1)
        if service.signature is not known and service.signature != known:
            raise NotReady(f"{_shown(step)} has changed meanwhile.", retry_after_s=1)
        return service

    def _next(self, joined: JoinedPipeline, number: int) -> Service:
        """Return the model for the next request of a step: a version chosen by the weights, if its model has any."""
        service, step = self._target(joined, number), self.pipeline.steps[number]
        model = self._models.get(step.model)
        if model is None or model.split is None or (step.version, step.label) != (None, None):
            return service
        chosen = model.versions[model.split.next()].service
        # A version with other tensors can only be used by callers that address the model itself.
        fits = chosen is not None and chosen.exchanges and chosen.signature == joined.models[number]
        return chosen if chosen is not None and fits else service


def _shown(step: Step) -> str:
    """The name of a step's model for messages."""
    if step.version is not None:
        return f"version {step.version} of the model {step.model}"
    return (
        f"the model {step.model}"
        if step.label is None
        else f"the {step.label} version of the model {step.model}"
    )
