"""`stoker bench`: its options and what they become."""

import argparse
from pathlib import Path

import orjson
import pytest

from stoker.commands import bench
from stoker_bench import bench as bench_module
from stoker_bench.bench import BenchOptions
from stoker_bench.bench_report import BenchReport


def parsed(*arguments: str) -> argparse.Namespace:
    """Parse the command's arguments."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[BenchOptions]:
    """Collect what the bench was asked for instead of running it."""
    options: list[BenchOptions] = []

    def pretend(given: BenchOptions) -> BenchReport:
        options.append(given)
        return BenchReport("puppet", given.seconds, given.rounds, given.model)

    monkeypatch.setattr(bench_module, "run_bench", pretend)
    monkeypatch.delenv("STOKER_PRIMARY_KEY", raising=False)
    return options


def test_defaults_are_those_of_the_options(asked: list[BenchOptions]) -> None:
    """With no arguments the command asks for just what BenchOptions says."""
    assert bench.run(parsed()) == 0
    assert asked == [BenchOptions()]


def test_arguments_reach_the_bench(asked: list[BenchOptions], tmp_path: Path) -> None:
    """Every option has its place."""
    arguments = ["--uri", "http://127.0.0.1:1/score", "--key", "k", "--model", "m.onnx", "--seconds", "2"]
    arguments += [
        "--rounds",
        "4",
        "--concurrency",
        "8",
        "1",
        "--rows",
        "16",
        "--frontends",
        "2",
        "--no-baselines",
    ]
    bench.run(parsed(*arguments))
    assert asked == [
        BenchOptions(
            uri="http://127.0.0.1:1/score",
            key="k",
            model=Path("m.onnx"),
            seconds=2,
            rounds=4,
            concurrency=(8, 1),
            rows=16,
            frontends=2,
            baselines=False,
        )
    ]


def test_report_is_printed_and_written(
    asked: list[BenchOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table goes to stdout, the figures as JSON to the file."""
    output = tmp_path / "bench.json"
    bench.run(parsed("--output", str(output)))
    assert "load by puppet" in capsys.readouterr().out
    assert orjson.loads(output.read_bytes())["generator"] == "puppet"
    assert len(asked) == 1


@pytest.mark.parametrize("option", ["--seconds", "--rounds", "--concurrency", "--rows", "--frontends"])
def test_counts_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Zero is refused with the option's name."""
    with pytest.raises(SystemExit):
        parsed(option, "0")
    assert f"{option}: '0' is not a whole number of 1 or more" in capsys.readouterr().err
