"""The data that the console draws: counters of the last minutes as columns, and remarkable requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import orjson

from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.metrics import layout, table
from stoker.metrics.history import Past, Steps
from stoker.metrics.journal import Journal, Kind
from stoker.metrics.metric import Metric

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_BOUNDS_MS: Final = np.array([0.0, *(1000 * bound for bound in layout.STAGE_BOUNDS_S)])


def figures(past: Past, slots: Iterable[int], since: int, step_s: int = 1) -> dict[str, Any]:
    """Return the steps after `since`, or all for 0, as columns; `step_s` is as for `Past.read`.

    Counts are those of one step, whose length is in `span_ms`. Means and quantiles are of the requests answered in
    the step, None if there were none. Series of statuses and reasons that are all 0 are left out.
    """
    steps = past.read(slots, since, step_s)
    counted = np.diff(steps.slots, axis=0)
    # A counter falls where its slot was given to another version.
    counted = np.maximum(counted, 0)
    gauges = steps.slots[1:]
    return {
        "step": steps.last,
        "time_ms": steps.time_ms[1:].tolist(),
        "span_ms": np.diff(steps.time_ms).tolist(),
        "requests": _named(counted, table.REQUESTS),
        "rejections": _named(counted, table.REJECTED),
        "left": _named(counted, table.DISPATCHES),
        "rows": {
            "answered": counted[:, table.ROWS.offset].tolist(),
            "padding": counted[:, table.PADDING_ROWS.offset].tolist(),
            "in_flight": gauges[:, table.ROWS_IN_FLIGHT.offset].tolist(),
            "queued": gauges[:, table.QUEUED_ROWS.offset].tolist(),
        },
        "batches": {
            "bounds": list(layout.BATCH_BOUNDS_ROWS),
            "counts": counted[:, table.BATCH_ROWS.offset : table.BATCH_ROWS.end - 1].T.tolist(),
        },
        "latency_ms": quantiles_ms(_times(counted, "total")[:, :-1]),
        "stages_ms": _stages_ms(counted),
        "restarts": dict(
            zip(("device", "frontend"), np.diff(steps.restarts, axis=0).T.tolist(), strict=True)
        ),
        "processes": _processes(steps),
        "gpus": [
            {"index": index, **{name: values[1:] for name, values in reading.items()}}
            for index, reading in steps.gpus().items()
        ],
    }


def quantiles_ms(counts: np.ndarray) -> dict[str, list[float | None]]:
    """Return quantiles of times counted by `STAGE_BOUNDS_S`, `int64[steps, buckets]`, interpolated in between."""
    found: dict[str, list[float | None]] = {}
    sums = counts.cumsum(axis=1)
    rows = np.arange(len(counts))
    for name, share in _QUANTILES.items():
        rank = share * sums[:, -1]
        bucket = (sums < rank[:, None]).sum(axis=1)
        inside = np.minimum(bucket, len(layout.STAGE_BOUNDS_S) - 1)
        below = np.where(inside > 0, sums[rows, inside - 1], 0)
        count = np.maximum(counts[rows, inside], 1)
        low, high = _BOUNDS_MS[inside], _BOUNDS_MS[inside + 1]
        # Beyond the last bound nothing else is known.
        value = np.where(bucket > inside, high, low + (high - low) * (rank - below) / count)
        found[name] = _where(sums[:, -1] > 0, value)
    return found


def _stages_ms(counted: np.ndarray) -> dict[str, list[float | None]]:
    """Return the mean time of requests in each stage; `answer` is the rest of the whole."""
    requests = _times(counted, "total")[:, :-1].sum(axis=1)
    rows = _times(counted, "queue")[:, :-1].sum(axis=1)
    run = counted[:, table.BATCH_ROWS.end - 1]
    total, parse = (_mean_ms(_times(counted, stage)[:, -1], requests) for stage in ("total", "parse"))
    queue = _mean_ms(_times(counted, "queue")[:, -1], rows)
    # The time of the batch for each row: large batches count more.
    compute = _mean_ms(counted[:, table.ROW_COMPUTE.offset], run)
    answer = np.maximum(total - parse - queue - compute, 0)
    stages = {"parse": parse, "queue": queue, "compute": compute, "answer": answer}
    return {stage: _where(requests > 0, mean) for stage, mean in stages.items()}


def _times(counted: np.ndarray, stage: str) -> np.ndarray:
    start = table.STAGE_TIMES.word(stage)
    return counted[:, start : start + table.STAGE_TIMES.width]


def _mean_ms(sums_us: np.ndarray, counts: np.ndarray) -> np.ndarray:
    means: np.ndarray = sums_us / 1000 / np.maximum(counts, 1)
    return means


def _where(known: np.ndarray, values: np.ndarray) -> list[float | None]:
    rounded = values.round(4).tolist()
    return [value if there else None for there, value in zip(known.tolist(), rounded, strict=True)]


def _named(counted: np.ndarray, metric: Metric) -> dict[str, list[int]]:
    columns = {name: counted[:, word] for (name,), word in metric.places.items()}
    return {name: column.tolist() for name, column in columns.items() if column.any()}


def _processes(steps: Steps) -> list[dict[str, Any]]:
    span_ms = np.maximum(np.diff(steps.time_ms), 1)
    shown = []
    for page, words in steps.processes().items():
        pids, cpu_ms = words[1:, 0], np.diff(words[:, 1])
        # A successor with the same page begins at 0.
        percent = np.where((np.diff(words[:, 0]) == 0) & (cpu_ms >= 0), 100 * cpu_ms / span_ms, 0).round(1)
        shown.append(
            {
                "name": _name(page),
                "pid": int(words[-1, 0]),
                "cpu_percent": percent.tolist(),
                "memory_bytes": np.where(pids > 0, words[1:, 2], 0).tolist(),
            }
        )
    return shown


def _name(page: int) -> str:
    if page == layout.SUPERVISOR_PAGE:
        return "supervisor"
    if page >= layout.FIRST_DEVICE_PAGE:
        return f"device process {page - layout.FIRST_DEVICE_PAGE + 1}"
    return f"frontend {page + 1}"


_SHOWN: Final = 200


def remarkable_requests(
    journal: Journal, past: Past, slots: Mapping[tuple[str, str], int], caller: CallerTerms = DEFAULT
) -> dict[str, list[dict[str, Any]]]:
    """Return the last failures and the last slow requests of the models that the caller may use, the latest first."""
    failed, slow = _latest(journal, "failed", caller), _latest(journal, "slow", caller)
    shown: dict[tuple[str, str], dict[str, Any]] = {}
    for record in slow:
        version = record["model"], record["version"]
        if version in slots and version not in shown:
            shown[version] = figures(past, (slots[version],), 0)
        if version in shown:
            record["around"] = _around(shown[version], record["at_ms"])
    return {"failed": failed, "slow": slow}


def _latest(journal: Journal, kind: Kind, caller: CallerTerms) -> list[dict[str, Any]]:
    records = [orjson.loads(record) for record in journal.read(kind)]
    records = [record for record in records if caller.may_ask(record["model"])]
    return sorted(records, key=lambda record: -record["at_ms"])[:_SHOWN]


def _around(columns: Mapping[str, Any], at_ms: int) -> dict[str, Any] | None:
    """Return what a model did in the second of a request; None if that second is not kept."""
    times = np.array(columns["time_ms"])
    step = int(times.searchsorted(at_ms))
    if step >= len(times) or at_ms < times[step] - columns["span_ms"][step]:
        return None
    batches = {reason: counts[step] for reason, counts in columns["left"].items() if counts[step]}
    number = sum(batches.values())
    rows = columns["rows"]
    return {
        "requests": columns["requests"].get("200", [0] * len(times))[step],
        "batches": number,
        "rows_a_batch": round(rows["answered"][step] / number, 1) if number else 0,
        "padding_rows": rows["padding"][step],
        "left": batches,
        "queued_rows": rows["queued"][step],
        "in_flight_rows": rows["in_flight"][step],
        "stages_ms": {stage: means[step] for stage, means in columns["stages_ms"].items()},
    }
