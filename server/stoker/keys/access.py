"""The credential that callers of a service need. It imports nothing for tokens, which few servers accept."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from stoker.errors import NotReady, OutOfScope, StokerError, Unauthorized
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.keys.keyring import BEARER_HEADER, bearer_of
from stoker.keys.verifier import KeyVerifier

if TYPE_CHECKING:
    from stoker.keys.tokens import TokenVerifier


_NAMES_CALLER: Final = b"stoker-caller " + secrets.token_hex(16).encode() + b" "


def name_caller(identity: str) -> bytes:
    """Return a substitute for the header `Authorization` of a caller whose key was checked earlier.

    Only this process can make it, and it is never sent; the caller must still be allowed.
    """
    return _NAMES_CALLER + identity.encode()


class Access:
    """The credential that callers need: a key, a token, either, or none.

    Args:
        needs: The beginning of the error message for a caller without a valid key.

    Attributes:
        holder: Returns the caller for a value of the `Authorization` header; None if access is denied.
        open: Whether no credential is required.
    """

    __slots__ = ("_keys", "_needs", "holder", "open", "tokens")

    def __init__(
        self,
        keys: KeyVerifier | None = None,
        tokens: TokenVerifier | None = None,
        needs: str = "A valid key is needed",
    ) -> None:
        self.holder: Callable[[bytes], CallerTerms | None] = _check(keys, tokens)
        self._keys = keys
        self.open = keys is None and tokens is None
        self.tokens = tokens
        self._needs = needs

    def allows(self, authorization: bytes) -> bool:
        """Return whether the value of the `Authorization` header grants access."""
        return self.find(authorization) is not None

    def find(self, authorization: bytes) -> CallerTerms | None:
        """Return the caller as `holder` does, or the one whom `name_caller` has named, if still allowed."""
        if not compare_digest(authorization[: len(_NAMES_CALLER)], _NAMES_CALLER):
            return self.holder(authorization)
        identity = authorization[len(_NAMES_CALLER) :].decode()
        if self.open or identity == DEFAULT.identity:
            return DEFAULT
        verifier = self._keys or self.tokens
        return None if verifier is None else verifier.caller_with(identity)

    def check(self, authorization: bytes, sent_as: str = BEARER_HEADER) -> CallerTerms:
        """Return the caller for an `Authorization` header, which may be empty; `sent_as` is as for `refusal`."""
        holder = self.find(authorization)
        if holder is None:
            raise self.refusal(authorization, sent_as)
        return holder

    def refusal(self, authorization: bytes = b"", sent_as: str = BEARER_HEADER) -> StokerError:
        """Return the error for a denied request; `sent_as` is how its protocol sends keys, as in `BEARER_HEADER`."""
        verifiers = [verifier for verifier in (self._keys, self.tokens) if verifier is not None]
        if bearer_of(authorization) and not all(verifier.is_readable for verifier in verifiers):
            # The key may be right.
            return NotReady("The server cannot read its keys; its log says why.", retry_after_s=1)
        if self._keys is not None and self._keys.out_of_scope(authorization):
            return OutOfScope("This key is valid, but not for this model.")
        if self.tokens is not None:
            return self.tokens.refusal(authorization, sent_as)
        return Unauthorized(f"{self._needs}: send {sent_as.format('key')}.")


def _check(keys: KeyVerifier | None, tokens: TokenVerifier | None) -> Callable[[bytes], CallerTerms | None]:
    if tokens is None:
        return _everybody if keys is None else keys.holder
    if keys is None:
        return tokens.holder
    of_token, of_key = tokens.holder, keys.holder
    return lambda authorization: of_token(authorization) or of_key(authorization)


def _everybody(_: bytes) -> CallerTerms:
    return DEFAULT
