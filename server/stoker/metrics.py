"""Every metric, declared once; counters in shared memory, read at scrape.

All processes of a server map one memfd. It is divided into pages, one for each process, which alone writes
it; any frontend adds the pages up when it is scraped. So counting is an integer addition, needs no lock and
no message, and survives the process that did it: its successor takes the page over and counts on.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker.gpu.facts import GpuReading

__all__ = [
    "FIRST_DEVICE_PAGE",
    "MODEL_SLOTS",
    "SUPERVISOR_PAGE",
    "HistogramTotals",
    "MetricMemory",
    "MetricPage",
    "ModelMetrics",
    "ModelTotals",
    "Totals",
]

MODEL_SLOTS: Final = 64
PAGES: Final = 129
SUPERVISOR_PAGE: Final = PAGES - 1
FIRST_DEVICE_PAGE: Final = 64
DEVICE_SLOTS: Final = 16

STATUSES: Final = (200, 400, 401, 404, 405, 408, 413, 415, 422, 429, 431, 499, 500, 503, 504, 0)
"""Statuses counted by name; 0 stands for every other one. 499 is a caller who went away."""
REJECTIONS: Final = ("overloaded", "not_ready", "unauthorized", "malformed", "deadline", "body_too_large")
COLLECTION_DROPS: Final = ("queue_full", "write_failed")
"""Why the record of a sampled request was not kept: the writer did not keep up; the disk refused it."""
AUDITS: Final = ("passed", "failed", "skipped")
"""What came of an audit of a running batch; skipped if nothing could be said."""
REASONS: Final = ("full", "idle", "delay", "deadline")
"""Why a batch left: it was full; the device was free; company was waited for long enough; a deadline pressed."""
STAGES: Final = ("parse", "queue", "compute", "total")
STAGE_BOUNDS_S: Final = (
    5e-05, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
BATCH_BOUNDS_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)

_STAGE_BOUNDS_NS: Final = [round(bound * 1e9) for bound in STAGE_BOUNDS_S]
_MANY_ROWS: Final = 2048
_NO_CAP: Final = (1 << 63) - 1
_STAGE_BOUNDS_ARRAY: Final = np.array(_STAGE_BOUNDS_NS)


@dataclass(frozen=True)
class _Block:
    """A run of int64 words within a model slot."""

    offset: int
    words: int

    @property
    def end(self) -> int:
        return self.offset + self.words


# A histogram has one word for each bound, one for +Inf, and one for the sum. Sums of times are in microseconds: the
# times that rows wait add up to as many seconds a second as there are rows, and their nanoseconds would fill the word
# within days.
_STAGE_WORDS: Final = len(STAGE_BOUNDS_S) + 2
_BATCH_WORDS: Final = len(BATCH_BOUNDS_ROWS) + 2
_REQUESTS: Final = _Block(0, len(STATUSES))
_REJECTED: Final = _Block(_REQUESTS.end, len(REJECTIONS))
_ROWS: Final = _Block(_REJECTED.end, 1)
_IN_FLIGHT: Final = _Block(_ROWS.end, 1)
_QUEUED: Final = _Block(_IN_FLIGHT.end, 1)
_REASONS: Final = _Block(_QUEUED.end, len(REASONS))
_BATCH: Final = _Block(_REASONS.end, _BATCH_WORDS)
_STAGE: Final = _Block(_BATCH.end, _STAGE_WORDS * len(STAGES))
_READY_REPLICAS: Final = _Block(_STAGE.end, 1)
_COLLECTED: Final = _Block(_READY_REPLICAS.end, 1)
_COLLECTION_DROPPED: Final = _Block(_COLLECTED.end, len(COLLECTION_DROPS))
_LAST_SCORED: Final = _Block(_COLLECTION_DROPPED.end, 1)
# In microseconds, as the sums of stages.
_ROW_COMPUTE: Final = _Block(_LAST_SCORED.end, 1)
_PADDING: Final = _Block(_ROW_COMPUTE.end, 1)
_BATCH_CAP: Final = _Block(_PADDING.end, 1)
_AUDITS: Final = _Block(_BATCH_CAP.end, len(AUDITS))
_NON_FINITE: Final = _Block(_AUDITS.end, 1)
_SLOT_WORDS: Final = _NON_FINITE.end

# After the model slots, each page has words of its process and of the devices that it watches.
_RESTARTS: Final = _Block(MODEL_SLOTS * _SLOT_WORDS, 2)
_GPUS: Final = _Block(_RESTARTS.end, DEVICE_SLOTS * GpuReading.WORDS)
_BEATS: Final = _Block(_GPUS.end, 1)
_ACCEPT_FAILURES: Final = _Block(_BEATS.end, 1)
_PAGE_BYTES: Final = -(-_ACCEPT_FAILURES.end * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
_PAGES_BYTES: Final = PAGES * _PAGE_BYTES
_MEMORY_BYTES: Final = _PAGES_BYTES + mmap.PAGESIZE

_STATUS_INDEX: Final = {status: index for index, status in enumerate(STATUSES)}
_REJECTION_INDEX: Final = {reason: index for index, reason in enumerate(REJECTIONS)}
_REASON_INDEX: Final = {reason: index for index, reason in enumerate(REASONS)}
_SCORED_WORD: Final = _STATUS_INDEX[200]
_ROWS_WORD: Final = _ROWS.offset
_PARSE_STAGE, _QUEUE_STAGE, _COMPUTE_STAGE, _TOTAL_STAGE = range(len(STAGES))


class MetricMemory:
    """The shared memory of all pages.

    Behind the pages it says which of them a process has: to look at one that nobody has would take memory for it.
    """

    def __init__(self, fd: int) -> None:
        """Map a file that `create` made; `fd` may be closed afterwards."""
        self._memory = mmap.mmap(fd, _MEMORY_BYTES)
        words = np.frombuffer(self._memory, np.int64)
        self._pages = words[: _PAGES_BYTES // 8].reshape(PAGES, -1)
        self._taken = words[_PAGES_BYTES // 8 :][:PAGES]

    @staticmethod
    def create() -> int:
        """Make the shared-memory file and return its file descriptor."""
        fd = os.memfd_create("stoker-metrics", os.MFD_CLOEXEC)
        os.truncate(fd, _MEMORY_BYTES)
        return fd

    def page(self, index: int) -> MetricPage:
        """The page that the process with this index writes."""
        if not 0 <= index < PAGES:
            raise ValueError(f"there are {PAGES} metric pages, got index {index}")
        self._taken[index] = 1
        return MetricPage(memoryview(self._memory)[index * _PAGE_BYTES :][:_PAGE_BYTES].cast("q"))

    def totals(self) -> Totals:
        """The sum of all pages at this moment; of times the latest, of caps the lowest."""
        words = self._pages[np.flatnonzero(self._taken)]
        totals = words.sum(axis=0)
        latest = _LAST_SCORED.offset + np.arange(MODEL_SLOTS) * _SLOT_WORDS
        totals[latest] = words[:, latest].max(axis=0, initial=0)
        cap = _BATCH_CAP.offset + np.arange(MODEL_SLOTS) * _SLOT_WORDS
        # 0 is of pages whose process has none.
        caps = np.where(words[:, cap], words[:, cap], _NO_CAP).min(axis=0, initial=_NO_CAP)
        totals[cap] = np.where(caps == _NO_CAP, 0, caps)
        return Totals(totals)

    def clear_model(self, slot: int) -> None:
        """Zero the counters of a slot in all pages; no process may write them any more."""
        for index in np.flatnonzero(self._taken):
            self._pages[index, slot * _SLOT_WORDS : (slot + 1) * _SLOT_WORDS] = 0


class MetricPage:
    """One process's page. Only that process writes it."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def model(self, slot: int) -> ModelMetrics:
        """Counters of the model with this slot."""
        if not 0 <= slot < MODEL_SLOTS:
            raise ValueError(f"at most {MODEL_SLOTS} models can be served at once")
        return ModelMetrics(self._words[slot * _SLOT_WORDS : (slot + 1) * _SLOT_WORDS])

    def count_restart(self, what: str) -> None:
        """Count a restart of a `device` or `frontend` process."""
        self._words[_RESTARTS.offset + ("device", "frontend").index(what)] += 1

    def count_accept_failure(self) -> None:
        """Count a connection that was not served for lack of descriptors."""
        self._words[_ACCEPT_FAILURES.offset] += 1

    def beat(self) -> None:
        """Show that the event loop of the process turns."""
        self._words[_BEATS.offset] += 1

    @property
    def beats(self) -> int:
        """How often it has shown that, over all processes that have had the page."""
        return int(self._words[_BEATS.offset])

    def set_gpus(self, readings: Sequence[GpuReading]) -> None:
        """Set the gauges of all GPUs; of those that were not read there are none, and none of the 17th on."""
        words = array("q", bytes(8 * _GPUS.words))
        for reading in readings:
            if reading.index < DEVICE_SLOTS:
                start = reading.index * GpuReading.WORDS
                words[start : start + GpuReading.WORDS] = array("q", reading.to_words())
        self._words[_GPUS.offset : _GPUS.end] = memoryview(words)


