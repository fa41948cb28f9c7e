"""Missing packages of an interpreter, and the choice of a model's interpreter."""

import platform
import stat
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from stoker.environments import installers, interpreters
from stoker.environments.check import ModelEnvironment, compare, installed_version, notes
from stoker.environments.files import read_environment
from stoker.environments.interpreters import (
    Interpreter,
    choose_interpreter,
    find_interpreter,
    this_interpreter,
)
from stoker.environments.location import locate_environment
from stoker.environments.specification import Specification
from stoker.environments.trial import frameworks_without_gpus
from stoker.environments.variables import variables_for
from stoker.errors import EnvironmentUnusable

THIS_MINOR = sys.version_info.minor


def asks(tmp_path: Path, *lines: str) -> Specification:
    file = tmp_path / "requirements.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return read_environment(file)


def asks_for_python(specifier: str) -> Specification:
    return Specification(Path("conda.yaml"), (), SpecifierSet(specifier))


def test_missing_and_other_versions_are_found(tmp_path: Path) -> None:
    """Each finding has the wanted version, the present one and the place; matching ones are silent."""
    specification = asks(tmp_path, "six==1.16.*", "numpy>=2", "nothing-like-it", "tqdm>=4")
    there = {"six": "1.17.0", "numpy": "2.4.6", "tqdm": "4.0rc1"}
    assert [(finding.kind, finding.text) for finding in compare(specification, there.get)] == [
        ("version", "six==1.16.*: six 1.17.0 is installed (requirements.txt, line 1)"),
        ("missing", "nothing-like-it (requirements.txt, line 3)"),
        ("version", "tqdm>=4: tqdm 4.0rc1 is installed (requirements.txt, line 4)"),
    ]


def test_a_pre_release_that_is_installed_counts(tmp_path: Path) -> None:
    """An installed release candidate above the bound is intended."""
    assert compare(asks(tmp_path, "six>=1.16"), {"six": "1.17rc1"}.get) == []


def test_entries_for_other_machines_and_without_a_name_are_passed_over(tmp_path: Path) -> None:
    """A marker that is false here, an unnamed URL, and what Stoker provides ask for nothing."""
    specification = asks(
        tmp_path, "six; python_version < '3'", "https://files.example/a.zip", "azureml-defaults"
    )
    assert compare(specification, {}.get) == []


@pytest.mark.parametrize(
    ("requested", "there"),
    [
        ("opencv-python==4.5.5", "opencv-python-headless"),
        ("onnxruntime==4.5.5", "onnxruntime-gpu"),
        ("tensorflow-gpu==4.5.5", "tensorflow-cpu"),
    ],
)
def test_packages_of_one_content_stand_for_each_other(tmp_path: Path, requested: str, there: str) -> None:
    """The build for GPUs, or the one without a window system, satisfies the requirement; its version counts."""
    specification = asks(tmp_path, requested)
    assert compare(specification, {there: "4.5.5"}.get) == []
    (finding,) = compare(specification, {there: "5"}.get)
    assert (finding.kind, f"{there} 5 is installed" in finding.text) == ("version", True)


@pytest.mark.parametrize(
    ("specifier", "fine"),
    [
        ("", True),
        (f"==3.{THIS_MINOR}.*", True),
        (f"==3.{THIS_MINOR}.0.*", True),
        (">=3.6", True),
        ("==3.6.2.*", False),
        ("<3.9", False),
    ],
)
def test_python_counts_without_its_last_number(specifier: str, fine: bool) -> None:
    """Python 3.11.4 asked for and 3.11.7 there is no difference worth a line."""
    findings = compare(asks_for_python(specifier), {}.get)
    assert [finding.kind for finding in findings] == ([] if fine else ["python"])


def test_comparison_uses_this_interpreter_by_default(tmp_path: Path) -> None:
    """Installed versions are those of the running server."""
    assert installed_version("pytest") == pytest.__version__
    assert compare(asks(tmp_path, f"pytest=={pytest.__version__}")) == []


def test_notes_are_gathered_by_reason(tmp_path: Path) -> None:
    """An exported conda file with many system libraries makes one line of them."""
    specification = asks(tmp_path, "azureml-core", "azureml-defaults", "six", "sklearn")
    assert notes(specification) == [
        "azureml-core, azureml-defaults: Stoker provides what scripts import from it, "
        "where it is not installed",
        "sklearn: called scikit-learn on PyPI",
    ]


