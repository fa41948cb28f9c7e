"""Counters and readings of GPUs under Triton's names, for tools that were made for Triton.

Source: docs/user_guide/metrics.md of Triton, "Inference Request Metrics". Sums only grow, as counters must; the times
by request of the statistics extension are made of means of rows, and may shrink.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.gpu.facts import Gpu, GpuReading, visible_devices
from stoker.metrics.totals import CacheTotals, ModelTotals

_FAILURES: Final = "nv_inference_request_failure"
_REASONS: Final = {429: "REJECTED", 499: "CANCELED", 500: "BACKEND", 503: "REJECTED", 504: "REJECTED"}
"""Triton's words for why a request failed, by status; any other is `OTHER`."""
_WORDS: Final = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


def _stage_us(stage: str) -> Callable[[ModelTotals], float]:
    return lambda totals: totals.stage_ns()[stage][1] / 1000


_QUANTITIES: Final[dict[str, tuple[str, Callable[[ModelTotals], float]]]] = {
    "nv_inference_request_success": (
        'stoker_requests_total{status="200"}',
        lambda model: model.requests()[200],
    ),
    "nv_inference_count": ("stoker_rows_total", lambda model: model.rows),
    "nv_inference_exec_count": ("stoker_batch_rows_count", lambda model: sum(model.batch_rows().counts)),
    "nv_inference_request_duration_us": (
        'stoker_stage_seconds_sum{stage="total"}, in microseconds',
        _stage_us("total"),
    ),
    "nv_inference_queue_duration_us": (
        'stoker_stage_seconds_sum{stage="queue"}, of rows, in microseconds',
        _stage_us("queue"),
    ),
    "nv_inference_compute_input_duration_us": (
        'stoker_stage_seconds_sum{stage="parse"}, in microseconds',
        _stage_us("parse"),
    ),
    "nv_inference_compute_infer_duration_us": (
        "the times of the batches that rows were in, summed over rows, in microseconds",
        lambda model: model.row_compute_ns / 1000,
    ),
    "nv_inference_compute_output_duration_us": ("a time that is not measured apart, always 0", lambda _: 0),
}
"""The metrics of Triton by name: help and value."""
_UNTYPED: Final = re.compile(rb"^(# TYPE (?:nv|ts)_\w+) untyped$", re.MULTILINE)
_LARGE: Final = re.compile(rb"^((?:nv|ts)_\w+(?:\{.*\})?) ([0-9.]+e\+[0-9]+)$", re.MULTILINE)


def inference_metrics(
    named: Sequence[tuple[list[str], ModelTotals]],
    slots: Sequence[tuple[list[str], int]],
    busy_s: Mapping[str, np.ndarray],
    gpus: Sequence[GpuReading],
) -> Iterator[Metric]:
    """The metrics of models under Triton's names; `slots` are those of the same labels, in the same order."""
    uuids = _uuids(gpus, os.environ)
    labelled = [
        (_labels(labels, slot, busy_s, uuids), totals)
        for (labels, totals), (_, slot) in zip(named, slots, strict=True)
    ]
    for name, (meaning, read) in _QUANTITIES.items():
        yield _metric(name, meaning, [(labels, read(totals)) for labels, totals in labelled])
    failures = [
        ({**labels, "reason": reason}, count)
        for labels, totals in labelled
        for reason, count in _failures(totals).items()
    ]
    yield _metric(_FAILURES, "stoker_requests_total, of all statuses but 200", failures)
    waiting = [(labels, totals.queue_rows) for labels, totals in labelled]
    yield _metric(
        "nv_inference_pending_request_count", "stoker_queue_rows: rows, not requests", waiting, "gauge"
    )


def _metric(
    name: str, meaning: str, samples: Iterable[tuple[dict[str, str], float]], kind: str = "unknown"
) -> Metric:
    return foreign_metric(name, f"Triton's name of {meaning}.", samples, kind)


def foreign_metric(
    name: str, text: str, samples: Iterable[tuple[dict[str, str], float]], kind: str = "unknown"
) -> Metric:
    """A metric under another server's name; `format_for_tools` makes counters of those of an unknown type."""
    # As a counter prometheus_client would end its name in _total.
    metric = Metric(name, text, kind)
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric


_CACHE: Final[dict[str, tuple[str, Callable[[CacheTotals], float]]]] = {
    "nv_cache_num_hits_per_model": ("stoker_cache_hits_total", lambda cache: cache.hits),
    "nv_cache_num_misses_per_model": ("stoker_cache_misses_total", lambda cache: cache.misses),
    "nv_cache_hit_duration_per_model": ("stoker_cache_hit_seconds_total", lambda cache: cache.hit_ns / 1000),
    "nv_cache_miss_duration_per_model": (
        "stoker_cache_miss_seconds_total",
        lambda cache: cache.miss_ns / 1000,
    ),
}
"""By Triton's name; Triton counts microseconds."""


def cache_metrics(named: Sequence[tuple[list[str], ModelTotals]]) -> Iterator[Metric]:
    """The metrics of response caches under Triton's names; models that do not use theirs have no samples."""
    caches = [
        ({"model": model, "version": version}, cache)
        for (model, version), totals in named
        if (cache := totals.cache()).hits or cache.misses
    ]
    for name, (own, read) in _CACHE.items():
        yield _metric(name, own, [(labels, read(cache)) for labels, cache in caches])


