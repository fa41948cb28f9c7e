"""Chooses the Python for the environment of a model or a run: this one, another one on this machine, or one of uv."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from stoker.environments.installers import Installer, uv_command
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable

_OLDEST_FOR_DEVICES: Final = 11
_NEWEST_LOOKED_FOR: Final = 20
_PATCHES: Final = 40
_PROBE: Final = "import json, sys; print(json.dumps([sys.executable, *sys.version_info[:3]]))"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python on this machine."""

    executable: Path
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def is_like_this(self) -> bool:
        """Whether it can use compiled packages of the running interpreter."""
        return self.version[:2] == sys.version_info[:2]


def this_interpreter() -> Interpreter:
    """The running interpreter."""
    return Interpreter(Path(sys.executable), sys.version_info[:3])


def choose_interpreter(
    specification: Specification, find: Callable[[int], Interpreter | None] | None = None
) -> tuple[Interpreter, str]:
    """Choose the Python of a model's environment; patch releases count as equal.

    Args:
        find: Finds Python 3.N on this machine by N.

    Returns:
        The interpreter, and a line that says why it is not a requested one; empty if it is.
    """
    this = this_interpreter()
    minors = [minor for minor in range(_NEWEST_LOOKED_FOR + 1) if allows_python(specification, minor)]
    if this.version[1] in minors:
        return this, ""
    for minor in reversed(minors):
        found = (find or find_interpreter)(minor) if minor >= _OLDEST_FOR_DEVICES else None
        if found is not None:
            return found, ""
    reason = (
        "it is not on this machine"
        if any(minor >= _OLDEST_FOR_DEVICES for minor in minors)
        else f"device processes need Python 3.{_OLDEST_FOR_DEVICES} or newer"
    )
    return this, f"Python {specification.python_text} is asked for, but {reason}: Python {this} is used"


def allows_python(specification: Specification, minor: int) -> bool:
    """Whether some Python 3.`minor` satisfies the requirements."""
    return any(specification.python.contains(f"3.{minor}.{patch}") for patch in range(_PATCHES))


def find_interpreter(minor: int) -> Interpreter | None:
    """Find Python 3.`minor` on PATH, or installed by pyenv or uv."""
    for candidate in _candidates(f"3.{minor}"):
        interpreter = _probed(candidate)
        if interpreter is not None and interpreter.version[:2] == (3, minor):
            return interpreter
    return None


def _candidates(version: str) -> Iterator[Path]:
    for folder in os.get_exec_path():
        found = shutil.which(f"python{version}", path=folder)
        if found is not None:
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)
    uv = uv_command()
    if uv is not None:
        command = [
            *uv,
            "python",
            "find",
            "--no-python-downloads",
            "--managed-python",
            "--no-project",
            version,
        ]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())


