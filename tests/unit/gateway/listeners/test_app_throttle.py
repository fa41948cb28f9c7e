"""The throttle of requests that score nothing."""

from __future__ import annotations

import asyncio

from stoker.gateway.listeners.app_throttle import _BEGUN_A_TURN, AppThrottle


def test_submit_begins_a_few_requests_a_turn_in_their_order() -> None:
    """The others wait for later turns of the loop."""

    async def run() -> None:
        throttle, begun = AppThrottle(), []
        for number in range(3 * _BEGUN_A_TURN):
            throttle.submit(lambda number=number: begun.append(number))  # type: ignore[misc]
        sizes = [len(begun)]
        for _ in range(3):
            await asyncio.sleep(0)
            sizes.append(len(begun))
        assert sizes == [_BEGUN_A_TURN, 2 * _BEGUN_A_TURN, 3 * _BEGUN_A_TURN, 3 * _BEGUN_A_TURN]
        assert begun == sorted(begun)

    asyncio.run(run())
