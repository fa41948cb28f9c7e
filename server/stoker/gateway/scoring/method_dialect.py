"""Azure's JSON for models of scikit-learn without a script: a body may name a method, and its answer does so too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stoker.settings.choices import NonFinite
from stoker.wire.tensor_json import (
    MethodDecoder,
    encode_named,
    encode_results,
)

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange, Ticket
    from stoker.gateway.scoring.call import Call
    from stoker.tensors import Signature
    from stoker.wire.script_requests import RequestHead


from stoker.gateway.scoring.dialects import JsonDialect, named_outputs, submit_tensors


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
