"""Metrics of how models share devices, and of what their batches take there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import ModelTotals

__all__ = ["caller_metric", "device_metrics"]


def device_metrics(
    named: Sequence[tuple[list[str], ModelTotals]],
    slots: Sequence[tuple[list[str], int]],
    memory: MetricMemory,
    busy_s: Mapping[str, np.ndarray],
) -> Iterator[Metric]:
    """Device time by model; waits for turns, of models that take turns; and learned times.

    Args:
        named: Totals by their labels: name and version.
        slots: The slots of these labels.
        memory: The counters of all processes.
        busy_s: How long batches of each slot kept each device, by its name.
    """
    busy = CounterMetricFamily(
        "stoker_device_busy_seconds",
        "Time for which batches kept a device.",
        labels=["device", "model", "version"],
    )
    for device, kept_s in busy_s.items():
        for labels, slot in slots:
            if kept_s[slot]:
                busy.add_metric([device, *labels], float(kept_s[slot]))
    waits = HistogramMetricFamily(
        "stoker_turn_wait_seconds",
        "How long batches waited for their turns of the device.",
        labels=["model", "version"],
    )
    times = GaugeMetricFamily(
        "stoker_batch_mean_seconds",
        "Mean time of batches of that many rows up to twice as many, the latest first.",
        labels=["model", "version", "rows"],
    )
    sizes = GaugeMetricFamily(
        "stoker_batch_mean_rows", "Mean rows of these batches.", labels=["model", "version", "rows"]
    )
    for labels, model in named:
        turns = model.turn_waits()
        if any(turns.counts):
            waits.add_metric(labels, turns.buckets(), turns.sum)
    for labels, slot in slots:
        for least, (rows, seconds) in memory.batch_times(slot).items():
            times.add_metric([*labels, str(least)], seconds)
            sizes.add_metric([*labels, str(least)], rows)
    yield from (busy, waits, times, sizes)


def caller_metric(memory: MetricMemory, names: Mapping[int, str]) -> Metric:
    """Device time by caller.

    Args:
        memory: The counters of all processes.
        names: Those of callers, by their numbers; of others nothing is said.
    """
    times = CounterMetricFamily(
        "stoker_caller_device_seconds",
        "Time for which batches kept devices, by the callers of their rows.",
        labels=["caller"],
    )
    for caller, elapsed_ns in enumerate(memory.caller_usage().all_device_ns().tolist()):
        if elapsed_ns and caller in names:
            times.add_metric([names[caller]], elapsed_ns / 1e9)
    return times
