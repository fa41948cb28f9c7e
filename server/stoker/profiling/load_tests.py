"""Load tests of a server with the settings that a search has found, and their results; the bench runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

_BUSY_FRONTENDS: Final = 0.8
"""The share of their time that frontends can be busy before requests queue for them."""


class LoadTest(Struct, frozen=True):
    """A request and a load, with the expectation that 99 % of the answers are within the target.

    Attributes:
        target_ms: The latency target.
        rows_per_s: The load at which 99 % are expected to be in time; 0 if none is expected yet.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    rows: int
    target_ms: float
    rows_per_s: float = 0.0


class RequestCost(Struct, frozen=True):
    """The cost of a request beside its batch, measured on a server in closed loops.

    Attributes:
        frontends: Number of frontend processes.
        frontend_us: Their CPU time for a request, with many connections.
        lone_ms: Median time to the answer of a lone caller, its batch included.
    """

    frontends: int
    frontend_us: float
    lone_ms: float

    @property
    def most_requests_per_s(self) -> float:
        """The requests that the frontends have time for."""
        return _BUSY_FRONTENDS * self.frontends / self.frontend_us * 1e6


class Confirmation(Struct, frozen=True):
    """The load that a server sustained.

    Attributes:
        load_rows_per_s: The largest load that was tried at which 99 % were in time; 0 if there was none.
        p50_ms, p99_ms: Time to the answer at half of that, as callers see it; at the least load that was tried if
            none was sustained.
        limit: The bottleneck: `generator`, `frontends` or `device`; `cores` if all cores of the machine were
            busy; `latency` if none was busy. None if the expected load was sustained.
        busy: The share of their time, from 0 to 1, for which `generator`, `frontends`, `device` and `all cores` were
            busy at the least load that was not sustained, and the share of all cores that `other programs` used.
    """

    load_rows_per_s: float
    p50_ms: float
    p99_ms: float
    limit: str | None = None
    busy: Mapping[str, float] = msgspec.field(default_factory=dict)
