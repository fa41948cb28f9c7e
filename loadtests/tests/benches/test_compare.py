"""`make compare`: a whole comparison with a puppet of a peer, asked just once."""

from dataclasses import replace
from pathlib import Path

import pytest
from loadtests.tests.one_request import OneRequest

from stoker_bench import compare
from stoker_bench.benches import lineup
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.contestants.baselines import HANDWRITTEN, handwritten_launch
from stoker_bench.contestants.peers import Peer, Site
from stoker_bench.contestants.servers import Launch


def launch_peer(site: Site) -> Launch:
    """Serve the model by the hand-written service; it is ready when it scores."""
    return replace(handwritten_launch(site.model), name="puppet", ready_path="/nowhere")


def test_servers_are_compared_with_the_hand_written_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stoker and each peer answer rightly, and their ratios are those to the hand-written service."""
    monkeypatch.setattr(lineup, "OwnGenerator", OneRequest)
    monkeypatch.setattr(lineup, "WARM_UP_S", 0)
    monkeypatch.setattr(compare, "build_environment", lambda peer, environments: environments / peer.folder)
    peer = Peer("puppet", ("puppet==1.0",), "by hand", launch_peer)
    report = compare.compare_servers([peer], tmp_path, BenchOptions(seconds=0, rounds=1, concurrency=(2,)))
    (case,) = report.cases
    assert list(case.slices) == ["Stoker", "puppet", HANDWRITTEN]
    assert not any(taken.errors for slices in case.slices.values() for taken in slices)
    assert list(case.ratios()) == ["Stoker", "puppet"]
    assert "puppet 1.0: by hand" in str(report)
