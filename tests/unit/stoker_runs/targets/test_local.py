"""The engine of this machine: what runs get whose environment cannot be had."""

from pathlib import Path
from shutil import rmtree

import pytest

from stoker.models.mirrors import mirrors_dir
from stoker.settings.workspace import Workspace
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.snapshots import SnapshotStore, data_digests, data_seen
from stoker_runs.records.states import RunState
from stoker_runs.records.store import RunStore
from stoker_runs.targets import local
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import EngineFailure, Job
from stoker_runs.targets.local import LocalEngine, check_fetched_data, collect, remove_work


@pytest.mark.parametrize(
    ("requested", "message", "hint"),
    [
        (
            RequestedEnvironment(python="/nope"),
            "there is no interpreter /nope",
            "name another interpreter (--python, or pythonLocation of a .compute file), or none for that of Stoker",
        ),
        (
            RequestedEnvironment("exact", file="gone.txt"),
            "gone.txt does not exist",
            "change the environment file, name a date with --as-of at which its packages fitted together, or take "
            "today's versions with --environment relaxed",
        ),
    ],
)
def test_the_hint_names_the_missing_interpreter_or_the_environment_file(
    tmp_path: Path, requested: RequestedEnvironment, message: str, hint: str
) -> None:
    """An interpreter that was named is not mended in an environment file, and the other way round."""
    workspace = Workspace(tmp_path / "workspace").create()
    record = RunRecord("e_1_0a1b2c3d", "e", 1, Definition("train.py", environment=requested.to_json()))
    folder = RunStore(workspace.runs_dir).create(record, RunState())
    job = Job(folder, record, 1, workspace.snapshots_dir)
    with pytest.raises(EngineFailure) as caught:
        LocalEngine(Target("local", "local", {}), workspace).prepare(job, lambda _: None)
    failure = caught.value.failure
    assert (failure.code, failure.message.endswith(message), failure.hint) == (
        "EnvironmentUnusable",
        True,
        hint,
    )


def test_fetched_data_that_has_changed_stops_the_run(tmp_path: Path) -> None:
    """A fetch for another run replaces it; data of the user's own may change."""
    workspace = Workspace(tmp_path / "workspace").create()
    fetched, own = mirrors_dir(workspace) / "k" / "files" / "digits", tmp_path / "own"
    for folder in (fetched, own):
        folder.mkdir(parents=True)
        (folder / "a").write_text("before")
    inputs = {"own": str(own), "digits": str(fetched)}
    data = data_digests(inputs, data_seen(workspace.snapshots_dir))
    record = RunRecord("e_1_0a1b2c3d", "e", 1, Definition("train.py", inputs=inputs), data=data)
    job = Job(RunStore(workspace.runs_dir).create(record, RunState()), record, 1, workspace.snapshots_dir)
    (own / "a").write_text("now")
    check_fetched_data(job, workspace)
    for change in (lambda: (fetched / "a").write_text("now"), lambda: rmtree(fetched)):
        change()
        with pytest.raises(EngineFailure) as caught:
            LocalEngine(Target("local", "local", {}), workspace).prepare(job, lambda _: None)
        assert caught.value.failure.code == "InputChanged"


def test_collected_files_are_only_the_script_s_own(tmp_path: Path) -> None:
    """Links that a script leaves in the place of its folders are not followed."""
    (tmp_path / "home" / "outputs").mkdir(parents=True)
    (tmp_path / "home" / "outputs" / "own").touch()
    record = RunRecord("e_1_0a1b2c3d", "e", 1, Definition("train.py"))
    folder = RunStore(tmp_path / "runs").create(record, RunState())
    job = Job(folder, record, 1, tmp_path / "snapshots")
    job.place.mkdir(parents=True)
    (job.place / "work").symlink_to(tmp_path / "home")
    collect(job)
    remove_work(job)
    assert (tmp_path / "home" / "outputs" / "own").is_file()
    assert list(job.place.iterdir()) == []


@pytest.mark.parametrize(("gpus", "lines"), [(1, 1), (0, 0)])
def test_a_framework_that_will_use_no_gpu_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, lines: int
) -> None:
    """Before the script is started, where its run holds one."""
    workspace = Workspace(tmp_path / "workspace").create()
    source = tmp_path / "source"
    source.mkdir()
    digest = SnapshotStore(workspace.snapshots_dir).take(source).digest
    record = RunRecord("e_1_0a1b2c3d", "e", 1, Definition("train.py", gpus=gpus), snapshot=digest)
    folder = RunStore(workspace.runs_dir).create(record, RunState())
    job = Job(folder, record, 1, workspace.snapshots_dir)
    built = RunEnvironment(Path("/py"), {}, {"torch": "2.9.0+cpu"})
    monkeypatch.setattr(local, "use_interpreter", lambda *_: built)
    notes: list[str] = []
    LocalEngine(Target("local", "local", {}), workspace).prepare(job, notes.append)
    assert len(notes) == lines
    assert all("torch 2.9.0+cpu will not use" in line for line in notes)
