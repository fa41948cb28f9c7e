"""The process that decodes a frontend's long bodies, one after the other: `python -m` this with `--fd N`.

It ends when its frontend does, or closes the socket.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
from typing import Final

import numpy as np

from stoker.gateway.scoring.freed_memory import give_back
from stoker.gateway.scoring.long_body import read_long_body
from stoker.gateway.scoring.parcels import Parcel, receive_parcel, send_parcel
from stoker.system.fd_passing import memory_with
from stoker.system.logs import configure_logging
from stoker.system.processes import be_expendable

__all__ = ["main", "serve"]

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
            give_back()


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
