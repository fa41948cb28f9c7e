"""The counters of one model in one process."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import numpy as np

from stoker.metrics import layout, table
from stoker.metrics.metric import Metric
from stoker.settings.choices import TIERS

if TYPE_CHECKING:
    from stoker.metrics.journal import Remarks

_STAGE_BOUNDS_NS: Final = [round(bound * 1e9) for bound in layout.STAGE_BOUNDS_S]
_STAGE_BOUNDS_ARRAY: Final = np.array(_STAGE_BOUNDS_NS)
_MANY_ROWS: Final = 2048
_LATEST_SHARE: Final = 0.2
# Code that runs for each request or batch reads plain numbers, not the table.
_STATUS_WORDS: Final = {status: table.REQUESTS.offset + place for place, status in enumerate(layout.STATUSES)}
_OTHER_WORD: Final = _STATUS_WORDS[0]
_SCORED_WORD: Final = _STATUS_WORDS[200]
_REJECTION_WORDS: Final = {reason: table.REJECTED.word(reason) for reason in layout.REJECTIONS}
_REFUSAL_WORDS: Final = {reason: table.REFUSED.word(reason, TIERS[0]) for reason in layout.REFUSALS}
_REASON_WORDS: Final = {reason: word for (reason,), word in table.DISPATCHES.places.items()}
_ROWS_WORD: Final = table.ROWS.offset
_IN_FLIGHT_WORD: Final = table.ROWS_IN_FLIGHT.offset
_QUEUED_WORD: Final = table.QUEUED_ROWS.offset
_HELD_REQUESTS_WORD: Final = table.HELD_REQUESTS.offset
_BUSY_WORD: Final = table.BUSY.offset
_PADDING_WORD: Final = table.PADDING_ROWS.offset
_ROW_COMPUTE_WORD: Final = table.ROW_COMPUTE.offset
_HIT_WORDS: Final = (table.CACHE_HITS.offset, table.CACHE_HIT_TIMES.offset)
_MISS_WORDS: Final = (table.CACHE_MISSES.offset, table.CACHE_MISS_TIMES.offset)
_BATCH_TIMES_WORD: Final = table.BATCH_TIMES.offset
_BATCH_SIZES_WORD: Final = table.BATCH_SIZES.offset
_STAGE_WORD: Final = table.STAGE_TIMES.offset
_STAGE_WIDTH: Final = table.STAGE_TIMES.width
_BATCH_WORD: Final = table.BATCH_ROWS.offset
_BATCH_SUM_WORD: Final = table.BATCH_ROWS.end - 1
_PARSE_STAGE, _QUEUE_STAGE, _COMPUTE_STAGE, _TOTAL_STAGE = range(len(layout.STAGES))
_GAUGE_WORDS: Final = table.SLOT.words_that(lambda metric: metric.kind == "gauge" and not metric.is_lasting)


class ModelMetrics:
    """Counters of one model in one process: its slot in the page of the process. Times are nanoseconds."""

    __slots__ = (
        "_callers",
        "_parse_ns",
        "_queue_ns",
        "_queue_rows",
        "_rest_ns",
        "_total_ns",
        "_words",
        "limit",
        "remarks",
    )

    def __init__(self, words: memoryview, callers: CallerCounts) -> None:
        self._words, self._callers = words, callers
        self.limit = 0
        """The number in the counters of callers under which the model's group counts; 0 without a limit."""
        self.remarks: Remarks | None = None
        """Recorder of remarkable requests; None in processes that record none."""
        self._parse_ns: list[int] = []
        self._total_ns: list[int] = []
        self._queue_ns: list[np.ndarray] = []
        self._queue_rows = 0
        self._rest_ns = [0] * len(layout.STAGES)
        """The part of each stage's time that its sum does not include yet, below one microsecond."""

    def move(self, words: memoryview) -> None:
        """Count in another slot from now on; its gauges are cleared."""
        self.flush()
        self._words = words
        self.clear_gauges()

    def clear_gauges(self) -> None:
        """Zero the gauges; a process does this when it takes over the page of a predecessor."""
        for word in _GAUGE_WORDS:
            self._words[word] = 0

    @property
    def run_began(self) -> memoryview:
        """One word: when the model's present run started, in nanoseconds; 0 if none runs."""
        return self._words[table.RUN_BEGAN.offset : table.RUN_BEGAN.end]

    def count_request(self, status: int) -> None:
        """Count an answered request."""
        self._words[_STATUS_WORDS.get(status, _OTHER_WORD)] += 1

    def count_rejection(self, reason: str) -> None:
        """Count a request that was rejected before it reached the device; `reason` is one of `REJECTIONS`."""
        self._words[_REJECTION_WORDS[reason]] += 1

    def count_refusal(self, reason: str, tier: int) -> None:
        """Count a request that was refused with a time to retry; `reason` is one of `REFUSALS`."""
        self._words[_REFUSAL_WORDS[reason] + tier] += 1

    def note_scored(self, rows: int, parse_ns: int, total_ns: int) -> None:
        """Count a request that is about to be answered with 200, and record its times."""
        self.count_scored(1, rows)
        self.note_times(parse_ns, total_ns)

    def count_scored(self, requests: int, rows: int) -> None:
        """Count requests and rows before they are answered with 200, so that each answered one is counted."""
        words = self._words
        words[_SCORED_WORD] += requests
        words[_ROWS_WORD] += rows

    def note_times(self, parse_ns: int, total_ns: int) -> None:
        """Record the times of a request that `count_scored` has counted; `flush` adds them to the histograms.

        Two list appends cost a sixth of two histogram observations, and this runs once per request.
        """
        self._parse_ns.append(parse_ns)
        self._total_ns.append(total_ns)

    def flush(self) -> None:
        """Add the recorded times to the histograms; a frontend calls this every few dozen milliseconds."""
        if not self._parse_ns:
            return
        self._words[table.LAST_SCORED.offset] = time.time_ns() // 1_000_000
        self._observe_many(_PARSE_STAGE, np.array(self._parse_ns))
        self._observe_many(_TOTAL_STAGE, np.array(self._total_ns))
        self._parse_ns.clear()
        self._total_ns.clear()
        if self.remarks is not None:
            self.remarks.begin_anew()

    def set_in_flight_rows(self, rows: int) -> None:
        """Set the number of rows that this frontend has leased."""
        self._words[_IN_FLIGHT_WORD] = rows

    def set_queued_rows(self, rows: int) -> None:
        """Set the number of rows queued in the device process."""
        self._words[_QUEUED_WORD] = rows

    def set_held_requests(self, requests: int, limit: int) -> None:
        """Set how many requests this frontend has admitted or queued for admission, and its limit."""
        start = _HELD_REQUESTS_WORD
        self._words[start], self._words[start + 1] = requests, limit

    def learn_batch_time(self, rows: int, elapsed_ns: int) -> None:
        """Learn that a batch of `rows`, padding included, occupied the device for `elapsed_ns`.

        For each power of two of rows a moving average is kept, in which the latest batch has a weight of one fifth.
        """
        word = _BATCH_TIMES_WORD + rows.bit_length()
        mean_ns = self._words[word]
        place = word - _BATCH_TIMES_WORD + _BATCH_SIZES_WORD
        if mean_ns:
            self._words[word] = mean_ns + int(_LATEST_SHARE * (elapsed_ns - mean_ns))
            mean_rows = self._words[place]
            self._words[place] = mean_rows + int(_LATEST_SHARE * (1000 * rows - mean_rows))
        else:
            self._words[word], self._words[place] = elapsed_ns, 1000 * rows

    def set_batch_cap_rows(self, rows: int) -> None:
        """Set the current limit of rows per batch."""
        self._words[table.BATCH_CAP_ROWS.offset] = rows

    def count_padding(self, rows: int) -> None:
        """Count padding rows, which fill batches up to their buckets."""
        self._words[_PADDING_WORD] += rows

    def count_audit(self, result: str) -> None:
        """Count an audit of a running batch; `result` is one of `AUDITS`."""
        self._words[table.AUDITED.word(result)] += 1

    def count_non_finite(self, rows: int) -> None:
        """Count rows with NaN or infinite answers to finite inputs."""
        self._words[table.NON_FINITE_ROWS.offset] += rows

    def count_answers(self, tier: int, rows: int, in_time: int) -> None:
        """Count answered rows of a model with targets, and those of them that were in time."""
        self._words[table.IN_TARGET.offset + tier] += in_time
        self._words[table.ANSWERS.offset + tier] += rows

    def observe_expectation(self, expected_over_actual: float) -> None:
        """Observe the ratio of a batch's expected to its actual time."""
        words = self._words
        words[table.EXPECTED.offset + bisect_left(layout.EXPECTED_OVER_ACTUAL, expected_over_actual)] += 1
        words[table.EXPECTED.end - 1] += round(1000 * expected_over_actual)

    def count_cache(self, elapsed_ns: int, *, found: bool) -> None:
        """Count a lookup in the response cache."""
        count, time = _HIT_WORDS if found else _MISS_WORDS
        self._words[count] += 1
        self._words[time] += elapsed_ns

    def count_cache_insertion(self, elapsed_ns: int) -> None:
        """Count the time to insert an answer into the response cache after a miss; it is part of the miss's time."""
        self._words[_MISS_WORDS[1]] += elapsed_ns

    def note_cache_size(self, size_bytes: int, evicted: int) -> None:
        """Set the size of this frontend's response cache, and count evicted answers."""
        self._words[table.CACHE_BYTES.offset] = size_bytes
        self._words[table.CACHE_EVICTIONS.offset] += evicted

    def count_busy(self, elapsed_ns: int, caller_rows: Mapping[int, int]) -> None:
        """Count device time of a batch by caller, then in total; `caller_rows` has the rows by caller number."""
        self._callers.count_times(elapsed_ns, caller_rows, self.limit)
        self._words[_BUSY_WORD] += elapsed_ns

    def observe_turn_wait(self, elapsed_ns: int) -> None:
        """Observe how long a batch waited for its turn on the device."""
        self._observe_time(table.TURN_WAITS, elapsed_ns)

    def observe_first_response(self, elapsed_ns: int) -> None:
        """Observe the time from the end of a request's body to the first piece of its answer."""
        self._observe_time(table.FIRST_RESPONSES, elapsed_ns)

    def count_sequences(self, live: int, started: int, ended: int, expired: int) -> None:
        """Set the number of live sequences, and count those that were started, ended, or expired."""
        self._words[table.SEQUENCES.offset] = live
        self._words[table.SEQUENCES_STARTED.offset] += started
        self._words[table.SEQUENCES_ENDED.word("end")] += ended
        self._words[table.SEQUENCES_ENDED.word("idle")] += expired

    def _observe_time(self, histogram: Metric, elapsed_ns: int) -> None:
        self._words[histogram.offset + bisect_left(_STAGE_BOUNDS_NS, elapsed_ns)] += 1
        self._words[histogram.end - 1] += elapsed_ns // 1000

    def count_comparison(self, result: str, *, flipped: bool) -> None:
        """Count a request whose answers by this version and another one were compared, by one of `COMPARISONS`."""
        self._words[table.COMPARED.word(result)] += 1
        self._words[table.FLIPS.offset] += flipped

    def count_decision(self, decision: str) -> None:
        """Count a decision on this version, one of `DECISIONS`; called by the supervisor."""
        self._words[table.DECIDED.word(decision)] += 1

    def set_ready_replicas(self, count: int) -> None:
        """Set the number of loaded replicas; called by the supervisor, for pipelines by each frontend."""
        self._words[table.READY_REPLICAS.offset] = count

    def count_collected(self, records: int) -> None:
        """Count collected requests whose records were written."""
        self._words[table.COLLECTED.offset] += records

    def count_collection_dropped(self, reason: str, records: int) -> None:
        """Count records of sampled requests that were dropped; `reason` is one of `COLLECTION_DROPS`.

        Each reason must be counted by a single thread.
        """
        self._words[table.COLLECTION_DROPPED.word(reason)] += records

    def _observe(self, stage: int, elapsed_ns: int) -> None:
        start = _STAGE_WORD + stage * _STAGE_WIDTH
        self._words[start + bisect_left(_STAGE_BOUNDS_NS, elapsed_ns)] += 1
        self._add_time(stage, elapsed_ns)

    def note_queued(self, elapsed_ns: np.ndarray) -> None:
        """Record how long each row of a batch was queued, `int64[rows]`; `flush_queued` adds it to the histogram."""
        self._queue_ns.append(elapsed_ns)
        self._queue_rows += len(elapsed_ns)
        if self._queue_rows >= _MANY_ROWS:
            self.flush_queued()

    @property
    def notes(self) -> bool:
        """Whether recorded queue times are not yet in the histogram."""
        return bool(self._queue_rows)

    def flush_queued(self) -> None:
        """Add recorded queue times to the histogram; called when the device is idle."""
        if self._queue_rows:
            self._observe_many(_QUEUE_STAGE, np.concatenate(self._queue_ns))
            self._queue_ns.clear()
            self._queue_rows = 0

    def _observe_many(self, stage: int, elapsed_ns: np.ndarray) -> None:
        start = _STAGE_WORD + stage * _STAGE_WIDTH
        counts = np.bincount(_STAGE_BOUNDS_ARRAY.searchsorted(elapsed_ns), minlength=_STAGE_WIDTH - 1)
        for index in np.flatnonzero(counts).tolist():
            self._words[start + index] += int(counts[index])
        self._add_time(stage, int(elapsed_ns.sum()))

    def _add_time(self, stage: int, elapsed_ns: int) -> None:
        elapsed_us, self._rest_ns[stage] = divmod(self._rest_ns[stage] + elapsed_ns, 1000)
        self._words[_STAGE_WORD + (stage + 1) * _STAGE_WIDTH - 1] += elapsed_us

    def observe_batch(self, rows: int, reason: str, elapsed_ns: int) -> None:
        """Count one dispatched batch: its size, the reason for its dispatch, and its compute time."""
        words = self._words
        words[_REASON_WORDS[reason]] += 1
        words[_BATCH_WORD + bisect_left(layout.BATCH_BOUNDS_ROWS, rows)] += 1
        words[_BATCH_SUM_WORD] += rows
        words[_ROW_COMPUTE_WORD] += rows * elapsed_ns // 1000
        self._observe(_COMPUTE_STAGE, elapsed_ns)


