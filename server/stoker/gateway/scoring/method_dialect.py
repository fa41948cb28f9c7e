"""Azure's JSON of models of scikit-learn without a script, whose bodies name a method and whose answers do so too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stoker.gateway.scoring.json_dialects import JsonDialect
from stoker.gateway.scoring.tensor_dialect import named_outputs, submit_tensors
from stoker.non_finite import NonFinite
from stoker.wire.methods import MethodDecoder, encode_named, encode_results

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import Ticket
    from stoker.gateway.scoring.call import Call
    from stoker.tensors import Signature
    from stoker.wire.envelope import RequestHead

__all__ = ["MethodDialect"]


class MethodDialect(JsonDialect):
    """`{"data": rows, "method": name}`, answered with an object of the rows by that name."""

    def __init__(self, name: str, signature: Signature, non_finite: NonFinite) -> None:
        """Make it for a model with this signature, whose answers have NaN and infinities so."""
        super().__init__(name)
        self._decode = MethodDecoder(signature).decode
        self._non_finite = non_finite

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the rows of a body to the method that it names."""
        del head
        request = self._decode(body)
        if request.results:
            call.write = partial(_write_results, self._non_finite)
        submit_tensors(call, exchange, request.inputs, request.method)

    def complete(self, call: Call) -> None:
        """Answer in the form of the request."""
        write = getattr(call, "write", None)
        if write is None:
            super().complete(call)
        else:
            lines, body = write(named_outputs(call))
            call.answer_scored(body, time.monotonic_ns(), lines)

    def encode(self, ticket: Ticket) -> bytes:
        """Return an object of the outputs by name."""
        return encode_named(named_outputs(ticket), self._non_finite)


def _write_results(non_finite: NonFinite, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, bytes]:
    return b"", encode_results(outputs, non_finite)
