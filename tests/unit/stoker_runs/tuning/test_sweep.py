"""The runner of a sweep: it goes on from the folders, after any process was killed."""

import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.stoker_runs.launch.conftest import StillClock

from stoker_runs.errors import SubmissionRefused, UnknownRun
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import SWEEP, Definition, RunRecord
from stoker_runs.records.states import RunFailure, RunState, Status
from stoker_runs.records.store import RunStore
from stoker_runs.tuning.children import continued_children, definition_of, trials_of
from stoker_runs.tuning.definition import ContinuedChild, SweepDefinition, define_sweep, expression, sampler
from stoker_runs.tuning.policies import Bandit, Policy
from stoker_runs.tuning.sweep_process import Sweep


class Killed(BaseException):
    """The runner of the sweep is no more; nothing catches it."""


class World:
    """Runs whose scripts log one value a look, and end after the last one."""

    def __init__(self, root: Path) -> None:
        self.store = RunStore(root / "runs")
        self.clock = StillClock()
        self.logs: dict[int, list[float]] = {}
        self.fails: set[int] = set()
        self.running: list[RunFolder] = []
        self.begun: list[str] = []
        self.most = 0
        self._count = 0

    def submit(self, terms: SweepDefinition, definition: Definition | None = None) -> RunFolder:
        self._count += 1
        now_ms = self.clock.now_ms()
        name = f"e_{now_ms // 1000}_{self._count:08x}"
        definition = definition or Definition("train.py", ("--epochs", "6"))
        record = RunRecord(name, "e", now_ms, definition, SWEEP, sweep=terms.to_json())
        return self.store.create(record, RunState(since_ms=now_ms, submitted_ms=now_ms))

    def sweep(self, folder: RunFolder) -> Sweep:
        return Sweep(folder, self.store, self.begin, self.adopt, self.clock)  # type: ignore[arg-type]

    def begin(self, child: RunFolder) -> None:
        self.begun.append(child.id)
        self.running.append(child)
        self.most = max(self.most, len(self.running))
        child.attempt(1).mkdir()
        child.write_state(child.state().replace(status=Status.RUNNING))

    def adopt(self, child: RunFolder) -> None:
        if child.id not in self.begun:
            self.begin(child)

    def read(self) -> None:
        """Let each script log its next value, or end."""
        for child in list(self.running):
            number = int(child.id.rpartition("_")[2])
            path = child.attempt(1) / "metrics.jsonl"
            done = len(path.read_text().splitlines()) if path.exists() else 0
            values = self.logs.get(number, [0.5])
            request = child.cancel_request()
            if request is not None:
                self.end(child, Status.CANCELED, str(request["reason"]))
            elif done < len(values):
                with path.open("a") as file:
                    file.write(json.dumps({"t": 1, "k": "acc", "v": values[done], "a": 1}) + "\n")
            else:
                self.end(child, Status.FAILED if number in self.fails else Status.COMPLETED)

    def end(self, child: RunFolder, status: Status, reason: str = "") -> None:
        error = RunFailure("ScriptFailed", "ValueError: no") if status is Status.FAILED else None
        child.write_state(child.state().replace(status=status, reason=reason, error=error))
        self.running.remove(child)

    def run_to_end(self, sweep: Sweep) -> RunState:
        for _ in range(1000):
            sweep.step()
            if sweep.state.is_terminal:
                return sweep.state
            self.read()
        raise AssertionError(f"it came to nothing: {sweep.state}")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def terms_of(runs: int, at_once: int, policy: Policy | None = None, **more: object) -> SweepDefinition:
    space = {"--n": expression("randint", 9), "rate": expression("uniform", 0, 1)}
    return define_sweep(sampler("random", space, 5), "acc", "maximize", runs, at_once, policy, **more)  # type: ignore[arg-type]


