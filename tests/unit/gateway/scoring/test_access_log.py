"""The access log: one line for a sampled request of any outcome, without its body and its key."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from tests.http.raw_http import rows_body
from tests.puppets import Joined, metric_memory, puppet_service

from stoker.errors import Overloaded, Unauthorized
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.scoring.access_log import AccessLog
from stoker.gateway.scoring.call import Call, JoiningCall
from stoker.gateway.scoring.observers import Observers
from stoker.system.logs import (
    JsonFormatter,
    LimitedHandler,
    LineFormatter,
    LineLimit,
    LogSettings,
    change_log_settings,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()


@pytest.fixture
def joined() -> Iterator[Joined]:
    """A device that doubles."""
    with Joined() as joined:
        yield joined


class Logged:
    """A service whose requests are logged, and the lines."""

    def __init__(
        self,
        joined: Joined,
        monkeypatch: pytest.MonkeyPatch,
        *chances: float,
        form: type[LineFormatter],
        write: Callable[[bytes], object] | None = None,
    ) -> None:
        handler = LimitedHandler(LineLimit(), form("frontend"))
        monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
        self.written: list[bytes] = []
        numbers = iter(chances)
        self.log = AccessLog(0.5, write or self.written.append, lambda: next(numbers, 0.0), lambda: 1.5)
        self.service = puppet_service(memory=metric_memory())
        self.service.attach(joined.exchange)
        self.observers = Observers([self.log])
        self.observers.observe(self.service)
        self.joined, self.answers = joined, list[tuple[int, bytes]]()

    def score(self, ids: RequestIds | None = None) -> Call:
        """Ask for one row."""
        return self.service.score(rows_body([1, 0]), ids, self._note, self.joined.clock())

    def _note(self, status: int, lines: bytes, body: bytes) -> None:
        self.answers.append((status, lines))

    def lines(self) -> list[str]:
        """The lines so far."""
        self.log.close()
        self.log.write_queued()
        return b"".join(self.written).decode().splitlines()

    def records(self) -> list[dict[str, Any]]:
        """The same where they are JSON."""
        return [orjson.loads(line) for line in self.lines()]


@pytest.fixture
def logged(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> Logged:
    """All requests, as JSON."""
    return Logged(joined, monkeypatch, form=JsonFormatter)


def test_a_scored_request_has_one_line_with_its_stages(logged: Logged) -> None:
    """Ids, trace, model, status, rows and times are members; the control character of the id is escaped."""
    logged.score(RequestIds(b"mi\x9bne", traceparent=TRACEPARENT))
    logged.joined.settle()
    (record,) = logged.records()
    assert sorted(record.pop("stages_ms")) == ["compute", "parse", "queue"]
    assert record.pop("duration_ms") > 0
    assert record == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "INFO",
        "process": "frontend",
        "logger": "stoker.access",
        "message": "answered 200",
        "request_id": "mi\\x9bne",
        "trace_id": TRACE,
        "model": logged.service.name,
        "version": logged.service.version,
        "status": 200,
        "rows": 1,
        "caller": 0,
    }


def test_the_wait_for_a_turn_is_a_stage_of_its_own_in_the_log(logged: Logged) -> None:
    """As in `Server-Timing`, and so behind the time in the queue, of which it is no part."""
    logged.score()
    arena = logged.joined.exchange.arena
    arena.turn_ns[:], arena.turned[0] = 3_000_000, True
    logged.joined.turn_frontends()
    logged.joined.clock.advance_ms(10)
    logged.joined.settle()
    stages_ms = logged.records()[0]["stages_ms"]
    assert list(stages_ms) == ["parse", "queue", "turn", "compute"]
    assert (stages_ms["queue"], stages_ms["turn"]) == (7, 3)


def test_a_request_without_ids_is_logged_under_those_of_its_answer(logged: Logged) -> None:
    """The line has the id that the answer carries."""
    logged.score()
    logged.joined.settle()
    (_, lines), (record,) = logged.answers[0], logged.records()
    assert f"x-request-id: {record['request_id']}\r\n".encode() in lines


def test_only_sampled_requests_have_lines(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is drawn by itself; those that are not are answered all the same."""
    logged = Logged(joined, monkeypatch, 0.5, 0.49, 0.99, form=JsonFormatter)
    for name in (b"a", b"b", b"c"):
        logged.score(RequestIds(name))
    joined.settle()
    assert [record["request_id"] for record in logged.records()] == ["b"]
    assert [status for status, _ in logged.answers] == [200] * 3


