"""Environments of runs: the Python, the record, and environments built from a file."""

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stoker.environments import trial
from stoker.environments.check import notes
from stoker.environments.files import read_environment
from stoker.environments.interpreters import Interpreter
from stoker.environments.specification import Specification
from stoker.environments.trial import import_failed
from stoker.errors import EnvironmentUnusable
from stoker_runs import run_environment
from stoker_runs.environments import dated
from stoker_runs.environments.interpreters import NoPython, choose_run_interpreter
from stoker_runs.environments.requested import RequestedEnvironment, use_interpreter
from stoker_runs.run_environment import as_written, prepare_environment, relaxed


def specification(tmp_path: Path, python: str) -> Specification:
    file = tmp_path / "env.yml"
    file.write_text(f"dependencies: ['python{python}']\n")
    return read_environment(file)


def only(*minors: int) -> Any:
    return lambda minor: Interpreter(Path(f"/py3.{minor}"), (3, minor, 1)) if minor in minors else None


def test_the_named_python_is_taken_then_a_newer_one(tmp_path: Path) -> None:
    """The same minor version first; the nearest newer one with a note; this one where it is allowed."""
    requested = specification(tmp_path, "=3.7")
    assert choose_run_interpreter(requested, only(6, 7, 8))[0].version == (3, 7, 1)
    newer, note = choose_run_interpreter(requested, only(6, 8, 9))
    assert (newer.version, "3.7" in note, "3.8.1 is used" in note) == ((3, 8, 1), True, True)
    this, note = choose_run_interpreter(specification(tmp_path, ">=3.6"), only())
    assert (this.executable, note) == (Path(sys.executable), "")


def test_a_python_that_is_nowhere_is_fetched_or_refused(tmp_path: Path) -> None:
    """A Python that uv fetches is taken; where uv fetches none the message names the missing one."""
    newest = specification(tmp_path, "=3.19")
    there: list[int] = []

    def find(minor: int) -> Interpreter | None:
        found: Interpreter | None = only(*there)(minor)
        return found

    fetched, _ = choose_run_interpreter(newest, find, there.append)
    assert fetched.version == (3, 19, 1)
    with pytest.raises(EnvironmentUnusable, match=r"asks for Python 3\.19, .*runs need Python 3\.6 or newer"):
        choose_run_interpreter(newest, only(), lambda minor: None)


@pytest.mark.parametrize(
    ("python", "minor", "noted"),
    [
        ("", 9, False),
        ("=3.11", 11, False),
        (">=3.10", 12, False),
        ("=3.7", 9, True),
        ("=3.5.2", 9, True),
        ("=2.7", 9, True),
    ],
)
def test_a_python_of_another_machine_is_chosen(tmp_path: Path, python: str, minor: int, noted: bool) -> None:
    """That of the agent if it fits, else the newest that does, else the nearest newer one with a note."""
    there, where = only(9, 11, 12), "on that machine"
    found, note = choose_run_interpreter(specification(tmp_path, python), there, this=there(9), where=where)
    assert (found.version[1], where in note or "3.6 or newer" in note) == (minor, noted)
    with pytest.raises(NoPython, match="on that machine"):
        choose_run_interpreter(
            specification(tmp_path, "=3.14"), there, lambda _: None, this=there(9), where=where
        )


@pytest.mark.parametrize("python", ["=3.5.2", "=2.7", "==3.5", "<3.6"])
def test_a_python_that_is_too_old_becomes_the_nearest_newer_one(tmp_path: Path, python: str) -> None:
    """Never a refusal: one of this machine, else this one; the line says why."""
    found, note = choose_run_interpreter(specification(tmp_path, python), only(8, 9))
    assert found.version == (3, 8, 1)
    assert note.endswith("is asked for, but runs need Python 3.6 or newer: Python 3.8.1 is used")
    assert choose_run_interpreter(specification(tmp_path, python), only())[0].executable == Path(
        sys.executable
    )


def with_tensorflow(tmp_path: Path, *lines: str) -> Specification:
    file = tmp_path / "env.yml"
    file.write_text("dependencies:\n" + "".join(f"- {line}\n" for line in lines))
    return as_written(read_environment(file))


