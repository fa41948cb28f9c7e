"""The base of protocols whose requests and answers are named tensors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stoker.errors import StokerError
from stoker.gateway.scoring.call import Dialect
from stoker.wire.packed import pack, unpack

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import Ticket
    from stoker.gateway.scoring.call import Call

__all__ = ["TensorDialect", "named_outputs", "submit_tensors"]


class TensorDialect(Dialect):
    """A protocol of named tensors. Its `submit` sets `Call.write`, and ends with `submit_tensors`."""

    __slots__ = ()

    def complete(self, call: Call) -> None:
        """Answer with what `Call.write` returns for the outputs."""
        self._answer(call, named_outputs(call))

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer each with its row."""
        name = calls[0].exchange.arena.signature.outputs[0].name
        for index, call in enumerate(calls):
            try:
                self._answer(call, {name: rows[index : index + 1]})
            except StokerError as error:
                call.refuse(error)
            except Exception as error:  # noqa: BLE001  # must not reach the other requests
                call.refuse_for_fault(error)

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        lines, body = call.write(outputs)
        call.answer_scored(body, time.monotonic_ns(), lines)


def submit_tensors(
    call: Call, exchange: Exchange, inputs: Mapping[str, np.ndarray], signature_name: str = ""
) -> None:
    """Queue a request whose inputs have been checked against `Signature.model_tensors`.

    Args:
        call: The request.
        exchange: Where it goes.
        inputs: Its inputs by name.
        signature_name: The name in `Signature.named` that they were checked against, if not the default.

    Raises:
        StokerError: As `Exchange.submit`.
    """
    signature = exchange.arena.signature
    if signature.takes == "tensors":
        exchange.submit_body(call, pack(inputs, signature_name))
        return
    rows = [inputs[spec.name] for spec in signature.inputs]
    if len(rows[0]):
        exchange.submit(call, rows)
    else:
        call.complete_empty(exchange)


def named_outputs(call: Ticket) -> dict[str, np.ndarray]:
    """Return the outputs of a request by name; strings are an `object` array. Only valid inside its `complete`."""
    signature = call.exchange.arena.signature
    if signature.takes == "tensors":
        return unpack(call.output_texts(0)[0])
    outputs = signature.outputs
    if not call.rows:
        return {spec.name: np.empty((0, *spec.shape), spec.dtype) for spec in outputs}
    if outputs[0].variable:
        texts = np.empty(call.rows, object)
        texts[:] = call.output_texts(0)
        return {outputs[0].name: texts}
    return {spec.name: array for spec, array in zip(outputs, call.outputs(), strict=True)}
