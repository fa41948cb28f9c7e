"""Metrics of the sequences of models with state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.metrics.totals import ModelTotals

__all__ = ["sequence_metrics"]

_LABELS = ["model", "version"]


def sequence_metrics(named: Sequence[tuple[list[str], ModelTotals]]) -> Iterator[Metric]:
    """What is counted of models of which a sequence was started; others have no samples."""
    live = GaugeMetricFamily(
        "stoker_sequences", "Sequences whose state is kept, over all replicas.", labels=_LABELS
    )
    started = CounterMetricFamily("stoker_sequences_started", "Sequences that were started.", labels=_LABELS)
    over = CounterMetricFamily(
        "stoker_sequences_ended",
        "Sequences that were ended by their callers, or had been idle for too long.",
        labels=[*_LABELS, "reason"],
    )
    for labels, model in named:
        sequences = model.sequences()
        if sequences.started:
            live.add_metric(labels, sequences.live)
            started.add_metric(labels, sequences.started)
            over.add_metric([*labels, "end"], sequences.ended)
            over.add_metric([*labels, "idle"], sequences.expired)
    yield from (live, started, over)
