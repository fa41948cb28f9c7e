"""`make load`: locust's command line, the summary of its figures, and its users before a puppet of a server."""

import http.server
import itertools
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from stoker_bench.contestants.servers import free_port
from stoker_bench.load import LOCUSTFILE, LoadTest, main, run_load_test, summary


def load_test(**settings: object) -> LoadTest:
    """Return a load test with the given settings."""
    given = {
        "uri": "http://127.0.0.1:8080/api/v1/service/mnist/score",
        "key": "secret-key",
        "users": 8,
        "seconds": 5,
        "shape": "spike",
        "rows": 2,
        "mnist_folder": None,
        "model": None,
        **settings,
    }
    return LoadTest(**given)


def entry(method: str, name: str, times: dict[int, int], failures: int = 0) -> dict[str, object]:
    """Return one of the entries that locust writes, with a histogram of milliseconds."""
    return {
        "method": method,
        "name": name,
        "num_requests": sum(times.values()),
        "num_failures": failures,
        "total_response_time": sum(time_ms * count for time_ms, count in times.items()),
        "max_response_time": max(times),
        "response_times": {str(time_ms): count for time_ms, count in times.items()},
        "start_time": 100.0,
        "last_request_timestamp": 110.0,
    }


def test_locust_gets_all_options_but_the_key() -> None:
    """Host, path, shape and sizes are on the command line; the key is not, others could read it there."""
    command = load_test(mnist_folder=Path("digits"), model=Path("m.onnx")).command(Path("figures"))
    given = dict(itertools.pairwise(command))
    assert given["--host"] == "http://127.0.0.1:8080"
    assert given["--score-path"] == "/api/v1/service/mnist/score"
    assert given["--load-shape"] == "spike"
    assert (given["--users"], given["--run-time"], given["--rows-per-request"]) == ("8", "5s", "2")
    assert (given["--mnist-dir"], given["--served-model"]) == ("digits", "m.onnx")
    assert not any("secret-key" in part for part in command)


def test_locustfile_is_where_the_package_expects_it() -> None:
    """The file that locust is given lies in the repository."""
    assert LOCUSTFILE.is_file()


def test_summary_puts_requests_before_stages() -> None:
    """The POST line has rates and percentiles of the histogram; the server's stages follow, indented."""
    lines = summary(
        [
            entry("stage", "queue µs", {1500: 100}),
            entry("POST", "/score", {2: 90, 4: 8, 50: 2}, failures=3),
        ]
    ).splitlines()
    assert lines[2].split() == ["/score", "100", "3", "10.0", "3.12", "2.00", "50.0", "50.0"]
    assert lines[3].startswith("  queue ")
    assert lines[3].split()[-1] == "1.50"


def test_summary_of_nothing_says_so() -> None:
    """A run without any request has no table."""
    assert summary([]) == "no request was made"


class Puppet:
    """Answers with one class, and every other time with two."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.keys: set[str | None] = set()
        self.answers = itertools.count(1)

    def answer(self) -> list[int]:
        """Return the next answer."""
        return [7] * (1 + next(self.answers) % 2)


@contextmanager
def puppet() -> Iterator[Puppet]:
    """Serve a puppet."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            running.keys.add(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Server-Timing", "queue;dur=1.5")
            self.end_headers()
            self.wfile.write(json.dumps(running.answer()).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        running = Puppet(f"http://127.0.0.1:{server.server_port}/score")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield running
        server.shutdown()
        thread.join()


@pytest.mark.skipif(find_spec("locust") is None, reason="locust comes with stoker-bench[load]")
def test_users_check_every_answer(capfd: pytest.CaptureFixture[str]) -> None:
    """An answer with more classes than rows is a failure, and the run fails with it; stages have their own lines."""
    with puppet() as running:
        assert run_load_test(load_test(uri=running.uri, users=2, seconds=1, shape="steady", rows=1)) != 0
    assert running.keys == {"Bearer secret-key"}
    printed = capfd.readouterr().out
    (requests,) = [line.split() for line in printed.splitlines() if line.startswith("/score")]
    assert int(requests[1].replace(",", "")) >= int(requests[2].replace(",", "")) > 0
    assert [line.split()[-1] for line in printed.splitlines() if line.startswith("  queue")] == ["1.50"]
    assert "requests failed: no classes: an answer of shape [2] to 1 rows" in printed


@pytest.mark.parametrize("option", ["--users", "--seconds", "--rows"])
def test_numbers_begin_at_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """Before a server is started, and by the name of the option."""
    monkeypatch.setattr(sys, "argv", ["load", option, "-1"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"argument {option}: must be a whole number between 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://127.0.0.1:{free_port}/score", "Connection refused; is the server running there?"),
        ("127.0.0.1:8080/score", "is no scoring URI"),
    ],
)
def test_missing_server_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], uri: str, message: str
) -> None:
    """Instead of a table of requests that were all refused."""
    monkeypatch.setattr(sys, "argv", ["load", "--uri", uri.format(free_port=free_port())])
    assert main() == 2
    assert message in capsys.readouterr().err
