"""One request to a pipeline: which steps run when, and the arrays that are passed from one to the next.

See decision 37.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stoker.errors import InvalidInput, StokerError, unexpected_error
from stoker.gateway.pipelines.step_call import StepCall, create_step_call
from stoker.gateway.scoring.call import Call
from stoker.settings.pipeline_graph import Progress

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service
    from stoker.models.pipelines import JoinedPipeline

logger = logging.getLogger(__name__)


class PipelineCall(Call):
    """A request to a pipeline; without slots, so that it can be mixed into other call classes."""

    exchange: Any
    step_lines = b""

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Answer the caller, with the times of the steps among the headers."""
        super().answer(status, lines + self.step_lines, body)


class StepTimes(NamedTuple):
    """The times of one step in nanoseconds: waiting for its batch, waiting for its turn of the device, computing."""

    queue_ns: int
    turn_ns: int
    compute_ns: int


class PipelineRun:
    """One request between its submission and its last step.

    The outputs of a step are copied from the rows of its model's arena straight into the rows of the next one. Only
    tensors that a later step or the answer needs are kept separately.

    Attributes:
        tensors: The tensors that are still needed, by their names in the pipeline.
        error: The error that the request has failed with, naming the step; None if it has not failed.
        times: The times of each step that has ended, in the order in which they ended.
    """

    __slots__ = (
        "_calls",
        "_causes",
        "_joined",
        "_left",
        "_on_end",
        "_progress",
        "_starting",
        "_target",
        "error",
        "tensors",
        "times",
        "whole",
    )

    def __init__(
        self,
        whole: PipelineCall,
        joined: JoinedPipeline,
        tensors: dict[str, np.ndarray],
        target: Callable[[int], Service],
        on_end: Callable[[PipelineRun], None],
    ) -> None:
        """Prepare a request.

        Args:
            target: Returns the service of a step's model as it is now; raises StokerError if it is not served.
            on_end: Called once when the request ends, unless `start` raised or `stop` was called; not before
                `proceed`.
        """
        self.whole, self.tensors = whole, tensors
        self.error: StokerError | None = None
        self.times: dict[int, StepTimes] = {}
        self._joined, self._target, self._on_end = joined, target, on_end
        self._progress = Progress(joined.graph)
        self._left = dict(joined.graph.uses)
        self._calls: list[StepCall] = []
        self._causes: dict[int, int] = {}
        self._starting = True

    def start(self) -> None:
        """Start the steps that depend on no other step; if one raises, nothing of the request runs."""
        self._begin_all(self._joined.graph.first)
        if self.error is not None:
            raise self.error

    def proceed(self) -> None:
        """Allow `on_end` to be called; if all answers came from caches, this calls it at once."""
        self._starting = False
        self._proceed(self.tensors, are_views=True)

    def stop(self) -> None:
        """Cancel the steps that have not started."""
        for call in self._calls:
            call.abandon()

    def critical_path_times(self) -> StepTimes:
        """The times along the chain of steps that ended last, each of which waited for the one before it."""
        step, way = next(reversed(self.times), None), []
        while step is not None:
            way.append(self.times[step])
            step = self._causes.get(step)
        return StepTimes(*map(sum, zip(*way, strict=True))) if way else StepTimes(0, 0, 0)

    def _begin_all(self, steps: Iterable[int]) -> None:
        for step in steps:
            if self.error is None:
                self._begin(step)

    def _begin(self, step: int) -> None:
        try:
            service, takes = self._target(step), self._joined.links[step].takes
            inputs = {name: self.tensors[tensor] for name, tensor in takes.items()}
            self._check(step, inputs)
            for tensor in set(takes.values()):
                self._left[tensor] -= 1
            call = create_step_call(service, self.whole, inputs, partial(self._accept, step))
            self._calls.append(call)
            service.submit(call, b"", None)
            if call.is_awaited and not call.submitted:
                # The step waits for admission, and the rows whose views it holds may be given to other requests by
                # then.
                call.context = {name: array.copy() for name, array in inputs.items()}
            else:
                # The arrays are in the model's rows, or not needed: large ones must not be held twice.
                call.context = {}
        except StokerError as error:
            self._fail(step, error)
        except Exception as error:
            logger.exception("a step of a pipeline could not begin")
            self._fail(step, unexpected_error(error))

    def _check(self, step: int, inputs: Mapping[str, np.ndarray]) -> None:
        """Raise InvalidInput where sizes that the models leave free do not match; rows of fixed shapes always do."""
        if self._joined.signature.takes == "rows":
            return
        for name, array in inputs.items():
            info = self._joined.infos[step][name]
            if not info.fits(array.shape):
                raise InvalidInput(f"the input takes {info}, and is given the shape {list(array.shape)}")
        tensors = self._joined.models[step].model_tensors
        if tensors is not None and tensors.batched and len({len(array) for array in inputs.values()}) > 1:
            raise InvalidInput("its inputs are given different numbers of rows")

    def _accept(self, step: int, call: StepCall) -> None:
        """Take the outputs of a step or its error; whatever is raised here would leave the request unanswered."""
        try:
            if call.failure is None:
                self._accept_outputs(step, call)
            else:
                self._fail(step, call.failure)
        except Exception as error:
            logger.exception("the outputs of a step of a pipeline could not be taken")
            self._fail(step, unexpected_error(error))

    def _accept_outputs(self, step: int, call: StepCall) -> None:
        """Take the outputs of a step, and start the steps that waited for it alone."""
        queue_ns = call.started_ns - call.enqueued_ns - call.turn_ns
        self.times[step] = StepTimes(queue_ns, call.turn_ns, call.finished_ns - call.started_ns)
        given = {
            tensor: call.outputs_by_name[name] for name, tensor in self._joined.links[step].gives.items()
        }
        call.outputs_by_name = {}
        self.tensors.update(given)
        ready = self._progress.finish(step)
        self._causes.update(dict.fromkeys(ready, step))
        self._begin_all(ready)
        self._proceed(given, are_views=call.are_views)

    def _proceed(self, given: Mapping[str, np.ndarray], *, are_views: bool) -> None:
        """End the request, or keep the new tensors that later steps need."""
        if self._starting or self.error is not None:
            return
        if not self._progress.steps_left:
            self._end()
            return
        for tensor, array in list(given.items()):
            if not self._left[tensor]:
                self.tensors.pop(tensor, None)
            elif are_views:
                self.tensors[tensor] = array.copy()

    def _fail(self, step: int, error: StokerError) -> None:
        if self.error is None:
            self.error = error.within(f"Step {self._joined.pipeline.steps[step].name}")
            self.stop()
            if not self._starting:
                self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, _ignore_end
        on_end(self)


def _ignore_end(run: PipelineRun) -> None:
    """Called in place of `on_end` when the end has been reported already."""
