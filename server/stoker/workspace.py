"""The workspace: the directory that holds registered models, keys and the state of running servers."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.errors import InvalidSettings
from stoker.system.durable import private_folder

__all__ = ["Workspace"]

_WORKSPACE_FOLDER = ".stoker"
_WORKSPACE_VARIABLE = "STOKER_WORKSPACE"

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Workspace:
    """One workspace. Finding it creates nothing; who writes first calls `create`.

    Attributes:
        root: The workspace directory, absolute.
    """

    root: Path

    @classmethod
    def find(cls, explicit: Path | None = None) -> Workspace:
        """Find the workspace.

        Args:
            explicit: The directory given by `--workspace`. Without it the variable STOKER_WORKSPACE decides,
                else the nearest `.stoker/` upward of the current directory, else a new one there.

        Raises:
            InvalidSettings: The path is not a directory, or the `.stoker/` that was found upward belongs to
                somebody else, whose models and keys are not to be trusted unasked.
        """
        named = explicit or os.environ.get(_WORKSPACE_VARIABLE)
        if named:
            return cls._named(Path(named))
        here = Path.cwd()
        for folder in (here, *here.parents):
            candidate = folder / _WORKSPACE_FOLDER
            if candidate.is_dir():
                return cls._trusted(candidate)
        return cls(here / _WORKSPACE_FOLDER)

    @classmethod
    def _named(cls, root: Path) -> Workspace:
        root = root.expanduser().absolute()
        if root.exists() and not root.is_dir():
            raise InvalidSettings(f"the workspace {root} is not a directory")
        return cls(root)

    @classmethod
    def _trusted(cls, root: Path) -> Workspace:
        owner = _owner(root)
        if owner not in {os.geteuid(), 0}:
            raise InvalidSettings(
                f"the workspace {root} belongs to the user with the id {owner}, not to you; if you trust it, "
                f"name it: --workspace {root} or {_WORKSPACE_VARIABLE}={root}"
            )
        return cls(root)

    @property
    def models_dir(self) -> Path:
        """Folder of the registered models."""
        return self.root / "models"

    @property
    def keys_dir(self) -> Path:
        """Folder of the services' keys."""
        return self.root / "keys"

    @property
    def environments_dir(self) -> Path:
        """Folder of the virtual environments of models."""
        return self.root / "environments"

    @property
    def data_dir(self) -> Path:
        """Folder of the collected requests and answers, by model."""
        return self.root / "data"

    @property
    def model_data_dir(self) -> Path:
        """Folder of what entry scripts have collected themselves, by service."""
        return self.root / "modeldata"

    @property
    def engines_dir(self) -> Path:
        """Folder of what TensorRT has built of models, by model and version."""
        return self.root / "engines"

    @property
    def services_dir(self) -> Path:
        """Folder of the services that deployment code has started, by name; see `stoker.azure_sdk`."""
        return self.root / "services"

    @property
    def azure_dir(self) -> Path:
        """Folder of what deployment code knows of besides: compute targets and environments."""
        return self.root / "azure"

    @property
    def runs_dir(self) -> Path:
        """Folder of the training runs, by experiment."""
        return self.root / "runs"

    @property
    def snapshots_dir(self) -> Path:
        """Folder of the source files of training runs, by digest."""
        return self.root / "snapshots"

    @property
    def targets_dir(self) -> Path:
        """Folder of the compute targets of training runs, by name."""
        return self.root / "targets"

    @property
    def run_dir(self) -> Path:
        """Folder of the state of running servers."""
        return self.root / "run"

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
            # Where it is somebody else's, that is theirs to say.
            with contextlib.suppress(PermissionError):
                folder.chmod(0o700)
        return folder


def _owner(root: Path) -> int:
    return root.stat().st_uid
