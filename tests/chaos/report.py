"""The report of a run: counts by protocol and by action, and the memory of the processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tests.chaos.ledger import Ledger, Verdict
from tests.chaos.scene import ACTIONS, ENDINGS
from tests.chaos.scheduler import Episode

__all__ = ["grown", "report"]

_MAY_GROW: Final = 1.25
_MAY_GROW_BYTES: Final = 32 << 20


def report(episodes: Sequence[Episode], duration_s: float) -> str:
    """Tables in Markdown of all episodes together."""
    ledger = Ledger().add(episode.ledger for episode in episodes)
    total = sum(ledger.counts.values())
    struck = sum(sum(episode.struck.values()) for episode in episodes)
    title = f"{len(episodes)} episodes in {duration_s:.0f} s: {total:,} requests, {struck} faults"
    return "\n\n".join([title, _by_protocol(ledger), _by_action(episodes, ledger), _memory(episodes)])


def grown(episodes: Sequence[Episode]) -> list[str]:
    """The kinds of processes that were larger late than early, by more than they may be."""
    return [
        kind
        for kind, before, after in _means(episodes, "pss_bytes")
        if after > max(_MAY_GROW * before, before + _MAY_GROW_BYTES)
    ]


def _by_protocol(ledger: Ledger) -> str:
    protocols = sorted({protocol for protocol, _ in ledger.counts})
    rows = [[protocol, *(f"{ledger.counts[protocol, one]:,}" for one in Verdict)] for protocol in protocols]
    rows.append(["all", *(f"{ledger.count(one):,}" for one in Verdict)])
    return _table(["requests", *Verdict], rows)


def _by_action(episodes: Iterable[Episode], ledger: Ledger) -> str:
    struck = {
        name: sum(episode.struck[name] for episode in episodes)
        for name in (*sorted(ACTIONS), *sorted(ENDINGS))
    }
    allowed = [one for one in Verdict if one not in (Verdict.RIGHT, Verdict.WRONG)]
    rows = [
        [name, str(count), *(f"{ledger.costs[name, one]:,}" for one in allowed)]
        for name, count in struck.items()
    ]
    return _table(["fault", "times", *allowed], rows)


def _memory(episodes: Sequence[Episode]) -> str:
    kinds = {}
    for measure, unit in (("pss_bytes", 1 << 20), ("rss_bytes", 1 << 20), ("files", 1)):
        for kind, before, after in _means(episodes, measure):
            kinds.setdefault(kind, [kind]).extend(f"{value / unit:.1f}" for value in (before, after))
    measures = ("PSS early, MiB", "late", "RSS early, MiB", "late", "files early", "late")
    return _table(["process (mean)", *measures], list(kinds.values()))


def _means(episodes: Sequence[Episode], measure: str) -> Iterable[tuple[str, float, float]]:
    whole = [episode.usage for episode in episodes if len(episode.usage) == 2]
    for kind in whole[0][0] if whole else ():
        sums = [sum(getattr(usage[when][kind], measure) for usage in whole) for when in (0, 1)]
        yield kind, sums[0] / len(whole), sums[1] / len(whole)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
