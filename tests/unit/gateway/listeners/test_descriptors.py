"""Running out of descriptors: refused connections, their count, their log lines."""

from __future__ import annotations

import os
import resource

import pytest
from tests.descriptors import room_for_descriptors

from stoker.gateway.listeners.descriptors import Descriptors


@pytest.mark.parametrize(("limit", "most"), [(4096, 4032), (512, 448), (128, 112), (-1, 1 << 40)])
def test_descriptors_are_reserved_for_arenas_and_files(
    monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    """64 of them, or an eighth where there are few; without a limit there is always room."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    descriptors = Descriptors(lambda: None)
    assert descriptors.fits(most - 1)
    assert descriptors.fits(most) == (limit < 0)
    assert descriptors.is_last(most - 1) == (limit > 0)
    assert not descriptors.is_last(most - 2)


def test_refused_connections_are_logged_once_a_minute_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At once for the first, then the sum of all that came since, also if nobody comes any more."""
    now_s, refused = [0.0], []
    descriptors = Descriptors(lambda: refused.append(None), clock_s=lambda: now_s[0])
    for _ in range(3):
        descriptors.refuse()
    assert len(refused) == 3
    assert [record.args[0] for record in caplog.records] == [1]  # type: ignore[index]
    now_s[0] = 59.0
    descriptors.check()
    assert len(caplog.records) == 1
    now_s[0] = 60.0
    descriptors.check()
    descriptors.check()
    assert [record.args[0] for record in caplog.records] == [1, 2]  # type: ignore[index]


def test_a_process_without_any_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """Files may use up the reserved ones; the event loop closes connections then."""
    refused: list[None] = []
    descriptors = Descriptors(lambda: refused.append(None))
    with room_for_descriptors(1):
        descriptors.check()
        taken = os.dup(0)
        assert refused == []
        assert not descriptors.check()
        os.close(taken)
    assert len(refused) == 1
    assert descriptors.check()
    assert "out of file descriptors" in caplog.text
