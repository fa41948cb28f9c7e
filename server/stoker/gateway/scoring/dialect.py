"""One protocol for one kind of request, as calls and services see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stoker.errors import StokerError

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.rows.ticket import Exchange, Rows
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.service_base import ServiceBase
    from stoker.wire.script_requests import RequestHead

UnlockedDecoder = Callable[[bytes], "Rows | None"]
"""Decodes the rows of a body without Python's global interpreter lock; returns None if `Dialect.submit` has to
decide."""


class Dialect(ABC):
    """One protocol for one kind of request: decodes requests, and encodes their answers.

    One object serves many requests, so the state of a request is kept in its call.
    """

    __slots__ = ()

    @abstractmethod
    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode a body, and submit its content."""

    def blocks_on_long(self, service: ServiceBase, body: bytes, head: RequestHead | None) -> bool:
        """Whether decoding a long body blocks for long; it is then decoded beside the event loop."""
        del service, body, head
        return True

    def unlocked_decoder(self, body: bytes) -> UnlockedDecoder | None:
        """Return a decoder that runs on a thread without Python's interpreter lock.

        None if there is none for this model.
        """
        del body
        return None

    @abstractmethod
    def complete(self, call: Call) -> None:
        """Answer a request whose rows are done; an exception is answered by `refusal`."""

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer requests of one row each, all of this dialect, with their rows of the model's only output.

        Where it raises, none of them has been answered.
        """
        del rows
        for call in calls:
            call.settle()

    @abstractmethod
    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return status, further header lines, and the JSON of an error."""

    def timeout_ns(self, service: ServiceBase, body: bytes) -> int | None:
        """Return how long the caller waits, by the request itself; None if it does not say or cannot be read."""
        del service, body
        return None
