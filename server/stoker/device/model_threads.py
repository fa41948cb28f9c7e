"""The threads of one model in a device process: one for each of its instances."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from stoker.device.audit_schedule import AuditSchedule
from stoker.device.auditor import AuditPolicy
from stoker.device.first_times import first_times
from stoker.device.hang_watch import HangWatch
from stoker.device.lanes import Lane
from stoker.device.lifecycle import LoadedModel, fork, load
from stoker.device.planner import BatchPolicy
from stoker.device.worker import Worker
from stoker.metrics.counters import ModelMetrics
from stoker.runtimes.base import Runtime
from stoker.servable import Device, Servable
from stoker.system.process_end import ExitCode, end_process
from stoker.verdict import Verdict

__all__ = ["ModelThreads"]

logger = logging.getLogger(__name__)


class ModelThreads:
    """One model: a thread that loads it and serves it, and one more for each further instance.

    Loading happens on the serving threads, because frameworks and scripts keep thread-local state (a captured CUDA
    graph, a TensorFlow 1 default graph, a database connection) that is set up for `run()`.
    """

    def __init__(
        self,
        servable: Servable,
        max_delay_ms: float,
        metrics: ModelMetrics,
        audit_rate: float = 0.0,
        on_verdict: Callable[[Verdict], None] = lambda _: None,
    ) -> None:
        """Begin with nothing loaded.

        Args:
            servable: The model.
            max_delay_ms: How long its rows may wait for company.
            metrics: Where batches are counted.
            audit_rate: How many of all batches are audited, at most 1; 0 for none.
            on_verdict: Called when an audit has shown that its rows must not share batches.
        """
        self._servable = servable
        self._audit_rate = audit_rate
        self._on_verdict = on_verdict
        self._max_delay_ms = max_delay_ms
        self._metrics = metrics
        self._threads: list[threading.Thread] = []
        self._loaded: Future[LoadedModel] = Future()
        self._serving = threading.Event()
        self._worker: Worker | None = None
        self._hang_watch: HangWatch | None = None

    def start(self, device: Device, threads: int) -> LoadedModel:
        """Load the model on new threads and return once all of its instances are warm."""
        self._start_thread("", lambda: self._live(device, threads))
        return self._loaded.result()

    def serve(self) -> None:
        """Serve from now on.

        Until then a model leaves its device alone: while another one is loaded and captures CUDA graphs, a canary
        would spoil the capture, for CUDA forbids most calls to all threads of a process then.
        """
        self._serving.set()

    def add_lane(self, lane: Lane) -> None:
        """Serve a frontend from now on."""
        assert self._worker is not None, "the supervisor attaches only loaded models"
        self._worker.add_lane(lane)

    def stop_batching(self) -> None:
        """Let each row run alone from now on."""
        assert self._worker is not None, "the supervisor knows only of loaded models"
        self._worker.stop_batching()

    def stop(self) -> None:
        """Serve no more, and return when the threads have ended."""
        assert self._worker is not None, "the supervisor unloads only loaded models"
        self._worker.stop()
        self._serving.set()
        for thread in self._threads:
            thread.join()
        if self._hang_watch is not None:
            self._hang_watch.stop()

    def _start_thread(self, suffix: str, live: Callable[[], None]) -> None:
        name = f"model {self._servable.name}{suffix}"
        thread = threading.Thread(target=live, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _live(self, device: Device, threads: int) -> None:
        """Load the model on this thread, let the further ones do so in turn, and serve."""
        try:
            loaded = load(self._servable, device, threads)
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
        """Have a further instance made by the thread that will serve it."""
        forked: Future[tuple[Runtime, LoadedModel]] = Future()

        def live() -> None:
            try:
                forked.set_result(fork(loaded, self._servable.name))
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
            # Else a server with little to do would seem to be able to do little.
            self._metrics.learn_batch_time(loaded.max_batch_rows, round(loaded.full_batch_s * 1e9))
        terms = self._servable.terms
        policy = BatchPolicy(
            loaded.max_batch_rows,
            self._max_delay_ms,
            loaded.sizes.buckets,
            target_ms=terms.target_ms,
            late=terms.late,
            hold=terms.hold,
        )
        worker = Worker(
            runtimes[0],
            policy,
            self._metrics,
            sizes=loaded.sizes,
            canary=loaded.canary,
            audit=self._audit_policy(loaded),
        )
        for runtime in runtimes[1:]:
            worker.add_instance(runtime)
        if terms.target_ms is not None:
            worker.teach(first_times(loaded))
        self._worker = worker
        if _can_be_watched(self._servable, loaded):
            self._hang_watch = HangWatch(
                self._servable.name,
                self._servable.terms.timeout_ms,
                lambda: [instance.run_began_ns for instance in worker.instances],
            )
            self._hang_watch.start()

    def _audit_policy(self, loaded: LoadedModel) -> AuditPolicy | None:
        """How it is audited; None for scripts, whose `run` may do more than compute, and where nothing is batched."""
        verdict = loaded.signature.verdict
        if self._servable.framework == "script" or verdict is None or not verdict.batched:
            return None
        if not self._audit_rate:
            return None
        schedule = AuditSchedule(self._audit_rate)
        return AuditPolicy(self._servable.name, verdict, schedule, self._on_verdict)

    def _serve(self, number: int) -> None:
        assert self._worker is not None, "it is there when the model is loaded"
        self._serving.wait()
        try:
            self._worker.serve(self._worker.instances[number])
        except BaseException:  # noqa: BLE001  # the process ends of it
            # A worker without its threads would leave callers waiting; a new process answers them.
            try:
                logger.exception("a thread of model %s ended; the device process exits", self._servable.name)
            finally:
                end_process(ExitCode.CRASHED)


def _can_be_watched(servable: Servable, loaded: LoadedModel) -> bool:
    """Whether a run that lasts long must hang.

    Scripts have a watchdog of their own. TensorRT may build an engine for minutes when a shape comes for the first
    time, which happens to models of free sizes.
    """
    free_sizes = loaded.signature.takes == "tensors"
    return servable.framework != "script" and not (
        free_sizes and servable.acceleration.provider == "tensorrt"
    )
