"""The end of a server: signals, handovers, and the drain of its frontends."""

from __future__ import annotations

import dataclasses
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from tests.own_time import give_own_time

from stoker.control.frontend_messages import Drain, Stop
from stoker.settings.server import ServerSettings
from stoker.supervisor import shutdown as module
from stoker.supervisor.background import Background
from stoker.supervisor.shutdown import Shutdown

pytestmark = pytest.mark.anyio

GRACE_S = 3.0


class Exited(Exception):
    """The process has ended at once."""


class Scene:
    """A server of puppets.

    Attributes:
        log: The calls of its parts, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeouts_ms: tuple[int, ...] = ()) -> None:
        self.log: list[Any] = []
        self.now_s = 100.0
        self.child = SimpleNamespace(
            kill=lambda: self.log.append("kill"), process=SimpleNamespace(wait=self._wait)
        )
        frontends = SimpleNamespace(
            children=[self.child], tell=self.log.append, close_sockets=lambda: self.log.append("close")
        )
        fleet: Any = SimpleNamespace(frontends=frontends, children=[self.child])
        catalogue: Any = SimpleNamespace(served=[SimpleNamespace(timeout_ms=one) for one in timeouts_ms])
        self.handover: Any = SimpleNamespace(
            predecessor=None, successor=None, end=lambda number: self.log.append(("end", number))
        )
        settings = dataclasses.replace(ServerSettings(), drain_grace_s=GRACE_S)
        self.background = Background()
        self.shutdown = Shutdown(settings, fleet, catalogue, self.handover, self.background)

        async def sleep(delay_s: float) -> None:
            self.log.append(delay_s)

        def exit_at_once(code: int) -> None:
            raise Exited(code)

        monkeypatch.setattr(module.asyncio, "sleep", sleep)
        give_own_time(monkeypatch, module, monotonic=lambda: self.now_s)
        monkeypatch.setattr(module.os, "_exit", exit_at_once)

    async def _wait(self) -> int:
        return 0

    def send(self, number: signal.Signals = signal.SIGTERM, grace_s: float = GRACE_S) -> None:
        """Let the server get a signal."""
        self.shutdown._on_signal(number, grace_s)


async def test_a_signal_drains_an_announced_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readiness goes off, the grace period passes, the port closes, and frontends get time for their requests."""
    scene = Scene(monkeypatch, timeouts_ms=(2000, 500))
    scene.shutdown.is_announced = True
    scene.send()
    assert scene.background.stopping
    await scene.shutdown.drain()
    assert scene.log == [("end", signal.SIGTERM), Drain(False), GRACE_S, "close", Stop(2.0)]


async def test_a_server_that_nobody_knows_yet_ends_without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller has its address before it is announced."""
    scene = Scene(monkeypatch)
    scene.send()
    await scene.shutdown.drain()
    assert scene.log == [("end", signal.SIGTERM), Drain(False), 0.0, "close", Stop(0.0)]


async def test_a_server_that_leaves_keeps_the_port_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server accepts on it; no request waits longer than the longest drain."""
    scene = Scene(monkeypatch, timeouts_ms=(3_600_000,))
    scene.shutdown.leave()
    await scene.shutdown.drain()
    assert scene.log == [Drain(True), GRACE_S, "close", Stop(30.0)]


async def test_a_second_signal_ends_the_server_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request that comes twice, as from timeout(1), counts once."""
    scene = Scene(monkeypatch)
    scene.send()
    scene.now_s += 0.1
    scene.send()
    assert scene.log == [("end", signal.SIGTERM)]
    scene.now_s += 1
    with pytest.raises(Exited):
        scene.send(signal.SIGINT)
    assert scene.log[-1] == "kill"


async def test_a_signal_is_passed_on_to_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process waits as its guardian until the successor ends."""
    scene = Scene(monkeypatch)
    scene.handover.successor = SimpleNamespace(send_signal=lambda number: scene.log.append(("pass", number)))
    scene.shutdown.leave()
    scene.send(signal.SIGINT)
    assert scene.log == [("pass", signal.SIGINT)]
