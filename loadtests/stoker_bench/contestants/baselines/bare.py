"""A bare ASGI app that reads the body and answers a constant: what uvicorn itself costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["app"]

ANSWER = b"[[0,0,0,0,0,0,0,0,0,0]]"
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole body, then answer 200."""
    del scope
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})
