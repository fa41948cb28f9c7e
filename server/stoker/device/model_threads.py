"""The threads of one model in a device process: one per instance."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue

from stoker.deployment import Deployment, Device
from stoker.device.auditing import AuditPolicy, AuditSchedule
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.device.device_page import SlotFacts
from stoker.device.device_turns import DeviceTurns, ModelTurn
from stoker.device.first_batches import first_times, full_batch, is_pipelined
from stoker.device.hang_watch import HangWatch
from stoker.device.lanes import Lane
from stoker.device.loaded_model import LoadedModel
from stoker.device.loading import fork, load
from stoker.device.pipelined_worker import PipelinedWorker
from stoker.device.sequence_worker import SequenceWorker
from stoker.device.text_worker import TextWorker
from stoker.device.worker import Worker
from stoker.metrics.counters import ModelMetrics
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import Runtime, TokenRuntime
from stoker.system.vital_work import start_thread

logger = logging.getLogger(__name__)


class ModelThreads:
    """One model: a thread that loads and serves it, and another one for each further instance.

    A model is loaded on the thread that serves it, because frameworks and scripts keep thread-local state (a
    captured CUDA graph, a TensorFlow 1 default graph, a database connection) that `run()` needs.
    """

    def __init__(
        self,
        deployment: Deployment,
        metrics: ModelMetrics,
        on_isolation_changed: Callable[[RowIsolation], None] = lambda _: None,
        turns: DeviceTurns | None = None,
        *,
        is_alone: bool = True,
    ) -> None:
        """Begin with nothing loaded.

        Args:
            metrics: Counts batches.
            on_isolation_changed: Called when an audit has shown that rows must not share batches.
            turns: The turns of its device; None if it takes none.
            is_alone: Whether its process serves no other model, and never will.
        """
        self._is_alone = is_alone
        self._deployment = deployment
        self._turns = turns
        self._on_isolation_changed = on_isolation_changed
        self._metrics = metrics
        self._threads: list[threading.Thread] = []
        self._loaded: Future[LoadedModel] = Future()
        self._todo: list[SimpleQueue[Callable[[], None] | None]] = []
        """Tasks for each thread before it serves; None ends them."""
        self._full_batches: list[Callable[[], None]] = []
        self.worker: Worker | None = None
        self._hang_watch: HangWatch | None = None

    def start(self, device: Device) -> LoadedModel:
        """Load the model on new threads; returns when all of its instances are warm.

        If it fails, its threads have ended, and nothing but the error refers to the model.
        """
        try:
            self._start_thread("", lambda: self._live(device))
            return self._loaded.result()
        except BaseException:
            for thread in self._threads:
                thread.join()
            self._loaded = Future()
            raise

    def serve(self) -> None:
        """Start serving.

        Until then a model does not use its device: while another model is loaded and captures CUDA graphs, a canary
        would spoil the capture, because CUDA forbids most calls on all threads of the process.
        """
        for todo in self._todo:
            todo.put(None)

    @property
    def wants_targets(self) -> bool:
        """Whether rows of the model have a target."""
        return self._deployment.target_ms is not None

    def full_batches(self) -> list[Callable[[], Future[int]]]:
        """For each instance a function that runs its largest batch on its own thread and returns nanoseconds.

        Only before serving.
        """

        def begin(number: int) -> Future[int]:
            took: Future[int] = Future()

            def run() -> None:
                try:
                    begun_ns = time.perf_counter_ns()
                    self._full_batches[number]()
                    took.set_result(time.perf_counter_ns() - begun_ns)
                except BaseException as error:  # noqa: BLE001  # raised again on the main thread
                    took.set_exception(error)

            self._todo[number].put(run)
            return took

        return [partial(begin, number) for number in range(len(self._full_batches))]

    def add_lane(self, lane: Lane) -> None:
        """Serve a frontend's rows from now on."""
        assert self.worker is not None, "the supervisor attaches only loaded models"
        self.worker.add_lane(lane)

    def stop_batching(self) -> None:
        """Run each row alone from now on."""
        assert self.worker is not None, "the supervisor knows only of loaded models"
        self.worker.stop_batching()

    def stop(self) -> None:
        """Stop serving; returns when the threads have ended."""
        assert self.worker is not None, "the supervisor unloads only loaded models"
        self.worker.stop()
        self.serve()
        for thread in self._threads:
            thread.join()
        if self._hang_watch is not None:
            self._hang_watch.stop()

    def _start_thread(self, suffix: str, live: Callable[[], None]) -> None:
        self._threads.append(start_thread(live, f"model {self._deployment.name}{suffix}"))

    def _live(self, device: Device) -> None:
        """The main thread: load the model, have the other threads fork it one after the other, and serve."""
        try:
            # Captures would disturb batches of other models of the process.
            loaded = load(self._deployment, device, adds_later=self._is_alone)
            runtimes = [loaded.runtime]
            for number in range(1, loaded.instances):
                runtime, loaded = self._fork(loaded, number)
                runtimes.append(runtime)
            self._prepare(loaded, runtimes)
        except BaseException as error:  # noqa: BLE001  # raised again on the main thread
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(loaded)
        self._serve(0)

    def _fork(self, loaded: LoadedModel, number: int) -> tuple[Runtime, LoadedModel]:
        """Have another instance made on the thread that will serve it."""
        forked: Future[tuple[Runtime, LoadedModel]] = Future()

        def live() -> None:
            try:
                forked.set_result(fork(loaded, self._deployment.name))
            except BaseException as error:  # noqa: BLE001  # raised again on the first thread
                forked.set_exception(error)
                return
            if self._loaded.exception() is None:
                self._serve(number)

        self._start_thread(f" ({number + 1})", live)
        return forked.result()

    def _prepare(self, loaded: LoadedModel, runtimes: list[Runtime]) -> None:
        self._metrics.clear_gauges()
        if loaded.full_batch_s:
            # Otherwise an idle server would appear to have little capacity.
            self._metrics.learn_batch_time(loaded.max_batch_rows, round(loaded.full_batch_s * 1e9))
        with ExitStack() as undone:
            turn = self._turn(len(runtimes))
            if turn is not None:
                undone.callback(turn.leave)
            worker = self._make_worker(loaded, runtimes, turn)
            # It leaves the turns too.
            undone.pop_all()
            undone.callback(worker.close)
            self.worker = worker
            self._todo += [SimpleQueue() for _ in runtimes]
            if loaded.signature.takes == "rows":
                self._full_batches += [full_batch(loaded, runtime) for runtime in runtimes]
            if _can_be_watched(self._deployment, loaded):
                self._hang_watch = HangWatch(
                    self._deployment.name,
                    self._deployment.timeout_ms,
                    lambda: [instance.run_began_ns for instance in worker.instances],
                )
                self._hang_watch.start()
            undone.pop_all()

    def _make_worker(self, loaded: LoadedModel, runtimes: list[Runtime], turn: ModelTurn | None) -> Worker:
        deployment = self._deployment
        policy = BatchPolicy(
            loaded.max_batch_rows,
            deployment.max_delay_ms,
            loaded.sizes.buckets,
            target_ms=deployment.target_ms,
            late=deployment.late,
        )
        kind: Callable[..., Worker] = SequenceWorker if loaded.signature.sequences else Worker
        if is_pipelined(runtimes[0]):
            kind = PipelinedWorker
        if isinstance(runtimes[0], TokenRuntime) and runtimes[0].costs is not None:
            kind = TextWorker
        worker = kind(
            runtimes[0],
            policy,
            self._metrics,
            # CUDA refuses many calls of all threads while a size is captured: batches of other models would fail.
            sizes=loaded.sizes if self._is_alone else BatchSizes(loaded.sizes.buckets),
            canary=loaded.canary,
            audit=self._audit_policy(loaded),
            turn=turn,
            run_began=None if self._is_alone else self._metrics.run_began,
        )
        for runtime in runtimes[1:]:
            worker.add_instance(runtime)
        if deployment.target_ms is not None or is_pipelined(runtimes[0]):
            worker.teach(first_times(loaded))
        if loaded.later_sizes:
            assert isinstance(worker, PipelinedWorker), "others choose their sizes at the load"
            worker.add_sizes_later(deployment.name, loaded.later_sizes, loaded.keep_sizes)
        return worker

    def _turn(self, threads: int) -> ModelTurn | None:
        if self._turns is None:
            return None
        try:
            return self._turns.join(
                self._deployment.device_share, SlotFacts(threads, wants_turns=self.wants_targets)
            )
        except OSError as error:
            logger.warning("%s does not take turns of its device: %s", self._deployment.name, error)
            return None

    def _audit_policy(self, loaded: LoadedModel) -> AuditPolicy | None:
        """The audit policy; None for scripts, whose `run` may have side effects, and where rows are not batched.

        None for a model with state too: its answers depend on more than its inputs.
        """
        isolation = loaded.signature.isolation
        if self._deployment.framework == "script" or isolation is None or not isolation.batched:
            return None
        if not self._deployment.audit or loaded.signature.sequences or loaded.signature.keeps_state:
            return None
        schedule = AuditSchedule(self._deployment.audit)
        return AuditPolicy(self._deployment.name, isolation, schedule, self._on_isolation_changed)

    def _serve(self, number: int) -> None:
        assert self.worker is not None, "it is there when the model is loaded"
        while (task := self._todo[number].get()) is not None:
            task()
        self.worker.serve(self.worker.instances[number])


def _can_be_watched(deployment: Deployment, loaded: LoadedModel) -> bool:
    """Whether a run that lasts long can be taken for hanging.

    Not for scripts, which have a watchdog of their own. Not for models of free sizes with TensorRT, which may build
    an engine for minutes when a shape comes for the first time.
    """
    free_sizes = loaded.signature.takes == "tensors"
    return deployment.framework != "script" and not (
        free_sizes and deployment.acceleration.provider == "tensorrt"
    )