@pytest.mark.parametrize(
    ("lines", "here", "minor", "words"),
    [
        (
            ["tensorflow==1.12"],
            (6, 7),
            6,
            "tensorflow==1.12 has releases for Python 3.6 alone: Python 3.6.1 is used",
        ),
        (["tensorflow=1.13"], (6, 7), 7, "has releases for Python 3.6 and 3.7 alone: Python 3.7.1 is used"),
        (["python=3.6.2", "tensorflow-gpu=1.15"], (6, 7), 6, ""),
        (
            ["python=3.5.2", "tensorflow=1.4"],
            (6, 7),
            6,
            "runs need Python 3.6 or newer: Python 3.6.1 is used",
        ),
        (["python=3.6", "tensorflow==1.15"], (7,), 7, "it is not on this machine: Python 3.7.1 is used"),
        (["pip: ['tensorflow>=1.4,<2']"], (6, 7), 7, "has releases for Python 3.6 and 3.7 alone"),
    ],
)
def test_tensorflow_1_is_taken_exactly_where_a_python_has_it(
    tmp_path: Path, lines: list[str], here: tuple[int, ...], minor: int, words: str
) -> None:
    """Never TensorFlow 2 in its place: the Python is one that has releases of it."""
    requested = with_tensorflow(tmp_path, *lines)
    assert requested.lines[0].startswith("tensorflow")
    assert "1." in requested.lines[0]
    found, note = choose_run_interpreter(requested, only(*here))
    assert found.version[1] == minor
    assert words in note
    assert notes(requested) == (
        ["tensorflow-gpu=1.15: tensorflow, for the run holds no GPU"] if "gpu" in lines[-1] else []
    )


def test_cntk_is_installed_where_a_python_has_it(tmp_path: Path) -> None:
    """Python 3.6 alone; where that is not, the refusal says that no newer release will come."""
    requested = with_tensorflow(tmp_path, "python=3.5.2", "cntk")
    assert requested.lines == ["cntk"]
    assert notes(requested) == []
    assert choose_run_interpreter(requested, only(6, 7))[0].version[1] == 6
    with pytest.raises(
        NoPython, match=r"cntk has releases for Python 3\.6 alone.*: CNTK is no longer published"
    ):
        choose_run_interpreter(requested, only(7), lambda minor: None)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["tensorflow==1.12"],
            "there is none on this machine, nor could uv fetch one: install one where PATH",
        ),
        (
            ["python=3.6", "tensorflow==1.12"],
            "asks for tensorflow==1.12 and Python 3.6; tensorflow==1.12 has releases",
        ),
        (
            ["python=3.8", "tensorflow==1.15"],
            "has releases for Python 3.6 and 3.7 alone: ask for one of these, or",
        ),
    ],
)
def test_tensorflow_1_without_its_python_names_how_to_accept_todays(
    tmp_path: Path, lines: list[str], words: str
) -> None:
    """It is refused with one way out each, and not tried again as of a date."""
    requested = with_tensorflow(tmp_path, *lines)
    with pytest.raises(NoPython, match=r"tensorflow\.compat\.v1 .* with --environment relaxed") as caught:
        choose_run_interpreter(requested, only(8, 9), lambda minor: None)
    assert words in str(caught.value)
    tries = Mock(side_effect=caught.value)
    with pytest.raises(NoPython):
        dated.build_first(
            requested, RequestedEnvironment("exact"), "", lambda _: None, tries, can_date=lambda: True
        )
    assert tries.call_count == 1


@pytest.mark.parametrize(
    ("line", "gpus", "installed"),
    [
        ("tensorflow-gpu", 1, "tensorflow[and-cuda]"),
        ("tensorflow-gpu", 0, "tensorflow"),
        ("tensorflow-gpu>=2.15", 2, "tensorflow[and-cuda]>=2.15"),
        ("tensorflow-gpu==2.3", 1, "tensorflow==2.3"),
        ("tensorflow-gpu==1.12", 1, "tensorflow-gpu==1.12"),
        ("tensorflow-gpu==1.12", 0, "tensorflow==1.12"),
        ("tensorflow", 1, "tensorflow"),
        ("tensorflow-gpu; python_version > '3'", 1, 'tensorflow[and-cuda]; python_version > "3"'),
    ],
)
def test_tensorflow_gpu_brings_cuda_where_a_gpu_is_held(
    tmp_path: Path, line: str, gpus: int, installed: str
) -> None:
    """Its releases of today by their extra, those of version 1 by their own name; without a GPU nothing of it."""
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\n")
    assert as_written(read_environment(file), gpus).lines == [installed]
    if "python" not in line:
        todays = "tensorflow[and-cuda]" if "gpu" in line and gpus else "tensorflow"
        assert todays in relaxed(read_environment(file), gpus).lines


