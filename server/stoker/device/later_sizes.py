"""Prepares further sizes of batches while a model serves, the smallest first, and then keeps those that pay.

A model can serve once its smallest size is prepared. Each further size blocks the device for the time of a capture,
so it is added when nothing waits, or when so many rows wait that larger batches would help. After a capture batches
run for at least as long as it took: so no request waits for two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from stoker.device.batch_cap import BatchCap
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.bucket_choice import choose_buckets, gains_by_growing
from stoker.device.kept_sizes import KeepSizes
from stoker.metrics.counters import ModelMetrics
from stoker.runtimes.base import SizedRuntime
from stoker.system.vital_work import start_thread

logger = logging.getLogger(__name__)


class LaterSizes:
    """The sizes of one model that are still to be prepared.

    `add_next` is called on the thread that has loaded the runtime, while nothing is in flight. What takes long is
    done before, on a thread of its own.
    """

    def __init__(
        self,
        name: str,
        runtime: SizedRuntime,
        sizes: Sequence[int],
        times_ns: Mapping[int, int],
        target_ms: float | None,
        keep: KeepSizes | None,
    ) -> None:
        """Begin with the sizes for which the runtime is prepared.

        Args:
            name: The model, for the log.
            sizes: The sizes to prepare, ascending.
            times_ns: The times of the sizes for which it is prepared.
            target_ms: The latency target, for the choice.
            keep: Keeps the choice; None if `sizes` are an earlier choice, all of which are kept.
        """
        self._name, self._runtime = name, runtime
        self._todo = [size for size in sizes if size not in times_ns]
        self._times_ns = dict(times_ns)
        self._target_ms, self._keep = target_ms, keep
        self._is_open = False
        self._added_ns = self._rests_until_ns = 0

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to prepare."""
        return not self._todo

    def open_next(self, on_open: Callable[[], None]) -> None:
        """Open the next size on a thread, which then calls `on_open`."""
        self._is_open = False

        def run() -> None:
            try:
                self._runtime.open_size(self._todo[0])
            except Exception as error:  # noqa: BLE001  # `add_next` raises it again, on its own thread
                logger.debug("%s: batches of %d rows: %s", self._name, self._todo[0], error)
            self._is_open = True
            on_open()

        start_thread(run, f"next size of {self._name}")

    def due_ns(self, waiting_rows: int, active_ns: int, *, is_idle: bool) -> int | None:
        """When the next size may be added, by what waits now; None: not before that has changed.

        Args:
            active_ns: When the last batch ended.
            is_idle: Whether no row waits, and no batch is in flight.
        """
        if not self._is_open or not (is_idle or waiting_rows >= max(self._times_ns)):
            return None
        return self._added_ns if is_idle and active_ns <= self._added_ns else self._rests_until_ns

    def rest(self, begun_ns: int, now_ns: int) -> None:
        """Let batches run for as long as it took to add a size."""
        self._added_ns, self._rests_until_ns = now_ns, 2 * now_ns - begun_ns

    def add_next(self, cap: BatchCap, times: ServiceTimes, metrics: ModelMetrics) -> None:
        """Add the next size, and choose among all if it was the last one that may pay."""
        size = self._todo.pop(0)
        try:
            took_ns = max(1, self._runtime.add_size(size))
        except Exception as error:  # noqa: BLE001  # it serves in smaller batches
            logger.warning("%s: batches of %d rows and more are left out: %s", self._name, size, error)
            self._todo.clear()
        else:
            self._times_ns[size] = took_ns
            times.add_bucket(size, took_ns)
            metrics.learn_batch_time(size, took_ns)
            cap.set_buckets(tuple(sorted(self._times_ns)))
            if self._keep is not None and not gains_by_growing(self._times_ns):
                self._todo.clear()
        if self.is_done:
            self._choose(cap, times)

    def _choose(self, cap: BatchCap, times: ServiceTimes) -> None:
        buckets, reason = tuple(sorted(self._times_ns)), "as an earlier load chose"
        if self._keep is not None:
            choice = choose_buckets(self._times_ns, self._target_ms)
            buckets, reason = choice.buckets, choice.reason
            for size in set(self._times_ns) - set(buckets):
                self._runtime.remove_size(size)
            times.keep_buckets(buckets)
            cap.set_buckets(buckets)
            self._keep(buckets)
        by_rows = ", ".join(f"{size}: {self._times_ns[size] / 1e6:.3f}" for size in buckets)
        named = ",".join(map(str, buckets))
        logger.info("%s: batch_buckets %s: %s; ms by rows: %s", self._name, named, reason, by_rows)
