"""Requests to services of this machine."""

from __future__ import annotations

import httpx

__all__ = ["plain_http"]


def plain_http(timeout_s: float | None) -> httpx.Client:
    """A client for plain HTTP without proxies.

    Args:
        timeout_s: Seconds that the network may be silent; None waits as long as the service does.
    """
    # There are no certificates to verify, and loading those of the authorities costs more than the request.
    return httpx.Client(timeout=timeout_s, trust_env=False, verify=False)  # noqa: S501
