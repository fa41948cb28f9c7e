"""The same constant from a Starlette route: what a framework around the handler costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["app"]

ANSWER = b"[[0,0,0,0,0,0,0,0,0,0]]"


async def score(request: Request) -> Response:
    """Read the whole body, then answer 200."""
    await request.body()
    return Response(ANSWER, media_type="application/json")


async def ready(request: Request) -> Response:
    """Answer 200."""
    del request
    return Response()


app = Starlette(routes=[Route("/score", score, methods=["POST"]), Route("/ready", ready)])
