"""Receiving a request's body in the app: as sent or inflated, within the size limit and the memory budget."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from stoker.errors import BodyTooLarge
from stoker.gateway.http.body_budget import Allowance
from stoker.gateway.http.encodings import PIECE_BYTES, Inflater

if TYPE_CHECKING:
    from starlette.types import Receive

__all__ = ["BodyTaker", "content_length", "receive_body"]


def content_length(headers: Mapping[bytes, bytes]) -> int:
    """Return the length that a request says its body has; -1 if it says none."""
    value = headers.get(b"content-length", b"")
    return int(value) if value.isdigit() else -1


class BodyTaker(Protocol):
    """What accepts bodies up to a size.

    Attributes:
        max_body_bytes: That size.
        arriving: How many bodies for it are being received; it is not removed until they have arrived.
    """

    max_body_bytes: int
    arriving: int

    def too_large(self) -> BodyTooLarge:
        """The error for a body above the limit."""


async def receive_body(
    receive: Receive, taker: BodyTaker, inflater: Inflater | None, allowance: Allowance
) -> bytes | None:
    """Return the whole body, inflated if it came compressed; None if the caller went away.

    Raises:
        BodyTooLarge: The body is larger than the limit, as sent or inflated.
        MalformedBody: The compressed data are corrupt.
        Overloaded: The memory budget has no room for it.
    """
    # Unlike joining pieces, this never holds the content twice.
    body = io.BytesIO()

    def keep(piece: bytes) -> None:
        size_bytes = body.tell() + len(piece)
        if size_bytes > taker.max_body_bytes:
            raise taker.too_large()
        allowance.cover(size_bytes)
        body.write(piece)

    taker.arriving += 1
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
                        # A small compressed chunk can inflate to very much: other requests get their turn in
                        # between.
                        await asyncio.sleep(0)
            if not message.get("more_body", False):
                if inflater is not None:
                    inflater.finish()
                return body.getvalue()
    finally:
        taker.arriving -= 1
