"""The addresses of one service: its scoring URIs, and the paths next to them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httpx

__all__ = ["Addresses"]

_SCORING_PATH = re.compile(r"(?:/api/v1/service/(?P<name>[^/]+))?/score/?$")


class Addresses:
    """The addresses of a service, as known to a client.

    Args:
        scoring_uri: Absolute http or https URI, or those of several servers of one service.

    Raises:
        ValueError: A URI is not absolute.
    """

    def __init__(self, scoring_uri: str | Sequence[str]) -> None:
        uris = [scoring_uri] if isinstance(scoring_uri, str) else list(scoring_uri or ())
        self.urls = [_absolute_url(uri) for uri in uris]
        if not self.urls:
            raise ValueError("there is no scoring URI; give one at least")
        self.scoring_url = self.urls[0]

    @property
    def origins(self) -> str:
        """The servers, for messages."""
        return " or ".join(dict.fromkeys(f"{url.scheme}://{url.netloc.decode('ascii')}" for url in self.urls))

    @property
    def on_loopback(self) -> bool:
        """Whether the service is reached through this machine's loopback, which no proxy can reach."""
        return all(
            url.host in {"localhost", "::1"} or re.fullmatch(r"127(\.[0-9]{1,3}){3}", url.host) is not None
            for url in self.urls
        )

    @property
    def encrypted(self) -> bool:
        """Whether a server is reached by HTTPS."""
        return any(url.scheme == "https" for url in self.urls)

    @property
    def model(self) -> str | None:
        """The model that the scoring URI names; None if it names none.

        Raises:
            ValueError: It does not end in /score, so the other paths are unknown.
        """
        found = _SCORING_PATH.search(self.scoring_url.path)
        if found is None:
            raise ValueError(f"the scoring URI {self.scoring_url} has to end in /score for this")
        return found["name"]

    @property
    def token(self) -> httpx.URL:
        """The address of tokens: next to the scoring path.

        Raises:
            ValueError: The scoring URI does not end in /score.
        """
        path = re.sub(r"/score/?$", "/token", self.scoring_url.path)
        if path == self.scoring_url.path:
            raise ValueError(f"tokens are fetched beside a path that ends in /score, not {path!r}")
        return self.scoring_url.copy_with(path=path, query=None, fragment=None)

    def v2(self, path: str) -> httpx.URL:
        """Return a path of the Open Inference Protocol, below the same prefix as the scoring path."""
        scoring = self.scoring_url.path
        prefix = _SCORING_PATH.sub("", scoring) if _SCORING_PATH.search(scoring) else ""
        return self.scoring_url.copy_with(path=f"{prefix}/v2/{path}", query=None, fragment=None)


def _absolute_url(scoring_uri: str) -> httpx.URL:
    try:
        url = httpx.URL(scoring_uri)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(
            f"the scoring URI has to be absolute, such as http://127.0.0.1:8080/score, not {scoring_uri!r}"
        )
    return url
