"""The files of a page for browsers, with headers that let it load and ask nothing but this server."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from stoker.errors import NotFound

if TYPE_CHECKING:
    from starlette.requests import Request

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class PageFiles:
    """The files of a folder, listed when a frontend starts: others are not served."""

    def __init__(self, root: Path) -> None:
        self._files = {
            path.relative_to(root).as_posix(): path
            for path in sorted(root.rglob("*"))
            if path.suffix in _TYPES and path.is_file()
        }

    def routes(self, path: str) -> list[Route]:
        """Return the routes of the page, which is at a path with a slash behind it, and of its files."""

        async def page(_: Request) -> Response:
            return self._page()

        async def to_page(_: Request) -> Response:
            # Relative, so that it works behind the path of a proxy.
            return RedirectResponse(f"{path.removeprefix('/')}/")

        async def file(request: Request) -> Response:
            return self._file(request.path_params["path"])

        return [
            Route(path, to_page),
            Route(f"{path}/", page),
            Route(f"{path}/files/{{path:path}}", file),
        ]

    def _page(self) -> Response:
        """Return the page, or how to build it: without its libraries it would be blank."""
        if not any(name.startswith("libraries/") for name in self._files):
            return PlainTextResponse(
                "This page is not built; the start of the server says how to build it.\n",
                503,
                headers=_HEADERS,
            )
        return self._response("index.html")

    def _file(self, name: str) -> Response:
        """Return one file of the page."""
        if name not in self._files:
            raise NotFound("The page has no such file.")
        return self._response(name)

    def _response(self, name: str) -> Response:
        path = self._files[name]
        content = path.read_bytes()
        # Not cached: another version of the server may have other files.
        digest = hashlib.sha256(content).hexdigest()[:16]
        headers = {**_HEADERS, "cache-control": "no-cache", "etag": f'"{digest}"'}
        return Response(content, media_type=_TYPES[path.suffix], headers=headers)
