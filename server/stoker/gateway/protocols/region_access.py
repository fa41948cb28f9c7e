"""Who may register shared memory, and who may list it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.errors import Forbidden, NotSupported, Unauthorized
from stoker.gateway.protocols.metadata_access import check_caller, check_metadata_access
from stoker.keys.keyring import BEARER_HEADER

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.regions.regions import Regions

__all__ = ["CUDA_SHARED_MEMORY", "SYSTEM_SHARED_MEMORY", "regions_to_change", "regions_to_see"]

SYSTEM_SHARED_MEMORY = "system_shared_memory"
CUDA_SHARED_MEMORY = "cuda_shared_memory"
"""The extensions' names."""


def regions_to_see(
    gateway: Gateway, authorization: bytes, address: str, *, sent_as: str = BEARER_HEADER
) -> Regions:
    """Return the regions for a caller who lists them.

    Args:
        gateway: The frontend's gateway.
        authorization: Value of the header `Authorization`.
        address: The caller's address.
        sent_as: How a client of the request's protocol sends a key; the wording of `BEARER_HEADER`.

    Raises:
        NotSupported: Shared memory is off.
        Forbidden: The caller is on another machine.
        Unauthorized: No key was sent.
    """
    regions = _regions(gateway, address, SYSTEM_SHARED_MEMORY)
    check_metadata_access(gateway, authorization, sent_as=sent_as)
    return regions


def regions_to_change(
    gateway: Gateway,
    authorization: bytes,
    address: str,
    *,
    from_page: bool = False,
    sent_as: str = BEARER_HEADER,
    extension: str = SYSTEM_SHARED_MEMORY,
) -> Regions:
    """Return the regions for a caller who registers or unregisters.

    Args:
        gateway: The frontend's gateway.
        authorization: Value of the header `Authorization`.
        address: The caller's address.
        from_page: Whether the request's headers say that a web page made it in a browser.
        sent_as: How a client of the request's protocol sends a key; the wording of `BEARER_HEADER`.
        extension: The extension, for the error if it is off.

    Raises:
        NotSupported: Shared memory is off.
        Forbidden: The caller is on another machine or is a web page, or there is no admin key.
        Unauthorized: The key that is needed was not sent.
    """
    regions = _regions(gateway, address, extension)
    if from_page:
        raise Forbidden("Pages may not register shared memory.")
    if not regions.needs_admin:
        check_caller(gateway, authorization, sent_as=sent_as)
        return regions
    administration = gateway.administration
    if administration is None or administration.access.refusal:
        raise Forbidden("Shared memory cannot be registered here: start the server with STOKER_ADMIN_KEY.")
    if not administration.access.callers.allows(authorization):
        raise Unauthorized(
            f"Registering shared memory needs the admin key ('stoker keys show admin'): send {sent_as.format('key')}."
        )
    return regions


def _regions(gateway: Gateway, address: str, extension: str) -> Regions:
    if gateway.regions is None:
        raise NotSupported(f"{extension} extension is not supported")
    gateway.regions.check_peer(address)
    return gateway.regions
