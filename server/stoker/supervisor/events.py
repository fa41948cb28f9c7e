"""The events of models: loads, failures, takeovers, evictions; callers of the API read them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

logger = logging.getLogger(__name__)

_KEPT: Final = 1000


class Events:
    """The last thousand events, for as long as the server runs."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        """Create it empty; `clock_s` returns seconds since 1970."""
        self._clock_s = clock_s
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def note(self, model: str, version: int | None, event: str, text: str = "", **details: Any) -> None:
        """Add an event.

        Args:
            version: The version; None if the event concerns no single version.
        """
        moment = datetime.fromtimestamp(self._clock_s(), UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {"time": moment.replace("+00:00", "Z"), "model": model, "event": event}
        if version is not None:
            entry["version"] = str(version)
        if text:
            entry["text"] = text
        self._kept.append({**entry, **details})

    def tell(self, level: int, model: str, version: int, event: str, text: str, **details: Any) -> None:
        """Add an event, and log it with this level."""
        logger.log(level, "%s version %d: %s", model, version, text)
        self.note(model, version, event, text, **details)

    def listed(self, model: str | None = None) -> list[Mapping[str, Any]]:
        """Return the events of one model or of all, the oldest first."""
        return [entry for entry in self._kept if model in (None, entry["model"])]
