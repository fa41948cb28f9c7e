"""Whole runs on a machine that SSH reaches: an sshd of the tests, connections that are cut, killed runners."""

import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from tests.cable import Cable, laid_cable
from tests.observing import look_at_files
from tests.targets.machines import shared_sshd
from tests.targets.sshd import Sshd, why_not
from tests.targets.test_conformance import STUBBORN, processes_of
from tests.targets.test_local_runs import RECORDER, Project, kill_runners, killed_at_moments
from tests.tiny_packages import write_wheel

from stoker.cli import main
from stoker.environments.installers import Installer
from stoker.settings.workspace import Workspace
from stoker_run.json_files import read_json_lines
from stoker_runs.launch.following import wait
from stoker_runs.launch.runners import adopt_all
from stoker_runs.launch.stores import register_store
from stoker_runs.launch.submission import resume
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Output
from stoker_runs.records.states import Status

pytestmark = [pytest.mark.targets, pytest.mark.skipif(bool(why_not()), reason=why_not())]

LINES = (
    "import sys, time\n"
    "for number in range(int(sys.argv[1])):\n"
    "    print('line', number, flush=True)\n"
    "    time.sleep(float(sys.argv[2]))\n"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own files, of which there are none yet."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def project(tmp_path: Path, workspace: Workspace) -> Project:
    shared_sshd().attach(workspace.targets_dir)
    return Project(tmp_path / "digits", workspace)


class Cutter:
    """A TCP proxy in front of an sshd that can stop passing anything on, as a network does, without a word."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.is_cut = False
        self._sockets: list[socket.socket] = []
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            theirs = socket.create_connection(("127.0.0.1", self._to))
            self._sockets += [ours, theirs]
            for source, sink in ((ours, theirs), (theirs, ours)):
                Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        while True:
            try:
                data = source.recv(1 << 16)
                while self.is_cut:
                    time.sleep(0.05)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self.is_cut = False
        for one in [self._listening, *self._sockets]:
            one.close()


@pytest.fixture
def cutter() -> Iterator[Cutter]:
    found = Cutter(shared_sshd().port)
    yield found
    found.close()


def log(folder: RunFolder, attempt: int = 1) -> str:
    return (folder.attempt(attempt) / "log_0.txt").read_text()


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


def test_a_run_is_as_on_this_machine(project: Project) -> None:
    """Only the target is named: log, metrics, outputs, packages are in its folder, and nothing is left there."""
    script = (
        RECORDER + "recorder.number('loss', 0.5, 1)\nprint(os.getcwd())\nopen('outputs/m', 'w').write('m')\n"
    )
    folder, state = project.run_to_end(script, target="gpu-vm")
    assert state.status is Status.COMPLETED, state
    assert str(shared_sshd().remote) in log(folder)
    assert [line["v"] for line in folder.metric_lines()] == [0.5]
    assert (folder.outputs / "m").read_text() == "m"
    assert "asyncssh==" in (folder.environment / "got.txt").read_text()
    assert not (shared_sshd().remote / "runs" / folder.id).exists()


def test_nothing_is_sent_twice(project: Project) -> None:
    """The second run of 300 files finds all but the changed one there."""
    data = project.path / "data"
    data.mkdir()
    for number in range(300):
        (data / f"{number}.bin").write_bytes(os.urandom(1000))
    project.run_to_end("print(1)\n", target="gpu-vm")
    kept = _contents()
    project.run_to_end("print(2)\n", target="gpu-vm")
    now = _contents()
    assert {path: now[path] for path in kept} == kept
    assert len(now) == len(kept) + 1


READER = (
    "import hashlib, os, pathlib\n"
    "files = sorted(path for path in pathlib.Path(os.environ['digits']).rglob('*') if path.is_file())\n"
    "print(len(files), hashlib.sha256(b''.join(path.read_bytes() for path in files)).hexdigest())\n"
    "print(pathlib.Path(os.environ['labels']).read_text())\n"
)


def _contents() -> dict[Path, int]:
    """The contents that the machine keeps, whole or in part, and their inodes."""
    return look_at_files(shared_sshd().remote / "files", lambda path: path.stat().st_ino)


def test_data_is_sent_once(project: Project, tmp_path: Path) -> None:
    """2,527 files and a single one; a runner that is killed at half of them costs nothing of that half."""
    data, labels = tmp_path / "data", tmp_path / "labels.csv"
    for number in range(2_527):
        folder = data / str(number % 6)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(number.to_bytes(8, "big") * 300)
    labels.write_text("a,b")
    content = b"".join(path.read_bytes() for path in sorted(data.rglob("*.jpg")))
    expected = f"2527 {hashlib.sha256(content).hexdigest()}\na,b\n"
    inputs = {"digits": str(data), "labels": str(labels)}
    before = len(_contents())
    run = project.submit(READER, target="gpu-vm", inputs=inputs)
    while len(_contents()) - before < 1_200:
        assert not run.state().is_terminal
        time.sleep(0.05)
    kill_runners(run)
    half = {path: inode for path, inode in _contents().items() if ".parts" not in path.parts}
    assert len(half) - before < 2_527
    adopt_all(project.workspace)
    state = wait(run, project.workspace)
    assert (state.status, log(run)) == (Status.COMPLETED, expected), state
    kept = _contents()
    assert {path: kept[path] for path in half} == half
    again, state = project.run_to_end(READER, target="gpu-vm", inputs=inputs)
    assert (state.status, log(again)) == (Status.COMPLETED, expected)
    assert _contents() == kept
    assert again.record().data == run.record().data
    (data / "0" / "0.jpg").write_bytes(b"changed")
    third, state = project.run_to_end(READER, target="gpu-vm", inputs=inputs)
    assert state.status is Status.COMPLETED
    assert len(_contents()) == len(kept) + 1
    assert third.record().data["digits"] != run.record().data["digits"]


@pytest.mark.parametrize("target", ["gpu-vm", "local"])
def test_outputs_of_a_completed_run_are_copied_into_stores(
    project: Project, tmp_path: Path, target: str
) -> None:
    """Into a folder of this machine and one at an address; of a failed run nothing is copied."""
    register_store(project.workspace, "far", f"file://{tmp_path}/far")
    script = (
        "import os, sys\n"
        "for path in sys.argv[1:3]:\n    open(os.path.join(path, 'weights'), 'w').write('w')\n"
        "sys.exit(int(sys.argv[3]))\n"
    )
    outputs = {"here": Output("workspaceblobstore", "{run-id}"), "far": Output("far", "{run-id}")}
    named = tuple(f"$AZUREML_DATAREFERENCE_{name}" for name in outputs)
    for status, outcome in (("0", Status.COMPLETED), ("3", Status.FAILED)):
        folder, state = project.run_to_end(script, target=target, outputs=outputs, arguments=(*named, status))
        assert state.status is outcome, state
        place = tmp_path / "far" / folder.id / "weights"
        assert place.exists() is (outcome is Status.COMPLETED)
        here = project.workspace.root / "stores" / "workspaceblobstore" / folder.id / "weights"
        assert here.exists() is (outcome is Status.COMPLETED or target == "local")


def test_a_cancel_leaves_nothing_behind(project: Project) -> None:
    """A script that ignores SIGTERM and has grandchildren is gone, and its outputs are kept."""
    folder = project.submit(
        "open('outputs/o.txt', 'w').write('kept')\n" + STUBBORN, target="gpu-vm", grace_s=1.0
    )
    project.wait_for_output(folder, "ready")
    folder.request_cancel("by its user", 1)
    state = wait(folder, project.workspace)
    assert (state.status, state.reason) == (Status.CANCELED, "by its user")
    assert (folder.outputs / "o.txt").read_text() == "kept"
    assert processes_of(folder.id) == []


def test_a_cut_connection_costs_no_line(project: Project, cutter: Cutter) -> None:
    """The script goes on while the connection is cut, and every line comes once."""
    shared_sshd().attach(project.workspace.targets_dir, port=cutter.port)
    folder = project.submit(LINES, arguments=("40", "0.5"), target="gpu-vm")
    project.wait_for_output(folder, "line 3")
    cutter.is_cut = True
    project.wait_for_status(folder, Status.NOT_RESPONDING)
    assert "does not answer" in folder.state().reason
    cutter.is_cut = False
    state = wait(folder, project.workspace)
    assert (state.status, state.attempt) == (Status.COMPLETED, 1)
    assert log(folder) == lines(40)


@pytest.fixture
def cable() -> Iterator[Cable]:
    with laid_cable() as cable:
        yield cable


@pytest.fixture
def apart(cable: Cable, tmp_path: Path) -> Iterator[Sshd]:
    """A server at the end of the cable."""
    server = Sshd(tmp_path / "sshd", address=cable.there, prefix=cable.inside)
    try:
        yield server.start()
    finally:
        server.end()


def test_a_pulled_cable_costs_no_line(project: Project, apart: Sshd, cable: Cable) -> None:
    """A network that is down for 20 s: the same attempt, NotResponding meanwhile, all lines once."""
    apart.attach(project.workspace.targets_dir)
    folder = project.submit(LINES, arguments=("60", "0.5"), target="gpu-vm")
    project.wait_for_output(folder, "line 3")
    cable.pull()
    down_until_s = time.monotonic() + 20
    project.wait_for_status(folder, Status.NOT_RESPONDING)
    while time.monotonic() < down_until_s:
        time.sleep(0.1)
    cable.plug()
    project.wait_for_status(folder, Status.RUNNING, Status.FINALIZING, Status.COMPLETED)
    state = wait(folder, project.workspace)
    assert (state.status, state.attempt) == (Status.COMPLETED, 1)
    assert log(folder) == lines(60)


def test_run_that_ends_while_its_link_is_down_is_collected_later(
    tmp_path: Path, project: Project, apart: Sshd, cable: Cable
) -> None:
    """With one attempt the script may end alone: its log, metrics and outputs come when the cable is back."""
    go = tmp_path / "go"
    script = RECORDER + (
        f"print('up', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "recorder.number('loss', 0.5, 1)\n"
        "open('outputs/m', 'w').write('m')\nprint('done')\n"
    )
    apart.attach(project.workspace.targets_dir)
    folder = project.submit(script, target="gpu-vm", lost_after_s=1.0)
    project.wait_for_output(folder, "up")
    cable.pull()
    go.touch()
    while processes_of(folder.id):
        time.sleep(0.1)
    project.wait_for_status(folder, Status.NOT_RESPONDING)
    assert not (folder.outputs / "m").exists()
    cable.plug()
    assert wait(folder, project.workspace).status is Status.COMPLETED
    assert (folder.outputs / "m").read_text() == "m"
    assert [line["v"] for line in folder.metric_lines()] == [0.5]
    assert log(folder) == "up\ndone\n"


def test_a_restarted_server_is_connected_to_again(tmp_path: Path, project: Project) -> None:
    """Connections that are closed by the other side are made anew, and the run notices nothing else."""
    server = Sshd(tmp_path / "sshd").start()
    try:
        server.attach(project.workspace.targets_dir)
        folder = project.submit(LINES, arguments=("20", "0.3"), target="gpu-vm")
        project.wait_for_output(folder, "line 3")
        for session in processes_below(server):
            os.kill(session, signal.SIGKILL)
        assert wait(folder, project.workspace).status is Status.COMPLETED
        assert log(folder) == lines(20)
    finally:
        server.end()


def processes_below(server: Sshd) -> list[int]:
    """The sessions of a server."""
    assert server.process is not None
    done = subprocess.run(
        ["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=False
    )
    return [int(number) for number in done.stdout.split()]


def test_a_machine_that_is_cut_off_for_ever_is_lost(project: Project, cutter: Cutter) -> None:
    """With a further attempt the script ends itself, and the next one goes on from its checkpoint, once it can."""
    script = (
        "import os, time\nfrom pathlib import Path\npoint = Path('outputs/epoch')\n"
        "first = int(point.read_text()) + 1 if point.exists() else 0\n"
        "for epoch in range(first, 6):\n    print('epoch', epoch, flush=True)\n    point.write_text(str(epoch))\n"
        "    while epoch == 3 and os.environ['STOKER_ATTEMPT'] == '1': time.sleep(0.1)\n"
    )
    shared_sshd().attach(project.workspace.targets_dir, port=cutter.port)
    folder = project.submit(script, target="gpu-vm", attempts=2, lost_after_s=15.0, grace_s=1.0)
    project.wait_for_output(folder, "epoch 3")
    cutter.is_cut = True
    while processes_of(folder.id):
        time.sleep(0.1)
    project.wait_for_status(folder, Status.PREPARING)
    cutter.is_cut = False
    state = wait(folder, project.workspace)
    assert (state.status, state.attempt) == (Status.COMPLETED, 2)
    assert log(folder, 1) == "".join(f"epoch {number}\n" for number in range(4))
    assert log(folder, 2) == "epoch 4\nepoch 5\n"
    assert json.loads((folder.attempt(1) / "exit.json").read_text())["outcome"] == "lease_lost"


def test_a_killed_runner_is_adopted(project: Project) -> None:
    """Killed at twenty moments, of its start and of the script: each run comes to its own end, and runs once."""
    script = "import sys, time\nopen('outputs/count', 'a').write('x')\nprint('up')\ntime.sleep(1)\n"
    script += "sys.exit(int(sys.argv[1]))\n"

    def submit_one(number: int) -> RunFolder:
        return project.submit(script, arguments=(str(number % 2),), target="gpu-vm")

    for number, folder in killed_at_moments(submit_one, project.workspace, longest_s=4.0):
        state = wait(folder, project.workspace)
        assert state.status is (Status.FAILED if number % 2 else Status.COMPLETED), (number, state)
        assert (folder.outputs / "count").read_text() == "x"
        assert log(folder) == "up\n"
        assert folder.attempts() == [1]
        assert [line["v"] for line in read_json_lines(folder.events)].count("Running") <= 1


def test_a_failed_run_is_resumed_from_its_outputs(project: Project) -> None:
    """They travel there again, and files that the script removes are gone afterwards."""
    script = (
        "import os, sys\nfound = sorted(os.listdir('outputs'))\nprint(found)\n"
        "if found: os.remove('outputs/old'); sys.exit(0)\n"
        "open('outputs/old', 'w').write('1'); open('outputs/kept', 'w').write('2'); sys.exit(1)\n"
    )
    folder, state = project.run_to_end(script, target="gpu-vm")
    assert state.status is Status.FAILED
    resume(folder, project.workspace)
    assert wait(folder, project.workspace).status is Status.COMPLETED
    assert log(folder, 2) == "['kept', 'old']\n"
    assert [path.name for path in folder.outputs.iterdir()] == ["kept"]


def test_large_outputs_come_whole(project: Project) -> None:
    """Files of many pieces, executable ones, empty ones, folders without anything, many small ones."""
    script = (
        "import os\nfrom pathlib import Path\nout = Path('outputs')\n"
        "(out / 'large').write_bytes(os.urandom(5_000_001))\n(out / 'empty').touch()\n"
        "(out / 'deep' / 'er').mkdir(parents=True)\n(out / 'run.sh').touch(0o755)\n"
        "for number in range(3000): (out / 'deep' / str(number)).write_text(str(number))\n"
        "import hashlib; print(hashlib.sha256((out / 'large').read_bytes()).hexdigest())\n"
    )
    folder, state = project.run_to_end(script, target="gpu-vm")
    assert state.status is Status.COMPLETED, state
    import hashlib

    assert hashlib.sha256((folder.outputs / "large").read_bytes()).hexdigest() == log(folder).strip()
    assert (folder.outputs / "empty").stat().st_size == 0
    assert (folder.outputs / "deep" / "er").is_dir()
    assert (folder.outputs / "run.sh").stat().st_mode & stat.S_IXUSR
    assert sum(1 for path in (folder.outputs / "deep").iterdir() if path.is_file()) == 3000


def test_an_environment_is_built_there_once(project: Project, tmp_path: Path) -> None:
    """It has a file's packages and no others; the second run finds it; a missing package is the run's error."""
    write_wheel(tmp_path / "wheels", "tiny-one", "1.5")
    server = Sshd(tmp_path / "sshd", variables={"UV_FIND_LINKS": str(tmp_path / "wheels")}).start()
    try:
        server.attach(project.workspace.targets_dir)
        (project.path / "requirements.txt").write_text("--no-index\ntiny-one==1.5\n")
        assert (
            main(["targets", "prepare", "gpu-vm", "--environment", str(project.path / "requirements.txt")])
            == 0
        )
        (built,) = [path for path in (server.remote / "environments").iterdir() if path.is_dir()]
        stamp = (built / "manifest.json").stat().st_ino
        script = "import shutil, sys, tiny_one\nprint(tiny_one.VERSION, sys.prefix, shutil.which('python'))\n"
        folder, state = project.run_to_end(script, environment_file="requirements.txt", target="gpu-vm")
        assert state.status is Status.COMPLETED, state
        assert log(folder) == f"1.5 {built / 'venv'} {built / 'venv' / 'bin' / 'python'}\n"
        assert "tiny-one==1.5" in (folder.environment / "got.txt").read_text()
        assert (built / "manifest.json").stat().st_ino == stamp
        (project.path / "requirements.txt").write_text("--no-index\ntiny-one==2.0\n")
        _, state = project.run_to_end(script, environment_file="requirements.txt", target="gpu-vm")
        assert state.error is not None
        assert (state.error.code, "tiny-one==2.0" in state.error.message) == ("EnvironmentUnusable", True)
    finally:
        server.end()


def test_pins_that_do_not_fit_today_are_installed_as_of_their_date(project: Project, tmp_path: Path) -> None:
    """Flask of 2023 cannot be imported with today's packages: it is built once more with those of then."""
    known = Installer(("uv",)).variables()
    index = {name: value for name, value in known.items() if name.startswith(("UV_", "SSL_CERT"))}
    server = Sshd(tmp_path / "sshd", variables=index).start()
    try:
        server.attach(project.workspace.targets_dir)
        (project.path / "requirements.txt").write_text("flask==2.2.3\n")
        script = "import flask, werkzeug\nprint(flask.__version__, werkzeug.__version__)\n"
        folder, state = project.run_to_end(script, environment_file="requirements.txt", target="gpu-vm")
        assert state.status is Status.COMPLETED, state.error
        assert log(folder) == "2.2.3 2.3.4\n"
        got = (folder.environment / "got.txt").read_text()
        assert "# packages as of 2023-05-16: later uploads were left out" in got
    finally:
        server.end()


def refusal(project: Project) -> str:
    """Why a run on the target has failed before its script."""
    folder, state = project.run_to_end("print(1)\n", target="gpu-vm")
    assert state.status is Status.FAILED
    assert state.error is not None
    assert not (folder.attempt(1) / "log_0.txt").exists()
    return f"{state.error.message}; {state.error.hint}"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"port": 1}, "connection was refused"),
        ({"address": "nowhere.invalid"}, "there is no machine of this name"),
        ({"python": "no-such-python"}, "no Python from 3.6 up can be run on"),
        ({"folder": "/proc/none"}, "name a folder"),
        ({"host_key": "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}, "has changed"),
        ({"key_file": "/no/such/key"}, "/no/such/key cannot be used"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_obstacle_has_its_own_reason(project: Project, other: dict[str, object], words: str) -> None:
    """The reason is the run's error, with what to do about it."""
    shared_sshd().attach(project.workspace.targets_dir, **other)
    if "folder" in other:
        # Root may write anywhere but there.
        assert "/proc/none" in refusal(project)
    else:
        assert words in refusal(project)


def test_a_full_disk_is_named(project: Project, tmp_path: Path) -> None:
    """Nothing fits on the machine: the run says where, and what to do."""
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(full)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here: that needs root")
    try:
        shared_sshd().attach(project.workspace.targets_dir, folder=str(full / "runs"))
        (project.path / "data.bin").write_bytes(os.urandom(2_000_000))
        reason = refusal(project)
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)
    assert "the disk of 127.0.0.1" in reason
    assert "make room there" in reason


def test_a_machine_is_created_by_one_command(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints and keeps its parts; a script runs there, and nothing is written where nobody listens."""
    settings = shared_sshd().settings()
    words = [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    assert main(["targets", "create", "ssh", "vm", *words]) == 0
    assert f"cores: {os.cpu_count()}" in capsys.readouterr().out
    _, state = project.run_to_end("print(1)\n", target="vm")
    assert state.status is Status.COMPLETED, state
    assert main(["targets", "create", "ssh", "vm", *words]) == 2
    assert main(["targets", "create", "ssh", "gone", *words, "--port", "1"]) == 2
    assert not (project.workspace.targets_dir / "gone.yaml").exists()


def test_a_host_key_is_never_accepted_silently(project: Project, tmp_path: Path, home: Path) -> None:
    """Unknown: shown, with the command that accepts it. Known by the user's file: taken. Changed: refused."""
    server = Sshd(tmp_path / "sshd").start()
    words = ["targets", "attach", "ssh", "vm", "--address", "127.0.0.1", "--port", str(server.port)]
    words += [
        "--key-file",
        str(server.folder / "user"),
        "--folder",
        str(server.remote),
        "--python",
        sys.executable,
    ]
    targets = project.workspace.targets_dir
    try:
        assert run_command(words) == (2, server.fingerprint())
        assert not (targets / "vm.yaml").exists()
        assert main([*words, "--host-key", server.fingerprint()]) == 0
        assert server.host_key() in (targets / "vm.yaml").read_text()
        (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {server.host_key()}\n")
        assert main(words) == 0
        assert main(["targets", "check", "vm"]) == 0
        server.end()
        old = server.fingerprint()
        server.make_key("host")
        server.start()
        status, text = run_command(["targets", "check", "vm"], whole=True)
        assert status == 2
        assert "has changed" in text
        assert old in text
        assert server.fingerprint() in text
        assert main(["targets", "detach", "vm"]) == 0
        assert list(targets.glob("vm.*")) == []
    finally:
        server.end()


def run_command(words: list[str], *, whole: bool = False) -> tuple[int, str]:
    """The status of a command and its complaint, or the fingerprint in that."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli", *words], capture_output=True, text=True, check=False, input=""
    )
    if whole:
        return done.returncode, done.stderr
    return done.returncode, next(
        (word.strip(";,") for word in done.stderr.split() if word.startswith("SHA256:")), done.stderr
    )


def test_a_key_with_a_passphrase_opens(project: Project, tmp_path: Path) -> None:
    """With the passphrase in a file of the owner's alone; without it the reason says how to give it."""
    server = Sshd(tmp_path / "sshd")
    server.make_key("locked", "open sesame")
    server.authorize("locked")
    server.start()
    given = tmp_path / "passphrase"
    given.write_text("open sesame\n")
    words = ["targets", "attach", "ssh", "vm", "--address", "127.0.0.1", "--port", str(server.port)]
    words += ["--key-file", str(server.folder / "locked"), "--host-key", server.fingerprint()]
    words += ["--folder", str(server.remote), "--python", sys.executable]
    try:
        status, text = run_command(words, whole=True)
        assert (status, "--ask-passphrase" in text) == (2, True)
        assert main([*words, "--passphrase-file", str(given)]) == 0
        folder, state = project.run_to_end("print('in')\n", target="vm")
        assert state.status is Status.COMPLETED
        assert_secret_is_kept(project, folder, b"sesame")
    finally:
        server.end()


def test_an_agent_of_the_user_opens(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither key nor password is named, keys of the agent are tried."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("ssh-agent is not installed")
    server = shared_sshd()
    where = tmp_path / "agent"
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(where)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as agent:
        try:
            while not where.exists():
                time.sleep(0.02)
            monkeypatch.setenv("SSH_AUTH_SOCK", str(where))
            subprocess.run(["ssh-add", "-q", str(server.folder / "user")], check=True)
            settings = server.settings()
            del settings["key_file"]
            server.attach(project.workspace.targets_dir, "vm")
            path = project.workspace.targets_dir / "vm.yaml"
            kept = [line for line in path.read_text().splitlines(True) if "key_file" not in line]
            path.write_text("".join(kept))
            assert project.run_to_end("print('in')\n", target="vm")[1].status is Status.COMPLETED
        finally:
            agent.terminate()


def assert_secret_is_kept(project: Project, folder: RunFolder, secret: bytes) -> None:
    """It is in one file of mode 0600, and nowhere else: not in the run, not in its log, not in any process."""
    contents = look_at_files(project.workspace.root, Path.read_bytes)
    holding = [path for path, content in contents.items() if secret in content]
    assert [path.name for path in holding] == ["vm.secret"]
    assert holding[0].stat().st_mode & 0o077 == 0
    assert secret not in folder.runner_log.read_bytes()


@pytest.fixture
def with_password(tmp_path: Path) -> Iterator[Sshd]:
    """A server that takes the password `hunter2 secret` of who runs the tests: in a view of /etc of its own."""
    shadow = Path("/etc/shadow")
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("openssl") is None:
        pytest.skip(
            "a password needs root, unshare and openssl: the server is given an /etc/shadow of its own"
        )
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", "hunter2 secret"], capture_output=True, text=True, check=True
    ).stdout.strip()
    own = tmp_path / "shadow"
    kept = [line for line in shadow.read_text().splitlines() if not line.startswith("root:")]
    own.write_text("\n".join([f"root:{hashed}:19000:0:99999:7:::", *kept, ""]))
    own.chmod(0o600)
    bound = f'mount --bind {own} {shadow} && exec "$@"'
    server = Sshd(
        tmp_path / "sshd",
        options=("PasswordAuthentication yes", "PubkeyAuthentication no"),
        prefix=("unshare", "--mount", "sh", "-c", bound, "sh"),
    )
    try:
        server.start()
    except AssertionError as error:
        pytest.skip(f"no view of /etc of its own can be had here: {error}")
    yield server
    server.end()


def test_a_password_opens(project: Project, with_password: Sshd, tmp_path: Path) -> None:
    """It comes from a prompt or a file, never from an argument; a wrong one is an error."""
    server = with_password
    words = ["targets", "attach", "ssh", "vm", "--address", "127.0.0.1", "--port", str(server.port)]
    words += ["--username", "root", "--host-key", server.fingerprint(), "--folder", str(server.remote)]
    words += ["--python", sys.executable]
    given = tmp_path / "password"
    given.write_text("wrong\n")
    status, text = run_command([*words, "--password-file", str(given)], whole=True)
    assert (status, "has refused the password" in text) == (2, True)
    assert not (project.workspace.targets_dir / "vm.secret").exists()
    given.write_text("hunter2 secret\n")
    assert main([*words, "--password-file", str(given)]) == 0
    script = (
        "import time\nprint('in', flush=True)\nwhile not __import__('os').path.exists('/proc/self/none'):\n"
    )
    script += "    time.sleep(0.1)\n    break\n"
    folder = project.submit(script, target="vm")
    project.wait_for_status(folder, Status.RUNNING, Status.COMPLETED)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                shown = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            assert b"hunter2 secret" not in shown, entry
    assert wait(folder, project.workspace).status is Status.COMPLETED
    assert_secret_is_kept(project, folder, b"hunter2")
