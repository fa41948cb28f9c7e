"""The paths at which callers fetch answers that were made later (decision 60)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.errors import AnswerExpired, NotFound
from stoker.gateway.http.requests import authorization_of
from stoker.gateway.http.responses import split_lines
from stoker.gateway.later.keeping import LATER_PATH, Later, accept

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.later.spool import Stored

_NAME: Final = re.compile(r"([0-9a-f]{8,12})-([0-9a-f]{32})")
_NO_REQUEST: Final = "There is no such request: it was cancelled, has expired, or was never here."
_GONE: Final = "The answer was not fetched in time and is gone."


def later_routes(gateway: Gateway) -> list[Route]:
    """Return the routes at which answers are fetched and requests cancelled."""

    async def fetch(request: Request) -> Response:
        later, name, stored, is_answer = await find(request)
        if not is_answer:
            status, lines, body = accept(stored.head, stored.attempt)
            response = Response(body, status)
            response.raw_headers = split_lines(lines)
            return response
        stored, _ = await later.runner.call(lambda: later.spool.find(name, with_body=True))
        response = Response(stored.body, stored.head["status"])
        response.raw_headers = [
            *((key.encode("latin-1"), value.encode("latin-1")) for key, value in stored.head["headers"]),
            (b"content-length", b"%d" % len(stored.body)),
            (b"stoker-attempt", b"%d" % stored.attempt),
        ]
        return response

    async def cancel(request: Request) -> Response:
        later, name, *_ = await find(request)
        await later.runner.call(later.spool.remove, name)
        return Response(status_code=204)

    async def find(request: Request) -> tuple[Later, str, Stored, bool]:
        """Find the request that the path names, for its sender or an administrator."""
        later, found = gateway.later, _NAME.fullmatch(request.path_params["name"])
        if later is None or found is None:
            raise NotFound(_NO_REQUEST)
        try:
            stored, is_answer = await later.runner.call(later.spool.find, found[2])
        except NotFound:
            if int(found[1], 16) <= time.time():
                raise AnswerExpired(_GONE) from None
            raise
        _check_sender(gateway, stored.head, authorization_of(request))
        if stored.head["expires_s"] != int(found[1], 16):
            raise NotFound(_NO_REQUEST)
        return later, found[2], stored, is_answer

    return [
        Route(LATER_PATH + "{name}", fetch, methods=["GET"]),
        Route(LATER_PATH + "{name}", cancel, methods=["DELETE"]),
    ]


def _check_sender(gateway: Gateway, head: Mapping[str, Any], authorization: bytes) -> None:
    """Refuse everybody but the caller who has sent a request, and administrators.

    A caller is the holder of a named key, or of a key of the model's service.
    """
    administration = gateway.administration
    if administration is not None:
        admins = administration.access.callers
        if not admins.open and admins.allows(authorization):
            return
    service = gateway.directory.services.get(head["model"])
    if service is None:
        raise NotFound(f"The model {head['model']} is not served now, so there is no key to check.")
    if service.access.check(authorization).identity != head["caller"]:
        raise NotFound(_NO_REQUEST)
