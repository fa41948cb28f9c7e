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
from prometheus_client.core import Metric as Family

from stoker.gateway.describing.families import make_family, make_foreign_family
from stoker.gpu.facts import Gpu, GpuReading, visible_devices
from stoker.metrics import table
from stoker.metrics.totals import ModelTotals

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
    table.ROWS.triton: ("stoker_rows_total", lambda model: model.rows),
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
) -> Iterator[Family]:
    """The metrics of models under Triton's names; `slots` are those of the same labels, in the same order."""
    uuids = _uuids(gpus, os.environ)
    labelled = [
        (_labels(labels, slot, busy_s, uuids), totals)
        for (labels, totals), (_, slot) in zip(named, slots, strict=True)
    ]
    for name, (meaning, read) in _QUANTITIES.items():
        yield _alias(name, meaning, [(labels, read(totals)) for labels, totals in labelled])
    failures = [
        ({**labels, "reason": reason}, count)
        for labels, totals in labelled
        for reason, count in _failures(totals).items()
    ]
    yield _alias(_FAILURES, "stoker_requests_total, of all statuses but 200", failures)
    waiting = [(labels, totals.queue_rows) for labels, totals in labelled]
    yield _alias(table.QUEUED_ROWS.triton, "stoker_queue_rows: rows, not requests", waiting, "gauge")


def _alias(
    name: str, meaning: str, samples: Iterable[tuple[dict[str, str], float]], kind: str = "unknown"
) -> Family:
    return make_foreign_family(name, f"Triton's name of {meaning}.", samples, kind)


def cache_metrics(named: Sequence[tuple[list[str], ModelTotals]]) -> Iterator[Family]:
    """The metrics of response caches under Triton's names; models that do not use theirs have no samples."""
    for metric in (table.CACHE_HITS, table.CACHE_MISSES, table.CACHE_HIT_TIMES, table.CACHE_MISS_TIMES):
        # Triton counts microseconds.
        unit = 1 if metric.unit == 1 else 1000
        samples = [
            ({"model": model, "version": version}, totals.words[metric.offset] / unit)
            for (model, version), totals in named
            if metric.values(totals.words)
        ]
        yield _alias(metric.triton, f"{metric.name}_total", samples)


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


def gpu_metrics(readings: Sequence[GpuReading]) -> Iterator[Family]:
    """Return all metrics of GPUs; numbers that were not read are left out."""
    for attribute, metric in table.GPU_METRICS.items():
        values = [(reading, getattr(reading, attribute)) for reading in readings]
        known = [(reading, value / metric.unit) for reading, value in values if value is not None]
        yield make_family(metric, (([str(reading.index), reading.uuid], value) for reading, value in known))
        if metric.triton:
            counts = metric.kind == "counter"
            meaning, kind = (f"{metric.name}_total", "unknown") if counts else (metric.name, "gauge")
            samples = [({"gpu_uuid": reading.uuid}, value) for reading, value in known]
            yield _alias(metric.triton, meaning, samples, kind)
    throttled = (
        ([str(reading.index), reading.uuid, reason], float(holds))
        for reading in readings
        for reason, holds in reading.throttle_reasons().items()
    )
    yield make_family(table.GPU_THROTTLED, throttled)
