"""Load by calls of gRPC: the choice of the generator, h2load's options and its results."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from stoker_bench.contestants.servers import free_port
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators import grpc_generator
from stoker_bench.generators.grpc_generator import (
    H2Load,
    h2load_figures,
    pick_grpc_generator,
)
from stoker_bench.generators.load_generator import GeneratorError, LoadFigures, LoadGenerator, OwnGenerator
from stoker_bench.generators.scoring_request import ScoringRequest, scoring_request

MS = 1e-3


def h2load_report(succeeded: int, failed: int, data_bytes: int) -> str:
    """Return the lines of h2load's output that count."""
    return (
        "finished in 2.01s, 5.00 req/s, 21.03MB/s\n"
        f"requests: 10 total, 12 started, 10 done, {succeeded} succeeded, {failed} failed, 0 errored, 0 timeout\n"
        "status codes: 10 2xx, 0 3xx, 0 4xx, 0 5xx\n"
        "traffic: 42.06MB (44108195) total, 44.45KB (45513) headers (space savings 95.86%), "
        f"41.48MB ({data_bytes}) data\n"
    )


def figures(
    output: str, latencies_s: list[float], connections: int = 2, began_s: list[float] | None = None
) -> LoadFigures:
    """Read an output of two seconds, whose answers should have 100 bytes; as if requests were spread evenly."""
    began = np.linspace(0, 2, len(latencies_s), endpoint=False) if began_s is None else np.array(began_s)
    return h2load_figures(
        output, began + 1e9, np.array(latencies_s), answer_bytes=100, connections=connections, seconds=2.0
    )


def test_percentiles_are_those_of_the_log() -> None:
    """The rest is counted from h2load's output."""
    seen = figures(h2load_report(4, 0, 400), [0.5, 1.0, 1.0, 1.5])
    assert seen == LoadFigures(4, 0, 2.0, 1000.0, pytest.approx(1485.0))


@pytest.mark.parametrize("data_bytes", [700, 799])
def test_answers_without_their_message_are_errors(data_bytes: int) -> None:
    """A failed call has HTTP's status of a success; a call cut off at the end is no answer."""
    seen = figures(h2load_report(10, 0, data_bytes), [0.4] * 10)
    assert (seen.requests, seen.errors) == (7, 3)


def test_answers_cut_off_by_the_end_are_no_errors() -> None:
    """Each connection may have received a part of one more answer."""
    seen = figures(h2load_report(10, 0, 1180), [0.4] * 10)
    assert (seen.requests, seen.errors) == (10, 0)


def test_failures_of_http_are_errors() -> None:
    """Streams that the server has reset, say."""
    assert figures(h2load_report(8, 2, 800), [0.4] * 10).errors == 2


def test_answers_of_another_size_are_not_counted() -> None:
    """Their number could not be known from their bytes."""
    with pytest.raises(GeneratorError, match="10 answers had 1,201 bytes; the one before the load had 100"):
        figures(h2load_report(10, 0, 1201), [0.4] * 10)


@pytest.mark.parametrize(
    ("until_s", "others_until_s", "gone"),
    [(2.0, 2.0, 0), (0.9, 2.0, 0), (2.0, 0.9, 5), (0.9, 1.3, 6), (0.9, 0.9, 8)],
)
def test_missing_callers_are_errors(until_s: float, others_until_s: float, gone: int) -> None:
    """Three come until one moment and five until another; h2load does not tell of connections that end."""
    until = [until_s] * 3 + [others_until_s] * 5
    began_s = [0.02 * turn for end_s in until for turn in range(round(end_s / 0.02))]
    count = len(began_s)
    seen = figures(h2load_report(count, 0, count * 100), [0.02] * count, connections=8, began_s=began_s)
    assert (seen.requests, seen.errors) == (count, gone)


@pytest.mark.parametrize("output", ["", h2load_report(0, 0, 0)])
def test_nobody_there_is_an_error_with_its_words(output: str) -> None:
    """h2load itself ends as if all were well."""
    with pytest.raises(GeneratorError, match="h2load got no answers; it said: "):
        figures(output, [])


