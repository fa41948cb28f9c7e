"""Audits of running batches: a row of a batch is run again, and its answer compared with the one that was given.

Audits are few and limited in time. If one fails, each row of the model runs alone from then on (decision 21).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stoker.device.audit_schedule import AuditSchedule
from stoker.device.batch_cap import BatchCap
from stoker.device.instance import Instance
from stoker.isolation.audit import AuditResult

if TYPE_CHECKING:
    from stoker.isolation.audit import AuditedRows
    from stoker.row_isolation import RowIsolation

logger = logging.getLogger(__name__)

_WARN_EVERY_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """How one model is audited.

    Attributes:
        name: The model, for the log.
        isolation: Why its rows may share batches.
        schedule: Which batches are audited.
        on_isolation_changed: Called with the new finding when an audit has refuted it.
    """

    name: str
    isolation: RowIsolation
    schedule: AuditSchedule
    on_isolation_changed: Callable[[RowIsolation], None]


class Auditor:
    """Audits one model in one device process. `judge` and `audit` may be called by any of its threads at once."""

    def __init__(self, policy: AuditPolicy, cap: BatchCap, clock_ns: Callable[[], int]) -> None:
        """Start without results.

        Args:
            policy: How the model is audited.
            cap: Used to switch batching off.
        """
        self.schedule = policy.schedule
        self._policy = policy
        self.cap = cap
        self._clock_ns = clock_ns
        self._noise = 0.0
        self._quiet_until_ns = 0

    def audit(self, instance: Instance, rows: AuditedRows) -> AuditResult:
        """Run rows again; a failure does not affect callers."""
        try:
            finding = instance.audit(rows, self._noise)
        except Exception:
            logger.exception("%s: a row could not be audited", self._policy.name)
            return AuditResult("skipped")
        self._noise = max(self._noise, finding.noise)
        return finding

    def judge(self, finding: AuditResult) -> None:
        """Act on a result: batching is switched off at once, unless the operator vouches for the model."""
        name = self._policy.name
        if finding.result == "skipped":
            logger.info("%s: a row could not be audited: %s", name, finding.reason)
        if finding.result != "failed":
            return
        message = (
            f"{name}: an answer depends on the rows beside it: {finding.reason}; "
            f"sha256 of the answer that was given: {finding.given}, of the other one: {finding.found}"
        )
        if self._policy.isolation.how == "said":
            self._warn(message)
            return
        if not self.cap.stop_batching():
            return
        logger.error("%s; from now on each row of it runs alone", message)
        self._policy.on_isolation_changed(
            dataclasses.replace(
                self._policy.isolation,
                batched=False,
                how="watched",
                reason=f"an audit of a running batch has failed: {finding.reason}",
                setting="batching: rows",
            )
        )

    def _warn(self, message: str) -> None:
        now_ns = self._clock_ns()
        if now_ns >= self._quiet_until_ns:
            self._quiet_until_ns = now_ns + _WARN_EVERY_NS
            logger.warning("%s; it is batched all the same, because batching is rows", message)
