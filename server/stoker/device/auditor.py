"""Audits of a model's running batches, and the consequences of a failed one; see `stoker.isolation.audit`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stoker.isolation.audit import Finding

if TYPE_CHECKING:
    from stoker.device.audit_schedule import AuditSchedule
    from stoker.device.batch_cap import BatchCap
    from stoker.device.instance import Instance
    from stoker.isolation.audit import Taken
    from stoker.verdict import Verdict

__all__ = ["AuditPolicy", "Auditor"]

logger = logging.getLogger(__name__)

_WARN_EVERY_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """How one model is audited.

    Attributes:
        name: The model, for the log.
        verdict: Why its rows may share batches.
        schedule: Which batches are audited.
        on_verdict: Called with the new verdict when an audit has refuted it.
    """

    name: str
    verdict: Verdict
    schedule: AuditSchedule
    on_verdict: Callable[[Verdict], None]


class Auditor:
    """Audits one model in one device process. `judge` and `audit` may be called by any of its threads at once."""

    def __init__(self, policy: AuditPolicy, cap: BatchCap, clock_ns: Callable[[], int]) -> None:
        """Start without results.

        Args:
            policy: How the model is audited.
            cap: Used to switch batching off.
            clock_ns: The time.
        """
        self.schedule = policy.schedule
        self._policy = policy
        self._cap = cap
        self._clock_ns = clock_ns
        self._noise = 0.0
        self._quiet_until_ns = 0

    def audit(self, instance: Instance, taken: Taken) -> Finding:
        """Run rows again. Whatever comes of it does not affect callers."""
        try:
            finding = instance.audit(taken, self._noise)
        except Exception:
            logger.exception("%s: a row could not be audited", self._policy.name)
            return Finding("skipped")
        self._noise = max(self._noise, finding.noise)
        return finding

    def judge(self, finding: Finding) -> None:
        """Act on a result: batching is switched off at once, unless the operator vouches for the model."""
        name = self._policy.name
        if finding.result == "skipped":
            logger.info("%s: a row could not be audited: %s", name, finding.reason)
        if finding.result != "failed":
            return
        told = (
            f"{name}: an answer depends on the rows beside it: {finding.reason}; "
            f"sha256 of the answer that was given: {finding.given}, of the other one: {finding.found}"
        )
        if self._policy.verdict.how == "said":
            self._warn(told)
            return
        if not self._cap.stop_batching():
            return
        logger.error("%s; from now on each row of it runs alone", told)
        self._policy.on_verdict(
            dataclasses.replace(
                self._policy.verdict,
                batched=False,
                how="watched",
                reason=f"an audit of a running batch has failed: {finding.reason}",
                setting="batching: rows",
            )
        )

    def _warn(self, told: str) -> None:
        now_ns = self._clock_ns()
        if now_ns >= self._quiet_until_ns:
            self._quiet_until_ns = now_ns + _WARN_EVERY_NS
            logger.warning("%s; it is batched all the same, because batching is rows", told)
