"""`stoker runs`, `experiments`, `targets`, and a dry submission: their output, without a process."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.own_time import give_own_time

from stoker.cli import main
from stoker.settings.workspace import Workspace
from stoker_run.records import Recorder
from stoker_run.run import Experiment, Run, RunWorkspace
from stoker_runs.commands import run_output
from stoker_runs.launch import runners
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.states import RunFailure, RunState, Status
from stoker_runs.records.store import RunStore


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    return Workspace(tmp_path / "workspace").create()


def make(
    workspace: Workspace, number: int, status: Status = Status.COMPLETED, accuracy: float = 0.5
) -> RunFolder:
    created_ms = 1_700_000_000_000 + number
    record = RunRecord(f"e_{created_ms // 1000}_{number:08x}", "e", created_ms, Definition("train.py"))
    error = RunFailure(
        "ScriptFailed", "ValueError: no data", "stoker runs logs RUN", {"traceback": "Tra\nceback"}
    )
    state = RunState(
        status,
        created_ms,
        error=error if status is Status.FAILED else None,
        started_ms=created_ms,
        ended_ms=created_ms,
    )
    folder = RunStore(workspace.runs_dir).create(record, state)
    folder.attempt(1).mkdir()
    (folder.attempt(1) / "metrics.jsonl").write_text(json.dumps({"k": "accuracy", "v": accuracy}) + "\n")
    (folder.attempt(1) / "log_0.txt").write_bytes(b"line\n\xff")
    (folder.outputs / "model.txt").write_text("m")
    return folder


def test_a_list_has_the_requested_runs_in_their_order(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Conditions, order, metrics, and JSON of the same."""
    one, two = make(workspace, 1, accuracy=0.9), make(workspace, 2, Status.FAILED, accuracy=0.4)
    assert main(["runs", "list", "--sort", "-accuracy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["RUN", "STATUS", "SUBMITTED", "TOOK", "TARGET", "ACCURACY"]
    assert [line.split()[0] for line in lines[1:]] == [one.id, two.id]
    assert lines[2].endswith("ScriptFailed: ValueError: no data")
    assert main(["runs", "list", "--where", "accuracy > 0.5", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["id"], listed["metrics"]) == (one.id, {"accuracy": 0.9})
    assert main(["runs", "list", "--json", "--limit", "1"]) == 0
    assert [run["metrics"] for run in json.loads(capsys.readouterr().out)] == [{"accuracy": 0.4}]
    assert main(["runs", "list", "--status", "failed", "--limit", "1"]) == 0
    assert two.id in capsys.readouterr().out


def test_a_run_on_a_cluster_has_the_clusters_name(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the list, as JSON and by itself, though this machine stands for it; others have that of their target."""
    plain = make(workspace, 1)
    definition = Definition("train.py", variables={"AZUREML_COMPUTE_TARGET": "cpu-cluster"})
    record = plain.record().replace(id="e_1700000000_0000000a", definition=definition)
    RunStore(workspace.runs_dir).create(record, plain.state())
    assert main(["runs", "list", "--json"]) == 0
    found = {run["id"]: run["target"] for run in json.loads(capsys.readouterr().out)}
    assert found == {plain.id: "local", record.id: "cpu-cluster"}
    assert main(["runs", "list"]) == 0
    assert " cpu-cluster" in capsys.readouterr().out
    assert main(["runs", "show", record.id]) == 0
    assert "target       cpu-cluster" in capsys.readouterr().out


def test_an_empty_list_says_why_it_is_empty(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """There are no runs at all, none that match, or none with the metric of a column."""
    assert main(["runs", "list"]) == 0
    assert (
        capsys.readouterr().err
        == f"there are no runs in {workspace.runs_dir}; stoker submit SCRIPT begins one\n"
    )
    make(workspace, 1)
    assert main(["runs", "list", "nobody"]) == 2
    assert capsys.readouterr().err == "stoker runs: there is no experiment 'nobody'; there are: e\n"
    with pytest.raises(SystemExit, match="2"):
        main(["runs", "list", "--limit", "-1"])
    assert "argument --limit: must be a whole number between 0" in capsys.readouterr().err
    assert main(["experiments", "archive", "e"]) == 0
    assert main(["runs", "list"]) == 0
    assert capsys.readouterr().err == "1 run of archived experiments: --all shows more\n"
    assert main(["experiments", "restore", "e"]) == 0
    assert main(["runs", "list", "--status", "running"]) == 0
    assert capsys.readouterr().err == "there are no runs of this kind\n"
    assert main(["runs", "list", "--sort", "-accuracy", "--metric", "acuracy"]) == 0
    assert capsys.readouterr().err == "none of these runs has measured acuracy; did you mean accuracy?\n"
    assert main(["runs", "list", "--metric", "x"]) == 0
    assert capsys.readouterr().err == "none of these runs has measured x\n"


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ("acuracy > 1", ": none has measured acuracy; did you mean accuracy?"),
        ("statu = Completed and acc > 0", ": none has measured statu, acc; did you mean status?"),
        ("accuracy > 1", ""),
    ],
)
def test_a_condition_on_an_unknown_metric_names_the_nearest_one(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], condition: str, complaint: str
) -> None:
    """An empty list is explained by the name that is probably misspelled, with the nearest one that there is."""
    make(workspace, 1)
    assert main(["runs", "list", "--where", condition]) == 0
    assert capsys.readouterr().err == f"there are no runs of this kind{complaint}\n"


def test_experiments_are_listed_as_json(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the table, the newest run in milliseconds since 1970; an empty list where there are none."""

    def listed(*options: str) -> list[dict[str, Any]]:
        assert main(["experiments", "list", "--json", *options]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        found: list[dict[str, Any]] = json.loads(captured.out)
        return found

    assert listed() == []
    make(workspace, 1)
    make(workspace, 2)
    expected = {"name": "e", "runs": 2, "newest": 1_700_000_000_002, "archived": False}
    assert listed() == [expected]
    RunStore(workspace.runs_dir).archive("e", restore=False)
    assert (listed(), listed("--all")) == ([], [{**expected, "archived": True}])


def test_a_resumed_run_is_followed_from_its_new_attempt(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of earlier attempts is not printed again."""
    folder = make(workspace, 1, Status.FAILED)
    (folder.attempt(2)).mkdir()
    (folder.attempt(2) / "log_0.txt").write_text("again\n")
    state = folder.state().replace(attempt=2)
    folder.write_state(state)
    monkeypatch.setattr("stoker_runs.launch.submission.resume", lambda *_: state)
    assert main(["runs", "resume", folder.id]) == 1
    assert capsys.readouterr().out == "again\n"


def test_a_run_is_shown_with_its_error(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """It has code, message, hint and traceback, and the run's metrics."""
    make(workspace, 1, Status.FAILED)
    assert main(["runs", "show", "@latest"]) == 0
    shown = capsys.readouterr().out
    for words in ("ScriptFailed: ValueError: no data", "hint", "Tra\nceback", "accuracy"):
        assert words in shown
    assert main(["runs", "show", "@latest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"]["error"]["code"] == "ScriptFailed"


def test_lists_are_shown(workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values of `log_list`, `log_row` and `log_table` are in the page of the run, in lists and in pictures."""
    folder = make(workspace, 1)
    recorder = Recorder(folder.attempt(1), folder.path)
    recorder.structure("fib", "list", [*range(30)])
    recorder.structure("scores", "table", {"class": ["a", "b"], "f1": [0.5, 0.25]})
    recorder.close()
    assert main(["runs", "show", "@latest"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["fib", "29", "0", "29", "30"] in shown
    assert ["scores.class", "2", "a,", "b"] in shown
    assert ["fib", "30", *(f"{number}," for number in range(19)), "19", "…"] in shown
    assert main(["az", "ml", "history", "list", "--output", "json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["fib"], run["scores.f1"]) == (29, 0.25)
    picture = tmp_path / "fib.png"
    assert main(["runs", "plot", "@latest", "--metric", "fib", "--output", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["runs", "plot", "@latest", "--output", str(tmp_path / "fib.none")]) == 2


def test_texts_of_a_run_are_printed_without_control_characters(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts that come from scripts are escaped, except the log."""
    folder = make(workspace, 1, Status.FAILED)
    evil = "\x1b[2J\x9b\u202e\r"
    (folder.attempt(1) / "metrics.jsonl").write_text(json.dumps({"k": f"a{evil}b", "v": 1}) + "\n")
    (folder.outputs / f"m{evil}").write_text("m")
    state = folder.state()
    error = RunFailure("ScriptFailed", evil, evil, {"traceback": f"Tra\n{evil}ceback"})
    folder.write_state(state.replace(error=error))
    assert main(["runs", "tag", folder.id, f"team={evil}"]) == 0
    for command in (
        ["runs", "list"],
        ["runs", "show", "@latest"],
        ["runs", "files", "@latest"],
        ["runs", "tag", "@latest", "b=c"],
    ):
        assert main(command) == 0, command
        printed = capsys.readouterr()
        assert all(letter.isprintable() or letter == "\n" for letter in printed.out + printed.err), command


def test_logs_are_bytes_as_they_were(workspace: Workspace, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Bytes that are no text are passed on too, followed or not."""
    make(workspace, 1)
    assert main(["runs", "logs", "@latest"]) == 0
    assert main(["runs", "logs", "@latest", "-f"]) == 0
    assert capfdbinary.readouterr().out == b"line\n\xff" * 2


def test_commands_work_on_runs_by_name(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands wait for, tag, download, compare and delete runs by name."""
    monkeypatch.chdir(tmp_path)
    one, two = make(workspace, 1), make(workspace, 2, Status.FAILED)
    assert main(["runs", "wait", one.id]) == 0
    assert main(["runs", "wait", one.id, two.id]) == 1
    assert main(["runs", "tag", one.id, "best=yes", "gone="]) == 0
    assert one.tags() == {"best": "yes"}
    assert main(["runs", "download", one.id, "outputs", "-o", "copy"]) == 0
    assert (tmp_path / "copy" / "outputs" / "model.txt").read_text() == "m"
    capsys.readouterr()
    assert main(["runs", "files", one.id]) == 0
    assert "outputs/model.txt" in capsys.readouterr().out
    assert main(["runs", "compare", one.id, two.id]) == 0
    assert "ScriptFailed" in capsys.readouterr().out
    assert main(["runs", "cancel", one.id]) == 0
    assert "Completed already" in capsys.readouterr().err
    assert main(["experiments", "list"]) == 0
    assert main(["experiments", "archive", "e"]) == 0
    assert (main(["runs", "list"]), main(["experiments", "list"])) == (0, 0)
    assert one.id not in (hidden := capsys.readouterr()).out
    assert "1 archived: --all shows them" in hidden.err
    for listing in (["runs", "list", "e"], ["runs", "list", "--all"]):
        assert main(listing) == 0
        assert one.id in capsys.readouterr().out
    assert main(["experiments", "restore", "e"]) == 0
    assert main(["runs", "list"]) == 0
    assert one.id in capsys.readouterr().out
    assert main(["runs", "tensorboard", one.id, "--write-only"]) == 0
    assert (workspace.root / "tensorboard" / one.id / "events.out.tfevents.0.stoker").stat().st_size
    assert main(["runs", "delete", one.id, two.id]) == 0
    assert list(RunStore(workspace.runs_dir).folders()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "show", "e_9"], "there is no run 'e_9'"),
        (["runs", "show", "latest"], "the newest one is @latest"),
        (["runs", "cancel"], "name the run to cancel, or give --all"),
        (["runs", "list", "--where", "accuracy"], "is no condition"),
        (["runs", "list", "--status", "Done"], "a run is one of NotStarted, Queued"),
        (["runs", "compare", "@latest"], "name two runs or more to compare"),
        (["runs", "download", "@latest", "nothing"], "has no file that begins with 'nothing'"),
        (["runs", "tag", "@latest", "x"], "expected KEY=VALUE"),
        (["runs", "rerun", "@latest"], "has no snapshot any more"),
        (["experiments", "archive", "none"], "there are: e"),
        (["targets", "check", "locl"], "did you mean local"),
        (
            ["models", "register", "m", "outputs/none", "--run", "@latest"],
            "it has: azureml-logs/70_driver_log.txt",
        ),
        (["models", "register", "m"], "or with --run"),
        (["submit"], "no script is named"),
        (["submit", "--tag", "x", "train.py"], "--tag x: expected KEY=VALUE"),
    ],
)
def test_invalid_runs_command_is_refused_with_advice(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """The command ends with status 2 and one sentence."""
    make(workspace, 1)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_children_of_a_script_are_shown_and_belong_to_their_run(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands list them, show one with its metrics, and refuse to end or delete it alone."""
    run = make(workspace, 1)
    script = Run(Recorder(run.attempt(1), run.path), run.id, Experiment("e", RunWorkspace({})))
    with script.child_run() as child:
        child.log("loss", 0.25)
    for command, words in (
        (["runs", "list"], (f"{child.id} Completed",)),
        (["runs", "children", run.id], (f"{child.id} Completed",)),
        (["runs", "children", run.id, "--json"], ('"loss": 0.25',)),
        (["runs", "show", run.id], (f"children 1: stoker runs children {run.id}",)),
        (["runs", "show", child.id], (f"parent {run.id}", "loss 0.25")),
        (["runs", "show", child.id, "--json"], ('"kind": "child"',)),
        (["runs", "tag", child.id, "k=v"], ("k=v",)),
        (["runs", "wait", child.id], ("Completed",)),
    ):
        assert main(command) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert all(word in printed for word in words), printed
    assert main(["runs", "children", child.id]) == 0
    assert "has begun no child runs" in capsys.readouterr().err
    for action in ("delete", "resume", "rerun"):
        assert main(["runs", action, child.id]) == 2
    assert f"the script of {run.id} has begun" in capsys.readouterr().err
    assert main(["runs", "delete", run.id]) == 0


def test_a_dry_submission_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan has target, command, files and the differences of the packages."""
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("x")
    (tmp_path / "env.yml").write_text("dependencies: [{pip: [no-such-package==1.0]}]\n")
    assert main(["submit", "--dry-run", "--environment", "env.yml", "train.py", "--lr", "1"]) == 0
    printed = capsys.readouterr().out
    for words in ("target       local", "command      train.py --lr 1", "2 files", "no-such-package==1.0"):
        assert words in printed
    assert not (tmp_path / "workspace").exists()


def test_targets_are_listed_with_their_cores_and_gpus(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """This machine by what its file says, and who holds what of it."""
    workspace.targets_dir.mkdir()
    (workspace.targets_dir / "local.yaml").write_text("cores: 3\ngpus: [0, 1]\n")
    assert main(["targets", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["local", "local", "3", "2"]
    assert main(["targets", "show", "local"]) == 0
    assert "0, 1" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["type: lokal", "core: 3", "cores: 0", "gpus: [1, 1]", "gpus: 2"])
def test_a_bad_file_of_a_target_is_refused(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """The message names the file and its allowed content."""
    workspace.targets_dir.mkdir()
    (workspace.targets_dir / "local.yaml").write_text(text)
    assert main(["targets", "list"]) == 2
    assert "local.yaml" in capsys.readouterr().err


def test_runs_that_go_on_are_cancelled_and_not_deleted(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """One by its id or all at once; their runners find the time they have to end."""
    going_on = [make(workspace, number, Status.RUNNING) for number in (1, 2)]
    make(workspace, 3)
    assert main(["runs", "delete", "@latest", going_on[0].id]) == 2
    assert f"{going_on[0].id} is Running; cancel it first" in capsys.readouterr().err
    assert main(["runs", "cancel", "--all", "--grace", "5s"]) == 0
    assert capsys.readouterr().out == "".join(f"{one.id} is told to end\n" for one in going_on)
    for folder in going_on:
        request = folder.cancel_request()
        assert request is not None
        assert request["grace_s"] == 5.0
    with pytest.raises(SystemExit, match="2"):
        main(["runs", "cancel", going_on[0].id, "--grace", "soon"])
    assert "--grace: must be a duration" in capsys.readouterr().err
    assert len(list(RunStore(workspace.runs_dir).folders())) == 3


def test_ctrl_c_leaves_a_run_to_itself(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 130, and how to follow it again; before that, a line has the reason of the wait."""
    folder = make(workspace, 1, Status.QUEUED)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    give_own_time(monkeypatch, runners, sleep=interrupt)
    assert main(["runs", "logs", folder.id, "-f"]) == 130
    assert f"{folder.id} goes on; follow it with: stoker runs logs" in capsys.readouterr().err
    assert folder.cancel_request() is None


def test_run_without_output_shows_its_error(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that never began shows its error as its log; other logs end with the error."""
    folder = make(workspace, 1, Status.FAILED)
    (folder.attempt(1) / "log_0.txt").write_text("line\n")
    assert main(["runs", "logs", folder.id, "-f"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["ScriptFailed: ValueError: no data", f"stoker runs logs {folder.id}"]
    (folder.attempt(1) / "log_0.txt").unlink()
    assert main(["runs", "logs", folder.id]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"{folder.id} is Failed and has printed nothing",
        "ScriptFailed: ValueError: no data",
    ]


@pytest.mark.parametrize(
    ("took_ms", "text"),
    [
        (0, "0.0 s"),
        (59_900, "59.9 s"),
        (60_000, "1:00 min"),
        (3_599_000, "59:59 min"),
        (3_661_000, "1:01:01"),
    ],
)
def test_durations_are_as_long_as_people_read_them(took_ms: int, text: str) -> None:
    """Seconds, minutes, hours."""
    assert run_output.duration_text(5, 5 + took_ms) == text


def test_times_are_read_by_people() -> None:
    """To the second, without the zone, which is the machine's; `-` for none."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", run_output.time_text(1_700_000_000_999))
    assert run_output.time_text(None) == "-"


def test_a_snapshot_is_restored_to_a_new_folder_alone(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that exists stays as it is."""
    (tmp_path / "there").mkdir()
    folder = make(workspace, 1)
    assert main(["runs", "snapshot", folder.id, "--output", str(tmp_path / "there")]) == 2
    assert "exists already; name a new folder" in capsys.readouterr().err
    assert list((tmp_path / "there").iterdir()) == []


def test_a_dry_run_explains_the_options_of_a_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data with its size, options behind the script's name, a script of another folder."""
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    here = tmp_path / "here"
    for folder in (here, tmp_path / "there"):
        folder.mkdir()
        (folder / "train.py").write_text("x")
    monkeypatch.chdir(here)
    (tmp_path / "data").write_bytes(b"12345")
    words: Any = ["submit", "--dry-run", "--input", f"digits={tmp_path / 'data'}"]
    assert main([*words, str(here / "train.py"), "--gpus", "1"]) == 0
    printed = capsys.readouterr()
    assert f"input        digits: 1 file, 5 B of {tmp_path / 'data'}" in printed.out
    assert f"1 file, 1 B of {here}\n" in printed.out
    assert "--gpus follows the script's name and so goes to the script" in printed.err
    assert main([*words, "../there/train.py"]) == 0
    assert f"1 file, 1 B of {tmp_path / 'there'}\n" in capsys.readouterr().out
    assert main([*words, "--source", str(tmp_path / "there"), "--environment", "relaxed", "train.py"]) == 2
    assert "needs an environment file beside the script" in capsys.readouterr().err
