"""Turns, medians and ratios."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from stoker_bench.contestants.contest import (
    Case,
    LoadedServer,
    Slice,
    batch_totals,
    check_answers,
    disturbance,
    mean_batch_rows,
    ratio,
    run_in_turns,
    standing,
)
from stoker_bench.contestants.process_tree import ProcessTree
from stoker_bench.contestants.servers import HOST, free_port
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import LoadFigures
from stoker_bench.generators.scoring_request import DATA_LISTS, ScoringRequest, binary_open_inference


def rate(requests_per_s: float, **figures: float) -> Slice:
    """Return a slice of one row a request."""
    return Slice(requests_per_s, requests_per_s, int(figures.pop("errors", 0)), **figures)


class Puppet:
    """A contestant whose slices are given."""

    def __init__(self, name: str, slices: list[Slice], diary: list[str]) -> None:
        self.name = name
        self._slices = iter(slices)
        self._diary = diary

    def run(self, case: Case, seconds: int) -> Slice:
        """Note the turn and hand out the next slice."""
        self._diary.append(f"{self.name} {case.connections} {seconds}")
        return next(self._slices)


def test_contestants_take_turns() -> None:
    """Every round gives each contestant one slice, after a second that does not count."""
    diary: list[str] = []
    seen: list[tuple[str, Slice]] = []
    first = Puppet("a", [rate(0), rate(1), rate(0), rate(2)], diary)
    second = Puppet("b", [rate(0), rate(3), rate(0), rate(4)], diary)
    slices = run_in_turns(
        [first, second], Case(8), seconds=3, rounds=2, on_slice=lambda name, taken: seen.append((name, taken))
    )
    assert diary == ["a 8 1", "a 8 3", "b 8 1", "b 8 3"] * 2
    assert slices == {"a": [rate(1), rate(2)], "b": [rate(3), rate(4)]}
    assert seen == [("a", rate(1)), ("b", rate(3)), ("a", rate(2)), ("b", rate(4))]


def test_ratio_is_taken_within_each_round() -> None:
    """A clock that halves for one round moves both contestants and leaves the ratio as it is."""
    mine, theirs = [rate(200), rate(100), rate(220)], [rate(100), rate(50), rate(100)]
    assert ratio(lambda taken: taken.requests_per_s, mine, theirs) == 2.0


def test_ratio_of_unknown_figures_is_unknown() -> None:
    """Rounds in which either figure is missing or nothing was done do not count; without any there is no ratio."""
    mine, theirs = [rate(1, cpu_us_per_request=10), rate(1)], [rate(1, cpu_us_per_request=5), rate(1)]
    assert ratio(lambda taken: taken.cpu_us_per_request, mine, theirs) == 2.0
    assert ratio(lambda taken: taken.p50_ms, mine, theirs) is None
    assert ratio(lambda taken: taken.requests_per_s, [rate(1)], [rate(0)]) is None


def test_standing_is_medians_and_all_errors() -> None:
    """One outlier moves no median, unknown figures are left out, and no error is lost."""
    medians = standing([rate(10, p50_ms=1, errors=2), rate(1000, p50_ms=3), rate(12, errors=1)])
    assert medians.requests_per_s == 12
    assert medians.p50_ms == 2
    assert medians.p99_ms is None
    assert medians.errors == 3


@pytest.mark.parametrize(
    ("case", "title"),
    [
        (Case(1), "1 connection, 1 row a request"),
        (Case(64), "64 connections, 1 row a request"),
        (Case(4, 256), "4 connections, 256 rows a request"),
    ],
)
def test_case_titles(case: Case, title: str) -> None:
    """Titles read as English."""
    assert case.title == title


def test_disturbance_is_reported_from_a_tenth_of_a_core() -> None:
    """A busy neighbour is reported, a quiet machine and unknown clocks are not."""
    assert disturbance([rate(1, foreign_cores=0.02), rate(1)]) is None
    assert disturbance([rate(1)]) is None
    assert "0.5 cores" in (disturbance([rate(1, foreign_cores=0.4), rate(1, foreign_cores=0.6)]) or "")


Answer = Callable[[list[list[float]]], object]


class DoublingServer:
    """Answers each row doubled unless told otherwise, and a metrics page that grows by 3 batches of 4 rows."""

    def __init__(self) -> None:
        self.status = 200
        self.answer: Answer = lambda rows: [[2 * value for value in row] for row in rows]
        self.authorizations: set[str | None] = set()
        self.scrapes = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.scrapes += 1
                page = f'stoker_batch_rows_sum{{model="m"}} {12.0 * owner.scrapes}\n'
                page += f'stoker_batch_rows_count{{model="m"}} {3.0 * owner.scrapes}\n'
                self._reply(200, page.encode())

            def do_POST(self) -> None:
                owner.authorizations.add(self.headers["Authorization"])
                rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["data"]
                self._reply(owner.status, json.dumps(owner.answer(rows)).encode())

            def _reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.uri = f"http://{HOST}:{self._server.server_port}/score"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def doubling() -> Iterator[DoublingServer]:
    """A server whose answers are known."""
    server = DoublingServer()
    yield server
    server.close()


class PuppetGenerator:
    """Claims given figures and keeps the request."""

    description = "puppet"

    def __init__(self, figures: LoadFigures) -> None:
        self._figures = figures

    def run(self, request: ScoringRequest, connections: int, seconds: int) -> LoadFigures:
        """Keep the request and answer."""
        self.request, self.connections, self.seconds = request, connections, seconds
        return self._figures


FIGURES = LoadFigures(requests=500, errors=1, duration_s=2.0, p50_ms=1.0, p99_ms=9.0)


class GrowingTree(ProcessTree):
    """A tree that has used 0.01 s more at each reading."""

    def __init__(self) -> None:
        super().__init__()
        self._readings = 0

    def cpu_s(self) -> float:
        """Return the next reading."""
        self._readings += 1
        return self._readings * 0.01


def loaded(uri: str, generator: PuppetGenerator, **options: object) -> LoadedServer:
    """Return a server of rows of 4 values."""
    return LoadedServer("doubling", uri, generator, DATA_LISTS, (4,), **options)


def double(rows: np.ndarray) -> np.ndarray:
    """The expected answer of the server."""
    return rows * 2


def test_slice_joins_figures_of_callers_and_machine(doubling: DoublingServer) -> None:
    """Rates come from the generator, CPU from the tree's difference, the mean batch from the metrics' difference."""
    generator = PuppetGenerator(FIGURES)
    server = loaded(doubling.uri, generator, tree=GrowingTree(), key="k", metrics_path="/metrics")
    taken = server.run(Case(connections=8, rows=3), seconds=2)
    assert taken.requests_per_s == 250
    assert taken.rows_per_s == 750
    assert taken.errors == 1
    assert taken.cpu_us_per_request == pytest.approx(0.01 * 1e6 / 500)
    assert taken.mean_batch_rows == 4
    assert (generator.connections, generator.seconds) == (8, 2)
    assert len(json.loads(generator.request.body)["data"]) == 3
    assert generator.request.headers["Authorization"] == "Bearer k"


def test_unknown_tree_and_metrics_leave_their_figures_unknown(doubling: DoublingServer) -> None:
    """A server elsewhere has no CPU time, and one without metrics no mean batch."""
    taken = loaded(doubling.uri, PuppetGenerator(FIGURES)).run(Case(1), seconds=2)
    assert taken.cpu_us_per_request is None
    assert taken.foreign_cores is None
    assert taken.mean_batch_rows is None


def test_one_server_takes_several_dialects(doubling: DoublingServer) -> None:
    """Another path and dialect, with its headers, and the same key and clocks."""
    generator = PuppetGenerator(FIGURES)
    server = loaded(doubling.uri, generator, tree=GrowingTree(), key="k", metrics_path="/metrics")
    binary = server.speaking("binary", "/v2/models/m/infer", binary_open_inference("x"))
    taken = binary.run(Case(connections=8), seconds=2)
    assert generator.request.path == "/v2/models/m/infer"
    assert (
        int(generator.request.headers["Inference-Header-Content-Length"]) == len(generator.request.body) - 16
    )
    assert generator.request.headers["Authorization"] == "Bearer k"
    assert taken.mean_batch_rows == 4
    assert taken.cpu_us_per_request is not None
    assert (server.name, server.uri) == ("doubling", doubling.uri)


def test_right_answers_pass_the_check(doubling: DoublingServer) -> None:
    """Distinct requests, sent at once with the key, are all answered rightly."""
    check_answers(loaded(doubling.uri, PuppetGenerator(FIGURES), key="k"), (4,), double)
    assert doubling.authorizations == {"Bearer k"}


def test_wrong_values_fail_the_check(doubling: DoublingServer) -> None:
    """Outputs of the right shape with wrong values are caught, as a mixed-up batch would give."""
    doubling.answer = lambda rows: [[0.0] * 4 for _ in rows]
    with pytest.raises(BenchedServerError, match="doubling answered"):
        check_answers(loaded(doubling.uri, PuppetGenerator(FIGURES)), (4,), double)


def test_wrong_shape_fails_the_check_even_without_values(doubling: DoublingServer) -> None:
    """Where the model is unknown, an answer that cannot be split over the rows is still caught."""
    doubling.answer = lambda rows: {"message": "no"}
    with pytest.raises(BenchedServerError, match="message"):
        check_answers(loaded(doubling.uri, PuppetGenerator(FIGURES)), (4,), expected=None)


def test_bad_status_fails_the_check_with_the_servers_words(doubling: DoublingServer) -> None:
    """The error of a 401 has its body, before any timing begins."""
    doubling.status, doubling.answer = 401, lambda rows: {"message": "no valid key"}
    with pytest.raises(BenchedServerError, match=r"401.*no valid key"):
        check_answers(loaded(doubling.uri, PuppetGenerator(FIGURES)), (4,), double)


def test_a_server_that_is_not_there_fails_the_check_by_its_address() -> None:
    """No status is no answer."""
    uri = f"http://127.0.0.1:{free_port()}/score"
    with pytest.raises(BenchedServerError, match=rf"gave no answer at {uri}; is it running there\?"):
        check_answers(loaded(uri, PuppetGenerator(FIGURES)), (4,), double)


def test_batch_totals_sum_over_models() -> None:
    """Labels do not matter, buckets and comments are passed over, a page without the histogram gives None."""
    page = (
        b"# TYPE stoker_batch_rows histogram\n"
        b'stoker_batch_rows_bucket{model="a",le="1"} 7\n'
        b'stoker_batch_rows_count{model="a"} 10.0\n'
        b'stoker_batch_rows_sum{model="a"} 100.0\n'
        b'stoker_batch_rows_count{model="b"} 5.0\n'
        b'stoker_batch_rows_sum{model="b"} 1.1e+02\n'
    )
    assert batch_totals(page) == (210.0, 15.0)
    assert batch_totals(b"stoker_requests_total 3\n") is None


def test_mean_batch_is_that_of_the_difference() -> None:
    """Earlier batches do not count, and without new ones there is no mean."""
    assert mean_batch_rows((100, 10), (400, 20)) == 30
    assert mean_batch_rows((100, 10), (100, 10)) is None
    assert mean_batch_rows(None, (100, 10)) is None
