"""One answer that comes piece by piece, independent of the protocol."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from stoker.errors import ScoringTimeout
from stoker.gateway.http.responses import Answer, error_body

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.streams import ExpectedStream

__all__ = ["PiecewiseAnswer"]

# What the device has sent before its answer has arrived already.
_REST_S: Final = 5.0


class PiecewiseAnswer:
    """An answer in progress. Its caller reads piece by piece; nothing is read ahead.

    Args:
        call: The call.
        answered: A future of the row's answer: an error, or nothing.
        expected: The stream that the request names.
    """

    def __init__(self, call: Call, answered: asyncio.Future[Answer], expected: ExpectedStream) -> None:
        self._call, self._answered, self._expected = call, answered, expected
        self._begun = False

    async def begin(self) -> bool:
        """Wait for the first piece; False if there is none."""
        begun = self._expected.begun
        await asyncio.wait((self._answered, begun), return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            call = self._call
            call.service.metrics.observe_first_response(time.monotonic_ns() - call.received_ns)
        return begun.done()

    async def next(self) -> bytes | None:
        """Return the next piece, JSON without line breaks; None after the last one, or if the script fails.

        The previous piece has been sent by now; the next one has the same time limit as the first.
        """
        if self._begun:
            self._call.extend(time.monotonic_ns() + self._call.service.timeout_ns)
        self._begun = True
        coming = asyncio.ensure_future(self._expected.begun.result().next())
        try:
            await asyncio.wait((coming, self._answered), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                await asyncio.wait((coming,), timeout=_REST_S)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()

    async def end(self) -> Answer:
        """Return the result: 200 if the script has yielded everything, otherwise an error with its JSON."""
        if not self._answered.done():
            await asyncio.wait((self._answered,), timeout=_REST_S)
        if self._answered.done():
            return self._answered.result()
        # The script's process has ended, which is not known here yet, or it hangs after its last piece.
        error = ScoringTimeout(self._call.service.timeout_ns // 1_000_000)
        return Answer(error.status, b"", error_body(error))
