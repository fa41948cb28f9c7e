"""The runner: it brings a run to its process's end, after any process was killed."""

import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppet_engine import exited
from tests.unit.stoker_runs.launch.conftest import World

from stoker.settings.workspace import Workspace
from stoker_run.json_files import read_json_lines
from stoker_runs.launch.following import follow
from stoker_runs.launch.slots import Slots
from stoker_runs.records.folder import RunFolder, log_file
from stoker_runs.records.record import Definition
from stoker_runs.records.states import FailureCode, RunFailure, RunState, Status, resumed
from stoker_runs.targets.definitions import Capacity


class Killed(BaseException):
    """The runner is no more; nothing catches it."""


def history(folder: RunFolder) -> list[str]:
    return [line["v"] for line in read_json_lines(folder.events) if line["e"] == "state"]


def run_to_end(world: World, folder: RunFolder) -> RunState:
    state = world.runner(folder).run()
    assert folder.state() == state
    return state


def test_a_run_passes_through_all_states(world: World) -> None:
    """Each is noted, the files are collected, and nothing is left on the machine."""
    folder = world.submit()
    assert run_to_end(world, folder).status is Status.COMPLETED
    way = "NotStarted Preparing Provisioning Starting Running Finalizing Completed"
    assert history(folder) == way.split()
    script = world.machine.scripts[1]
    assert (script.starts, script.pulled, script.cleaned) == (1, True, True)


def test_a_failing_script_fails_its_run_with_its_last_words(world: World) -> None:
    """The error has the exception, the details its traceback; outputs are collected all the same."""
    world.machine.exit = exited(
        1, traceback='Traceback (most recent call last):\n  File "x"\nValueError: no\n'
    )
    state = run_to_end(world, world.submit())
    assert state.status is Status.FAILED
    assert state.error is not None
    assert (state.error.code, state.error.message) == (FailureCode.SCRIPT_FAILED, "ValueError: no")
    assert "Traceback" in state.error.details["traceback"]
    assert world.machine.scripts[1].pulled


def test_notes_of_the_preparation_reach_followers_before_the_log(world: World) -> None:
    """Each note of the requested attempt comes once, also after the run has ended."""
    world.machine.says = ("another Python is used: 50 % newer", "no GPU is used")
    world.machine.exit = exited(1)
    folder = world.submit()
    assert run_to_end(world, folder).status is Status.FAILED
    folder.attempt(1).mkdir(exist_ok=True)
    log_file(folder, 1, 0).write_bytes(b"printed")
    lines: list[str] = []
    workspace = Workspace(world.root)
    follow(
        folder, workspace, lambda chunk: lines.append(chunk.decode()), clock=world.clock, notes=lines.append
    )
    assert lines == [*world.machine.says, "printed"]
    lines.clear()
    follow(folder, workspace, lambda _: None, attempt=2, clock=world.clock, notes=lines.append)
    assert lines == []


def test_failed_preparation_ends_the_run_before_its_start(world: World) -> None:
    """The run fails in Preparing with the engine's reason."""
    world.machine.refuses = RunFailure(
        FailureCode.ENVIRONMENT_UNUSABLE, "no release of numpy 0.1", "raise it"
    )
    state = run_to_end(world, world.submit())
    assert (state.status, state.error) == (Status.FAILED, world.machine.refuses)
    assert world.machine.scripts == {}


def test_a_cancelled_run_waits_for_the_end_of_its_script(world: World) -> None:
    """CancelRequested until the script has ended, then Canceled, with the reason that was given."""
    world.machine.looks, world.machine.heeds = 1000, False
    folder = world.submit()
    runner = world.runner(folder)
    while runner.state.status is not Status.RUNNING:
        runner.step()
    folder.request_cancel("by its user", 1, grace_s=3)
    for _ in range(5):
        runner.step()
    assert runner.state.status is Status.CANCEL_REQUESTED
    world.machine.heeds = True
    state = runner.run()
    assert (state.status, state.reason, state.error) == (Status.CANCELED, "by its user", None)


