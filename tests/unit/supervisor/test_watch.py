"""The loop that looks for what has changed on the disk."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from stoker.supervisor.watch import Watch


def test_looks_that_are_cancelled_before_they_begin_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may end between the moment that a look is due and its first step."""
    naps = iter([True, False])

    async def nap(_: float) -> None:
        if not next(naps):
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", nap)
    nobody = cast(Any, None)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Watch(nobody, nobody, poll_s=1e-9).run())
    # A coroutine that nobody has awaited would warn now.
    gc.collect()
