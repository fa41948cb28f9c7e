"""The counters of `stoker.metrics` as a Prometheus exposition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from stoker.gateway.describing.families import make_family
from stoker.gateway.describing.torchserve_exposition import torchserve_metrics
from stoker.gateway.describing.triton_exposition import (
    cache_metrics,
    format_for_tools,
    gpu_metrics,
    inference_metrics,
)
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.keys.callers import ONLY_DEFAULT
from stoker.metrics import table
from stoker.metrics.layout import UNLOADED_SLOT
from stoker.metrics.load import LoadMeter, load_of_all
from stoker.metrics.memory import MetricMemory
from stoker.metrics.metric import Metric
from stoker.metrics.totals import ModelTotals

if TYPE_CHECKING:
    from stoker.gateway.later.spool import Spool, Usage

_Labels = list[str]
"""Name and version of a model."""
_Named = list[tuple[_Labels, ModelTotals]]
_OF_MODELS: Final = [metric for metric in table.SLOT.metrics if metric.name and all(metric.labels.values())]
"""Metrics whose samples are the words of a model; labels of the others are learned at a scrape."""
_OF_PROCESSES: Final = [
    metric for metric in table.PAGE.metrics if metric.name and all(metric.labels.values())
]


def _of_models(metric: Metric, named: _Named) -> Family:
    samples = [
        ([*labels, *key], value)
        for labels, totals in named
        for key, value in metric.values(totals.words).items()
    ]
    return make_family(metric, samples, of_models=True)


_UNLOADED: Final = ["(not loaded)", ""]
"""The labels of all models that wait to be loaded on demand, which no model can have."""
_OF_UNLOADED: Final = (table.REQUESTS, table.REJECTED)


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

    def collect(self) -> Iterator[Family]:
        totals = self._memory.totals()
        slots = [(labels, version.status.slot) for labels, version in _versions(self._models)]
        named = [(labels, totals.model(slot)) for labels, slot in slots]
        busy_s, gpus = self._memory.busy_s(), totals.gpus()
        is_on_demand = bool(totals.on_demand().budget_bytes)
        rest = [(_UNLOADED, totals.model(UNLOADED_SLOT))] if is_on_demand else []
        for metric in _OF_MODELS:
            yield _of_models(metric, named + rest if metric in _OF_UNLOADED else named)
        yield from self._version_metrics()
        yield from self._device_metrics(slots, busy_s)
        yield from cache_metrics(named)
        yield from inference_metrics(named, slots, busy_s, gpus)
        yield from torchserve_metrics(named)
        for metric in _OF_PROCESSES:
            if is_on_demand or metric not in table.ON_DEMAND:
                yield make_family(metric, metric.values(totals.words).items())
        # Without file descriptors the spool cannot be read; the other metrics can.
        with contextlib.suppress(OSError):
            if self._spool is not None:
                yield from _spool_metrics(self._spool.usage())
        yield from gpu_metrics(gpus)

    def _version_metrics(self) -> Iterator[Family]:
        """The load of each version that is served, its share of the requests, and how it is batched."""
        loaded = {version.status.slot: labels for labels, version in _loaded(self._models)}
        loads = [(loaded[slot], load) for slot, load in self._meter.read(loaded).items()]
        yield make_family(table.LOAD, ((labels, load.ratio) for labels, load in loads), of_models=True)
        capacities = ((labels, load.capacity_rows_s) for labels, load in loads)
        yield make_family(table.CAPACITY, capacities, of_models=True)
        shares = [
            ([name, number], _share(model, number))
            for name, model in self._models.items()
            for number in model.served
            if model.versions[number].has_counters
        ]
        yield make_family(table.VERSION_SHARE, shares, of_models=True)
        batching = []
        for labels, version in _loaded(self._models):
            signature = None if version.service is None else version.service.signature
            if signature is not None and (isolation := signature.isolation) is not None:
                batching.append(([*labels, str(isolation.batched).lower(), isolation.how], 1))
        yield make_family(table.BATCHING, batching, of_models=True)

    def _device_metrics(
        self, slots: Sequence[tuple[_Labels, int]], busy_s: Mapping[str, np.ndarray]
    ) -> Iterator[Family]:
        """Device time by model and by caller, and the learned times of batches."""
        busy = [
            ([*labels, device], float(kept_s[slot]))
            for device, kept_s in busy_s.items()
            for labels, slot in slots
            if kept_s[slot]
        ]
        yield make_family(table.BUSY, busy, of_models=True)
        means = [
            ([*labels, str(least)], seconds, rows)
            for labels, slot in slots
            for least, (rows, seconds) in self._memory.batch_times(slot).items()
        ]
        yield make_family(
            table.BATCH_TIMES, ((labels, seconds) for labels, seconds, _ in means), of_models=True
        )
        yield make_family(table.BATCH_SIZES, ((labels, rows) for labels, _, rows in means), of_models=True)
        elapsed_ns = self._memory.caller_usage().all_device_ns().tolist()
        spent = [
            ([self._callers[caller]], spent_ns / 1e9)
            for caller, spent_ns in enumerate(elapsed_ns)
            if spent_ns and caller in self._callers
        ]
        yield make_family(table.CALLER_TIMES, spent)


def _spool_metrics(usage: Usage) -> Iterator[Family]:
    """The metrics of requests that are answered later."""
    for metric, *values in (
        (table.LATER_REQUESTS, usage.waiting, usage.answers),
        (table.LATER_BYTES, usage.size_bytes),
        (table.LATER_ACCEPTED, usage.accepted),
        (table.LATER_ENDED, usage.answered, usage.expired, usage.cancelled),
        (table.LATER_CALLBACKS, usage.callbacks, usage.callbacks_failed),
    ):
        yield make_family(metric, zip(metric.places, values, strict=True))
