"""The sums of all pages, by metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any, TypeVar

import numpy as np

from stoker.gpu.facts import GpuReading
from stoker.metrics import layout
from stoker.settings.choices import TIERS

_Name = TypeVar("_Name", str, int)


class _Words:
    """Words of the layout, read by block."""

    words: Any

    def values(self, block: layout.Block) -> list[int]:
        """Return the numbers of a block."""
        return list(map(int, self.words[block.offset : block.end]))


def _counts(names: Iterable[_Name], block: layout.Block) -> Callable[[_Words], dict[_Name, int]]:
    """Return a method that reads the counts of a block by name."""

    def read(words: _Words) -> dict[_Name, int]:
        return dict(zip(names, words.values(block), strict=True))

    return read


class _Value:
    """The number of a block of one word."""

    def __init__(self, block: layout.Block) -> None:
        self._offset = block.offset

    def __get__(self, totals: _Words, _: type) -> int:
        return int(totals.words[self._offset])


class Totals(_Words):
    """A snapshot of the sums of all pages."""

    accept_failures = _Value(layout.ACCEPT_FAILURES_BLOCK)
    """Connections that were not accepted for lack of file descriptors."""
    keys_generation = _Value(layout.KEYS_GENERATION_BLOCK)
    """The generation of the current keys; 0 if keys have none."""
    restarts = _counts(("device", "frontend"), layout.RESTARTS_BLOCK)
    """Restarts of processes, by kind of process."""
    traces = _counts(("sent", "dropped"), layout.TRACES_BLOCK)
    """Traced requests, by whether their spans were sent or dropped."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def model(self, slot: int) -> ModelTotals:
        """Return the totals of the model in a slot."""
        return ModelTotals(self.words[slot * layout.SLOT_WORDS : (slot + 1) * layout.SLOT_WORDS])

    @property
    def slots(self) -> np.ndarray:
        """The counters of all slots: `int64[MODEL_SLOTS, SLOT_WORDS]`."""
        words: np.ndarray = self.words[: layout.MODEL_SLOTS * layout.SLOT_WORDS]
        return words.reshape(layout.MODEL_SLOTS, layout.SLOT_WORDS)

    def open_connections(self) -> dict[str, int]:
        """Open connections of all frontends, by protocol."""
        return dict(zip(layout.PROTOCOLS, self.values(layout.CONNECTIONS_BLOCK)[::2], strict=True))

    def certificate_expiries(self) -> dict[str, int]:
        """When the certificates of ports expire, in seconds since 1970, by what is spoken; only of those with TLS."""
        expiries = dict(zip(layout.PROTOCOLS, self.values(layout.CERTIFICATES_BLOCK), strict=True))
        return {protocol: expires_s for protocol, expires_s in expiries.items() if expires_s}

    def handshake_failures(self) -> dict[tuple[str, str], int]:
        """TLS handshakes that failed, by what was to be spoken, and why."""
        counts = self.values(layout.HANDSHAKES_BLOCK)
        return dict(zip(product(layout.PROTOCOLS, layout.HANDSHAKE_FAILURES), counts, strict=True))

    @property
    def large_body_bytes(self) -> tuple[int, int]:
        """Bytes of large bodies that frontends hold now, and their limit."""
        held, budget = self.values(layout.LARGE_BODIES_BLOCK)
        return held, budget

    def on_demand(self) -> OnDemandTotals:
        """Return what was counted of models that are loaded on demand."""
        waits, wait_us, loads, load_us, budget, used, on_gpus, *evictions = self.values(
            layout.ON_DEMAND_BLOCK
        )
        by_reason = dict(zip(layout.EVICTIONS, evictions, strict=True))
        return OnDemandTotals(
            waits, wait_us / 1e6, loads, load_us / 1e6, budget, used, bool(on_gpus), by_reason
        )

    def gpus(self) -> list[GpuReading]:
        """The latest reading of each GPU."""
        rows = self.words[layout.GPUS_BLOCK.offset : layout.GPUS_BLOCK.end].reshape(
            layout.DEVICE_SLOTS, GpuReading.WORDS
        )
        readings = [GpuReading.from_words(index, row) for index, row in enumerate(rows.tolist())]
        return [reading for reading in readings if reading is not None]


@dataclass(frozen=True, slots=True)
class OnDemandTotals:
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


@dataclass(frozen=True, slots=True)
class SequenceTotals:
    """The sequences of a model with state: live ones, and how many were started, ended by callers, and expired."""

    live: int
    started: int
    ended: int
    expired: int


@dataclass(frozen=True, slots=True)
class CacheTotals:
    """The response cache: lookups and their times, those of misses with the insertion; size and evictions."""

    hits: int
    misses: int
    hit_ns: int
    miss_ns: int
    size_bytes: int
    evictions: int


