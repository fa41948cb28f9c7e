"""Who sends a request, as far as callers share what the server has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.http.body_budget import Caller
from stoker.keys.callers import DEFAULT

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service

__all__ = ["caller_of"]


def caller_of(service: Service, authorization: bytes, address: str) -> Caller:
    """Find out who sends a request that may be scored.

    Args:
        service: What scores it.
        authorization: The value of its header `Authorization`, which the service takes.
        address: Where it comes from.
    """
    if service.access.open:
        return Caller.at(address)
    holder = service.access.holder(authorization)
    if holder is not None and holder is not DEFAULT:
        # By their name: with their key and their tokens they are one.
        return Caller.at(address, (holder.number, holder.name))
    tokens = service.access.tokens
    if tokens is not None and tokens.verify(authorization):
        # Whoever has a key has as many tokens as they like, and nothing in these says whose they are.
        return Caller.at(address, service.name)
    # However the scheme is spelled.
    _, _, key = authorization.partition(b" ")
    return Caller.at(address, key.strip(b" \t"))
