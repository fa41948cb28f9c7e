"""The periodic work of a frontend."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.puppets import metric_memory

from stoker.gateway import upkeep as module
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.upkeep import Upkeep


def test_a_round_beats_sweeps_and_frees_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotas and regions have their turn where they are on."""
    monkeypatch.setattr(module, "_SWEEP_S", 0.0)
    monkeypatch.setattr(module, "_CHECK_S", 0.0)
    page, calls = metric_memory().page(0), []

    async def run() -> None:
        done = asyncio.Event()

        def remove_gone() -> None:
            calls.append("regions")
            done.set()

        gateway = SimpleNamespace(
            bodies=BodyBudget(100),
            quotas=SimpleNamespace(refresh=lambda: calls.append("quotas")),
            regions=SimpleNamespace(
                remove_gone=remove_gone,
                cold_devices=lambda: [3],
                cuda=SimpleNamespace(prepare=lambda cold: calls.append(f"prepare {cold}")),
            ),
        )
        services = SimpleNamespace(sweep=lambda: calls.append("services"))
        Upkeep(cast(Any, gateway), cast(Any, services), page).start()
        await done.wait()
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(run())
    assert page.beats >= 1
    assert {"services", "quotas", "regions", "prepare [3]"} <= set(calls)