@pytest.mark.parametrize(("found", "kind"), [("/usr/bin/h2load", H2Load), (None, OwnGenerator)])
def test_h2load_is_picked_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, found: str | None, kind: type
) -> None:
    """Without it the bench's own generator takes its place."""
    monkeypatch.setattr(shutil, "which", lambda _: found)
    assert isinstance(pick_grpc_generator(), kind)


def test_h2load_gets_the_whole_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call at a time on each connection, the message with its prefix, and a log of which no other run knows."""
    program = tmp_path / "h2load"
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "if '--version' in sys.argv: sys.exit(print('h2load nghttp2/1.0'))\n"
        "options = dict(part.split('=') for part in sys.argv if part.startswith('--'))\n"
        "assert pathlib.Path(options['--data']).read_bytes() == b'\\0\\0\\0\\0\\4body'\n"
        "assert options['--duration'] == '500ms'\n"
        "for part in ('-c2', '-m1', '-t1', 'te: trailers', 'content-type: application/grpc',"
        " 'authorization: Bearer k', 'http://127.0.0.1:9/s/M'):\n"
        "    assert part in sys.argv, sys.argv\n"
        "log = pathlib.Path(options['--log-file'])\n"
        "assert not log.exists()\n"
        "log.write_text('1795448253934206\\t200\\t400000\\n1795448253934206\\t200\\t420000\\n')\n"
        f"print({h2load_report(2, 0, 16)!r})\n"
    )
    program.chmod(0o755)
    requests: list[ScoringRequest] = []
    monkeypatch.setattr(grpc_generator, "answer_to", lambda request: requests.append(request) or b"abc")
    request = scoring_request("http://127.0.0.1:9/s/M", b"body", key="k", headers={})
    generator = H2Load(str(program))
    for _ in range(2):
        assert generator.run(request, connections=2, seconds=0.5) == LoadFigures(
            2, 0, 0.5, pytest.approx(410.0), pytest.approx(419.8)
        )
    assert requests == [request]
    assert generator.description == "h2load nghttp2/1.0 (one thread, answers counted by their bytes)"


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


@pytest.fixture(params=["own", "h2load"])
def generator(request: pytest.FixtureRequest) -> LoadGenerator:
    """Each generator that is here."""
    if request.param == "own":
        return OwnGenerator(grpc=True)
    program = shutil.which("h2load")
    if program is None:
        pytest.skip("h2load is not installed (Debian: nghttp2-client)")
    return H2Load(program)


@pytest.mark.parametrize("connections", [1, 3])
def test_calls_are_counted(generator: LoadGenerator, connections: int) -> None:
    """Of a lone caller and of several; both generators say the same things of them."""
    with served(echo) as uri:
        seen = generator.run(scoring_request(uri, bytes(70_000), headers={}), connections, 1)
    assert seen.errors == 0
    assert seen.requests > 3
    assert 0 < seen.p50_ms <= seen.p99_ms
    assert seen.duration_s == pytest.approx(1, abs=0.5)


def test_calls_that_fail_under_load_are_errors(generator: LoadGenerator) -> None:
    """The first one succeeds, as that before the load does, and every second one of the others."""
    calls = itertools.count()

    def every_second(message: bytes, context: grpc.ServicerContext) -> bytes:
        if next(calls) % 2:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "not now")
        return message

    with served(every_second) as uri:
        seen = generator.run(scoring_request(uri, b"abc", headers={}), 2, 1)
    assert seen.errors > 3
    assert seen.requests > 3
    # The end cuts calls of both kinds off.
    assert abs(seen.errors - seen.requests) <= 6


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """It is known before h2load is started."""
    with pytest.raises(BenchedServerError, match="answered"):
        H2Load(str(tmp_path / "h2load")).run(
            scoring_request(f"http://127.0.0.1:{free_port()}/s/M", b"", headers={}), 1, 1
        )
