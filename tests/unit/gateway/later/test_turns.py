"""Turns: the places of owners, and whose work is next."""

from __future__ import annotations

import asyncio

import pytest

from stoker.gateway.later.turns import Turns

pytestmark = pytest.mark.anyio


class Works:
    """Works that last until they are released."""

    def __init__(self, places: int) -> None:
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.turns = Turns(places, self._work)

    async def _work(self, name: str) -> None:
        self.begun.append(name)
        self.ends[name] = asyncio.Event()
        await self.ends[name].wait()

    def put(self, owner: str, count: int) -> None:
        for number in range(count):
            self.turns.put(f"{owner * 8}{number}")

    async def begin(self) -> list[str]:
        """Let tasks begin; returns the owners' letters in order."""
        for _ in range(3):
            await asyncio.sleep(0)
        return [name[0] for name in self.begun]

    async def end(self) -> None:
        """End all work."""
        self.turns.pause()
        for end in self.ends.values():
            end.set()
        await asyncio.gather(*self.turns.running)


async def test_owner_with_hanging_work_leaves_places_to_each_newcomer() -> None:
    """An owner has at most twice as many places as stay free, and each further one finds some of the rest."""
    works = Works(9)
    works.turns.start()
    works.put("a", 100)
    assert await works.begin() == ["a"] * 6
    works.put("b", 100)
    assert await works.begin() == ["a"] * 6 + ["b"] * 2
    works.put("c", 1)
    assert (await works.begin())[8:] == ["c"]
    await works.end()


async def test_freed_place_goes_to_the_longest_waiting_owner() -> None:
    """With one place, an owner with many ids waits behind each owner whose turn was before."""
    works = Works(1)
    works.turns.start()
    works.put("a", 3)
    works.put("b", 2)
    works.put("c", 1)
    for place in range(6):
        owners = await works.begin()
        assert len(owners) == place + 1
        works.ends[works.begun[-1]].set()
    assert owners == ["a", "b", "c", "a", "b", "a"]
    await works.end()


async def test_paused_turns_begin_nothing_further() -> None:
    """Running work goes on, waiting work stays queued."""
    works = Works(4)
    works.put("a", 2)
    assert await works.begin() == []
    works.turns.start()
    assert await works.begin() == ["a", "a"]
    works.turns.pause()
    works.put("b", 1)
    works.ends[works.begun[0]].set()
    assert await works.begin() == ["a", "a"]
    assert (len(works.turns.running), works.turns.waiting("b" * 8)) == (1, 1)
    await works.end()
