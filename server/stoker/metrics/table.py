"""All metrics, each declared once: shared memory, sums and `/metrics` follow from these declarations."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Final

from stoker.gpu.facts import GpuReading
from stoker.metrics.layout import (
    AUDITS,
    BATCH_BOUNDS_ROWS,
    CALLERS,
    COLLECTION_DROPS,
    COMPARISONS,
    DECISIONS,
    DEVICE_SLOTS,
    EVICTIONS,
    EXPECTED_OVER_ACTUAL,
    HANDSHAKE_FAILURES,
    MODEL_LIMITS,
    MODEL_SLOTS,
    PAGES,
    PROTOCOLS,
    REASONS,
    REFUSALS,
    REJECTIONS,
    STAGE_BOUNDS_S,
    STAGES,
    STATUSES,
    TARGET_REASONS,
)
from stoker.metrics.metric import (
    Counter,
    Gauge,
    Histogram,
    Key,
    Region,
    Value,
    Words,
    declare_in,
    if_any,
    if_counted,
)
from stoker.settings.choices import TIERS

# Sums of times are in microseconds: queue times grow by as many seconds per second as rows wait, and in nanoseconds
# they would overflow the word within days.
_US: Final = 1e6
_NS: Final = 1e9
_MOST_BATCH_ROWS: Final = 65_536
_SIZE_CLASSES: Final = _MOST_BATCH_ROWS.bit_length() + 1
_STATUSES: Final = tuple(str(status or "other") for status in STATUSES)

SLOT: Final = Region()
"""The words of a model."""
_counter, _gauge = declare_in(SLOT, Counter), declare_in(SLOT, Gauge)
_histogram = declare_in(SLOT, Histogram)
REQUESTS: Final = _counter(
    "stoker_requests",
    "Scoring requests answered.",
    {"status": _STATUSES},
    is_shown=lambda _words, key, count: bool(count) or key == ("200",),
)
REJECTED: Final = _counter(
    "stoker_rejections", "Scoring requests refused before the device.", {"reason": REJECTIONS}
)
ROWS: Final = _counter("stoker_rows", "Rows of the requests answered with 200.", triton="nv_inference_count")
ROWS_IN_FLIGHT: Final = _gauge("stoker_rows_in_flight", "Rows leased by requests.")
QUEUED_ROWS: Final = _gauge(
    "stoker_queue_rows", "Rows that wait for a device.", triton="nv_inference_pending_request_count"
)
READY_REPLICAS: Final = _gauge("stoker_ready_replicas", "Replicas that are loaded.", is_lasting=True)


def _has_such_dispatches(words: Words, key: Key, _value: Value) -> bool:
    """Only models with targets have `TARGET_REASONS`."""
    late = words[DISPATCHES.offset + len(REASONS) : DISPATCHES.end]
    return key[0] in REASONS or not ANSWERS.is_zero(words) or any(late)


def _has_answers(words: Words, key: Key, _value: Value) -> bool:
    """Only tiers with answers show how many were within their targets."""
    return bool(words[ANSWERS.word(*key)])


DISPATCHES: Final = _counter(
    "stoker_dispatches",
    "Batches by the reason for their dispatch.",
    {"reason": (*REASONS, *TARGET_REASONS)},
    is_shown=_has_such_dispatches,
)
BATCH_ROWS: Final = _histogram("stoker_batch_rows", "Rows per batch.", bounds=BATCH_BOUNDS_ROWS)
PADDING_ROWS: Final = _counter("stoker_batch_padding_rows", "Rows that filled batches up to a bucket.")
BATCH_CAP_ROWS: Final = _gauge(
    "stoker_batch_cap_rows", "Most rows that a batch may have now.", merge="lowest"
)
STAGE_TIMES: Final = _histogram(
    "stoker_stage_seconds",
    "Time by stage: parse and total per request, queue per row, compute per batch.",
    {"stage": STAGES},
    STAGE_BOUNDS_S,
    _US,
)
FIRST_RESPONSES: Final = _histogram(
    "stoker_first_response_seconds",
    "Time from the end of a request's body to the first piece of its answer, if it comes in pieces.",
    bounds=STAGE_BOUNDS_S,
    unit=_US,
    is_shown=if_counted,
)
REFUSED: Final = _counter(
    "stoker_refusals",
    "Requests refused with a time to retry.",
    {"reason": REFUSALS, "tier": TIERS},
    is_shown=if_counted,
)
IN_TARGET: Final = _counter(
    "stoker_in_target", "Rows answered within their targets.", {"tier": TIERS}, is_shown=_has_answers
)
ANSWERS: Final = _counter(
    "stoker_answers", "Rows answered, of models with targets.", {"tier": TIERS}, is_shown=if_counted
)
EXPECTED: Final = _histogram(
    "stoker_expected_over_actual",
    "Expected over actual time of a batch.",
    bounds=EXPECTED_OVER_ACTUAL,
    unit=1000,
    is_shown=if_any(ANSWERS),
)
TURN_WAITS: Final = _histogram(
    "stoker_turn_wait_seconds",
    "Time for which batches waited for their turn on the device.",
    bounds=STAGE_BOUNDS_S,
    unit=_US,
    is_shown=if_counted,
)
SEQUENCES_STARTED: Final = _counter("stoker_sequences_started", "Sequences started.", is_shown=if_counted)
SEQUENCES: Final = _gauge(
    "stoker_sequences", "Sequences with state, over all replicas.", is_shown=if_any(SEQUENCES_STARTED)
)
SEQUENCES_ENDED: Final = _counter(
    "stoker_sequences_ended",
    "Sequences ended by their callers, or idle for too long.",
    {"reason": ("end", "idle")},
    is_shown=if_any(SEQUENCES_STARTED),
)


def _is_cached(words: Words, _key: Key, _value: Value) -> bool:
    """Models that do not use the response cache show no series of it."""
    return not (CACHE_HITS.is_zero(words) and CACHE_MISSES.is_zero(words))


CACHE_HITS: Final = _counter(
    "stoker_cache_hits",
    "Requests answered from the response cache.",
    is_shown=_is_cached,
    triton="nv_cache_num_hits_per_model",
)
CACHE_MISSES: Final = _counter(
    "stoker_cache_misses",
    "Requests whose answer was not in the response cache.",
    is_shown=_is_cached,
    triton="nv_cache_num_misses_per_model",
)
CACHE_HIT_TIMES: Final = _counter(
    "stoker_cache_hit_seconds",
    "Time of lookups that found an answer.",
    unit=_NS,
    is_shown=_is_cached,
    triton="nv_cache_hit_duration_per_model",
)
CACHE_MISS_TIMES: Final = _counter(
    "stoker_cache_miss_seconds",
    "Time of lookups without an answer, and of storing it.",
    unit=_NS,
    is_shown=_is_cached,
    triton="nv_cache_miss_duration_per_model",
)
CACHE_EVICTIONS: Final = _counter(
    "stoker_cache_evictions", "Answers evicted from the response cache.", is_shown=_is_cached
)
CACHE_BYTES: Final = _gauge(
    "stoker_cache_bytes", "Size of the response caches of all frontends.", is_shown=_is_cached
)
AUDITED: Final = _counter(
    "stoker_isolation_audits", "Rows of batches that were run again beside other rows.", {"result": AUDITS}
)
NON_FINITE_ROWS: Final = _counter(
    "stoker_non_finite_answers", "Rows with non-finite answers to finite inputs."
)
COMPARED: Final = _counter(
    "stoker_compared_answers",
    "Requests whose answers by this version and its predecessor were compared.",
    {"result": COMPARISONS},
)
FLIPS: Final = _counter("stoker_compared_flips", "Compared requests whose answers are of different classes.")
DECIDED: Final = _counter(
    "stoker_takeover_decisions", "Decisions on a version that takes over.", {"decision": DECISIONS}
)
COLLECTED: Final = _counter("stoker_collected_records", "Sampled requests written to the workspace.")
COLLECTION_DROPPED: Final = _counter(
    "stoker_collection_dropped", "Sampled requests that were not written.", {"reason": COLLECTION_DROPS}
)
BUSY: Final = _counter(
    "stoker_device_busy_seconds", "Time for which batches used a device.", {"device": ()}, unit=_NS, words=1
)
BATCH_TIMES: Final = _gauge(
    "stoker_batch_mean_seconds",
    "Mean time of batches of that many rows up to twice as many, recent ones weighted more.",
    {"rows": ()},
    unit=_NS,
    words=_SIZE_CLASSES,
)
"""By the bit length of the number of rows."""
BATCH_SIZES: Final = _gauge(
    "stoker_batch_mean_rows", "Mean rows of these batches.", {"rows": ()}, unit=1000, words=_SIZE_CLASSES
)
LAST_SCORED: Final = _counter(
    "", "When a request was last answered with 200, in ms since 1970.", merge="latest", words=1
)
ROW_COMPUTE: Final = _counter("", "Time of each row's batch, over all rows, in microseconds.")
HELD_REQUESTS: Final = _gauge(
    "", "Requests that are admitted or queued for admission, and the limit of admitted ones.", words=2
)
RUN_BEGAN: Final = _gauge(
    "", "When the model's present run started in a shared process, in nanoseconds; 0 if none runs."
)
LOAD: Final = Gauge("stoker_load", "Requested rows over the rows of full batches, since the last scrape.")
CAPACITY: Final = Gauge("stoker_capacity_rows_per_second", "Rows that full batches would answer in a second.")
VERSION_SHARE: Final = Gauge("stoker_version_share_ratio", "Share of the requests that name no version.")
BATCHING: Final = Gauge(
    "stoker_batching_info",
    "1 for each served version: whether its requests are batched, and how that was decided.",
    {"batched": (), "how": ()},
)

SLOT_WORDS: Final = SLOT.end
PAGE: Final = Region(MODEL_SLOTS * SLOT_WORDS)
"""The words of a process, after those of its models."""
_page_counter, _page_gauge = declare_in(PAGE, Counter), declare_in(PAGE, Gauge)
RESTARTS: Final = _page_counter(
    "stoker_process_restarts", "Processes restarted.", {"process": ("device", "frontend")}
)
ACCEPT_FAILURES: Final = _page_counter(
    "stoker_accept_failures", "Connections closed unserved because a frontend had no file descriptors."
)
OPEN_CONNECTIONS: Final = _page_gauge("stoker_open_connections", "Open connections.", {"protocol": PROTOCOLS})
CERTIFICATE_EXPIRIES: Final = _page_gauge(
    "stoker_certificate_expiration_timestamp_seconds",
    "When the current certificate expires, in seconds since 1970.",
    {"protocol": PROTOCOLS},
    merge="lowest",
    is_shown=if_counted,
)
HANDSHAKE_FAILED: Final = _page_counter(
    "stoker_tls_handshake_failures",
    "TLS handshakes that failed.",
    {"protocol": PROTOCOLS, "reason": HANDSHAKE_FAILURES},
    is_shown=lambda words, key, _: bool(words[CERTIFICATE_EXPIRIES.word(key[0])]),
)
"""Only of ports with a certificate."""
LARGE_BODY_BYTES: Final = _page_gauge("stoker_large_body_bytes", "Bytes of request bodies above 1 MiB.")
LARGE_BODY_BUDGET: Final = _page_gauge(
    "stoker_large_body_budget_bytes", "Budget for request bodies above 1 MiB in all frontends."
)
KEYS_GENERATION: Final = _page_gauge("stoker_keys_generation", "The generation of the current keys.")
TRACES: Final = _page_counter(
    "stoker_traced_requests",
    "Traced requests, by whether their spans were sent.",
    {"result": ("sent", "dropped")},
)


LOADS: Final = _page_counter("stoker_on_demand_loads", "Models loaded on demand.")
LOAD_TIMES: Final = _page_counter("stoker_on_demand_load_seconds", "Time of these loads.", unit=_US)
WAITS: Final = _page_counter("stoker_on_demand_waits", "Requests that waited for their model to be loaded.")
WAIT_TIMES: Final = _page_counter(
    "stoker_on_demand_wait_seconds", "Time for which these requests waited.", unit=_US
)
EVICTED: Final = _page_counter(
    "stoker_evictions", "Models unloaded until they are asked for again.", {"reason": EVICTIONS}
)
MODEL_MEMORY: Final = _page_gauge(
    "stoker_model_memory_bytes", "Memory of the device processes: of GPUs on these, else private host memory."
)
MODEL_MEMORY_BUDGET: Final = _page_gauge("stoker_model_memory_budget_bytes", "Budget for this memory.")
ON_DEMAND: Final = (LOADS, LOAD_TIMES, WAITS, WAIT_TIMES, EVICTED, MODEL_MEMORY, MODEL_MEMORY_BUDGET)
"""Metrics of models that are loaded on demand, which are shown where a budget is set."""
CALLER_TIMES: Final = _page_counter(
    "stoker_caller_device_seconds",
    "Time for which batches used devices, by the callers of their rows.",
    {"caller": ()},
    unit=_NS,
    words=CALLERS + MODEL_LIMITS,
)
"""By number of the caller, of a device process; from `CALLERS` on, by number of the limit."""
CALLER_ROWS: Final = _page_counter(
    "", "Admitted rows of callers with quotas, of a frontend.", words=CALLERS + MODEL_LIMITS
)
MODEL_MEMORY_ON_GPUS: Final = _page_gauge("", "1 if the memory of models is that of GPUs.")
SHARES_CONNECTIONS: Final = _page_gauge(
    "", "1 where a frontend accepts connections from other ones.", {"protocol": PROTOCOLS}
)
BEATS: Final = _page_counter("", "Heartbeats of the event loop.")
DEVICE: Final = _page_gauge("", "The devices of a device process: bit 0 the CPU, bit 1 + N GPU N.")
GPUS: Final = _page_gauge("", "The last reading of each GPU.", words=DEVICE_SLOTS * GpuReading.WORDS)
LATER_REQUESTS: Final = Gauge(
    "stoker_later_requests",
    "Requests that are answered later, waiting or answered.",
    {"state": ("waiting", "answered")},
)
LATER_BYTES: Final = Gauge("stoker_later_bytes", "Bytes of these requests and answers on disk.")
LATER_ACCEPTED: Final = Counter("stoker_later_accepted", "Requests accepted to be answered later.")
LATER_ENDED: Final = Counter(
    "stoker_later_ended",
    "These requests by how they ended: answered, expired, cancelled.",
    {"result": ("answered", "expired", "cancelled")},
)
LATER_CALLBACKS: Final = Counter(
    "stoker_later_callbacks", "Tries to tell of an answer, by result.", {"result": ("delivered", "failed")}
)

_OF_GPUS: Final[dict[str, Sequence[str]]] = {"gpu": (), "uuid": ()}
GPU_METRICS: Final = {
    attribute: (Counter if attribute == "energy_mj" else Gauge)(
        name, f"{text}, by NVML.", _OF_GPUS, unit=unit, triton=triton
    )
    for attribute, name, text, unit, triton in (
        (
            "memory_used_bytes",
            "stoker_gpu_memory_used_bytes",
            "GPU memory in use",
            1,
            "nv_gpu_memory_used_bytes",
        ),
        ("memory_total_bytes", "stoker_gpu_memory_total_bytes", "GPU memory", 1, "nv_gpu_memory_total_bytes"),
        ("memory_free_bytes", "stoker_gpu_memory_free_bytes", "GPU memory that nothing holds", 1, ""),
        (
            "utilization_percent",
            "stoker_gpu_utilization_ratio",
            "Share of time in which a kernel ran",
            100,
            "nv_gpu_utilization",
        ),
        ("power_mw", "stoker_gpu_power_watts", "Power that the GPU draws", 1000, "nv_gpu_power_usage"),
        (
            "power_limit_mw",
            "stoker_gpu_power_limit_watts",
            "Power that the driver lets the GPU draw",
            1000,
            "nv_gpu_power_limit",
        ),
        ("temperature_c", "stoker_gpu_temperature_celsius", "Temperature of the GPU", 1, ""),
        (
            "energy_mj",
            "stoker_gpu_energy_joules",
            "Energy that the GPU took since its driver was loaded",
            1000,
            "nv_energy_consumption",
        ),
    )
}
"""By attribute of a reading."""
GPU_THROTTLED: Final = Gauge(
    "stoker_gpu_throttle_reason",
    "1 for each reason why the clocks of the GPU are below their maximum, by NVML.",
    {**_OF_GPUS, "reason": ()},
)

PAGE_BYTES: Final = -(-PAGE.end * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
PAGES_BYTES: Final = PAGES * PAGE_BYTES
MEMORY_BYTES: Final = PAGES_BYTES + mmap.PAGESIZE
