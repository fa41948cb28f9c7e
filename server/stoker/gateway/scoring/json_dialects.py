"""Azure's JSON: rows of numbers, and tensors of any shape."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.errors import NonFiniteOutput, UnsupportedEncoding
from stoker.gateway.scoring.azure_dialect import AzureDialect
from stoker.wire.images import is_media
from stoker.wire.json_bodies import MAX_VALUES
from stoker.wire.packed import pack, unpack
from stoker.wire.scoring import ScoringDecoder, encode_each, encode_outputs, encode_texts
from stoker.wire.tensor_json import ColumnNames, TensorDecoder, encode_tensors

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import Ticket
    from stoker.gateway.scoring.call import Call, UnlockedReader
    from stoker.settings.choices import NonFinite
    from stoker.tensors import ModelTensors, Signature
    from stoker.wire.script_requests import RequestHead

__all__ = ["JsonDialect", "PackedDialect", "RowsDialect"]


class JsonDialect(AzureDialect):
    """The base of dialects for models that take JSON."""

    def __init__(self, name: str) -> None:
        self._name = name

    @abstractmethod
    def encode(self, ticket: Ticket) -> bytes:
        """Return the body of the answer to a scored request. Only valid inside its `complete`."""

    def complete(self, call: Call) -> None:
        """Answer with JSON."""
        call.answer_scored(self.encode(call), time.monotonic_ns())

    def check_media(self, content_type: bytes) -> None:
        """Refuse images and forms."""
        if is_media(content_type):
            raise UnsupportedEncoding(
                f"{self._name} takes JSON; images need a model that is served with an image input."
            )


class RowsDialect(JsonDialect):
    """Rows of numbers, and answers that are rows of numbers or texts."""

    def __init__(self, name: str, signature: Signature, non_finite: NonFinite) -> None:
        """Create it for a model with this signature; `non_finite` says how NaN and infinities are written."""
        super().__init__(name)
        self._decoder = ScoringDecoder(signature)
        self._decode = self._decoder.decode
        self._in_place = self._decoder.reads_natively
        self._non_finite = non_finite
        # Chosen once, so that requests need not check.
        names = _column_names(signature.model_tensors)
        self._encode_outputs = encode_outputs if names is None else names.encode_outputs
        self._encode_each = encode_each if names is None else names.encode_each

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the rows of a body."""
        del head
        if self._in_place:
            exchange.submit_decoded(call, body, self._decode)
        else:
            exchange.submit(call, self._decode(body))

    def unlocked_reader(self, body: bytes) -> UnlockedReader | None:
        """The C++ decoder, where it is installed."""
        # The length of longer ones has to be counted first, which holds the interpreter lock.
        return self._decoder.native_rows if self._decoder.reads_natively and len(body) <= MAX_VALUES else None

    def encode(self, ticket: Ticket) -> bytes:
        """Return the rows of the only output, or a JSON object of outputs by name."""
        outputs = ticket.exchange.arena.signature.outputs
        if outputs[0].variable:
            return encode_texts(ticket.output_texts(0))
        return self._encode_outputs(outputs, ticket.outputs(), self._non_finite)

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Encode all rows as one text, and answer each request with its part."""
        try:
            bodies = self._encode_each(rows, self._non_finite)
        except NonFiniteOutput:
            super().complete_together(calls, rows)
            return
        now_ns = time.monotonic_ns()
        # Counted once for all: a shared counter costs as much as all other counting of a request.
        calls[0].service.metrics.count_scored(len(calls), len(calls))
        for call, body in zip(calls, bodies, strict=True):
            try:
                call.answer_scored(body, now_ns, counted=True)
            except Exception as error:  # noqa: BLE001  # must not reach the other requests
                call.refuse_for_fault(error)


class PackedDialect(JsonDialect):
    """Tensors of any shape, packed into one row."""

    def __init__(self, name: str, tensors: ModelTensors, non_finite: NonFinite) -> None:
        """Create it for a model with these tensors; `non_finite` says how NaN and infinities are written."""
        super().__init__(name)
        self._decode = TensorDecoder(tensors).decode
        self._non_finite = non_finite
        names = _column_names(tensors)
        self._encode_tensors = encode_tensors if names is None else names.encode_tensors

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the tensors of a body."""
        del head
        exchange.submit_body(call, pack(self._decode(body)))

    def encode(self, ticket: Ticket) -> bytes:
        """Return the only output, or a JSON object of outputs by name."""
        return self._encode_tensors(unpack(ticket.output_texts(0)[0]), self._non_finite)


def _column_names(tensors: ModelTensors | None) -> ColumnNames | None:
    """Writes outputs as objects by column names; None if they are lists."""
    if tensors is None or not any(info.as_objects for info in tensors.outputs):
        return None
    return ColumnNames(tensors.outputs)