def test_refused_or_abandoned_request_has_one_log_line(logged: Logged) -> None:
    """Errors have their code, abandoned requests 499, and refusals before scoring no times."""
    logged.score(RequestIds(b"a")).refuse(Overloaded("full"))
    call = logged.score(RequestIds(b"b"))
    call.abandon()
    call.abandon()
    logged.log.record_refusal(logged.service, RequestIds(b"c"), Unauthorized("no"))
    seen = [(record["request_id"], record["status"], record.get("code")) for record in logged.records()]
    assert seen == [("a", 503, "overloaded"), ("b", 499, None), ("c", 401, "unauthorized")]
    logged.joined.settle()


def test_as_text_it_is_one_line(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the form of all lines."""
    logged = Logged(joined, monkeypatch, form=LineFormatter)
    logged.score(RequestIds(b"\x85mine", traceparent=TRACEPARENT))
    joined.settle()
    (line,) = logged.lines()
    service = logged.service
    assert re.sub(r"\d+\.\d{3}\b(?!Z)", "T", line) == (
        "1970-01-01T00:00:01.500Z INFO [frontend] stoker.access - "
        f"request \\x85mine: {service.name} version {service.version} answered 200 in T ms "
        f"(parse T, queue T, compute T), 1 rows, caller 0 (trace {TRACE})"
    )


def test_it_changes_with_the_log(logged: Logged) -> None:
    """Its lines take the form of all others when that is changed, and there are none while the log has no INFO."""
    logged.score(RequestIds(b"a"))
    logged.joined.settle()
    change_log_settings(LogSettings(form="text"))
    (line,) = logged.lines()
    assert "stoker.access - request a: " in line
    change_log_settings(LogSettings(info=False))
    logged.score(RequestIds(b"b"))
    logged.joined.settle()
    assert logged.lines() == [line]


def test_unread_lines_are_counted(logged: Logged, caplog: pytest.LogCaptureFixture) -> None:
    """The queue is bounded: a slow reader costs lines, not memory nor requests. Lines go in writes of 4 KiB."""
    logging.getLogger().addHandler(caplog.handler)
    for _ in range(9000):
        logged.log.record_refusal(logged.service, RequestIds(b"a"), Overloaded("full"))
    assert len(logged.lines()) == 8192
    assert max(map(len, logged.written)) <= 4096
    assert caplog.messages == [f"{9000 - 8192} lines of the access log are left out here"]


def test_a_log_that_cannot_be_written_ends_nothing(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads any more: the thread goes on, and so does the server."""

    def broken(_: bytes) -> None:
        raise BrokenPipeError

    logged = Logged(joined, monkeypatch, form=JsonFormatter, write=broken)

    logged.score()
    joined.settle()
    assert logged.lines() == []
    assert logged.answers[0][0] == 200


def test_calls_keep_their_kind(logged: Logged, joined: Joined) -> None:
    """Those that are answered together still are, however many replicas are attached; elsewhere nothing changes."""
    kind = logged.service.call_type
    assert issubclass(kind, JoiningCall) == issubclass(puppet_kind(joined), JoiningCall)
    logged.observers.observe(logged.service)
    assert logged.service.call_type is kind
    assert puppet_kind(joined) in (Call, JoiningCall)


def puppet_kind(joined: Joined) -> type[Call]:
    """The class of calls of a service without a log."""
    service = puppet_service(memory=metric_memory())
    service.attach(joined.exchange)
    return service.call_type
