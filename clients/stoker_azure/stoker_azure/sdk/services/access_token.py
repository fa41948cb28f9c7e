"""A token of a service, as Azure's SDK gives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

__all__ = ["WebServiceAccessToken"]


@dataclass(frozen=True, slots=True)
class WebServiceAccessToken:
    """A token of a service.

    Attributes:
        access_token: Its text.
        token_type: `Bearer`.
        refresh_after: When another one should be fetched.
        expiry_on: From then on it is refused.
    """

    access_token: str = field(repr=False)
    token_type: str
    refresh_after: datetime
    expiry_on: datetime
