"""Limits of callers over several frontends."""

from __future__ import annotations

import time
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.process.conftest import Serve

from stoker.keys.callers import CallerBook
from stoker.keys.keyring import Keyring

RATE_S, BURST = 50, 20


def test_two_frontends_let_no_more_through_than_one(serve: Serve, doubler: Path) -> None:
    """Of a caller who asks all the time as many rows as flow in, and of others all; counted by both frontends."""
    server = serve(doubler, "--frontends", "2", given_keys=False)
    primary = Keyring(server.workspace / "keys", "doubler").show().primary
    terms = {"rows_per_s": float(RATE_S), "burst_s": BURST / RATE_S}
    key = CallerBook(server.workspace / "keys").add("ads", terms=terms)
    began_s, granted = time.monotonic(), 0
    while granted < 3 * BURST:
        answer = server.score([1, 2, 3, 4], key=key)
        assert answer.status in (200, 429), answer
        granted += answer.status == 200
        if answer.status == 429:
            assert answer.header("stoker-refused") == "reason=quota-rows"
            assert server.score([1, 2, 3, 4], key=primary).status == 200
        # If nothing were let through beyond the burst, this would never end.
        assert time.monotonic() < began_s + PATIENCE_S
    assert granted <= BURST + RATE_S * (time.monotonic() - began_s)
    metrics = server.get("/metrics").body.decode()
    assert 'stoker_rejections_total{model="doubler",reason="quota",version="1"}' in metrics
    assert 'stoker_caller_device_seconds_total{caller="ads"}' in metrics
