"""The sender of a request, so that one caller's bodies do not take the memory of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.http.body_budget import Caller
from stoker.keys.callers import DEFAULT

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service


def identify_caller(service: Service, authorization: bytes, address: str) -> Caller:
    """Return the sender of a request that may be scored."""
    if service.access.open:
        return Caller.at(address)
    holder = service.access.holder(authorization)
    if holder is not None and holder is not DEFAULT:
        # By name: a caller's key and tokens count as one caller.
        return Caller.at(address, (holder.number, holder.name))
    tokens = service.access.tokens
    if tokens is not None and tokens.verify(authorization):
        # A caller with a key may have any number of tokens, and a token does not say whose it is.
        return Caller.at(address, service.name)
    # The scheme is compared without case.
    _, _, key = authorization.partition(b" ")
    return Caller.at(address, key.strip(b" \t"))
