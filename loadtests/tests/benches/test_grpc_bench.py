"""`stoker bench --grpc`: its load generator, and a bench of real servers as short as can be."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from stoker.commands import bench
from stoker.errors import InvalidSettings
from stoker.gateway.grpc.messages import SERVICE, ModelInferRequest
from stoker_bench.benches import grpc_bench
from stoker_bench.benches.grpc_bench import ECHO, GRPC, GrpcBenchOptions, GrpcReport, run_grpc_bench
from stoker_bench.contestants.baselines.grpc_echo import echo_server
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.generators.grpc_loop import closed_loop

PATH = f"/{SERVICE}/ModelInfer"
SECONDS = 0.2


async def load(server: Any, port: int, message: bytes, path: str = PATH, connections: int = 3) -> Any:
    """Load a server for a moment."""
    await server.start()
    figures = await closed_loop(
        "127.0.0.1", port, path, message, {"X-Own": "v" * 300}, connections=connections, seconds=SECONDS
    )
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
    """Whatever the status; the connection goes on."""
    figures = await load(*echo_server("127.0.0.1:0"), b"", path=f"/{SERVICE}/Nothing")
    assert figures.requests == 0
    assert figures.errors > 3


@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_an_error() -> None:
    """Callers come again and again."""
    server, port = echo_server("127.0.0.1:0")
    await server.start()
    await server.stop(None)
    figures = await closed_loop("127.0.0.1", port, PATH, b"", {}, connections=1, seconds=0.05)
    assert (figures.requests, figures.errors > 0) == (0, True)


def test_the_command_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own options; those of other benches do not go with it."""
    asked: list[GrpcBenchOptions] = []

    def pretend(options: GrpcBenchOptions) -> GrpcReport:
        asked.append(options)
        return GrpcReport("puppet", options.seconds, options.rounds, "m")

    monkeypatch.setattr(grpc_bench, "run_grpc_bench", pretend)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    arguments = ["--grpc", "--model", "m.onnx", "--seconds", "2", "--rounds", "4", "--concurrency", "8", "1"]
    assert bench.run(parser.parse_args([*arguments, "--frontends", "2"])) == 0
    assert asked == [GrpcBenchOptions(Path("m.onnx"), seconds=2, rounds=4, concurrency=(8, 1), frontends=2)]
    with pytest.raises(InvalidSettings, match="--rows does not go with --grpc"):
        bench.run(parser.parse_args(["--grpc", "--rows", "3"]))


def test_a_bench_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stoker and the echo are checked, take their turns without an error, and end; their ratio is a bound."""
    monkeypatch.setattr(grpc_bench, "WARM_UP_S", 0.1)
    before = set(ProcessTree(os.getpid()).pids())
    report = run_grpc_bench(GrpcBenchOptions(seconds=1, rounds=1, concurrency=(4,)))
    (case,) = report.cases
    assert list(case.slices) == [GRPC, ECHO]
    for (taken,) in case.slices.values():
        assert taken.errors == 0
        assert taken.requests_per_s > 0
    (bound,) = report.bounds()
    assert f"requests/s of {GRPC} over {ECHO} ≥ 0.8" in bound.text
    assert bound.measured == case.slices[GRPC][0].rows_per_s / case.slices[ECHO][0].rows_per_s
    children = set(ProcessTree(os.getpid()).pids()) - before
    assert not [pid for pid in children if "stoker" in Path(f"/proc/{pid}/cmdline").read_text()]
