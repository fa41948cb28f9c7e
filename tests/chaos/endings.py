"""How a server ends while callers ask, and is started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Final

from tests.chaos.ledger import Verdict
from tests.chaos.scene import Scene, ending
from tests.live_server import wait_until

__all__: list[str] = []

_ENDED_WITHIN_S: Final = 60.0
"""It takes some seconds; on a busy machine some more."""
_STARTS_S: Final = 3.0
"""A new server starts in less, or on a busy machine in more."""


def _drain(scene: Scene, number: signal.Signals) -> None:
    server = scene.server
    server.down = True
    server.live.signal(number)
    code = server.live.wait()
    assert code == 0, f"a drained server ended with {code}"
    wait_until(lambda: not server.live.pids(), "no process is left", timeout_s=_ENDED_WITHIN_S)


def _start_again(scene: Scene) -> None:
    # It takes connections as soon as something is loaded; who asks for what is not is told so.
    scene.allow(Verdict.REFUSED, "not_ready")
    scene.server.start()


@ending
def sigterm_under_load(scene: Scene) -> Iterator[None]:
    """SIGTERM under load loses no request: each that reached the server is answered, and it ends with code 0."""
    _drain(scene, signal.SIGTERM)
    yield
    _start_again(scene)


@ending
def ctrl_c_under_load(scene: Scene) -> Iterator[None]:
    """Ctrl-C under load loses no request either."""
    _drain(scene, signal.SIGINT)
    yield
    _start_again(scene)


@ending
def sigterm_during_a_reload(scene: Scene) -> Iterator[None]:
    """SIGTERM while a new server starts ends both servers, and loses no request."""
    scene.server.live.signal(signal.SIGUSR2)
    time.sleep(scene.random.uniform(0.0, _STARTS_S))
    _drain(scene, signal.SIGTERM)
    yield
    _start_again(scene)


@ending
def supervisor_killed(scene: Scene) -> Iterator[None]:
    """A killed supervisor ends its server: what was under way may be lost, and all processes end by themselves."""
    server = scene.server
    allowed = [scene.allow(verdict) for verdict in (Verdict.REFUSED, Verdict.LATE, Verdict.LOST)]
    server.down = True
    server.live.process.kill()
    server.live.process.wait()
    wait_until(lambda: not server.live.pids(), "every process has ended by itself", timeout_s=_ENDED_WITHIN_S)
    for allowance in allowed:
        allowance.until_s = time.monotonic()
    yield
    _start_again(scene)
