"""Requests that run a second time: their device process has died, or their rows were too small.

A model computes and changes nothing, so its rows may run twice, unless it keeps state. The inputs are still in the
arena, which outlives the device process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.errors import StokerError

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import Rows
    from stoker.gateway.scoring.call import Call

__all__ = ["submit_again", "submitted_with"]


def submitted_with(call: Call) -> bytes | Rows:
    """Return the body or the rows of a request. Only valid inside its `complete`."""
    return call.inputs() if call.exchange.arena.signature.takes == "rows" else call.body()


def submit_again(call: Call, exchange: Exchange, content: bytes | Rows) -> None:
    """Submit a request that was reopened; if that fails, it is answered with an error."""
    try:
        if isinstance(content, bytes):
            exchange.submit_body(call, content)
        else:
            exchange.submit(call, content)
    except StokerError as error:
        call.refuse(error)
    except Exception as error:  # noqa: BLE001  # the other requests are to be submitted too
        call.refuse_for_fault(error)
