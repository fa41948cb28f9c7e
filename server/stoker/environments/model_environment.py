"""The environment of one model: which file describes it, who installs it, and what is to be said about it."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.environments.build import Built, Say, build_environment, find_built
from stoker.environments.check import Finding, compare, notes
from stoker.environments.discovery import LOOKED_FOR, find_environment, read_environment
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable
from stoker.workspace import Workspace

__all__ = ["ModelEnvironment"]

_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class ModelEnvironment:
    """What a model asks for.

    Attributes:
        specification: Its environment file.
        managed_by_system: Whether Stoker installs it, in a virtual environment, else the user has done so.
        built: That virtual environment, once it is there.
    """

    specification: Specification
    managed_by_system: bool
    built: Built | None = None

    @classmethod
    def of(cls, given: Path | None, managed: str, beside: Path | None) -> ModelEnvironment | None:
        """Find and read the environment file of a model.

        Args:
            given: The file that the settings name.
            managed: `user` or `system`.
            beside: The folder in which one of the known names is looked for otherwise, or None.

        Returns:
            None where there is no file.

        Raises:
            EnvironmentUnusable: The file cannot be read, or the system is to manage what no file describes.
        """
        path = given or (find_environment(beside) if beside is not None else None)
        if path is not None:
            return cls(read_environment(path), managed == "system")
        if managed == "system":
            where = f" in {beside}" if beside is not None else ""
            raise EnvironmentUnusable(
                f"there is no environment file to build from{where}: name one (--environment FILE, in a deployment "
                f"file environment:), or put one of these beside the script: {', '.join(LOOKED_FOR)}"
            )
        return None

    @property
    def interpreter(self) -> Path:
        """The Python that runs the model."""
        return Path(sys.executable) if self.built is None else self.built.interpreter

    def prepared(self, workspace: Workspace, framework: str, say: Say) -> ModelEnvironment:
        """Build the virtual environment if the system manages it; else there is nothing to do.

        Raises:
            EnvironmentUnusable: It cannot be built; the message says what to do.
        """
        if not self.managed_by_system:
            return self
        folder = workspace.create().environments_dir
        return dataclasses.replace(self, built=build_environment(self.specification, folder, framework, say))

    def found(self, workspace: Workspace, framework: str) -> ModelEnvironment:
        """The same with its virtual environment, if one has been built before."""
        if not self.managed_by_system:
            return self
        built = find_built(self.specification, workspace.environments_dir, framework)
        return dataclasses.replace(self, built=built)

    def findings(self) -> list[Finding]:
        """What this interpreter lacks; nothing where the system installs it."""
        return [] if self.managed_by_system else compare(self.specification)

    def notes(self) -> list[str]:
        """What is taken for something else than what the file says."""
        python = [self.built.note] if self.built is not None and self.built.note else []
        return [*python, *notes(self.specification)]

    def summary(self) -> str:
        """One line that says how it stands."""
        name = self.specification.path.name
        if not self.managed_by_system:
            return f"{name} (user-managed): {self._compared()}"
        if self.built is None:
            return f"{name} (system-managed): not built yet"
        when = "built before" if self.built.build_s is None else f"built in {self.built.build_s:.1f} s"
        return (
            f"{name} (system-managed): environment {self.built.key} with Python {self.built.python} and "
            f"{_counted(len(self.built.packages))} of its own, {when}"
        )

    def lines(self) -> list[str]:
        """The summary, and a line for each thing to know; of many the first ones."""
        items = [f"{finding.kind:<8} {finding.text}" for finding in self.findings()]
        items += [f"{'note':<8} {note}" for note in self.notes()]
        more = [f"and {len(items) - _SHOWN} more: stoker doctor lists them"] if len(items) > _SHOWN else []
        return [self.summary(), *items[:_SHOWN], *more]

    def _compared(self) -> str:
        count = sum(entry.applies for entry in self.specification.entries)
        kinds = [finding.kind for finding in self.findings()]
        missing, other = kinds.count("missing"), kinds.count("version")
        asked = f"{_counted(count)} asked for"
        if not missing and not other:
            return f"{asked}, all there"
        parts = [f"{missing} missing"] * bool(missing) + [f"{other} in another version"] * bool(other)
        return f"{asked}, {', '.join(parts)}"


def _counted(packages: int) -> str:
    return f"{packages} {'package' if packages == 1 else 'packages'}"
