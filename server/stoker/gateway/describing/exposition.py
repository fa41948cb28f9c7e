"""The counters of `stoker.metrics` as a Prometheus exposition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stoker.gateway.describing.triton_exposition import (
    cache_metrics,
    format_for_triton,
    gpu_metrics,
    inference_metrics,
)
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.keys.callers import ONLY_DEFAULT
from stoker.metrics.load import LoadMeter, load_of_all
from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import CacheTotals, HistogramTotals, ModelTotals, Totals

__all__ = ["render", "render_load"]

_Labels = list[str]
"""Name and version of a model."""
_Named = list[tuple[_Labels, ModelTotals]]
_Value = float | HistogramTotals
_Values = _Value | Mapping[Any, _Value] | None
"""One value, or a value for each value of the labels beside name and version; None for no sample."""


class _Family:
    """A metric that is read from the counters of each model.

    Args:
        labels: Its labels beside name and version.
    """

    def __init__(
        self,
        kind: Callable[..., Metric],
        name: str,
        text: str,
        read: Callable[[ModelTotals], _Values],
        *labels: str,
    ) -> None:
        self._kind, self._name, self._text = kind, name, text
        self._read, self._labels = read, labels

    def collect(self, named: _Named) -> Metric:
        samples: list[tuple[_Labels, _Value]] = []
        for labels, totals in named:
            values = self._read(totals)
            if isinstance(values, Mapping):
                for key, value in values.items():
                    samples.append(([*labels, *((key,) if isinstance(key, str) else key)], value))
            elif values is not None:
                samples.append((labels, values))
        return _metric(self._kind, self._name, self._text, samples, "model", "version", *self._labels)


def _metric(
    kind: Callable[..., Metric],
    name: str,
    text: str,
    samples: Iterable[tuple[Sequence[str], _Value]],
    *labels: str,
) -> Metric:
    """Make a metric of samples: the values of its labels, and its value."""
    metric: Any = kind(name, text, labels=labels)
    for names, value in samples:
        if isinstance(value, HistogramTotals):
            metric.add_metric(names, value.buckets(), value.sum)
        else:
            metric.add_metric(names, value)
    return metric  # type: ignore[no-any-return]


def _if_counted(histogram: HistogramTotals) -> HistogramTotals | None:
    return histogram if any(histogram.counts) else None


def _dispatches(model: ModelTotals) -> dict[str, int]:
    late = model.target_dispatches()
    has_targets = any(model.answered_rows().values()) or any(late.values())
    return model.dispatches() | (late if has_targets else {})


def _in_target(model: ModelTotals) -> dict[str, int]:
    in_target = model.in_target_rows()
    return {tier: in_target[tier] for tier, rows in model.answered_rows().items() if rows}


def _if_cached(read: Callable[[CacheTotals], float]) -> Callable[[ModelTotals], float | None]:
    """Read the response cache; models that do not use it have no samples."""
    return lambda model: read(model.cache()) if model.cache().hits or model.cache().misses else None


_METRICS: Final = (
    _Family(
        Counter,
        "stoker_requests",
        "Scoring requests answered.",
        lambda model: {
            str(status or "other"): count
            for status, count in model.requests().items()
            if count or status == 200
        },
        "status",
    ),
    _Family(
        Counter,
        "stoker_rejections",
        "Scoring requests refused before the device.",
        ModelTotals.rejections,
        "reason",
    ),
    _Family(Counter, "stoker_rows", "Rows of the requests answered with 200.", lambda model: model.rows),
    _Family(Gauge, "stoker_rows_in_flight", "Rows leased by requests.", lambda model: model.rows_in_flight),
    _Family(Gauge, "stoker_queue_rows", "Rows that wait for the device.", lambda model: model.queue_rows),
    _Family(Gauge, "stoker_ready_replicas", "Replicas that are loaded.", lambda model: model.ready_replicas),
    _Family(Counter, "stoker_dispatches", "Batches by why they left.", _dispatches, "reason"),
    _Family(Histogram, "stoker_batch_rows", "Rows per batch.", ModelTotals.batch_rows),
    _Family(
        Counter,
        "stoker_batch_padding_rows",
        "Rows that filled batches up to a bucket.",
        lambda model: model.padding_rows,
    ),
    _Family(
        Gauge,
        "stoker_batch_cap_rows",
        "Most rows that a batch may have now.",
        lambda model: model.batch_cap_rows,
    ),
    _Family(
        Histogram,
        "stoker_stage_seconds",
        "Time by stage: parse and total per request, queue per row, compute per batch.",
        ModelTotals.stage_seconds,
        "stage",
    ),
    _Family(
        Histogram,
        "stoker_first_response_seconds",
        "How long after a request's body the first piece of its answer was there, where it came in pieces.",
        lambda model: _if_counted(model.first_responses()),
    ),
    _Family(
        Counter,
        "stoker_refusals",
        "Requests that were told when to come back.",
        ModelTotals.refusals,
        "reason",
        "tier",
    ),
    _Family(Counter, "stoker_in_target", "Rows answered within their targets.", _in_target, "tier"),
    _Family(
        Counter,
        "stoker_answers",
        "Rows answered, of models with targets.",
        lambda model: {tier: rows for tier, rows in model.answered_rows().items() if rows},
        "tier",
    ),
    _Family(
        Histogram,
        "stoker_expected_over_actual",
        "Expected time of a batch over the time that it took.",
        lambda model: model.expected_over_actual() if any(model.answered_rows().values()) else None,
    ),
    _Family(
        Histogram,
        "stoker_turn_wait_seconds",
        "How long batches waited for their turns of the device.",
        lambda model: _if_counted(model.turn_waits()),
    ),
    _Family(
        Gauge,
        "stoker_sequences",
        "Sequences whose state is kept, over all replicas.",
        lambda model: model.sequences().live if model.sequences().started else None,
    ),
    _Family(
        Counter,
        "stoker_sequences_started",
        "Sequences that were started.",
        lambda model: model.sequences().started or None,
    ),
    _Family(
        Counter,
        "stoker_sequences_ended",
        "Sequences that were ended by their callers, or had been idle for too long.",
        lambda model: (
            {"end": model.sequences().ended, "idle": model.sequences().expired}
            if model.sequences().started
            else None
        ),
        "reason",
    ),
    _Family(
        Counter,
        "stoker_cache_hits",
        "Requests answered by a kept answer.",
        _if_cached(lambda cache: cache.hits),
    ),
    _Family(
        Counter,
        "stoker_cache_misses",
        "Requests whose answer was not among those that are kept.",
        _if_cached(lambda cache: cache.misses),
    ),
    _Family(
        Counter,
        "stoker_cache_hit_seconds",
        "Time in which kept answers were found.",
        _if_cached(lambda cache: cache.hit_ns / 1e9),
    ),
    _Family(
        Counter,
        "stoker_cache_miss_seconds",
        "Time in which answers were looked for, not found, and then kept.",
        _if_cached(lambda cache: cache.miss_ns / 1e9),
    ),
    _Family(
        Counter,
        "stoker_cache_evictions",
        "Kept answers forgotten for others.",
        _if_cached(lambda cache: cache.evictions),
    ),
    _Family(
        Gauge,
        "stoker_cache_bytes",
        "What kept answers take in all frontends.",
        _if_cached(lambda cache: cache.size_bytes),
    ),
    _Family(
        Counter,
        "stoker_isolation_audits",
        "Rows of running batches that were run again beside other rows.",
        ModelTotals.audits,
        "result",
    ),
    _Family(
        Counter,
        "stoker_non_finite_answers",
        "Rows with answers that are not finite though all that they hold is.",
        lambda model: model.non_finite_rows,
    ),
    _Family(
        Counter,
        "stoker_compared_answers",
        "Requests that this version and the one that it takes over from have both answered.",
        ModelTotals.comparisons,
        "result",
    ),
    _Family(
        Counter,
        "stoker_compared_flips",
        "Those whose answers are of different classes.",
        lambda model: model.flips,
    ),
    _Family(
        Counter,
        "stoker_takeover_decisions",
        "What was decided on a version that is to take over.",
        ModelTotals.decisions,
        "decision",
    ),
    _Family(
        Counter,
        "stoker_collected_records",
        "Sampled requests written to the workspace.",
        lambda model: model.collected,
    ),
    _Family(
        Counter,
        "stoker_collection_dropped",
        "Sampled requests that were not written.",
        ModelTotals.collection_dropped,
        "reason",
    ),
)
"""The metrics that are read from the counters of each model."""


def render(
    memory: MetricMemory,
    models: Mapping[str, ServedModel],
    meter: LoadMeter,
    callers: Mapping[int, str] = ONLY_DEFAULT,
) -> bytes:
    """Return all metrics in Prometheus text format, those of all versions that have been served.

    Args:
        callers: Names of callers by their numbers.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ServerCollector(memory, models, meter, callers))
    return format_for_triton(generate_latest(registry))


