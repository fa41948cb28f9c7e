"""Submission: refusals before anything is written, and the settings of a run."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.errors import EnvironmentUnusable, InvalidSettings, OperatorError
from stoker.settings.workspace import Workspace
from stoker.system.durable import lock_file
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch import runners
from stoker_runs.launch.configuration import read_configuration, read_duration_s
from stoker_runs.launch.inputs import find_input
from stoker_runs.launch.runners import fork_runner, spawn_runner
from stoker_runs.launch.submission import Request, plan, resume, submit
from stoker_runs.records.comparing import compare_runs
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition
from stoker_runs.records.states import RunState, Status
from stoker_runs.targets.engine import Job, start_content

Spawned = list[RunFolder]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "workspace").create()
    workspace.targets_dir.mkdir()
    (workspace.targets_dir / "local.yaml").write_text("cores: 4\ngpus: ['0', '1']\n")
    return workspace


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., Request]:
    source = tmp_path / "digits"
    source.mkdir()
    (source / "train.py").write_text("print(1)\n")
    (source / "env.yml").write_text("dependencies: [python=3.11, {pip: [six==1.16.0]}]\n")

    def make(**changes: object) -> Request:
        fields = set(Definition.__struct_fields__) - {"environment"}
        definition = Definition(**{"script": "train.py", **{k: v for k, v in changes.items() if k in fields}})  # type: ignore[arg-type]
        request = Request(definition, source)
        return replace(request, **{k: v for k, v in changes.items() if k not in fields})  # type: ignore[arg-type]

    return make


def test_a_run_has_all_that_it_was_submitted_with(
    workspace: Workspace, request_of: Callable[..., Request]
) -> None:
    """Experiment by the folder, one GPU where there is any, the environment file as it was, the files."""
    spawned: Spawned = []
    request = replace(request_of(arguments=("--lr", "0.1")), environment="env.yml", tags={"a": "b"})
    folder, snapshot = submit(request, workspace, spawn=lambda one, _: spawned.append(one))
    assert spawned == [folder]
    record, state = folder.record(), folder.state()
    assert (record.experiment, record.definition.gpus, record.snapshot) == ("digits", 1, snapshot.digest)
    assert record.properties["ContentSnapshotId"] == snapshot.digest
    assert (state.status, folder.tags()) == (Status.NOT_STARTED, {"a": "b"})
    assert record.definition.environment == {"kind": "exact", "python": "", "as_of": "", "file": "asked.yml"}
    assert "six==1.16.0" in (folder.environment / "asked.yml").read_text()


@pytest.mark.parametrize(
    ("changes", "gpus", "notes"),
    [
        ({"nodes": 2}, 1, ["2 nodes on local, which is one machine: it runs all 2 processes"]),
        ({"processes_per_node": 2}, 2, []),
        ({"processes_per_node": 3}, 0, ["3 processes run without a GPU: local has 2, not one for each"]),
        ({"processes_per_node": 3, "gpus": 0}, 0, []),
    ],
)
def test_each_process_has_a_gpu_or_none_has(
    workspace: Workspace,
    request_of: Callable[..., Request],
    changes: dict[str, object],
    gpus: int,
    notes: list[str],
) -> None:
    """This is the default number; lines of the run name the consequences of its target."""
    folder, _ = submit(request_of(**changes), workspace, spawn=lambda *_: None)
    assert folder.record().definition.gpus == gpus
    assert [line for _, line in folder.notes()] == notes


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"script": "trian.py"}, SubmissionRefused, r"did you mean train\.py"),
        ({"script": "../secret.py"}, SubmissionRefused, "there is no script"),
        ({"target": "locl"}, InvalidSettings, "did you mean local"),
        ({"gpus": 8}, SubmissionRefused, "8 GPUs asked for, and this target has 2"),
        ({"cores": 5}, SubmissionRefused, "5 cores asked for, and this target has 4"),
        ({"gpus": 2, "nodes": 4}, SubmissionRefused, "8 GPUs asked for, and this target has 2"),
        ({"nodes": 0}, SubmissionRefused, "nodes: 0"),
        ({"nodes": 2, "parameter_servers": 2}, SubmissionRefused, "workers: 0"),
        ({"max_duration_s": 0}, SubmissionRefused, "--max-duration 2h"),
        ({"experiment": "a/b"}, InvalidSettings, "experiment name"),
        ({"experiment": "latest"}, InvalidSettings, "reserved"),
        ({"environment": "none.yml"}, EnvironmentUnusable, "does not exist"),
        ({"as_of": "May 2021", "environment": "env.yml"}, SubmissionRefused, "2021-05-01"),
        ({"limit_bytes": 10}, SubmissionRefused, r"\.amlignore"),
        ({"resume_from": "digits_1_0a1b2c3d"}, OperatorError, "there is no run"),
        ({"source": Path("/nonexistent")}, SubmissionRefused, "does not exist"),
        ({"inputs": {"x": "/nonexistent"}}, SubmissionRefused, "there is nothing in /nonexistent"),
    ],
)
def test_impossible_request_is_refused_and_creates_no_run(
    workspace: Workspace,
    request_of: Callable[..., Request],
    changes: dict[str, object],
    error: type[Exception],
    reason: str,
) -> None:
    """The error has the nearest name, or both numbers; no runner is started."""
    with pytest.raises(error, match=reason):
        submit(request_of(**changes), workspace, spawn=lambda *_: pytest.fail("a runner was started"))
    assert not workspace.runs_dir.exists()


def test_a_registered_environment_is_taken_by_its_name(
    workspace: Workspace, request_of: Callable[..., Request]
) -> None:
    """The run requests its packages, the script has its variables; the error of another name lists these."""
    folder = workspace.azure_dir / "environments"
    folder.mkdir(parents=True)
    conda = {"dependencies": ["python=3.11", {"pip": ["six==1.16.0"]}]}
    first = {"python": {"condaDependencies": conda}, "environmentVariables": {"A": "1"}}
    second = {"python": {"userManagedDependencies": True, "interpreterPath": "/opt/python"}}
    (folder / "waste-env.json").write_text(json.dumps([first, second]))

    def submitted(name: str) -> RunFolder:
        return submit(request_of(environment=name), workspace, spawn=lambda *_: None)[0]

    run = submitted("waste-env:1")
    assert "six==1.16.0" in (run.environment / "asked.yml").read_text()
    definition = run.record().definition
    assert (definition.environment["kind"], definition.variables) == ("exact", {"A": "1"})
    assert submitted("waste-env").record().definition.environment["python"] == "/opt/python"
    for name, words in (
        ("AzureML-TensorFlow-2.3-GPU", "environment of Microsoft.*registered are: waste-env"),
        ("wast-env", "did you mean waste-env"),
        ("waste-env:3", "no version 3"),
    ):
        with pytest.raises(EnvironmentUnusable, match=words):
            submitted(name)


def test_runs_with_changed_data_differ_in_that_input(
    workspace: Workspace, request_of: Callable[..., Request], tmp_path: Path
) -> None:
    """Two runs with the same path, of which the second has read other data, differ in that."""
    data = tmp_path / "data"
    data.mkdir()
    folders = []
    request = request_of(inputs={"digits": str(data)}, arguments=("$AZUREML_DATAREFERENCE_digits/x",))
    for text in ("a", "a", "b"):
        (data / "x").write_text(text)
        folders.append(submit(request, workspace, spawn=lambda *_: None)[0])
    assert compare_runs(folders[:2], workspace.snapshots_dir) == []
    (found,) = compare_runs(folders, workspace.snapshots_dir)
    assert (found.group, found.name) == ("data", "digits")
    content = start_content(Job(folders[0], folders[0].record(), 1, tmp_path), ["python"], tmp_path)
    assert content["command"][-1] == f"{data}/x"
    assert content["inputs"] == {"digits": str(data)}


def test_a_run_that_has_ended_is_resumed(workspace: Workspace, request_of: Callable[..., Request]) -> None:
    """A further attempt, the cancel forgotten; a run that goes on, or is completed, is not resumed."""
    spawned: Spawned = []
    folder, _ = submit(request_of(), workspace, spawn=lambda one, _: spawned.append(one))
    with pytest.raises(SubmissionRefused, match="only what has ended"):
        resume(folder, workspace)
    folder.request_cancel("x", 1)
    folder.write_state(RunState(Status.CANCELED, ended_ms=1))
    state = resume(folder, workspace, spawn=lambda one, _: spawned.append(one))
    assert (state.attempt, state.status, folder.cancel_request()) == (2, Status.QUEUED, None)
    assert spawned == [folder, folder]
    folder.write_state(RunState(Status.COMPLETED, ended_ms=1))
    with pytest.raises(SubmissionRefused, match="Completed cannot be resumed"):
        resume(folder, workspace)


def test_a_configuration_is_read_with_the_nearest_key(tmp_path: Path) -> None:
    """Values are read; an unknown key, at the top or below, is refused with the nearest one."""
    file = tmp_path / "gpu.yaml"
    file.write_text(
        "script: train.py\nmax_duration: 2h\narguments: [--lr, 0.1]\nenvironment: {file: env.yml}\n"
    )
    content = read_configuration(tmp_path / "gpu")
    assert content["max_duration"] == 7200
    assert content["arguments"] == ("--lr", "0.1")
    assert content["environment"] == {"file": str(tmp_path / "env.yml")}
    for text, reason in (
        ("argumnets: []", "did you mean arguments"),
        ("environment: {fil: x}", r"environment has no 'fil'; did you mean file"),
        ("nodes: many", "nodes must be a whole number"),
        ("max_duration: -1", "max_duration must be a duration"),
        ("arguments: x", "arguments must be a list"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidSettings, match=reason):
            read_configuration(file)
    with pytest.raises(InvalidSettings, match="there is no run configuration"):
        read_configuration(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), (1.5, 1.5), ("90s", 90), ("30M", 1800), ("1.5d", 129600)]
)
def test_durations_have_units(text: object, seconds: float) -> None:
    """Seconds where none is named."""
    assert read_duration_s(text) == seconds


@pytest.mark.parametrize("container", [{"image": "lab/train:1"}, {"optional": True}])
def test_a_run_that_asks_for_a_container_is_in_one(
    workspace: Workspace, request_of: Callable[..., Request], container: dict[str, object]
) -> None:
    """On this machine and on others, though their targets have none of their own."""
    workspace.targets_dir.mkdir(parents=True, exist_ok=True)
    (workspace.targets_dir / "box.yaml").write_text("type: ssh\naddress: host.lab\n")
    for name, kind in (("local", "docker"), ("box", "ssh")):
        planned = plan(
            request_of(definition=Definition("train.py", target=name, container=container)), workspace
        )
        assert (planned.target.type, planned.target.has_containers) == (kind, True)
        assert planned.definition.container == container
        plain = plan(request_of(definition=Definition("train.py", target=name)), workspace)
        assert not plain.target.has_containers


_RUNNER = """
import sys
from stoker_runs.launch.runners import read_arguments

