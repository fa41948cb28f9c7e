"""Streams of requests: answered side by side, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from stoker.errors import NotReady

__all__ = ["Streams"]

_MAX_REQUESTS: Final = 64


class Streams:
    """The open streams of a server.

    Args:
        max_requests: How many requests of one stream are under way at once; it is not read further meanwhile.
    """

    def __init__(self, max_requests: int = _MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._readers: set[asyncio.Task[None]] = set()
        self._closed = False

    def close(self) -> None:
        """Read no further from any stream: each ends when what was read is answered, and no other begins."""
        self._closed = True
        for reader in self._readers:
            reader.cancel()

    async def serve(
        self,
        requests: AsyncIterator[Any],
        answer: Callable[[Any], Awaitable[Any]],
        write: Callable[[Any], Awaitable[Any]],
    ) -> None:
        """Answer one stream to its end; cancelling this gives up what is under way.

        Args:
            requests: The requests.
            answer: Answers one; does not raise.
            write: Sends an answer.

        Raises:
            NotReady: The server closes its streams.
        """
        if self._closed:
            raise _closing()
        answers: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue()
        free = asyncio.Semaphore(self._max_requests)
        reader = asyncio.ensure_future(_read(requests, answer, answers, free))
        self._readers.add(reader)
        try:
            while (answering := await answers.get()) is not None:
                await write(await answering)
                free.release()
            await asyncio.wait((reader,))
            if reader.cancelled():
                raise _closing()
            reader.result()
        finally:
            self._readers.discard(reader)
            reader.cancel()
            while not answers.empty():
                answering = answers.get_nowait()
                if answering is not None:
                    answering.cancel()


async def _read(
    requests: AsyncIterator[Any],
    answer: Callable[[Any], Awaitable[Any]],
    answers: asyncio.Queue[asyncio.Future[Any] | None],
    free: asyncio.Semaphore,
) -> None:
    try:
        await free.acquire()
        async for request in requests:
            answers.put_nowait(asyncio.ensure_future(answer(request)))
            await free.acquire()
    finally:
        answers.put_nowait(None)


def _closing() -> NotReady:
    return NotReady("The server is shutting down.", retry_after_s=1)