def test_interpreter_is_recorded(tmp_path: Path) -> None:
    """This one and another one: with their packages, without reading any of them."""
    environment = use_interpreter(RequestedEnvironment(), tmp_path / "a")
    assert environment.interpreter == Path(sys.executable)
    lines = (tmp_path / "a" / "got.txt").read_text().splitlines()
    assert lines[0] == "# the interpreter as it is"
    assert any(line.startswith("pytest==") for line in lines)
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    assert use_interpreter(RequestedEnvironment(python=str(other)), tmp_path / "b").interpreter == other
    with pytest.raises(EnvironmentUnusable, match=r"^there is no interpreter .*/none$"):
        use_interpreter(RequestedEnvironment(python=str(tmp_path / "none")), tmp_path / "c")
    other.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(EnvironmentUnusable, match="/python cannot be run"):
        use_interpreter(RequestedEnvironment(python=str(other)), tmp_path / "d")


class Commands:
    """Takes the place of the installer: a virtual environment is a folder with the packages that a test gives."""

    def __init__(self, packages: dict[str, str], status: int = 0) -> None:
        self.packages, self.status = packages, status
        self.seen: list[list[str]] = []

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run the installer's commands and the trial of the installed packages."""
        monkeypatch.setattr(run_environment.Installer, "run", lambda _, command, *rest: self(command))
        monkeypatch.setattr(trial.subprocess, "run", self)

    def __call__(self, command: list[Any], **_: Any) -> "subprocess.CompletedProcess[str]":
        words = [str(word) for word in command]
        self.seen.append(words)
        if "venv" in words:
            site = Path(words[-1]) / "lib" / "python3.11" / "site-packages"
            site.mkdir(parents=True)
            (Path(words[-1]) / "bin").mkdir()
            (Path(words[-1]) / "bin" / "python").symlink_to(sys.executable)
            for name, version in self.packages.items():
                info = site / f"{name}-{version}.dist-info"
                info.mkdir()
                (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
                (info / "RECORD").write_text(f"{name}/__init__.py,,\n")
            return subprocess.CompletedProcess(command, 0, "", "")
        is_check = "-c" in words
        return subprocess.CompletedProcess(
            command, self.status if is_check else 0, "installed", "ImportError: descriptors"
        )


def prepared(
    tmp_path: Path, requested: RequestedEnvironment, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    commands.take_over(monkeypatch)
    folder = tmp_path / "run" / "environment"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "asked.txt").write_text("six==1.16.0\nazureml-defaults\n")
    notes: list[str] = []
    prepare_environment(requested, folder, tmp_path / "environments", notes.append)
    return notes


def test_an_environment_is_built_once_for_each_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run of the same file builds nothing; another date is another environment."""
    commands = Commands({"six": "1.16.0"})
    requested = RequestedEnvironment("exact", file="asked.txt")
    prepared(tmp_path, requested, commands, monkeypatch)
    count = len(commands.seen)
    assert any("import six" in word for words in commands.seen for word in words)
    prepared(tmp_path, requested, commands, monkeypatch)
    assert len(commands.seen) == count
    got = (tmp_path / "run" / "environment" / "got.txt").read_text()
    assert "six==1.16.0" in got
    assert "azureml-defaults: Stoker provides" in got
    notes = prepared(
        tmp_path, RequestedEnvironment("exact", "", "2021-05-01", "asked.txt"), commands, monkeypatch
    )
    assert "packages as of 2021-05-01: later uploads were left out" in notes
    assert any("--exclude-newer" in words and "2021-05-01" in words for words in commands.seen[count:])


def test_environment_that_cannot_be_imported_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the reason, and no folder stays."""
    commands = Commands({"six": "1.16.0"}, status=1)
    with pytest.raises(EnvironmentUnusable, match="cannot be imported: ImportError: descriptors"):
        prepared(tmp_path, RequestedEnvironment("exact", file="asked.txt"), commands, monkeypatch)
    assert [path for path in (tmp_path / "environments").iterdir() if path.is_dir()] == []


def test_a_missing_library_of_the_system_is_named_with_the_remedy(tmp_path: Path) -> None:
    """No package brings it, so what to do is another thing than for packages that do not fit."""
    (tmp_path / "asked.txt").write_text("six\n")
    specification = read_environment(tmp_path / "asked.txt")
    lacking = "ImportError: libmpi_cxx.so.1: cannot open shared object file: No such file or directory"
    for line, has_remedy in ((lacking, True), ("ImportError: descriptors", False)):
        error = import_failed(specification, f"Traceback\n{line}\n")
        assert f"cannot be imported: {line}" in str(error)
        assert ("install it there, or run in a container whose image has it" in str(error)) is has_remedy


def test_pins_that_fit_nothing_today_are_installed_as_of_their_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once more with what there was then; the next run of the same file begins with that."""

    class Then(Commands):
        def __call__(self, command: list[Any], **more: Any) -> "subprocess.CompletedProcess[str]":
            self.status = 0 if any("--exclude-newer" in words for words in self.seen) else 1
            return super().__call__(command, **more)

    requested = RequestedEnvironment("exact", file="asked.txt")
    monkeypatch.setattr(dated, "date_of_pins", lambda _: date(2021, 8, 3))
    monkeypatch.setattr(dated, "python_of_date", lambda _: sys.version_info.minor)
    commands = Then({"six": "1.16.0"})
    notes = prepared(tmp_path, requested, commands, monkeypatch)
    assert any("trying once more as of 2021-08-03" in line for line in notes)
    got = (tmp_path / "run" / "environment" / "got.txt").read_text()
    assert "# packages as of 2021-08-03: later uploads were left out, since the pins do not fit" in got
    count = len(commands.seen)
    prepared(tmp_path, requested, commands, monkeypatch)
    assert len(commands.seen) == count
    monkeypatch.setattr(dated, "date_of_pins", lambda _: None)
    with pytest.raises(EnvironmentUnusable, match="cannot be imported"):
        prepared(tmp_path / "other", requested, Commands({"six": "1"}, status=1), monkeypatch)


@pytest.mark.parametrize(
    ("line", "packages"),
    [
        ("tensorflow==2.4.0", ["tensorflow", "tf-keras"]),
        ("tensorflow-gpu==1.15.0", ["tensorflow", "tf-keras"]),
        ("keras==2.3.1", ["keras", "tf-keras"]),
        ("tensorflow", ["tensorflow"]),
        ("tensorflow==2.18.0", ["tensorflow"]),
        ("torch==1.4.0", ["torch"]),
    ],
)
def test_relaxed_brings_the_keras_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, packages: list[str]
) -> None:
    """Scripts from before Keras 3 find Keras 2, by a variable that is set where its package is there."""
    Commands(dict.fromkeys(packages, "1")).take_over(monkeypatch)
    folder = tmp_path / "run" / "environment"
    folder.mkdir(parents=True)
    (folder / "asked.txt").write_text(f"{line}\n")
    requested = RequestedEnvironment("relaxed", file="asked.txt")
    of_tensorflow_1 = {"STOKER_TENSORFLOW_1": "1"} if "1.15" in line else {}
    built = prepare_environment(requested, folder, tmp_path / "environments", lambda _: None)
    (requirements,) = (tmp_path / "environments").glob("*/requirements.txt")
    assert requirements.read_text().splitlines() == packages
    of_keras_2 = {"TF_USE_LEGACY_KERAS": "1"} if "tf-keras" in packages else {}
    assert dict(built.variables) == of_keras_2 | of_tensorflow_1


@pytest.mark.parametrize(
    ("packages", "variables"),
    [({"tensorflow": "2.21.0"}, {"TF_USE_LEGACY_KERAS": "0"}), ({"tf_keras": "2.21.0"}, {})],
)
def test_a_script_has_the_keras_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], variables: dict[str, str]
) -> None:
    """This holds for a user who has chosen Keras 2 too, which the script's environment lacks."""
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    Commands(packages).take_over(monkeypatch)
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "asked.txt").write_text("tensorflow==2.21.0\n")
    requested = RequestedEnvironment("exact", file="asked.txt")
    ready = prepare_environment(requested, folder, tmp_path / "environments", lambda _: None)
    assert dict(ready.variables) == variables


def test_relaxed_takes_todays_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names stay, the pins go, and a line says so."""
    commands = Commands({"six": "1.17.0"})
    notes = prepared(tmp_path, RequestedEnvironment("relaxed", file="asked.txt"), commands, monkeypatch)
    (requirements,) = (tmp_path / "environments").glob("*/requirements.txt")
    assert requirements.read_text().splitlines() == ["six"]
    assert any(line.startswith("relaxed: today's versions") for line in notes)
