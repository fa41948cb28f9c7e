"""wrk's output, and which generator is picked."""

import shutil
import sys

import pytest

from stoker_bench.generators.load_generator import (
    GeneratorError,
    OwnGenerator,
    Wrk,
    parse_wrk,
    pick_generator,
    shares_of,
)
from stoker_bench.generators.scoring_request import scoring_request

WRK_OUTPUT = """\
Running 3s test @ http://127.0.0.1:9177/score
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     3.58ms    1.20ms  12.40ms   80.00%
    Req/Sec    15.46k     1.00k   17.00k    70.00%
  46392 requests in 3.00s, 6.10MB read
  Non-2xx or 3xx responses: 12
Requests/sec:  15464.00
Transfer/sec:      2.03MB

{"requests":46392,"duration_us":3000000,"connect":1,"read":2,"write":3,"status":12,"timeout":4,"p50_us":3580.0,"p99_us":12400.0}
"""


def test_wrk_figures_are_read_from_the_scripts_line() -> None:
    """Bad statuses are no requests but errors, as are broken connections and time-outs; times become ms and s."""
    figures = parse_wrk(WRK_OUTPUT)
    assert figures.requests == 46380
    assert figures.errors == 12 + 1 + 2 + 3 + 4
    assert figures.duration_s == 3.0
    assert (figures.p50_ms, figures.p99_ms) == (3.58, 12.4)
    assert figures.requests_per_s == 15460.0


def test_wrk_without_figures_is_an_error_with_its_words() -> None:
    """The complaint of wrk about a refused connection reaches the operator."""
    with pytest.raises(GeneratorError, match="unable to connect"):
        parse_wrk("unable to connect to 127.0.0.1:1 Connection refused\n")


@pytest.mark.parametrize(("found", "kind"), [("/usr/bin/wrk", Wrk), (None, OwnGenerator)])
def test_wrk_is_picked_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, found: str | None, kind: type
) -> None:
    """Without wrk on the path the bench's own generator takes its place."""
    monkeypatch.setattr(shutil, "which", lambda _: found)
    assert isinstance(pick_generator(), kind)


def test_wrk_gets_the_whole_request(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections, length, headers, URI and the body's file are on the command line, the method in the script."""
    program = tmp_path / "wrk"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        "script, body = sys.argv[sys.argv.index('-s') + 1], sys.argv[-1]\n"
        "assert 'wrk.method = \"POST\"' in pathlib.Path(script).read_text()\n"
        "assert pathlib.Path(body).read_bytes() == b'body'\n"
        "for part in ('-c48', '-d2s', 'Authorization: Bearer k', 'http://127.0.0.1:9/score'):\n"
        "    assert part in sys.argv, sys.argv\n"
        "print(json.dumps(dict(requests=5, duration_us=10**6, connect=0, read=0, write=0, status=0, timeout=0,"
        " p50_us=1, p99_us=2)))\n"
    )
    program.chmod(0o755)
    request = scoring_request("http://127.0.0.1:9/score", b"body", key="k")
    assert Wrk(str(program)).run(request, connections=48, seconds=2).requests == 5


def test_failing_generator_is_an_error_with_its_complaint(tmp_path) -> None:
    """A generator that ends with an exit code is not taken for one with figures."""
    program = tmp_path / "wrk"
    program.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(GeneratorError, match="no such option"):
        Wrk(str(program)).run(scoring_request("http://127.0.0.1:9/", b""), connections=1, seconds=1)


def test_shares_differ_by_one_at_most() -> None:
    """All connections are given to some process."""
    assert shares_of(10, 4) == [3, 3, 2, 2]
    assert shares_of(1, 3) == [1, 0, 0]
