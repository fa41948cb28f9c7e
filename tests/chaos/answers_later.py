"""Requests that are answered later, while the server is broken in other ways."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from tests.chaos.scene import Scene, action
from tests.chaos.server import RECOVERY_S
from tests.http.raw_http import Answer, Connection, bearer, request, rows_body, scoring
from tests.live_server import PRIMARY, wait_until

__all__: list[str] = []

_REQUESTS: Final = 20


# A clock that jumps ahead ends the time for which answers are kept.
@partial(action, group="clock jumps")
def answers_later(scene: Scene) -> Iterator[None]:
    """Each request that is answered later gets its right answer, whatever else happens meanwhile."""
    dice = scene.random.randrange(1 << 40)

    def ask(message: bytes, status: int) -> Answer | None:
        try:
            with Connection(scene.server.port) as connection:
                answer = connection.ask(message)
        except (OSError, AssertionError):
            return None
        return answer if answer.status == status else None

    def send_and_fetch() -> None:
        locations = []
        for number in range(_REQUESTS):
            headers = [("Prefer", "respond-async"), ("Idempotency-Key", f"{dice} {number}")]
            message = scoring(
                "/api/v1/service/marked/score", PRIMARY, rows_body([number, dice % 1000, 0, 2]), headers
            )
            taken = wait_until(
                lambda message=message: ask(message, 202),  # type: ignore[misc]
                "a request to be answered later is taken",
                timeout_s=RECOVERY_S,
                every_s=0.1,
            )
            locations.append(taken.header("location"))
        for number, location in enumerate(locations):
            message = request("GET", location, [bearer(PRIMARY)])
            answer = wait_until(
                lambda message=message: ask(message, 200),  # type: ignore[misc]
                "a request is answered later",
                timeout_s=RECOVERY_S,
                every_s=0.1,
            )
            assert answer.json()["y"] == [[2 * number, 2 * (dice % 1000), 0, 4]], (number, answer.body)

    scene.errand(send_and_fetch)
    yield
