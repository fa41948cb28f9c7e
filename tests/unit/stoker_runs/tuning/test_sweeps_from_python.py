"""`stoker_runs.tune`, without a process."""

import math
from pathlib import Path

import pytest
from tests.unit.stoker_runs.tuning.test_sweep import World

import stoker_runs
from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_runs import sweeps
from stoker_runs.records.folder import RunFolder
from stoker_runs.tuning import policies
from stoker_runs.tuning.children import definition_of
from stoker_runs.tuning.policies import Bandit


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.chdir(tmp_path)
    submit = sweeps.submit_sweep
    monkeypatch.setattr(sweeps, "submit_sweep", lambda *given: submit(*given, spawn=lambda *_: None))
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


def test_a_sweep_from_python_has_the_terms_of_its_keywords() -> None:
    """Keywords of the sweep are in its terms, keywords of each run in its definition."""
    sweep = stoker_runs.tune(
        "train.py",
        {"--rate": stoker_runs.loguniform(1e-4, 1e-1), "--units": stoker_runs.choice(16, 32)},
        metric="acc",
        goal="maximize",
        runs=3,
        at_once=2,
        policy=stoker_runs.Bandit(slack_factor=0.5),
        seed=7,
        max_total_duration="2h",
        args=["--epochs", 6],
        experiment="digits",
        max_duration="1m",
    )
    record = RunFolder(stoker_runs.get_run(sweep.id).folder).record()
    terms = definition_of(record)
    assert record.definition.arguments == ("--epochs", "6")
    assert (record.experiment, record.definition.max_duration_s) == ("digits", 60)
    assert terms.sampler.space["--rate"].arguments == (math.log(1e-4), math.log(1e-1))
    assert (terms.sampler.seed, terms.max_duration_s, terms.policy) == (7, 7200, Bandit(slack_factor=0.5))
    assert (sweep.best, sweep.best_parameters, sweep.trials) == (None, None, [])
    world = World(Workspace.find(None).root)
    world.logs = {0: [0.2], 1: [0.9], 2: [0.3]}
    world.run_to_end(world.sweep(RunFolder(sweep.folder)))
    assert sweep.best is not None
    assert (sweep.best.id, sweep.best.metrics) == (f"{sweep.id}_1", {"acc": 0.9})
    assert sweep.best_parameters == terms.parameters(1)
    assert [trial.best for trial in sweep.trials] == [0.9, 0.3, 0.2]


def test_each_expression_and_policy_has_a_function() -> None:
    """Functions have Azure's names, with bounds in the place of its exponents."""
    made = [
        stoker_runs.randint(3),
        stoker_runs.uniform(0, 1),
        stoker_runs.quniform(0, 1, 0.1),
        stoker_runs.qloguniform(1, 9, 1),
    ]
    made += [
        stoker_runs.normal(0, 1),
        stoker_runs.qnormal(0, 1, 1),
        stoker_runs.lognormal(0, 1),
        stoker_runs.qlognormal(0, 1, 1),
    ]
    kinds = "randint uniform quniform qloguniform normal qnormal lognormal qlognormal"
    assert [one.kind for one in made] == kinds.split()
    assert stoker_runs.TruncationSelection(25) == policies.TruncationSelection(25)
    assert stoker_runs.MedianStopping() == policies.MedianStopping()
    assert stoker_runs.Hyperband(9) == policies.Hyperband(9)


def test_a_sweep_that_cannot_be_is_refused() -> None:
    """Before anything is written."""
    with pytest.raises(InvalidSettings, match="bayesian sampling chooses between bounds"):
        stoker_runs.tune(
            "train.py",
            {"--a": stoker_runs.normal(0, 1)},
            metric="acc",
            goal="maximize",
            runs=1,
            sampling="bayesian",
        )
    assert not Workspace.find(None).runs_dir.exists()
