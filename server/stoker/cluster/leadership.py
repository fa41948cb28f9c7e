"""Which of several autoscalers acts: who holds a Lease, as Kubernetes' own controllers elect their leader.

Clocks of machines are never compared: a Lease has expired when it has not changed for as long as it says, on the
clock of the one who looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["RENEW_S", "Leadership"]

_LEASE_S: Final = 15
"""How long others wait for a holder who does not renew."""
RENEW_S: Final = 5.0
"""How often the holder renews."""

_STOP_S: Final = 10.0


@dataclass(slots=True)
class Leadership:
    """What one of them knows of the Lease. Times are seconds on its own clock.

    Attributes:
        identity: What this one is called.
    """

    identity: str
    _version: str | None = None
    _changed_s: float = 0.0
    _renewed_s: float | None = None

    def may_act(self, now_s: float) -> bool:
        """Whether it may act: it has renewed, well before others could take over."""
        return self._renewed_s is not None and now_s - self._renewed_s < _STOP_S

    def is_due(self, now_s: float) -> bool:
        """Whether the Lease is to be looked at."""
        return self._renewed_s is None or now_s - self._renewed_s >= RENEW_S

    def claim(self, lease: Mapping[str, Any], now_s: float, wall: datetime) -> dict[str, Any] | None:
        """Return what is to be merged into the Lease to hold it; None while another one does.

        Args:
            lease: The Lease as it is.
            now_s: The time.
            wall: The same in words, for people.
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
        # Another one who claims it at the same time loses: the version is not the same any more.
        return {"metadata": {"resourceVersion": version}, "spec": claimed}

    def claimed(self, now_s: float) -> None:
        """Take note that this was merged, at a time before it was."""
        self._renewed_s = now_s

    def release(self, now_s: float) -> dict[str, Any] | None:
        """Return what is to be merged at the end, so that nobody has to wait; None if it is not the holder."""
        if not self.may_act(now_s):
            return None
        self._renewed_s = None
        return {"spec": {"holderIdentity": None}}
