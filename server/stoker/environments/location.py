"""Finds the environment file of a model or a run, without what reads it: most have none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stoker.errors import EnvironmentUnusable

PYTHON_ENV: Final = "python_env.yaml"
ENVIRONMENT_FILES: Final = (
    *("myenv.yml", "myenv.yaml", "conda.yaml", "conda.yml"),
    *("conda_dependencies.yml", "conda_dependencies.yaml", "environment.yml", "environment.yaml"),
    *(PYTHON_ENV, "requirements.txt"),
)
"""Names of environment files beside a model; the first existing one is used."""


def find_environment(folder: Path) -> Path | None:
    """The environment file of a folder, or None."""
    return next((path for path in (folder / name for name in ENVIRONMENT_FILES) if path.exists()), None)


def locate_environment(given: Path | None, managed: str, beside: Path | None) -> Path | None:
    """Return the environment file of a model: the given one, or one with a known name in the folder `beside`.

    Args:
        managed: `user` or `system`, which needs a file.
    """
    path = given or (find_environment(beside) if beside is not None else None)
    if path is None and managed == "system":
        where = f" in {beside}" if beside is not None else ""
        raise EnvironmentUnusable(
            f"there is no environment file to build from{where}: name one (--environment FILE, in a deployment "
            f"file environment:), or put one of these beside the script: {', '.join(ENVIRONMENT_FILES)}"
        )
    return path
