"""The credential in the `Authorization` header: a key, or a token that is renewed."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "KEY_VARIABLE",
    "AccessToken",
    "AsyncTokenProvider",
    "Credential",
    "TokenProvider",
    "credentials",
]

KEY_VARIABLE = "STOKER_KEY"

_POSTPONED_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, with the time after which another one should be fetched.

    Attributes:
        text: The text after `Bearer`.
        refresh_in_s: Seconds from now; None to renew it only when the server refuses it.
    """

    text: str = field(repr=False)
    refresh_in_s: float | None = None


TokenProvider: TypeAlias = Callable[[], "str | AccessToken"]
"""Gives the token, or the key, to be sent from now on."""

AsyncTokenProvider: TypeAlias = Callable[[], "str | AccessToken | Awaitable[str | AccessToken]"]
"""The same for asynchronous code."""


class Credential:
    """The current credential and when to renew it; thread-safe.

    Args:
        text: The text after `Bearer`; None sends no header.
        renewable: Whether there is a source of further credentials.

    Raises:
        ValueError: The text cannot be in a header.
    """

    def __init__(self, text: str | None = None, *, renewable: bool = False) -> None:
        self.text = None if text is None else _checked(text)
        self.renewable = renewable
        self._refresh_at_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Return whether to renew the credential before the next request."""
        if not self.renewable:
            return False
        return self.text is None or (self._refresh_at_s is not None and now_s >= self._refresh_at_s)

    def replace(self, given: str | AccessToken, now_s: float) -> None:
        """Use another credential from now on; raise ValueError if it cannot be in a header."""
        token = given if isinstance(given, AccessToken) else AccessToken(given)
        self.text = _checked(token.text)
        self._refresh_at_s = None if token.refresh_in_s is None else now_s + token.refresh_in_s

    def postpone(self, now_s: float, reason: BaseException) -> None:
        """Keep the present credential: renewing it failed, and it may still be valid for a while."""
        self._refresh_at_s = now_s + _POSTPONED_S
        _log.warning("the token could not be renewed, trying again in %g s: %s", _POSTPONED_S, reason)


def credentials(key: str | None, *, use_tokens: bool, provided: bool) -> tuple[Credential, Credential]:
    """Return the key, and the credential of scoring requests: the key itself, or tokens to be fetched.

    Args:
        key: The key; None for the variable STOKER_KEY. A blank one counts as none.
        use_tokens: Whether tokens are fetched with the key.
        provided: Whether a token provider exists.

    Raises:
        ValueError: The key cannot be in a header, there is none to fetch tokens with, or there are two sources.
    """
    given = key if key is not None else os.environ.get(KEY_VARIABLE, "")
    of_key = Credential(given.strip() or None)
    if not (use_tokens or provided):
        return of_key, of_key
    if use_tokens and provided:
        raise ValueError("use_tokens and token_provider are two sources of tokens; give one")
    if provided and key is not None:
        raise ValueError("a key and token_provider both say what is sent; give one")
    if use_tokens and of_key.text is None:
        raise ValueError(f"tokens are fetched with a key; give one, or set {KEY_VARIABLE}")
    return of_key, Credential(renewable=True)


def _checked(text: str) -> str:
    if not (isinstance(text, str) and text.isascii() and text.isprintable() and " " not in text and text):
        raise ValueError("a key has visible ASCII characters only; the one given has others")
    return text
