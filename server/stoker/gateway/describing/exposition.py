"""The counters of `stoker.metrics` as a Prometheus exposition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from stoker.gateway.describing.triton_exposition import format_for_triton, gpu_metrics, inference_metrics
from stoker.gateway.served_models import ServedModel
from stoker.keys.callers import ONLY_DEFAULT
from stoker.metrics.load import Load, LoadMeter, load_of_all
from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import CacheTotals, ModelTotals, Totals
from stoker.verdict import Verdict

__all__ = ["cache_metrics", "caller_metric", "device_metrics", "render", "render_load", "sequence_metrics"]

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


def device_metrics(
    named: Sequence[tuple[list[str], ModelTotals]],
    slots: Sequence[tuple[list[str], int]],
    memory: MetricMemory,
    busy_s: Mapping[str, np.ndarray],
) -> Iterator[Metric]:
    """Device time by model; waits for turns, of models that take turns; and learned times.

    Args:
        named: Totals by their labels: name and version.
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


class _Quantity(NamedTuple):
    name: str
    text: str
    read: Callable[[CacheTotals], float]
    alias: str
    times: int = 1
    """How many of Triton's units one of Stoker's is: it counts microseconds."""


_QUANTITIES: Final = (
    _Quantity(
        "stoker_cache_hits",
        "Requests answered by a kept answer.",
        lambda cache: cache.hits,
        "nv_cache_num_hits_per_model",
    ),
    _Quantity(
        "stoker_cache_misses",
        "Requests whose answer was not among those that are kept.",
        lambda cache: cache.misses,
        "nv_cache_num_misses_per_model",
    ),
    _Quantity(
        "stoker_cache_hit_seconds",
        "Time in which kept answers were found.",
        lambda cache: cache.hit_ns / 1e9,
        "nv_cache_hit_duration_per_model",
        10**6,
    ),
    _Quantity(
        "stoker_cache_miss_seconds",
        "Time in which answers were looked for, not found, and then kept.",
        lambda cache: cache.miss_ns / 1e9,
        "nv_cache_miss_duration_per_model",
        10**6,
    ),
)


def cache_metrics(named: Sequence[tuple[list[str], ModelTotals]]) -> Iterator[Metric]:
    """What is counted of models whose answers are kept; others have no samples."""
    caches = [(labels, model.cache()) for labels, model in named]
    used = [(labels, cache) for labels, cache in caches if cache.hits or cache.misses]
    for quantity in _QUANTITIES:
        own = CounterMetricFamily(quantity.name, quantity.text, labels=["model", "version"])
        alias = Metric(quantity.alias, f"Triton's name of {quantity.name}_total.", "unknown")
        for labels, cache in used:
            value = quantity.read(cache)
            own.add_metric(labels, value)
            places = dict(zip(("model", "version"), labels, strict=True))
            alias.add_sample(quantity.alias, places, value * quantity.times)
        yield from (own, alias)
    evictions = CounterMetricFamily(
        "stoker_cache_evictions", "Kept answers forgotten for others.", labels=["model", "version"]
    )
    size = GaugeMetricFamily(
        "stoker_cache_bytes", "What kept answers take in all frontends.", labels=["model", "version"]
    )
    for labels, cache in used:
        evictions.add_metric(labels, cache.evictions)
        size.add_metric(labels, cache.size_bytes)
    yield from (evictions, size)


_Named = list[tuple[list[str], ModelTotals]]
"""Totals by their labels: name and version."""


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
    slots = [
        ([name, number], version.standing.slot)
        for name, model in models.items()
        for number, version in model.versions.items()
    ]
    registry = CollectorRegistry(auto_describe=False)
    verdicts = [
        ([name, number], version.service.signature.verdict)
        for name, model in models.items()
        for number, version in model.versions.items()
        if version.service is not None and version.service.signature is not None
    ]
    shares = [
        ([name, number], _share(model, number)) for name, model in models.items() for number in model.served
    ]
    places = {
        version.standing.slot: [name, number]
        for name, model in models.items()
        for number, version in model.versions.items()
        if version.service is not None
    }
    loads = [(places[slot], load) for slot, load in meter.read(places).items()]
    registry.register(_ServerCollector(memory, slots, verdicts, shares, loads, callers))
    return format_for_triton(generate_latest(registry))


