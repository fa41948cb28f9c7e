"""The process that decodes a frontend's long bodies, one after the other: `python -m` this with `--fd N`.

The reader runs the same dialect as the frontend would, with a stand-in for the exchange that keeps what is submitted.
So both come to the same result, with the same error messages. The process ends when its frontend does, or closes the
socket.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import traceback
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker.errors import Overloaded, StokerError
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.rows.ticket import BodyT, Decode, Exchange, Rows, Ticket
from stoker.gateway.scoring.call import Call, ServiceBase
from stoker.gateway.scoring.dialect_choice import loaded_dialect
from stoker.gateway.scoring.parcels import DecodedBody, DecodeTask, Parcel, receive_parcel, send_parcel
from stoker.gateway.scoring.service_facts import Limits, ServiceFacts
from stoker.system.fd_passing import memory_with
from stoker.system.logs import configure_logging
from stoker.system.processes import be_expendable
from stoker.system.resources import trim_heap
from stoker.wire.packed import pack
from stoker.wire.texts import TEXT

if TYPE_CHECKING:
    from stoker.tensors import Signature

_MORE_EXPENDABLE: Final = 100
_KEEP_S: Final = 1.0


def serve(sock: socket.socket, keep_s: float = _KEEP_S) -> None:
    """Decode bodies until the other end closes; memory is kept for the next body for `keep_s` seconds."""
    # `select` does not take descriptors from 1024 on, and this one has the same number as in the frontend.
    arrival = select.poll()
    arrival.register(sock, select.POLLIN)
    while (parcel := receive_parcel(sock)) is not None:
        _answer(sock, parcel)
        del parcel
        # A parser's tables are many times as large as a body, and allocating them again takes longer than decoding
        # one.
        if not arrival.poll(keep_s * 1000):
            trim_heap()


def _answer(sock: socket.socket, parcel: Parcel) -> None:
    try:
        body = os.pread(parcel.memory_fd, parcel.size_bytes, 0)
    finally:
        os.close(parcel.memory_fd)
    found, pieces = read_long_body(parcel.content, body)
    del body
    memory_fd = memory_with("stoker-read-body", pieces)
    try:
        send_parcel(sock, memory_fd, sum(piece.nbytes for piece in pieces), found)
    finally:
        os.close(memory_fd)


def read_long_body(task: DecodeTask, body: bytes) -> tuple[DecodedBody, list[memoryview]]:
    """Decode a body; returns the result, and its bytes one after the other."""
    call = _Call(_Service(task), RequestIds(task.request_id), lambda *_: None, task.received_ns, task.dialect)
    call.deadline_ns, call.urgency = task.deadline_ns, task.urgency
    dialect = task.dialect or loaded_dialect(task.name, task.signature, task.non_finite)
    kept = _Exchange(task.signature)
    found = DecodedBody(task.deadline_ns)
    try:
        dialect.submit(call, kept, body, task.head)
    except StokerError as error:
        found.error = error
        return found, []
    except Exception:  # noqa: BLE001  # logged by the frontend, which has the request's id
        found.fault = traceback.format_exc()
        return found, []
    found.deadline_ns, found.urgency = call.deadline_ns, call.urgency
    found.write, found.sequence = getattr(call, "write", None), getattr(call, "sequence", None)
    found.empty = call.is_empty
    if kept.rows is None:
        return found, [memoryview(kept.body)]
    rows = [np.ascontiguousarray(array) for array in kept.rows]
    found.arrays = [(array.dtype.str, array.shape) for array in rows]
    return found, [array.reshape(-1).view(np.uint8).data for array in rows]


class _Service(ServiceBase):
    """Takes the place of the service in the reader."""

    limits = Limits(timeout_ns=0, max_body_bytes=0)

    def __init__(self, task: DecodeTask) -> None:
        self.facts = ServiceFacts(task.name, task.version, non_finite=task.non_finite)
        self.signature = task.signature
        self.codecs = {}


class _Exchange(Exchange):
    """Takes the place of the exchange in the reader: keeps what is submitted."""

    leased_rows = 0
    idle = True

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.rows: Rows | None = None
        self.body: bytes | memoryview = b""

    def refusal(self, ticket: Ticket) -> None:
        """None: the frontend has decided that the body is decoded."""

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Keep rows; texts are packed."""
        del ticket
        if rows[0].dtype == object:
            self.body = pack({TEXT: rows[0]})
        else:
            self.rows = rows

    def submit_decoded(self, ticket: Ticket, body: BodyT, decode: Decode[BodyT]) -> None:
        """Keep the rows of a body."""
        self.submit(ticket, decode(body, None))

    def submit_body(self, ticket: Ticket, body: bytes | memoryview) -> None:
        """Keep a body."""
        del ticket
        self.body = body

    def cancel(self, ticket: Ticket) -> None:
        """Does nothing: nothing runs here."""

    def overloaded(self) -> Overloaded:
        """Return an error that is never raised: there is always room."""
        return Overloaded("The reader has no room.")

    def close(self) -> None:
        """Does nothing."""


class _Call(Call):
    """Takes the place of the call in the reader: gives no answer."""

    __slots__ = ("is_empty",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_empty = False

    def complete_empty(self, exchange: Exchange) -> None:
        """Record that there are no rows."""
        del exchange
        self.is_empty = True


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(
        prog="stoker.gateway.scoring.body_reader", description="Started by a frontend."
    )
    parser.add_argument("--fd", type=int, required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Killed before its frontend when memory runs out: that costs one request.
    be_expendable(_MORE_EXPENDABLE)
    configure_logging("frontend")
    # As in the frontend, so that both decode to the same result.
    np.seterr(over="raise")
    # The frontend has gone, and nobody waits for the result.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(socket.socket(fileno=args.fd))


if __name__ == "__main__":
    main()
