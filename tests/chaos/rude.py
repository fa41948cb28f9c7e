"""Callers with bad manners: their acts, and the answers that they have to get."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.chaos.scene import Scene, action
from tests.http.raw_http import Answer, Connection, bearer, request, rows_body, scoring
from tests.live_server import PRIMARY
from tests.tiny_models import RAISE

__all__: list[str] = []

_PATH: Final = "/api/v1/service/marked/score"
_GOOD: Final = scoring(_PATH, PRIMARY, rows_body([1, 2, 3, 4]))


def _half_a_body(connection: Connection) -> None:
    connection.send(_GOOD[:-5])


def _half_a_head(connection: Connection) -> None:
    connection.send(_GOOD[:40])


def _send_nothing(_: Connection) -> None:
    return


def _reset_behind_a_request(connection: Connection) -> None:
    connection.send(_GOOD)
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.socket.close()


def _leave_answers_unread(connection: Connection) -> None:
    rows = rows_body(*([1, 2, 3, 4] for _ in range(2000)))
    connection.socket.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        for _ in range(200):
            connection.send(scoring(_PATH, PRIMARY, rows))


def _refused(statuses: set[int], *messages: bytes) -> Callable[[Connection], None]:
    """One who has to be told what is wrong, each time on the same connection as long as that is kept."""

    def ask(connection: Connection) -> None:
        for message in messages:
            answer: Answer = connection.ask(message)
            assert answer.status in statuses, (
                f"{message[:80]!r} was answered {answer.status}: {answer.body[:200]!r}"
            )
            if answer.closes:
                return

    return ask


MANNERS: Final[dict[str, Callable[[Connection], None]]] = {
    "half a body": _half_a_body,
    "half a head": _half_a_head,
    "nothing": _send_nothing,
    "reset": _reset_behind_a_request,
    "unread answers": _leave_answers_unread,
    "garbage": _refused({400}, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    "wrong keys": _refused(
        {401}, *(scoring(_PATH, f"no-key-{n}", rows_body([1, 2, 3, 4])) for n in range(20))
    ),
    "too large": _refused({413}, request("POST", _PATH, [bearer(PRIMARY), ("Content-Length", str(1 << 40))])),
    "two lengths": _refused(
        {400}, request("POST", _PATH, [bearer(PRIMARY), ("Content-Length", "5")], b'{"data": [[1, 2, 3, 4]]}')
    ),
    "not JSON": _refused(
        {400}, scoring(_PATH, PRIMARY, b'{"data": [[1, 2'), scoring(_PATH, PRIMARY, b"\xff" * 99)
    ),
    "wrong shape": _refused(
        {422}, scoring(_PATH, PRIMARY, rows_body([1, 2, 3])), scoring(_PATH, PRIMARY, b"{}")
    ),
    "poison": _refused(
        {500}, scoring("/api/v1/service/tripler/score", PRIMARY, rows_body([1, 1, 1, 1], [RAISE, 0, 0, 0]))
    ),
}
"""The request of each rude caller, and how it judges its answer."""


@action
def rude_callers(scene: Scene) -> Iterator[None]:
    """Callers with bad manners are told what is wrong or left alone, and cost nobody else anything."""
    chosen = scene.random.choices(list(MANNERS), k=12)
    until_s = time.monotonic() + scene.hold_s

    def come() -> None:
        with contextlib.ExitStack() as opened:
            for name in chosen:
                try:
                    connection = opened.enter_context(Connection(scene.server.port))
                    MANNERS[name](connection)
                except (OSError, AssertionError) as problem:
                    # Other faults of the round may be why they were not told.
                    if scene.alone:
                        raise AssertionError(f"{name}: {problem!r}") from problem
            time.sleep(max(0.0, until_s - time.monotonic()))

    # Where a frontend is stopped, they wait as all others do.
    scene.errand(come)
    yield
