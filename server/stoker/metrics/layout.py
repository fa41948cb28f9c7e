"""The layout of the metrics memory: which word of a page holds which counter."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final

from stoker.gpu.facts import GpuReading
from stoker.settings.choices import TIERS

MODEL_SLOTS: Final = 64
UNLOADED_SLOT: Final = MODEL_SLOTS - 1
"""The slot that models share while they are not loaded, where models are loaded on demand."""
PAGES: Final = 129
SUPERVISOR_PAGE: Final = PAGES - 1
FIRST_DEVICE_PAGE: Final = 64
DEVICE_SLOTS: Final = 16
CALLERS: Final = 256
"""Caller numbers are below this."""
MODEL_LIMITS: Final = 64
"""Numbers of limits of models are below this; they count behind the callers."""

STATUSES: Final = (200, 400, 401, 404, 405, 408, 413, 415, 422, 429, 431, 499, 500, 503, 504, 0)
"""Statuses with a counter of their own; 0 stands for all others. 499 means that the caller disconnected."""
REJECTIONS: Final = (
    "overloaded",
    "not_ready",
    "unauthorized",
    "malformed",
    "deadline",
    "body_too_large",
    "quota",
)
REFUSALS: Final = ("target", "deadline", "rows", "quota-rows", "quota-device-ms")
"""Why requests were refused with a time to retry: they would have missed their target; the caller's deadline is
shorter than the expected time, or has passed; no row was free; the caller's quota is used up."""
COLLECTION_DROPS: Final = ("queue_full", "write_failed")
"""Why the record of a sampled request was dropped: the writer fell behind, or writing to the disk failed."""
PROTOCOLS: Final = ("http", "grpc")
"""The protocols of connections."""
HANDSHAKE_FAILURES: Final = ("not_tls", "refused", "timeout", "closed")
"""Why a TLS handshake failed: the caller spoke something else; one of both did not take what the other has; it took
too long; the caller went away."""
AUDITS: Final = ("passed", "failed", "skipped")
"""Results of audits of running batches; `skipped` if nothing could be decided."""
COMPARISONS: Final = ("same", "close", "different", "not_finite", "failed")
"""Results of comparing the answers of an old and a new version; see `stoker.takeover.comparison`."""
EVICTIONS: Final = ("room", "budget", "slots")
"""Why a model was unloaded: to make room for another one; device processes took more than the budget; all slots of
the metrics were taken."""
DECISIONS: Final = ("parity_passed", "parity_warned", "parity_failed", "rolled_back")
"""Decisions on a version that is to replace another one."""
REASONS: Final = ("full", "idle", "delay", "deadline")
"""Why a batch left: it was full; the device was idle; the maximum delay was reached; a deadline was near."""
TARGET_REASONS: Final = ("largest", "order", "turn")
"""Why a batch was dispatched for a model with targets: it was the largest that could be in time, the largest that the
first row's target allowed, or its turn on the device had come."""
EXPECTED_OVER_ACTUAL: Final = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
"""Bucket bounds of the ratio of expected to actual batch time."""
STAGES: Final = ("parse", "queue", "compute", "total")
STAGE_BOUNDS_S: Final = (
    5e-05, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
_MOST_BATCH_ROWS: Final = 65_536
BATCH_BOUNDS_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Block:
    """A run of int64 words within a model slot or a page, from word `offset` on."""

    offset: int
    words: int

    @property
    def end(self) -> int:
        """Index of the word after the last one."""
        return self.offset + self.words


# A histogram has one word per bound, one for +Inf, and one for the sum. Sums of times are in microseconds: queue
# times grow by as many seconds per second as rows wait, and in nanoseconds they would overflow the word within days.
STAGE_WORDS: Final = len(STAGE_BOUNDS_S) + 2
BATCH_WORDS: Final = len(BATCH_BOUNDS_ROWS) + 2
REQUESTS_BLOCK: Final = Block(0, len(STATUSES))
REJECTED_BLOCK: Final = Block(REQUESTS_BLOCK.end, len(REJECTIONS))
ROWS_BLOCK: Final = Block(REJECTED_BLOCK.end, 1)
IN_FLIGHT_BLOCK: Final = Block(ROWS_BLOCK.end, 1)
QUEUED_BLOCK: Final = Block(IN_FLIGHT_BLOCK.end, 1)
REASONS_BLOCK: Final = Block(QUEUED_BLOCK.end, len(REASONS))
BATCH_BLOCK: Final = Block(REASONS_BLOCK.end, BATCH_WORDS)
STAGE_BLOCK: Final = Block(BATCH_BLOCK.end, STAGE_WORDS * len(STAGES))
READY_REPLICAS_BLOCK: Final = Block(STAGE_BLOCK.end, 1)
COLLECTED_BLOCK: Final = Block(READY_REPLICAS_BLOCK.end, 1)
COLLECTION_DROPPED_BLOCK: Final = Block(COLLECTED_BLOCK.end, len(COLLECTION_DROPS))
LAST_SCORED_BLOCK: Final = Block(COLLECTION_DROPPED_BLOCK.end, 1)
# In microseconds, like the sums of stages.
ROW_COMPUTE_BLOCK: Final = Block(LAST_SCORED_BLOCK.end, 1)
PADDING_BLOCK: Final = Block(ROW_COMPUTE_BLOCK.end, 1)
BATCH_CAP_BLOCK: Final = Block(PADDING_BLOCK.end, 1)
AUDITS_BLOCK: Final = Block(BATCH_CAP_BLOCK.end, len(AUDITS))
NON_FINITE_BLOCK: Final = Block(AUDITS_BLOCK.end, 1)
COMPARISONS_BLOCK: Final = Block(NON_FINITE_BLOCK.end, len(COMPARISONS))
FLIPS_BLOCK: Final = Block(COMPARISONS_BLOCK.end, 1)
DECISIONS_BLOCK: Final = Block(FLIPS_BLOCK.end, len(DECISIONS))
# The learned time of a batch in nanoseconds, by the bit length of its number of rows.
BATCH_TIMES_BLOCK: Final = Block(DECISIONS_BLOCK.end, _MOST_BATCH_ROWS.bit_length() + 1)
# Requests that are admitted or queued for admission, and the limit of admitted ones.
HELD_REQUESTS_BLOCK: Final = Block(BATCH_TIMES_BLOCK.end, 2)
# By tier: rows answered in time, and all answered rows, of models with targets.
TARGETS_BLOCK: Final = Block(HELD_REQUESTS_BLOCK.end, 2 * len(TIERS))
TARGET_REASONS_BLOCK: Final = Block(TARGETS_BLOCK.end, len(TARGET_REASONS))
# The sum is in thousandths.
EXPECTED_BLOCK: Final = Block(TARGET_REASONS_BLOCK.end, len(EXPECTED_OVER_ACTUAL) + 2)
# Device time of batches, in nanoseconds.
BUSY_BLOCK: Final = Block(EXPECTED_BLOCK.end, 1)
TURN_WAIT_BLOCK: Final = Block(BUSY_BLOCK.end, STAGE_WORDS)
# Mean number of rows for each of `BATCH_TIMES_BLOCK`, in thousandths.
BATCH_SIZES_BLOCK: Final = Block(TURN_WAIT_BLOCK.end, BATCH_TIMES_BLOCK.words)
# Response cache: hits, misses, their times in nanoseconds, size in bytes, and evictions.
CACHE_BLOCK: Final = Block(BATCH_SIZES_BLOCK.end, 6)
# Refused requests by reason and tier.
REFUSED_BLOCK: Final = Block(CACHE_BLOCK.end, len(REFUSALS) * len(TIERS))
# Time from the end of a request's body to the first piece of its answer.
FIRST_RESPONSE_BLOCK: Final = Block(REFUSED_BLOCK.end, STAGE_WORDS)
# Sequences of models with state: live, started, ended by their callers, expired.
SEQUENCES_BLOCK: Final = Block(FIRST_RESPONSE_BLOCK.end, 4)
# Of a device process with several models: when the model's present run started, in nanoseconds; 0 if none runs.
RUN_BEGAN_BLOCK: Final = Block(SEQUENCES_BLOCK.end, 1)
SLOT_WORDS: Final = RUN_BEGAN_BLOCK.end

# After the model slots, each page has words for its process and for the GPUs that it monitors.
RESTARTS_BLOCK: Final = Block(MODEL_SLOTS * SLOT_WORDS, 2)
GPUS_BLOCK: Final = Block(RESTARTS_BLOCK.end, DEVICE_SLOTS * GpuReading.WORDS)
BEATS_BLOCK: Final = Block(GPUS_BLOCK.end, 1)
ACCEPT_FAILURES_BLOCK: Final = Block(BEATS_BLOCK.end, 1)
LARGE_BODIES_BLOCK: Final = Block(ACCEPT_FAILURES_BLOCK.end, 2)
KEYS_GENERATION_BLOCK: Final = Block(LARGE_BODIES_BLOCK.end, 1)
# Of a device process: 1 for the CPU, 2 + N for GPU N.
DEVICE_BLOCK: Final = Block(KEYS_GENERATION_BLOCK.end, 1)
# Of a device process: device time in nanoseconds, by caller.
CALLER_TIMES_BLOCK: Final = Block(DEVICE_BLOCK.end, CALLERS + MODEL_LIMITS)
# Of a frontend: admitted rows of callers with quotas.
CALLER_ROWS_BLOCK: Final = Block(CALLER_TIMES_BLOCK.end, CALLERS + MODEL_LIMITS)
# Of the supervisor: traced requests whose spans were sent, and those whose spans were dropped.
TRACES_BLOCK: Final = Block(CALLER_ROWS_BLOCK.end, 2)
# Of a frontend, by protocol: open connections, and whether it accepts connections from other frontends.
CONNECTIONS_BLOCK: Final = Block(TRACES_BLOCK.end, 2 * len(PROTOCOLS))
# Of a frontend, by protocol: when its certificate expires, in seconds since 1970, and handshakes by why they failed.
CERTIFICATES_BLOCK: Final = Block(CONNECTIONS_BLOCK.end, len(PROTOCOLS))
HANDSHAKES_BLOCK: Final = Block(CERTIFICATES_BLOCK.end, len(PROTOCOLS) * len(HANDSHAKE_FAILURES))
# Of a frontend: requests that waited for a model to be loaded, and their microseconds. Of the supervisor: loads on
# demand, their microseconds, the budget and the used bytes, and evictions by reason.
ON_DEMAND_BLOCK: Final = Block(HANDSHAKES_BLOCK.end, 7 + len(EVICTIONS))
PAGE_BYTES: Final = -(-ON_DEMAND_BLOCK.end * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
PAGES_BYTES: Final = PAGES * PAGE_BYTES
MEMORY_BYTES: Final = PAGES_BYTES + mmap.PAGESIZE
