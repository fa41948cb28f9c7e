"""Cross-origin requests of browsers: headers that allow them, as the Azure inference server sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Cors", "is_preflight"]

_ALLOWED_METHODS: Final = (b"GET", b"POST")
_VARY: Final = (b"vary", b"Origin")
_Pair = tuple[bytes, bytes]


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser asks what it may send, before it sends that."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


@dataclass(frozen=True, slots=True)
class Cors:
    """The origins that may read answers. No request is refused for its origin: it is browsers that keep answers back.

    Attributes:
        origins: The origins, at least one; `*` stands for all.
    """

    origins: tuple[str, ...]

    @property
    def without_origin(self) -> list[_Pair]:
        """The CORS headers for requests without an `Origin`: they name `*`, or the first origin."""
        if "*" in self.origins:
            return [(b"access-control-allow-origin", b"*")]
        allowed = [(b"access-control-allow-origin", self.origins[0].encode())]
        return allowed if len(self.origins) == 1 else [*allowed, _VARY]

    def names(self, origin: bytes) -> bool:
        """Whether an origin may read answers; schemes and hosts are compared without case."""
        asked = origin.decode("latin-1").lower()
        return any(listed in ("*", asked) for listed in map(str.lower, self.origins))

    def headers(self, method: str, headers: Mapping[bytes, bytes]) -> list[_Pair]:
        """Return the headers that an answer gets.

        Args:
            method: Of the request.
            headers: Of the request, by lower-case name.
        """
        origin = headers.get(b"origin")
        if not origin:
            allowed = self.without_origin
        elif self.names(origin):
            allowed = [(b"access-control-allow-origin", origin), _VARY]
        else:
            return []
        if method == "OPTIONS" and headers.get(b"access-control-request-method") in _ALLOWED_METHODS:
            allowed.append((b"access-control-allow-methods", b", ".join(_ALLOWED_METHODS)))
            names = headers.get(b"access-control-request-headers", b"").split(b",")
            if asked := b", ".join(name.strip() for name in names if name.strip()):
                allowed.append((b"access-control-allow-headers", asked))
        return allowed
