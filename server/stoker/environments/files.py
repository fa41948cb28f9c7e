"""Reads environment files of models and runs: conda's, pip's requirements files, and MLflow's `python_env.yaml`."""

from __future__ import annotations

from pathlib import Path

from stoker.environments.conda_files import read_conda_file
from stoker.environments.location import PYTHON_ENV
from stoker.environments.pip_files import read_requirements
from stoker.environments.python_env import read_python_env
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable


def read_environment(path: Path) -> Specification:
    """Read an environment file: MLflow's by its name, conda's if it ends in `.yml` or `.yaml`, else pip's."""
    if not path.exists():
        raise EnvironmentUnusable(f"the environment file {path} does not exist")
    if path.name == PYTHON_ENV:
        return read_python_env(path)
    if path.suffix.lower() in (".yml", ".yaml"):
        return read_conda_file(path)
    return read_requirements(path)
