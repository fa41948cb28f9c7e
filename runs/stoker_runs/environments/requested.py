"""The environment that a run requests, the record of its packages, and interpreters that are used as they are.

This module reads no environment files, so runs in Stoker's own Python start without the libraries for that.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder
from stoker_run.interpreters import installed_packages

_SEPARATORS: Final = re.compile(r"[-_.]+")


class RequestedEnvironment(Struct, frozen=True):
    """The requested environment of a run.

    Attributes:
        kind: `user`, an interpreter as it is; `exact`, the versions of a file; `relaxed`, its packages in current
            versions.
        python: The interpreter for `user`; empty for the one that runs Stoker.
        as_of: A date, `YYYY-MM-DD`: packages uploaded later are ignored; empty for no limit.
        file: Name of the file in the run's folder; empty if there is none.
    """

    kind: str = "user"
    python: str = ""
    as_of: str = ""
    file: str = ""

    def to_json(self) -> dict[str, str]:
        """Return its entry in `run.json`."""
        return {"kind": self.kind, "python": self.python, "as_of": self.as_of, "file": self.file}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RequestedEnvironment:
        """Inverse of `to_json`."""
        return cls(**{name: str(content[name]) for name in cls.__struct_fields__ if name in content})


class RunEnvironment(Struct, frozen=True):
    """An environment that is ready for use."""

    interpreter: Path
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)
    packages: Mapping[str, str] = msgspec.field(default_factory=dict)


def use_interpreter(requested: RequestedEnvironment, folder: Path) -> RunEnvironment:
    """Use an interpreter as it is, and record its packages.

    Args:
        folder: `environment/` of the run.

    Raises:
        EnvironmentUnusable: The interpreter cannot be run.
    """
    interpreter = Path(requested.python or sys.executable)
    if shutil.which(interpreter) is None:
        raise EnvironmentUnusable(f"there is no interpreter {interpreter}")
    found = installed_packages(str(interpreter))
    if "error" in found:
        raise EnvironmentUnusable(f"the Python {interpreter} cannot be run ({found['error']})")
    packages = packages_named(found["names"])
    python = f"Python {found['version']} ({interpreter})"
    record_packages(folder, ["the interpreter as it is"], python, packages)
    return RunEnvironment(interpreter, {}, packages)


def packages_named(folders: Iterable[str]) -> dict[str, str]:
    """Return versions by normalised name from the names of packages' folders: reading their metadata takes long."""
    packages: dict[str, str] = {}
    for entry in folders:
        name, dash, version = entry.partition("-")
        if dash:
            packages.setdefault(_SEPARATORS.sub("-", name).lower(), version)
    return dict(sorted(packages.items()))


def record_packages(
    folder: Path, differences: Sequence[str], python: str, packages: Mapping[str, str]
) -> None:
    """Write `got.txt`: the differences from the requested environment, then all packages."""
    lines = [*(f"# {line}" for line in differences), f"# {python}"]
    lines += [f"{name}=={version}" for name, version in packages.items()]
    private_folder(folder)
    (folder / "got.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
