"""Receiving a request's body in the app: as it is or inflated, within the limit and on the budget of large bodies."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stoker.errors import Overloaded
from stoker.gateway.direct import LARGE_BODY_BYTES
from stoker.gateway.encodings import PIECE_BYTES, Inflater

if TYPE_CHECKING:
    from starlette.types import Receive

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.service import Service

__all__ = ["Allowance", "content_length", "receive_body"]


def content_length(headers: Mapping[bytes, bytes]) -> int:
    """Return the length that a request says its body has; -1 if it says none."""
    value = headers.get(b"content-length", b"")
    return int(value) if value.isdigit() else -1


class Allowance:
    """What one request takes from the budget of large bodies, until its context is left."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._taken_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gateway.release_body(self._taken_bytes)
        self._taken_bytes = 0

    def cover(self, size_bytes: int) -> None:
        """Make sure that a body of this size is covered; small ones are by themselves.

        Raises:
            Overloaded: The bodies being received would be larger than the budget.
        """
        if size_bytes <= max(LARGE_BODY_BYTES, self._taken_bytes):
            return
        # In whole steps, so that a body that grows piece by piece does not come here with each of them.
        wanted = -(-size_bytes // LARGE_BODY_BYTES) * LARGE_BODY_BYTES
        if not self._gateway.reserve_body(wanted - self._taken_bytes):
            raise Overloaded("Too many large request bodies are being received.", retry_after_s=1)
        self._taken_bytes = wanted


async def receive_body(
    receive: Receive, service: Service, inflater: Inflater | None, allowance: Allowance
) -> bytes | None:
    """Return the whole body, inflated if it came compressed; None if the caller went away.

    Raises:
        BodyTooLarge: It is larger than the service takes, as it came or inflated.
        MalformedBody: The compressed data are corrupt.
        Overloaded: Too many large bodies are being received.
    """
    # Other than joined pieces, its content is never there twice.
    body = io.BytesIO()

    def keep(piece: bytes) -> None:
        size_bytes = body.tell() + len(piece)
        if size_bytes > service.max_body_bytes:
            raise service.too_large()
        allowance.cover(size_bytes)
        body.write(piece)

    # A service is not taken away while a body for it arrives.
    service.arriving += 1
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            if inflater is None:
                keep(chunk)
            else:
                for piece in inflater.feed(chunk):
                    keep(piece)
                    if len(piece) in (0, PIECE_BYTES):
                        # A small chunk can make very much: other requests have their turn meanwhile.
                        await asyncio.sleep(0)
            if not message.get("more_body", False):
                if inflater is not None:
                    inflater.finish()
                return body.getvalue()
    finally:
        service.arriving -= 1