def _probed(executable: Path) -> Interpreter | None:
    """The interpreter if it runs; None otherwise: version managers have shims for missing interpreters."""
    try:
        answer = subprocess.run(
            [executable, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, check=False, timeout=30
        )
        path, *version = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Interpreter(Path(path), (version[0], version[1], version[2]))


def variables_for(interpreter: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a process run by an interpreter.

    For a virtual environment other than the running one, its commands come first on PATH, and PYTHONPATH is removed
    so that its own packages take precedence.
    """
    if interpreter == Path(sys.executable):
        return dict(variables)
    kept = {name: value for name, value in variables.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    folder = interpreter.parent
    path = os.pathsep.join([str(folder), *filter(None, [variables.get("PATH")])])
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(folder.parent)}


# Which Python a run's environment is made of: any from 3.6 up, for the server is not imported in it.


_OLDEST_FOR_RUNS: Final = 6
_NEWEST_KNOWN: Final = 20
_TENSORFLOW_1_FROM_3_7: Final = ("1.13.1", "1.13.2", "1.14.0", "1.15.0", "1.15.5")
"""Releases of TensorFlow 1 that Python 3.7 has too; those before stop at 3.6."""


class NoPython(EnvironmentUnusable):
    """There is no Python that the packages of a run allow, so other packages of the same file need not be tried."""


@dataclass(frozen=True, slots=True)
class PythonChoice:
    """Which Pythons an environment may be made of.

    Attributes:
        specification: What is asked for.
        wanted: N of each Python 3.N that is asked for, the newest first.
        instead: N of those that may stand in for them, the nearest first.
    """

    specification: Specification
    wanted: Sequence[int]
    instead: Sequence[int]

    @classmethod
    def of(cls, specification: Specification) -> PythonChoice:
        """Return the choice that a file leaves."""
        allowed = [
            minor for minor in range(_OLDEST_FOR_RUNS, _NEWEST_KNOWN) if _have_releases(specification, minor)
        ]
        asked = [minor for minor in range(_NEWEST_KNOWN) if allows_python(specification, minor)]
        if not asked and specification.python.contains("2.7.18"):
            # Python 2 is older than each Python 3.
            asked = [-1]
        wanted = [minor for minor in reversed(asked) if minor in allowed]
        newer = [minor for minor in allowed if asked and minor > max(asked)]
        return cls(specification, wanted, newer)

    def note(self, python: Interpreter | str, minor: int, where: str) -> str:
        """A line that says why a Python is none of those asked for, or which package chose it; empty where neither.

        Args:
            minor: N of it.
            where: Where the one that is asked for is not, such as `on this machine`.
        """
        first = _rare_package(self.specification)
        if minor in self.wanted:
            if first is None or self.specification.python:
                return ""
            return f"{first} has releases for {self._with_releases} alone: Python {python} is used"
        reason = f"it is not {where}" if self.wanted else f"runs need Python 3.{_OLDEST_FOR_RUNS} or newer"
        return f"Python {self.specification.python_text} is asked for, but {reason}: Python {python} is used"

    def missing(
        self,
        where: str,
        here: Sequence[str] = (),
        advice: str = "install one where PATH, pyenv or uv find it",
    ) -> NoPython:
        """The error for a machine or an image without any of them.

        Args:
            here: What is there instead, versions of Python.
        """
        specification = self.specification
        first, python = _rare_package(specification), f"Python {specification.python_text}"
        nowhere = f"there is none {where}{_found_instead(here)}: {advice}"
        if first is None:
            return NoPython(
                f"{specification.path.name} asks for {python}, and {nowhere}, ask for another version (runs need "
                f"Python 3.{_OLDEST_FOR_RUNS} or newer), or take today's packages with --environment relaxed"
            )
        asked = f"{first} and {python}" if specification.python else str(first)
        can_be_had = self.wanted or self.instead
        return NoPython(
            f"{specification.path.name} asks for {asked}; {first} has releases for {self._with_releases} alone"
            f"{f', and {nowhere}' if can_be_had else ': ask for one of these'}, {self._way_out}"
        )

    @property
    def _way_out(self) -> str:
        if self.specification.cntk is not None:
            return "or take another framework: CNTK is no longer published"
        return (
            "or take today's TensorFlow, whose tensorflow.compat.v1 then is what the script imports, with "
            "--environment relaxed"
        )

    @property
    def _with_releases(self) -> str:
        found = [minor for minor in (6, 7) if _have_releases(self.specification, minor)]
        return "Python " + " and ".join(f"3.{minor}" for minor in found)


def _found_instead(here: Sequence[str]) -> str:
    return f" (it has {', '.join(here)})" if here else ""


def _rare_package(specification: Specification) -> Requirement | None:
    """The package that has releases for few Pythons, of those that are known; None where all have some."""
    return specification.cntk or specification.tensorflow_1


def _have_releases(specification: Specification, minor: int) -> bool:
    """Whether the packages that are known to have releases for few Pythons have some for Python 3.`minor`."""
    first = _rare_package(specification)
    if first is None:
        return True
    if specification.cntk is not None:
        return minor == _OLDEST_FOR_RUNS
    of_3_7 = any(first.specifier.contains(version) for version in _TENSORFLOW_1_FROM_3_7)
    return minor == _OLDEST_FOR_RUNS or (minor == _OLDEST_FOR_RUNS + 1 and of_3_7)


def choose_run_interpreter(
    specification: Specification,
    find: Callable[[int], Interpreter | None] = find_interpreter,
    fetch: Callable[[int], None] | None = None,
) -> tuple[Interpreter, str]:
    """Choose the Python of a run's environment.

    In this order: one of those that are asked for, this one first; the nearest newer one on this machine that the
    packages allow, with a note; one that uv fetches.

    Args:
        find: Finds Python 3.N on this machine by N.
        fetch: Installs Python 3.N by N; None is by uv.

    Returns:
        The interpreter, and a line that says why it is none of those asked for; empty where it is.

    Raises:
        NoPython: There is none, and none can be fetched.
    """
    this, choice = this_interpreter(), PythonChoice.of(specification)
    minor_here = this.version[1]
    if minor_here in choice.wanted:
        return this, ""
    for minor in (*choice.wanted, *choice.instead):
        found = this if minor == minor_here else find(minor)
        if found is not None:
            return found, choice.note(found, minor, "on this machine")
    for minor in choice.wanted or choice.instead:
        (fetch or _install_with_uv)(minor)
        if (found := find(minor)) is not None:
            return found, choice.note(found, minor, "on this machine")
    raise choice.missing("on this machine, nor could uv fetch one")


def _install_with_uv(minor: int) -> None:
    """Have uv install Python 3.`minor`; where it cannot, there is none afterwards."""
    uv = uv_command()
    if uv is not None:
        command: Sequence[str] = [*uv, "python", "install", f"3.{minor}"]
        subprocess.run(
            command,
            env=Installer.find().variables(),
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
