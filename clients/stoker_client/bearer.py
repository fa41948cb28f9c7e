"""The key in the `Authorization` header."""

from __future__ import annotations

import os
from collections.abc import Generator

import httpx

__all__ = ["KEY_VARIABLE", "BearerKey", "bearer_key"]

KEY_VARIABLE = "STOKER_KEY"


class BearerKey(httpx.Auth):
    """Puts the key into each request as it is sent.

    Args:
        key: The service's primary or secondary key; None sends none.

    Raises:
        ValueError: The key cannot stand in a header.
    """

    def __init__(self, key: str | None) -> None:
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ValueError("a key has visible ASCII characters only; the one given has others")
        self._header = None if key is None else f"Bearer {key}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the `Authorization` header."""
        if self._header is not None:
            request.headers["Authorization"] = self._header
        yield request


def bearer_key(key: str | None) -> BearerKey:
    """Return the given key, else the one in the variable STOKER_KEY, else none; blank keys count as none.

    Raises:
        ValueError: The key cannot stand in a header.
    """
    given = key if key is not None else os.environ.get(KEY_VARIABLE, "")
    return BearerKey(given.strip() or None)
