"""What Azure's scoring endpoint speaks: the body that a model takes decides how it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.http.answers import error_body
from stoker.gateway.scoring.call import Dialect

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call
    from stoker.wire.envelope import RequestHead

__all__ = ["AzureDialect", "Unloaded"]


class AzureDialect(Dialect):
    """A way to score the bodies of Azure's scoring endpoint; made for one model as it is loaded.

    Attributes:
        direct: Whether a POST of JSON or text can be scored without its head.
        wants_head: Whether `submit` is to get the head of a request that has one.
    """

    direct = True
    wants_head = False

    def check_media(self, content_type: bytes) -> None:
        """Refuse an image or a form that the model does not read.

        Args:
            content_type: The `Content-Type`, of any request.

        Raises:
            UnsupportedEncoding: It takes JSON alone, or text.
        """

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return status, no further lines, and Azure's JSON of an error."""
        return error.status, b"", error_body(error)


class Unloaded(AzureDialect):
    """Stands for the dialect of a model that has not been loaded yet."""

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Refuse."""
        del exchange, body, head
        raise call.service.not_ready()

    def complete(self, call: Call) -> None:
        """Refuse."""
        raise call.service.not_ready()