class CallerCounts:
    """The counters of one process by caller number, in its page; from `CALLERS` on, by limit of models."""

    __slots__ = ("_counting", "_rows", "_times_ns")

    def __init__(self, words: memoryview) -> None:
        self._rows = words[table.CALLER_ROWS.offset : table.CALLER_ROWS.end]
        self._times_ns = words[table.CALLER_TIMES.offset : table.CALLER_TIMES.end]
        # Each model of a device process has a thread of its own that counts.
        self._counting = threading.Lock()

    def count_times(self, elapsed_ns: int, rows: Mapping[int, int], limit: int = 0) -> None:
        """Attribute the device time of a batch to callers, in proportion to `rows` by caller number.

        Args:
            limit: The number of a limit of models that has all of it; 0 for none.
        """
        total = sum(rows.values())
        with self._counting:
            for caller, count in rows.items():
                self._times_ns[caller] += elapsed_ns * count // total
            if limit:
                self._times_ns[limit] += elapsed_ns

    def count_rows(self, caller: int, rows: int) -> None:
        """Count admitted rows of a caller; a negative number takes rows back. Called by one thread of a frontend."""
        self._rows[caller] += rows


class CallerUsage:
    """Counts per caller, summed over the pages of all processes, `int64[pages, words]`."""

    __slots__ = ("_pages", "_pages_in_use", "_seen")

    def __init__(self, pages: np.ndarray, pages_in_use: Callable[[], np.ndarray]) -> None:
        self._pages = pages
        self._pages_in_use = pages_in_use
        self._seen = pages_in_use()

    def include_new_processes(self) -> None:
        """Include the pages of processes that have started since the last call."""
        self._seen = self._pages_in_use()

    def rows(self, caller: int) -> int:
        """Number of rows of a caller that frontends have admitted."""
        return int(self._pages[self._seen, table.CALLER_ROWS.offset + caller].sum())

    def device_ns(self, caller: int) -> int:
        """Device time of a caller's rows, in nanoseconds."""
        return int(self._pages[self._seen, table.CALLER_TIMES.offset + caller].sum())

    def all_rows(self) -> np.ndarray:
        """Number of rows that frontends have admitted, by caller: `int64[callers]`."""
        return self._sum(table.CALLER_ROWS)

    def all_device_ns(self) -> np.ndarray:
        """Device time in nanoseconds, by caller: `int64[callers]`."""
        return self._sum(table.CALLER_TIMES)

    def _sum(self, block: Metric) -> np.ndarray:
        total: np.ndarray = self._pages[self._seen, block.offset : block.end].sum(axis=0)
        return total


