"""Tokens of a service's callers: short-lived and signed, for callers who should not hold a key.

A token is a JWT signed by HMAC-SHA-256 with the secret of the service (`SERVICE.signing`, see `stoker.keys.keyring`).
It names the service, when it was issued, when its holder should fetch the next one, and when it expires. Callers with
a key of the service can get a token, and so can anyone who can read the secret. Replacing the secret invalidates all
tokens at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import jwt

from stoker.errors import InvalidSettings, NotReady, Unauthorized
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.keys.generation import FileGeneration, Generation
from stoker.keys.keyring import BEARER_HEADER, bearer_of, read_signing_secret
from stoker.keys.verifier import KeyVerifier

_log = logging.getLogger(__name__)

DEFAULT_VALID_S: Final = 12 * 3600
LONGEST_VALID_S: Final = 30 * 24 * 3600

_ALGORITHM: Final = "HS256"
_ISSUER: Final = "stoker"
_MAX_TOKEN_BYTES: Final = 4096
_REMEMBERED: Final = 1024
_DOTS: Final = 2

_Flaw = Literal["expired", "invalid", "disowned", "none"]
_FLAWS: Final[dict[_Flaw, str]] = {
    "expired": "The token has expired",
    "invalid": "The token is not valid: it was not signed by this service, or its secret was replaced since",
    "none": "This is no token, and no key that is valid here (any more)",
    "disowned": "The token is of a caller who is not known any more, or not for this model",
}


class _Claims(NamedTuple):
    """The content of a token.

    Attributes:
        expires_s: In seconds of the epoch.
        caller: The caller's identity; None for holders of the service's keys.
    """

    expires_s: int
    caller: str | None


@dataclass(frozen=True, slots=True)
class Token:
    """One token; its text stays out of `repr` and so out of logs.

    Attributes:
        text: Callers send it as `Authorization: Bearer TEXT`.
        refresh_after_s: When its holder should fetch the next one: half of its lifetime.
    """

    text: str = field(repr=False)
    issued_s: int
    refresh_after_s: int
    expires_s: int

    def to_json(self) -> dict[str, Any]:
        """Return it as the token route answers: Azure's names, and the same times relative to now in seconds."""
        return {
            "accessToken": self.text,
            "tokenType": "Bearer",
            "refreshAfter": self.refresh_after_s,
            "expiryOn": self.expires_s,
            "refreshInSeconds": self.refresh_after_s - self.issued_s,
            "expiresInSeconds": self.expires_s - self.issued_s,
        }


