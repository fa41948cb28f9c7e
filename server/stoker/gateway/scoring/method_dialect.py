"""Azure's JSON of models of scikit-learn without a script, whose bodies name a method and whose answers do so too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.scoring.json_dialects import JsonDialect
from stoker.gateway.scoring.tensor_dialect import named_outputs, submit_tensors
from stoker.wire.methods import MethodDecoder, encode_named

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import Ticket
    from stoker.gateway.scoring.call import Call
    from stoker.non_finite import NonFinite
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
        method, inputs = self._decode(body)
        submit_tensors(call, exchange, inputs, method)

    def encode(self, ticket: Ticket) -> bytes:
        """Return an object of the outputs by name."""
        return encode_named(named_outputs(ticket), self._non_finite)
