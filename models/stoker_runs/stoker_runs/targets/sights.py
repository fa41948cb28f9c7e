"""Converts what an agent reports to the result of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker_runs.targets.engine import Presence, Sight

__all__ = ["sight_of"]


def sight_of(seen: Mapping[str, Any]) -> Sight:
    """Return what `stoker_run.observing.observe` means, wherever it was asked."""
    if seen["exit"] is not None:
        return Sight(Presence.ENDED, started_ms=_whole(seen["exit"].get("started_ms")), exit=seen["exit"])
    if seen["alive"]:
        beat, agent = seen["heartbeat"] or {}, seen["agent"] or {}
        # The log of the first process is made when it is.
        has_begun = "log_0.txt" in seen["sizes"]
        began_ms = _whole(agent.get("started_ms")) if has_begun else None
        return Sight(Presence.ALIVE, str(beat.get("problem") or ""), began_ms)
    return Sight(Presence.ABSENT if seen["agent"] is None else Presence.GONE)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
