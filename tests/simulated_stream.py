"""A simulation of a GPU with one compute stream: a batch is copied while the one before it is computed.

The times were measured. The server's own scheduler chooses the rows, and its `ComputeStream` the time of a batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import ServiceTimes, filled
from stoker.device.bucket_choice import candidate_sizes, choose_buckets
from stoker.device.compute_stream import ComputeStream
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import schedule
from stoker.simulation.workload import Jitter, Requests
from stoker.simulation.world import NEVER_NS, answered_ns, row_table

_TIMEOUT_NS: Final = 60_000_000_000
_KNOWN_TIMES: Final = 4
"""Batch times of each size that are known before the first request, as after a load."""
_START_NS: Final = 10_000_000
"""Callers in a closed loop send their first rows within this time."""


@dataclass(frozen=True, slots=True)
class StreamDevice:
    """A model on a GPU, by measured times.

    Attributes:
        text: The model and the place of the measurement. `launch_ms`, `gap_ms` and `notice_ms` were not measured.
        compute_ms: Times of batches on the compute stream by size, ascending; those between are interpolated.
        copy_ms, copy_row_ms: The time to copy a batch to the GPU: a constant part, and a part per row.
        launch_ms: Processor time from the moment to plan a batch until its copy begins.
        gap_ms: Time between two batches, if the second is ready when the first ends.
        notice_ms: Time from the end of a batch until the server knows of it.
        transport_ms: Time from an answer of the GPU until the caller's next row is queued.
        depth: How many batches may be in flight.
    """

    text: str
    compute_ms: Mapping[int, float]
    copy_ms: float
    copy_row_ms: float
    launch_ms: float = 0.1
    gap_ms: float = 0.01
    notice_ms: float = 0.05
    transport_ms: float = 0.8
    depth: int = 2

    def compute_ns(self, rows: int) -> float:
        """The time of a batch of this size on the compute stream."""
        return float(np.interp(rows, [*self.compute_ms], [*self.compute_ms.values()])) * 1e6

    def copy_ns(self, rows: int) -> int:
        """The time to copy this many rows to the GPU."""
        return round((self.copy_ms + self.copy_row_ms * rows) * 1e6)

    @property
    def peak_rows_per_s(self) -> float:
        """The ceiling: throughput of the runtime alone, in batches of the best size, with inputs on the GPU."""
        return max(rows / ms for rows, ms in self.compute_ms.items()) * 1e3

    def buckets(self, target_ms: float | None = None, max_batch_rows: int | None = None) -> tuple[int, ...]:
        """The sizes of batches that a server chooses when it loads the model."""
        sizes = candidate_sizes(max_batch_rows or max(self.compute_ms))
        return choose_buckets({size: self.compute_ns(size) for size in sizes}, target_ms).buckets


STREAM_DEVICES: Final[Mapping[str, StreamDevice]] = {
    "h200-resnet50": StreamDevice(
        "ResNet-50 FP16, uint8 rows of 150,528 bytes, NVIDIA H200, ONNX Runtime 1.31, 2026-11-26",
        {1: 0.581, 8: 1.049, 32: 2.724, 64: 5.155, 128: 10.14, 256: 20.11},
        copy_ms=0.05,
        copy_row_ms=0.0055,
    ),
    # Measured is the throughput of 64 rows with their copy, one after the other, and the copy: the rest is computing.
    "h200-resnet50-tf32": StreamDevice(
        "ResNet-50 TF32, float32 rows of 602,112 bytes, NVIDIA H200, ONNX Runtime 1.31, 2026-11-26; "
        "batches of fewer than 64 rows are a guess",
        {1: 0.7, 64: 8.91},
        copy_ms=0.05,
        copy_row_ms=0.0137,
    ),
}
"""Devices and models by name."""


class Callers(Protocol):
    """The senders of rows."""

    def next_ns(self) -> int:
        """When the next row arrives; `NEVER_NS` if none does."""

    def push(self, queue: RowQueue, now_ns: int) -> None:
        """Queue the rows that have arrived since the last call."""

    def answer(self, numbers: np.ndarray, now_ns: int) -> None:
        """Take computed rows."""


class ArrivingRequests:
    """Requests that arrive at their times, whether earlier ones are answered or not.

    Args:
        targets: Whether the server knows their targets.
    """

    def __init__(self, requests: Requests, *, targets: bool) -> None:
        self._requests = requests
        self._targets = targets
        self._table = row_table(requests)
        self._at_ns = self._table.at_ns.tolist()
        self._numbers = np.arange(len(self._at_ns), dtype=np.int32)
        self._done_ns = np.full(len(self._at_ns), NEVER_NS)
        self._begun = 0

    def next_ns(self) -> int:
        """When the next row arrives."""
        return self._at_ns[self._begun] if self._begun < len(self._at_ns) else NEVER_NS

    def push(self, queue: RowQueue, now_ns: int) -> None:
        """Queue the rows that have arrived."""
        start, self._begun = self._begun, bisect_right(self._at_ns, now_ns, self._begun)
        rows, table = slice(start, self._begun), self._table
        at_ns = table.at_ns[rows]
        queue.push(
            0,
            self._numbers[rows],
            table.position[rows],
            at_ns,
            at_ns + _TIMEOUT_NS,
            target_ns=table.due_ns[rows] if self._targets else None,
            size=table.size[rows] if self._targets else None,
        )

    def answer(self, numbers: np.ndarray, now_ns: int) -> None:
        """Record the time of the answers."""
        self._done_ns[numbers] = now_ns

    def done_ns(self) -> np.ndarray:
        """When each request was answered, `int64[requests]`; `NEVER_NS` if it was not."""
        return answered_ns(self._requests, self._table, self._done_ns)


class WaitingCallers:
    """Callers that each send a row once they have the answer to their last one.

    Args:
        callers: Their number.
        seconds: How long they send rows.
        transport_ms: Time from an answer until the next row is queued.
    """

    def __init__(self, callers: int, seconds: float, transport_ms: float, rng: np.random.Generator) -> None:
        self._transport_ns = round(transport_ms * 1e6)
        self._until_ns = round(seconds * 1e9)
        starts_ns = np.sort(rng.integers(0, _START_NS, callers)).tolist()
        self._coming = deque((at_ns, np.array([number], np.int32)) for number, at_ns in enumerate(starts_ns))
        self._sent_ns = np.zeros(callers, np.int64)
        self._answers: list[tuple[int, np.ndarray]] = []

    def next_ns(self) -> int:
        """When the next row arrives."""
        return self._coming[0][0] if self._coming else NEVER_NS

    def push(self, queue: RowQueue, now_ns: int) -> None:
        """Queue the rows that have arrived."""
        while self._coming and self._coming[0][0] <= now_ns:
            at_ns, numbers = self._coming.popleft()
            self._sent_ns[numbers] = at_ns
            sent_ns = self._sent_ns[numbers]
            queue.push(0, numbers, np.zeros(len(numbers), np.int64), sent_ns, sent_ns + _TIMEOUT_NS)

    def answer(self, numbers: np.ndarray, now_ns: int) -> None:
        """Have the callers send their next rows."""
        self._answers.append((now_ns, now_ns + self._transport_ns - self._sent_ns[numbers]))
        if now_ns < self._until_ns:
            self._coming.append((now_ns + self._transport_ns, numbers))

    def took_ns(self, from_s: float) -> np.ndarray:
        """The times that callers waited, `int64[answers]`, of answers from this moment until the callers' end."""
        from_ns = round(from_s * 1e9)
        return np.concatenate([took for at_ns, took in self._answers if from_ns <= at_ns < self._until_ns])


