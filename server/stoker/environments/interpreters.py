"""Chooses the Python for the environment of a model or a run: this one, another one on this machine, or one of uv."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from stoker.environments.installers import uv_command
from stoker.environments.specification import Specification

_OLDEST_FOR_DEVICES: Final = 11
_NEWEST_LOOKED_FOR: Final = 20
_PATCHES: Final = 40
_PROBE: Final = "import json, sys; print(json.dumps([sys.executable, *sys.version_info[:3]]))"


class Interpreter(Struct, frozen=True):
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
