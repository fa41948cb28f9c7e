"""The base of the dialects at Azure's scoring endpoint; which one a model gets depends on what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.http.responses import error_body
from stoker.gateway.scoring.call import Dialect

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call
    from stoker.wire.script_requests import RequestHead

__all__ = ["AzureDialect", "Unloaded"]


class AzureDialect(Dialect):
    """A way to decode and answer requests at Azure's scoring endpoint; made for one model when it is loaded.

    Attributes:
        direct: Whether a POST of JSON or text can be scored without its head, so that the direct door takes it.
        wants_head: Whether `submit` needs the head of a request.
    """

    direct = True
    wants_head = False

    def check_media(self, content_type: bytes) -> None:
        """Refuse a `Content-Type` that the model does not accept.

        Args:
            content_type: The `Content-Type`, of any request.

        Raises:
            UnsupportedEncoding: It is an image or a form, and the model accepts JSON or text only.
        """

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return status, no header lines, and Azure's JSON of an error."""
        return error.status, b"", error_body(error)


class Unloaded(AzureDialect):
    """Takes the place of the dialect of a model that has not been loaded yet."""

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Raise NotReady."""
        del exchange, body, head
        raise call.service.not_ready()

    def complete(self, call: Call) -> None:
        """Raise NotReady."""
        raise call.service.not_ready()
