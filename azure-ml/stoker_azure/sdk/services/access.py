"""Keys and tokens of a deployed service, and scoring with them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from stoker_azure.exceptions import WebserviceException
from stoker_azure.sdk.base import raised_as
from stoker_azure.sdk.services.state import ServiceState

if TYPE_CHECKING:
    from stoker.keys.keyring import Slot
    from stoker_azure.sdk.services.process import Caller

_OK: Final = 200
_SLOTS: Final[Mapping[str, Slot]] = {"Primary": "primary", "Secondary": "secondary"}


@dataclass(frozen=True, slots=True)
class WebServiceAccessToken:
    """A token of a service.

    Attributes:
        token_type: `Bearer`.
        refresh_after: Time at which to fetch a new token.
        expiry_on: Time at which the token expires.
    """

    access_token: str = field(repr=False)
    token_type: str
    refresh_after: datetime
    expiry_on: datetime


class ServiceAccess(ServiceState):
    """Keys and tokens of a deployed service, and scoring."""

    def get_keys(self) -> tuple[str, str]:
        """Return the primary and the secondary key.

        Raises:
            WebserviceException: The service takes none.
        """
        if not self.auth_enabled:
            instead = "get_token()" if self.token_auth_enabled else "none, auth_enabled is off"
            raise WebserviceException(f"{self.name} takes no keys: callers send {instead}")
        with raised_as(WebserviceException):
            keys = self._backend.keys()
        return keys.primary, keys.secondary

    def regen_key(self, key: str, set_key: str | None = None) -> None:
        """Replace a key; the running service uses the new one from its next request.

        Args:
            key: `Primary` or `Secondary`.
            set_key: The new key; a random one by default.

        Raises:
            WebserviceException: There is no such key, the service takes no keys, or the new key is not allowed.
        """
        slot = _SLOTS.get(key.capitalize())
        if slot is None:
            raise WebserviceException(f"there are the keys Primary and Secondary, not {key!r}")
        self.get_keys()
        with raised_as(WebserviceException):
            self._backend.regenerate(slot, set_key)

    def get_token(self) -> tuple[str, datetime]:
        """Return a token, and the time at which to fetch a new one.

        Raises:
            WebserviceException: The service takes none.
        """
        token = self.get_access_token()
        return token.access_token, token.refresh_after

    def get_access_token(self) -> WebServiceAccessToken:
        """Return a token with its times.

        Raises:
            WebserviceException: The service takes none.
        """
        from stoker.keys.tokens import issue_token

        if not self.token_auth_enabled:
            raise WebserviceException(f"{self.name} takes no tokens: deploy it with token_auth_enabled=True")
        with raised_as(WebserviceException):
            secret = self._backend.signing_secret()
        token = issue_token(secret, self.name, now_s=time.time())
        refresh_after, expiry_on = (
            datetime.fromtimestamp(at_s, UTC) for at_s in (token.refresh_after_s, token.expires_s)
        )
        return WebServiceAccessToken(token.text, "Bearer", refresh_after, expiry_on)

    def run(self, input_data: str | bytes) -> Any:
        """Post a body to the service, with a key or token if it takes one, and return the JSON response.

        A key or token is fetched once, and again when the service refuses it. `run` waits while the service starts.

        Raises:
            WebserviceException: The service responds with an error, or cannot be reached.
        """
        if not isinstance(input_data, str | bytes):
            raise WebserviceException(
                f"input_data must be the body, a str or bytes as json.dumps gives, not {type(input_data).__name__}"
            )
        try:
            answer = self._caller.post(input_data)
        except ConnectionError as error:
            raise WebserviceException(
                f"{self.name} cannot be reached at {self.scoring_uri}: {error}; its state is {self.state}"
                f"{f': {reason}' if (reason := self.error) else ''}"
            ) from error
        if answer.status_code != _OK:
            raise WebserviceException(
                f"{self.name} answered {answer.status_code}: {answer.text}. get_logs() may tell more.\n"
                f"Headers: {dict(answer.headers)}",
                answer.status_code,
            )
        return answer.json()

    @cached_property
    def _caller(self) -> Caller:
        from stoker_azure.sdk.services.process import Caller

        return Caller(lambda: self.scoring_uri, self._fetch_bearer, self._has_started)

    def _fetch_bearer(self) -> str | None:
        if self.token_auth_enabled:
            return self.get_token()[0]
        return self.get_keys()[0] if self.auth_enabled else None
