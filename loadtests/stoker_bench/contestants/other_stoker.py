"""The Stoker of another environment, such as an earlier version's: it takes turns with the one that is benched."""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stoker.errors import InvalidSettings
from stoker_bench.contestants.servers import Launch, stoker_launch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["OTHER", "check_python", "other_launch"]

OTHER: Final = "other Stoker"
# Neither the folder nor the path of the bench: a Stoker that is found there is the one that is benched.
_SAFE_PATH: Final = "-P"
_NO_PATH: Final = {"PYTHONPATH": ""}


def other_launch(
    python: Path, model: Path, folder: Path, frontends: int | None = None, options: Sequence[str] = ()
) -> Launch:
    """Start `stoker serve MODEL` of the environment that has this Python, with a key of its own.

    Args:
        python: The environment's Python.
        model: The model's file.
        folder: Where its workspace goes.
        frontends: Frontend processes; None leaves that to it.
        options: Further options of the command.

    Raises:
        InvalidSettings: See `check_python`.
    """
    check_python(python)
    key, workspace = secrets.token_urlsafe(32), folder / "other-workspace"
    launch = stoker_launch(model, workspace, key, frontends, name=OTHER, options=options)
    return replace(
        launch,
        command=(str(python), _SAFE_PATH, *launch.command[1:]),
        environment={**launch.environment, **_NO_PATH},
    )


def check_python(python: Path) -> None:
    """Find out whether this Python has a Stoker.

    Raises:
        InvalidSettings: It has none, or is no Python.
    """
    try:
        tried = subprocess.run(
            [python, _SAFE_PATH, "-c", "import stoker.cli"],
            env={**os.environ, **_NO_PATH},
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise InvalidSettings(
            f"--against {python}: {error.strerror}; it takes the Python of an environment, such as "
            "../before/.venv/bin/python"
        ) from error
    if tried.returncode:
        (*_, reason) = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
        raise InvalidSettings(f"--against {python}: that environment has no Stoker ({reason})")