def format_for_tools(exposition: bytes) -> bytes:
    """Rewrite the metrics with others' names as Triton's tools read them: as counters, without exponents."""
    # perf_analyzer reads a number up to an `e`: it takes 5.4e+09 bytes for 5 bytes.
    plain = _LARGE.sub(lambda line: b"%b %b" % (line[1], _plain(line[2])), exposition)
    return _UNTYPED.sub(rb"\1 counter", plain)


def _plain(number: bytes) -> bytes:
    return f"{float(number):.6f}".rstrip("0").rstrip(".").encode()


def _uuids(gpus: Sequence[GpuReading], environ: Mapping[str, str]) -> dict[str, str]:
    """Return UUIDs by device name. CUDA_VISIBLE_DEVICES renumbers devices; readings have the driver's numbers."""
    if "CUDA_VISIBLE_DEVICES" not in environ:
        # By number, not by place: of one that has fallen off the bus there is no reading.
        return {f"cuda:{gpu.index}": gpu.uuid for gpu in gpus}
    visible = visible_devices([Gpu(gpu.index, gpu.uuid, "") for gpu in gpus], environ)
    return {f"cuda:{number}": device.gpu.uuid for number, device in enumerate(visible)}


def _labels(
    labels: Sequence[str], slot: int, busy_s: Mapping[str, np.ndarray], uuids: Mapping[str, str]
) -> dict[str, str]:
    """Return name and version, and the GPU if all batches ran on one: counters are not kept by GPU."""
    used = [device for device, kept_s in busy_s.items() if kept_s[slot]]
    uuid = uuids.get(used[0]) if len(used) == 1 else None
    own = dict(zip(("model", "version"), labels, strict=True))
    return own if uuid is None else {"gpu_uuid": uuid, **own}


def _failures(totals: ModelTotals) -> dict[str, int]:
    counts = dict.fromkeys(_WORDS, 0)
    for status, count in totals.requests().items():
        if status != 200:
            counts[_REASONS.get(status, "OTHER")] += count
    return counts


_GPU_QUANTITIES: Final = {
    "stoker_gpu_memory_used_bytes": ("memory_used_bytes", 1, "GPU memory in use"),
    "stoker_gpu_memory_total_bytes": ("memory_total_bytes", 1, "GPU memory"),
    "stoker_gpu_memory_free_bytes": ("memory_free_bytes", 1, "GPU memory that nothing holds"),
    "stoker_gpu_utilization_ratio": ("utilization_percent", 100, "Share of time in which a kernel ran"),
    "stoker_gpu_power_watts": ("power_mw", 1000, "Power that the GPU draws"),
    "stoker_gpu_power_limit_watts": ("power_limit_mw", 1000, "Power that the driver lets the GPU draw"),
    "stoker_gpu_temperature_celsius": ("temperature_c", 1, "Temperature of the GPU"),
    "stoker_gpu_energy_joules": ("energy_mj", 1000, "Energy that the GPU took since its driver was loaded"),
}
"""Attribute of a reading, its unit, and help of each metric; only the energy is a counter."""
_GPU_NAMES: Final = {
    "stoker_gpu_memory_used_bytes": "nv_gpu_memory_used_bytes",
    "stoker_gpu_memory_total_bytes": "nv_gpu_memory_total_bytes",
    "stoker_gpu_utilization_ratio": "nv_gpu_utilization",
    "stoker_gpu_power_watts": "nv_gpu_power_usage",
    "stoker_gpu_power_limit_watts": "nv_gpu_power_limit",
    "stoker_gpu_energy_joules": "nv_energy_consumption",
}
"""Triton's names."""


def gpu_metrics(readings: Sequence[GpuReading]) -> Iterator[Metric]:
    """Return all metrics of GPUs; numbers that were not read are left out."""
    for name, (field, unit, text) in _GPU_QUANTITIES.items():
        values = [(reading, getattr(reading, field)) for reading in readings]
        known = [(reading, value / unit) for reading, value in values if value is not None]
        counts = field == "energy_mj"
        own = (CounterMetricFamily if counts else GaugeMetricFamily)(
            name, f"{text}, by NVML.", labels=["gpu", "uuid"]
        )
        for reading, value in known:
            own.add_metric([str(reading.index), reading.uuid], value)
        yield own
        if name in _GPU_NAMES:
            meaning, kind = (f"{name}_total", "unknown") if counts else (name, "gauge")
            samples = [({"gpu_uuid": reading.uuid}, value) for reading, value in known]
            yield _metric(_GPU_NAMES[name], meaning, samples, kind)
    throttled = GaugeMetricFamily(
        "stoker_gpu_throttle_reason",
        "1 for each reason why the clocks of the GPU are below their maximum, by NVML.",
        labels=["gpu", "uuid", "reason"],
    )
    for reading in readings:
        for reason, holds in reading.throttle_reasons().items():
            throttled.add_metric([str(reading.index), reading.uuid, reason], float(holds))
    yield throttled
