"""A model instance: runs batches with one runtime, on one thread.

It gathers, runs and scatters, and handles failures. The work per batch is vectorised; there is no Python object for
a request here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from stoker.device.batch import Batch
from stoker.device.batch_cap import BatchCap
from stoker.device.batch_inspection import BatchInspection, NotFinite
from stoker.device.canary import Canary
from stoker.device.row_transfer import Gathering, Scattering
from stoker.device.threaded_copies import ThreadedCopies
from stoker.errors import InvalidInput, ScoringTimeout
from stoker.isolation.audit import AuditedRows, AuditResult, audit
from stoker.isolation.batch_monitor import BatchMonitor
from stoker.runtimes.base import JoiningRuntime, OutOfMemory, Runtime
from stoker.tensors import check_batch

logger = logging.getLogger(__name__)


class Instance:
    """Runs batches; belongs to the thread for which its runtime was made.

    Attributes:
        run_began_ns: When the present run started; 0 if none is running. May be read on any thread.
        monitor: Counts rows that are not finite, and keeps rows for audits.
        inspection: Looks at rows before and after they run.
        scattering: Hands rows back.
    """

    def __init__(
        self,
        runtime: Runtime,
        cap: BatchCap,
        alone: Callable[[], AbstractContextManager[None]],
        canary: Canary | None,
        clock_ns: Callable[[], int],
    ) -> None:
        """Make the buffers.

        Args:
            runtime: The runtime of the instance's thread.
            cap: The largest size now, shared with the other instances of the model.
            alone: Makes a context in which no other instance of the model runs a batch.
            canary: Checks whether the device still works.
            clock_ns: The time.
        """
        self.run_began_ns = 0
        self._runtime = runtime
        self._cap = cap
        self._alone = alone
        self._canary = canary
        self._clock_ns = clock_ns
        self._joins = isinstance(runtime, JoiningRuntime)
        self.monitor = runtime.monitor if isinstance(runtime, JoiningRuntime) else BatchMonitor()
        signature = runtime.signature
        self._outputs = signature.outputs
        # A caller whose deadline has passed is told whether the script had begun.
        self._tells_start = signature.takes == "body"
        self._gathering = Gathering(
            runtime, cap.rows, ThreadedCopies(clock_ns), fills=bool(cap.sizes.buckets)
        )
        self.inspection = BatchInspection(signature, self.monitor)
        self.scattering = Scattering(signature.outputs, clock_ns)
        self._checked = False

    def run(self, batch: Batch, started_ns: int) -> None:
        """Run a batch that left the queue at `started_ns`, and hand all of its rows back."""
        self.scattering.is_doubtful = self._checked = False
        self._run(batch, started_ns, alone=False)
        if self.scattering.is_doubtful:
            self._check_once()

    def check_device(self) -> None:
        """Run the canary, if there is one."""
        if self._canary is not None:
            self.run_began_ns = self._clock_ns()
            self._canary.check(self._runtime)
            self.run_began_ns = 0

    def audit(self, taken: AuditedRows, noise: float) -> AuditResult:
        """Run rows of an earlier batch again, on this thread; see `stoker.isolation.audit.audit`."""
        runtime = self._runtime

        def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            self.run_began_ns = self._clock_ns()
            try:
                if isinstance(runtime, JoiningRuntime):
                    return runtime.run_tensors(feeds)
                outputs: Sequence[Any] = runtime.run(self._gathering.lay_out(feeds))
            finally:
                self.run_began_ns = 0
            return {spec.name: array for spec, array in zip(self._outputs, outputs, strict=True)}

        return audit(run, taken, noise)

    def _check_once(self) -> None:
        """Run the canary, but only once per batch."""
        if not self._checked:
            self._checked = True
            self.check_device()

    def _run(self, batch: Batch, started_ns: int, *, alone: bool) -> None:
        """Run rows as one batch. If it fails, its halves are run, so that only rows that fail alone fail."""
        cap_rows = self._cap.rows
        if batch.rows > cap_rows:
            for part in batch.split(cap_rows):
                self._run(part, started_ns, alone=alone)
            return
        failure = self._try(batch, started_ns)
        if failure is not None:
            self._run_parts(batch, started_ns, failure, cap_rows, alone=alone)

    def _run_parts(
        self, batch: Batch, started_ns: int, failure: BaseException, cap_rows: int, *, alone: bool
    ) -> None:
        """Answer a batch that has failed under the cap `cap_rows`."""
        if isinstance(failure, NotFinite):
            for part in batch.apart(failure.finite):
                self._run(part, started_ns, alone=alone)
            return
        if isinstance(failure, ScoringTimeout):
            # Running parts of it would take as long, for callers whose deadline has passed.
            logger.error("%s: a batch of %d rows took too long", _model(), batch.rows, exc_info=failure)
            self.scattering.expire(batch)
            return
        if isinstance(failure, OutOfMemory):
            self._run_smaller(batch, started_ns, failure, cap_rows, alone=alone)
            return
        if not isinstance(failure, InvalidInput):
            # Before a row is blamed, and its caller told so.
            self._check_once()
        if batch.rows == 1:
            self.scattering.fail(batch, failure, started_ns)
            return
        for half in batch.split(-(-batch.rows // 2)):
            self._run(half, started_ns, alone=alone)

    def _run_smaller(
        self, batch: Batch, started_ns: int, failure: OutOfMemory, cap_rows: int, *, alone: bool
    ) -> None:
        """Run in parts a batch that did not fit into memory, while no other batch of the model uses memory."""
        size = self._cap.sizes.filled(batch.rows)
        smaller = self._cap.sizes.smaller(size)
        if alone and smaller is None:
            self.scattering.fail(batch, failure, started_ns)
            self._check_once()
            return
        self._cap.halve(cap_rows)
        with nullcontext() if alone else self._alone():
            for part in batch.split(min(self._cap.rows, smaller or size)):
                self._run(part, started_ns, alone=True)

    def _try(self, batch: Batch, started_ns: int) -> BaseException | None:
        blocks, rows, lanes = batch.blocks, batch.rows, batch.lanes
        size = self._cap.sizes.filled(rows)
        try:
            inputs = self._gathering.batch(
                [(lanes[block.lane].arena, block.numbers) for block in blocks], rows, size
            )
            not_finite = self.inspection.check_gathered(inputs, rows)
            if not_finite is not None:
                return not_finite
            if self._tells_start:
                for block in blocks:
                    lanes[block.lane].arena.started_ns[block.numbers] = started_ns
            self.run_began_ns = self._clock_ns()
            outputs: Sequence[Any] = self._runtime.run(inputs)
            self.run_began_ns = 0
            checked = [
                _check_texts(array, size) if spec.variable else check_batch(spec, array, size)
                for spec, array in zip(self._outputs, outputs, strict=True)
            ]
        except BaseException as error:  # noqa: BLE001  # whatever the model raises is told to its caller
            self.run_began_ns = 0
            return error
        if not self._joins:
            self.inspection.inspect_answers(batch, inputs, checked, size)
        self.scattering.scatter(batch, checked, size, started_ns)
        return None

    def finish(
        self, batch: Batch, outputs: Sequence[Any], size: int, started_ns: int
    ) -> BaseException | None:
        """Hand back the rows of a batch that the device has computed from rows in the arenas.

        Args:
            batch: The batch.
            outputs: Its outputs, `[size, ...]` each.
            size: The size of the batch with its padding.
            started_ns: When its computation began.

        Returns:
            Why its rows were not handed back; None if they were.
        """
        try:
            checked = [
                check_batch(spec, array, size) for spec, array in zip(self._outputs, outputs, strict=True)
            ]
        except Exception as error:  # noqa: BLE001  # a model may give anything
            return error
        self.inspection.inspect_answers(batch, None, checked, size)
        self.scattering.scatter(batch, checked, size, started_ns)
        return None

    def recover(self, batch: Batch, started_ns: int, failure: BaseException, cap_rows: int) -> None:
        """Answer a batch that has failed in flight under the cap `cap_rows`, by running its parts."""
        self.scattering.is_doubtful = self._checked = False
        self._run_parts(batch, started_ns, failure, cap_rows, alone=False)


class PackedInstance(Instance):
    """An instance in a process of several models: if that crashes, the supervisor can tell which of them ran."""

    def __init__(self, run_began: memoryview, runtime: Runtime, **options: Any) -> None:
        """Make it with a word of shared memory; see `Instance` for the other arguments."""
        self._run_began = run_began
        super().__init__(runtime, **options)

    @property
    def run_began_ns(self) -> int:
        """See `Instance`."""
        began_ns: int = self._run_began[0]
        return began_ns

    @run_began_ns.setter
    def run_began_ns(self, value: int) -> None:
        self._run_began[0] = value


def _model() -> str:
    """The model's name, as in the name of its thread."""
    return threading.current_thread().name


def _check_texts(texts: Sequence[Any], rows: int) -> Sequence[Any]:
    if len(texts) != rows:
        raise ValueError(f"{len(texts)} answers came for a batch of {rows}")
    return texts
