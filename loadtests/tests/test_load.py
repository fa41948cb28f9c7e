"""`make load`: locust's command line, and its users before a puppet of a server."""

import http.server
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from stoker_bench.contestants.servers import free_port
from stoker_bench.load import LOCUSTFILE, argument_parser, locust_command, main, run_locust


def test_locust_gets_all_options_but_the_key() -> None:
    """Host, path and sizes are on the command line; the key is not, others could read it there."""
    options = ["--users", "8", "--seconds", "5", "--rows", "2", "--key", "secret-key"]
    args = argument_parser().parse_args(options)
    command = locust_command(args, "http://127.0.0.1:8080/api/v1/service/mnist/score", Path("m.onnx"))
    given = dict(itertools.pairwise(command))
    assert given["--host"] == "http://127.0.0.1:8080"
    assert given["--score-path"] == "/api/v1/service/mnist/score"
    assert given["--spawn-rate"] == "3.2"
    assert (given["--users"], given["--run-time"], given["--rows-per-request"]) == ("8", "5s", "2")
    assert given["--served-model"] == "m.onnx"
    assert not any("secret-key" in part for part in command)


def test_locust_gets_the_file_of_texts_in_place_of_the_model() -> None:
    """Their classes are not the runtime's."""
    args = argument_parser().parse_args(["--texts", "t.txt"])
    command = locust_command(args, "http://127.0.0.1:8080/score", Path("folder"))
    assert command[-2:] == ["--texts", "t.txt"]
    assert "--served-model" not in command


def test_locustfile_is_where_the_package_expects_it() -> None:
    """The file that locust is given lies in the repository."""
    assert LOCUSTFILE.is_file()


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
def puppet(takes_s: float = 0) -> Iterator[Puppet]:
    """Serve a puppet, whose answers take so long."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            running.keys.add(self.headers["Authorization"])
            time.sleep(takes_s)
            self.send_response(200)
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
@pytest.mark.parametrize("takes_s", [0, 1.5])
def test_users_check_every_answer(capfd: pytest.CaptureFixture[str], takes_s: float) -> None:
    """An answer with more classes than rows fails the run, also if it comes after the end."""
    args = argument_parser().parse_args(["--users", "2", "--seconds", "1"])
    with puppet(takes_s) as running:
        assert run_locust(args, running.uri, "secret-key", None) != 0
    assert running.keys == {"Bearer secret-key"}
    assert "no classes: an answer of shape [2] to 1 rows" in capfd.readouterr().err


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