class _Flight(NamedTuple):
    numbers: np.ndarray
    size: int
    ends_ns: int
    computes_ns: int


@dataclass(slots=True)
class StreamUse:
    """The work of the GPU.

    Attributes:
        end_ns: When the last batch ended.
        busy_ns: How long it computed.
        rows: Rows without padding.
    """

    end_ns: int = 0
    busy_ns: int = 0
    batches: int = 0
    rows: int = 0
    padding_rows: int = 0


class _Server:
    """The planning of a device process, and the GPU."""

    def __init__(self, device: StreamDevice, policy: BatchPolicy, jitter: Jitter) -> None:
        self.queue = RowQueue()
        self.flights: deque[_Flight] = deque()
        self.use = StreamUse()
        self.rests = False
        self._device, self._policy, self._jitter = device, policy, jitter
        self._stream = ComputeStream()
        self._times = ServiceTimes(policy.buckets)
        for size in policy.buckets:
            for _ in range(_KNOWN_TIMES):
                self._times.learn(size, round(device.compute_ns(size)))

    def plan(self, now_ns: int) -> int:
        """Begin a batch if it is time; return when to plan again if no row arrives before."""
        device, queue = self._device, self.queue
        self.rests = len(self.flights) >= device.depth
        if self.rests or not queue.rows:
            return NEVER_NS
        most_rows = self._policy.max_batch_rows
        look_ns = self._stream.look_ns(now_ns, queue.rows, most_rows, device.copy_ns)
        if now_ns < look_ns:
            # The server reads no rows meanwhile.
            self.rests = True
            return look_ns
        copied_ns = now_ns + self._stream.planning_ns + device.copy_ns(min(queue.rows, most_rows))
        begins_ns = max(copied_ns, self._stream.free_ns) + self._stream.returning_ns
        self._times.ahead_rows = sum(len(flight.numbers) for flight in self.flights)
        planned = schedule(queue, begins_ns, self._policy, self._times)
        if planned.batch:
            self._begin(np.concatenate([block.numbers for block in planned.batch]), now_ns)
            return now_ns
        return NEVER_NS if planned.check_again_ns is None else planned.check_again_ns - (begins_ns - now_ns)

    def _begin(self, numbers: np.ndarray, now_ns: int) -> None:
        device, use, rows = self._device, self.use, len(numbers)
        size = filled(rows, self._policy.buckets)
        begun_ns, copy_ns = now_ns + round(device.launch_ms * 1e6), device.copy_ns(rows)
        computes_ns = round(device.compute_ns(size) * self._jitter.factor())
        use.end_ns = max(begun_ns + copy_ns, use.end_ns + round(device.gap_ms * 1e6)) + computes_ns
        self._stream.learn_planning(begun_ns - now_ns)
        self._stream.begin(begun_ns, copy_ns, self._times.mean_ns(size))
        self.flights.append(_Flight(numbers, size, use.end_ns, computes_ns))
        use.busy_ns += computes_ns
        use.batches += 1
        use.rows += rows
        use.padding_rows += size - rows

    def end(self, now_ns: int) -> np.ndarray:
        """End the oldest batch; return its rows."""
        flight = self.flights.popleft()
        self._stream.end(now_ns, flight.computes_ns)
        self._times.learn(flight.size, flight.computes_ns)
        return flight.numbers


def run_stream(device: StreamDevice, policy: BatchPolicy, callers: Callers, jitter: Jitter) -> StreamUse:
    """Simulate a GPU until no more rows come.

    Args:
        policy: The settings of batching, with buckets.
        jitter: Lengthens batch times.
    """
    server, now_ns, plan_ns = _Server(device, policy, jitter), 0, NEVER_NS
    notice_ns = round(device.notice_ms * 1e6)
    while True:
        ends_ns = server.flights[0].ends_ns + notice_ns if server.flights else NEVER_NS
        then_ns = min(plan_ns, ends_ns, NEVER_NS if server.rests else callers.next_ns())
        if then_ns == NEVER_NS:
            return server.use
        now_ns = max(now_ns, then_ns)
        if ends_ns <= now_ns:
            callers.answer(server.end(now_ns), now_ns)
        callers.push(server.queue, now_ns)
        plan_ns = server.plan(now_ns)