def test_children_are_runs_with_parameters_of_their_own(world: World) -> None:
    """Ids from 0 up, the parent's files and arguments, then the parameters; a name gets its dashes."""
    folder = world.submit(terms_of(3, 2))
    (folder.environment / "asked.yml").write_text("name: x\n")
    state = world.run_to_end(world.sweep(folder))
    assert (state.status, state.reason, world.most) == (Status.COMPLETED, "", 2)
    assert world.begun == [f"{folder.id}_{number}" for number in range(3)]
    child = world.store.get(world.begun[1])
    record = child.record()
    parameters = terms_of(3, 2).parameters(1)
    assert record.definition.arguments == (
        *("--epochs", "6", "--n", str(parameters["--n"]), "--rate", str(parameters["rate"])),
    )
    assert (record.parent, record.kind) == (folder.id, "script")
    assert (child.environment / "asked.yml").read_text() == "name: x\n"


def test_a_poor_child_is_canceled_with_the_policy_as_reason(world: World) -> None:
    """The others go on; the best comes first in the list, and children without a value last."""
    world.logs = {0: [0.5, 0.9], 1: [0.1, 0.2], 2: [], 3: [0.6]}
    folder = world.submit(terms_of(4, 2, Bandit(slack_factor=0.5)))
    assert world.run_to_end(world.sweep(folder)).status is Status.COMPLETED
    trials = trials_of(folder, world.store)
    assert [(trial.number, trial.best, trial.count) for trial in trials] == [
        (0, 0.9, 2),
        (3, 0.6, 1),
        (1, 0.1, 1),
        (2, None, 0),
    ]
    assert trials[2].status is Status.CANCELED
    assert trials[2].reason == "Bandit(slack_factor=0.5, evaluation_interval=1): 0.1 after 1 value"
    log = (folder.attempt(1) / "log_0.txt").read_text()
    assert "4 runs, at most 2 at once, by random sampling: maximize acc" in log
    assert f"{folder.id}_1 is told to end: Bandit" in log
    assert f"{folder.id}_2 is Completed; it has not logged acc, but no numbers; the best is 0.9" in log


def test_a_sweep_without_its_metric_names_the_logged_ones(world: World) -> None:
    """It is Completed, and its reason names the metric and the logged ones."""
    world.logs = {0: [], 1: []}
    folder = world.submit(terms_of(2, 2))
    sweep = world.sweep(folder)
    sweep.step()
    for child in world.running:
        (child.attempt(1) / "metrics.jsonl").write_text('{"t":1,"k":"loss","v":1.0,"a":1}\n')
    state = world.run_to_end(sweep)
    assert (state.status, state.reason) == (
        Status.COMPLETED,
        "no run has logged the metric acc, so that none is the best; they have logged loss",
    )


def test_a_cancel_ends_all_children(world: World) -> None:
    """Each with the sweep as its reason; nothing begins any more, and the sweep is Canceled."""
    world.logs = {number: [0.1] * 50 for number in range(9)}
    folder = world.submit(terms_of(9, 3))
    sweep = world.sweep(folder)
    sweep.step()
    folder.request_cancel("by its user", 1, grace_s=2)
    state = world.run_to_end(sweep)
    assert (state.status, state.reason) == (Status.CANCELED, "by its user")
    children = [world.store.get(run_id) for run_id in world.begun]
    assert [child.state().status for child in children] == [Status.CANCELED] * 3
    assert {child.state().reason for child in children} == {"its sweep was canceled by its user"}
    assert [(child.cancel_request() or {})["grace_s"] for child in children] == [2] * 3


def test_a_cancel_before_the_start_begins_nothing(world: World) -> None:
    """The sweep is Canceled at once."""
    folder = world.submit(terms_of(9, 3))
    folder.request_cancel("by its user", 1)
    assert world.run_to_end(world.sweep(folder)).status is Status.CANCELED
    assert world.begun == []


def test_sweep_that_takes_too_long_completes_with_its_children_so_far(world: World) -> None:
    """Its children are ended, and it says how far it came."""
    world.logs = {0: [0.1] * 50, 1: [0.1] * 50}
    folder = world.submit(terms_of(5, 2, max_duration_s=60))
    sweep = world.sweep(folder)
    sweep.step()
    world.read()
    world.clock.sleep(61)
    state = world.run_to_end(sweep)
    assert state.status is Status.COMPLETED
    assert state.reason == "the sweep has taken the 60 s that it was allowed; 2 of 5 runs had begun"
    assert trials_of(folder, world.store)[0].status is Status.CANCELED


