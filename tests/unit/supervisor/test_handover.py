"""Servers that take the place of others, as puppets: a signal to end is for all that there are, whenever it comes."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from stoker.control.channel import ControlChannel
from stoker.control.handover_messages import PREDECESSOR_END, Labels
from stoker.errors import ReloadFailed
from stoker.supervisor import successor
from stoker.supervisor.guardian import Guardian
from stoker.supervisor.handover import Handover
from stoker.supervisor.successor import Successor

LABELS = Labels({})


class PuppetSuccessor:
    """A server that takes a place when it is told to, and ends when it is sent a signal."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.wanted = None
        self.on_reload: Any = None
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.serves = asyncio.Event()
        self.signals: list[signal.Signals] = []
        self.refused = ""

    async def ready(self) -> None:
        serves = asyncio.ensure_future(self.serves.wait())
        await asyncio.wait((serves, self.ended), return_when=asyncio.FIRST_COMPLETED)
        serves.cancel()
        if not self.serves.is_set():
            raise ReloadFailed("It has ended.")

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def leave(self) -> None:
        self.ended.set_result(0)

    def refuse(self, error: str) -> None:
        self.refused = error


class Starts:
    """Starts the puppets that it is given, each once it may."""

    def __init__(self, *successors: PuppetSuccessor) -> None:
        self._left = list(successors)
        self.called, self.may = asyncio.Event(), asyncio.Event()

    async def start(self, sockets: Sequence[socket.socket], labels: Labels) -> PuppetSuccessor:
        assert (sockets, labels) == ([], LABELS)
        self.called.set()
        await self.may.wait()
        return self._left.pop(0)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.anyio
@pytest.mark.parametrize("started", [False, True])
async def test_a_signal_ends_the_server_that_is_to_take_over_too(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    """Whether its process is there or is being started: else it would serve on, behind one that drains."""
    old, new = PuppetSuccessor(), PuppetSuccessor()
    starts = Starts(new)
    monkeypatch.setattr(successor.Successor, "start", starts.start)
    guarding = asyncio.ensure_future(Guardian(old).run())  # type: ignore[arg-type]  # a puppet
    await _turns()
    old.on_reload(LABELS)
    await starts.called.wait()
    if started:
        starts.may.set()
        await _turns()
    signal.raise_signal(signal.SIGTERM)
    await _turns()
    starts.may.set()
    await _turns()
    assert (old.signals, new.signals) == ([signal.SIGTERM], [signal.SIGTERM])
    new.ended.set_result(0)
    await _turns()
    assert old.refused
    old.ended.set_result(0)
    assert await guarding == 0


@pytest.mark.anyio
async def test_a_signal_for_a_reload_is_for_the_server_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is being started gets none, and takes over."""
    old, new = PuppetSuccessor(), PuppetSuccessor()
    starts = Starts(new)
    starts.may.set()
    monkeypatch.setattr(successor.Successor, "start", starts.start)
    guarding = asyncio.ensure_future(Guardian(old).run())  # type: ignore[arg-type]  # a puppet
    await _turns()
    old.on_reload(LABELS)
    await _turns()
    signal.raise_signal(signal.SIGUSR2)
    await _turns()
    assert (old.signals, new.signals) == ([signal.SIGUSR2], [])
    new.serves.set()
    await _turns()
    new.ended.set_result(0)
    assert await guarding == 0


@pytest.mark.anyio
@pytest.mark.parametrize("started", [False, True])
async def test_a_server_that_ends_lets_nobody_take_its_place(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    """A successor that is being started gets the signal, at once or as soon as it is there."""
    new = PuppetSuccessor()
    starts = Starts(new)
    monkeypatch.setattr(successor.Successor, "start", starts.start)
    handover = Handover([])
    handing = asyncio.ensure_future(handover.hand_over(LABELS))
    await starts.called.wait()
    if started:
        starts.may.set()
        await _turns()
    handover.end(signal.SIGTERM)
    starts.may.set()
    await _turns()
    assert new.signals == [signal.SIGTERM]
    new.ended.set_result(0)
    with pytest.raises(ReloadFailed):
        await handing
    assert handover.successor is None


class PuppetProcess:
    """A process that takes signals, and does not end."""

    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)


@pytest.mark.anyio
@pytest.mark.parametrize("was_signalled", [False, True])
async def test_abandoned_successor_gets_one_signal(was_signalled: bool) -> None:
    """A second signal would end the successor at once, with a warning."""
    channel, far = ControlChannel.pair(PREDECESSOR_END)
    process = PuppetProcess()
    new = Successor(process, channel)  # type: ignore[arg-type]  # a puppet
    waiting = asyncio.ensure_future(new.ready())
    await _turns()
    if was_signalled:
        new.send_signal(signal.SIGTERM)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert process.signals == [signal.SIGTERM]
    new.ended.cancel()
    asyncio.get_running_loop().remove_reader(channel.fileno())
    channel.close()
    far.close()