def test_the_summary_counts(tmp_path: Path) -> None:
    """One line for a model whose packages are there; the differences otherwise, one each."""
    fine = ModelEnvironment(asks(tmp_path, f"pytest=={pytest.__version__}"), managed_by_system=False)
    assert fine.lines() == ["requirements.txt (user-managed): 1 package asked for, all there"]
    lacking = ModelEnvironment(
        asks(tmp_path, "pytest<1", "no-such-package", "pyyaml"), managed_by_system=False
    )
    assert lacking.lines() == [
        "requirements.txt (user-managed): 3 packages asked for, 1 missing, 1 in another version",
        f"version  pytest<1: pytest {pytest.__version__} is installed (requirements.txt, line 1)",
        "missing  no-such-package (requirements.txt, line 2)",
    ]
    assert lacking.interpreter == Path(sys.executable)


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    """The start-up shows the first twenty and says where the others are."""
    names = [f"no-such-package-{number}" for number in range(25)]
    first, *items, last = ModelEnvironment(asks(tmp_path, *names), managed_by_system=False).lines()
    assert first.endswith("25 packages asked for, 25 missing")
    assert (len(items), last) == (20, "and 5 more: stoker doctor lists them")


def test_the_file_that_is_given_counts_before_the_one_beside(tmp_path: Path) -> None:
    """A setting wins over a file found; without either there is no finding."""
    given = tmp_path / "given.txt"
    given.write_text("six\n")
    assert locate_environment(given, "user", tmp_path) == given
    assert locate_environment(None, "user", tmp_path) is None
    assert locate_environment(None, "user", None) is None
    (tmp_path / "requirements.txt").write_text("tqdm\n")
    assert locate_environment(None, "system", tmp_path) == tmp_path / "requirements.txt"


def test_the_system_needs_a_file(tmp_path: Path) -> None:
    """There is nothing to build from: the message says which files are looked for, and where."""
    with pytest.raises(
        EnvironmentUnusable, match=r"no environment file .*myenv\.yml.*requirements\.txt"
    ) as caught:
        locate_environment(None, "system", tmp_path)
    assert str(tmp_path) in str(caught.value)


def find_no_python(minor: int) -> Interpreter | None:
    return None


def other(minor: int) -> Interpreter | None:
    return Interpreter(Path(f"/usr/bin/python3.{minor}"), (3, minor, 1))


@pytest.mark.parametrize("specifier", ["", ">=3.8", f"==3.{THIS_MINOR}.*", f"==3.{THIS_MINOR}.1"])
def test_this_python_is_taken_where_it_will_do(specifier: str) -> None:
    """Nobody searches for another Python if the running one is among those asked for."""
    assert choose_interpreter(asks_for_python(specifier), other) == (this_interpreter(), "")


def test_requested_python_is_used() -> None:
    """The newest of those that the file allows and the machine has."""
    chosen, note = choose_interpreter(
        asks_for_python(f">3.{THIS_MINOR},<3.{THIS_MINOR + 3},!=3.{THIS_MINOR}.*"), other
    )
    assert (chosen.version[1], note) == (THIS_MINOR + 2, "")
    assert not chosen.is_like_this


@pytest.mark.parametrize(
    ("specifier", "reason"),
    [("==3.6.2.*", "need Python 3.11 or newer"), (f"==3.{THIS_MINOR + 1}.*", "it is not on this machine")],
)
def test_missing_python_is_reported(specifier: str, reason: str) -> None:
    """The running one is used then, and a line says why."""
    find = other if "3.6" in specifier else find_no_python
    chosen, note = choose_interpreter(asks_for_python(specifier), find)
    assert chosen == this_interpreter()
    assert reason in note
    assert note.endswith(f"Python {platform.python_version()} is used")


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_interpreters_are_found_on_path_if_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version managers leave shims without a Python behind them, and names can lie: each is started and asked."""
    monkeypatch.setattr(interpreters, "uv_command", lambda: None)
    program(tmp_path / "a", "python3.19", "echo 'no such version' >&2; exit 127")
    program(tmp_path / "b", "python3.19", """echo '["/b/python3.18", 3, 18, 2]'""")
    program(tmp_path / "c", "python3.19", """echo '["/c/python3.19", 3, 19, 4]'""")
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    assert find_interpreter(19) is None
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}:{tmp_path / 'b'}:{tmp_path / 'c'}")
    assert find_interpreter(19) == Interpreter(Path("/c/python3.19"), (3, 19, 4))


def test_pythons_of_uv_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pythons of `uv python install` count; nothing is downloaded for the search."""
    python = program(tmp_path, "theirs", """echo '["/uv/python3.19", 3, 19, 0]'""")
    uv = program(tmp_path, "uv", f'echo "$@" > {tmp_path}/asked; echo {python}')
    monkeypatch.setattr(interpreters, "uv_command", lambda: (str(uv),))
    assert find_interpreter(19) == Interpreter(Path("/uv/python3.19"), (3, 19, 0))
    arguments = (tmp_path / "asked").read_text()
    assert arguments.startswith("python find ")
    assert "--no-python-downloads" in arguments


