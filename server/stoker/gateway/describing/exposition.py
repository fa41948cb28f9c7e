"""The counters of `stoker.metrics` as a Prometheus exposition."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stoker.gateway.describing.torchserve_exposition import torchserve_metrics
from stoker.gateway.describing.triton_exposition import (
    cache_metrics,
    format_for_tools,
    gpu_metrics,
    inference_metrics,
)
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.keys.callers import ONLY_DEFAULT
from stoker.metrics.layout import UNLOADED_SLOT
from stoker.metrics.load import LoadMeter, load_of_all
from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import CacheTotals, HistogramTotals, ModelTotals, OnDemandTotals, Totals

if TYPE_CHECKING:
    from stoker.gateway.later.spool import Spool, Usage

_Labels = list[str]
"""Name and version of a model."""
_Named = list[tuple[_Labels, ModelTotals]]
_Value = float | HistogramTotals
_Values = _Value | Mapping[Any, _Value] | None
"""One value, or a value for each value of the labels beside name and version; None for no sample."""


_MODEL_FAMILIES: Final[dict[str, tuple[Callable[..., Metric], str, str]]] = {
    "stoker_requests": (Counter, "status", "Scoring requests answered."),
    "stoker_rejections": (Counter, "reason", "Scoring requests refused before the device."),
    "stoker_rows": (Counter, "", "Rows of the requests answered with 200."),
    "stoker_rows_in_flight": (Gauge, "", "Rows leased by requests."),
    "stoker_queue_rows": (Gauge, "", "Rows that wait for a device."),
    "stoker_ready_replicas": (Gauge, "", "Replicas that are loaded."),
    "stoker_dispatches": (Counter, "reason", "Batches by the reason for their dispatch."),
    "stoker_batch_rows": (Histogram, "", "Rows per batch."),
    "stoker_batch_padding_rows": (Counter, "", "Rows that filled batches up to a bucket."),
    "stoker_batch_cap_rows": (Gauge, "", "Most rows that a batch may have now."),
    "stoker_stage_seconds": (
        Histogram,
        "stage",
        "Time by stage: parse and total per request, queue per row, compute per batch.",
    ),
    "stoker_first_response_seconds": (
        Histogram,
        "",
        "Time from the end of a request's body to the first piece of its answer, if it comes in pieces.",
    ),
    "stoker_refusals": (Counter, "reason tier", "Requests refused with a time to retry."),
    "stoker_in_target": (Counter, "tier", "Rows answered within their targets."),
    "stoker_answers": (Counter, "tier", "Rows answered, of models with targets."),
    "stoker_expected_over_actual": (Histogram, "", "Expected over actual time of a batch."),
    "stoker_turn_wait_seconds": (
        Histogram,
        "",
        "Time for which batches waited for their turn on the device.",
    ),
    "stoker_sequences": (Gauge, "", "Sequences with state, over all replicas."),
    "stoker_sequences_started": (Counter, "", "Sequences started."),
    "stoker_sequences_ended": (Counter, "reason", "Sequences ended by their callers, or idle for too long."),
    "stoker_cache_hits": (Counter, "", "Requests answered from the response cache."),
    "stoker_cache_misses": (Counter, "", "Requests whose answer was not in the response cache."),
    "stoker_cache_hit_seconds": (Counter, "", "Time of lookups that found an answer."),
    "stoker_cache_miss_seconds": (Counter, "", "Time of lookups without an answer, and of storing it."),
    "stoker_cache_evictions": (Counter, "", "Answers evicted from the response cache."),
    "stoker_cache_bytes": (Gauge, "", "Size of the response caches of all frontends."),
    "stoker_isolation_audits": (Counter, "result", "Rows of batches that were run again beside other rows."),
    "stoker_non_finite_answers": (Counter, "", "Rows with non-finite answers to finite inputs."),
    "stoker_compared_answers": (
        Counter,
        "result",
        "Requests whose answers by this version and its predecessor were compared.",
    ),
    "stoker_compared_flips": (Counter, "", "Compared requests whose answers are of different classes."),
    "stoker_takeover_decisions": (Counter, "decision", "Decisions on a version that takes over."),
    "stoker_collected_records": (Counter, "", "Sampled requests written to the workspace."),
    "stoker_collection_dropped": (Counter, "reason", "Sampled requests that were not written."),
    "stoker_load": (Gauge, "", "Requested rows over the rows of full batches, since the last scrape."),
    "stoker_capacity_rows_per_second": (Gauge, "", "Rows that full batches would answer in a second."),
    "stoker_version_share_ratio": (Gauge, "", "Share of the requests that name no version."),
    "stoker_batching_info": (
        Gauge,
        "batched how",
        "1 for each served version: whether its requests are batched, and how that was decided.",
    ),
    "stoker_batch_mean_seconds": (
        Gauge,
        "rows",
        "Mean time of batches of that many rows up to twice as many, recent ones weighted more.",
    ),
    "stoker_batch_mean_rows": (Gauge, "rows", "Mean rows of these batches."),
}
"""The type of each metric of models, its labels beside model and version, and its help."""

_FAMILIES: Final[dict[str, tuple[Callable[..., Metric], str, str]]] = {
    **{
        name: (kind, f"model version {labels}", text)
        for name, (kind, labels, text) in _MODEL_FAMILIES.items()
    },
    "stoker_device_busy_seconds": (Counter, "device model version", "Time for which batches used a device."),
    "stoker_caller_device_seconds": (
        Counter,
        "caller",
        "Time for which batches used devices, by the callers of their rows.",
    ),
    "stoker_process_restarts": (Counter, "process", "Processes restarted."),
    "stoker_accept_failures": (
        Counter,
        "",
        "Connections closed unserved because a frontend had no file descriptors.",
    ),
    "stoker_open_connections": (Gauge, "protocol", "Open connections."),
    "stoker_certificate_expiration_timestamp_seconds": (
        Gauge,
        "protocol",
        "When the current certificate expires, in seconds since 1970.",
    ),
    "stoker_tls_handshake_failures": (Counter, "protocol reason", "TLS handshakes that failed."),
    "stoker_large_body_bytes": (Gauge, "", "Bytes of request bodies above 1 MiB."),
    "stoker_large_body_budget_bytes": (Gauge, "", "Budget for request bodies above 1 MiB in all frontends."),
    "stoker_later_requests": (Gauge, "state", "Requests that are answered later, waiting or answered."),
    "stoker_later_bytes": (Gauge, "", "Bytes of these requests and answers on disk."),
    "stoker_later_accepted": (Counter, "", "Requests accepted to be answered later."),
    "stoker_later_ended": (
        Counter,
        "result",
        "These requests by how they ended: answered, expired, cancelled.",
    ),
    "stoker_later_callbacks": (Counter, "result", "Tries to tell of an answer, by result."),
    "stoker_keys_generation": (Gauge, "", "The generation of the current keys."),
    "stoker_on_demand_loads": (Counter, "", "Models loaded on demand."),
    "stoker_on_demand_load_seconds": (Counter, "", "Time of these loads."),
    "stoker_on_demand_waits": (Counter, "", "Requests that waited for their model to be loaded."),
    "stoker_on_demand_wait_seconds": (Counter, "", "Time for which these requests waited."),
    "stoker_evictions": (Counter, "reason", "Models unloaded until they are asked for again."),
    "stoker_model_memory_bytes": (
        Gauge,
        "",
        "Memory of the device processes: of GPUs on these, else private host memory.",
    ),
    "stoker_model_memory_budget_bytes": (Gauge, "", "Budget for this memory."),
    "stoker_traced_requests": (Counter, "result", "Traced requests, by whether their spans were sent."),
}
"""The type, labels and help of each metric."""


def _metric(name: str, samples: Iterable[tuple[Sequence[str], _Value]]) -> Metric:
    """Make a metric of samples: the values of its labels, and its value."""
    kind, labels, text = _FAMILIES[name]
    metric: Any = kind(name, text, labels=labels.split())
    for names, value in samples:
        if isinstance(value, HistogramTotals):
            metric.add_metric(names, value.buckets(), value.sum)
        else:
            metric.add_metric(names, value)
    return metric  # type: ignore[no-any-return]


def _model_metric(name: str, read: Callable[[ModelTotals], _Values], named: _Named) -> Metric:
    samples: list[tuple[_Labels, _Value]] = []
    for labels, totals in named:
        values = read(totals)
        if isinstance(values, Mapping):
            samples += [([*labels, *_names(key)], value) for key, value in values.items()]
        elif values is not None:
            samples.append((labels, values))
    return _metric(name, samples)


def _names(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


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


_OF_MODELS: Final[dict[str, Callable[[ModelTotals], _Values]]] = {
    "stoker_requests": lambda model: {
        str(status or "other"): count for status, count in model.requests().items() if count or status == 200
    },
    "stoker_rejections": ModelTotals.rejections,
    "stoker_rows": lambda model: model.rows,
    "stoker_rows_in_flight": lambda model: model.rows_in_flight,
    "stoker_queue_rows": lambda model: model.queue_rows,
    "stoker_ready_replicas": lambda model: model.ready_replicas,
    "stoker_dispatches": _dispatches,
    "stoker_batch_rows": ModelTotals.batch_rows,
    "stoker_batch_padding_rows": lambda model: model.padding_rows,
    "stoker_batch_cap_rows": lambda model: model.batch_cap_rows,
    "stoker_stage_seconds": ModelTotals.stage_seconds,
    "stoker_first_response_seconds": lambda model: _if_counted(model.first_responses()),
    "stoker_refusals": ModelTotals.refusals,
    "stoker_in_target": _in_target,
    "stoker_answers": lambda model: {tier: rows for tier, rows in model.answered_rows().items() if rows},
    "stoker_expected_over_actual": lambda model: (
        model.expected_over_actual() if any(model.answered_rows().values()) else None
    ),
    "stoker_turn_wait_seconds": lambda model: _if_counted(model.turn_waits()),
    "stoker_sequences": lambda model: model.sequences().live if model.sequences().started else None,
    "stoker_sequences_started": lambda model: model.sequences().started or None,
    "stoker_sequences_ended": lambda model: (
        {"end": model.sequences().ended, "idle": model.sequences().expired}
        if model.sequences().started
        else None
    ),
    "stoker_cache_hits": _if_cached(lambda cache: cache.hits),
    "stoker_cache_misses": _if_cached(lambda cache: cache.misses),
    "stoker_cache_hit_seconds": _if_cached(lambda cache: cache.hit_ns / 1e9),
    "stoker_cache_miss_seconds": _if_cached(lambda cache: cache.miss_ns / 1e9),
    "stoker_cache_evictions": _if_cached(lambda cache: cache.evictions),
    "stoker_cache_bytes": _if_cached(lambda cache: cache.size_bytes),
    "stoker_isolation_audits": ModelTotals.audits,
    "stoker_non_finite_answers": lambda model: model.non_finite_rows,
    "stoker_compared_answers": ModelTotals.comparisons,
    "stoker_compared_flips": lambda model: model.flips,
    "stoker_takeover_decisions": ModelTotals.decisions,
    "stoker_collected_records": lambda model: model.collected,
    "stoker_collection_dropped": ModelTotals.collection_dropped,
}
"""How metrics are read from the counters of each model."""
_UNLOADED: Final = ["(not loaded)", ""]
"""The labels of all models that wait to be loaded on demand, which no model can have."""
_OF_UNLOADED: Final = ("stoker_requests", "stoker_rejections")


def render(
    memory: MetricMemory,
    models: Mapping[str, ServedModel],
    meter: LoadMeter,
    callers: Mapping[int, str] = ONLY_DEFAULT,
    spool: Spool | None = None,
) -> bytes:
    """Return all metrics in Prometheus text format, those of all versions that have been served."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ServerCollector(memory, models, meter, callers, spool))
    return format_for_tools(generate_latest(registry))


