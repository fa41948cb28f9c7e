"""Scoring named tensors from a coroutine: for protocols whose messages are not bodies of HTTP requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from stoker.errors import StokerError
from stoker.gateway.scoring.call import Dialect
from stoker.gateway.scoring.tensor_dialect import named_outputs, submit_tensors

if TYPE_CHECKING:
    from stoker.gateway.http.request_ids import RequestIds
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call, Scorer
    from stoker.gateway.scoring.service import Service
    from stoker.wire.envelope import RequestHead

__all__ = ["infer"]


async def infer(
    service: Service,
    inputs: Mapping[str, np.ndarray],
    *,
    ids: RequestIds | None = None,
    timeout_ns: int | None = None,
) -> dict[str, np.ndarray]:
    """Score one request; cancelling it gives its rows up.

    Args:
        service: The model.
        inputs: Arrays by name that fit its `Signature.model_tensors`.
        ids: The request's ids, for the log.
        timeout_ns: How long the caller waits, if that is less than the service's timeout.

    Returns:
        The outputs by name; strings are `object` arrays of `bytes`.

    Raises:
        StokerError: The request was refused, or has failed.
    """
    tensors = _Tensors(inputs, timeout_ns)
    call = service.score(b"", ids, tensors.respond, time.monotonic_ns(), dialect=tensors)
    try:
        return await tensors.outputs
    finally:
        call.abandon()
        # An error keeps this frame, and these would keep the error: only a collection of garbage freed the inputs.
        del tensors, call


class _Tensors(Dialect):
    """One request as a dialect of its own: it has nothing to decode, and its answer is not written."""

    def __init__(self, inputs: Mapping[str, np.ndarray], timeout_ns: int | None) -> None:
        self.outputs: asyncio.Future[dict[str, np.ndarray]] = asyncio.get_running_loop().create_future()
        self._inputs = inputs
        self._timeout_ns = timeout_ns
        self._result: dict[str, np.ndarray] | StokerError | None = None

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        del body, head
        if self._timeout_ns is not None:
            call.deadline_ns = min(call.deadline_ns, call.received_ns + self._timeout_ns)
        submit_tensors(call, exchange, self._inputs)

    def timeout_ns(self, service: Scorer, body: bytes) -> int | None:
        del service, body
        return self._timeout_ns

    def complete(self, call: Call) -> None:
        # The rows are freed when this returns.
        self._result = {name: array.copy() for name, array in named_outputs(call).items()}
        call.answer_bare()

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        self._result = error
        return error.status, b"", b""

    def respond(self, status: int, lines: bytes, body: bytes) -> None:
        del status, lines, body
        if self.outputs.done():
            return
        if isinstance(self._result, StokerError):
            self.outputs.set_exception(self._result)
        elif self._result is not None:
            self.outputs.set_result(self._result)