def render_load(models: Mapping[str, ServedModel], meter: LoadMeter) -> bytes:
    """Return the two lines that an autoscaler needs, in the same format."""
    loads = meter.read([version.standing.slot for _, version in _loaded(models)])
    overloaded = sum(load.overloaded for load in loads.values())
    return (
        f'stoker_load {load_of_all(loads):.4f}\nstoker_rejections_total{{reason="overloaded"}} {overloaded}\n'
    ).encode()


def _versions(models: Mapping[str, ServedModel]) -> list[tuple[_Labels, ServedVersion]]:
    return [([name, number], one) for name, model in models.items() for number, one in model.versions.items()]


def _loaded(models: Mapping[str, ServedModel]) -> list[tuple[_Labels, ServedVersion]]:
    return [(labels, version) for labels, version in _versions(models) if version.service is not None]


def _share(model: ServedModel, number: str) -> float:
    """Return the share of the requests without a version that a version gets."""
    if model.split is None:
        return float(number == model.default)
    return model.split.weights.get(number, 0) / sum(model.split.weights.values())


class _ServerCollector(Collector):
    """Collects metrics from the shared memory and the models."""

    def __init__(
        self,
        memory: MetricMemory,
        models: Mapping[str, ServedModel],
        meter: LoadMeter,
        callers: Mapping[int, str],
    ) -> None:
        self._memory, self._callers = memory, callers
        self._models, self._meter = models, meter

    def collect(self) -> Iterator[Metric]:
        totals = self._memory.totals()
        slots = [(labels, version.standing.slot) for labels, version in _versions(self._models)]
        named = [(labels, totals.model(slot)) for labels, slot in slots]
        busy_s, gpus = self._memory.busy_s(), totals.gpus()
        for family in _METRICS:
            yield family.collect(named)
        yield from self._version_metrics()
        yield from self._device_metrics(slots, busy_s)
        yield from cache_metrics(named)
        yield from inference_metrics(named, slots, busy_s, gpus)
        yield from _process_metrics(totals)
        yield from gpu_metrics(gpus)

    def _version_metrics(self) -> Iterator[Metric]:
        """The load of each version that is served, its share of the requests, and how it is batched."""
        loaded = {version.standing.slot: labels for labels, version in _loaded(self._models)}
        loads = [(loaded[slot], load) for slot, load in self._meter.read(loaded).items()]
        yield _metric(
            Gauge,
            "stoker_load",
            "What is asked of what can be done, since it was read before.",
            ((labels, load.ratio) for labels, load in loads),
            "model",
            "version",
        )
        yield _metric(
            Gauge,
            "stoker_capacity_rows_per_second",
            "Rows that full batches would do in a second.",
            ((labels, load.capacity_rows_s) for labels, load in loads),
            "model",
            "version",
        )
        yield _metric(
            Gauge,
            "stoker_version_share_ratio",
            "Share of the requests that name no version.",
            (
                ([name, number], _share(model, number))
                for name, model in self._models.items()
                for number in model.served
            ),
            "model",
            "version",
        )
        batching = []
        for labels, version in _loaded(self._models):
            signature = None if version.service is None else version.service.signature
            if signature is not None and (verdict := signature.verdict) is not None:
                batching.append(([*labels, str(verdict.batched).lower(), verdict.how], 1))
        yield _metric(
            Gauge,
            "stoker_batching_info",
            "1 for each version that is served: whether its requests are batched, and how that was found out.",
            batching,
            "model",
            "version",
            "batched",
            "how",
        )

    def _device_metrics(
        self, slots: Sequence[tuple[_Labels, int]], busy_s: Mapping[str, np.ndarray]
    ) -> Iterator[Metric]:
        """Device time by model and by caller, and the learned times of batches."""
        yield _metric(
            Counter,
            "stoker_device_busy_seconds",
            "Time for which batches kept a device.",
            (
                ([device, *labels], float(kept_s[slot]))
                for device, kept_s in busy_s.items()
                for labels, slot in slots
                if kept_s[slot]
            ),
            "device",
            "model",
            "version",
        )
        times = Gauge(
            "stoker_batch_mean_seconds",
            "Mean time of batches of that many rows up to twice as many, the latest first.",
            labels=["model", "version", "rows"],
        )
        sizes = Gauge(
            "stoker_batch_mean_rows", "Mean rows of these batches.", labels=["model", "version", "rows"]
        )
        for labels, slot in slots:
            for least, (rows, seconds) in self._memory.batch_times(slot).items():
                times.add_metric([*labels, str(least)], seconds)
                sizes.add_metric([*labels, str(least)], rows)
        yield from (times, sizes)
        elapsed_ns = self._memory.caller_usage().all_device_ns().tolist()
        yield _metric(
            Counter,
            "stoker_caller_device_seconds",
            "Time for which batches kept devices, by the callers of their rows.",
            (
                ([self._callers[caller]], spent_ns / 1e9)
                for caller, spent_ns in enumerate(elapsed_ns)
                if spent_ns and caller in self._callers
            ),
            "caller",
        )


