"""`stoker profile`: the report of its findings."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.commands import profile
from stoker.errors import InvalidSettings
from stoker.profiling import profile as profiling
from stoker.profiling.candidates import Candidate, Space
from stoker.profiling.curves import MeasuredCurve
from stoker.profiling.load_tests import Confirmation, RequestCost
from stoker.profiling.measuring import Order, Report
from stoker.profiling.search import Estimate, SearchResult

CHOICE = Estimate(Candidate(64, 2, (8, 64)), 5000, 4321, 20.04, 45.06, 5)
DEFAULT = Estimate(Candidate(256), 3000, 9.876, 30, 48, 5)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Order]]:
    """A measured model with its settings found; returns the orders."""
    orders: list[Order] = []
    request = {"path": "/", "headers": {}, "body": "", "note": "1 random row, binary"}
    facts: dict[str, Any] = {"reference": "digits:7", "device": "cpu", "memory_bytes": 1 << 20}
    facts["buckets_because"] = "64 rows do 5,000 rows/s"
    measured = profiling.Measured(
        facts | {"request": request}, {"auto": MeasuredCurve((1, 64), (1_500_000, 12_345_678))}
    )

    def measure(order: Order, say: Report) -> profiling.Measured:
        orders.append(order)
        for message in ({"step": "loading"}, {"note": "graph is left out"}):
            say(message)
        say({"rows": 1, "ms": 1.5, "done": 1, "of": 2})
        return measured

    monkeypatch.setattr(profiling, "measure_model", measure)
    monkeypatch.setattr(profiling, "find_settings", lambda *_: SearchResult((CHOICE, DEFAULT), DEFAULT))
    before = signal.getsignal(signal.SIGTERM)
    yield orders
    signal.signal(signal.SIGTERM, before)


def run(*options: str, confirm: bool = False) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    profile.add_arguments(parser)
    options = options if confirm else ("--no-confirm", *options)
    return profile.run(parser.parse_args(["digits", "--target-ms", "50", *options]))


def test_choice_is_printed_beside_the_default(
    orders: list[Order], capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns have the measurements with a quarter of the time, and failed tries stand below."""
    assert run("--seconds", "40") == 0
    assert orders == [Order("digits", None, None, {}, "auto", 50.0, 1, 10.0)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits:7 on cpu, answers within 50 ms, 1 random row, binary"
    assert lines[1] == "ms by rows: 1: 1.5, 64: 12.35"
    assert lines[2] == "sizes of batches by default, from these times: 64 rows do 5,000 rows/s"
    chosen, default, unconfirmed, note = lines[4:]
    assert chosen.split() == [
        *("chosen", "max_batch_rows=64", "instances=2", "batch_buckets=[8,64]"),
        *("5000", "4321", "device", "20.0", "45.1", "not", "tried"),
    ]
    settings = ["default", "max_batch_rows=256", "instances=1"]
    assert default.split() == [*settings, "3000", "9.88", "device", "30.0", "48.0", "not", "tried"]
    assert "figures of the device alone" in unconfirmed
    assert note == "graph is left out"


class Bench:
    """A puppet of the servers under load: each sustains so much."""

    def __init__(self, load_rows_per_s: float) -> None:
        self.load_rows_per_s = load_rows_per_s

    def measure_cost(self, *_: object) -> RequestCost:
        return RequestCost(1, 50.0, 0.4)

    def confirm(self, *_: object) -> Confirmation:
        if self.load_rows_per_s >= 4321:
            return Confirmation(4321.0, 20.0, 40.0)
        busy = {"generator": 0.97, "frontends": 0.5, "device": 0.2, "other programs": 0.0, "all cores": 0.8}
        return Confirmation(self.load_rows_per_s, 9.0, 61.0, "generator", busy)


@pytest.mark.parametrize(
    ("sustained", "message"),
    [
        (4321, ""),
        (3000, "a server sustained 3,000 rows/s, 31 % less than expected. The limit was the load generator"),
        (0, "a server had 99 % in time at no load that was tried (at the least p99 61 ms)"),
    ],
)
def test_unconfirmed_profile_reports_the_sustained_load(
    orders: list[Order],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sustained: float,
    message: str,
) -> None:
    """The sustained load and its limit are on the screen, in JSON and at the head of the file."""
    bench = Bench(sustained)
    monkeypatch.setattr(profile, "require_extension", lambda *_: bench)
    monkeypatch.setattr(profiling, "make_space", lambda _: Space({}, DEFAULT.candidate))
    output = tmp_path / "deployment.yaml"
    assert run("--output", str(output), "--workspace", str(tmp_path / "ws"), confirm=True) == 0
    screen = capsys.readouterr().out
    assert "a request takes 50 µs of a frontend, so 1 frontend can answer about 16,000 requests/s" in screen
    for shown in (screen, output.read_text()):
        assert ("chosen: could not be confirmed: " in shown) == bool(message)
        assert message in shown
    assert run("--json", "--workspace", str(tmp_path / "ws"), confirm=True) == 0
    confirmed = json.loads(capsys.readouterr().out)["choice"]["confirmed"]
    assert confirmed["as_expected"] == (not message)
    assert confirmed["limit"] == ("generator" if message else None)
    assert len(orders) == 2


def test_the_deployment_has_the_choice(
    orders: list[Order], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has it with the expected load at its head, and so has the JSON."""
    output = tmp_path / "deployment.yaml"
    assert run("--output", str(output), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert yaml.safe_load(output.read_text()) == report["deployment"]
    (entry,) = report["deployment"]["models"]
    assert entry == {"registered": "digits", "target_ms": 50.0} | CHOICE.candidate.settings()
    assert output.read_text().startswith("# Written by stoker profile, which expects:\n# digits:7 on cpu")
    assert report["choice"]["confirmed"] is None
    assert report["output"] == str(output)
    assert orders


def test_a_sample_that_is_no_file_is_refused(orders: list[Order], tmp_path: Path) -> None:
    """Before anything is measured."""
    with pytest.raises(InvalidSettings, match=r"--data .*none\.json is not a file"):
        run("--data", str(tmp_path / "none.json"))
    assert not orders