@pytest.mark.parametrize("steps", range(3))
def test_a_cancel_before_the_start_starts_nothing(world: World, steps: int) -> None:
    """Wherever the run is then, no script begins."""
    folder = world.submit()
    runner = world.runner(folder)
    for _ in range(steps):
        runner.step()
    folder.request_cancel("by its user", 1)
    assert runner.run().status is Status.CANCELED
    assert not any(script.starts for script in world.machine.scripts.values())


def test_a_script_that_was_too_long_has_timed_out(world: World) -> None:
    """The agent ends it, and the run says how long it was allowed."""
    world.machine.exit = exited(outcome="timed_out", signal="SIGTERM")
    state = run_to_end(world, world.submit(Definition("train.py", max_duration_s=60)))
    assert state.error is not None
    assert (state.error.code, "60 s" in state.error.message) == (FailureCode.TIMED_OUT, True)


@pytest.mark.parametrize(("attempts", "status"), [(1, Status.FAILED), (2, Status.COMPLETED)])
def test_a_lost_script_is_interrupted_or_begins_again(world: World, attempts: int, status: Status) -> None:
    """After a power cut: Failed Interrupted with one attempt; with two the second runs once the first is cleared."""
    folder = world.submit(Definition("train.py", attempts=attempts))
    runner = world.runner(folder)
    while runner.state.status is not Status.RUNNING:
        runner.step()
    world.machine.lose_power()
    state = world.runner(folder).run()
    assert (state.status, state.attempt) == (status, attempts)
    assert (state.error is None) == (attempts == 2)
    assert all(script.cleaned for script in world.machine.scripts.values())


def test_a_silent_machine_is_waited_for(world: World) -> None:
    """NotResponding with the reason; with one attempt for ever, and collected when it answers again."""
    folder = world.submit()
    runner = world.runner(folder)
    while runner.state.status is not Status.RUNNING:
        runner.step()
    world.machine.unreachable = "no route to host"
    for _ in range(300):
        world.clock.sleep(runner.step())
    assert (runner.state.status, runner.state.reason) == (Status.NOT_RESPONDING, "no route to host")
    world.machine.unreachable = ""
    assert runner.run().status is Status.COMPLETED


def test_a_machine_that_is_silent_for_long_costs_an_attempt(world: World) -> None:
    """With attempts left the node counts as lost, but not before its agent must have ended the script."""
    folder = world.submit(Definition("train.py", attempts=2, lost_after_s=60, grace_s=5))
    runner = world.runner(folder)
    while runner.state.status is not Status.RUNNING:
        runner.step()
    world.machine.unreachable = "no route to host"
    begun_s = world.clock.seconds
    while runner.state.attempt == 1:
        world.clock.sleep(runner.step())
    assert world.clock.seconds - begun_s > 65
    world.machine.unreachable = ""
    world.machine.scripts[1].gone = True
    assert runner.run().status is Status.COMPLETED


def test_files_are_fetched_once_the_machine_is_reachable_again(world: World) -> None:
    """A run whose machine was unreachable for an hour is completed with its files."""
    folder = world.submit()
    runner = world.runner(folder)
    while runner.state.status is not Status.FINALIZING:
        runner.step()
    world.machine.unreachable = "no route to host"
    begun_s = world.clock.seconds
    while world.clock.seconds - begun_s < 3600:
        world.clock.sleep(runner.step())
    assert runner.state.status is Status.FINALIZING
    world.machine.unreachable = ""
    assert runner.run().status is Status.COMPLETED
    assert (runner.state.reason, world.machine.scripts[1].pulled) == ("", True)


def test_a_run_on_a_machine_that_is_no_more_can_be_cancelled(world: World) -> None:
    """It ends after the time of a lost node, and says that files are missing."""
    folder = world.submit(Definition("train.py", lost_after_s=60))
    runner = world.runner(folder)
    while runner.state.status is not Status.RUNNING:
        runner.step()
    world.machine.unreachable = "no route to host"
    folder.request_cancel("by its user", world.clock.now_ms())
    begun_s = world.clock.seconds
    assert runner.run().status is Status.CANCELED
    assert 60 < world.clock.seconds - begun_s < 3600
    assert runner.state.reason.startswith("not all files came back: no route to host")


