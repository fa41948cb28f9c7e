"""Replies whose content is read step by step: each holds its connection until it ends or is abandoned."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from typing import TYPE_CHECKING, Self

import anyio
import httpx

from stoker_client.answers import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from stoker_client.lanes import Lanes
    from stoker_client.steps import Send

__all__ = ["AsyncOpened", "Opened", "exchanged"]


def exchanged(send: Send, lanes: Lanes[httpx.Client], clock: Callable[[], float]) -> Reply:
    """Send a request and return all of its reply.

    Raises:
        TimeoutError: It came too slowly.
    """
    give_up_at_s = clock() + send.timeout_s
    with lanes.lane() as http, closing(http.send(send.request(http), stream=True)) as response:
        content = bytearray()
        for chunk in response.iter_bytes():
            content += chunk
            if clock() > give_up_at_s:
                raise TimeoutError("the answer came too slowly")
    return Reply(response.status_code, bytes(content), response.headers)


class Opened:
    """The reply that a flow reads; the context closes what is left of it."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._response: httpx.Response | None = None
        self._content: Iterator[bytes] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def begin(self, send: Send, lanes: Lanes[httpx.Client]) -> Reply:
        """Send a request; return its reply, without the content for a success."""
        with ExitStack() as held:
            http = held.enter_context(lanes.lane())
            response = held.enter_context(closing(http.send(send.request(http), stream=True)))
            if not response.is_success:
                return Reply(response.status_code, response.read(), response.headers)
            self._response, self._content, self._held = response, response.iter_bytes(), held.pop_all()
        return Reply(response.status_code, headers=response.headers)

    def read(self, timeout_s: float) -> bytes:
        """Return more of the content, none at its end."""
        _wait(self._response, timeout_s)
        return next(self._content, b"")


class AsyncOpened:
    """The same for asynchronous code."""

    def __init__(self) -> None:
        self._held = AsyncExitStack()
        self._response: httpx.Response | None = None
        self._content: AsyncIterator[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._held.aclose()

    async def begin(self, send: Send, lanes: Lanes[httpx.AsyncClient]) -> Reply:
        """See `Opened.begin`."""
        async with AsyncExitStack() as held:
            http = held.enter_context(lanes.lane())
            with anyio.fail_after(send.timeout_s):
                response = await http.send(send.request(http), stream=True)
                await held.enter_async_context(aclosing(response))
                if not response.is_success:
                    return Reply(response.status_code, await response.aread(), response.headers)
            self._response, self._content, self._held = response, response.aiter_bytes(), held.pop_all()
        return Reply(response.status_code, headers=response.headers)

    async def read(self, timeout_s: float) -> bytes:
        """See `Opened.read`."""
        assert self._content is not None, "begun before it is read"
        _wait(self._response, timeout_s)
        with anyio.fail_after(timeout_s):
            return await anext(self._content, b"")


def _wait(response: httpx.Response | None, timeout_s: float) -> None:
    """Set the read timeout; before the content begins it is the rest of the request's."""
    if response is not None:
        response.request.extensions["timeout"] = httpx.Timeout(timeout_s).as_dict()
