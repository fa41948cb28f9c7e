"""Simulated fleets, replays of recorded requests, times of running servers, and pictures of all that."""

import json
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import numpy as np
import pytest

from stoker.cli import main
from stoker.device.batching import BatchPolicy
from stoker.errors import InvalidSettings
from stoker.gateway.rows.routing import Routing
from stoker.simulation.workload import CURVES, Stream, joined
from stoker.simulation.world import NEVER_NS
from stoker_bench.laboratory.fleet import Fleet, FleetOutcome, place, run_fleet
from stoker_bench.laboratory.replay import learned_curve, read_requests

A100 = CURVES["resnet50-a100"]
POLICY = BatchPolicy(64)


def ran(fleet: Fleet, load: float, seconds: float = 0.3, target_ms: float = 25) -> FleetOutcome:
    """What becomes of a load of a fleet."""
    chance = np.random.default_rng(7)
    rate = load * fleet.gpus * A100.peak_rows_per_s / fleet.models
    requests = joined([Stream(rate, target_ms, model).draw(seconds, chance) for model in range(fleet.models)])
    return run_fleet(fleet, requests, 7)


@pytest.mark.parametrize(
    ("routing", "choices", "state_ms", "least", "most"),
    [("end", 3, 0, 0.99, 1), ("random", 1, 0, 0.9, 1), ("end", 8, 20, 0, 0.9)],
)
def test_few_choices_by_expected_end_are_enough(
    routing: Routing, choices: int, state_ms: float, least: float, most: float
) -> None:
    """And all of them by what was known 20 ms ago are worse than chance: everybody goes to the same server."""
    outcome = ran(Fleet(A100, 8, POLICY, routing, choices, state_ms), 0.9)
    assert least <= outcome.outcome.in_time() <= most


def test_what_a_lost_server_had_goes_to_the_others() -> None:
    """Nothing is lost with it, and nobody comes to it any more."""
    outcome = ran(Fleet(A100, 6, POLICY, lose=2), 0.5, target_ms=200)
    assert outcome.rerouted_rows > 0
    assert (outcome.outcome.done_ns < NEVER_NS).all()
    assert outcome.gpu_s < 5.5 * outcome.outcome.end_ns / 1e9


def test_servers_come_and_go_with_the_load() -> None:
    """One is too few for a fleet's load of 0.4, and all of them are too many."""
    fleet = Fleet(A100, 6, POLICY, least=1, start_s=0.05)
    outcome = ran(fleet, 0.4, seconds=0.5, target_ms=200)
    mean = outcome.gpu_s / outcome.outcome.end_ns * 1e9
    assert 1.5 < mean < 5.5
    assert outcome.outcome.in_time() > 0.5


def test_each_model_is_on_its_copies() -> None:
    """About as many on each server, and never twice on one; each is served there alone."""
    fleet = Fleet(A100, 5, POLICY, models=4, copies=3)
    placed = place(fleet)
    assert [sum(model in models for models in placed) for model in range(4)] == [3] * 4
    assert {len(models) for models in placed} <= {2, 3}
    assert ran(fleet, 0.5, target_ms=100).outcome.in_time() > 0.95
    assert place(Fleet(A100, 3, POLICY, models=2)) == [[0, 1]] * 3


