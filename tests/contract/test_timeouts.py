"""Deadlines (CONTRACT A.7): a script that has begun has timed out, one that has not was never reached."""

from __future__ import annotations

import threading

import pytest
from tests.contract.in_process import DOORS, InProcessServer, script
from tests.http.raw_http import request
from tests.live_server import wait_until
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("door", DOORS)
def test_a_script_that_is_too_slow_has_failed(door: str) -> None:
    """500 in Azure's words for the request that runs; 504 for the one behind it, which never did."""
    begun, go_on = threading.Event(), threading.Event()

    def run(raw_data: str) -> str:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return raw_data

    message = request("POST", "/score", DOORS[door], b'"x"')
    with (
        InProcessServer(script(run), timeout_ms=2000) as server,
        server.connect() as running,
        server.connect() as waiting,
    ):
        running.send(message)
        assert begun.wait(PATIENCE_S)
        waiting.send(message)
        late, unreached = running.answer(), waiting.answer()
        go_on.set()
        wait_until(lambda: server.service.leased_rows == 0, "both rows are free again")
        later = running.ask(message)

    assert (late.status, late.json()) == (
        500,
        {"message": "Scoring timeout after 2000 ms", "code": "scoring_timeout"},
    )
    assert late.header("x-ms-run-function-failed") == "True"
    assert late.header("x-ms-run-fn-exec-ms") is None
    assert (unreached.status, unreached.json()["code"]) == (504, "deadline_exceeded")
    assert unreached.header("x-ms-run-function-failed") == "False"
    assert (later.status, later.json()) == (200, '"x"')


@pytest.mark.parametrize("door", DOORS)
def test_a_caller_waits_no_longer_than_it_says(door: str) -> None:
    """504 for a request whose caller's own deadline has passed, though the service would wait, also while it runs."""
    go_on = threading.Event()

    def run(raw_data: str) -> str:
        assert go_on.wait(PATIENCE_S)
        return raw_data

    with InProcessServer(script(run)) as server:
        answer = server.ask(headers=[*DOORS[door], ("X-Request-Timeout-Ms", "30")], body=b'"x"')
        go_on.set()
        wait_until(lambda: server.service.leased_rows == 0, "the row is free again")

    assert (answer.status, answer.error_code()) == (504, "deadline_exceeded")


@pytest.mark.parametrize(
    ("headers", "status", "tier"),
    [
        ([("Stoker-Tier", "low")], 200, "low"),
        ([("stoker-tier", "High"), ("X-Request-Timeout", "9.5")], 200, "normal"),
        ([("grpc-timeout", "9S")], 200, None),
        ([("X-Request-Timeout", "9000")], 400, None),
        ([("Stoker-Tier", "urgent")], 400, None),
    ],
)
def test_both_doors_read_the_same_wishes(
    headers: list[tuple[str, str]], status: int, tier: str | None
) -> None:
    """The answer names the tier, lowered to the caller's highest; invalid values are refused."""
    with InProcessServer(script(lambda raw_data: raw_data)) as server:
        for _ in range(2):
            answer = server.by_both_doors(b'"x"', headers)
            assert answer.status == status
            assert answer.header("stoker-tier") == tier
        # The fast path has answered, and knows the head again.
        assert len(server.gateway.targets.heads) == (status == 200)
