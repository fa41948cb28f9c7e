"""`stoker tune`, and what `stoker runs` shows of sweeps, without a process."""

import json
from pathlib import Path

import pytest
from tests.unit.stoker_runs.tuning.test_sweep import World, terms_of

from stoker.cli import main
from stoker.settings.workspace import Workspace
from stoker_runs.commands import run_output, sweep_output
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.states import Status
from stoker_runs.tuning.children import Trial, trials_of
from stoker_runs.tuning.policies import Bandit

SWEEP = """
script: train.py
parameters:
  --rate: {uniform: [0, 1]}
  --units: [16, 32]
metric: acc
goal: maximize
runs: 3
seed: 1
policy: {bandit: {slack_factor: 0.1}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "sweep.yaml").write_text(SWEEP)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def sweep(project: Path) -> RunFolder:
    """A sweep of three runs that has ended; the second one is the best."""
    world = World(Workspace.find(None).create().root)
    world.logs = {0: [0.5], 1: [0.7, 0.9], 2: [0.1]}
    folder = world.submit(terms_of(3, 2, Bandit(slack_factor=0.5)))
    world.run_to_end(world.sweep(folder))
    return folder


def test_a_dry_run_prints_the_plan_and_the_first_parameters(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan of one run, the terms of the sweep, and the parameters of its first runs; nothing is written."""
    assert main(["tune", "sweep.yaml", "--dry-run", "--experiment", "e"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "experiment   e"
    assert "sweep        3 runs, at most 3 at once, random sampling, seed 1" in lines
    assert "             maximize acc; Bandit(slack_factor=0.1, evaluation_interval=1)" in lines
    assert "parameter    --units: choice(16, 32)" in lines
    assert sum(line.startswith("run ") and "--rate 0." in line for line in lines) == 3
    assert not (Workspace.find(None).runs_dir).exists()


def test_a_dry_run_shows_the_values_that_the_named_command_runs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a seed each preview draws other values, and says how to get these; bounds are shown as written."""
    text = SWEEP.replace("seed: 1\n", "").replace("uniform: [0, 1]", "loguniform: [0.0001, 0.1]")
    (project / "sweep.yaml").write_text(text)
    assert main(["tune", "sweep.yaml", "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "parameter    --rate: loguniform(0.0001, 0.1)" in shown
    start, _, command = shown[-1].partition(": stoker ")
    assert start == "to run these values"

    assert main([*command.split(), "--dry-run"]) == 0
    again = capsys.readouterr().out.splitlines()
    values = [line for line in shown if line.startswith("run ")]
    assert len(values) == 3
    assert [line for line in again if line.startswith("run ")] == values
    assert not again[-1].startswith("to run")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["sweep.yaml", "--target", "gpu"], "gpu"),
        (["none.yaml"], "there is no file none.yaml"),
    ],
)
def test_a_refusal_leaves_nothing(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    """Exit status 2, and a sentence."""
    assert main(["tune", *words]) == 2
    assert complaint in capsys.readouterr().err
    assert not (Workspace.find(None).runs_dir).exists()


def test_an_invalid_key_of_the_runs_is_named_with_its_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the script as of the sweep, with the file."""
    (project / "sweep.yaml").write_text(SWEEP + "gpus: many\n")
    assert main(["tune", "sweep.yaml"]) == 2
    assert "sweep.yaml: gpus must be a whole number" in capsys.readouterr().err


def test_a_sweep_is_begun_and_left(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a run with children, with the requested settings."""
    begun: list[RunFolder] = []
    monkeypatch.setattr("stoker_runs.launch.runners.fork_runner", lambda folder, _: begun.append(folder))
    assert main(["tune", "sweep.yaml", "--detach"]) == 0
    (folder,) = begun
    assert capsys.readouterr().out == f"{folder.id}\n"
    record = folder.record()
    assert (record.kind, record.definition.script, record.sweep["metric"]) == ("sweep", "train.py", "acc")


def test_a_sweep_shows_its_runs_with_the_best_first(
    sweep: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table and as JSON; @latest and a beginning of its id mean it, and none of its runs."""
    assert main(["runs", "children", "@latest"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["RUN", "STATUS", "ACC", "VALUES", "n", "rate"]
    assert [row.split()[:3] for row in rows] == [
        [f"{sweep.id}_1", "Completed", "0.9"],
        [f"{sweep.id}_0", "Completed", "0.5"],
        [f"{sweep.id}_2", "Canceled", "0.1"],
    ]
    assert main(["runs", "children", sweep.id[:-2], "--json"]) == 0
    assert [one["best"] for one in json.loads(capsys.readouterr().out)] == [0.9, 0.5, 0.1]
    assert main(["runs", "show", sweep.id]) == 0
    shown = capsys.readouterr().out
    assert "[####################] 3 of 3 ended (1 Canceled, 2 Completed); best acc 0.9" in shown
    assert (
        "maximize acc, random sampling with seed 5, Bandit(slack_factor=0.5, evaluation_interval=1)" in shown
    )
    assert main(["runs", "show", sweep.id, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["best"], len(content["children"])) == (f"{sweep.id}_1", 3)


def test_a_sweep_alone_is_compared_by_its_best_runs(
    sweep: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best is in the first column, with its parameters."""
    assert main(["runs", "compare", sweep.id]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [f"{sweep.id}_{number}" for number in (1, 0, 2)]
    assert any(line.split()[:2] == ["parameter", "--rate"] for line in lines)


def test_a_sweep_is_deleted_with_its_runs(sweep: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """They would name a parent that is gone; one that is named besides is deleted once."""
    assert main(["runs", "delete", sweep.id, f"{sweep.id}_1"]) == 0
    deleted = [f"{sweep.id}_0", f"{sweep.id}_1", f"{sweep.id}_2", sweep.id]
    assert capsys.readouterr().out == "".join(f"{run} is deleted\n" for run in deleted)
    assert not any(sweep.path.parent.glob(f"{sweep.id}*"))


def test_a_run_of_a_sweep_has_no_children_of_its_own(
    sweep: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless its script begins some: a line says so."""
    assert main(["runs", "children", f"{sweep.id}_0"]) == 0
    assert f"the script of {sweep.id}_0 has begun no child runs" in capsys.readouterr().err


def trial(number: int, status: Status, best: float | None) -> Trial:
    return Trial(number, f"e_1_00000000_{number}", {"--rate": 0.5}, status, "", best, 1)


def test_progress_counts_trials_by_status() -> None:
    """One line sums up the sweep."""
    trials = [trial(0, Status.COMPLETED, 0.9), trial(1, Status.RUNNING, 0.4), trial(2, Status.QUEUED, None)]
    assert sweep_output.progress_line(terms_of(10, 2), trials) == (
        "[##..................] 1 of 10 ended (1 Completed, 1 Queued, 1 Running); best acc 0.9"
    )
    assert sweep_output.progress_line(terms_of(10, 2), []) == (
        "[....................] 0 of 10 ended (none yet)"
    )


def test_a_followed_sweep_ends_with_its_best_runs(
    sweep: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """They follow the output of the sweep."""
    assert sweep_output.follow_sweep(sweep, Workspace.find(None)) == 0
    plain = capsys.readouterr()
    assert "3 runs, at most 2 at once" in plain.out
    assert plain.out.splitlines()[-3].startswith(f"{sweep.id}_1")
    assert plain.err.endswith(f"the best is {sweep.id}_1: stoker runs show {sweep.id}_1\n")


def test_ctrl_c_leaves_a_sweep_to_itself(
    sweep: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run of `stoker submit`: exit status 130, and how to follow it again."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    sweep.write_state(type(sweep.state())(status=Status.RUNNING))
    monkeypatch.setattr("stoker_runs.launch.following.follow", interrupted)
    assert sweep_output.follow_sweep(sweep, Workspace.find(None)) == run_output.DETACHED
    assert f"{sweep.id} goes on" in capsys.readouterr().err
    assert trials_of(sweep, World(Workspace.find(None).root).store)
