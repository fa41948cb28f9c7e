"""Counters and readings of GPUs under Triton's names, for tools that were made for Triton.

Source: docs/user_guide/metrics.md of Triton, "Inference Request Metrics". Sums only grow, as counters must; the times
by request of the statistics extension are made of means of rows, and may shrink.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.gpu.facts import Gpu, GpuReading, visible_devices
from stoker.metrics.totals import CacheTotals, ModelTotals

_FAILURES: Final = "nv_inference_request_failure"
_REASONS: Final = {429: "REJECTED", 499: "CANCELED", 500: "BACKEND", 503: "REJECTED", 504: "REJECTED"}
"""Triton's words for why a request failed, by status; any other is `OTHER`."""
_WORDS: Final = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


class _Quantity(NamedTuple):
    name: str
    text: str
    read: Callable[[ModelTotals], float]


def _stage_us(stage: str) -> Callable[[ModelTotals], float]:
    return lambda totals: totals.stage_ns()[stage][1] / 1000


_QUANTITIES: Final = (
    _Quantity(
        "nv_inference_request_success",
        'Triton\'s name of stoker_requests_total{status="200"}.',
        lambda totals: totals.requests()[200],
    ),
    _Quantity("nv_inference_count", "Triton's name of stoker_rows_total.", lambda totals: totals.rows),
    _Quantity(
        "nv_inference_exec_count",
        "Triton's name of stoker_batch_rows_count.",
        lambda totals: sum(totals.batch_rows().counts),
    ),
    _Quantity(
        "nv_inference_request_duration_us",
        'Triton\'s name of stoker_stage_seconds_sum{stage="total"}, in microseconds.',
        _stage_us("total"),
    ),
    _Quantity(
        "nv_inference_queue_duration_us",
        'Triton\'s name of stoker_stage_seconds_sum{stage="queue"}, of rows, in microseconds.',
        _stage_us("queue"),
    ),
    _Quantity(
        "nv_inference_compute_input_duration_us",
        'Triton\'s name of stoker_stage_seconds_sum{stage="parse"}, in microseconds.',
        _stage_us("parse"),
    ),
    _Quantity(
        "nv_inference_compute_infer_duration_us",
        "The times of the batches that rows were in, summed over rows, in microseconds; a name of Triton's.",
        lambda totals: totals.row_compute_ns / 1000,
    ),
    _Quantity(
        "nv_inference_compute_output_duration_us",
        "Always 0, for writing answers is not measured apart; a name of Triton's.",
        lambda _: 0,
    ),
)
_UNTYPED: Final = re.compile(rb"^(# TYPE nv_\w+) untyped$", re.MULTILINE)
_LARGE: Final = re.compile(rb"^(nv_\w+(?:\{.*\})?) ([0-9.]+e\+[0-9]+)$", re.MULTILINE)


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
    for quantity in _QUANTITIES:
        # prometheus_client would end the name of a counter in _total, which Triton's names do not.
        counter = Metric(quantity.name, quantity.text, "unknown")
        for labels, totals in labelled:
            counter.add_sample(quantity.name, labels, quantity.read(totals))
        yield counter
    failures = Metric(
        _FAILURES, "Triton's name of stoker_requests_total, of all statuses but 200.", "unknown"
    )
    waiting = GaugeMetricFamily(
        "nv_inference_pending_request_count",
        "Triton's name of stoker_queue_rows: rows, not requests.",
        labels=["model", "version"],
    )
    for labels, totals in labelled:
        for reason, count in _failures(totals).items():
            failures.add_sample(_FAILURES, {**labels, "reason": reason}, count)
        waiting.add_sample(waiting.name, labels, totals.queue_rows)
    yield from (failures, waiting)


_CACHE: Final[tuple[tuple[str, str, Callable[[CacheTotals], float]], ...]] = (
    ("nv_cache_num_hits_per_model", "stoker_cache_hits", lambda cache: cache.hits),
    ("nv_cache_num_misses_per_model", "stoker_cache_misses", lambda cache: cache.misses),
    ("nv_cache_hit_duration_per_model", "stoker_cache_hit_seconds", lambda cache: cache.hit_ns / 1e9 * 10**6),
    (
        "nv_cache_miss_duration_per_model",
        "stoker_cache_miss_seconds",
        lambda cache: cache.miss_ns / 1e9 * 10**6,
    ),
)
"""Triton's name, Stoker's name and the value; Triton counts microseconds."""


