"""The loop that looks for what has changed on the disk."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any, cast

import pytest

from stoker.models.available_models import AvailableModel
from stoker.models.sources import ModelSource
from stoker.settings.model import ModelSettings
from stoker.supervisor.repository_poller import RepositoryPoller


def test_looks_that_are_cancelled_before_they_begin_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may end between the moment that a look is due and its first step."""
    naps = iter([True, False])

    async def nap(_: float) -> None:
        if not next(naps):
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", nap)
    nobody = cast(Any, None)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(RepositoryPoller(nobody, nobody, poll_s=1e-9).run())
    # A coroutine that nobody has awaited would warn now.
    gc.collect()


def test_broken_model_is_reported_once_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that stays broken is logged once, however often the poller looks."""
    caplog.set_level(logging.WARNING)
    (tmp_path / "labels.json").write_text("{")
    broken = AvailableModel("net", ModelSettings(), (1,), _never, base=tmp_path)
    refreshed: list[Any] = []

    class Puppet:
        """The stock and the rollout."""

        def update_mirrors(self) -> None:
            pass

        def find_models(self) -> dict[str, AvailableModel]:
            return {broken.name: broken}

        async def refresh(self, available: Any, settled: Any) -> None:
            refreshed.append((available, settled))

    puppet = cast(Any, Puppet())

    async def look() -> None:
        watch = RepositoryPoller(puppet, puppet, poll_s=1)
        for _ in range(3):
            await watch.poll()

    asyncio.run(look())
    assert refreshed == [({broken.name: broken}, [])] * 3
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"net stays as it is: {tmp_path}/labels.json cannot be read as labels")


def _never(_: int) -> ModelSource:
    raise AssertionError("it is broken")
