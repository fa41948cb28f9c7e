"""Finds a model's environment file, and reads it in any of the supported formats."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stoker.environments.conda_file import read_conda_file
from stoker.environments.python_env import PYTHON_ENV, read_python_env
from stoker.environments.requirements_file import read_requirements
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable

__all__ = ["LOOKED_FOR", "find_environment", "read_environment"]

LOOKED_FOR: Final = (
    *("myenv.yml", "myenv.yaml", "conda.yaml", "conda.yml"),
    *("conda_dependencies.yml", "conda_dependencies.yaml", "environment.yml", "environment.yaml"),
    *(PYTHON_ENV, "requirements.txt"),
)
"""Names of environment files beside a model; the first existing one is used."""


def find_environment(folder: Path) -> Path | None:
    """The environment file of a folder, or None."""
    return next((path for path in (folder / name for name in LOOKED_FOR) if path.is_file()), None)


def read_environment(path: Path) -> Specification:
    """Read an environment file: MLflow's by its name, one of conda if it ends in `.yml` or `.yaml`, else one of pip.

    Raises:
        EnvironmentUnusable: The file cannot be read; the message names the line.
    """
    if not path.is_file():
        raise EnvironmentUnusable(f"the environment file {path} does not exist")
    if path.name == PYTHON_ENV:
        return read_python_env(path)
    if path.suffix.lower() in (".yml", ".yaml"):
        return read_conda_file(path)
    return read_requirements(path)