def cache_metrics(named: Sequence[tuple[list[str], ModelTotals]]) -> Iterator[Metric]:
    """The metrics of response caches under Triton's names; models that do not use theirs have no samples."""
    caches = [(labels, totals.cache()) for labels, totals in named]
    for name, own, read in _CACHE:
        metric = Metric(name, f"Triton's name of {own}_total.", "unknown")
        for (model, version), cache in caches:
            if cache.hits or cache.misses:
                metric.add_sample(name, {"model": model, "version": version}, read(cache))
        yield metric


def format_for_triton(exposition: bytes) -> bytes:
    """Rewrite the metrics with Triton's names as its tools read them: as counters, without exponents."""
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


@dataclass(frozen=True, slots=True)
class _GpuQuantity:
    """A number that is read of each GPU.

    Attributes:
        name: The metric's name; of a counter, without `_total`.
        read: Returns the number; None if the driver does not report it.
        alias: Triton's name.
        counter: Whether the number only grows.
    """

    name: str
    text: str
    read: Callable[[GpuReading], float | None]
    alias: str | None = None
    counter: bool = False


def _scaled(field: str, unit: float) -> Callable[[GpuReading], float | None]:
    def read(reading: GpuReading) -> float | None:
        value = getattr(reading, field)
        return None if value is None else value / unit

    return read


_GPU_QUANTITIES: Final = (
    _GpuQuantity(
        "stoker_gpu_memory_used_bytes",
        "GPU memory in use, by NVML.",
        _scaled("memory_used_bytes", 1),
        "nv_gpu_memory_used_bytes",
    ),
    _GpuQuantity(
        "stoker_gpu_memory_total_bytes",
        "GPU memory, by NVML.",
        _scaled("memory_total_bytes", 1),
        "nv_gpu_memory_total_bytes",
    ),
    _GpuQuantity(
        "stoker_gpu_memory_free_bytes",
        "GPU memory that nothing holds, by NVML.",
        _scaled("memory_free_bytes", 1),
    ),
    _GpuQuantity(
        "stoker_gpu_utilization_ratio",
        "Share of time in which a kernel ran, by NVML.",
        _scaled("utilization_percent", 100),
        "nv_gpu_utilization",
    ),
    _GpuQuantity(
        "stoker_gpu_power_watts",
        "Power that the GPU draws, by NVML.",
        _scaled("power_mw", 1000),
        "nv_gpu_power_usage",
    ),
    _GpuQuantity(
        "stoker_gpu_power_limit_watts",
        "Power that the driver lets the GPU draw, by NVML.",
        _scaled("power_limit_mw", 1000),
        "nv_gpu_power_limit",
    ),
    _GpuQuantity(
        "stoker_gpu_temperature_celsius", "Temperature of the GPU, by NVML.", _scaled("temperature_c", 1)
    ),
    _GpuQuantity(
        "stoker_gpu_energy_joules",
        "Energy that the GPU took since its driver was loaded, by NVML.",
        _scaled("energy_mj", 1000),
        "nv_energy_consumption",
        counter=True,
    ),
)


def gpu_metrics(readings: Sequence[GpuReading]) -> Iterator[Metric]:
    """Return all metrics of GPUs; numbers that were not read are left out."""
    for quantity in _GPU_QUANTITIES:
        values = [(reading, quantity.read(reading)) for reading in readings]
        yield from _families(quantity, [(reading, value) for reading, value in values if value is not None])
    throttled = GaugeMetricFamily(
        "stoker_gpu_throttle_reason",
        "1 for each reason why the clocks of the GPU are below their maximum, by NVML.",
        labels=["gpu", "uuid", "reason"],
    )
    for reading in readings:
        for reason, holds in reading.throttle_reasons().items():
            throttled.add_metric([str(reading.index), reading.uuid, reason], float(holds))
    yield throttled


def _families(quantity: _GpuQuantity, values: Sequence[tuple[GpuReading, float]]) -> Iterator[Metric]:
    kind = CounterMetricFamily if quantity.counter else GaugeMetricFamily
    own = kind(quantity.name, quantity.text, labels=["gpu", "uuid"])
    for reading, value in values:
        own.add_metric([str(reading.index), reading.uuid], value)
    yield own
    if quantity.alias is not None:
        # prometheus_client would end the name of a counter in _total, which Triton's names do not.
        kind_of_alias, ending = ("unknown", "_total") if quantity.counter else ("gauge", "")
        alias = Metric(quantity.alias, f"Triton's name of {quantity.name}{ending}.", kind_of_alias)
        for reading, value in values:
            alias.add_sample(quantity.alias, {"gpu_uuid": reading.uuid}, value)
        yield alias
