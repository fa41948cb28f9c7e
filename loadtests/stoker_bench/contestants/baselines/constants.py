"""Constants: a bare ASGI app, which costs what uvicorn costs, and a Starlette route, which adds a framework."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

ANSWER = b"[[0,0,0,0,0,0,0,0,0,0]]"
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]


async def bare_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole body, then answer 200."""
    del scope
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def score(request: Request) -> Response:
    """Read the whole body, then answer 200."""
    await request.body()
    return Response(ANSWER, media_type="application/json")


async def ready(request: Request) -> Response:
    """Answer 200."""
    del request
    return Response()


starlette_app = Starlette(routes=[Route("/score", score, methods=["POST"]), Route("/ready", ready)])