def main(arguments):
    folder, _ = read_arguments(arguments)
    (folder.path.parents[3] / "fifo").read_bytes()
    return 0

if __name__ == "__main__":
    main(sys.argv[1:])
"""


@pytest.mark.parametrize("start", [spawn_runner, fork_runner])
def test_fetched_data_is_locked_until_its_runner_ends(
    start: Callable[[RunFolder, Workspace], None],
    workspace: Workspace,
    request_of: Callable[..., Request],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So nobody else's data takes its room before the runner holds it; a runner starts in its own time."""
    (tmp_path / "runner_of_test.py").write_text(_RUNNER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(runners, "_RUNNER", "runner_of_test")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "rows.csv").write_text("1,2\n")
    place = Path(find_input("x", f"file://{tmp_path}/there", workspace))
    used = place.parents[1] / "used"
    os.mkfifo(tmp_path / "fifo")

    def spawn(folder: RunFolder, workspace: Workspace) -> None:
        with pytest.raises(BlockingIOError):
            lock_file(used, wait=False)
        start(folder, workspace)

    submit(request_of(inputs={"x": str(place)}), workspace, spawn=spawn)
    with (tmp_path / "fifo").open("w"), pytest.raises(BlockingIOError):
        lock_file(used, wait=False)
    os.close(lock_file(used))


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("client", {"nodes": 2}, "one driver for a script"),
        ("client", {"gpus": 1}, "PYSPARK_SUBMIT_ARGS"),
        ("client", {"container": {"image": "lab/train:1"}}, "starts no containers"),
        ("cluster", {"attempts": 2}, "use deploy_mode client"),
    ],
)
def test_request_that_spark_cannot_serve_is_refused(
    tmp_path: Path, workspace: Workspace, mode: str, options: dict[str, object], message: str
) -> None:
    """Spark brings its own executors, and a driver on YARN sees no other machine."""
    target = f"type: spark\naddress: head\ndeploy_mode: {mode}\n"
    (workspace.targets_dir / "hdi.yaml").write_text(target)
    (tmp_path / "train.py").write_text("")
    planned = plan(Request(Definition("train.py", target="hdi", framework="pyspark"), tmp_path), workspace)
    assert planned.definition.framework == "pyspark"
    with pytest.raises(OperatorError, match=message):
        plan(Request(Definition("train.py", target="hdi", **options), tmp_path), workspace)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("deploy_mode: far", "deploy_mode must be client or cluster"),
        ("deploy_mode: cluster\nmaster: spark://head:7077", "with the master yarn alone"),
        ("master: --conf", "master must be a text"),
        ("image: x", "there is no setting 'image'"),
    ],
)
def test_settings_that_spark_cannot_have_are_refused(
    tmp_path: Path, workspace: Workspace, lines: str, message: str
) -> None:
    """With the file, before anything is sent."""
    (workspace.targets_dir / "hdi.yaml").write_text(f"type: spark\naddress: head\n{lines}\n")
    (tmp_path / "train.py").write_text("")
    with pytest.raises(InvalidSettings, match=message):
        plan(Request(Definition("train.py", target="hdi"), tmp_path), workspace)
