"""`stoker bench --grpc`: its own load generator, its bounds, and a bench of real servers as short as can be."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from stoker.errors import InvalidSettings
from stoker.gateway.grpc.messages import SERVICE, ModelInferRequest
from stoker_bench.benches import grpc_bench
from stoker_bench.benches.grpc_bench import (
    CPP_ECHO,
    ECHO,
    GRPC,
    EchoNotBuilt,
    _case_bounds,
    run_grpc_bench,
)
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.commands import bench
from stoker_bench.contestants.baselines.grpc_echo import echo_server
from stoker_bench.contestants.contest import Case, Slice
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.contestants.servers import Launch
from stoker_bench.generators.closed_loop import closed_loop
from stoker_bench.generators.grpc_loop import grpc_caller
from stoker_bench.generators.scoring_request import ScoringRequest
from stoker_bench.reports import CaseResult, Report

PATH = f"/{SERVICE}/ModelInfer"
SECONDS = 1.0
"""Long enough for some calls where the machine does other things meanwhile."""


async def load(server: Any, port: int, message: bytes, path: str = PATH, connections: int = 3) -> Any:
    """Load a server for a moment."""
    await server.start()
    request = ScoringRequest("127.0.0.1", port, path, message, {"X-Own": "v" * 300})
    figures, _ = await closed_loop(request.host, request.port, grpc_caller(request), connections, SECONDS)
    await server.stop(None)
    return figures


@pytest.mark.anyio
@pytest.mark.parametrize("size", [0, 3000, 300_000])
async def test_calls_are_made_one_after_the_other_and_counted(size: int) -> None:
    """Messages of any size, also of more than the server takes at once."""
    message = ModelInferRequest(raw_input_contents=[bytes(size)]).SerializeToString()
    figures = await load(*echo_server("127.0.0.1:0"), message)
    assert figures.errors == 0
    assert figures.requests > 3
    assert 0 < figures.p50_ms <= figures.p99_ms
    assert figures.duration_s >= SECONDS


@pytest.mark.anyio
async def test_metadata_and_message_arrive() -> None:
    """As they were given, names in small letters."""
    seen: list[tuple[bytes, str]] = []

    async def note(request: bytes, context: Any) -> bytes:
        seen.append((request, dict(context.invocation_metadata())["x-own"]))
        return request

    server = grpc.aio.server()
    handlers = {"ModelInfer": grpc.unary_unary_rpc_method_handler(note)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    await load(server, server.add_insecure_port("127.0.0.1:0"), b"abc", connections=1)
    assert set(seen) == {(b"abc", "v" * 300)}


@pytest.mark.anyio
async def test_calls_that_fail_are_errors() -> None:
    """A connection goes on after any status."""
    figures = await load(*echo_server("127.0.0.1:0"), b"", path=f"/{SERVICE}/Nothing")
    assert figures.requests == 0
    assert figures.errors > 3


@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_an_error() -> None:
    """Callers come again and again."""
    server, port = echo_server("127.0.0.1:0")
    await server.start()
    await server.stop(None)
    request = ScoringRequest("127.0.0.1", port, PATH, b"")
    figures, _ = await closed_loop(request.host, request.port, grpc_caller(request), 1, SECONDS)
    assert (figures.requests, figures.errors > 0) == (0, True)


def test_the_command_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own options; those of other benches do not go with it."""
    run_options: list[BenchOptions] = []

    def pretend(options: BenchOptions) -> Report:
        run_options.append(options)
        return Report("puppet", options.seconds, options.rounds, "m")

    monkeypatch.setattr(grpc_bench, "run_grpc_bench", pretend)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    arguments = ["--grpc", "--model", "m.onnx", "--seconds", "2", "--rounds", "4", "--concurrency", "8", "1"]
    assert bench.run(parser.parse_args([*arguments, "--frontends", "2"])) == 0
    assert run_options == [
        BenchOptions(model=Path("m.onnx"), seconds=2, rounds=4, concurrency=(8, 1), frontends=2)
    ]
    with pytest.raises(InvalidSettings, match="--rows does not go with --grpc"):
        bench.run(parser.parse_args(["--grpc", "--rows", "3"]))


def result(connections: int, p50_ms: float, echoes: dict[str, Slice]) -> CaseResult:
    """Return a case in which Stoker made 600 calls a second."""
    taken = Slice(600, 600, 0, p50_ms=p50_ms)
    return CaseResult(Case(connections), (3167,), {GRPC: [taken]} | {n: [s] for n, s in echoes.items()}, {})


def test_bounds_are_of_the_rate_of_many_and_the_wait_of_one() -> None:
    """Over the C++ echo: 0.6 of its calls a second, and 1.3 times its median for a lone caller."""
    echoes = {ECHO: Slice(500, 500, 0, p50_ms=0.3), CPP_ECHO: Slice(1000, 1000, 0, p50_ms=0.1)}
    report = Report("puppet", 3, 1, "m", _case_bounds, [result(64, 10, echoes), result(1, 0.14, echoes)])
    assert [(bound.text.partition(" at ")[0], bound.met) for bound in report.bounds()] == [
        (f"requests/s of gRPC over {ECHO} ≥ 0.8", True),
        (f"requests/s of gRPC over {CPP_ECHO} ≥ 0.6", True),
        (f"requests/s of gRPC over {ECHO} ≥ 0.8", True),
        (f"p50 of gRPC over {CPP_ECHO} ≤ 1.3", False),
    ]


def test_report_names_an_echo_that_was_left_out() -> None:
    """And has no bounds over an echo that did not run."""
    cases, notes = [result(1, 0.1, {})], ["The echo is left out: no c++."]
    report = Report("puppet", 3, 1, "m", _case_bounds, cases, notes=notes)
    assert report.bounds() == []
    assert "The echo is left out: no c++." in str(report)
    assert report.as_json()["notes"] == notes


def pretend_nothing_can_be_built(_path: str, _folder: Path) -> Launch:
    """Stand in for a machine without a compiler."""
    raise EchoNotBuilt("c++ is missing; install it")


@pytest.mark.parametrize("compiler", [True, False])
def test_a_bench_of_grpc(monkeypatch: pytest.MonkeyPatch, compiler: bool) -> None:
    """Stoker and the echoes are checked, take their turns without an error, and end; their ratios are bounds."""
    monkeypatch.setattr(grpc_bench, "WARM_UP_S", 0.1)
    if not compiler:
        monkeypatch.setattr(grpc_bench, "cpp_echo_launch", pretend_nothing_can_be_built)
    before = set(ProcessTree(os.getpid()).pids())
    report = run_grpc_bench(BenchOptions(seconds=1, rounds=1, concurrency=(4,)))
    if compiler and report.notes:
        pytest.skip(report.notes[0])
    (case,) = report.cases
    assert list(case.slices) == [GRPC, ECHO] + [CPP_ECHO] * compiler
    for (taken,) in case.slices.values():
        assert taken.errors == 0
        assert taken.requests_per_s > 0
    bound, *others = report.bounds()
    assert f"requests/s of {GRPC} over {ECHO} ≥ 0.8" in bound.text
    assert bound.measured == case.slices[GRPC][0].rows_per_s / case.slices[ECHO][0].rows_per_s
    assert len(others) == compiler
    reason = "The bare C++ echo is left out: c++ is missing; install it."
    assert report.notes == ([] if compiler else [reason])
    children = set(ProcessTree(os.getpid()).pids()) - before
    assert not [pid for pid in children if "stoker" in Path(f"/proc/{pid}/cmdline").read_text()]
