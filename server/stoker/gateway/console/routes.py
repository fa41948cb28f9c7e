"""The console over HTTP: the page, whose files hold nothing and are public, and its figures, which need a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from stoker import __version__
from stoker.errors import RequestError
from stoker.gateway.console.figures import figures
from stoker.gateway.console.files import ConsoleFiles
from stoker.gateway.console.models import describe_models
from stoker.gateway.console.remarkable import remarkable_requests
from stoker.gateway.http.answers import split_lines
from stoker.gateway.http.asgi import authorization_of
from stoker.gateway.http.compression import compressed
from stoker.gateway.http.side_threads import beside_the_loop
from stoker.gateway.protocols.metadata_access import check_caller

if TYPE_CHECKING:
    from starlette.requests import Request

    from stoker.gateway.gateway import Gateway
    from stoker.metrics.past import Past

__all__ = ["console_routes"]

_MOST_DIGITS: Final = 18


def console_routes(gateway: Gateway) -> list[Route]:
    """Return the routes below `/console`; none where the console is switched off."""
    if gateway.past is None:
        return []
    files, figures = ConsoleFiles(), _Figures(gateway, gateway.past)

    async def page(_: Request) -> Response:
        return files.page()

    async def to_page(_: Request) -> Response:
        # Relative, so that it leads there behind the path of a proxy too.
        return RedirectResponse("console/")

    async def file(request: Request) -> Response:
        return files.file(request.path_params["path"])

    return [
        Route("/console", to_page),
        Route("/console/", page),
        Route("/console/figures", figures.figures),
        Route("/console/models", figures.models),
        Route("/console/requests", figures.requests),
        Route("/console/files/{path:path}", file),
    ]


class _Figures:
    """What callers with a key of any service are shown."""

    def __init__(self, gateway: Gateway, past: Past) -> None:
        self._gateway = gateway
        self._past = past

    async def figures(self, request: Request) -> Response:
        """The steps since the one that the page has last seen, of all models or of one."""
        self._check(request)
        names = request.query_params.getlist("model")
        slots = [
            version.standing.slot
            for name, model in self._gateway.models.items()
            if not names or name in names
            for version in model.versions.values()
        ]
        found = await beside_the_loop(figures, self._past, slots, _number(request, "since"))
        return await _json(request, found)

    async def models(self, request: Request) -> Response:
        """All models with what is known of them, and of the server."""
        self._check(request)
        administration = self._gateway.administration
        found = {
            "server": __version__,
            "keyless": self._gateway.keyless,
            "changes": "" if administration is None else administration.access.refusal,
            "admin_key": administration is not None and not administration.access.callers.open,
            "models": describe_models(self._gateway),
        }
        return await _json(request, found)

    async def requests(self, request: Request) -> Response:
        """The last failures and the slowest requests, with what went on in the second of each."""
        self._check(request)
        journal = self._gateway.journal
        if journal is None:
            return await _json(request, {"failed": [], "slow": []})
        slots = {
            (name, number): version.standing.slot
            for name, model in self._gateway.models.items()
            for number, version in model.versions.items()
        }
        return await _json(request, await beside_the_loop(remarkable_requests, journal, self._past, slots))

    def _check(self, request: Request) -> None:
        if not self._gateway.keyless:
            check_caller(self._gateway, authorization_of(request))


def _number(request: Request, name: str) -> int:
    """A number of the query, 0 where there is none.

    Raises:
        RequestError: It is none.
    """
    text = request.query_params.get(name, "0")
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise RequestError(f"{name} has to be a whole number.")
    return int(text)


async def _json(request: Request, content: object) -> Response:
    body, coding = await compressed(
        orjson.dumps(content), request.headers.get("accept-encoding", "").encode("latin-1")
    )
    response = Response(body, media_type="application/json", headers={"cache-control": "no-store"})
    response.raw_headers.extend(split_lines(coding))
    return response
