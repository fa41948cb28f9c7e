"""What is counted of models under the names that Triton gives it, for dashboards and tools that were made for those.

Source: docs/user_guide/metrics.md of Triton, "Inference Request Metrics". Sums that only grow, as counters must: the
statistics extension has times by request, which means of rows make and which may become less.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric

from stoker.gpu.facts import Gpu, GpuReading
from stoker.gpu.visible import visible_devices
from stoker.metrics.totals import ModelTotals

__all__ = ["as_triton_writes", "inference_metrics"]

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
    """The metrics of models under Triton's names.

    Args:
        named: Totals by their labels: name and version.
        slots: The slots of the same labels, in the same order.
        busy_s: How long batches of each slot kept each device, by its name.
        gpus: What was read of each GPU.
    """
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


def as_triton_writes(exposition: bytes) -> bytes:
    """Return a text with all that has Triton's names as its tools read it.

    Args:
        exposition: In it, counters of these names have no type, for theirs do not end in `_total`.
    """
    # To perf_analyzer a number ends at an `e`: 5.4e+09 bytes are 5 bytes.
    plain = _LARGE.sub(lambda line: b"%b %b" % (line[1], _plain(line[2])), exposition)
    return _UNTYPED.sub(rb"\1 counter", plain)


def _plain(number: bytes) -> bytes:
    return f"{float(number):.6f}".rstrip("0").rstrip(".").encode()


def _uuids(gpus: Sequence[GpuReading], environ: Mapping[str, str]) -> dict[str, str]:
    """UUIDs by the names of devices, which CUDA_VISIBLE_DEVICES renumbers; readings have the driver's numbers."""
    if "CUDA_VISIBLE_DEVICES" not in environ:
        # By number, not by place: of one that has fallen off the bus there is no reading.
        return {f"cuda:{gpu.index}": gpu.uuid for gpu in gpus}
    visible = visible_devices([Gpu(gpu.index, gpu.uuid, "") for gpu in gpus], environ)
    return {f"cuda:{number}": device.gpu.uuid for number, device in enumerate(visible)}


def _labels(
    labels: Sequence[str], slot: int, busy_s: Mapping[str, np.ndarray], uuids: Mapping[str, str]
) -> dict[str, str]:
    """Name and version, and the GPU where all batches ran on one: counts of several are not told apart."""
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
