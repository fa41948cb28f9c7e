"""Protocols other than Azure's: how one reads the requests of a service, and writes its answers and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from stoker.errors import StokerError

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call
    from stoker.gateway.scoring.service import Service

__all__ = ["Dialect", "TimedDialect"]


class Dialect(Protocol):
    """One protocol, for one kind of request. Stateless: one object serves many requests."""

    def submit(self, service: Service, call: Call, exchange: Exchange, body: bytes) -> None:
        """Decode a body and queue what it holds; `Service.submit_tensors` does the latter.

        Raises:
            StokerError: The request is refused.
        """

    def answer(self, call: Call, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, bytes] | None:
        """Return header lines (without the length) and body for a request that was scored.

        None says that nothing of HTTP is to be written: the dialect has taken the outputs itself.

        Args:
            call: The request.
            outputs: The model's outputs by name; valid only until this returns.

        Raises:
            StokerError: It cannot be answered as it was asked for.
        """

    def refusal(self, error: StokerError) -> tuple[int, bytes]:
        """Return status and JSON of an error."""


@runtime_checkable
class TimedDialect(Dialect, Protocol):
    """One whose requests can say how long their callers wait."""

    def timeout_ns(self, service: Service, body: bytes) -> int | None:
        """Return how long the caller of a request waits; None if that is not said, or cannot be read."""
