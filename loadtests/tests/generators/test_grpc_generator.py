"""Load by calls of gRPC from a process beside the bench."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import scoring_request


@contextmanager
def served(answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> Iterator[str]:
    """Serve one method; the block gets its URI."""
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {"Method": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Service", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}/Service/Method"
    server.stop(None).wait()


def echo(message: bytes, context: grpc.ServicerContext) -> bytes:
    """Give the message back."""
    del context
    return message


@pytest.mark.parametrize("connections", [1, 3])
def test_calls_are_counted(connections: int) -> None:
    """Of a lone caller and of several."""
    with served(echo) as uri:
        seen = OwnGenerator(grpc=True).run(scoring_request(uri, bytes(70_000), headers={}), connections, 1)
    assert seen.errors == 0
    assert seen.requests > 3
    assert 0 < seen.p50_ms <= seen.p99_ms
    assert seen.duration_s == pytest.approx(1, abs=0.5)


def test_calls_that_fail_under_load_are_errors() -> None:
    """Every second one succeeds."""
    calls = itertools.count()

    def every_second(message: bytes, context: grpc.ServicerContext) -> bytes:
        if next(calls) % 2:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "not now")
        return message

    with served(every_second) as uri:
        seen = OwnGenerator(grpc=True).run(scoring_request(uri, b"abc", headers={}), 2, 1)
    assert seen.errors > 3
    assert seen.requests > 3
    # The end cuts calls of both kinds off.
    assert abs(seen.errors - seen.requests) <= 6
