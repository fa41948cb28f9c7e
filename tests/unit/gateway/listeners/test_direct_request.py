"""One plain scoring request of a connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.puppets import puppet_service

from stoker.gateway.listeners.direct_request import DirectRequest


def test_gather_puts_the_second_chunk_behind_the_first() -> None:
    """Further chunks are written into the same stream."""
    request = DirectRequest()
    request.first_chunk = b"ab"
    request.gather(b"cd")
    assert request.gathered is not None
    request.gathered.write(b"e")
    assert request.gathered.getvalue() == b"abcde"


def test_abandon_ends_the_call_and_releases_the_memory() -> None:
    """A second time changes nothing."""
    request, calls = DirectRequest(), []
    request.service = puppet_service()
    request.call = cast(Any, SimpleNamespace(abandon=lambda: calls.append("abandoned")))
    request.allowance = cast(Any, SimpleNamespace(release=lambda: calls.append("released")))
    for _ in range(2):
        request.abandon()
    assert calls == ["abandoned", "released"]
    assert (request.call, request.allowance, request.service) == (None, None, None)


def test_set_caller_after_the_answer_changes_nothing() -> None:
    """A call that was answered at once has no caller to set."""
    request = DirectRequest()
    request.set_caller(cast(Any, "terms"), None)
    assert request.call is None