class ModelMetrics:
    """Counters of one model in one process. Times are nanoseconds."""

    __slots__ = ("_parse_ns", "_queue_ns", "_queue_rows", "_rest_ns", "_total_ns", "_words")

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._parse_ns: list[int] = []
        self._total_ns: list[int] = []
        self._queue_ns: list[np.ndarray] = []
        self._queue_rows = 0
        self._rest_ns = [0] * len(STAGES)
        """What the sum of each stage lacks: less than the microsecond in which it is counted."""

    def clear_gauges(self) -> None:
        """Zero what describes the present; a process does this when it takes a page over."""
        self._words[_IN_FLIGHT.offset] = self._words[_QUEUED.offset] = self._words[_BATCH_CAP.offset] = 0

    def count_request(self, status: int) -> None:
        """Count an answered request."""
        self._words[_STATUS_INDEX.get(status, len(STATUSES) - 1)] += 1

    def count_rejection(self, reason: str) -> None:
        """Count a request that was refused before the device; `reason` is one of `REJECTIONS`."""
        self._words[_REJECTED.offset + _REJECTION_INDEX[reason]] += 1

    def note_scored(self, rows: int, parse_ns: int, total_ns: int) -> None:
        """Count a request that is about to be answered with 200, and note its times."""
        self.count_scored(1, rows)
        self.note_times(parse_ns, total_ns)

    def count_scored(self, requests: int, rows: int) -> None:
        """Count requests, and their rows, before they are answered with 200: who has an answer finds it counted."""
        words = self._words
        words[_SCORED_WORD] += requests
        words[_ROWS_WORD] += rows

    def note_times(self, parse_ns: int, total_ns: int) -> None:
        """Note the times of a request that `count_scored` has counted; `flush` counts them.

        Two list appends cost a sixth of two histogram observations, and this happens once a request.
        """
        self._parse_ns.append(parse_ns)
        self._total_ns.append(total_ns)

    def flush(self) -> None:
        """Count the times that were noted; a frontend calls this every few dozen milliseconds."""
        if not self._parse_ns:
            return
        self._words[_LAST_SCORED.offset] = time.time_ns() // 1_000_000
        self._observe_many(_PARSE_STAGE, np.array(self._parse_ns))
        self._observe_many(_TOTAL_STAGE, np.array(self._total_ns))
        self._parse_ns.clear()
        self._total_ns.clear()

    def set_in_flight_rows(self, rows: int) -> None:
        """Set how many rows this frontend has leased."""
        self._words[_IN_FLIGHT.offset] = rows

    def set_queued_rows(self, rows: int) -> None:
        """Set how many rows wait in the device process."""
        self._words[_QUEUED.offset] = rows

    def set_batch_cap_rows(self, rows: int) -> None:
        """Set how many rows a batch may have now."""
        self._words[_BATCH_CAP.offset] = rows

    def count_padding(self, rows: int) -> None:
        """Count rows with which batches were filled up to their buckets."""
        self._words[_PADDING.offset] += rows

    def count_audit(self, result: str) -> None:
        """Count an audit of a running batch; `result` is one of `AUDITS`."""
        self._words[_AUDITS.offset + AUDITS.index(result)] += 1

    def count_non_finite(self, rows: int) -> None:
        """Count rows with answers that are not finite though all that they hold is."""
        self._words[_NON_FINITE.offset] += rows

    def set_ready_replicas(self, count: int) -> None:
        """Set how many of the model's replicas are loaded; the supervisor does."""
        self._words[_READY_REPLICAS.offset] = count

    def count_collected(self, records: int) -> None:
        """Count records of requests that were written."""
        self._words[_COLLECTED.offset] += records

    def count_collection_dropped(self, reason: str, records: int) -> None:
        """Count records of sampled requests that were not written; `reason` is one of `COLLECTION_DROPS`.

        Each reason is counted by one thread alone.
        """
        self._words[_COLLECTION_DROPPED.offset + COLLECTION_DROPS.index(reason)] += records

    def _observe(self, stage: int, elapsed_ns: int) -> None:
        start = _STAGE.offset + stage * _STAGE_WORDS
        self._words[start + bisect_left(_STAGE_BOUNDS_NS, elapsed_ns)] += 1
        self._add_time(stage, elapsed_ns)

    def note_queued(self, elapsed_ns: np.ndarray) -> None:
        """Note how long each row of a batch has waited, `int64[rows]`; `flush_queued` counts it."""
        self._queue_ns.append(elapsed_ns)
        self._queue_rows += len(elapsed_ns)
        if self._queue_rows >= _MANY_ROWS:
            self.flush_queued()

    @property
    def notes(self) -> bool:
        """Whether something was noted that is not counted yet."""
        return bool(self._queue_rows)

    def flush_queued(self) -> None:
        """Count what `note_queued` noted; a device calls this when it has nothing else to do."""
        if self._queue_rows:
            self._observe_many(_QUEUE_STAGE, np.concatenate(self._queue_ns))
            self._queue_ns.clear()
            self._queue_rows = 0

    def _observe_many(self, stage: int, elapsed_ns: np.ndarray) -> None:
        start = _STAGE.offset + stage * _STAGE_WORDS
        counts = np.bincount(_STAGE_BOUNDS_ARRAY.searchsorted(elapsed_ns), minlength=_STAGE_WORDS - 1)
        for index in np.flatnonzero(counts).tolist():
            self._words[start + index] += int(counts[index])
        self._add_time(stage, int(elapsed_ns.sum()))

    def _add_time(self, stage: int, elapsed_ns: int) -> None:
        elapsed_us, self._rest_ns[stage] = divmod(self._rest_ns[stage] + elapsed_ns, 1000)
        self._words[_STAGE.offset + (stage + 1) * _STAGE_WORDS - 1] += elapsed_us

    def observe_batch(self, rows: int, reason: str, elapsed_ns: int) -> None:
        """Count one dispatched batch: its size, why it left, and its compute time."""
        words = self._words
        words[_REASONS.offset + _REASON_INDEX[reason]] += 1
        words[_BATCH.offset + bisect_left(BATCH_BOUNDS_ROWS, rows)] += 1
        words[_BATCH.offset + _BATCH_WORDS - 1] += rows
        words[_ROW_COMPUTE.offset] += rows * elapsed_ns // 1000
        self._observe(_COMPUTE_STAGE, elapsed_ns)


