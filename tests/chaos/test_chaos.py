"""Every fault once, against a real server: the short form of `make chaos`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.chaos.ledger import Verdict
from tests.chaos.questions import HTTP_PROTOCOLS
from tests.chaos.report import report
from tests.chaos.scene import ACTIONS
from tests.chaos.scheduler import Episode, plan, tour

SEED = 1


@pytest.mark.long
def test_no_fault_costs_more_than_is_promised(tmp_path: Path) -> None:
    """Each fault strikes once, some together; every request has one verdict, and that is right or allowed."""
    episode = Episode(tour(SEED), tmp_path, longest_hold_s=0.5)
    episode.run()
    assert episode.struck == Counter([*ACTIONS, "sigterm under load"])
    answered = {protocol for protocol, verdict in episode.ledger.counts if verdict is Verdict.RIGHT}
    assert answered == {*HTTP_PROTOCOLS, "grpc"}
    assert episode.ledger.count(Verdict.WRONG) == 0
    assert "sigterm under load" in report([episode], 1.0)


def test_episode_follows_from_its_seed() -> None:
    """A seed gives the same episode again, and all seeds together use every fault."""
    assert str(plan(7, 14)) == str(plan(7, 14)) != str(plan(8, 14))
    drawn = {one.name for seed in range(40) for together in plan(seed, 14).rounds for one in together}
    assert drawn == set(ACTIONS)
    for together in (together for seed in range(40) for together in plan(seed, 14).rounds):
        assert len({one.group for one in together}) == len(together)