def render_load(models: Mapping[str, ServedModel], meter: LoadMeter) -> bytes:
    """Return the two lines that an autoscaler needs, in the same format."""
    loads = meter.read([version.status.slot for _, version in _loaded(models)])
    overloaded = sum(load.overloaded for load in loads.values())
    return (
        f'stoker_load {load_of_all(loads):.4g}\nstoker_rejections_total{{reason="overloaded"}} {overloaded}\n'
    ).encode()


def _versions(models: Mapping[str, ServedModel]) -> list[tuple[_Labels, ServedVersion]]:
    return [
        ([name, number], one)
        for name, model in models.items()
        for number, one in model.versions.items()
        if one.has_counters
    ]


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
        spool: Spool | None,
    ) -> None:
        self._memory, self._callers, self._spool = memory, callers, spool
        self._models, self._meter = models, meter

    def collect(self) -> Iterator[Metric]:
        totals = self._memory.totals()
        slots = [(labels, version.status.slot) for labels, version in _versions(self._models)]
        named = [(labels, totals.model(slot)) for labels, slot in slots]
        busy_s, gpus = self._memory.busy_s(), totals.gpus()
        rest = [(_UNLOADED, totals.model(UNLOADED_SLOT))] if totals.on_demand().budget_bytes else []
        for name, read in _OF_MODELS.items():
            yield _model_metric(name, read, named + rest if name in _OF_UNLOADED else named)
        yield from self._version_metrics()
        yield from self._device_metrics(slots, busy_s)
        yield from cache_metrics(named)
        yield from inference_metrics(named, slots, busy_s, gpus)
        yield from torchserve_metrics(named)
        yield from _process_metrics(totals, self._spool_usage())
        yield from gpu_metrics(gpus)

    def _spool_usage(self) -> Usage | None:
        """The use of the spool; None without one, or while its files cannot be opened for lack of descriptors."""
        with contextlib.suppress(OSError):
            return None if self._spool is None else self._spool.usage()
        return None

    def _version_metrics(self) -> Iterator[Metric]:
        """The load of each version that is served, its share of the requests, and how it is batched."""
        loaded = {version.status.slot: labels for labels, version in _loaded(self._models)}
        loads = [(loaded[slot], load) for slot, load in self._meter.read(loaded).items()]
        yield _metric("stoker_load", ((labels, load.ratio) for labels, load in loads))
        capacities = ((labels, load.capacity_rows_s) for labels, load in loads)
        yield _metric("stoker_capacity_rows_per_second", capacities)
        shares = [
            ([name, number], _share(model, number))
            for name, model in self._models.items()
            for number in model.served
            if model.versions[number].has_counters
        ]
        yield _metric("stoker_version_share_ratio", shares)
        batching = []
        for labels, version in _loaded(self._models):
            signature = None if version.service is None else version.service.signature
            if signature is not None and (isolation := signature.isolation) is not None:
                batching.append(([*labels, str(isolation.batched).lower(), isolation.how], 1))
        yield _metric("stoker_batching_info", batching)

    def _device_metrics(
        self, slots: Sequence[tuple[_Labels, int]], busy_s: Mapping[str, np.ndarray]
    ) -> Iterator[Metric]:
        """Device time by model and by caller, and the learned times of batches."""
        busy = [
            ([device, *labels], float(kept_s[slot]))
            for device, kept_s in busy_s.items()
            for labels, slot in slots
            if kept_s[slot]
        ]
        yield _metric("stoker_device_busy_seconds", busy)
        means = [
            ([*labels, str(least)], seconds, rows)
            for labels, slot in slots
            for least, (rows, seconds) in self._memory.batch_times(slot).items()
        ]
        yield _metric("stoker_batch_mean_seconds", ((labels, seconds) for labels, seconds, _ in means))
        yield _metric("stoker_batch_mean_rows", ((labels, rows) for labels, _, rows in means))
        elapsed_ns = self._memory.caller_usage().all_device_ns().tolist()
        spent = [
            ([self._callers[caller]], spent_ns / 1e9)
            for caller, spent_ns in enumerate(elapsed_ns)
            if spent_ns and caller in self._callers
        ]
        yield _metric("stoker_caller_device_seconds", spent)