def test_an_agents_complaint_is_the_reason(world: World) -> None:
    """A full disk makes the run NotResponding while the script goes on."""
    world.machine.looks = 50
    runner = world.runner(world.submit())
    while runner.state.status is not Status.RUNNING:
        runner.step()
    world.machine.problem = "the disk is full"
    runner.step()
    assert (runner.state.status, runner.state.reason) == (Status.NOT_RESPONDING, "the disk is full")


def test_a_full_disk_of_the_workspace_stops_no_script(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner keeps the state in mind and writes it when there is room again."""
    folder = world.submit()
    runner = world.runner(folder)
    runner.step()
    write = RunFolder.write_state
    failures = iter([OSError(28, "No space left on device")] * 5)

    def fail_for_a_while(self: RunFolder, state: RunState) -> None:
        error = next(failures, None)
        if error is not None:
            raise error
        write(self, state)

    monkeypatch.setattr(RunFolder, "write_state", fail_for_a_while)
    assert runner.run().status is Status.COMPLETED
    assert folder.state().status is Status.COMPLETED


def test_a_resumed_run_has_a_further_attempt(world: World) -> None:
    """The same id, the next number, and the end of that one."""
    world.machine.exit = exited(3)
    folder = world.submit()
    assert run_to_end(world, folder).status is Status.FAILED
    world.machine.exit = exited(0)
    folder.write_state(resumed(folder.state(), world.clock.now_ms()))
    state = run_to_end(world, folder)
    assert (state.status, state.attempt, sorted(world.machine.scripts)) == (Status.COMPLETED, 2, [1, 2])


def test_a_waiting_run_names_the_holder_of_its_gpu(world: World) -> None:
    """The state Queued names the GPU's holder; when that one ends, the run has its GPU."""
    slots = Slots(world.root / "slots", world.store, Capacity(4, ("0",)))
    one, two = (world.submit(Definition("train.py", gpus=1)) for _ in range(2))
    first, second = world.runner(one, slots), world.runner(two, slots)
    first.step()
    second.step()
    assert second.state.status is Status.QUEUED
    assert second.state.reason.startswith(f"waits for 1 GPU: held by {one.id} since 20")
    assert first.run().status is Status.COMPLETED
    world.machine.scripts.clear()
    assert second.run().status is Status.COMPLETED


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["exits", "fails", "cancelled", "loses power"]))
def test_a_runner_may_be_killed_anywhere(seed: int, case: str) -> None:
    """Each adopter of the run brings it to the same end: no attempt is started twice, none runs beside another."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        world.machine.exit = exited(1 if case == "fails" else 0)
        world.machine.looks = chance.randrange(1, 6)
        folder = world.submit(Definition("train.py", attempts=2))
        kills = [5]

        def at(call: str) -> None:
            assert len(world.machine.running) <= 1
            if kills[0] and chance.random() < 0.3:
                kills[0] -= 1
                raise Killed
            if case == "loses power" and call == "observe" and chance.random() < 0.1:
                world.machine.lose_power()

        world.machine.at = at
        if case == "cancelled":
            folder.request_cancel("by chance", 1)
        state = RunState()
        while not state.is_terminal:
            try:
                state = world.runner(folder).run()
            except Killed:
                continue
        assert all(script.starts <= 1 for script in world.machine.scripts.values())
        assert world.machine.running == []
        expected = {"exits": "Completed", "fails": "Failed", "cancelled": "Canceled"}.get(case)
        assert expected is None or state.status.value == expected
        assert json.loads((folder.path / "state.json").read_text())["status"] == state.status.value


def test_the_runners_own_failure_ends_the_run(world: World) -> None:
    """The error is the runner's, not the script's."""
    folder = world.submit()
    world.runner(folder).fail(RunFailure(FailureCode.INTERNAL, "KeyError('x')"))
    state = folder.state()
    assert state.error is not None
    assert (state.status, state.error.code) == (Status.FAILED, FailureCode.INTERNAL)
