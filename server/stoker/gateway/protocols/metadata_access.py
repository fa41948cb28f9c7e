"""Who may read what is said of models beside their answers: metadata, index, statistics, descriptions.

Health is open to everybody, and so is the state of a model below `/v1`, which is how TensorFlow Serving's is probed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.errors import Unauthorized
from stoker.keys.access import Access
from stoker.keys.keyring import BEARER_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.scoring.service import Service

__all__ = ["check_caller", "check_metadata_access"]


def check_metadata_access(
    gateway: Gateway,
    authorization: bytes,
    services: Iterable[Service] = (),
    *,
    sent_as: str = BEARER_HEADER,
) -> None:
    """Refuse a caller who has neither a key or token of a service nor the admin key.

    Args:
        gateway: What is served.
        authorization: Value of the header `Authorization`.
        services: Those that the caller asks about; none for the server as a whole, for which any key will do.
        sent_as: How callers of the request's protocol send a key, in the words of `BEARER_HEADER`.

    Raises:
        Unauthorized: The caller has none.
    """
    if gateway.metadata_need_key:
        check_caller(gateway, authorization, services, sent_as=sent_as)


def check_caller(
    gateway: Gateway,
    authorization: bytes,
    services: Iterable[Service] = (),
    *,
    sent_as: str = BEARER_HEADER,
) -> None:
    """Refuse as `check_metadata_access` does where metadata need a key.

    Raises:
        Unauthorized: The caller has none.
    """
    # Of a model that is not loaded now nobody has a key.
    asked = list(services) or list(gateway.all_services)
    if any(service.access.allows(authorization) for service in asked):
        return
    administration = gateway.administration
    admins = Access() if administration is None else administration.access.callers
    if not admins.open and admins.allows(authorization):
        return
    if asked:
        raise asked[0].access.refusal(authorization, sent_as)
    raise Unauthorized(f"No model is loaded now, so the admin key is needed: send {sent_as.format('key')}.")
