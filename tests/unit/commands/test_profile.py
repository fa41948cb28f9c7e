"""`stoker profile`: what is said of what was found."""

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
from stoker.profiling.measuring import Order
from stoker.profiling.search import Candidate, Estimate, MeasuredCurve, SearchResult

CHOICE = Estimate(Candidate(64, 2, (8, 64)), 5000, 4321, 20.04, 45.06, 5)
DEFAULT = Estimate(Candidate(256), 3000, 9.876, 30, 48, 5)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Order]]:
    """A model that has been measured, and settings that have been found; returns what was asked for."""
    asked: list[Order] = []
    request = {"path": "/", "headers": {}, "body": "", "note": "1 row of chance, binary"}
    facts: dict[str, Any] = {"reference": "digits:7", "device": "cpu", "memory_bytes": 1 << 20}
    facts["buckets_because"] = "64 rows do 5,000 rows/s"
    measured = profiling.Measured(
        facts | {"request": request}, {"auto": MeasuredCurve((1, 64), (1_500_000, 12_345_678))}
    )

    def measure(order: Order, say: profiling.Say) -> profiling.Measured:
        asked.append(order)
        for message in ({"step": "loading"}, {"note": "graph is left out"}):
            say(message)
        say({"rows": 1, "ms": 1.5, "done": 1, "of": 2})
        return measured

    monkeypatch.setattr(profiling, "measure_model", measure)
    monkeypatch.setattr(profiling, "find_settings", lambda *_: SearchResult((CHOICE, DEFAULT), DEFAULT))
    before = signal.getsignal(signal.SIGTERM)
    yield asked
    signal.signal(signal.SIGTERM, before)


def run(*options: str) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    profile.add_arguments(parser)
    return profile.run(parser.parse_args(["digits", "--target-ms", "50", "--no-confirm", *options]))


def test_the_choice_is_told_beside_the_default(
    orders: list[Order], capsys: pytest.CaptureFixture[str]
) -> None:
    """With what a quarter of the time has measured, in columns, and what could not be tried below."""
    assert run("--seconds", "40") == 0
    assert orders == [Order("digits", None, None, {}, "auto", 50.0, 1, 10.0)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits:7 on cpu, answers within 50 ms, 1 row of chance, binary"
    assert lines[1] == "ms by rows: 1: 1.5, 64: 12.35"
    assert lines[2] == "sizes of batches by default, from these times: 64 rows do 5,000 rows/s"
    chosen, default, note = lines[4:]
    assert chosen.split() == [
        *("chosen", "max_batch_rows=64", "instances=2", "batch_buckets=[8,64]"),
        *("5000", "4321", "20.0", "45.1"),
    ]
    assert default.split() == ["default", "max_batch_rows=256", "instances=1", "3000", "9.88", "30.0", "48.0"]
    assert note == "graph is left out"


def test_the_deployment_has_the_choice(
    orders: list[Order], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the file with what is expected at its head, and in JSON."""
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
