"""The last failures and the slowest requests, each slow one explained by what went on around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from stoker.gateway.console.figures import figures
from stoker.metrics.journal import Journal, Kind
from stoker.metrics.past import Past

__all__ = ["remarkable_requests"]

_SHOWN: Final = 50
_BACK_MS: Final = 300_000


def remarkable_requests(
    journal: Journal, past: Past, slots: Mapping[tuple[str, str], int]
) -> dict[str, list[dict[str, Any]]]:
    """Return the latest failures first, and the slowest of the last five minutes, the slowest first.

    Args:
        journal: The records of all frontends.
        past: The counters of the last minutes.
        slots: The slots of the metrics by model and version.
    """
    failed = sorted(_records(journal, "failed"), key=lambda record: -record["at_ms"])[:_SHOWN]
    slow = _records(journal, "slow")
    latest_ms = max((record["at_ms"] for record in slow), default=0)
    recent = [record for record in slow if record["at_ms"] >= latest_ms - _BACK_MS]
    slowest = sorted(recent, key=lambda record: -record["total_ms"])[:_SHOWN]
    shown: dict[tuple[str, str], dict[str, Any]] = {}
    for record in slowest:
        version = record["model"], record["version"]
        if version in slots and version not in shown:
            shown[version] = figures(past, (slots[version],), 0)
        if version in shown:
            record["around"] = _around(shown[version], record["at_ms"])
    return {"failed": failed, "slow": slowest}


def _records(journal: Journal, kind: Kind) -> list[dict[str, Any]]:
    return [orjson.loads(record) for record in journal.read(kind)]


def _around(columns: Mapping[str, Any], at_ms: int) -> dict[str, Any] | None:
    """What a model did in the second of a request; None if that second is not kept (any more)."""
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
