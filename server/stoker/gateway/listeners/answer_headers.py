"""The headers that all answers of a frontend have: the date, the server, and the origins that may read them."""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from uvicorn.server import ServerState

from stoker import __version__
from stoker.gateway.traffic import DEPLOYMENT_HEADER

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway

_SERVER: Final = (b"server", b"stoker")
_VERSION: Final = (b"x-ms-server-version", f"stoker/{__version__}".encode())


class HttpState(ServerState):
    """uvicorn's state of a server, which all its connections share.

    Attributes:
        default_headers: The headers of every answer, which uvicorn adds to those of the app.
        default_lines: The same as lines of a head, for the fast path.
    """

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self.default_lines = b""
        self.refresh(gateway)

    def refresh(self, gateway: Gateway) -> None:
        """Write the headers with the time of now; to be called once a second."""
        headers = [(b"date", formatdate(usegmt=True).encode()), _SERVER]
        if gateway.settings.tells_version:
            headers.append(_VERSION)
        traffic = gateway.directory.traffic
        if traffic is not None and traffic.undivided:
            # All requests go to one deployment; otherwise the app adds the header to each answer.
            headers.append((DEPLOYMENT_HEADER, traffic.endpoint.leading.encode()))
        self.default_headers = headers
        if gateway.settings.cors is not None:
            # The direct protocol leaves requests of browsers to the app.
            headers = [*headers, *gateway.settings.cors.without_origin]
        self.default_lines = b"".join(b"%b: %b\r\n" % header for header in headers)