def _process_metrics(totals: Totals) -> Iterator[Metric]:
    held_bytes, budget_bytes = totals.large_body_bytes
    # Without series where no port speaks TLS.
    expiries = totals.certificate_expiries()
    handshakes = {key: count for key, count in totals.handshake_failures().items() if key[0] in expiries}
    for kind, name, text, values, *labels in (
        (Counter, "stoker_process_restarts", "Processes restarted.", totals.restarts(), "process"),
        (
            Counter,
            "stoker_accept_failures",
            "Connections closed unserved because a frontend had no file descriptors.",
            {(): totals.accept_failures},
        ),
        (
            Gauge,
            "stoker_open_connections",
            "Connections that are open.",
            totals.open_connections(),
            "protocol",
        ),
        (
            Gauge,
            "stoker_certificate_expiration_timestamp_seconds",
            "When the certificate that is shown expires, in seconds since 1970.",
            expiries,
            "protocol",
        ),
        (
            Counter,
            "stoker_tls_handshake_failures",
            "TLS handshakes that failed.",
            handshakes,
            "protocol",
            "reason",
        ),
        (
            Gauge,
            "stoker_large_body_bytes",
            "What request bodies above 1 MiB take of their budget.",
            {(): held_bytes},
        ),
        (Gauge, "stoker_large_body_budget_bytes", "What they may take in all frontends.", {(): budget_bytes}),
        (
            Gauge,
            "stoker_keys_generation",
            "The number of the keys that hold, where they have one.",
            {(): totals.keys_generation},
        ),
        (
            Counter,
            "stoker_traced_requests",
            "Traced requests by what became of their spans.",
            totals.traces(),
            "result",
        ),
    ):
        samples = (((key,) if isinstance(key, str) else key, value) for key, value in values.items())
        yield _metric(kind, name, text, samples, *labels)