_DISPATCH_REASONS: Final = (*layout.REASONS, *layout.TARGET_REASONS)
_ROWS_BITS: Final = 20
"""No batch has more than 65,536 rows."""
_ROWS_MASK: Final = (1 << _ROWS_BITS) - 1
# 0 means that nothing is known of the batch.
_CODES: Final = {reason: code << 3 * _ROWS_BITS for code, reason in enumerate(_DISPATCH_REASONS, 1)}
_LONE: Final = {reason: code | 1 << 2 * _ROWS_BITS | 1 << _ROWS_BITS | 1 for reason, code in _CODES.items()}


class _Rows(Protocol):
    """Rows of a batch that came from one frontend."""

    @property
    def position(self) -> np.ndarray:
        """The positions of the rows within their requests, `int64[rows]`; a request begins at 0."""


def packed_facts(rows: int, size: int, reason: str, lots: Iterable[_Rows]) -> int:
    """Pack the facts of a batch, with padding of `size` rows, into one positive int64."""
    if size == 1:
        return _LONE[reason]
    requests = rows
    for lot in lots:
        requests -= int(np.count_nonzero(lot.position))
    # A batch that only continues a request begins none.
    return _CODES[reason] | (requests or 1) << 2 * _ROWS_BITS | size << _ROWS_BITS | rows


class BatchFacts(NamedTuple):
    """A batch, as one of its rows describes it; `requests` is how many began in it, `left` why it was dispatched."""

    rows: int
    padding_rows: int
    requests: int
    left: str

    @classmethod
    def unpacked(cls, word: int) -> Self | None:
        """Inverse of `packed_facts`; None if nothing is known of the batch."""
        code = word >> 3 * _ROWS_BITS
        if not 0 < code <= len(_DISPATCH_REASONS):
            return None
        requests, size, rows = (word >> place * _ROWS_BITS & _ROWS_MASK for place in (2, 1, 0))
        return cls(rows, size - rows, requests, _DISPATCH_REASONS[code - 1])
