"""Serving a model whose device computes one batch while the next one is copied to it.

The thread that calls `serve` receives rows, plans, and begins batches; it never waits for the device. A second
thread waits for the batches in the order in which they began, checks their outputs, and hands their rows back. The
next batch is planned just before the device has computed the last one: `stoker.device.compute_stream` says when.

What cannot go through the device in this way is run by the first thread, after all batches in flight are done: the
parts of a batch that has failed, audits, the canary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from stoker.arena import LONE_ROWS
from stoker.device.batch import Batch
from stoker.device.bucket_watch import BucketWatch
from stoker.device.device_turns import ModelTurn
from stoker.device.flights import AttachedArenas, Flight, Flights
from stoker.device.instance import Instance
from stoker.device.kept_sizes import KeepSizes
from stoker.device.lanes import Lane
from stoker.device.later_sizes import LaterSizes
from stoker.device.pipelined_planner import PipelinedPlanner
from stoker.device.worker import Worker
from stoker.runtimes.base import BatchInFlight, PipelinedRuntime, SizedRuntime
from stoker.system.vital_work import start_thread

_LONE_NS: Final = 2_000_000
"""For so long the first thread waits for a lone batch itself: another one would have to be woken."""


class PipelinedWorker(Worker):
    """Serves a model with several batches in flight.

    Lock order: as in `Worker`, then `Flights.changed`.
    """

    planner: PipelinedPlanner

    # The next batch is planned by them, also without targets.
    _needs_times = True

    def __init__(self, runtime: PipelinedRuntime, *arguments: Any, **options: Any) -> None:
        """Make the only instance; see `Worker`."""
        self._runtime = runtime
        self.flights = Flights()
        self._arenas = AttachedArenas(runtime, self.flights)
        self._computed_ns = 0
        self._begun: tuple[np.ndarray, BatchInFlight] | None = None
        """The number of a lone row, and its batch, until that is noted."""
        super().__init__(runtime, *arguments, **options)
        self._watch: BucketWatch | None = None
        self._later: LaterSizes | None = None
        self._watch_buckets()

    def _watch_buckets(self) -> None:
        if self.cap.sizes.chosen and isinstance(self._runtime, SizedRuntime):
            name = threading.current_thread().name
            self._watch = BucketWatch(name, self._runtime, self.cap.sizes, self.cap, self.times)

    def add_sizes_later(self, name: str, sizes: Sequence[int], keep: KeepSizes | None) -> None:
        """Prepare for further sizes of batches while the model serves; see `LaterSizes`."""
        runtime, buckets, policy = self._runtime, self.cap.sizes.buckets, self.cap.policy
        assert isinstance(runtime, SizedRuntime), "it can be prepared for further sizes"
        times_ns = {size: self.times.mean_ns(size) for size in buckets}
        self.cap.set_buckets(buckets)
        later = LaterSizes(name, runtime, sizes, times_ns, policy.target_ms, keep)
        if not later.is_done:
            self._watch, self._later = None, later
            later.open_next(self.doorbells.wake)

    def _make_planner(self, turn: ModelTurn | None) -> PipelinedPlanner:
        return PipelinedPlanner(self.flights, self._runtime, self.cap, self._clock_ns, turn, self.instances)

    def _on_wake(self) -> Callable[[], None]:
        return self.flights.note_news

    def serve(self, instance: Instance | None = None) -> None:
        """Serve until `stop` is called, and all batches in flight are done."""
        name = f"{threading.current_thread().name} (completion)"
        completing = start_thread(self._complete_all, name)
        super().serve(instance)
        completing.join()

    def turn(self, most_s: float | None = None, instance: Instance | None = None) -> int | None:
        """Wait until a batch can begin, and begin it; see `Worker.turn`."""
        instance = instance or self.instances[0]
        todo = self._lead(most_s)
        if isinstance(todo, Batch):
            self._begin(instance, todo)
        elif todo is not None:
            instance.check_device()
        self._do_other_work(instance)
        if self._later is not None:
            self._add_later(self._later)
        return self._check_again_ns

    def wait_s(self, most_s: float | None) -> float | None:
        """How long the leader may sleep if no row arrives: no longer than until a further size is due."""
        wait_s = super().wait_s(most_s)
        if self._later is None:
            return wait_s
        due_ns = self._later.due_ns(self.queue.rows, self._counter.active_ns, is_idle=True)
        if due_ns is None:
            return wait_s
        left_s = max(0, due_ns - self._clock_ns()) / 1e9
        return left_s if wait_s is None else min(wait_s, left_s)

    def _add_later(self, later: LaterSizes) -> None:
        """Add the next size if it is due."""
        flights, waiting_rows = self.flights, self.queue.rows
        is_idle = not waiting_rows and not flights.unfinished and not self.doorbells.poller.poll(0)
        due_ns = later.due_ns(waiting_rows, self._counter.active_ns, is_idle=is_idle)
        if due_ns is None or self._clock_ns() < due_ns or flights.failed:
            return
        flights.wait_until_landed()
        begun_ns = self._clock_ns()
        later.add_next(self.cap, self.times, self._metrics)
        later.rest(begun_ns, self._clock_ns())
        # Rows may wait for which a batch of the new size is planned.
        self.planner.rests, self._check_again_ns = False, 0
        if later.is_done:
            self._later = None
            self._watch_buckets()
        else:
            later.open_next(self.doorbells.wake)

    def complete(self) -> bool:
        """Wait for the oldest batch that was left to the second thread; returns False if that thread is to end."""
        flight = self.flights.completions.get()
        if flight is not None:
            self._complete(flight)
        return flight is not None

    def _complete_all(self) -> None:
        try:
            while self.complete():
                pass
        except BaseException as error:  # noqa: BLE001  # raised again on the first thread
            self.flights.note_crash(error)
            self.doorbells.wake()

    def close(self) -> None:
        """Wait for the batches in flight first; see `Worker.close`."""
        self.flights.wait_until_landed()
        if self.flights.crash is None:
            self._do_other_work(self.instances[0])
        self.flights.completions.put(None)
        super().close()

    def _lead(self, most_s: float | None) -> Any:
        planner = self.planner
        if not planner.rests or most_s is not None:
            return super()._lead(most_s)
        again_ns = self._check_again_ns
        # Not in the poller, which waits for whole milliseconds; what arrives meanwhile is read in one piece.
        self.flights.wait_for_news(None if again_ns is None else max(0, again_ns - self._clock_ns()) / 1e9)
        planner.rested_ns = again_ns if again_ns is not None and self._clock_ns() >= again_ns else None
        return super()._lead(0)

    def _linger(self) -> list[tuple[int, int]]:
        # The second thread could not hand rows back meanwhile.
        return [] if self.flights.unfinished else super()._linger()

    def _check_if_idle(self) -> Any:
        if self.flights.unfinished:
            return None
        if self._watch is not None:
            self._watch.add_missing()
        return super()._check_if_idle()

    def _begin(self, instance: Instance, batch: Batch) -> None:
        """Begin a batch."""
        flights, planner = self.flights, self.planner
        if planner.turn is not None and planner.turn.begun:
            batch.notify_turn()
        due_ns, planner.due_ns = planner.due_ns, None
        flight = Flight(batch, self.cap.sizes.filled(batch.rows), self.cap.rows, self._clock_ns())
        failure: BaseException | None = instance.inspection.check_in_arenas(batch)
        if failure is not None or batch.rows > flight.cap_rows or flight.size not in self._runtime.sizes:
            flights.failed.append((flight, failure))
            return
        if self._note_lone(flight):
            self._run_alone(instance, flight)
            return
        with flights.changed:
            flights.unfinished.append(flight)
            if len(flights.unfinished) == 1:
                instance.run_began_ns = flight.begun_ns
        try:
            self._start(flight)
        except BaseException as error:  # noqa: BLE001  # callers get whatever error the device raises
            self._leave_flight(flight, error)
            return
        now_ns = self._clock_ns()
        copy_ns = self._runtime.copy_ns(batch.rows)
        with flights.changed:
            expected_ns = self.times.mean_ns(flight.size)
            if due_ns is not None:
                flights.stream.learn_planning(now_ns - due_ns)
            flights.stream.begin(now_ns, copy_ns, expected_ns)
        flights.completions.put(flight)

    def _start(self, flight: Flight) -> BatchInFlight:
        batch, begun = flight.batch, self._begun
        if begun is None:
            rows = [(batch.lanes[block.lane].arena, block.numbers) for block in batch.blocks]
            flight.running = self._runtime.begin(rows, batch.rows, flight.size)
        else:
            numbers, flight.running = begun
            self._begun = None
            assert numbers is batch.blocks[0].numbers, "the row that was begun is the next batch"
        return flight.running

    def _begin_lone(self, lane: Lane, numbers: np.ndarray) -> None:
        size = self.cap.sizes.filled(1)
        if size in self._runtime.sizes:
            self.instances[0].run_began_ns = self._clock_ns()
            # If it fails, `_start` tries again and reports the failure.
            with suppress(Exception):
                self._begun = numbers, self._runtime.begin([(lane.arena, numbers)], 1, size)

    def _note_lone(self, flight: Flight) -> bool:
        """Count batches of one row without company; returns whether this one is likely to remain alone."""
        batch = flight.batch
        if batch.rows > 1 or batch.turn is not None or self.queue.rows or self.flights.unfinished:
            self._lone_rows = 0
        elif self._lone_rows < LONE_ROWS and self.times.mean_ns(flight.size) < _LONE_NS:
            # Those that take longer than expected are noticed when they are waited for.
            self._lone_rows += 1
        return self._lone_rows >= LONE_ROWS

    def _run_alone(self, instance: Instance, flight: Flight) -> None:
        """Run a lone row on this thread; if others come, or it takes long, it joins the batches in flight."""
        flights = self.flights
        instance.run_began_ns = flight.begun_ns
        try:
            running = self._start(flight)
            begun_ns = self._clock_ns()
            if not self._wait_alone(running, flight.begun_ns + _LONE_NS):
                self._lone_rows = 0
                with flights.changed:
                    flights.unfinished.append(flight)
                    expected_ns = self.times.mean_ns(flight.size)
                    flights.stream.begin(begun_ns, self._runtime.copy_ns(1), expected_ns)
                flights.completions.put(flight)
                return
            outputs = running.result()
        except BaseException as error:  # noqa: BLE001  # callers get whatever error the device raises
            if flight.running is not None:
                flight.running.release()
            flights.failed.append((flight, error))
        else:
            started_ns = self._clock_ns() - running.computed_ns
            failure = self._hand_back(flight.batch, flight, outputs, started_ns)
            if failure is not None:
                flights.failed.append((flight, failure))
        instance.run_began_ns = 0

    def _wait_alone(self, running: BatchInFlight, until_ns: int) -> bool:
        """Wait until a batch is done; returns False if other rows come or the time has passed."""
        while not running.is_done():
            if self.doorbells.poller.poll(0) or self._clock_ns() > until_ns:
                return False
        return True

    def _do_other_work(self, instance: Instance) -> None:
        """Do what the first thread has to do beside beginning batches."""
        flights = self.flights
        if flights.crash is not None:
            raise flights.crash
        if self._arenas.leaving:
            self._arenas.detach_unread()
        while flights.failed and not flights.unfinished:
            self._recover(instance, *flights.failed.popleft())
            # Rows may have waited for it, and nothing is in flight whose end would wake this thread.
            self.planner.rests, self._check_again_ns = False, 0
        if instance.monitor.kept_rows is not None:
            if flights.unfinished:
                instance.monitor.kept_rows = None
                assert self.auditor is not None, "rows are kept for audits only"
                self.auditor.schedule.postpone()
            else:
                self._audit(instance, self._computed_ns)

    def _recover(self, instance: Instance, flight: Flight, failure: BaseException | None) -> None:
        """Run a batch without others in flight: it has failed, or cannot be begun."""
        batch, begun_ns = flight.batch, self._clock_ns()
        if failure is None:
            instance.run(batch, begun_ns)
        else:
            instance.recover(batch, begun_ns, failure, flight.cap_rows)
        elapsed_ns = self._clock_ns() - begun_ns
        if batch.turn is not None:
            self._end_turn(batch.turn, elapsed_ns)
        with self._counter.lock:
            self._counter.count(instance, batch, begun_ns, elapsed_ns, sharing=1)

    def _note_lanes(self) -> None:
        super()._note_lanes()
        self._arenas.update({lane.arena for lane in self.doorbells.lanes.values()})

    def _end_turn(self, number: int, elapsed_ns: int) -> None:
        # The first thread has offered the waiting rows.
        self.planner.end_turn(number, elapsed_ns)

    def _complete(self, flight: Flight) -> None:
        """Wait for a batch, and hand its rows back."""
        batch, running, instance = flight.batch, flight.running, self.instances[0]
        assert running is not None, "it has begun"
        outputs: Sequence[Any] = ()
        failure: BaseException | None = None
        try:
            outputs = running.result()
        except BaseException as error:  # noqa: BLE001  # callers get whatever error the device raises
            failure = error
        now_ns, computed_ns = self._clock_ns(), running.computed_ns
        flights = self.flights
        with flights.changed:
            if failure is None:
                ended_ns = flights.stream.end(now_ns, computed_ns)
            else:
                flights.stream.fail(now_ns)
            instance.run_began_ns = now_ns if len(flights.unfinished) > 1 else 0
        if failure is None:
            if batch.turn is not None:
                # Copying its outputs and those of another model's batch do not disturb each other.
                self._end_turn(batch.turn, computed_ns)
                flight.batch = batch._replace(turn=None)
            failure = self._hand_back(batch, flight, outputs, now_ns - computed_ns)
            if failure is None:
                with flights.changed:
                    flights.stream.hand_back(ended_ns, self._clock_ns())
        else:
            running.release()
        self._leave_flight(flight, failure)

    def _hand_back(
        self, batch: Batch, flight: Flight, outputs: Sequence[Any], started_ns: int
    ) -> BaseException | None:
        """Hand back the rows of a batch that was computed; returns why they were not handed back."""
        running, instance = flight.running, self.instances[0]
        assert running is not None, "it has begun"
        failure = instance.finish(batch, outputs, flight.size, started_ns)
        running.release()
        if failure is None:
            with self._counter.lock:
                self._counter.count(instance, batch, started_ns, running.computed_ns, sharing=1)
                if self._watch is not None:
                    self._watch.count(batch.rows)
            self._computed_ns = running.computed_ns
        return failure

    def _leave_flight(self, flight: Flight, failure: BaseException | None) -> None:
        """Make room for another batch, and wake the first thread if it waits for that."""
        flights, instance = self.flights, self.instances[0]
        if flights.leave(flight, failure, instance) and (
            flights.failed
            or self._arenas.leaving
            or instance.monitor.kept_rows is not None
            or self.doorbells.stopped
        ):
            self.doorbells.wake()