def _spool_metrics(usage: Usage | None) -> dict[str, Mapping[Any, float]]:
    """The metrics of requests that are answered later; without series where there are none."""
    if usage is None:
        return {}
    return {
        "stoker_later_requests": {"waiting": usage.waiting, "answered": usage.answers},
        "stoker_later_bytes": {(): usage.size_bytes},
        "stoker_later_accepted": {(): usage.accepted},
        "stoker_later_ended": {
            "answered": usage.answered,
            "expired": usage.expired,
            "cancelled": usage.cancelled,
        },
        "stoker_later_callbacks": {"delivered": usage.callbacks, "failed": usage.callbacks_failed},
    }


def _on_demand_metrics(found: OnDemandTotals) -> dict[str, Mapping[Any, float]]:
    """The metrics of models that are loaded on demand; without series where no budget is set."""
    if not found.budget_bytes:
        return {}
    return {
        "stoker_on_demand_loads": {(): found.loads},
        "stoker_on_demand_load_seconds": {(): found.load_s},
        "stoker_on_demand_waits": {(): found.waits},
        "stoker_on_demand_wait_seconds": {(): found.wait_s},
        "stoker_evictions": found.evictions,
        "stoker_model_memory_bytes": {(): found.used_bytes},
        "stoker_model_memory_budget_bytes": {(): found.budget_bytes},
    }


def _process_metrics(totals: Totals, spool: Usage | None) -> Iterator[Metric]:
    held_bytes, budget_bytes = totals.large_body_bytes
    # Without series where no port speaks TLS.
    expiries = totals.certificate_expiries()
    handshakes = {key: count for key, count in totals.handshake_failures().items() if key[0] in expiries}
    metrics: dict[str, Mapping[Any, float]] = {
        "stoker_process_restarts": totals.restarts(),
        "stoker_accept_failures": {(): totals.accept_failures},
        "stoker_open_connections": totals.open_connections(),
        "stoker_certificate_expiration_timestamp_seconds": expiries,
        "stoker_tls_handshake_failures": handshakes,
        "stoker_large_body_bytes": {(): held_bytes},
        "stoker_large_body_budget_bytes": {(): budget_bytes},
        "stoker_keys_generation": {(): totals.keys_generation},
        "stoker_traced_requests": totals.traces(),
        **_on_demand_metrics(totals.on_demand()),
        **_spool_metrics(spool),
    }
    for name, values in metrics.items():
        yield _metric(name, ((_names(key), value) for key, value in values.items()))
