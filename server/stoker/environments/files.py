"""Environment files of models and runs: conda's, pip's requirements files, and MLflow's `python_env.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stoker.environments.conda_files import read_conda_file
from stoker.environments.pip_files import read_requirements
from stoker.environments.python_env import PYTHON_ENV, read_python_env
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable

ENVIRONMENT_FILES: Final = (
    *("myenv.yml", "myenv.yaml", "conda.yaml", "conda.yml"),
    *("conda_dependencies.yml", "conda_dependencies.yaml", "environment.yml", "environment.yaml"),
    *(PYTHON_ENV, "requirements.txt"),
)
"""Names of environment files beside a model; the first existing one is used."""


def find_environment(folder: Path) -> Path | None:
    """The environment file of a folder, or None."""
    return next((path for path in (folder / name for name in ENVIRONMENT_FILES) if path.exists()), None)


def read_environment(path: Path) -> Specification:
    """Read an environment file: MLflow's by its name, conda's if it ends in `.yml` or `.yaml`, else pip's."""
    if not path.exists():
        raise EnvironmentUnusable(f"the environment file {path} does not exist")
    if path.name == PYTHON_ENV:
        return read_python_env(path)
    if path.suffix.lower() in (".yml", ".yaml"):
        return read_conda_file(path)
    return read_requirements(path)
