"""Chooses the Python of a run's environment: any from 3.6 up, for the server is not imported in it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from packaging.requirements import Requirement

from stoker.environments.installers import Installer, uv_command
from stoker.environments.interpreters import Interpreter, allows_python, find_interpreter, this_interpreter
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable

_OLDEST_FOR_RUNS: Final = 6
_NEWEST_KNOWN: Final = 20
_TENSORFLOW_1_FROM_3_7: Final = ("1.13.1", "1.13.2", "1.14.0", "1.15.0", "1.15.5")
"""Releases of TensorFlow 1 that Python 3.7 has too; those before stop at 3.6."""


class NoPython(EnvironmentUnusable):
    """There is no Python that the packages of a run allow, so other packages of the same file need not be tried."""


class PythonChoice(Struct, frozen=True):
    """The Python versions that an environment allows.

    Attributes:
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
        fitting = [minor for minor in range(_NEWEST_KNOWN) if allows_python(specification, minor)]
        if not fitting and specification.python.contains("2.7.18"):
            # Python 2 is older than each Python 3.
            fitting = [-1]
        wanted = [minor for minor in reversed(fitting) if minor in allowed]
        newer = [minor for minor in allowed if fitting and minor > max(fitting)]
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

    def missing(self, where: str, here: Sequence[str], advice: str) -> NoPython:
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
        wanted = f"{first} and {python}" if specification.python else str(first)
        usable = self.wanted or self.instead
        return NoPython(
            f"{specification.path.name} asks for {wanted}; {first} has releases for {self._with_releases} alone"
            f"{f', and {nowhere}' if usable else ': ask for one of these'}, {self._way_out}"
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
    *,
    this: Interpreter | None = None,
    where: str = "on this machine",
    there: Sequence[str] = (),
    advice: str = "install one where PATH, pyenv or uv find it",
) -> tuple[Interpreter, str]:
    """Choose the Python of a run's environment.

    In this order: one of those that are asked for, `this` one first; the nearest newer one on the machine that the
    packages allow, with a note; one that uv fetches.

    Args:
        find: Finds Python 3.N on the machine by N.
        fetch: Installs Python 3.N by N; None is by uv of this machine.
        this: The interpreter that is taken first; None is that of Stoker.
        there: Versions of Python on the machine, and what to do without any that fits, for messages.

    Returns:
        The interpreter, and a line that says why it is none of those asked for; empty where it is.

    Raises:
        NoPython: There is none, and none can be fetched.
    """
    this, choice = this or this_interpreter(), PythonChoice.of(specification)
    minor_here = this.version[1]
    if minor_here in choice.wanted:
        return this, choice.note(this, minor_here, where)
    for minor in (*choice.wanted, *choice.instead):
        found = this if minor == minor_here else find(minor)
        if found is not None:
            return found, choice.note(found, minor, where)
    for minor in choice.wanted or choice.instead:
        (fetch or _install_with_uv)(minor)
        if (found := find(minor)) is not None:
            return found, choice.note(found, minor, where)
    raise choice.missing(where if there else f"{where}, nor could uv fetch one", there, advice)


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
