"""Fixtures for tests of loading and unloading versions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.puppets import metric_memory
from tests.unit.supervisor.rollout.stage import Play, PuppetFleet, PuppetStock, Stage

from stoker.errors import LoadFailed, LoadTimeout
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.repository_poller import RepositoryPoller
from stoker.supervisor.rollout import Rollout


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scene on a server that has begun with `digits` in version 3."""

    def run(
        scene: Callable[[Stage], Awaitable[None]],
        begins: bool = True,
        with_broken: bool = False,
        **policies: Any,
    ) -> None:
        stock = PuppetStock(tmp_path, {("digits", 3): "weights"}, policies)
        if with_broken:
            stock.files["faces", 4] = "more weights"
        fleet = PuppetFleet()
        memory = metric_memory()
        broken = {("letters", 2): LoadFailed("letters is no model")} if with_broken else {}
        if with_broken:
            stock.files["letters", 2] = "nonsense"
        begun = [stock.deployed("digits", 3), *([stock.deployed("faces", 4, 1, 1)] if with_broken else [])]
        catalogue = Catalogue(begun, stock.find_models(), broken)

        async def perform() -> None:
            rollout = Rollout(catalogue, fleet, stock, memory)
            if begins:
                await rollout.begin(
                    stock.find_models(), {1: LoadTimeout("faces hangs")} if with_broken else {}
                )
            stage_log = fleet.happened()
            assert ("unload faces 4" in stage_log) == with_broken
            await scene(
                Stage(fleet, stock, catalogue, rollout, RepositoryPoller(rollout, stock, 1.0), memory)
            )

        asyncio.run(perform())

    return run
