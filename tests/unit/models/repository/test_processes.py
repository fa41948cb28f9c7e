"""Registered models in the hands of several processes, some of which are killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PROGRAM_S
from tests.unit.models.repository.conftest import NOW, contents_of, registered_script

from stoker.errors import ModelInUse, UnknownModel
from stoker.models.repository import Repository

PREFIX = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from stoker.models.repository import Repository
repository = Repository(Path(sys.argv[1]))
"""

REGISTER = (
    PREFIX
    + """
waited = []
def progress(copied, total):
    if not waited:
        waited.append(True)
        print("copying", flush=True)
        sys.stdin.readline()
print(repository.register("digits", Path(sys.argv[2]), now=datetime.now(UTC), progress=progress).version)
"""
)

REGISTER_MANY = (
    PREFIX
    + """
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    print(repository.register("digits", Path(sys.argv[2]), now=datetime.now(UTC)).version)
"""
)

HOLD = (
    PREFIX
    + """
with repository.get("digits").hold():
    print("held", flush=True)
    sys.stdin.readline()
"""
)


def start(code: str, *args: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PROGRAM_S)


def test_registering_at_once_gives_two_versions(repository: Repository, script: Path) -> None:
    """Processes that copy at the same time get different numbers, and each version is whole."""
    processes = [start(REGISTER, repository.models_dir, script) for _ in range(3)]
    assert [first_line(process) for process in processes] == ["copying"] * 3
    assert repository.list() == []
    outputs = [process.communicate("go\n", timeout=PROGRAM_S)[0] for process in processes]
    assert sorted(outputs) == ["1\n", "2\n", "3\n"]
    assert [model.version for model in repository.list()] == [1, 2, 3]
    for model in repository.list():
        model.verify()
    assert contents_of(repository.models_dir / ".staging") == []


def test_many_registrations_at_once_lose_none(repository: Repository, onnx: Path) -> None:
    """Three processes that register again and again give out each number once."""
    processes = [start(REGISTER_MANY, repository.models_dir, onnx) for _ in range(3)]
    assert [first_line(process) for process in processes] == ["ready"] * 3
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    numbers = [
        int(line) for process in processes for line in process.communicate(timeout=PROGRAM_S)[0].split()
    ]
    assert sorted(numbers) == list(range(1, 61))


def test_a_killed_registration_leaves_nothing_half_registered(repository: Repository, script: Path) -> None:
    """After kill -9 during a copy nothing is registered, and the next registration removes the rest."""
    process = start(REGISTER, repository.models_dir, script)
    assert first_line(process) == "copying"
    kill(process)
    staging = repository.models_dir / ".staging"
    assert any(staging.rglob("model"))
    assert repository.list() == []
    with pytest.raises(UnknownModel):
        repository.get("digits")
    registered = repository.register("digits", script, now=NOW)
    assert registered.version == 1
    registered.verify()
    assert contents_of(staging) == []


def test_a_registration_that_gets_sigterm_leaves_nothing(repository: Repository, script: Path) -> None:
    """SIGTERM removes the copy under way, as Ctrl-C does."""
    process = start(REGISTER, repository.models_dir, script)
    assert first_line(process) == "copying"
    process.terminate()
    process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 143
    assert contents_of(repository.models_dir) == [".staging"]


def test_an_unfinished_copy_of_a_living_process_is_kept(repository: Repository, script: Path) -> None:
    """Another registration leaves the temporary folder of a living process alone."""
    process = start(REGISTER, repository.models_dir, script)
    assert first_line(process) == "copying"
    repository.register("digits", script, now=NOW)
    assert process.communicate("go\n", timeout=PROGRAM_S)[0] == "2\n"
    repository.get("digits", 2).verify()


def test_the_hold_of_a_killed_server_ends_with_it(repository: Repository, script: Path) -> None:
    """A version is in use while another process holds it, and free once that was killed."""
    registered_script(repository, script)
    process = start(HOLD, repository.models_dir)
    assert first_line(process) == "held"
    with pytest.raises(ModelInUse):
        repository.delete("digits", 1)
    kill(process)
    repository.delete("digits", 1)
    assert repository.list() == []


def test_remains_of_crashes_are_removed(repository: Repository, script: Path) -> None:
    """Folders without owner and lock files without folder, as crashes leave them, go with the next change."""
    staging = repository.models_dir / ".staging"
    (staging / "abandoned" / "version").mkdir(parents=True)
    (staging / "orphan.lock").touch()
    repository.register("digits", script, now=NOW)
    assert sorted(path.name for path in staging.iterdir()) == [".lock"]
