"""`azureml.train.hyperdrive`, without a process: requests, and results of a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stoker_runs.tuning.test_sweep import World

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core import Experiment, Run, ScriptRunConfig, Workspace  # isort: skip
from azureml.exceptions import ExperimentExecutionException, UserErrorException
from azureml.train.hyperdrive import (
    BanditPolicy,
    BayesianParameterSampling,
    GridParameterSampling,
    HyperDriveConfig,
    HyperDriveRun,
    MedianStoppingPolicy,
    NoTerminationPolicy,
    PrimaryMetricGoal,
    RandomParameterSampling,
    TruncationSelectionPolicy,
    choice,
    lognormal,
    loguniform,
    normal,
    qlognormal,
    qloguniform,
    qnormal,
    quniform,
    randint,
    uniform,
)
from azureml.train.hyperdrive.parameter_expressions import choice as choice_of_before
from azureml.train.hyperdrive.policy import BanditPolicy as BanditPolicyOfBefore

from stoker_azure.exceptions import NotOffered
from stoker_runs.tuning import children
from stoker_runs.tuning.children import definition_of
from stoker_runs.tuning.definition import expression
from stoker_runs.tuning.policies import Bandit, Goal, MedianStopping, NoTermination, TruncationSelection

SPACE = {"--batch-size": choice(32, 64), "--rate": loguniform(-6, -1)}


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print('hello')")

    def fail_to_spawn(*_: object) -> None:
        return

    spawning = children.submit

    def submit(*given: Any, **named: Any) -> Any:
        return spawning(*given, **{**named, "spawn": fail_to_spawn})

    monkeypatch.setattr(children, "submit", submit)
    return Workspace.from_config()


def config(**more: Any) -> HyperDriveConfig:
    definition: dict[str, Any] = {
        "hyperparameter_sampling": RandomParameterSampling(SPACE),
        "primary_metric_name": "acc",
        "primary_metric_goal": PrimaryMetricGoal.MAXIMIZE,
        "max_total_runs": 3,
        "max_concurrent_runs": 2,
        "run_config": ScriptRunConfig("src", "train.py", ["--epochs", 6]),
    }
    return HyperDriveConfig(**{**definition, **more})


def end_sweep(ws: Workspace, run: HyperDriveRun, logs: dict[int, list[float]]) -> HyperDriveRun:
    """A run whose sweep has come to its end by a puppet."""
    world = World(ws.local.root)
    world.logs = logs
    world.run_to_end(world.sweep(run.folder))
    return run


def test_a_configuration_becomes_a_sweep(ws: Workspace) -> None:
    """Its script with its arguments, the space in Azure's exponents, the policy, and Azure's week as a limit."""
    run = Experiment(ws, "e").submit(config(policy=BanditPolicy(evaluation_interval=2, slack_factor=0.1)))
    assert isinstance(run, HyperDriveRun)
    record = run.folder.record()
    definition = definition_of(record)
    assert record.definition.arguments == ("--epochs", "6")
    assert definition.sampler.space["--rate"] == expression("loguniform", -6, -1)
    assert definition.policy == Bandit(slack_factor=0.1, evaluation_interval=2)
    assert (definition.goal, definition.metric, definition.max_runs, definition.at_once) == (
        Goal.MAXIMIZE,
        "acc",
        3,
        2,
    )
    assert definition.max_duration_s == 7 * 86_400
    assert isinstance(Run.get(ws, run.id), HyperDriveRun)


def test_the_best_run_is_found(ws: Workspace) -> None:
    """Its best logged value counts, with or without canceled runs; none if no run has logged one."""
    run = Experiment(ws, "e").submit(config(policy=BanditPolicy(slack_factor=0.5)))
    end_sweep(ws, run, {0: [0.4, 0.8, 0.2], 1: [0.5], 2: [0.1, 0.1]})
    best = run.get_best_run_by_primary_metric()
    assert best is not None
    assert (best.id, best.get_metrics(), best.parent.id) == (f"{run.id}_0", {"acc": [0.4, 0.8, 0.2]}, run.id)
    children = run.get_children_sorted_by_primary_metric()
    assert [(one["run_id"], one["best_primary_metric"], one["status"]) for one in children] == [
        (f"{run.id}_0", 0.8, "Completed"),
        (f"{run.id}_1", 0.5, "Completed"),
        (f"{run.id}_2", 0.1, "Canceled"),
    ]
    assert json.loads(children[0]["hyperparameters"]) == json.loads(run.get_hyperparameters()[best.id])
    assert [one["best_primary_metric"] for one in run.get_children_sorted_by_primary_metric(2, True)] == [
        0.1,
        0.5,
    ]
    assert sorted(run.get_metrics()) == [f"{run.id}_{number}" for number in range(3)]
    assert {child.id for child in run.get_children(status="Canceled")} == {f"{run.id}_2"}
    assert [found.id for found in Experiment(ws, "e").get_runs()] == [run.id]


def test_unlogged_metric_has_no_best_run(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """None, and a line names the metric and those that there are."""
    run = end_sweep(ws, Experiment(ws, "e").submit(config()), {0: [], 1: [], 2: []})
    assert run.get_status() == "Completed"
    assert run.get_best_run_by_primary_metric() is None
    assert capsys.readouterr().out == "No run has logged the metric acc; they have logged: none\n"
    assert len(run.get_children_sorted_by_primary_metric()) == 3
    assert run.get_children_sorted_by_primary_metric(discard_no_metric=True) == []


def test_children_that_are_left_out_are_not_the_best(ws: Workspace) -> None:
    """A canceled one may be the best, unless it is not wanted."""
    policy = TruncationSelectionPolicy(truncation_percentage=50)
    run = Experiment(ws, "e").submit(config(policy=policy, primary_metric_goal=PrimaryMetricGoal.MINIMIZE))
    end_sweep(ws, run, {0: [0.4, 0.3], 1: [0.5, 0.1], 2: [0.9]})
    best = run.get_best_run_by_primary_metric(include_canceled=False)
    assert best is not None
    assert best.get_status() == "Completed"


def test_earlier_runs_are_compared_with_and_go_on(ws: Workspace) -> None:
    """A warm start may have its best run before it; a child that goes on has its parameters and its outputs."""
    experiment = Experiment(ws, "e")
    first = end_sweep(ws, experiment.submit(config()), {0: [0.9], 1: [0.2], 2: [0.3]})
    warm = end_sweep(ws, experiment.submit(config(resume_from=[first])), {})
    best = warm.get_best_run_by_primary_metric()
    assert best is not None
    assert best.id == f"{first.id}_0"
    best = warm.get_best_run_by_primary_metric(include_resume_from_runs=False)
    assert best is not None
    assert best.id.startswith(warm.id)
    child = next(child for child in first.get_children() if child.id.endswith("_2"))
    again = end_sweep(ws, experiment.submit(config(resume_child_runs=[child])), {})
    definition = Run.get(ws, f"{again.id}_0").folder.record().definition
    assert (definition.resume_from, definition.arguments) == (
        child.id,
        child.folder.record().definition.arguments,
    )


def test_all_expressions_policies_and_goals_are_there() -> None:
    """With Azure's arguments, by Azure's names, and in the modules of before."""
    made = [randint(3), uniform(0, 1), quniform(0, 1, 0.1), loguniform(0, 1), qloguniform(0, 1, 1)]
    made += [normal(0, 1), qnormal(0, 1, 1), lognormal(0, 1), qlognormal(0, 1, 1), choice(range(2))]
    kinds = "randint uniform quniform loguniform qloguniform normal qnormal lognormal qlognormal choice"
    assert [one.kind for one in made] == kinds.split()
    assert GridParameterSampling({"--a": choice(1, 2)}).parameter_space == {"--a": expression("choice", 1, 2)}
    assert MedianStoppingPolicy(2, 4).policy == MedianStopping(2, 4)
    assert TruncationSelectionPolicy(20, 2, 4, True).policy == TruncationSelection(20, 2, 4, True)
    assert NoTerminationPolicy().policy == NoTermination()
    bayesian = BayesianParameterSampling({"--rate": uniform(0, 1)})
    assert bayesian.parameter_space == {"--rate": expression("uniform", 0, 1)}
    assert PrimaryMetricGoal.from_str("maximize") is PrimaryMetricGoal.MAXIMIZE
    assert (choice_of_before, BanditPolicyOfBefore) == (choice, BanditPolicy)


def test_impossible_sweep_is_refused_with_azures_exception(ws: Workspace) -> None:
    """Where it is written, or at the submission."""
    with pytest.raises(UserErrorException, match="bayesian sampling chooses between bounds"):
        BayesianParameterSampling({"--noise": normal(0, 1)})
    with pytest.raises(UserErrorException, match="a grid has every combination"):
        GridParameterSampling(SPACE)
    with pytest.raises(UserErrorException, match="either slack_factor or slack_amount"):
        BanditPolicy()
    with pytest.raises(UserErrorException, match="lower bound"):
        uniform(1, 0)
    with pytest.raises(UserErrorException, match="run_config=ScriptRunConfig"):
        config(run_config=None)
    with pytest.raises(NotOffered, match="a pipeline cannot be tuned"):
        config(pipeline=object())
    with pytest.raises(UserErrorException, match="the number of runs has to be"):
        Experiment(ws, "e").submit(config(max_total_runs=0))
    with pytest.raises(ExperimentExecutionException, match="there is no script"):
        Experiment(ws, "e").submit(config(run_config=ScriptRunConfig("src", "trian.py")))
