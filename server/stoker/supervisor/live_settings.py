"""Settings that can be changed while a server runs: trace sampling and logging.

After a reload, the new server begins with the settings of its start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stoker.errors import NotSupported
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.trace_settings import UNLIMITED, TraceSettings, rate_of
from stoker.system.logs import change_log_settings, log_settings


class LiveSettings:
    """The live settings of one server."""

    def __init__(self, fleet: Fleet, traces: TraceSettings | None, trace_ratio: float) -> None:
        self._fleet, self._traces, self._trace_ratio = fleet, traces, trace_ratio
        self._sampling = None if traces is None else traces.sampling
        self._first_form = log_settings().form

    def traced(self, model: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change the trace settings, and return those that hold now; see `TraceSettings`.

        Args:
            model: The model; empty for the settings of all models that have none of their own.

        Raises:
            NotSupported: There are changes, but no receiver of traces.
        """
        if self._traces is None:
            if changes:
                raise NotSupported(
                    "Traces are sent nowhere, so none can be asked for: start the server with --otlp-endpoint."
                )
            return {"on": False, "rate": rate_of(self._trace_ratio), "left": UNLIMITED}
        self._traces.change(model, changes)
        self.notify_frontends()
        return self._traces.described(model)

    def notify_frontends(self) -> None:
        """Send frontends the sampling settings if they have changed; to be called periodically."""
        if self._traces is not None and (sampling := self._traces.sampling) != self._sampling:
            self._sampling = sampling
            self._fleet.frontends.tell(sampling)

    def logged(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change the log settings of all processes, and return those that hold now.

        Args:
            changes: Fields of `LogSettings` with their new values; a format of None is that of the start.
        """
        settings = log_settings()
        wanted = dict(changes)
        if "form" in wanted:
            wanted["form"] = wanted["form"] or self._first_form
        changed = dataclasses.replace(settings, **wanted)
        if changed != settings:
            change_log_settings(changed)
            for child in self._fleet.children:
                child.send(changed)
        return dataclasses.asdict(changed)