def test_a_sweep_fails_when_all_its_children_fail(world: World) -> None:
    """The error has the words of the first."""
    world.fails = {0, 1}
    state = world.run_to_end(world.sweep(world.submit(terms_of(2, 1))))
    assert state.error is not None
    assert (state.status, "ValueError: no" in state.error.message) == (Status.FAILED, True)


def test_a_warm_start_compares_with_children_of_before(world: World) -> None:
    """A child worse than a run of the earlier sweep is ended, and the best run may be of that sweep."""
    world.logs = {0: [0.9]}
    first = world.submit(terms_of(1, 1))
    world.run_to_end(world.sweep(first))
    world.logs = {0: [0.1, 0.1]}
    second = world.submit(terms_of(1, 1, Bandit(slack_factor=0.5), warm_start=[first.id]))
    world.run_to_end(world.sweep(second))
    (trial,) = trials_of(second, world.store)
    assert trial.status is Status.CANCELED
    assert [one.id for one in trials_of(second, world.store, with_earlier=True)] == [
        f"{first.id}_0",
        trial.id,
    ]


def test_a_child_goes_on_in_another_sweep(world: World) -> None:
    """With the parameters that it had, and its outputs to begin with."""
    first = world.submit(terms_of(2, 1))
    world.run_to_end(world.sweep(first))
    again = continued_children([f"{first.id}_1"], world.store)
    assert again == [ContinuedChild(f"{first.id}_1", terms_of(2, 1).parameters(1))]
    second = world.submit(terms_of(2, 2, again=again))
    world.run_to_end(world.sweep(second))
    definitions = [world.store.get(f"{second.id}_{number}").record().definition for number in range(2)]
    assert [one.resume_from for one in definitions] == [f"{first.id}_1", ""]
    assert definitions[0].arguments == world.store.get(f"{first.id}_1").record().definition.arguments


def test_only_children_that_have_ended_go_on(world: World) -> None:
    """A run of its own, or one that goes on, is refused; a run is no sweep."""
    folder = world.submit(terms_of(1, 1))
    world.sweep(folder).step()
    with pytest.raises(SubmissionRefused, match="only what has ended"):
        continued_children([f"{folder.id}_0"], world.store)
    with pytest.raises(SubmissionRefused, match="no child of a sweep; 'stoker submit --resume RUN'"):
        continued_children([folder.id], world.store)
    with pytest.raises(UnknownRun, match="no sweep"):
        definition_of(world.store.get(f"{folder.id}_0").record())


def test_a_full_disk_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that failed is repeated; no child begins twice."""
    folder = world.submit(terms_of(2, 1))
    sweep = world.sweep(folder)
    create, failures = world.store.create, [OSError(28, "No space left on device")]

    def sometimes(*arguments: object) -> RunFolder:
        if failures:
            raise failures.pop()
        return create(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(world.store, "create", sometimes)
    monkeypatch.setattr(world.clock, "sleep", lambda _: world.read())
    assert sweep.run().status is Status.COMPLETED
    assert world.begun == [f"{folder.id}_0", f"{folder.id}_1"]


@settings(max_examples=30, deadline=None)
@given(st.integers())
def test_a_sweep_survives_its_runner(seed: int) -> None:
    """Killed at any moments, before or after a child has its runner: each child begins once, and all end."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        folder = world.submit(terms_of(6, 2))
        begin = world.begin

        def killed_at_times(child: RunFolder) -> None:
            before = chance.random()
            if before < 0.2:
                raise Killed
            begin(child)
            if before > 0.8:
                raise Killed

        world.begin = killed_at_times  # type: ignore[method-assign]
        for _ in range(100):
            try:
                state = world.run_to_end(world.sweep(folder))
            except Killed:
                continue
            break
        assert state.status is Status.COMPLETED
        assert sorted(world.begun) == [f"{folder.id}_{number}" for number in range(6)]
        assert world.most <= 2