def test_requests_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In order of their times, whatever that of the file, with their callers and tiers."""
    file = tmp_path / "asked.csv"
    file.write_text("time,model,rows,caller,tier\n10.5,b,2,x,low\n10,a,1,y,high\n10.7,a,3,,\n")
    requests, models = read_requests(file, 50)
    assert models == ["a", "b"]
    assert requests.at_ns.tolist() == [0, 500_000_000, 700_000_000]
    assert (requests.rows.tolist(), requests.model.tolist()) == ([1, 2, 3], [0, 1, 0])
    assert (requests.caller.tolist(), requests.tier.tolist()) == ([2, 1, 0], [0, 2, 1])
    assert main(["simulate", "--replay", str(file), "--json", "--seeds", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["model"], row["rows"], row["in_time"]) for row in told] == [
        ("all", 6, 1.0),
        ("a", 4, 1.0),
        ("b", 2, 1.0),
    ]


def test_recorded_callers_may_have_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each its own, by the buckets of the server: what is refused does not come, and others lose nothing."""
    file = tmp_path / "asked.csv"
    sent = [f"{at / 100},{model},2,flood,\n" for at in range(100) for model in "ab"]
    file.write_text("time,model,rows,caller,tier\n" + "".join(sent) + "0.5,a,9,calm,\n0.6,a,1,calm,\n")
    limit = ["--caller-rows-per-s", "20", "--caller-burst-s", "0.4"]
    assert main(["simulate", "--replay", str(file), "--json", "--seeds", "1", *limit]) == 0
    told = json.loads(capsys.readouterr().out)
    # 8 at once and less than 20 in the second that follows, two at a time; of the other caller 9 are too many.
    assert [(row["model"], row["refused"]) for row in told] == [
        ("all", 410 - 26 - 1),
        ("a", None),
        ("b", None),
    ]
    assert main(["simulate", *limit]) != 0
    assert "give them with --replay" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "time,rows\n", "when\n1\n", "time,rows\n1,0\n", "time\nnow\n", "time,tier\n1,top\n"]
)
def test_files_without_requests_are_refused(tmp_path: Path, text: str) -> None:
    """With the columns that there have to be."""
    file = tmp_path / "asked.csv"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=r"asked\.csv"):
        read_requests(file, 50)


def exposed(*models: str) -> str:
    """The metrics of a server whose batches take 2 ms and 0.25 ms a row."""
    lines = []
    for model in models:
        lines.append(f'stoker_batch_cap_rows{{model="{model}",version="1"}} 32')
        for least, rows in ((1, 1.0), (8, 11.5), (32, 32.0)):
            labels = f'model="{model}",version="1",rows="{least}"'
            lines.append(f"stoker_batch_mean_rows{{{labels}}} {rows}")
            lines.append(f"stoker_batch_mean_seconds{{{labels}}} {(2 + 0.25 * rows) / 1000}")
    return "\n".join(lines) + "\n"


def test_the_times_of_a_running_server_are_a_curve() -> None:
    """Of the only model, or of the one that is named."""
    curve = learned_curve(exposed("digits"), None)
    assert (curve.batch_ms, curve.row_ms) == (pytest.approx(2), pytest.approx(0.25))
    assert curve.max_batch_rows == 32
    assert learned_curve(exposed("digits", "letters"), "letters").row_ms == pytest.approx(0.25)
    with pytest.raises(InvalidSettings, match="digits, letters"):
        learned_curve(exposed("digits", "letters"), None)
    with pytest.raises(InvalidSettings, match="have run: none"):
        learned_curve("", None)


def test_loads_of_a_fleet_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a picture beside the table; what is no table of loads is not."""
    figure = MagicMock()
    figure.subplots.return_value = axes = [MagicMock(), MagicMock(), MagicMock()]
    # The real one takes seconds to import.
    monkeypatch.setitem(sys.modules, "matplotlib", ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", MagicMock(Figure=lambda **_: figure))
    picture = tmp_path / "fleet.svg"
    asked = ["simulate", "--gpus", "2", "--seconds", "0.05", "--seeds", "1", "--load", "0.5,2"]
    assert main([*asked, "--plot", str(picture)]) == 0
    assert "gpus" in capsys.readouterr().out.splitlines()[3]
    figure.savefig.assert_called_once_with(picture)
    assert axes[2].plot.call_args.args[0] == [0.5, 2.0]
    file = tmp_path / "asked.csv"
    file.write_text("time\n1\n")
    assert main(["simulate", "--replay", str(file), "--plot", str(picture)]) != 0
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*asked, "--plot", str(picture)]) != 0
    assert main([*asked, "--lose", "2"]) != 0
