"""Scoring: bodies for a service of this machine, sent with its key or token."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from stoker_azure.sdk.services.plain_http import plain_http

__all__ = ["Caller"]


class Caller:
    """Posts bodies to one service. A key or token is fetched once, and again when the service refuses it.

    Args:
        find_uri: Tells where the service is now.
        fetch_bearer: Fetches a key or token; None if the service takes neither.
        has_started: Waits while the service starts, and tells whether it can score.
    """

    def __init__(
        self,
        find_uri: Callable[[], str],
        fetch_bearer: Callable[[], str | None],
        has_started: Callable[[], bool],
    ) -> None:
        self._find_uri = find_uri
        self._fetch_bearer = fetch_bearer
        self._has_started = has_started
        self._bearer: str | None = None

    def post(self, body: str | bytes) -> httpx.Response:
        """Post a JSON body, and return the answer, whatever its status.

        Raises:
            ConnectionError: The service cannot be reached, and does not start either.
        """
        try:
            # A request may take as long as the server allows.
            with plain_http(None) as client:
                try:
                    answer = self._post(client, body)
                except httpx.ConnectError:
                    if not self._has_started():
                        raise
                    answer = self._post(client, body)
                if answer.status_code == httpx.codes.UNAUTHORIZED:
                    self._bearer = None
                    answer = self._post(client, body)
                return answer
        except httpx.HTTPError as error:
            raise ConnectionError(str(error)) from error

    def _post(self, client: httpx.Client, body: str | bytes) -> httpx.Response:
        if self._bearer is None:
            self._bearer = self._fetch_bearer()
        headers = {"Content-Type": "application/json"}
        if self._bearer is not None:
            headers["Authorization"] = f"Bearer {self._bearer}"
        return client.post(self._find_uri(), content=body, headers=headers)
