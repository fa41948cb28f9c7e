"""The sums of all pages, by metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np

from stoker.gpu.facts import GpuReading
from stoker.metrics.layout import (
    ACCEPT_FAILURES_BLOCK,
    AUDITS,
    AUDITS_BLOCK,
    BATCH_BLOCK,
    BATCH_BOUNDS_ROWS,
    BATCH_CAP_BLOCK,
    BATCH_WORDS,
    CACHE_BLOCK,
    CERTIFICATES_BLOCK,
    COLLECTED_BLOCK,
    COLLECTION_DROPPED_BLOCK,
    COLLECTION_DROPS,
    COMPARISONS,
    COMPARISONS_BLOCK,
    CONNECTIONS_BLOCK,
    DECISIONS,
    DECISIONS_BLOCK,
    DEVICE_SLOTS,
    EXPECTED_BLOCK,
    EXPECTED_OVER_ACTUAL,
    FIRST_RESPONSE_BLOCK,
    FLIPS_BLOCK,
    GPUS_BLOCK,
    HANDSHAKE_FAILURES,
    HANDSHAKES_BLOCK,
    HELD_REQUESTS_BLOCK,
    IN_FLIGHT_BLOCK,
    KEYS_GENERATION_BLOCK,
    LARGE_BODIES_BLOCK,
    LAST_SCORED_BLOCK,
    MODEL_SLOTS,
    NON_FINITE_BLOCK,
    PADDING_BLOCK,
    PROTOCOLS,
    QUEUED_BLOCK,
    READY_REPLICAS_BLOCK,
    REASONS,
    REASONS_BLOCK,
    REFUSALS,
    REFUSED_BLOCK,
    REJECTED_BLOCK,
    REJECTIONS,
    REQUESTS_BLOCK,
    RESTARTS_BLOCK,
    ROW_COMPUTE_BLOCK,
    ROWS_BLOCK,
    SEQUENCES_BLOCK,
    SLOT_WORDS,
    STAGE_BLOCK,
    STAGE_BOUNDS_S,
    STAGE_WORDS,
    STAGES,
    STATUSES,
    TARGET_REASONS,
    TARGET_REASONS_BLOCK,
    TARGETS_BLOCK,
    TRACES_BLOCK,
    TURN_WAIT_BLOCK,
    Block,
)
from stoker.settings.choices import TIERS

__all__ = ["CacheTotals", "HistogramTotals", "ModelTotals", "SequenceTotals", "Totals"]


class Totals:
    """A snapshot of the sums of all pages."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def model(self, slot: int) -> ModelTotals:
        """The totals of the model with this slot."""
        return ModelTotals(self._words[slot * SLOT_WORDS : (slot + 1) * SLOT_WORDS])

    @property
    def slots(self) -> np.ndarray:
        """The counters of all slots: `int64[MODEL_SLOTS, SLOT_WORDS]`."""
        return self._words[: MODEL_SLOTS * SLOT_WORDS].reshape(MODEL_SLOTS, SLOT_WORDS)

    def restarts(self) -> dict[str, int]:
        """Restarts of processes, by kind of process."""
        return dict(
            zip(
                ("device", "frontend"),
                self._words[RESTARTS_BLOCK.offset : RESTARTS_BLOCK.end].tolist(),
                strict=True,
            )
        )

    def traces(self) -> dict[str, int]:
        """Traced requests, by whether their spans were sent or dropped."""
        return dict(
            zip(
                ("sent", "dropped"), self._words[TRACES_BLOCK.offset : TRACES_BLOCK.end].tolist(), strict=True
            )
        )

    @property
    def accept_failures(self) -> int:
        """Connections that were not accepted for lack of file descriptors."""
        return int(self._words[ACCEPT_FAILURES_BLOCK.offset])

    def open_connections(self) -> dict[str, int]:
        """Open connections of all frontends, by protocol."""
        start = CONNECTIONS_BLOCK.offset
        return {protocol: int(self._words[start + 2 * index]) for index, protocol in enumerate(PROTOCOLS)}

    def certificate_expiries(self) -> dict[str, int]:
        """When the certificates of ports expire, in seconds since 1970, by what is spoken; only of those with TLS."""
        expiries = self._words[CERTIFICATES_BLOCK.offset : CERTIFICATES_BLOCK.end].tolist()
        return {
            protocol: expires_s for protocol, expires_s in zip(PROTOCOLS, expiries, strict=True) if expires_s
        }

    def handshake_failures(self) -> dict[tuple[str, str], int]:
        """TLS handshakes that failed, by what was to be spoken, and why."""
        counts = self._words[HANDSHAKES_BLOCK.offset : HANDSHAKES_BLOCK.end].tolist()
        return dict(zip(product(PROTOCOLS, HANDSHAKE_FAILURES), counts, strict=True))

    @property
    def large_body_bytes(self) -> tuple[int, int]:
        """Bytes of large bodies that frontends hold now, and their limit."""
        held, budget = self._words[LARGE_BODIES_BLOCK.offset : LARGE_BODIES_BLOCK.end].tolist()
        return held, budget

    @property
    def keys_generation(self) -> int:
        """The generation of the current keys; 0 if keys have none."""
        return int(self._words[KEYS_GENERATION_BLOCK.offset])

    def gpus(self) -> list[GpuReading]:
        """The latest reading of each GPU."""
        rows = self._words[GPUS_BLOCK.offset : GPUS_BLOCK.end].reshape(DEVICE_SLOTS, GpuReading.WORDS)
        readings = [GpuReading.from_words(index, row) for index, row in enumerate(rows.tolist())]
        return [reading for reading in readings if reading is not None]


