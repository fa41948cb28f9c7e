"""Requests that wait for a turn of the event loop, decoded by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.gateway.scoring.long_bodies import BodiesInDecoding
from stoker.gateway.scoring.staging import LONG_BODY_BYTES, TURN_BYTES, DecodeQueue, StagedCall, Staging

pytestmark = pytest.mark.anyio


class Scored:
    """A staging whose requests are recorded by the lengths of their bodies, a list for each message."""

    def __init__(self) -> None:
        self.messages: list[list[int]] = []
        self.staging = Staging(DecodeQueue(), self.score, BodiesInDecoding(None))

    def score(self, staged: Sequence[StagedCall]) -> None:
        self.messages.append([len(body) for _, body, _ in staged])

    def add(self, size_bytes: int) -> None:
        self.staging.add(cast(Any, SimpleNamespace(is_awaited=True)), bytes(size_bytes), None)


async def test_staging_requests_of_one_turn_are_decoded_together() -> None:
    """Nothing is decoded before the end of the turn, and nothing waits after it."""
    scored = Scored()
    for size_bytes in (1, 2, 3):
        scored.add(size_bytes)
    assert not scored.messages
    assert not scored.staging.idle
    await asyncio.sleep(0)
    assert scored.messages == [[1, 2, 3]]
    assert scored.staging.idle


async def test_staging_large_turn_is_sent_in_halves() -> None:
    """The device begins with the first half while the second is decoded."""
    scored = Scored()
    for _ in range(40):
        scored.add(1)
    await asyncio.sleep(0)
    assert [len(message) for message in scored.messages] == [20, 20]


async def test_staging_long_bodies_beyond_a_turn_wait_for_the_next() -> None:
    """A short body does not wait for those before it."""
    scored = Scored()
    count = TURN_BYTES // (2 * LONG_BODY_BYTES) + 1
    for _ in range(count):
        scored.add(2 * LONG_BODY_BYTES)
    scored.add(1)
    await asyncio.sleep(0)
    (first,) = scored.messages
    assert 1 in first
    assert len(scored.staging.late_calls) == count + 1 - len(first)
    await asyncio.sleep(0)
    assert scored.staging.idle
    assert sum(len(message) for message in scored.messages) == count + 1
