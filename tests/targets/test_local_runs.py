"""Whole runs on this machine, by commands, with real runners that are killed."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.observing import look_at_files
from tests.patience import PROGRAM_S
from tests.targets.test_conformance import STUBBORN, processes_of

import stoker_runs
from stoker.settings.workspace import Workspace
from stoker_run.json_files import read_json_lines
from stoker_runs.errors import RunFailed
from stoker_runs.launch.following import wait
from stoker_runs.launch.runners import adopt, adopt_all
from stoker_runs.launch.submission import Request, resume, submit
from stoker_runs.records.exports import draw
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore

pytestmark = pytest.mark.targets

RECORDER = (
    "import os, sys, time\nfrom stoker_run.records import Recorder\n"
    "folder, work = os.environ['STOKER_ATTEMPT_DIR'], os.environ['STOKER_WORK_DIR']\n"
    "recorder = Recorder(folder, work, int(os.environ['STOKER_ATTEMPT']))\n"
)


class Project:
    """A folder with a script, submitted again and again."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        self.path, self.workspace = path, workspace
        path.mkdir()

    def submit(self, script: str, environment_file: str = "", **options: object) -> RunFolder:
        (self.path / "train.py").write_text(script, encoding="utf-8")
        definition = Definition("train.py", **options)  # type: ignore[arg-type]
        request = Request(definition, self.path, environment=environment_file)
        return submit(request, self.workspace)[0]

    def run_to_end(
        self, script: str, environment_file: str = "", **options: object
    ) -> tuple[RunFolder, RunState]:
        folder = self.submit(script, environment_file, **options)
        return folder, wait(folder, self.workspace)

    def wait_for_status(self, folder: RunFolder, *statuses: Status) -> None:
        while folder.state().status not in statuses:
            time.sleep(0.02)

    def wait_for_output(self, folder: RunFolder, words: str, attempt: int = 1) -> None:
        path = folder.attempt(attempt) / "log_0.txt"
        while not (path.exists() and words in path.read_text()):
            time.sleep(0.02)


@pytest.fixture
def project(tmp_path: Path, workspace: Workspace) -> Project:
    return Project(tmp_path / "digits", workspace)


def runners_of(folder: RunFolder) -> list[int]:
    """Numbers of the processes that are runners of a run, by their command line or by its lock."""
    return [
        int(place.name)
        for place in Path("/proc").glob("[0-9]*")
        if _was_spawned_for(place, folder) or _holds_the_lock_of(place, folder)
    ]


def _was_spawned_for(place: Path, folder: RunFolder) -> bool:
    with contextlib.suppress(OSError):
        words = (place / "cmdline").read_bytes().split(b"\0")
        return b"stoker_runs.launch.runner_process" in words and str(folder.path).encode() in words
    return False


def _holds_the_lock_of(place: Path, folder: RunFolder) -> bool:
    """Of those that were commands; their command line is still that of one."""
    with contextlib.suppress(OSError):
        return (place / "comm").read_text() == "stoker-runner\n" and any(
            file.resolve() == folder.path / ".runner" for file in (place / "fd").iterdir()
        )
    return False


def kill_runners(folder: RunFolder) -> int:
    """Have no runner of a run any more, by SIGKILL; returns how many there were."""
    found = runners_of(folder)
    for number in found:
        os.kill(number, signal.SIGKILL)
    while runners_of(folder):
        time.sleep(0.02)
    return len(found)


