"""The link in the banner that opens the console once: its token stands for the keys of the services."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

from stoker.errors import Unauthorized

LASTS_S: Final = 600
_TOKEN_BYTES: Final = 24


class SignInLink:
    """A token that is valid once, within `LASTS_S` of being made."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._token, self._until_s = b"", 0.0

    def make_token(self) -> str:
        """Return a new token of 192 random bits; an earlier one is no longer valid."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._token, self._until_s = token.encode(), self._clock_s() + LASTS_S
        return token

    def use(self, token: str) -> None:
        """Use up the token; raises Unauthorized if it is another one, was used before, or is too old."""
        valid = bool(self._token) and self._clock_s() < self._until_s
        if not (valid and hmac.compare_digest(self._token, token.encode())):
            raise Unauthorized(
                "This link has been used or has expired. Sign in with a key: run 'stoker keys show primary'."
            )
        self._token = b""
