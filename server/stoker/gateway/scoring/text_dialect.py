"""The dialect of Azure's scoring endpoint for models that take texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.scoring.dialects import RowsDialect
from stoker.wire.tensor_json import TensorDecoder

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call
    from stoker.settings.choices import NonFinite
    from stoker.tensors import ModelTensors, Signature
    from stoker.wire.script_requests import RequestHead


class TextDialect(RowsDialect):
    """`{"data": ["...", ...]}`, answered as rows of numbers are."""

    def __init__(self, name: str, signature: Signature, tensors: ModelTensors, non_finite: NonFinite) -> None:
        super().__init__(name, signature, non_finite)
        self._decode_texts = TensorDecoder(tensors).decode

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the texts of a body."""
        del head
        exchange.submit(call, list(self._decode_texts(body).values()))

    def unlocked_decoder(self, body: bytes) -> None:
        """None: strings are decoded with Python's interpreter lock."""
        del body
