"""Compares the requirements of a model with the packages of an interpreter."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from packaging.requirements import Requirement

from stoker.environments.interpreters import allows_python
from stoker.environments.package_names import EQUIVALENTS
from stoker.environments.specification import Entry, Specification

__all__ = ["Finding", "compare", "installed_version", "notes"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One mismatch between a model's requirements and an interpreter.

    Attributes:
        kind: The kind: a missing package, another version of a package, or another Python.
        text: What is required, what is installed, and where the requirement is written.
    """

    kind: Literal["missing", "version", "python"]
    text: str


def installed_version(name: str) -> str | None:
    """The version of a package in this interpreter, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def compare(
    specification: Specification,
    installed: Callable[[str], str | None] = installed_version,
) -> list[Finding]:
    """List the mismatches between a model's requirements and this interpreter.

    Entries without a known name (URLs, paths), or whose marker excludes this machine, are skipped. Extras are not
    checked.

    Args:
        specification: The model's requirements.
        installed: Returns the installed version of a package by its normalised name.
    """
    findings = []
    if not allows_python(specification, sys.version_info.minor):
        asked = f"{specification.python_text} is asked for, this is {platform.python_version()}"
        findings.append(Finding("python", asked))
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
    """List entries that are interpreted differently from what is written, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for entry in specification.entries:
        if entry.note:
            by_reason.setdefault(entry.note, []).append(entry.text)
    return [f"{', '.join(dict.fromkeys(texts))}: {reason}" for reason, texts in by_reason.items()]
