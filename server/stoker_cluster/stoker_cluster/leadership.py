"""The Lease by which one of several autoscalers acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

RENEW_S: Final = 5.0
"""How often the holder renews the Lease."""

_STOP_S: Final = 10.0
_LEASE_S: Final = 15
"""How long other autoscalers wait for a holder that does not renew the Lease."""


@dataclass(slots=True)
class Leadership:
    """The state of the Lease as one autoscaler knows it. Times are seconds on its own clock."""

    identity: str
    _version: str | None = None
    _changed_s: float = 0.0
    _renewed_s: float | None = None

    def may_act(self, now_s: float) -> bool:
        """Whether it may act: it has renewed the Lease well before others could take it."""
        return self._renewed_s is not None and now_s - self._renewed_s < _STOP_S

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to read the Lease."""
        return self._renewed_s is None or now_s - self._renewed_s >= RENEW_S

    def claim(self, lease: Mapping[str, Any], now_s: float, wall: datetime) -> dict[str, Any] | None:
        """Return the change to the Lease that claims it; None while another autoscaler holds it.

        Args:
            wall: The wall-clock time, written into the Lease.
        """
        version, spec = lease["metadata"]["resourceVersion"], lease.get("spec") or {}
        if version != self._version:
            self._version, self._changed_s = version, now_s
        holder = spec.get("holderIdentity") or None
        wait_s = spec.get("leaseDurationSeconds") or _LEASE_S
        if holder not in (None, self.identity) and now_s - self._changed_s < wait_s:
            self._renewed_s = None
            return None
        now = wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        claimed = {"holderIdentity": self.identity, "leaseDurationSeconds": _LEASE_S, "renewTime": now}
        if holder != self.identity:
            claimed |= {"acquireTime": now, "leaseTransitions": (spec.get("leaseTransitions") or 0) + 1}
        # If another one claims it at the same time, one of both fails, because the version of the object has
        # changed.
        return {"metadata": {"resourceVersion": version}, "spec": claimed}

    def record_claim(self, now_s: float) -> None:
        """Record that the change was written, at a time before it was."""
        self._renewed_s = now_s

    def release(self, now_s: float) -> dict[str, Any] | None:
        """Return the change that releases the Lease, so that nobody has to wait; None if it is not held here."""
        if not self.may_act(now_s):
            return None
        self._renewed_s = None
        return {"spec": {"holderIdentity": None}}