def test_uv_is_found_as_a_package_or_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importable first, for its version is ours; else the program; else pip has to do."""
    monkeypatch.setattr(installers, "find_spec", lambda name: object())
    assert installers.uv_command() == (sys.executable, "-P", "-m", "uv")
    monkeypatch.setattr(installers, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (installers.uv_command(), str(installers.Installer.find())) == (None, "pip")
    uv = program(tmp_path, "uv", "")
    assert (installers.uv_command(), str(installers.Installer.find())) == ((str(uv),), "uv")


def test_a_virtual_environment_is_entered_whole(tmp_path: Path) -> None:
    """Its commands come first, and PYTHONPATH does not put other packages before its own; ours is left alone."""
    variables = {"PATH": "/bin", "PYTHONPATH": "/else", "HOME": "/home/me"}
    python = tmp_path / "venv" / "bin" / "python"
    assert variables_for(python, variables) == {
        "PATH": f"{python.parent}:/bin",
        "HOME": "/home/me",
        "VIRTUAL_ENV": str(tmp_path / "venv"),
    }
    assert variables_for(Path(sys.executable), variables) == variables


def test_indexes_that_were_set_for_pip_serve_uv_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of uv are others; those that are set win."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    monkeypatch.setenv("UV_FIND_LINKS", "/c")
    monkeypatch.setenv("PYTHONPATH", "/else")
    variables = installers.Installer(("uv",)).variables()
    assert variables["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    assert variables["UV_FIND_LINKS"] == "/c"
    assert "PYTHONPATH" not in variables
    assert "UV_DEFAULT_INDEX" not in installers.Installer(None).variables()


def test_options_of_pip_become_arguments_of_uv(tmp_path: Path) -> None:
    """Some options uv takes on its command line only; pip reads all from the file."""
    options = (
        "--index-url https://index.example/simple",
        "--pre",
        "--trusted-host index.example",
        "--prefer-binary",
    )
    uv, pip = installers.Installer(("uv",)), installers.Installer(None)
    assert uv.requirements(["six"], options) == "--index-url https://index.example/simple\nsix\n"
    assert pip.requirements(["six"], options) == "".join(f"{line}\n" for line in (*options, "six"))
    command = " ".join(uv.installation(tmp_path, tmp_path / "r.txt", options))
    assert "--prerelease allow --allow-insecure-host index.example --requirement" in command


def test_progress_of_an_installer_is_its_last_line(tmp_path: Path) -> None:
    """Packages of some GB take minutes; at the end its whole output is there, errors too."""
    reports, seen = list[str](), tmp_path / "seen"

    def lasts(line: str) -> None:
        reports.append(line)
        if line == "Downloading tensorflow":
            seen.touch()

    waits = (
        "import os, sys\nprint('Resolved')\nprint('Downloading tensorflow', file=sys.stderr, flush=True)\n"
    )
    waits += f"while not os.path.exists({str(seen)!r}): pass\nprint('Installed')\nsys.exit(3)"
    with (tmp_path / "lock").open("w") as lock:
        command = [sys.executable, "-u", "-c", waits]
        done = installers.Installer(None).run(command, lock.fileno(), tmp_path, lasts, interval_s=0.01)
    assert "Downloading tensorflow" in reports
    assert (done.returncode, done.stdout) == (3, "Resolved\nDownloading tensorflow\nInstalled\n")


@pytest.mark.parametrize(
    ("packages", "libraries", "words"),
    [
        ({"tensorflow": "2.21.0"}, "libc.so.6", ["tensorflow 2.21.0 will not use: neither its packages nor"]),
        ({"tensorflow": "2.21.0", "nvidia-cudnn-cu12": "9.3"}, "", []),
        ({"tensorflow": "2.3.0"}, "libcudnn.so.7 (libc6,x86-64)", []),
        ({"tensorflow-cpu": "2.15.0"}, "libcudnn.so.9", ["tensorflow-cpu will not use"]),
        ({"torch": "2.9.0+cpu"}, "", ["torch 2.9.0+cpu will not use"]),
        ({"torch": "2.9.0"}, "", []),
        ({"jax": "0.6.0"}, "", ["jax 0.6.0 will not use: ask for jax[cuda12]"]),
        ({"jax": "0.6.0", "jax-cuda12-plugin": "0.6.0"}, "", []),
        ({"numpy": "2.0"}, "", []),
    ],
)
def test_framework_without_cuda_is_reported_for_runs_with_gpus(
    packages: dict[str, str], libraries: str, words: list[str]
) -> None:
    """By its packages and the libraries of the machine; a run without GPUs hears nothing."""
    lines = frameworks_without_gpus(2, packages, lambda _: libraries)
    assert len(lines) == len(words)
    assert all(
        line.startswith("the run holds 2 GPUs, which") and word in line
        for line, word in zip(lines, words, strict=True)
    )
    assert frameworks_without_gpus(0, packages, lambda _: libraries) == []