def render_load(models: Mapping[str, ServedModel], meter: LoadMeter) -> bytes:
    """Return what somebody needs who adds and removes servers: two lines in the same format."""
    served = [
        version.standing.slot
        for model in models.values()
        for version in model.versions.values()
        if version.service is not None
    ]
    loads = meter.read(served)
    overloaded = sum(load.overloaded for load in loads.values())
    return (
        f'stoker_load {load_of_all(loads):.4f}\nstoker_rejections_total{{reason="overloaded"}} {overloaded}\n'
    ).encode()


class _ServerCollector(Collector):
    """Reads the shared memory at scrape time."""

    def __init__(
        self,
        memory: MetricMemory,
        slots: Sequence[tuple[list[str], int]],
        verdicts: Sequence[tuple[list[str], Verdict | None]],
        shares: Sequence[tuple[list[str], float]],
        loads: Sequence[tuple[list[str], Load]],
        callers: Mapping[int, str],
    ) -> None:
        """Read the slots of models by name and version; what is known of their rows, their shares and loads."""
        self._callers = callers
        self._memory = memory
        self._slots = slots
        self._verdicts = verdicts
        self._shares = shares
        self._loads = loads

    def collect(self) -> Iterator[Metric]:
        totals = self._memory.totals()
        named = [(labels, totals.model(slot)) for labels, slot in self._slots]
        busy_s, gpus = self._memory.busy_s(), totals.gpus()
        yield from _request_metrics(named)
        yield from _load_metrics(self._loads)
        yield from _batch_metrics(named)
        yield from _target_metrics(named)
        yield from device_metrics(named, self._slots, self._memory, busy_s)
        yield caller_metric(self._memory, self._callers)
        yield from cache_metrics(named)
        yield from inference_metrics(named, self._slots, busy_s, gpus)
        yield from sequence_metrics(named)
        yield _batching_metric(self._verdicts)
        yield from _isolation_metrics(named)
        yield from _takeover_metrics(named)
        yield _share_metric(self._shares)
        yield from _collection_metrics(named)
        yield from _process_metrics(totals)
        yield from gpu_metrics(gpus)


def _request_metrics(named: _Named) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "stoker_requests", "Scoring requests answered.", labels=["model", "version", "status"]
    )
    rejections = CounterMetricFamily(
        "stoker_rejections",
        "Scoring requests refused before the device.",
        labels=["model", "version", "reason"],
    )
    rows = CounterMetricFamily(
        "stoker_rows", "Rows of the requests answered with 200.", labels=["model", "version"]
    )
    in_flight = GaugeMetricFamily(
        "stoker_rows_in_flight", "Rows leased by requests.", labels=["model", "version"]
    )
    queued = GaugeMetricFamily(
        "stoker_queue_rows", "Rows that wait for the device.", labels=["model", "version"]
    )
    replicas = GaugeMetricFamily(
        "stoker_ready_replicas", "Replicas that are loaded.", labels=["model", "version"]
    )
    for labels, model in named:
        for status, count in model.requests().items():
            if count or status == 200:
                requests.add_metric([*labels, str(status or "other")], count)
        for reason, count in model.rejections().items():
            rejections.add_metric([*labels, reason], count)
        rows.add_metric(labels, model.rows)
        in_flight.add_metric(labels, model.rows_in_flight)
        queued.add_metric(labels, model.queue_rows)
        replicas.add_metric(labels, model.ready_replicas)
    yield from (requests, rejections, rows, in_flight, queued, replicas)


def _load_metrics(loads: Sequence[tuple[list[str], Load]]) -> Iterator[Metric]:
    ratios = GaugeMetricFamily(
        "stoker_load",
        "What is asked of what can be done, since it was read before.",
        labels=["model", "version"],
    )
    capacities = GaugeMetricFamily(
        "stoker_capacity_rows_per_second",
        "Rows that full batches would do in a second.",
        labels=["model", "version"],
    )
    for labels, load in loads:
        ratios.add_metric(labels, load.ratio)
        capacities.add_metric(labels, load.capacity_rows_s)
    yield from (ratios, capacities)


