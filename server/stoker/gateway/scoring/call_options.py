"""The options of a request in its headers or gRPC metadata: caller, deadline, tier, sequence, load report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from stoker.errors import RequestError, quoted
from stoker.gateway.rows.urgency import DEFAULT_URGENCY
from stoker.gateway.scoring.load_reports import LOAD_HEADER, LoadFormat, load_format
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.sequence_steps import MAX_ID, MAX_ID_CHARS, SequenceStep
from stoker.settings.choices import TIERS

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call

TIER_HEADER: Final = b"stoker-tier"
_MS_HEADER: Final = b"x-request-timeout-ms"
_S_HEADER: Final = b"x-request-timeout"
_GRPC_HEADER: Final = b"grpc-timeout"
SEQUENCE_HEADER: Final = b"stoker-sequence"
PATIENCE_HEADERS: Final = (
    _MS_HEADER, _S_HEADER, _GRPC_HEADER, TIER_HEADER, LOAD_HEADER, SEQUENCE_HEADER,
)  # fmt: skip
"""Headers that callers and load balancers may send, in lower case."""
_ENVOY_HEADER: Final = b"x-envoy-expected-rq-timeout-ms"
_OBJECTIVE_HEADER: Final = b"x-gateway-inference-objective"
GATEWAY_HEADERS: Final = (_ENVOY_HEADER, _OBJECTIVE_HEADER)
"""Headers of API gateways, read where these are trusted: Envoy's deadline, and the tier of inference gateways."""

_NUMBER: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
_SEQUENCE: Final = re.compile(
    rb"([!-:<-~]{1,%d})((?:[ \t]*;[ \t]*(?:[sS][tT][aA][rR][tT]|[eE][nN][dD])){0,2})" % MAX_ID_CHARS
)
GRPC_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
UNIT_NS: Final = {b"H": 3600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 10**3, b"n": 1}
_MOST_WHOLE_S: Final = 600


class CallOptions(NamedTuple):
    """The sender of a request, and the options of its handling."""

    caller: CallerTerms
    timeout_ns: int | None = None
    tier: int | None = None
    load_format: LoadFormat | None = None
    sequence: SequenceStep | None = None
    limited: bool = True
    """False for requests that the server makes itself on the caller's behalf: no quota counts them."""

    def apply_to(self, call: Call) -> None:
        """Set these on a call; they cannot extend the service's timeout."""
        if self.caller is not DEFAULT:
            quotas = call.service.limits.quotas
            quota = quotas.of(self.caller) if quotas is not None and self.limited else None
            call.urgency = (call.urgency or DEFAULT_URGENCY)._replace(caller=self.caller, quota=quota)
        if not self.limited and call.urgency is not None:
            call.urgency = call.urgency._replace(shared=None)
        call.shorten(self.timeout_ns)
        call.request_tier(self.tier)
        if self.load_format is not None:
            call.report_load(self.load_format)
        if self.sequence is not None:
            call.sequence = self.sequence


def read_call_options(
    caller: CallerTerms,
    headers: Mapping[bytes, bytes],
    pairs: Sequence[tuple[bytes, bytes]] = (),
    *,
    trusts_proxy: bool = False,
) -> CallOptions | None:
    """Return caller and header values; None for an unnamed caller without any of these headers.

    Args:
        headers: The headers by lower-case name; for gRPC the metadata, without `grpc-timeout`, which is read
            elsewhere.
        trusts_proxy: Whether headers of API gateways count. Invalid ones are ignored, for the caller cannot correct
            them.
    """
    timeout_ns, tier = _gateway_options(headers) if trusts_proxy else (None, None)
    has_any = any(name in headers for name in PATIENCE_HEADERS) or (timeout_ns, tier) != (None, None)
    if not has_any and caller is DEFAULT:
        return None
    times = [
        read(headers[name])
        for name, read in ((_MS_HEADER, _milliseconds), (_S_HEADER, _seconds), (_GRPC_HEADER, _grpc))
        if name in headers
    ]
    if timeout_ns is not None:
        times.append(timeout_ns)
    if TIER_HEADER in headers:
        tier = _tier(headers[TIER_HEADER])
    sequence = _sequence(headers[SEQUENCE_HEADER], pairs) if SEQUENCE_HEADER in headers else None
    return CallOptions(
        caller, min(times, default=None), tier, load_format(headers.get(LOAD_HEADER)), sequence
    )


def _gateway_options(headers: Mapping[bytes, bytes]) -> tuple[int | None, int | None]:
    """The deadline and the tier that a gateway has set."""
    wait_ms = headers.get(_ENVOY_HEADER, b"")
    timeout_ns = round(float(wait_ms) * 1e6) if _NUMBER.fullmatch(wait_ms) else 0
    objective = headers.get(_OBJECTIVE_HEADER, b"").strip().lower().decode("latin-1")
    return timeout_ns or None, TIERS.index(objective) if objective in TIERS else None


def _milliseconds(value: bytes) -> int:
    if not _NUMBER.fullmatch(value):
        raise _no_time(_MS_HEADER, value, "a number of milliseconds, such as 150")
    return round(float(value) * 1e6)


def _seconds(value: bytes) -> int:
    if not _NUMBER.fullmatch(value):
        raise _no_time(_S_HEADER, value, "a number of seconds, such as 0.15")
    if b"." not in value and int(value) > _MOST_WHOLE_S:
        # Some clients send a number of milliseconds without a unit.
        raise _no_time(_S_HEADER, value, f"at most {_MOST_WHOLE_S} seconds; send X-Request-Timeout-Ms")
    return round(float(value) * 1e9)


def _grpc(value: bytes) -> int:
    match = GRPC_TIMEOUT.fullmatch(value)
    if match is None:
        raise _no_time(_GRPC_HEADER, value, "up to eight digits and a unit, such as 150m")
    return int(match[1]) * UNIT_NS[match[2]]


def _tier(value: bytes) -> int:
    name = value.strip().lower().decode("latin-1")
    if name not in TIERS:
        raise RequestError(f"'Stoker-Tier' has to be high, normal or low, not {quoted(name)}.")
    return TIERS.index(name)


def _sequence(value: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> SequenceStep:
    if sum(name == SEQUENCE_HEADER for name, _ in pairs) > 1:
        raise RequestError("'Stoker-Sequence' has to come once: a request is of one sequence.")
    match = _SEQUENCE.fullmatch(value)
    if match is None or not match[1].strip(b"0"):
        raise RequestError(
            f"'Stoker-Sequence' has to be an id, a number from 1 on or at most {MAX_ID_CHARS} visible characters of "
            f"ASCII, and start or end behind semicolons, such as 42; start, not {quoted(value.decode('latin-1'))}."
        )
    name, flags = match[1].decode(), match[2].lower()
    return SequenceStep(
        int(name) if name.isdecimal() and int(name) <= MAX_ID else name, b"start" in flags, b"end" in flags
    )


def _no_time(header: bytes, value: bytes, wanted: str) -> RequestError:
    return RequestError(
        f"{quoted(header.decode())} has to be {wanted}, not {quoted(value.decode('latin-1'))}."
    )
