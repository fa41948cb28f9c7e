"""Bayesian sampling: proposals, results, and the same values after a killed sweep."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.stoker_runs.tuning.test_sweep import Killed, World

from stoker_runs.errors import UnknownRun
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import RunRecord
from stoker_runs.records.states import Status
from stoker_runs.tuning.children import Trial, continued_children, trials_of
from stoker_runs.tuning.definition import SweepDefinition, Value, define_sweep, expression, sampler
from stoker_runs.tuning.proposals import propose_parameters, study_of

optuna = pytest.importorskip("optuna", reason="needs Optuna")
SPACE = {
    "--units": expression("choice", 16, "auto", True, 1),
    "--depth": expression("randint", 5),
    "--dropout": expression("uniform", 0, 1),
    "--rate": expression("loguniform", -9, -1),
    "--width": expression("quniform", 0.3, 9.7, 0.5),
    "--decay": expression("qloguniform", -2, 3, 0.5),
}


def bayesian(runs: int = 30, at_once: int = 1, goal: str = "minimize", **more: object) -> SweepDefinition:
    space = {"--x": expression("uniform", -5, 5)} if not more.get("space") else more.pop("space")
    return define_sweep(sampler("bayesian", space, 3), "acc", goal, runs, at_once, **more)  # type: ignore[arg-type]


def trial(
    number: int, parameters: dict[str, Value], best: float | None, status: Status = Status.COMPLETED
) -> Trial:
    return Trial(number, f"e_{number}", parameters, status, "", best, 1)


def test_values_near_the_best_are_tried_more_often() -> None:
    """Of the parabola around 2, the last ten of thirty are nearer than half of what random ones are, 2.9."""
    terms, trials = bayesian(), []
    for number in range(30):
        parameters = propose_parameters(terms, number, trials)
        trials.append(trial(number, parameters, (float(parameters["--x"]) - 2) ** 2))
    distances = [abs(float(one.parameters["--x"]) - 2) for one in trials[-10:]]
    assert sum(distances) / len(distances) < 1.45


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000))
def test_proposed_parameters_are_within_the_space(number: int) -> None:
    """Each expression gives values of its type and bounds, which Optuna accepts."""
    terms = bayesian(space=SPACE)
    parameters = propose_parameters(terms, number, [])
    assert parameters == propose_parameters(terms, number, [])
    assert parameters["--units"] in (16, "auto", True, 1)
    assert parameters["--depth"] in range(5)
    assert 0 <= float(parameters["--dropout"]) <= 1
    assert 1e-4 < float(parameters["--rate"]) < 0.37
    assert float(parameters["--width"]) * 2 == round(float(parameters["--width"]) * 2)
    assert len(study_of(terms, [trial(number, parameters, 0.5)]).trials) == 1


def test_optuna_gets_the_end_of_each_child() -> None:
    """One that runs, one without a value, one that was ended early; one of another space is left out."""
    terms = bayesian()
    trials = [
        trial(0, {"--x": 1.0}, 0.5),
        trial(1, {"--x": 1.0}, 0.5, Status.RUNNING),
        trial(2, {"--x": 1.0}, None, Status.FAILED),
        trial(3, {"--x": 1.0}, 0.7, Status.CANCELED),
        trial(4, {"--x": 9.0}, 0.1),
        trial(5, {"--y": 1.0}, 0.1),
        trial(6, {"--x": "one"}, 0.1),
    ]
    assert [one.state.name for one in study_of(terms, trials).trials] == [
        "COMPLETE",
        "RUNNING",
        "FAIL",
        "PRUNED",
    ]
    choices = bayesian(space={"--units": SPACE["--units"]})
    study = study_of(choices, [trial(0, {"--units": True}, 1.0), trial(1, {"--units": 1}, 1.0)])
    assert [one.params["--units"] for one in study.trials] == [2, 3]


class Parabola(World):
    """Runs that log the square of the distance to 2."""

    def read(self) -> None:
        for child in self.running:
            value = float(child.record().definition.arguments[-1])
            self.logs[int(child.id.rpartition("_")[2])] = [(value - 2) ** 2]
        super().read()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return Parabola(tmp_path)


def test_a_killed_bayesian_sweep_goes_on_from_the_values_of_its_children(
    world: World, tmp_path: Path
) -> None:
    """Each child once, with the values that an unbroken sweep has; its record and its list have them."""
    whole = world.submit(bayesian(9))
    assert world.run_to_end(world.sweep(whole)).status is Status.COMPLETED
    expected = sorted((one.number, one.parameters["--x"]) for one in trials_of(whole, world.store))

    world = Parabola(tmp_path / "killed")
    folder = world.submit(bayesian(9))
    begun = world.begin

    def kill(child: object) -> None:
        begun(child)  # type: ignore[arg-type]
        if len(world.begun) in (3, 6):
            raise Killed

    world.begin = kill  # type: ignore[method-assign,assignment]
    ended = False
    while not ended:
        try:
            ended = world.run_to_end(world.sweep(folder)).is_terminal
        except Killed:
            world.read()
    assert world.begun == [f"{folder.id}_{number}" for number in range(9)]
    assert sorted((one.number, one.parameters["--x"]) for one in trials_of(folder, world.store)) == expected
    child = world.store.get(world.begun[4]).record()
    assert child.definition.arguments[-2:] == ("--x", str(child.parameters["--x"]))


def test_a_warm_start_learns_from_earlier_runs_of_the_same_metric(world: World) -> None:
    """The first proposal after ten good runs is no longer a random one; a child may go on as it was."""
    first = world.submit(bayesian(12))
    world.run_to_end(world.sweep(first))
    again = continued_children([f"{first.id}_3"], world.store)
    second = world.submit(bayesian(2, warm_start=[first.id], again=again))
    world.run_to_end(world.sweep(second))
    cold = world.submit(bayesian(2, again=again))
    world.run_to_end(world.sweep(cold))
    of = {
        run.id: {one.number: one.parameters for one in trials_of(run, world.store)}
        for run in (first, second, cold)
    }
    assert of[second.id][0] == of[cold.id][0] == of[first.id][3]
    assert of[second.id][1] != of[cold.id][1]
    other = define_sweep(sampler("random", {"--x": expression("uniform", -5, 5)}, 1), "loss", "minimize", 2)
    unrelated = world.submit(other)
    world.run_to_end(world.sweep(unrelated))
    third = world.submit(bayesian(2, again=again, warm_start=[unrelated.id]))
    world.run_to_end(world.sweep(third))
    assert {one.number: one.parameters for one in trials_of(third, world.store)} == of[cold.id]


def test_a_child_that_is_deleted_during_a_look_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parameters stand in its record, which may go between two reads."""
    folder = world.submit(bayesian(2))
    world.run_to_end(world.sweep(folder))
    record = RunFolder.record

    def read_record(child: RunFolder) -> RunRecord:
        if child.id.endswith("_1"):
            raise UnknownRun("it is not there")
        return record(child)

    monkeypatch.setattr(RunFolder, "record", read_record)
    assert [one.number for one in trials_of(folder, world.store)] == [0]
