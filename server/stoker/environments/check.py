"""Compares the packages of an interpreter with the requirements of a model, and with the GPUs of a run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final, Literal

from packaging.requirements import Requirement

from stoker.environments.installers import masked
from stoker.environments.interpreters import allows_python
from stoker.environments.package_names import EQUIVALENTS
from stoker.environments.specification import Entry, Specification

__all__ = ["LIST_LIBRARIES", "Finding", "compare", "frameworks_without_gpus", "installed_version", "notes"]

LIST_LIBRARIES: Final = ("sh", "-c", "ldconfig -p; /sbin/ldconfig -p; ls /usr/local/cuda*/lib64; true")
"""The command that lists the shared libraries of a machine."""


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
    return [masked(f"{', '.join(dict.fromkeys(texts))}: {reason}") for reason, texts in by_reason.items()]


def frameworks_without_gpus(
    gpus: int, packages: Mapping[str, str], ask: Callable[[Sequence[str]], str]
) -> list[str]:
    """Say which installed frameworks will not use the GPUs that a run holds, a line each.

    Their packages tell, so none of them is imported, which would take seconds.

    Args:
        gpus: How many GPUs the run holds.
        packages: The versions of its packages, by their normalised names.
        ask: Runs a command where the script is to run, and returns what it prints.
    """
    if not gpus:
        return []
    held = f"the run holds {gpus} GPU{'s' * (gpus > 1)}, which {{}} will not use"
    lines = []
    if "tensorflow-cpu" in packages and "tensorflow" not in packages:
        lines.append(f"{held.format('tensorflow-cpu')}: ask for tensorflow[and-cuda] instead")
    if "+cpu" in packages.get("torch", ""):
        torch = f"torch {packages['torch']}"
        lines.append(f"{held.format(torch)}: ask for torch without +cpu, from an index with CUDA")
    if "jax" in packages and not any(name.startswith(("jax-cuda", "jax-rocm")) for name in packages):
        lines.append(f"{held.format('jax ' + packages['jax'])}: ask for jax[cuda12]")
    has_cudnn = any(name.startswith("nvidia-cudnn") for name in packages)
    if "tensorflow" in packages and not has_cudnn and "libcudnn" not in ask(LIST_LIBRARIES):
        tensorflow = f"tensorflow {packages['tensorflow']}"
        lines.append(
            f"{held.format(tensorflow)}: neither its packages nor the machine have CUDA and cuDNN; ask for "
            "tensorflow[and-cuda]"
        )
    return lines