@dataclass(frozen=True, slots=True)
class SequenceTotals:
    """The sequences of a model with state.

    Attributes:
        live: Number of sequences now.
        started, ended, expired: Numbers of sequences started, ended by their callers, and expired.
    """

    live: int
    started: int
    ended: int
    expired: int


@dataclass(frozen=True, slots=True)
class CacheTotals:
    """The response cache.

    Attributes:
        hits, misses: Numbers of lookups.
        hit_ns, miss_ns: Their total times; the time of misses includes inserting the answers.
        size_bytes: Size of the cached answers.
        evictions: Number of evicted answers.
    """

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


class ModelTotals:
    """A snapshot of one model's counters, summed over all processes."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words.tolist()

    def requests(self) -> dict[int, int]:
        """Answered requests by status; 0 stands for every status that is not in `STATUSES`."""
        return dict(zip(STATUSES, self._words[REQUESTS_BLOCK.offset : REQUESTS_BLOCK.end], strict=True))

    def rejections(self) -> dict[str, int]:
        """Requests rejected before they reached the device, by reason."""
        return dict(zip(REJECTIONS, self._words[REJECTED_BLOCK.offset : REJECTED_BLOCK.end], strict=True))

    def dispatches(self) -> dict[str, int]:
        """Batches by the reason for their dispatch."""
        return dict(zip(REASONS, self._words[REASONS_BLOCK.offset : REASONS_BLOCK.end], strict=True))

    def target_dispatches(self) -> dict[str, int]:
        """Batches by the reasons for dispatch that only models with targets have."""
        counts = self._words[TARGET_REASONS_BLOCK.offset : TARGET_REASONS_BLOCK.end]
        return dict(zip(TARGET_REASONS, counts, strict=True))

    @property
    def rows(self) -> int:
        """Rows of answered requests so far."""
        return int(self._words[ROWS_BLOCK.offset])

    @property
    def rows_in_flight(self) -> int:
        """Rows leased by requests now."""
        return int(self._words[IN_FLIGHT_BLOCK.offset])

    @property
    def queue_rows(self) -> int:
        """Rows queued in device processes now."""
        return int(self._words[QUEUED_BLOCK.offset])

    @property
    def ready_replicas(self) -> int:
        """Replicas that are loaded now."""
        return int(self._words[READY_REPLICAS_BLOCK.offset])

    @property
    def batch_cap_rows(self) -> int:
        """Current limit of rows per batch, of the process with the lowest one; 0 if no process serves the model."""
        return int(self._words[BATCH_CAP_BLOCK.offset])

    @property
    def dispatched_rows(self) -> int:
        """Rows of all batches so far."""
        return int(self._words[BATCH_BLOCK.offset + BATCH_WORDS - 1])

    @property
    def held_requests(self) -> tuple[int, int]:
        """Requests admitted or queued for admission now, and the limit of admitted ones; 0 without a limit."""
        held, limit = self._words[HELD_REQUESTS_BLOCK.offset : HELD_REQUESTS_BLOCK.end]
        return int(held), int(limit)

    @property
    def padding_rows(self) -> int:
        """Padding rows, which fill batches up to their buckets."""
        return int(self._words[PADDING_BLOCK.offset])

    def audits(self) -> dict[str, int]:
        """Audits of running batches, by result."""
        return dict(zip(AUDITS, self._words[AUDITS_BLOCK.offset : AUDITS_BLOCK.end], strict=True))

    @property
    def non_finite_rows(self) -> int:
        """Rows with NaN or infinite answers to finite inputs."""
        return int(self._words[NON_FINITE_BLOCK.offset])

    def in_target_rows(self) -> dict[str, int]:
        """Rows answered within their targets, by tier."""
        return dict(zip(TIERS, self._words[TARGETS_BLOCK.offset : TARGETS_BLOCK.end : 2], strict=True))

    def answered_rows(self) -> dict[str, int]:
        """Answered rows of models with targets, by tier."""
        return dict(zip(TIERS, self._words[TARGETS_BLOCK.offset + 1 : TARGETS_BLOCK.end : 2], strict=True))

    def refusals(self) -> dict[tuple[str, str], int]:
        """Requests refused with a time to retry, by reason and tier; without zero counts."""
        kinds = [(reason, tier) for reason in REFUSALS for tier in TIERS]
        counts = self._words[REFUSED_BLOCK.offset : REFUSED_BLOCK.end]
        return {kind: count for kind, count in zip(kinds, counts, strict=True) if count}

    def expected_over_actual(self) -> HistogramTotals:
        """Ratio of expected to actual batch time."""
        *counts, thousandths = self._words[EXPECTED_BLOCK.offset : EXPECTED_BLOCK.end]
        return HistogramTotals(EXPECTED_OVER_ACTUAL, counts, thousandths / 1000)

    def turn_waits(self) -> HistogramTotals:
        """How long batches waited for their turn on the device, in seconds."""
        return self._times(TURN_WAIT_BLOCK)

    def first_responses(self) -> HistogramTotals:
        """Time from the end of a request's body to the first piece of its answer, in seconds."""
        return self._times(FIRST_RESPONSE_BLOCK)

    def _times(self, block: Block) -> HistogramTotals:
        *counts, total = self._words[block.offset : block.end]
        return HistogramTotals(STAGE_BOUNDS_S, counts, total / 1e6)

    def sequences(self) -> SequenceTotals:
        """The sequences of a model with state."""
        return SequenceTotals(*self._words[SEQUENCES_BLOCK.offset : SEQUENCES_BLOCK.end])

    def cache(self) -> CacheTotals:
        """Lookups, times and size of the response cache."""
        return CacheTotals(*self._words[CACHE_BLOCK.offset : CACHE_BLOCK.end])

    def comparisons(self) -> dict[str, int]:
        """Requests whose answers by this version and another one were compared, by result."""
        counts = self._words[COMPARISONS_BLOCK.offset : COMPARISONS_BLOCK.end]
        return dict(zip(COMPARISONS, counts, strict=True))

    @property
    def flips(self) -> int:
        """Compared requests whose predicted classes differ."""
        return int(self._words[FLIPS_BLOCK.offset])

    def decisions(self) -> dict[str, int]:
        """Decisions on this version, by kind."""
        return dict(zip(DECISIONS, self._words[DECISIONS_BLOCK.offset : DECISIONS_BLOCK.end], strict=True))

    @property
    def collected(self) -> int:
        """Collected requests whose records were written."""
        return int(self._words[COLLECTED_BLOCK.offset])

    @property
    def last_scored_ms(self) -> int:
        """When a request was last answered with 200, in milliseconds since 1970; 0 for never."""
        return int(self._words[LAST_SCORED_BLOCK.offset])

    @property
    def row_compute_ns(self) -> int:
        """The compute time of each row's batch, summed over all rows."""
        return 1000 * int(self._words[ROW_COMPUTE_BLOCK.offset])

    def stage_ns(self) -> dict[str, tuple[int, int]]:
        """Number and sum in nanoseconds of the observed times, by stage."""
        stages = {}
        for index, stage in enumerate(STAGES):
            *counts, total = self._words[STAGE_BLOCK.offset + index * STAGE_WORDS :][:STAGE_WORDS]
            stages[stage] = (sum(counts), 1000 * total)
        return stages

    def collection_dropped(self) -> dict[str, int]:
        """Dropped records of sampled requests, by reason."""
        dropped = self._words[COLLECTION_DROPPED_BLOCK.offset : COLLECTION_DROPPED_BLOCK.end]
        return dict(zip(COLLECTION_DROPS, dropped, strict=True))

    def batch_rows(self) -> HistogramTotals:
        """Sizes of the batches, in rows."""
        *counts, total = self._words[BATCH_BLOCK.offset : BATCH_BLOCK.end]
        return HistogramTotals(BATCH_BOUNDS_ROWS, counts, total)

    def stage_seconds(self) -> dict[str, HistogramTotals]:
        """Times by stage, in seconds."""
        stages = {}
        for index, stage in enumerate(STAGES):
            *counts, total = self._words[STAGE_BLOCK.offset + index * STAGE_WORDS :][:STAGE_WORDS]
            stages[stage] = HistogramTotals(STAGE_BOUNDS_S, counts, total / 1e6)
        return stages
