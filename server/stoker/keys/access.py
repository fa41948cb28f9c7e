"""Who may use something: callers with one of its keys or tokens, or everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.errors import Unauthorized
from stoker.keys.keyring import BEARER_HEADER
from stoker.keys.verifier import KeyVerifier

if TYPE_CHECKING:
    from stoker.keys.tokens import TokenVerifier

__all__ = ["Access"]


class Access:
    """What is asked of callers: a key, a token, either, or nothing.

    Args:
        keys: Verifies keys; None where none is taken.
        tokens: Verifies tokens; None where none is taken.
        needs: What a caller without a valid key is told: the beginning of a sentence.

    Attributes:
        allows: Returns whether the value of the `Authorization` header carries what is asked for.
        open: Whether nothing is asked for.
        tokens: As given; whoever has a key gets new tokens there.
    """

    __slots__ = ("_needs", "allows", "open", "tokens")

    def __init__(
        self,
        keys: KeyVerifier | None = None,
        tokens: TokenVerifier | None = None,
        needs: str = "A valid key is needed",
    ) -> None:
        self.allows: Callable[[bytes], bool] = _check(keys, tokens)
        self.open = keys is None and tokens is None
        self.tokens = tokens
        self._needs = needs

    def check(self, authorization: bytes, sent_as: str = BEARER_HEADER) -> None:
        """Raise Unauthorized unless the value of the `Authorization` header carries what is asked for.

        Args:
            authorization: The header's value; empty if there is none.
            sent_as: As for `refusal`.
        """
        if not self.allows(authorization):
            raise self.refusal(authorization, sent_as)

    def refusal(self, authorization: bytes = b"", sent_as: str = BEARER_HEADER) -> Unauthorized:
        """Return the error for a request that is not allowed.

        Args:
            authorization: The value of its `Authorization` header.
            sent_as: How callers of the request's protocol send it, in the words of `BEARER_HEADER`.
        """
        if self.tokens is not None:
            return self.tokens.refusal(authorization, sent_as)
        return Unauthorized(f"{self._needs}: send {sent_as.format('key')}.")


def _check(keys: KeyVerifier | None, tokens: TokenVerifier | None) -> Callable[[bytes], bool]:
    if tokens is None:
        return _allow_all if keys is None else keys.verify
    if keys is None:
        return tokens.verify
    takes_token, takes_key = tokens.verify, keys.verify
    return lambda authorization: takes_token(authorization) or takes_key(authorization)


def _allow_all(_: bytes) -> bool:
    return True
