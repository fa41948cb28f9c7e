"""Who asks, and what they say of their patience: headers of HTTP and gRPC that make a request more or less urgent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from stoker.echo import quoted
from stoker.errors import RequestError
from stoker.gateway.rows.urgency import USUAL
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.settings.lateness import TIERS

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call

__all__ = ["PATIENCE_HEADERS", "TIER_HEADER", "Asker", "asker_of"]

TIER_HEADER: Final = b"stoker-tier"
_MS_HEADER: Final = b"x-request-timeout-ms"
_S_HEADER: Final = b"x-request-timeout"
_GRPC_HEADER: Final = b"grpc-timeout"
PATIENCE_HEADERS: Final = (_MS_HEADER, _S_HEADER, _GRPC_HEADER, TIER_HEADER)
"""What callers may say, in lower case."""

_NUMBER: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
_GRPC: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_NS: Final = {
    b"H": 3600 * 10**9,
    b"M": 60 * 10**9,
    b"S": 10**9,
    b"m": 10**6,
    b"u": 10**3,
    b"n": 1,
}
_MOST_WHOLE_S: Final = 600


class Asker(NamedTuple):
    """Who asks, and how.

    Attributes:
        caller: Who.
        timeout_ns: How long they wait; None if they do not say.
        tier: Which tier they ask for; None if they do not.
    """

    caller: CallerTerms
    timeout_ns: int | None = None
    tier: int | None = None

    def put_on(self, call: Call) -> None:
        """Let a call be what its asker is and says; nothing makes it wait longer than its service lets it."""
        if self.caller is not DEFAULT:
            call.urgency = (call.urgency or USUAL)._replace(caller=self.caller)
        call.shorten(self.timeout_ns)
        call.ask_for(self.tier)


def asker_of(caller: CallerTerms, headers: Mapping[bytes, bytes]) -> Asker | None:
    """Find out who asks, and what the headers say; None for a caller without a name who says nothing.

    Args:
        caller: Who asks.
        headers: By their names in lower case; of gRPC the metadata, without `grpc-timeout`, which is read elsewhere.

    Raises:
        RequestError: One of them cannot be understood.
    """
    said = [headers[name] for name in PATIENCE_HEADERS if name in headers]
    if not said and caller is DEFAULT:
        return None
    times = [
        read(headers[name])
        for name, read in ((_MS_HEADER, _milliseconds), (_S_HEADER, _seconds), (_GRPC_HEADER, _grpc))
        if name in headers
    ]
    return Asker(caller, min(times, default=None), _tier(headers.get(TIER_HEADER)))


def _milliseconds(value: bytes) -> int:
    if not _NUMBER.fullmatch(value):
        raise _no_time(_MS_HEADER, value, "a number of milliseconds, such as 150")
    return round(float(value) * 1e6)


def _seconds(value: bytes) -> int:
    if not _NUMBER.fullmatch(value):
        raise _no_time(_S_HEADER, value, "a number of seconds, such as 0.15")
    if b"." not in value and int(value) > _MOST_WHOLE_S:
        # Some clients mean milliseconds by it.
        raise _no_time(_S_HEADER, value, f"at most {_MOST_WHOLE_S} seconds; send X-Request-Timeout-Ms")
    return round(float(value) * 1e9)


def _grpc(value: bytes) -> int:
    said = _GRPC.fullmatch(value)
    if said is None:
        raise _no_time(_GRPC_HEADER, value, "up to eight digits and a unit, such as 150m")
    return int(said[1]) * _UNIT_NS[said[2]]


def _tier(value: bytes | None) -> int | None:
    if value is None:
        return None
    name = value.strip().lower().decode("latin-1")
    if name not in TIERS:
        raise RequestError(f"'Stoker-Tier' has to be high, normal or low, not {quoted(name)}.")
    return TIERS.index(name)


def _no_time(header: bytes, value: bytes, wanted: str) -> RequestError:
    return RequestError(
        f"{quoted(header.decode())} has to be {wanted}, not {quoted(value.decode('latin-1'))}."
    )
