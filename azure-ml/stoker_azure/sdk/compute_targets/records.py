"""Records of compute targets in the workspace, beside the targets of `stoker targets`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from stoker.settings.names import is_name
from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker.system.durable import private_folder, replace_file
from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk.base import BaseWorkspace, none_in_workspace, raised_as
from stoker_runs.targets.definitions import find_target, list_targets

_KINDS: Final[Mapping[str, str]] = {
    "amlcompute": "AmlCompute",
    "kubernetes": "KubernetesCompute",
    "ray": "AmlCompute",
    "spark": "HDInsight",
    "ssh": "VirtualMachine",
}
"""Azure's names of the types of `stoker targets`."""
_OF_RUNS: Final = frozenset({*_KINDS.values(), "DataScienceVirtualMachine"})
_NAMES: Final[Mapping[str, str]] = {
    "port": "ssh_port",
    "key_file": "private_key_file",
    "idle_s": "idle_seconds_before_scaledown",
}
"""Settings of `stoker targets` that Azure calls otherwise."""


@dataclass(slots=True)
class Configuration:
    """The arguments with which a target would be created or attached on Azure.

    Attributes:
        kind: Azure's name of the type, such as `AKS`.
        secrets: Passwords and tokens, kept in a file that only the owner reads.
    """

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)

    def validate_configuration(self) -> None:
        """Do nothing: `ComputeTarget.create` checks the arguments."""

    def bind(self, workspace: LocalWorkspace, target: str) -> None:
        """Bind the target to the cluster that the arguments name; most name none."""

    def save(self, workspace: BaseWorkspace, file: Path) -> None:
        """Save what the record does not hold: secrets, in a file of mode 0600."""
        del workspace
        if self.secrets:
            secret = file.with_suffix(".secret")
            replace_file(secret, json.dumps(self.secrets).encode() + b"\n", mode=0o600)


def without_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def save_record(workspace: BaseWorkspace, name: str, created_on: str, configuration: Configuration) -> None:
    """Write the record of a target and its secrets."""
    file = record_file(workspace, name)
    with raised_as(ComputeTargetException):
        workspace.local.create()
        private_folder(file.parent)
        configuration.save(workspace, file)
    record = {
        "name": name,
        "type": configuration.kind,
        "created_on": created_on,
        "configuration": configuration.values,
    }
    replace_file(file, json.dumps(record, indent=2).encode() + b"\n")


def require_record(workspace: BaseWorkspace, name: str) -> dict[str, Any]:
    """Find the record of a target.

    Raises:
        ComputeTargetException: There is no such target.
    """
    found = find_record(workspace, name)
    if found is None:
        raise ComputeTargetException(
            none_in_workspace("ComputeTargetNotFound", "compute target", name, target_names(workspace))
        )
    return found


def find_record(workspace: BaseWorkspace, name: str) -> dict[str, Any] | None:
    """Find the record of a target, with its settings in `stoker targets`; None if there is no such target."""
    file = record_file(workspace, name)
    record: dict[str, Any] = json.loads(file.read_bytes()) if file.is_file() else {}
    if record and record["type"] not in _OF_RUNS:
        return record
    targets_dir = workspace.local.targets_dir
    if name not in list_targets(targets_dir):
        return None
    with raised_as(ComputeTargetException):
        target = find_target(targets_dir, name)
    kind = _KINDS.get(target.type)
    if kind is None:
        return None
    made = datetime.fromtimestamp((targets_dir / f"{name}.yaml").stat().st_mtime, UTC)
    settings = {_NAMES.get(key, key): value for key, value in target.settings.items()}
    return {
        "name": name,
        "type": record.get("type", kind),
        "created_on": record.get("created_on", made.isoformat(timespec="seconds")),
        "configuration": {**record.get("configuration", {}), **settings},
    }


def record_file(workspace: BaseWorkspace, name: str) -> Path:
    """Return the file of a target's record."""
    return workspace.local.azure_dir / "compute" / f"{name}.json"


def target_names(workspace: BaseWorkspace) -> Sequence[str]:
    """Return the names of all compute targets of the workspace."""
    names = {file.stem for file in (workspace.local.azure_dir / "compute").glob("*.json")}
    names |= set(list_targets(workspace.local.targets_dir))
    return [name for name in sorted(names) if is_name(name) and find_record(workspace, name) is not None]
