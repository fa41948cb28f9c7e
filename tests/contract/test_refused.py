"""Refusals of requests whose answers would come too late, in each protocol and through both paths."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.in_process import DOORS, InProcessServer
from tests.puppets import PuppetRuntime

from stoker.arena import LATER_BATCHES, BoardWriter
from stoker.metrics import table

_LONG_NS = 3600 * 10**9
"""A load report counts for as long as that, however slow the machine is."""
AZURE = ("/score", {"data": [[1, 2]]})
V2 = (
    "/v2/models/model/infer",
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]},
)
TFS = ("/v1/models/model:predict", {"instances": [[1, 2]]})


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A model with a target of 50 ms."""
    with InProcessServer(PuppetRuntime(), target_ms=50) as running:
        yield running


def say(server: InProcessServer, waiting_rows: int, row_ms: float = 1.0) -> None:
    """Let the device say what waits for it, in batches of 10 rows."""
    exchange = server.service.replicas.only
    assert exchange is not None
    writer = BoardWriter()
    writer.set_times(10, [round(rows * row_ms * 1e6) for rows in range(11)])
    writer.set_queue([0, waiting_rows, 0], {}, [waiting_rows] * LATER_BATCHES)
    writer.write([exchange.arena.words("board")], time.monotonic_ns() + _LONG_NS, 0)


@pytest.mark.parametrize(("path", "body"), [AZURE, V2, TFS], ids=["azure", "v2", "tfs"])
def test_late_request_gets_503_with_the_time_to_retry(
    server: InProcessServer, path: str, body: dict[str, Any]
) -> None:
    """Each protocol gets 503 in its words with the same headers; a retry in time is answered."""
    say(server, 400)
    refused = server.ask("POST", path, [("Content-Type", "application/json")], json.dumps(body).encode())
    say(server, 0)
    taken = server.ask("POST", path, [("Content-Type", "application/json")], json.dumps(body).encode())

    assert refused.status == 503
    assert "too late" in refused.body.decode()
    assert 350 <= int(refused.header("retry-after-ms") or 0) <= 510
    assert refused.header("retry-after") == "1"
    expected = "reason=target, expected-ms=401, target-ms=[0-9]+, rows-ahead=400"
    assert re.fullmatch(expected, refused.header("stoker-refused") or "")
    assert taken.status == 200


@pytest.mark.parametrize("door", DOORS)
def test_a_request_that_would_be_too_late_is_refused_unread(server: InProcessServer, door: str) -> None:
    """Not even a body that is no JSON; it is counted by its reason and tier."""
    say(server, 400)
    answer = server.ask("POST", "/score", [*DOORS[door]], b"no JSON")
    assert (answer.status, answer.error_code()) == (503, "overloaded")
    totals = server.memory.totals().model(0)
    assert totals.words[table.REFUSED.word("target", "normal")] >= 1


def test_a_request_of_many_rows_is_refused_when_they_are_known(server: InProcessServer) -> None:
    """Where there would be time for one row, and not for sixty."""
    say(server, 10)
    rows = [[number, number] for number in range(60)]
    one = server.ask("POST", "/score", (), json.dumps({"data": rows[:1]}).encode())
    say(server, 10)
    many = server.ask("POST", "/score", (), json.dumps({"data": rows}).encode())
    assert (one.status, many.status) == (200, 503)
    assert "rows-ahead=10" in (many.header("stoker-refused") or "")


def test_timeout_shorter_than_one_row_gets_504(server: InProcessServer) -> None:
    """The request gets 504 before its body is read."""
    say(server, 0, row_ms=20)
    answer = server.ask("POST", "/score", [("X-Request-Timeout-Ms", "5")], b"no JSON")
    assert (answer.status, answer.error_code()) == (504, "deadline_exceeded")
    assert (answer.header("stoker-refused") or "").startswith("reason=deadline, expected-ms=20")