class Totals:
    """A snapshot of the sums of all pages."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def model(self, slot: int) -> ModelTotals:
        """The totals of the model with this slot."""
        return ModelTotals(self._words[slot * _SLOT_WORDS : (slot + 1) * _SLOT_WORDS])

    def restarts(self) -> dict[str, int]:
        """Restarts of processes, by kind."""
        return dict(
            zip(("device", "frontend"), self._words[_RESTARTS.offset : _RESTARTS.end].tolist(), strict=True)
        )

    @property
    def accept_failures(self) -> int:
        """Connections that were not served for lack of descriptors."""
        return int(self._words[_ACCEPT_FAILURES.offset])

    def gpus(self) -> list[GpuReading]:
        """What was last read of each GPU."""
        rows = self._words[_GPUS.offset : _GPUS.end].reshape(DEVICE_SLOTS, GpuReading.WORDS)
        readings = [GpuReading.from_words(index, row) for index, row in enumerate(rows.tolist())]
        return [reading for reading in readings if reading is not None]


@dataclass(frozen=True, slots=True)
class HistogramTotals:
    """Counts per bucket (the last one is +Inf, not cumulative) and the sum of the observations."""

    bounds: Sequence[float]
    counts: list[int]
    sum: float


class ModelTotals:
    """A snapshot of one model's counters, summed over all processes."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words.tolist()

    def requests(self) -> dict[int, int]:
        """Answered requests by status; 0 stands for every status that is not in `STATUSES`."""
        return dict(zip(STATUSES, self._words[_REQUESTS.offset : _REQUESTS.end], strict=True))

    def rejections(self) -> dict[str, int]:
        """Requests refused before the device, by reason."""
        return dict(zip(REJECTIONS, self._words[_REJECTED.offset : _REJECTED.end], strict=True))

    def dispatches(self) -> dict[str, int]:
        """Batches by the reason why they left."""
        return dict(zip(REASONS, self._words[_REASONS.offset : _REASONS.end], strict=True))

    @property
    def rows(self) -> int:
        """Rows of answered requests so far."""
        return int(self._words[_ROWS.offset])

    @property
    def rows_in_flight(self) -> int:
        """Rows leased by requests now."""
        return int(self._words[_IN_FLIGHT.offset])

    @property
    def queue_rows(self) -> int:
        """Rows that wait in the device process now."""
        return int(self._words[_QUEUED.offset])

    @property
    def ready_replicas(self) -> int:
        """Replicas that are loaded now."""
        return int(self._words[_READY_REPLICAS.offset])

    @property
    def batch_cap_rows(self) -> int:
        """Most rows that a batch may have now, in the process that allows the fewest; 0 if none serves it."""
        return int(self._words[_BATCH_CAP.offset])

    @property
    def padding_rows(self) -> int:
        """Rows with which batches were filled up to their buckets."""
        return int(self._words[_PADDING.offset])

    def audits(self) -> dict[str, int]:
        """Audits of running batches by what came of them."""
        return dict(zip(AUDITS, self._words[_AUDITS.offset : _AUDITS.end], strict=True))

    @property
    def non_finite_rows(self) -> int:
        """Rows with answers that are not finite though all that they hold is."""
        return int(self._words[_NON_FINITE.offset])

    @property
    def collected(self) -> int:
        """Records of requests that were written."""
        return int(self._words[_COLLECTED.offset])

    @property
    def last_scored_ms(self) -> int:
        """When a request was last answered with 200, in milliseconds since 1970; 0 for never."""
        return int(self._words[_LAST_SCORED.offset])

    @property
    def row_compute_ns(self) -> int:
        """The compute time of each row's batch, summed over all rows."""
        return 1000 * int(self._words[_ROW_COMPUTE.offset])

    def stage_ns(self) -> dict[str, tuple[int, int]]:
        """How many times were observed of each stage, and their sum in nanoseconds."""
        stages = {}
        for index, stage in enumerate(STAGES):
            *counts, total = self._words[_STAGE.offset + index * _STAGE_WORDS :][:_STAGE_WORDS]
            stages[stage] = (sum(counts), 1000 * total)
        return stages

    def collection_dropped(self) -> dict[str, int]:
        """Records of sampled requests that were not written, by reason."""
        dropped = self._words[_COLLECTION_DROPPED.offset : _COLLECTION_DROPPED.end]
        return dict(zip(COLLECTION_DROPS, dropped, strict=True))

    def batch_rows(self) -> HistogramTotals:
        """Sizes of the batches, in rows."""
        *counts, total = self._words[_BATCH.offset : _BATCH.end]
        return HistogramTotals(BATCH_BOUNDS_ROWS, counts, total)

    def stage_seconds(self) -> dict[str, HistogramTotals]:
        """Times by stage, in seconds."""
        stages = {}
        for index, stage in enumerate(STAGES):
            *counts, total = self._words[_STAGE.offset + index * _STAGE_WORDS :][:_STAGE_WORDS]
            stages[stage] = HistogramTotals(STAGE_BOUNDS_S, counts, total / 1e6)
        return stages
