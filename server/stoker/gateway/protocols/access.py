"""Access to metadata: of the server and its models, index, statistics, descriptions.

Health is open to everybody, and so is the state of a model below `/v1`, which is how TensorFlow Serving is probed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.errors import NotSupported, Unauthorized
from stoker.keys.access import Access
from stoker.keys.callers import DEFAULT, CallerTerms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stoker.gateway.administration import Administration
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.http.requests import Requester
    from stoker.gateway.scoring.service import Service


def check_metadata_access(
    gateway: Gateway, requester: Requester, services: Iterable[Service] = ()
) -> CallerTerms:
    """Refuse a caller without a key or token of a service, or the admin key, if metadata need a key.

    Args:
        services: The services that the request is about; if empty, the key of any service is accepted.

    Returns:
        The caller, whose scope says which models a list may name.
    """
    return check_caller(gateway, requester, services) if gateway.settings.metadata_need_key else DEFAULT


def check_caller(gateway: Gateway, requester: Requester, services: Iterable[Service] = ()) -> CallerTerms:
    """Refuse a caller as `check_metadata_access` does, whether or not metadata need a key."""
    # There are no keys for a model that is not loaded.
    candidates = list(services) or list(gateway.directory.all_services)
    authorization, sent_as = requester.authorization, requester.sent_as
    for service in candidates:
        caller = service.access.holder(authorization)
        if caller is not None:
            return caller
    if _is_admin(gateway, authorization):
        return DEFAULT
    if candidates:
        raise candidates[0].access.refusal(authorization, sent_as)
    raise Unauthorized(f"No model is loaded now, so the admin key is needed: send {sent_as.format('key')}.")


def readable_services(gateway: Gateway, requester: Requester) -> list[Service]:
    """Return the services that a caller may score with; all if metadata need no key, or for the admin key.

    Callers are refused as `check_metadata_access` does.
    """
    check_metadata_access(gateway, requester)
    services, authorization = gateway.directory.services.values(), requester.authorization
    if not gateway.settings.metadata_need_key or _is_admin(gateway, authorization):
        return list(services)
    return [service for service in services if service.access.holder(authorization) is not None]


def _is_admin(gateway: Gateway, authorization: bytes) -> bool:
    administration = gateway.administration
    admins = Access() if administration is None else administration.access.callers
    return not admins.open and admins.allows(authorization)


def administration_of(gateway: Gateway, extension: str) -> Administration:
    """Return the administration, for requests of an extension."""
    if gateway.administration is None:
        raise NotSupported(f"{extension} extension is not supported")
    return gateway.administration
