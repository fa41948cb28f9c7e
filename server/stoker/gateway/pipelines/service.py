"""A pipeline as callers see it: a model that is ready while the models of all its steps are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack, cast

from stoker.errors import InvalidSettings, NotReady
from stoker.gateway.pipelines.exchange import PipelineExchange
from stoker.gateway.pipelines.whole_calls import PipelineCall
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.pipelines.definition import VERSION
from stoker.pipelines.joined import JoinedPipeline, join
from stoker.versions import Standing

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.facts import Limits, ServiceFacts, ServiceOptions
    from stoker.keys.access import Access
    from stoker.metrics.counters import ModelMetrics
    from stoker.pipelines.definition import Pipeline, Step
    from stoker.tensors import Signature

__all__ = ["NUMBER", "PipelineService"]

NUMBER: Final = str(VERSION)
"""The only version of each pipeline: what it computes depends on the versions of its models."""


class PipelineService(Service):
    """A pipeline that is served.

    Args:
        pipeline: Its definition.
        models: The served models by name; the mapping is kept up to date.
        facts, access, metrics, limits: As for `Service`.
        clock_ns: `time.monotonic_ns`.
        **options: As for `Service`.

    Attributes:
        pipeline: What was said of it.
        joined: The definition joined with its models, as they were when all were last available; None before that.
        trouble: Why it cannot be scored now; empty if it can.
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
        self.pipeline, self.joined, self.trouble = pipeline, None, ""
        self._models, self._clock_ns = models, clock_ns
        self._steps: list[Service | None] = [None] * len(pipeline.steps)
        self._is_broken = False

    def attach(self, exchange: Exchange) -> None:
        """Use this exchange too from now on."""
        super().attach(exchange)
        self.call_type = PipelineCall

    def look(self) -> bool:
        """Join the pipeline with the models that are served now; to be called when those may have changed.

        Returns whether `trouble` has changed.
        """
        before = self.trouble
        self._is_broken, self.trouble = False, ""
        self._steps = [self._served(step) for step in self.pipeline.steps]
        try:
            joined = self._join()
        except NotReady as error:
            self.trouble = str(error)
        except InvalidSettings as error:
            self._is_broken, self.trouble = True, str(error)
        if self.exchange is not None and (self.trouble or joined is not self.joined):
            self.detach(self.exchange)
        if not self.trouble:
            self.joined = joined
            if self.exchange is None:
                target, following = partial(self._target, joined), partial(self._next, joined)
                exchange = PipelineExchange(joined, target, following, self._clock_ns)
                # Services and dialects only use its signature; it has no rows.
                self.attach(cast("Exchange", exchange))
        self.metrics.set_ready_replicas(int(self.ready))
        return self.trouble != before

    @property
    def models(self) -> list[Service]:
        """The models of its steps that are served."""
        return [service for service in self._steps if service is not None]

    def standing(self, slot: int) -> ServedModel:
        """The state that callers see; for a pipeline that needs an operator's action, why it is not served."""
        if not self._is_broken:
            version = ServedVersion(Standing(slot, "AVAILABLE"), self)
        else:
            version = ServedVersion(Standing(slot, "END", self.trouble, NotReady.code))
        return ServedModel({NUMBER: version}, NUMBER)

    def not_ready(self) -> NotReady:
        """Return the error for requests while a model of a step is not available; it names the step."""
        return NotReady(f"{self.name} is not ready: {self.trouble or 'it is loading'}.", retry_after_s=1)

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
        """Return the model for the next request of a step: a version chosen by the weights, if its model has any.

        Raises:
            NotReady: As `_target`.
        """
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
