"""The load that answers tell balancers."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.puppets import metric_memory

from stoker.gateway.readiness import Readiness
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.call_options import CallOptions, read_call_options
from stoker.gateway.scoring.load_reports import LOAD_HEADER, LoadReports
from stoker.gateway.scoring.service_facts import Limits
from stoker.keys.callers import DEFAULT

NAME = b"endpoint-load-metrics: "


class Server:
    """The counters of a server with one model, and the clocks of who reads them."""

    def __init__(self) -> None:
        self.memory = metric_memory()
        self.now_s = 100.0
        self.model = self.memory.page(0).model(0)
        self.reports = LoadReports(self.memory, 0, lambda: round(self.now_s * 1e9))

    def report(self) -> dict[str, Any]:
        line = self.reports.line("JSON")
        assert line.startswith(NAME + b"JSON ")
        assert line.endswith(b"\r\n")
        return cast("dict[str, Any]", json.loads(line[len(NAME) + 5 :]))


@pytest.fixture
def server() -> Server:
    return Server()


def test_model_without_batches_reports_utilization_alone(server: Server) -> None:
    """The time of a row is unknown before the first batch."""
    assert server.report() == {"application_utilization": 0.0, "named_metrics": {}}


def test_wait_and_time_of_a_row_follow_from_the_times_of_batches(server: Server) -> None:
    """A batch of 64 rows that takes 32 ms is half a millisecond a row, and 100 rows ahead take 50 ms."""
    server.model.set_batch_cap_rows(64)
    server.model.learn_batch_time(64, 32_000_000)
    assert server.report()["application_utilization"] == 0
    server.model.set_in_flight_rows(100)
    server.now_s += 1
    report = server.report()
    assert report["named_metrics"] == {"expected_wait_ms": 50.0, "ms_per_row": 0.5}
    assert report["application_utilization"] == pytest.approx(100 / 2000)


def test_text_says_the_same(server: Server) -> None:
    """Both forms have the same names and numbers; the name of the form stands before them."""
    server.model.set_batch_cap_rows(64)
    server.model.learn_batch_time(64, 32_000_000)
    report = server.report()
    assert server.reports.line("TEXT") == (
        b"endpoint-load-metrics: TEXT application_utilization=%.1f, named_metrics.expected_wait_ms=%.1f, "
        b"named_metrics.ms_per_row=%.1f\r\n"
        % (report["application_utilization"], *report["named_metrics"].values())
    )


def test_counters_are_read_a_hundred_times_a_second_at_most(server: Server) -> None:
    """Within ten milliseconds the answer is the same, and behind that it is fresh."""
    server.model.set_batch_cap_rows(1)
    server.model.learn_batch_time(1, 1_000_000)
    server.model.set_in_flight_rows(1)
    before = server.report()
    server.model.set_in_flight_rows(9)
    server.now_s += 0.009
    assert server.report() == before
    server.now_s += 0.002
    assert server.report()["named_metrics"]["expected_wait_ms"] == 9.0


@pytest.mark.parametrize(
    ("value", "form"),
    [(b"JSON", "JSON"), (b"text", "TEXT"), (b" Json ", "JSON"), (b"BIN", None), (b"", None)],
)
def test_a_form_that_there_is_not_is_no_error(value: bytes, form: Any) -> None:
    """A balancer that asks for something else gets its answer without the header."""
    assert read_call_options(DEFAULT, {LOAD_HEADER: value}) == CallOptions(DEFAULT, load_format=form)


def test_load_line_is_in_answers_to_requests_with_the_header_only() -> None:
    """It follows the answer's own lines, also in errors, and the request is as urgent as without it."""
    answers: list[bytes] = []
    service: Any = SimpleNamespace(
        limits=Limits(10**9, 1000),
        readiness=Readiness(),
        load_reports=SimpleNamespace(line=lambda form: form.encode()),
    )
    for options in (None, read_call_options(DEFAULT, {LOAD_HEADER: b"TEXT"})):
        call = Call(service, None, lambda status, lines, body: answers.append(lines), 0)
        if options is not None:
            options.apply_to(call)
        call.answer(503, b"a: 1\r\n", b"")
        assert call.urgency is None
        assert not call.is_awaited
    assert answers == [b"a: 1\r\n", b"a: 1\r\nTEXT"]
