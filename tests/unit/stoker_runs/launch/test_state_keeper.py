"""The state of a run that its runner keeps and writes."""

from pathlib import Path

import pytest
from tests.unit.stoker_runs.launch.conftest import World

from stoker_runs.launch.state_keeper import StateKeeper
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.states import Granted, RunState, Status, Waits


def test_state_that_cannot_be_written_is_written_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk changes nothing of the state; the next write has it."""
    folder = world.submit()
    keeper = StateKeeper(folder, world.clock)  # type: ignore[arg-type]

    def fail(_folder: RunFolder, _state: RunState) -> None:
        raise OSError(28, "No space left on device", str(Path("state.json")))

    with monkeypatch.context() as full:
        full.setattr(RunFolder, "write_state", fail)
        keeper.apply(Granted())
        assert not keeper.write()
    assert keeper.is_unwritten
    assert keeper.state.status is Status.PREPARING
    assert keeper.write()
    assert not keeper.is_unwritten
    assert folder.state() == keeper.state


def test_observation_that_changes_nothing_is_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that waits for the same reason as before keeps its file."""
    folder = world.submit()
    keeper = StateKeeper(folder, world.clock)  # type: ignore[arg-type]
    keeper.apply(Waits("waits for 1 GPU"))
    monkeypatch.setattr(StateKeeper, "write", lambda _: pytest.fail("the state was written"))
    keeper.apply(Waits("waits for 1 GPU"))
    assert keeper.state.reason == "waits for 1 GPU"