@dataclass(frozen=True, slots=True)
class HistogramTotals:
    """Counts per bucket (not cumulative; the last one is +Inf), and the sum of the observations."""

    bounds: Sequence[float]
    counts: list[int]
    sum: float

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus expects them."""
        bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class ModelTotals(_Words):
    """A snapshot of one model's counters, summed over all processes."""

    rows = _Value(layout.ROWS_BLOCK)
    """Rows of answered requests so far."""
    rows_in_flight = _Value(layout.IN_FLIGHT_BLOCK)
    """Rows leased by requests now."""
    queue_rows = _Value(layout.QUEUED_BLOCK)
    """Rows queued in device processes now."""
    ready_replicas = _Value(layout.READY_REPLICAS_BLOCK)
    """Replicas that are loaded now."""
    batch_cap_rows = _Value(layout.BATCH_CAP_BLOCK)
    """Current limit of rows per batch, of the process with the lowest one; 0 if no process serves the model."""
    padding_rows = _Value(layout.PADDING_BLOCK)
    """Padding rows, which fill batches up to their buckets."""
    non_finite_rows = _Value(layout.NON_FINITE_BLOCK)
    """Rows with NaN or infinite answers to finite inputs."""
    flips = _Value(layout.FLIPS_BLOCK)
    """Compared requests whose predicted classes differ."""
    collected = _Value(layout.COLLECTED_BLOCK)
    """Collected requests whose records were written."""
    last_scored_ms = _Value(layout.LAST_SCORED_BLOCK)
    """When a request was last answered with 200, in milliseconds since 1970; 0 for never."""
    requests = _counts(layout.STATUSES, layout.REQUESTS_BLOCK)
    """Answered requests by status; 0 stands for every status that is not in `STATUSES`."""
    rejections = _counts(layout.REJECTIONS, layout.REJECTED_BLOCK)
    """Requests rejected before they reached the device, by reason."""
    dispatches = _counts(layout.REASONS, layout.REASONS_BLOCK)
    """Batches by the reason for their dispatch."""
    target_dispatches = _counts(layout.TARGET_REASONS, layout.TARGET_REASONS_BLOCK)
    """Batches by the reasons for dispatch that only models with targets have."""
    audits = _counts(layout.AUDITS, layout.AUDITS_BLOCK)
    """Audits of running batches, by result."""
    comparisons = _counts(layout.COMPARISONS, layout.COMPARISONS_BLOCK)
    """Requests whose answers by this version and another one were compared, by result."""
    decisions = _counts(layout.DECISIONS, layout.DECISIONS_BLOCK)
    """Decisions on this version, by kind."""
    collection_dropped = _counts(layout.COLLECTION_DROPS, layout.COLLECTION_DROPPED_BLOCK)
    """Dropped records of sampled requests, by reason."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words.tolist()

    @property
    def dispatched_rows(self) -> int:
        """Rows of all batches so far."""
        return int(self.words[layout.BATCH_BLOCK.end - 1])

    @property
    def held_requests(self) -> tuple[int, int]:
        """Requests admitted or queued for admission now, and the limit of admitted ones; 0 without a limit."""
        held, limit = self.values(layout.HELD_REQUESTS_BLOCK)
        return held, limit

    def in_target_rows(self) -> dict[str, int]:
        """Rows answered within their targets, by tier."""
        return dict(zip(TIERS, self.values(layout.TARGETS_BLOCK)[::2], strict=True))

    def answered_rows(self) -> dict[str, int]:
        """Answered rows of models with targets, by tier."""
        return dict(zip(TIERS, self.values(layout.TARGETS_BLOCK)[1::2], strict=True))

    def refusals(self) -> dict[tuple[str, str], int]:
        """Requests refused with a time to retry, by reason and tier; without zero counts."""
        kinds = [(reason, tier) for reason in layout.REFUSALS for tier in TIERS]
        counts = self.values(layout.REFUSED_BLOCK)
        return {kind: count for kind, count in zip(kinds, counts, strict=True) if count}

    def expected_over_actual(self) -> HistogramTotals:
        """Ratio of expected to actual batch time."""
        *counts, thousandths = self.values(layout.EXPECTED_BLOCK)
        return HistogramTotals(layout.EXPECTED_OVER_ACTUAL, counts, thousandths / 1000)

    def turn_waits(self) -> HistogramTotals:
        """How long batches waited for their turn on the device, in seconds."""
        return self._times(layout.TURN_WAIT_BLOCK)

    def first_responses(self) -> HistogramTotals:
        """Time from the end of a request's body to the first piece of its answer, in seconds."""
        return self._times(layout.FIRST_RESPONSE_BLOCK)

    def _times(self, block: layout.Block) -> HistogramTotals:
        *counts, total = self.values(block)
        return HistogramTotals(layout.STAGE_BOUNDS_S, counts, total / 1e6)

    def sequences(self) -> SequenceTotals:
        """The sequences of a model with state."""
        return SequenceTotals(*self.values(layout.SEQUENCES_BLOCK))

    def cache(self) -> CacheTotals:
        """Lookups, times and size of the response cache."""
        return CacheTotals(*self.values(layout.CACHE_BLOCK))

    @property
    def row_compute_ns(self) -> int:
        """The compute time of each row's batch, summed over all rows."""
        return 1000 * int(self.words[layout.ROW_COMPUTE_BLOCK.offset])

    def stage_ns(self) -> dict[str, tuple[int, int]]:
        """Number and sum in nanoseconds of the observed times, by stage."""
        return {stage: (sum(counts), 1000 * total) for stage, (*counts, total) in self._stages()}

    def batch_rows(self) -> HistogramTotals:
        """Sizes of the batches, in rows."""
        *counts, total = self.values(layout.BATCH_BLOCK)
        return HistogramTotals(layout.BATCH_BOUNDS_ROWS, counts, total)

    def stage_seconds(self) -> dict[str, HistogramTotals]:
        """Times by stage, in seconds."""
        return {
            stage: HistogramTotals(layout.STAGE_BOUNDS_S, counts, total / 1e6)
            for stage, (*counts, total) in self._stages()
        }

    def _stages(self) -> Iterator[tuple[str, list[int]]]:
        words = self.values(layout.STAGE_BLOCK)
        for index, stage in enumerate(layout.STAGES):
            yield stage, words[index * layout.STAGE_WORDS :][: layout.STAGE_WORDS]
