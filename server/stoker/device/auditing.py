"""Audits of running batches: a row of a batch is run again, and its answer compared with the one that was given.

Audits are few and limited in time. If one fails, each row of the model runs alone from then on (decision 21).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from stoker.device.batch_cap import BatchCap
from stoker.device.instance import Instance
from stoker.isolation.audit import AuditedRows, AuditResult
from stoker.row_isolation import RowIsolation

logger = logging.getLogger(__name__)

_WARN_EVERY_NS: Final = 60_000_000_000
_SHARE: Final = 0.001
_FIRST_AFTER_NS: Final = 1_000_000_000
_RUNS: Final = 2
"""An audit is expected to cost this many runs of the batch: its own run, and preparing its rows."""
_PAUSE_BATCHES: Final = 16
_LONG: Final = 1e15
_SEED: Final = 20260721


class AuditSchedule:
    """Decides for one model in one device process which batches are audited. One thread at a time may call it.

    Audits are limited by time: what they have taken, with the next one, is at most a thousandth of the time of all
    batches. So there may be fewer than the rate asks for.
    """

    def __init__(
        self,
        rate: float,
        *,
        share: float | None = _SHARE,
        first_after_ns: int = _FIRST_AFTER_NS,
    ) -> None:
        """Start without any audit time used.

        Args:
            rate: How many of all batches are audited, above 0 and at most 1.
            share: The share of the batches' time that audits may take; None for no limit.
            first_after_ns: Batches have to run for this long before the first audit.
        """
        self._most_gap = max(1, round(min(2 / rate, _LONG)) - 1)
        self._share = share
        self._first_after_ns = first_after_ns
        # Intervals vary, so that a periodic pattern of requests is not always missed.
        self._random = random.Random(_SEED)  # noqa: S311  # nobody has to be surprised by it
        self._computed_ns = 0
        self._audited_ns = 0
        self._under_way = False
        self._left = self._gap()

    def count(self, elapsed_ns: int) -> bool:
        """Count a batch that took `elapsed_ns`; returns whether a row of the next one is to be kept."""
        self._computed_ns += elapsed_ns
        self._left -= 1
        return self._left <= 0 and self._may(elapsed_ns)

    def begin(self, elapsed_ns: int) -> bool:
        """Whether a batch that took `elapsed_ns` may be audited; if so, `end` has to be called after the audit."""
        if self._left > 0 or not self._may(elapsed_ns):
            return False
        self._under_way = True
        return True

    def end(self, elapsed_ns: int) -> None:
        """Record that an audit took `elapsed_ns`."""
        self._under_way = False
        self._audited_ns += elapsed_ns
        self._left = self._gap()

    def postpone(self) -> None:
        """Skip some batches because rows wait: checking again after each batch would delay them too."""
        self._left = min(_PAUSE_BATCHES, self._most_gap)

    def _may(self, elapsed_ns: int) -> bool:
        if self._under_way or self._computed_ns < self._first_after_ns:
            return False
        expected_ns = self._audited_ns + _RUNS * elapsed_ns
        return self._share is None or expected_ns <= self._share * self._computed_ns

    def _gap(self) -> int:
        return self._random.randint(1, self._most_gap)


class AuditPolicy(Struct, frozen=True):
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
            msgspec.structs.replace(
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
