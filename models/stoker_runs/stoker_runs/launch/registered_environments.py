"""Environments that are registered in the workspace, as files that a run can be given.

WORKSPACE/azure/environments/NAME.json   all versions of one, as code for Azure's SDK has registered it
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

import yaml

from stoker.errors import EnvironmentUnusable
from stoker.names import is_name, parse_reference
from stoker.workspace import Workspace

__all__ = ["RegisteredEnvironment", "find_registered", "registered_names"]

_CURATED: Final = "azureml-"


@dataclass(frozen=True, slots=True)
class RegisteredEnvironment:
    """A registered environment.

    Attributes:
        conda: Its packages as a conda file; None where it has none.
        python: The interpreter that is taken as it is, where it brings its own packages; empty is that of Stoker.
        variables: Environment variables of scripts.
    """

    conda: bytes | None
    python: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


def registered_names(workspace: Workspace) -> list[str]:
    """The names of all registered environments, in alphabetical order."""
    files = (workspace.azure_dir / "environments").glob("*.json")
    return sorted(file.stem for file in files if is_name(file.stem))


def find_registered(workspace: Workspace, reference: str) -> RegisteredEnvironment:
    """Return a registered environment, `NAME` or `NAME:VERSION`.

    Raises:
        EnvironmentUnusable: There is none; the message names those that there are.
    """
    names = registered_names(workspace)
    known = f"registered are: {', '.join(names)}" if names else "none is registered in this workspace"
    plain = reference.partition(":")[0]
    if plain not in names:
        near = get_close_matches(plain, names, 1)
        hint = f"did you mean {near[0]}?" if near else known
        what = (
            f"{reference} is an environment of Microsoft, and those are not here: write its packages into a file"
            if plain.lower().startswith(_CURATED)
            else f"{reference} is no environment file, and no registered environment"
        )
        raise EnvironmentUnusable(f"{what}; {hint}")
    name, version = parse_reference(reference)
    versions = json.loads((workspace.azure_dir / "environments" / f"{name}.json").read_bytes())
    if version is not None and version > len(versions):
        raise EnvironmentUnusable(
            f"the environment {name} has no version {version}; it has 1 to {len(versions)}"
        )
    return _read(versions[(version or len(versions)) - 1])


def _read(content: Mapping[str, Any]) -> RegisteredEnvironment:
    python, variables = content["python"], content.get("environmentVariables", {})
    if python.get("userManagedDependencies"):
        path = python.get("interpreterPath", "python")
        return RegisteredEnvironment(None, "" if path == "python" else path, variables)
    conda = python.get("condaDependencies")
    text = None if conda is None else yaml.safe_dump(conda).encode()
    return RegisteredEnvironment(text, "", variables)
