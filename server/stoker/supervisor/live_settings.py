"""Settings of a server that are changed while it runs: which requests are traced, and what the log has.

A server that takes over by reload begins with those that it is started with.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stoker.errors import NotSupported
from stoker.supervisor.trace_settings import UNLIMITED, rate_of
from stoker.system.logs import change_log_settings, log_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stoker.supervisor.fleet import Fleet
    from stoker.supervisor.trace_settings import TraceSettings

__all__ = ["LiveSettings"]


class LiveSettings:
    """Those of one server.

    Args:
        fleet: Its processes.
        traces: Which requests are traced; None if traces are sent nowhere.
        trace_ratio: The share that is to be kept where they are.
    """

    def __init__(self, fleet: Fleet, traces: TraceSettings | None, trace_ratio: float) -> None:
        self._fleet, self._traces, self._trace_ratio = fleet, traces, trace_ratio
        self._sampling = None if traces is None else traces.sampling
        self._first_form = log_settings().form

    def traced(self, model: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return which requests are traced; see `TraceSettings`.

        Args:
            model: Of which model; empty for all that have nothing of their own.
            changes: What is to be otherwise from now on.

        Raises:
            NotSupported: Something is to be changed, and traces are sent nowhere.
        """
        if self._traces is None:
            if changes:
                raise NotSupported(
                    "Traces are sent nowhere, so none can be asked for: start the server with --otlp-endpoint."
                )
            return {"on": False, "rate": rate_of(self._trace_ratio), "left": UNLIMITED}
        self._traces.change(model, changes)
        self.tell_frontends()
        return self._traces.described(model)

    def tell_frontends(self) -> None:
        """Tell them which requests are to be traced, if they were told otherwise; to be called now and then."""
        if self._traces is not None and (sampling := self._traces.sampling) != self._sampling:
            self._sampling = sampling
            self._fleet.frontends.tell(sampling)

    def logged(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the logs of all processes have.

        Args:
            changes: Fields of `LogSettings` with what they are to be from now on; a form that is None is that of the
                start.
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
