"""The workspace: the directory that holds registered models, keys and the state of running servers."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.system.durable import private_folder, read_regular

AZURE_FILE: Final = "config.json"
"""The file that names a workspace on Azure, in a folder or in its `.azureml/`."""
AZURE_FOLDER: Final = ".azureml"
_WORKSPACE_FOLDER = ".stoker"
_WORKSPACE_VARIABLE = "STOKER_WORKSPACE"

_MOST_BYTES: Final = 1 << 20
_OWNERS: Final = frozenset({0})
"""The users whose files are trusted besides the own user's: the administrator."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class _Folder:
    """A folder of a workspace, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, workspace: Workspace, _: type) -> Path:
        return workspace.root / self._name


@dataclass(frozen=True, slots=True)
class Workspace:
    """One workspace. Finding it creates nothing; who writes first calls `create`.

    Attributes:
        root: The workspace directory, absolute.
    """

    root: Path

    @classmethod
    def find(cls, explicit: Path | None = None, project: Path | None = None) -> Workspace:
        """Find the workspace.

        Args:
            explicit: The directory given by `--workspace`. Without it the variable STOKER_WORKSPACE decides,
                else the nearest `.stoker/` upward of the current directory, or of a `project` elsewhere, else a new
                one in the project, else in the current directory.
            project: A directory below which everything has one workspace; by default the nearest one upward whose
                `config.json` names a workspace on Azure.

        Raises:
            InvalidSettings: The path is not a directory, or the `.stoker/` that was found upward belongs to
                somebody else, whose models and keys are not to be trusted unasked.
        """
        named = explicit or os.environ.get(_WORKSPACE_VARIABLE)
        if named:
            return cls._named(Path(named))
        here = Path.cwd()
        if project is not None and not here.is_relative_to(project):
            here = project
        for folder in (here, *here.parents):
            candidate = folder / _WORKSPACE_FOLDER
            if candidate.is_dir():
                return cls._trusted(candidate)
        if project is None:
            project = next((folder for folder, file in azure_files(here) if _is_ours(folder, file)), here)
        return cls(project / _WORKSPACE_FOLDER)

    @classmethod
    def _named(cls, root: Path) -> Workspace:
        root = root.expanduser().absolute()
        if root.exists() and not root.is_dir():
            raise InvalidSettings(f"the workspace {root} is not a directory")
        return cls(root)

    @classmethod
    def _trusted(cls, root: Path) -> Workspace:
        owner = _owner(root)
        if owner not in {os.geteuid(), *_OWNERS}:
            raise InvalidSettings(
                f"the workspace {root} belongs to the user with the id {owner}, not to you; if you trust it, "
                f"name it: --workspace {root} or {_WORKSPACE_VARIABLE}={root}"
            )
        return cls(root)

    models_dir = _Folder("models")
    """Folder of the registered models."""
    keys_dir = _Folder("keys")
    """Folder of the services' keys."""
    environments_dir = _Folder("environments")
    """Folder of the virtual environments of models."""
    data_dir = _Folder("data")
    """Folder of the collected requests and answers, by model."""
    model_data_dir = _Folder("modeldata")
    """Folder of data that entry scripts have collected themselves, by service."""
    archives_dir = _Folder("archives")
    """Folder of the unpacked archives of TorchServe, by digest."""
    later_dir = _Folder("later")
    """Folder of the requests that are answered later, and of their answers."""
    engines_dir = _Folder("engines")
    """Folder of TensorRT engines and fused graphs, by model and version."""
    services_dir = _Folder("services")
    """Folder of the services that deployment code has started, by name; see `stoker_azure.sdk`."""
    azure_dir = _Folder("azure")
    """Folder of compute targets and environments of deployment code."""
    runs_dir = _Folder("runs")
    """Folder of the training runs, by experiment."""
    snapshots_dir = _Folder("snapshots")
    """Folder of the source files of training runs, by digest."""
    targets_dir = _Folder("targets")
    """Folder of the compute targets of training runs, by name."""
    run_dir = _Folder("run")
    """Folder of the state of running servers."""

    def create(self) -> Workspace:
        """Create the workspace for its owner alone (mode 0700), out of git's sight; keep one that exists."""
        if not self.root.is_dir():
            private_folder(self.root)
            (self.root / ".gitignore").write_text("*\n", encoding="ascii")
        return self

    def create_run_dir(self) -> Path:
        """Create the workspace and the folder of the state of running servers, for its owner alone (mode 0700).

        One that exists becomes private too, even in a workspace that others may read: it holds requests.
        """
        folder = private_folder(self.create().run_dir)
        if folder.stat().st_mode & _OTHERS:
            # Another owner decides about the mode of the folder.
            with contextlib.suppress(PermissionError):
                folder.chmod(0o700)
        return folder


def azure_files(start: Path, name: str = AZURE_FILE) -> Iterator[tuple[Path, Path]]:
    """The files upward of a folder that may name a workspace on Azure, each with the folder that it is for."""
    for folder in (start, *start.parents):
        # The last is where `write_config(path=".azureml")` puts it.
        for file in (
            folder / AZURE_FOLDER / name,
            folder / name,
            folder / AZURE_FOLDER / AZURE_FOLDER / name,
        ):
            if file.is_file():
                yield folder, file


def read_azure_file(file: Path) -> dict[str, Any] | None:
    """Return the content of a file that names a workspace on Azure; None if the file is something else."""
    try:
        content = json.loads(read_regular(file, _MOST_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("workspace_name"), str):
        return None
    return content


def _is_ours(folder: Path, file: Path) -> bool:
    """Whether a workspace may be created beside a file: the file must be trusted, and the folder writable."""
    try:
        mine = file.stat().st_uid in {os.geteuid(), *_OWNERS} and os.access(folder, os.W_OK)
    except OSError:
        return False
    return mine and read_azure_file(file) is not None


def foreign_writers(path: Path) -> str:
    """Return the other users that may write a file or folder; empty if only this process's user may.

    A group counts that this process is not in. A file that cannot be looked at counts as private.
    """
    try:
        status = path.stat()
    except OSError:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in {os.getegid(), *os.getgroups()}:
        return f"the group with the id {status.st_gid}"
    return ""


def _owner(root: Path) -> int:
    return root.stat().st_uid
