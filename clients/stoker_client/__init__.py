"""Python client of the Stoker inference server: numpy in, numpy out, over HTTP.

    from stoker_client import Client

    with Client("http://127.0.0.1:8080/score", key="...") as client:
        classes = client.score(images)

The package needs no part of the server.
"""

from __future__ import annotations

from stoker_client import errors
from stoker_client.answers import Answer
from stoker_client.async_client import AsyncClient
from stoker_client.bearer import AccessToken
from stoker_client.bodies import Rows
from stoker_client.client import Client
from stoker_client.errors import *  # noqa: F403  # all of its `__all__`
from stoker_client.pieces import AsyncPieces, Pieces
from stoker_client.urgency import Tier

__all__ = [
    "AccessToken",
    "Answer",
    "AsyncClient",
    "AsyncPieces",
    "Client",
    "Pieces",
    "Rows",
    "Tier",
]
__all__ += errors.__all__
