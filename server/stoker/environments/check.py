"""The environment of a model: its packages compared with the installed ones, its virtual environment, its summary."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct
from packaging.requirements import Requirement

from stoker.environments.build import Built, Say, build_environment, find_built
from stoker.environments.installers import mask_secrets
from stoker.environments.interpreters import allows_python
from stoker.environments.package_names import EQUIVALENTS
from stoker.environments.specification import Entry, Specification
from stoker.settings.workspace import Workspace
from stoker.system.wording import format_count


class Finding(Struct, frozen=True):
    """One mismatch between a model's requirements and an interpreter."""

    kind: Literal["missing", "version", "python"]
    text: str


def installed_version(name: str) -> str | None:
    """The version of a package in this interpreter, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def compare(
    specification: Specification, installed: Callable[[str], str | None] = installed_version
) -> list[Finding]:
    """List the mismatches between a model's requirements and this interpreter.

    Entries without a known name (URLs, paths), or whose marker excludes this machine, are skipped. Extras are not
    checked.

    Args:
        installed: Returns the installed version of a package by its normalised name.
    """
    findings = []
    if not allows_python(specification, sys.version_info.minor):
        problem = f"{specification.python_text} is asked for, this is {platform.python_version()}"
        findings.append(Finding("python", problem))
    for entry in specification.entries:
        if entry.applies and entry.requirement is not None:
            finding = _finding(entry, entry.requirement, installed)
            if finding is not None:
                findings.append(finding)
    return findings


def _finding(
    entry: Entry, requirement: Requirement, installed: Callable[[str], str | None]
) -> Finding | None:
    found = _found(requirement.name, installed)
    wanted = f"{requirement.name}{requirement.specifier}"
    if found is None:
        return Finding("missing", f"{wanted} ({entry.place.short})")
    name, version = found
    # An installed pre-release is assumed to be intended.
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return Finding("version", f"{wanted}: {name} {version} is installed ({entry.place.short})")


def _found(name: str, installed: Callable[[str], str | None]) -> tuple[str, str] | None:
    equivalents = next((names for names in EQUIVALENTS if name in names), {name})
    for candidate in (name, *sorted(equivalents - {name})):
        version = installed(candidate)
        if version is not None:
            return candidate, version
    return None


def notes(specification: Specification) -> list[str]:
    """List entries that are not taken literally, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for entry in specification.entries:
        if entry.note:
            by_reason.setdefault(entry.note, []).append(entry.text)
    return [
        mask_secrets(f"{', '.join(dict.fromkeys(texts))}: {reason}") for reason, texts in by_reason.items()
    ]


_SHOWN_ITEMS: Final = 20


class ModelEnvironment(Struct, frozen=True):
    """The environment that a model requires.

    Attributes:
        managed_by_system: Whether Stoker installs it in a virtual environment; otherwise the user has installed it.
    """

    specification: Specification
    managed_by_system: bool
    built: Built | None = None

    @property
    def interpreter(self) -> Path:
        """The Python interpreter that runs the model."""
        return Path(sys.executable) if self.built is None else self.built.interpreter

    def prepared(self, workspace: Workspace, framework: str, say: Say) -> ModelEnvironment:
        """Build the virtual environment if the system manages it; else do nothing."""
        if not self.managed_by_system:
            return self
        folder = workspace.create().environments_dir
        return msgspec.structs.replace(
            self, built=build_environment(self.specification, folder, framework, say)
        )

    def found(self, workspace: Workspace, framework: str) -> ModelEnvironment:
        """A copy with its virtual environment, if that has been built before."""
        if not self.managed_by_system:
            return self
        built = find_built(self.specification, workspace.environments_dir, framework)
        return msgspec.structs.replace(self, built=built)

    def findings(self) -> list[Finding]:
        """Mismatches with this interpreter; empty if the system manages the environment."""
        return [] if self.managed_by_system else compare(self.specification)

    def notes(self) -> list[str]:
        """Entries of the file that are not taken literally."""
        python = [self.built.note] if self.built is not None and self.built.note else []
        return [*python, *notes(self.specification)]

    def runs_code(self) -> list[str]:
        """The code that its installation by the system runs and trusts; see `Specification.runs_code`."""
        return self.specification.runs_code() if self.managed_by_system else []

    def summary(self) -> str:
        """Its state in one line."""
        name = self.specification.path.name
        if not self.managed_by_system:
            return f"{name} (user-managed): {self._compared()}"
        if self.built is None:
            return f"{name} (system-managed): not built yet"
        when = "built before" if self.built.build_s is None else f"built in {self.built.build_s:.1f} s"
        return (
            f"{name} (system-managed): environment {self.built.key} with Python {self.built.python} and "
            f"{format_count(len(self.built.packages), 'package')} of its own, {when}"
        )

    def lines(self) -> list[str]:
        """The summary, and a line for each thing to know; of many the first ones."""
        items = [f"{finding.kind:<8} {finding.text}" for finding in self.findings()]
        items += [f"{'note':<8} {note}" for note in self.notes()]
        more = (
            [f"and {len(items) - _SHOWN_ITEMS} more: stoker doctor lists them"]
            if len(items) > _SHOWN_ITEMS
            else []
        )
        return [self.summary(), *items[:_SHOWN_ITEMS], *more]

    def _compared(self) -> str:
        count = sum(entry.applies for entry in self.specification.entries)
        kinds = [finding.kind for finding in self.findings()]
        missing, other = kinds.count("missing"), kinds.count("version")
        summary = f"{format_count(count, 'package')} asked for"
        if not missing and not other:
            return f"{summary}, all there"
        parts = [f"{missing} missing"] * bool(missing) + [f"{other} in another version"] * bool(other)
        return f"{summary}, {', '.join(parts)}"
