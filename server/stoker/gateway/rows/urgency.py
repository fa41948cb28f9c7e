"""The urgency of a request, and the quotas of its caller and of its group of models: buckets of rows and device time.

Each frontend has buckets of its own. For each request of such a caller it computes what has been drawn from the
shared counters: rows that all frontends have admitted, and device time that all device processes have spent. So
nothing has to be divided among frontends, and nothing is lost when one ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from stoker.arena import CALLER_BITS, NORMAL_TIER, WEIGHT_BITS
from stoker.errors import QuotaExceeded, Refusal, RequestOverQuota
from stoker.keys.buckets import Bucket
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.metrics.layout import CALLERS
from stoker.settings.choices import TIERS

if TYPE_CHECKING:
    from stoker.keys.callers import KnownCallers
    from stoker.metrics.counters import CallerCounts, CallerUsage
    from stoker.settings.model_limits import ModelLimit

REFRESH_NS: Final = 50_000_000
"""How often all buckets are updated even without requests; see `Quotas.refresh`."""
_SLACK_NS: Final = 2 * REFRESH_NS
"""How much longer a caller has to wait because other frontends may know less of what has flowed in."""
_MS_NS: Final = 1_000_000
_S_NS: Final = 1_000_000_000
_ROWS: Final = "rows"
_DEVICE_MS: Final = "device-ms"
_REPORTED: Final = (200, 413, 429)
"""Statuses whose answers report the caller's limits."""


