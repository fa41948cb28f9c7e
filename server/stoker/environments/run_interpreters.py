"""Which Python a run's environment is made of: any from 3.6 up, for the server is not imported in it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from stoker.environments.installers import Installer, uv_command
from stoker.environments.interpreters import (
    Interpreter,
    allows_python,
    find_interpreter,
    this_interpreter,
)
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable

__all__ = ["choose_run_interpreter"]

_OLDEST: Final = 6
_NEWEST: Final = 20


def choose_run_interpreter(
    specification: Specification,
    find: Callable[[int], Interpreter | None] = find_interpreter,
    fetch: Callable[[int], None] | None = None,
) -> tuple[Interpreter, str]:
    """Choose the Python of a run's environment.

    In this order: one of those that are asked for, this one first; the nearest newer one on this machine, with a
    note; one that uv fetches.

    Args:
        specification: What the run asks for.
        find: Finds Python 3.N on this machine by N.
        fetch: Installs Python 3.N by N; None is by uv.

    Returns:
        The interpreter, and a line that says why it is none of those asked for; empty where it is.

    Raises:
        EnvironmentUnusable: There is none, and none can be fetched.
    """
    this = this_interpreter()
    minors = [minor for minor in range(_OLDEST, _NEWEST) if allows_python(specification, minor)]
    if this.version[1] in minors:
        return this, ""
    for minor in reversed(minors):
        if (found := find(minor)) is not None:
            return found, ""
    asked = f"Python {specification.python_text}"
    newest = max(minors, default=0)
    for minor in range(newest + 1, _NEWEST):
        newer = this if minor == this.version[1] else find(minor)
        if newer is not None and newest:
            return newer, f"{asked} is asked for, but it is not on this machine: Python {newer} is used"
    for minor in reversed(minors):
        (fetch or _fetch)(minor)
        if (found := find(minor)) is not None:
            return found, ""
    raise EnvironmentUnusable(
        f"{specification.path}: {asked} is asked for, and there is none on this machine, nor could uv "
        f"fetch one; runs need Python 3.{_OLDEST} or newer: change the version, install it where PATH, pyenv "
        "or uv find it, or take today's packages with --environment relaxed"
    )


def _fetch(minor: int) -> None:
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