def _batch_metrics(named: _Named) -> Iterator[Metric]:
    dispatches = CounterMetricFamily(
        "stoker_dispatches", "Batches by why they left.", labels=["model", "version", "reason"]
    )
    sizes = HistogramMetricFamily("stoker_batch_rows", "Rows per batch.", labels=["model", "version"])
    padding = CounterMetricFamily(
        "stoker_batch_padding_rows", "Rows that filled batches up to a bucket.", labels=["model", "version"]
    )
    caps = GaugeMetricFamily(
        "stoker_batch_cap_rows", "Most rows that a batch may have now.", labels=["model", "version"]
    )
    stages = HistogramMetricFamily(
        "stoker_stage_seconds",
        "Time by stage: parse and total per request, queue per row, compute per batch.",
        labels=["model", "version", "stage"],
    )
    firsts = HistogramMetricFamily(
        "stoker_first_response_seconds",
        "How long after a request's body the first piece of its answer was there, where it came in pieces.",
        labels=["model", "version"],
    )
    for labels, model in named:
        late = model.target_dispatches()
        late = late if any(model.answered_rows().values()) or any(late.values()) else {}
        for reason, count in (model.dispatches() | late).items():
            dispatches.add_metric([*labels, reason], count)
        batch_rows = model.batch_rows()
        sizes.add_metric(labels, batch_rows.buckets(), batch_rows.sum)
        padding.add_metric(labels, model.padding_rows)
        caps.add_metric(labels, model.batch_cap_rows)
        for stage, times in model.stage_seconds().items():
            stages.add_metric([*labels, stage], times.buckets(), times.sum)
        first = model.first_responses()
        if any(first.counts):
            firsts.add_metric(labels, first.buckets(), first.sum)
    yield from (dispatches, sizes, padding, caps, stages, firsts)


def _target_metrics(named: _Named) -> Iterator[Metric]:
    """What was refused until later, and what is counted of models with targets; others have no samples."""
    refusals = CounterMetricFamily(
        "stoker_refusals",
        "Requests that were told when to come back.",
        labels=["model", "version", "reason", "tier"],
    )
    in_target = CounterMetricFamily(
        "stoker_in_target", "Rows answered within their targets.", labels=["model", "version", "tier"]
    )
    answers = CounterMetricFamily(
        "stoker_answers", "Rows answered, of models with targets.", labels=["model", "version", "tier"]
    )
    expected = HistogramMetricFamily(
        "stoker_expected_over_actual",
        "Expected time of a batch over the time that it took.",
        labels=["model", "version"],
    )
    for labels, model in named:
        answered, in_time = model.answered_rows(), model.in_target_rows()
        for (reason, tier), count in model.refusals().items():
            refusals.add_metric([*labels, reason, tier], count)
        for tier, rows in answered.items():
            if rows:
                in_target.add_metric([*labels, tier], in_time[tier])
                answers.add_metric([*labels, tier], rows)
        if not any(answered.values()):
            continue
        ratios = model.expected_over_actual()
        expected.add_metric(labels, ratios.buckets(), ratios.sum)
    yield from (refusals, in_target, answers, expected)


def _batching_metric(verdicts: Sequence[tuple[list[str], Verdict | None]]) -> Metric:
    batching = GaugeMetricFamily(
        "stoker_batching_info",
        "1 for each version that is served: whether its requests are batched, and how that was found out.",
        labels=["model", "version", "batched", "how"],
    )
    for labels, verdict in verdicts:
        if verdict is not None:
            batching.add_metric([*labels, str(verdict.batched).lower(), verdict.how], 1)
    return batching


def _isolation_metrics(named: _Named) -> Iterator[Metric]:
    audits = CounterMetricFamily(
        "stoker_isolation_audits",
        "Rows of running batches that were run again beside other rows.",
        labels=["model", "version", "result"],
    )
    non_finite = CounterMetricFamily(
        "stoker_non_finite_answers",
        "Rows with answers that are not finite though all that they hold is.",
        labels=["model", "version"],
    )
    for labels, model in named:
        for result, count in model.audits().items():
            audits.add_metric([*labels, result], count)
        non_finite.add_metric(labels, model.non_finite_rows)
    yield from (audits, non_finite)


