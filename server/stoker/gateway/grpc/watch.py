"""What is looked at on a connection each second: that it begins, that its peer is there and takes what is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stoker.gateway.grpc.door import call_of
from stoker.wire.http2.frames import ErrorCode
from stoker.wire.http2.limits import PATIENCE, RESETS

if TYPE_CHECKING:
    from stoker.gateway.grpc.door import Door

__all__ = ["Times", "Watch"]

_PART_SWEEPS: Final = 75
"""So long a frame may arrive: 64 KiB at a KiB a second, and ten seconds."""
_MOST_PATIENCE: Final = 100 * PATIENCE
_MOST_RESETS: Final = 100 * RESETS


class Times(NamedTuple):
    """How long what may take.

    Attributes:
        handshake_s: Until a connection speaks HTTP/2.
        idle_s: Without a call.
        silence_s: Until a peer that says nothing is asked whether it is there.
        answer_s: Until it has to have answered that.
        unread_s: Until a peer has to take some of what is sent.
    """

    handshake_s: float
    idle_s: float
    silence_s: float
    answer_s: float
    unread_s: float


class Watch:
    """Looks after one connection.

    Args:
        door: The connection.
        times: How long what may take.
        now_s: The time; any clock that only grows.
        retires_s: When it is old, by that clock: then its client is asked to connect anew.
    """

    def __init__(self, door: Door, times: Times, now_s: float, retires_s: float) -> None:
        self._door = door
        self._times = times
        self._retires_s = retires_s
        self._made_s = self._called_s = self._heard_s = self._taken_s = now_s
        self._asked_s: float | None = None
        self._calls = self._taken_bytes = self._part_sweeps = 0

    def look(self, now_s: float) -> None:
        """Look at it, and end it if it is time for that."""
        door, http = self._door, self._door.http
        http.patience = min(max(http.patience, PATIENCE), _MOST_PATIENCE)
        http.resets = min(max(http.resets, RESETS), _MOST_RESETS)
        for stream in list(http.streams.values()):
            call_of(stream).sweep()
        if door.calls != self._calls or http.streams:
            self._calls, self._called_s = door.calls, now_s
        if not http.greeted:
            if now_s - self._made_s >= self._times.handshake_s:
                door.end("handshake timeout")
        elif now_s - self._called_s >= self._times.idle_s:
            door.end("connection idle")
        elif not self._look_for_peer(now_s) or not self._look_at_parts():
            return
        elif now_s >= self._retires_s:
            http.drain()
        self._look_at_unread(now_s)
        door.flush()

    def _look_for_peer(self, now_s: float) -> bool:
        http = self._door.http
        if http.heard:
            http.heard = False
            self._heard_s, self._asked_s = now_s, None
        elif self._asked_s is None:
            if now_s - self._heard_s >= self._times.silence_s:
                self._asked_s = now_s
                http.ask()
        elif now_s - self._asked_s >= self._times.answer_s:
            self._door.end("ping_timeout")
            return False
        return True

    def _look_at_parts(self) -> bool:
        http = self._door.http
        if not http.arriving or not http.stuck:
            http.stuck, self._part_sweeps = http.arriving, 0
            return True
        self._part_sweeps += 1
        if self._part_sweeps > _PART_SWEEPS:
            http.fail(ErrorCode.ENHANCE_YOUR_CALM, "frame does not arrive")
            self._door.flush()
            return False
        return True

    def _look_at_unread(self, now_s: float) -> None:
        """End it at once if its peer takes nothing: closing it would wait until it does."""
        unread_bytes = self._door.unread_bytes
        taken_bytes = self._door.written_bytes - unread_bytes
        if not unread_bytes or taken_bytes > self._taken_bytes:
            self._taken_bytes, self._taken_s = taken_bytes, now_s
        elif now_s - self._taken_s >= self._times.unread_s:
            self._door.abort()
