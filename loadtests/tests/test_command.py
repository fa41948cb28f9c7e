"""`stoker bench`: its options and the benches that they run."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from stoker.errors import InvalidSettings
from stoker_bench.benches import bench as bench_module
from stoker_bench.benches import protocol_bench, script_bench
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.commands import bench
from stoker_bench.reports import Report


def parsed(*arguments: str) -> argparse.Namespace:
    """Parse the command's arguments."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def run_options(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Collect the options of the benches instead of running them."""
    options: list[object] = []

    def pretend(name: str) -> Callable[[BenchOptions], Report]:
        def run(given: BenchOptions) -> Report:
            options.append((name, given))
            return Report("puppet", given.seconds, given.rounds, "MLP")

        return run

    monkeypatch.setattr(bench_module, "run_bench", pretend("model"))
    monkeypatch.setattr(script_bench, "run_script_bench", pretend("scripts"))
    monkeypatch.setattr(protocol_bench, "run_protocol_bench", pretend("protocols"))
    monkeypatch.delenv("STOKER_PRIMARY_KEY", raising=False)
    return options


def test_defaults_are_those_of_the_options(run_options: list[object]) -> None:
    """With no arguments the command asks for just what BenchOptions says."""
    assert bench.run(parsed()) == 0
    assert run_options == [("model", BenchOptions())]


def test_the_bench_of_grpc_needs_hpack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started it says so, and how to install it."""
    monkeypatch.setattr(bench, "find_spec", lambda name: None if name == "hpack" else name)
    with pytest.raises(InvalidSettings, match=r"--grpc needs packages that are missing here; .*hpack"):
        bench.run(parsed("--grpc"))


def test_arguments_reach_the_bench(run_options: list[object], tmp_path: Path) -> None:
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
    options = BenchOptions(
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
    assert run_options == [("model", options)]


@pytest.mark.parametrize("name", ["scripts", "protocols"])
def test_an_option_chooses_the_bench(run_options: list[object], name: str) -> None:
    """Nothing else is needed."""
    bench.run(parsed(f"--{name}"))
    assert run_options == [(name, BenchOptions())]


def test_arguments_reach_the_other_benches(run_options: list[object]) -> None:
    """Each bench has options that the others do not have."""
    common = ["--seconds", "2", "--rounds", "4", "--concurrency", "8", "1", "--frontends", "2"]
    bench.run(parsed("--scripts", *common, "--run", "outputs", "--script", "score.py"))
    bench.run(parsed("--protocols", *common, "--model", "m.onnx", "--rows", "16"))
    given = BenchOptions(seconds=2, rounds=4, concurrency=(8, 1), frontends=2)
    assert run_options == [
        ("scripts", replace(given, run_folder=Path("outputs"), script=Path("score.py"))),
        ("protocols", replace(given, model=Path("m.onnx"), rows=16)),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scripts", "--rows", "2"], "--rows does not go with --scripts"),
        (["--protocols", "--no-baselines"], "--no-baselines does not go with --protocols"),
        (["--grpc", "--rows", "2"], "--rows does not go with --grpc"),
        (["--protocols", "--run", "outputs"], "--run does not go with --protocols"),
        (["--script", "score.py"], "--script goes with --scripts alone"),
    ],
)
def test_options_of_another_bench_are_refused(
    run_options: list[object], arguments: list[str], message: str
) -> None:
    """An option that would have no effect is an error before anything is started."""
    with pytest.raises(InvalidSettings, match=message):
        bench.run(parsed(*arguments))
    assert not run_options


def test_a_bench_without_onnx_runtime_says_how_to_install_it(
    run_options: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is started; a server that runs already is measured without."""
    monkeypatch.setattr(bench, "find_spec", lambda _: None)
    with pytest.raises(InvalidSettings, match=r" pip install .*onnxruntime"):
        bench.run(parsed())
    assert not run_options
    assert bench.run(parsed("--uri", "http://127.0.0.1:8080/score")) == 0


def test_report_is_printed_and_written(
    run_options: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table goes to stdout, the figures as JSON to the file."""
    output = tmp_path / "bench.json"
    bench.run(parsed("--output", str(output)))
    assert "load by puppet" in capsys.readouterr().out
    assert orjson.loads(output.read_bytes())["generator"] == "puppet"
    assert len(run_options) == 1


def test_missing_output_folder_is_refused_before_the_bench(run_options: list[object], tmp_path: Path) -> None:
    """And not after its minutes."""
    with pytest.raises(InvalidSettings, match=r"there is no folder .*nowhere; make it first"):
        bench.run(parsed("--output", str(tmp_path / "nowhere" / "report.json")))
    assert run_options == []


@pytest.mark.parametrize("option", ["--seconds", "--rounds", "--concurrency", "--rows", "--frontends"])
def test_counts_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Zero is refused with the option's name."""
    with pytest.raises(SystemExit):
        parsed(option, "0")
    assert f"{option}: '0' is not a whole number of 1 or more" in capsys.readouterr().err