class Quota:
    """The remaining quota of a caller, or of a group of models, as known to one frontend.

    Args:
        holder: The holder of the limit, as messages name it.
        rows, device_ns: What the caller had used when the buckets were full. All frontends start from the same
            numbers, so what another frontend has admitted since is drawn from these buckets too.
    """

    __slots__ = (
        "_buckets",
        "_clock_ns",
        "_counts",
        "_holder",
        "_policy",
        "_refused_s",
        "_slack_ns",
        "_usage",
        "terms",
    )

    def __init__(
        self,
        terms: CallerTerms,
        usage: CallerUsage,
        counts: CallerCounts,
        clock_ns: Callable[[], int],
        slack_ns: int,
        rows: int,
        device_ns: int,
        holder: str = "this caller",
    ) -> None:
        self.terms, self._holder = terms, holder
        self._usage, self._counts = usage, counts
        self._clock_ns, self._slack_ns = clock_ns, slack_ns
        self._buckets: dict[str, Bucket] = {}
        self._refused_s = 0
        self._set(terms, rows, device_ns)

    def change(self, terms: CallerTerms) -> None:
        """Apply changed limits; a limit that is new begins with a full bucket."""
        now_ns = self._clock_ns()
        self.refresh(now_ns, self._usage.rows(self.terms.number), self._usage.device_ns(self.terms.number))
        if terms.number != self.terms.number:
            self._buckets.clear()
        self._set(terms, self._usage.rows(terms.number), self._usage.device_ns(terms.number))

    def _set(self, terms: CallerTerms, rows: int, device_ns: int) -> None:
        """Create buckets for these limits; new ones are full when the caller has used this much."""
        now_ns = self._clock_ns()
        drawn = {_ROWS: float(rows), _DEVICE_MS: device_ns / _MS_NS}
        for kind, per_s in ((_ROWS, terms.rows_per_s), (_DEVICE_MS, terms.device_ms_per_s)):
            bucket = self._buckets.get(kind)
            if per_s is None:
                self._buckets.pop(kind, None)
            elif bucket is None:
                self._buckets[kind] = Bucket(per_s, terms.burst_s, drawn[kind], now_ns)
            else:
                bucket.change(per_s, terms.burst_s)
        self.terms = terms
        self._policy = _policy_line(self._buckets.items(), terms.burst_s)

    def refresh(self, now_ns: int, rows: int, device_ns: int) -> None:
        """Update the buckets from what the caller has used by now, in rows and device time."""
        for kind, bucket in self._buckets.items():
            bucket.update(now_ns, rows if kind == _ROWS else device_ns / _MS_NS)

    def check(self) -> None:
        """Refuse a request before its rows are known, if no row is left; otherwise it may be read."""
        self._refresh()
        waits_ns = {kind: bucket.wait_ns(kind == _ROWS) for kind, bucket in self._buckets.items()}
        if any(waits_ns.values()):
            self._refuse(
                {
                    kind: bucket.wait_ns(bucket.size if kind == _ROWS else 0)
                    for kind, bucket in self._buckets.items()
                }
            )

    def check_rows(self, rows: int) -> None:
        """Raise QuotaExceeded unless so many rows may be drawn, RequestOverQuota if they never may."""
        self._refresh()
        bucket = self._buckets.get(_ROWS)
        if bucket is not None and rows > bucket.size:
            raise RequestOverQuota(
                f"This request has {rows} rows, and {self._holder} may have at most {int(bucket.size)} at once, "
                f"{bucket.per_s:g} a second: send fewer rows in a request."
            )
        waits_ns = {
            kind: other.wait_ns(rows if kind == _ROWS else 0) for kind, other in self._buckets.items()
        }
        if any(waits_ns.values()):
            self._refuse(waits_ns)

    def draw(self, rows: int) -> None:
        """Draw the rows of a request that `check_rows` has passed."""
        bucket = self._buckets.get(_ROWS)
        if bucket is not None:
            bucket.draw(rows)
            self._counts.count_rows(self.terms.number, rows)

    def lines(self, status: int) -> bytes:
        """The header lines that report a caller's limits, for an answer with this status."""
        if status not in _REPORTED:
            return b""
        most_s = self._refused_s if status == QuotaExceeded.status else None
        items = []
        for kind, bucket in self._buckets.items():
            # No field may name a longer time than Retry-After.
            full_s = -(-bucket.wait_ns(bucket.size) // _S_NS)
            until_s = full_s if most_s is None else min(full_s, most_s)
            items.append(f'"{kind}";r={max(0, int(bucket.level))};t={until_s}')
        return b"%bratelimit: %b\r\n" % (self._policy, ", ".join(items).encode())

    def _refresh(self) -> None:
        caller = self.terms.number
        rows = self._usage.rows(caller) if _ROWS in self._buckets else 0
        device_ns = self._usage.device_ns(caller) if _DEVICE_MS in self._buckets else 0
        self.refresh(self._clock_ns(), rows, device_ns)

    def _refuse(self, waits_ns: dict[str, int]) -> None:
        kind = max(waits_ns, key=waits_ns.__getitem__)
        wait_ms = -(-(waits_ns[kind] + self._slack_ns) // _MS_NS)
        refusal = Refusal(QuotaExceeded.status, QuotaExceeded.code, max(1, wait_ms), reason=f"quota-{kind}")
        self._refused_s = refusal.retry_after_s
        unit = "rows" if kind == _ROWS else "ms of device time"
        raise QuotaExceeded(
            f"The limit of {self._holder} is reached, {self._buckets[kind].per_s:g} {unit} a second; "
            f"try again in {wait_ms / 1000:g} s.",
            refusal=refusal,
        )


class Quotas:
    """The quotas of all callers and groups of models with limits, in one frontend."""

    def __init__(
        self,
        usage: CallerUsage,
        counts: CallerCounts,
        known: KnownCallers,
        *,
        several: bool,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._known = known
        self._usage, self._counts, self._clock_ns = usage, counts, clock_ns
        self._slack_ns = _SLACK_NS if several else 0
        self._quotas: dict[str, Quota] = {}
        self._groups: dict[int, Quota] = {}
        self._refreshed_ns = 0
        self._rows, self._device_ns = usage.all_rows(), usage.all_device_ns()
        """The use by caller at the last refresh; keys that are newer are missing."""

    def of(self, terms: CallerTerms) -> Quota | None:
        """The quota of a caller; None for a caller without limits."""
        if not terms.limited:
            return None
        quota = self._quotas.get(terms.identity)
        if quota is None:
            quota = self._quotas[terms.identity] = self._create(terms)
        elif quota.terms is not terms:
            if quota.terms != terms:
                quota.change(terms)
            quota.terms = terms
        return quota

    def of_models(self, limit: ModelLimit) -> Quota:
        """The quota of a group of models, which is the same for all of them."""
        quota = self._groups.get(limit.number)
        if quota is None:
            terms = CallerTerms(
                limit.pattern,
                CALLERS + limit.number,
                rows_per_s=limit.rows_per_s,
                device_ms_per_s=limit.device_ms_per_s,
                burst_s=limit.burst_s,
            )
            quota = self._groups[limit.number] = self._create(terms, f"the models {limit.pattern}")
        return quota

    def _create(self, terms: CallerTerms, holder: str = "this caller") -> Quota:
        self._usage.include_new_processes()
        used = int(self._rows[terms.number]), int(self._device_ns[terms.number])
        return Quota(terms, self._usage, self._counts, self._clock_ns, self._slack_ns, *used, holder)

    @property
    def names(self) -> Mapping[int, str]:
        """The names of all callers, by their numbers."""
        return self._known.names

    def _follow(self, callers: Iterable[CallerTerms]) -> None:
        """Keep quotas for exactly these callers, so that buckets begin to fill at one time in all frontends."""
        limited = {terms.identity: terms for terms in callers if terms.limited}
        for gone in self._quotas.keys() - limited.keys():
            del self._quotas[gone]
        for terms in limited.values():
            self.of(terms)

    def refresh(self) -> None:
        """Follow changes of the named keys and, at intervals, update all buckets; to be called often.

        The error in a frontend's view of a bucket is at most what flows in between two looks.
        """
        callers = self._known.changed()
        if callers is not None:
            self._follow(callers)
        now_ns = self._clock_ns()
        if now_ns < self._refreshed_ns + REFRESH_NS:
            return
        self._refreshed_ns = now_ns
        self._usage.include_new_processes()
        self._rows, self._device_ns = self._usage.all_rows(), self._usage.all_device_ns()
        if not self._quotas and not self._groups:
            return
        rows, device_ns = self._rows.tolist(), self._device_ns.tolist()
        for quota in (*self._quotas.values(), *self._groups.values()):
            quota.refresh(now_ns, rows[quota.terms.number], device_ns[quota.terms.number])


def _policy_line(buckets: Iterable[tuple[str, Bucket]], burst_s: float) -> bytes:
    """The header line with the limits, in whole seconds."""
    window_s = max(1, -(-burst_s // 1))
    items = [
        f'"{kind}";q={max(1, int(bucket.per_s * window_s))};qu="{kind}";w={window_s:.0f}'
        for kind, bucket in buckets
    ]
    return b"ratelimit-policy: %b\r\n" % ", ".join(items).encode()


class Urgency(NamedTuple):
    """The caller, tier and target of a request.

    Attributes:
        tier: 0 for high, 1 for normal, 2 for low.
        lasts_ns: The target: how long after its body was received an answer is of use; 0: until its deadline.
        reports_tier: Whether the answer names the tier that it had, because the request asked for one.
        quota: What its caller may send; None without a limit.
        shared: What may be sent to the group of its model; None without a limit.
    """

    tier: int = NORMAL_TIER
    caller: CallerTerms = DEFAULT
    lasts_ns: int = 0
    reports_tier: bool = False
    quota: Quota | None = None
    shared: Quota | None = None

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Those that count it."""
        if self.shared is None:
            return () if self.quota is None else (self.quota,)
        return (self.shared,) if self.quota is None else (self.quota, self.shared)

    def with_tier(self, tier: int) -> Urgency:
        """The same for a request that asks for a tier; it gets at most the highest that its caller may use."""
        return self._replace(tier=max(tier, TIERS.index(self.caller.max_tier)), reports_tier=True)

    @property
    def placed(self) -> int:
        """Tier, caller and the caller's weight, as in the column `placed` of an arena."""
        weight = round(self.caller.weight * 1000) if self.caller.weight != 1 else 0
        return weight << WEIGHT_BITS | self.tier << CALLER_BITS | self.caller.number

    def lines(self, status: int) -> bytes:
        """The header lines with the tier and the limits, for an answer with this status."""
        lines = b"stoker-tier: %b\r\n" % TIERS[self.tier].encode() if self.reports_tier else b""
        quota = self.quota or self.shared
        return lines if quota is None else lines + quota.lines(status)


DEFAULT_URGENCY: Final = Urgency()
"""The urgency of requests that say nothing of it."""
