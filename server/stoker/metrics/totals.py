"""The sums of all pages, by metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from stoker.gpu.facts import GpuReading
from stoker.metrics import layout, table
from stoker.metrics.metric import HistogramTotals, Metric


class _Value:
    """The number of a metric of one word."""

    def __init__(self, metric: Metric) -> None:
        self._offset = metric.offset

    def __get__(self, totals: Totals | ModelTotals, _: type) -> int:
        return int(totals.words[self._offset])


def _counts(metric: Metric) -> Callable[[Any], dict[str, int]]:
    """Return a method that reads the numbers of a metric by the value of its label."""
    return lambda totals: {name: int(totals.words[word]) for (name,), word in metric.places.items()}


def _histogram(metric: Metric) -> Callable[[Any], HistogramTotals]:
    """Return a method that reads a histogram."""
    return lambda totals: metric.histogram(totals.words)


class Totals:
    """A snapshot of the sums of all pages."""

    restarts = _counts(table.RESTARTS)

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def model(self, slot: int) -> ModelTotals:
        """Return the totals of the model in a slot."""
        return ModelTotals(self.words[slot * table.SLOT_WORDS : (slot + 1) * table.SLOT_WORDS])

    @property
    def slots(self) -> np.ndarray:
        """The counters of all slots: `int64[MODEL_SLOTS, SLOT_WORDS]`."""
        words: np.ndarray = self.words[: layout.MODEL_SLOTS * table.SLOT_WORDS]
        return words.reshape(layout.MODEL_SLOTS, table.SLOT_WORDS)

    def on_demand(self) -> OnDemandTotals:
        """Return the counters of models that are loaded on demand."""
        words = self.words
        return OnDemandTotals(
            int(words[table.WAITS.offset]),
            int(words[table.WAIT_TIMES.offset]) / 1e6,
            int(words[table.LOADS.offset]),
            int(words[table.LOAD_TIMES.offset]) / 1e6,
            int(words[table.MODEL_MEMORY_BUDGET.offset]),
            int(words[table.MODEL_MEMORY.offset]),
            bool(words[table.MODEL_MEMORY_ON_GPUS.offset]),
            _counts(table.EVICTED)(self),
        )

    def gpus(self) -> list[GpuReading]:
        """The latest reading of each GPU."""
        rows = self.words[table.GPUS.offset : table.GPUS.end].reshape(layout.DEVICE_SLOTS, GpuReading.WORDS)
        readings = [GpuReading.from_words(index, row) for index, row in enumerate(rows.tolist())]
        return [reading for reading in readings if reading is not None]


class OnDemandTotals(Struct, frozen=True):
    """Models that are loaded on demand: requests that waited for a load, loads, memory, and evictions by reason.

    Attributes:
        budget_bytes: The budget of all devices; 0 if none is set.
        used_bytes: Memory of all device processes.
        on_gpus: Whether this is memory of GPUs.
    """

    waits: int
    wait_s: float
    loads: int
    load_s: float
    budget_bytes: int
    used_bytes: int
    on_gpus: bool
    evictions: dict[str, int]


class CacheTotals(Struct, frozen=True):
    """The response cache: lookups and their times, those of misses with the insertion; size and evictions."""

    hits: int
    misses: int
    hit_ns: int
    miss_ns: int
    size_bytes: int
    evictions: int


class ModelTotals:
    """A snapshot of one model's counters, summed over all processes; `stoker.metrics.table` describes each."""

    rows = _Value(table.ROWS)
    rows_in_flight = _Value(table.ROWS_IN_FLIGHT)
    queue_rows = _Value(table.QUEUED_ROWS)
    ready_replicas = _Value(table.READY_REPLICAS)
    batch_cap_rows = _Value(table.BATCH_CAP_ROWS)
    padding_rows = _Value(table.PADDING_ROWS)
    non_finite_rows = _Value(table.NON_FINITE_ROWS)
    flips = _Value(table.FLIPS)
    collected = _Value(table.COLLECTED)
    last_scored_ms = _Value(table.LAST_SCORED)
    rejections = _counts(table.REJECTED)
    dispatches = _counts(table.DISPATCHES)
    audits = _counts(table.AUDITED)
    comparisons = _counts(table.COMPARED)
    decisions = _counts(table.DECIDED)
    collection_dropped = _counts(table.COLLECTION_DROPPED)
    in_target_rows = _counts(table.IN_TARGET)
    answered_rows = _counts(table.ANSWERS)
    batch_rows = _histogram(table.BATCH_ROWS)
    expected_over_actual = _histogram(table.EXPECTED)
    turn_waits = _histogram(table.TURN_WAITS)

    def __init__(self, words: np.ndarray) -> None:
        self.words: Sequence[int] = words.tolist()

    def requests(self) -> dict[int, int]:
        """Answered requests by status; 0 stands for every status that is not in `STATUSES`."""
        return dict(zip(layout.STATUSES, table.REQUESTS.counts(self.words), strict=True))

    @property
    def dispatched_rows(self) -> int:
        """Rows of all batches so far."""
        return self.words[table.BATCH_ROWS.end - 1]

    @property
    def held_requests(self) -> tuple[int, int]:
        """Requests admitted or queued for admission now, and the limit of admitted ones; 0 without a limit."""
        held, limit = table.HELD_REQUESTS.counts(self.words)
        return held, limit

    def cache(self) -> CacheTotals:
        """Lookups, times and size of the response cache."""
        metrics = (
            table.CACHE_HITS,
            table.CACHE_MISSES,
            table.CACHE_HIT_TIMES,
            table.CACHE_MISS_TIMES,
            table.CACHE_BYTES,
            table.CACHE_EVICTIONS,
        )
        return CacheTotals(*(self.words[metric.offset] for metric in metrics))

    @property
    def row_compute_ns(self) -> int:
        """The compute time of each row's batch, summed over all rows."""
        return 1000 * self.words[table.ROW_COMPUTE.offset]

    def stage_ns(self) -> dict[str, tuple[int, int]]:
        """Number and sum in nanoseconds of the observed times, by stage."""
        width = table.STAGE_TIMES.width
        stages = {}
        for (stage,), word in table.STAGE_TIMES.places.items():
            *counts, total_us = self.words[word : word + width]
            stages[stage] = (sum(counts), 1000 * total_us)
        return stages

    def stage_seconds(self) -> dict[str, HistogramTotals]:
        """Times by stage, in seconds."""
        return {stage: table.STAGE_TIMES.histogram(self.words, stage) for stage in layout.STAGES}
