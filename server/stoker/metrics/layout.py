"""How many models, processes, devices and callers have counters, and the values of labels and bounds of buckets."""

from __future__ import annotations

from typing import Final

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
"""Why a TLS handshake failed: the caller spoke another protocol; one side refused the other's certificate; it took
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
BATCH_BOUNDS_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