def issue_token(
    secret: bytes, service: str, *, now_s: float, valid_s: int = DEFAULT_VALID_S, caller: str | None = None
) -> Token:
    """Sign a token for the caller with this identity; without one, for holders of the service's keys."""
    if not 1 <= valid_s <= LONGEST_VALID_S:
        raise InvalidSettings(
            f"a token may be valid for 1 second to {LONGEST_VALID_S // 86400} days, not for {valid_s} seconds"
        )
    issued_s = int(now_s)
    expires_s = issued_s + valid_s
    claims: dict[str, Any] = {"iss": _ISSUER, "aud": service, "iat": issued_s, "exp": expires_s}
    if caller is not None:
        claims["sub"] = caller
    return Token(jwt.encode(claims, secret, _ALGORITHM), issued_s, issued_s + valid_s // 2, expires_s)


class TokenVerifier:
    """Verifies `Authorization` headers with a service's signing secret; raises FileNotFoundError if it has none."""

    def __init__(
        self,
        keys_dir: Path,
        service: str,
        keys: KeyVerifier,
        *,
        clock_s: Callable[[], float] = time.time,
        generation: Generation | None = None,
    ) -> None:
        self._keys_dir = keys_dir
        self._service = service
        self._keys = keys
        self._clock_s = clock_s
        self._generation = FileGeneration(keys_dir) if generation is None else generation
        self._loaded_generation = -1
        self._reported_generation = -1
        self._secret: bytes | None = None
        # Accepted tokens with their claims. The time of a dictionary lookup reveals nothing: Python's hash of bytes
        # is keyed with a random number, and a match is compared completely.
        self._accepted: dict[bytes, _Claims] = {}
        self._load()

    @property
    def is_readable(self) -> bool:
        """Whether the secret could be read when it was last needed."""
        return self._secret is not None

    def verify(self, authorization: bytes) -> bool:
        """Return whether the value of an `Authorization` header carries a valid token; see `holder`."""
        return self.holder(authorization) is not None

    def holder(self, authorization: bytes) -> CallerTerms | None:
        """Return the caller of a token, or None if it is not valid.

        `authorization` is the header's value, `Bearer TOKEN` with the scheme in any case; empty if absent.
        """
        if self._generation[0] != self._loaded_generation:
            self._reload()
        accepted = self._accepted.get(authorization)
        if accepted is None:
            return self._by_signature(authorization)
        if self._clock_s() >= accepted.expires_s:
            del self._accepted[authorization]
            return None
        return self._caller_of(accepted)

    def caller_with(self, identity: str) -> CallerTerms | None:
        """Return the caller with this identity, if allowed to use the model now."""
        return self._keys.caller_with(identity)

    def refusal(self, authorization: bytes, sent_as: str = BEARER_HEADER) -> Unauthorized:
        """Return the error for a refused header: the reason, and where to get a token; see `Access.refusal`."""
        where = (
            f"fetch one from /api/v1/service/{quote(self._service)}/token with a key of the service, and send it as "
            f"{sent_as.format('token')}"
        )
        flaw = self._flaw(authorization)
        if flaw is None:
            return Unauthorized(f"A valid token is needed: {where}.")
        reason = _FLAWS[flaw]
        return Unauthorized(
            f"{reason}; {where}.", challenge=f'Bearer error="invalid_token", error_description="{reason}"'
        )

    def fresh(self, authorization: bytes) -> Token:
        """Issue a token to a holder of a key."""
        holder = self._keys.holder(authorization)
        if holder is None:
            if not self._keys.is_readable:
                raise NotReady(f"The keys of {self._service} cannot be read; the server's log says why.")
            raise Unauthorized(
                "A key of the service is needed for a token: send 'Authorization: Bearer <key>'."
            )
        if self._generation[0] != self._loaded_generation:
            self._reload()
        if self._secret is None:
            raise NotReady(
                f"The signing secret of {self._service} cannot be read; the server's log says why."
            )
        caller = None if holder is DEFAULT else holder.identity
        return issue_token(self._secret, self._service, now_s=self._clock_s(), caller=caller)

    def _by_signature(self, authorization: bytes) -> CallerTerms | None:
        claims = self._claims(authorization)
        if claims is None or self._clock_s() >= claims.expires_s:
            return None
        if len(self._accepted) >= _REMEMBERED:
            self._accepted.clear()
        self._accepted[authorization] = claims
        return self._caller_of(claims)

    def _caller_of(self, claims: _Claims) -> CallerTerms | None:
        # Tokens of a caller who was removed, or whose key has expired, are not valid either.
        return DEFAULT if claims.caller is None else self._keys.caller_with(claims.caller)

    def _claims(self, authorization: bytes) -> _Claims | None:
        """Return the claims of a correctly signed token of this service, even if expired; None for other texts."""
        text = bearer_of(authorization)
        # Keys come here too if both are accepted; they do not contain two dots.
        if len(text) > _MAX_TOKEN_BYTES or text.count(b".") != _DOTS or self._secret is None:
            return None
        try:
            claims = jwt.decode(
                text,
                self._secret,
                algorithms=[_ALGORITHM],
                audience=self._service,
                issuer=_ISSUER,
                # The expiry is checked for each request; here only the token itself is.
                options={"require": ["exp", "iat"], "verify_exp": False, "verify_iat": False},
            )
            return _Claims(int(claims["exp"]), claims.get("sub"))
        except (jwt.InvalidTokenError, ValueError, TypeError, OverflowError):
            return None

    def _flaw(self, authorization: bytes) -> _Flaw | None:
        if not bearer_of(authorization):
            return None
        claims = self._claims(authorization)
        if claims is None:
            return "invalid" if bearer_of(authorization).count(b".") == _DOTS else "none"
        return "expired" if self._clock_s() >= claims.expires_s else "disowned"

    def _load(self) -> None:
        # The counter is read before the file and incremented after it is replaced: the secret is never older.
        generation = self._generation[0]
        self._secret = read_signing_secret(self._keys_dir, self._service)
        self._loaded_generation = generation

    def _reload(self) -> None:
        self._accepted.clear()
        self._secret = None
        try:
            self._load()
        except (OSError, InvalidSettings) as error:
            # The generation is not recorded: the next request tries again, so a repaired file needs no restart.
            self._loaded_generation = -1
            if self._reported_generation != self._generation[0]:
                self._reported_generation = self._generation[0]
                _log.error(
                    "requests with tokens of service %s get 503 until its secret can be read: %s",
                    self._service,
                    error,
                )