def killed_at_moments(
    submit_one: Callable[[int], RunFolder], workspace: Workspace, *, longest_s: float
) -> Iterator[tuple[int, RunFolder]]:
    """Submit twenty runs, four at a time, and kill the runner of each at a moment of its own.

    Args:
        submit_one: Submits the run of a number.
        workspace: Its workspace; after every third kill all runs there are adopted.
        longest_s: The latest moment after a submission.

    Yields:
        Runs with their numbers, which go on by themselves or once they are adopted.
    """
    chance = random.Random(19)
    for first in range(0, 20, 4):
        runs = []
        for number in range(first, first + 4):
            folder = submit_one(number)
            runs.append((time.monotonic() + chance.random() * longest_s, number, folder))
        for moment_s, number, folder in sorted(runs, key=lambda run: run[0]):
            while time.monotonic() < moment_s:
                time.sleep(0.01)
            kill_runners(folder)
            if number % 3 == 0:
                adopt_all(workspace)
        for _, number, folder in runs:
            yield number, folder


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("def x(:\n", "ScriptFailed", "SyntaxError"),
        ("raise KeyError('epoch')\n", "ScriptFailed", "KeyError: 'epoch'"),
        ("import sys; sys.exit(3)\n", "ScriptFailed", "exit status 3"),
        ("import os; os.kill(os.getpid(), 9)\n", "Killed", "SIGKILL"),
        ("x = bytearray(1 << 62)\n", "OutOfMemory", "out of memory"),
    ],
)
def test_each_failure_has_its_own_code(project: Project, script: str, code: str, words: str) -> None:
    """Status comes from the process, and the error has its last words."""
    _, state = project.run_to_end(script)
    assert state.status is Status.FAILED
    assert state.error is not None
    assert (state.error.code, words in state.error.message) == (code, True)


def test_too_long_is_timed_out(project: Project) -> None:
    """The agent ends it, without any other process."""
    _, state = project.run_to_end("import time; time.sleep(300)\n", max_duration_s=0.5, grace_s=1.0)
    assert state.error is not None
    assert (state.status, state.error.code) == (Status.FAILED, "TimedOut")


def test_a_run_reads_the_files_of_its_submission(project: Project) -> None:
    """Edits during a run do not reach it."""
    (project.path / "data.txt").write_text("old")
    folder = project.submit(
        "import time\nprint('up', flush=True)\ntime.sleep(1)\nprint(open('data.txt').read())\n"
    )
    (project.path / "data.txt").write_text("new")
    wait(folder, project.workspace)
    assert (folder.attempt(1) / "log_0.txt").read_text() == "up\nold\n"


def test_no_metric_is_torn_by_a_kill(project: Project) -> None:
    """All whole lines are read, and the ones behind the last whole one are not."""
    script = RECORDER + (
        "for step in range(1_000_000):\n    recorder.number('loss', step / 7, step)\n"
        "    if step == 20_000: os.kill(os.getpid(), 9)\n"
    )
    folder, state = project.run_to_end(script)
    steps = [line["s"] for line in folder.metric_lines()]
    assert state.status is Status.FAILED
    assert steps == list(range(len(steps)))
    assert len(steps) >= 20_000


def test_a_killed_runner_is_adopted(project: Project) -> None:
    """Killed at twenty moments, of its start and of the script: each run comes to its own end, and runs once."""
    script = "import sys, time\nopen('outputs/count', 'a').write('x')\ntime.sleep(0.6)\nsys.exit(int(sys.argv[1]))\n"

    project.workspace.targets_dir.mkdir()
    (project.workspace.targets_dir / "local.yaml").write_text("cores: 4\n")

    def submit_one(number: int) -> RunFolder:
        return project.submit(script, arguments=(str(number % 2),), cores=1)

    for number, folder in killed_at_moments(submit_one, project.workspace, longest_s=1.5):
        state = wait(folder, project.workspace)
        assert state.status is (Status.FAILED if number % 2 else Status.COMPLETED), (number, state)
        assert (folder.outputs / "count").read_text() == "x"
        assert folder.attempts() == [1]