def _takeover_metrics(named: _Named) -> Iterator[Metric]:
    compared = CounterMetricFamily(
        "stoker_compared_answers",
        "Requests that this version and the one that it takes over from have both answered.",
        labels=["model", "version", "result"],
    )
    flips = CounterMetricFamily(
        "stoker_compared_flips",
        "Those whose answers are of different classes.",
        labels=["model", "version"],
    )
    decisions = CounterMetricFamily(
        "stoker_takeover_decisions",
        "What was decided on a version that is to take over.",
        labels=["model", "version", "decision"],
    )
    for labels, model in named:
        for result, count in model.comparisons().items():
            compared.add_metric([*labels, result], count)
        flips.add_metric(labels, model.flips)
        for decision, count in model.decisions().items():
            decisions.add_metric([*labels, decision], count)
    yield from (compared, flips, decisions)


def _share(model: ServedModel, number: str) -> float:
    """Which share of the requests that name no version a version gets."""
    if model.split is None:
        return float(number == model.default)
    return model.split.weights.get(number, 0) / sum(model.split.weights.values())


def _share_metric(shares: Sequence[tuple[list[str], float]]) -> Metric:
    share = GaugeMetricFamily(
        "stoker_version_share_ratio",
        "Share of the requests that name no version.",
        labels=["model", "version"],
    )
    for labels, ratio in shares:
        share.add_metric(labels, ratio)
    return share


def _collection_metrics(named: _Named) -> Iterator[Metric]:
    collected = CounterMetricFamily(
        "stoker_collected_records", "Sampled requests written to the workspace.", labels=["model", "version"]
    )
    dropped = CounterMetricFamily(
        "stoker_collection_dropped",
        "Sampled requests that were not written.",
        labels=["model", "version", "reason"],
    )
    for labels, model in named:
        collected.add_metric(labels, model.collected)
        for reason, count in model.collection_dropped().items():
            dropped.add_metric([*labels, reason], count)
    yield from (collected, dropped)


def _tls_metrics(totals: Totals) -> Iterator[Metric]:
    """Of the ports that speak TLS, without series where none does."""
    expiries = totals.certificate_expiries()
    expiry = GaugeMetricFamily(
        "stoker_certificate_expiration_timestamp_seconds",
        "When the certificate that is shown expires, in seconds since 1970.",
        labels=["protocol"],
    )
    for protocol, expires_s in expiries.items():
        expiry.add_metric([protocol], expires_s)
    failures = CounterMetricFamily(
        "stoker_tls_handshake_failures", "TLS handshakes that failed.", labels=["protocol", "reason"]
    )
    for (protocol, reason), count in totals.handshake_failures().items():
        if protocol in expiries:
            failures.add_metric([protocol, reason], count)
    yield from (expiry, failures)


def _process_metrics(totals: Totals) -> Iterator[Metric]:
    restarts = CounterMetricFamily("stoker_process_restarts", "Processes restarted.", labels=["process"])
    for what, count in totals.restarts().items():
        restarts.add_metric([what], count)
    yield restarts
    refused = CounterMetricFamily(
        "stoker_accept_failures", "Connections closed unserved because a frontend had no file descriptors."
    )
    refused.add_metric([], totals.accept_failures)
    yield refused
    connections = GaugeMetricFamily(
        "stoker_open_connections", "Connections that are open.", labels=["protocol"]
    )
    for protocol, count in totals.open_connections().items():
        connections.add_metric([protocol], count)
    yield connections
    yield from _tls_metrics(totals)
    held_bytes, budget_bytes = totals.large_body_bytes
    held = GaugeMetricFamily(
        "stoker_large_body_bytes", "What request bodies above 1 MiB take of their budget."
    )
    held.add_metric([], held_bytes)
    budget = GaugeMetricFamily("stoker_large_body_budget_bytes", "What they may take in all frontends.")
    budget.add_metric([], budget_bytes)
    yield from (held, budget)
    keys = GaugeMetricFamily(
        "stoker_keys_generation", "The number of the keys that hold, where they have one."
    )
    keys.add_metric([], totals.keys_generation)
    yield keys
    traces = CounterMetricFamily(
        "stoker_traced_requests", "Traced requests by what became of their spans.", labels=["result"]
    )
    for result, count in totals.traces().items():
        traces.add_metric([result], count)
    yield traces
