"""Deadlines (CONTRACT A.7): a script that has begun has timed out, one that has not was never reached."""

from __future__ import annotations

import threading

import pytest
from tests.contract.in_process import DOORS, InProcessServer, script
from tests.http.raw_http import request
from tests.live_server import wait_until


@pytest.mark.parametrize("door", DOORS)
def test_a_script_that_is_too_slow_has_failed(door: str) -> None:
    """500 in Azure's words for the request that runs; 504 for the one behind it, which never did."""
    begun, go_on = threading.Event(), threading.Event()

    def run(raw_data: str) -> str:
        begun.set()
        assert go_on.wait(30)
        return raw_data

    message = request("POST", "/score", DOORS[door], b'"x"')
    with (
        InProcessServer(script(run), timeout_ms=400) as server,
        server.connect() as running,
        server.connect() as waiting,
    ):
        running.send(message)
        assert begun.wait(20)
        waiting.send(message)
        late, unreached = running.answer(), waiting.answer()
        go_on.set()
        wait_until(lambda: server.service.leased_rows == 0, "both rows are free again")
        later = running.ask(message)

    assert (late.status, late.json()) == (
        500,
        {"message": "Scoring timeout after 400 ms", "code": "scoring_timeout"},
    )
    assert late.header("x-ms-run-function-failed") == "True"
    assert late.header("x-ms-run-fn-exec-ms") is None
    assert (unreached.status, unreached.json()["code"]) == (504, "deadline_exceeded")
    assert unreached.header("x-ms-run-function-failed") == "False"
    assert (later.status, later.json()) == (200, '"x"')