def test_a_runner_outlives_the_command_that_was_forked_to_be_it(project: Project) -> None:
    """The command is killed with its process group: its run goes on; the runner is killed: the run is adopted."""
    gate = project.path.parent / "gate"
    (project.path / "train.py").write_text(
        "import os, time\nprint('up', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    )
    command = [sys.executable, "-m", "stoker.cli", "submit", "train.py"]
    with subprocess.Popen(
        command, cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout is not None
        folder = RunStore(project.workspace.runs_dir).get(process.stdout.readline().decode().strip())
        project.wait_for_output(folder, "up")
        os.killpg(process.pid, signal.SIGKILL)
    assert kill_runners(folder) == 1
    gate.touch()
    assert wait(folder, project.workspace).status is Status.COMPLETED
    assert folder.attempts() == [1]


def test_an_agent_starts_with_little() -> None:
    """Modules that only scripts and other commands need are not imported."""
    words = "import sys, stoker_run.__main__\n"
    words += "print(sorted({'hashlib', 'shutil', 'socket', 'uuid', 'zipfile'} & set(sys.modules)))"
    # Nothing of who measures which lines run.
    done = subprocess.run(
        [sys.executable, "-I", "-c", words], env={}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_an_agent_that_is_killed_interrupts_its_run(project: Project) -> None:
    """Without an exit status the run is Interrupted, and nothing of the script goes on."""
    folder = project.submit("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    project.wait_for_output(folder, "up")
    agent = json.loads((folder.attempt(1) / "agent.json").read_text())
    os.kill(agent["pid"], signal.SIGKILL)
    state = wait(folder, project.workspace)
    assert state.error is not None
    assert (state.status, state.error.code) == (Status.FAILED, "Interrupted")
    assert processes_of(folder.id) == []


def test_a_cancel_leaves_nothing_behind(project: Project) -> None:
    """A script that ignores SIGTERM and has grandchildren is gone, and its outputs are kept."""
    folder = project.submit("open('outputs/o.txt', 'w').write('kept')\n" + STUBBORN, grace_s=1.0)
    project.wait_for_output(folder, "ready")
    folder.request_cancel("by its user", 1)
    state = wait(folder, project.workspace)
    assert (state.status, state.reason) == (Status.CANCELED, "by its user")
    assert (folder.outputs / "o.txt").read_text() == "kept"
    assert processes_of(folder.id) == []


def test_a_cancelled_run_is_resumed_from_its_checkpoint(project: Project) -> None:
    """The second attempt begins where the first one ended; each has its own metrics."""
    script = RECORDER + (
        "from pathlib import Path\npoint = Path('outputs/epoch')\n"
        "first = int(point.read_text()) + 1 if point.exists() else 0\n"
        "for epoch in range(first, 6):\n"
        "    recorder.number('epoch', epoch, epoch); point.write_text(str(epoch))\n"
        "    print('epoch', epoch, flush=True)\n"
        "    while epoch == 3 and first == 0: time.sleep(0.05)\n"
    )
    folder = project.submit(script, grace_s=1.0)
    project.wait_for_output(folder, "epoch 3")
    folder.request_cancel("by its user", 1)
    assert wait(folder, project.workspace).status is Status.CANCELED
    resume(folder, project.workspace)
    state = wait(folder, project.workspace)
    assert (state.status, state.attempt) == (Status.COMPLETED, 2)
    assert [(line["a"], line["v"]) for line in folder.metric_lines()] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 4),
        (2, 5),
    ]


def test_a_new_run_is_given_the_outputs_of_an_old_one(project: Project) -> None:
    """As `--resume-from PATH`, behind its own arguments."""
    old, _ = project.run_to_end("open('outputs/c.txt', 'w').write('checkpoint')\n")
    script = "import sys\nassert sys.argv[1:3] == ['--x', '--resume-from']\n"
    script += "print(open(sys.argv[3] + '/c.txt').read())\n"
    new, state = project.run_to_end(script, arguments=("--x",), resume_from=old.id)
    assert state.status is Status.COMPLETED
    assert (new.attempt(1) / "log_0.txt").read_text() == "checkpoint\n"


def test_two_runs_have_two_gpus_and_the_third_waits(project: Project) -> None:
    """CUDA_VISIBLE_DEVICES are distinct; Queued names the holder of the GPU."""
    targets = project.workspace.targets_dir
    targets.mkdir()
    (targets / "local.yaml").write_text("cores: 8\ngpus: ['0', '1']\n")
    script = (
        "import os, time\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        "while not os.path.exists(os.environ['GO']): time.sleep(0.05)\n"
    )
    go = project.workspace.root / "go"
    runs = [project.submit(script, variables={"GO": str(go)}) for _ in range(2)]
    for run in runs:
        project.wait_for_status(run, Status.RUNNING)
    third = project.submit(script, variables={"GO": str(go)})
    project.wait_for_status(third, Status.QUEUED)
    assert third.state().reason.startswith("waits for 1 GPU: held by digits_")
    go.touch()
    assert {wait(run, project.workspace).status for run in [*runs, third]} == {Status.COMPLETED}
    shown = [(run.attempt(1) / "log_0.txt").read_text().strip() for run in runs]
    assert sorted(shown) == ["0", "1"]


def test_a_secret_is_in_no_file_that_others_read(project: Project) -> None:
    """Variables of a script are in files of its owner alone, and in no output of a command."""
    folder, _ = project.run_to_end("print('done')\n", variables={"TOKEN": "hunter2-secret"})
    contents = look_at_files(project.workspace.root, Path.read_bytes)
    holding = [path for path, content in contents.items() if b"hunter2" in content]
    assert holding
    assert all(path.stat().st_mode & 0o077 == 0 for path in holding), holding
    for more in ([], ["--json"]):
        shown = subprocess.run(
            [sys.executable, "-m", "stoker.cli", "runs", "show", folder.id, *more],
            capture_output=True,
            check=True,
        )
        assert b"hunter2" not in shown.stdout + shown.stderr


def test_the_command_has_the_exit_status_of_the_run(project: Project) -> None:
    """0, 1 and 2; Ctrl-C leaves the run to itself with 130."""

    def run(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "stoker.cli", "submit", *words]
        return subprocess.Popen(
            command,
            cwd=project.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    (project.path / "train.py").write_text(
        "import os, sys, time\nprint('up', flush=True)\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.05)\nsys.exit(int(sys.argv[1]))\n"
    )
    for words, status in ((("train.py", "0", "."), 0), (("train.py", "7", "."), 1), (("tain.py",), 2)):
        with run(*words) as process:
            process.communicate(timeout=PROGRAM_S)
            assert process.returncode == status
    # It goes on until the command has ended: not for so long that the command has most likely ended.
    go = project.path.with_name("go")
    with run("train.py", "0", str(go)) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().decode().strip()
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PROGRAM_S)
        assert process.returncode == 130
    go.touch()
    assert stoker_runs.get_run(run_id).wait() == "Completed"


def test_python_submits_waits_and_reads(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments become texts, output is shown, metrics and files are read, failures raise with the traceback."""
    (project.path / "train.py").write_text(
        RECORDER + "recorder.number('accuracy', float(sys.argv[2]))\nprint('trained')\n"
        "open('outputs/m.txt', 'w').write('m')\nassert len(sys.argv) < 4, 'bad'\n"
    )
    run = stoker_runs.submit("train.py", ["--lr", 0.25], source=project.path, max_duration="2h")
    assert run.wait(show_output=True) == "Completed"
    assert capsys.readouterr().out == "trained\n"
    assert run.metrics == {"accuracy": 0.25}
    version = run.register_model("digits", "outputs/m.txt")
    assert (version.properties["run"], version.framework) == (run.id, "files")
    failing = stoker_runs.submit("train.py", ["--lr", 1, "x"], source=project.path)
    with pytest.raises(RunFailed, match=r"(?s)AssertionError: bad.*Traceback"):
        failing.wait()


def test_a_killed_program_leaves_no_run_that_runs_for_ever(project: Project) -> None:
    """The run of a notebook that was killed is Interrupted when the next command comes by."""
    program = "import os, stoker_runs\nwith stoker_runs.start_run('notebook') as run:\n"
    program += "    print(run.id, flush=True)\n    os.kill(os.getpid(), 9)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    run = stoker_runs.get_run(done.stdout.strip())
    assert run.status == "Running"
    assert run.wait(raise_on_error=False) == "Failed"
    assert run.error is not None
    assert run.error["code"] == "Interrupted"


def test_one_runner_too_many_ends_by_itself(project: Project) -> None:
    """Of several that adopt at the same time one is the runner, and the script runs once."""
    folder = project.submit("print('once')\n")
    for _ in range(3):
        adopt(folder, project.workspace)
    assert wait(folder, project.workspace).status is Status.COMPLETED
    assert [line["v"] for line in read_json_lines(folder.events)].count("Running") <= 1
    assert (folder.attempt(1) / "log_0.txt").read_text() == "once\n"


def test_a_picture_has_a_panel_a_metric(project: Project, tmp_path: Path) -> None:
    """Curves of two runs are drawn into a PNG of some size."""
    script = (
        RECORDER + "for s in range(20):\n    recorder.number('loss', float(sys.argv[1]) / (s + 1), s)\n"
        "recorder.number('accuracy', 0.9)\n"
    )
    runs = [project.run_to_end(script, arguments=(text,))[0] for text in ("1", "2")]
    path = tmp_path / "plot.png"
    assert draw(runs, [], path) == ["accuracy", "loss"]
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000
