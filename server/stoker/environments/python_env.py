"""MLflow's `python_env.yaml`: a version of Python, and lines for pip, mostly `-r requirements.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from stoker.environments.pip_files import PipLines
from stoker.environments.specification import Place, Specification
from stoker.errors import EnvironmentUnusable, InvalidSettings
from stoker.settings.yaml_files import read_yaml

"""The name by which such a file is known."""
_PYTHON_ENV_SECTIONS: Final = ("python", "build_dependencies", "dependencies")


def read_python_env(path: Path) -> Specification:
    """Read such a file, without its `build_dependencies`: wheels are installed."""
    path = path.absolute()
    try:
        content = read_yaml(path, "environment file", "python and dependencies")
    except InvalidSettings as error:
        raise EnvironmentUnusable(str(error)) from error
    unknown = [str(name) for name in content if name not in _PYTHON_ENV_SECTIONS]
    if unknown:
        raise EnvironmentUnusable(
            f"{path}: there is no section {unknown[0]!r}; known are: {', '.join(_PYTHON_ENV_SECTIONS)}"
        )
    lines = content.get("dependencies") or []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise EnvironmentUnusable(f"{path}: dependencies must be a list of lines for pip")
    pip = PipLines()
    for number, line in enumerate(lines, 1):
        pip.add(line, Place(path, number))
    python = SpecifierSet()
    if content.get("python") is not None:
        try:
            # Of patch releases any will do, as in the files of conda.
            python = SpecifierSet(f"=={'.'.join(str(content['python']).split('.')[:2])}.*")
        except InvalidSpecifier:
            raise EnvironmentUnusable(
                f"{path}: python must be a version, got {content['python']!r}"
            ) from None
    return Specification(
        path, tuple(pip.entries), python, tuple(dict.fromkeys(pip.options)), tuple(pip.files)
    )
