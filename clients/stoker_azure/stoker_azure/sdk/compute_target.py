"""Compute targets: each a record in the workspace, an object of the class of its kind.

Those that scripts are sent to are compute targets of `stoker targets` too. They are there as long as that has them,
whoever made them; the record has what only Azure's SDK knows of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from stoker.settings.names import checked_name, is_name
from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker.system.durable import private_folder, replace_file
from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk import deferred
from stoker_azure.sdk.bindings import binding_of
from stoker_azure.sdk.failures import none_in_workspace, raised_as
from stoker_azure.sdk.unoffered import UnofferedByComputeTarget
from stoker_azure.sdk.workspace import Workspace

__all__ = ["ComputeTarget", "Configuration", "TargetOfRuns", "given"]

_KINDS: Final[Mapping[str, str]] = {"amlcompute": "AmlCompute", "ssh": "VirtualMachine"}
"""What types of `stoker targets` are on Azure."""
_OF_RUNS: Final = frozenset({*_KINDS.values(), "DataScienceVirtualMachine"})
_NAMES: Final[Mapping[str, str]] = {"port": "ssh_port", "key_file": "private_key_file"}
"""Settings of `stoker targets` that Azure calls otherwise."""


@dataclass(slots=True)
class Configuration:
    """How a target would be made, or found, on Azure; kept with it.

    Attributes:
        kind: What it is on Azure.
        values: The arguments that were given.
        secrets: Those among them that are kept in a file for their owner alone.
    """

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)

    def validate_configuration(self) -> None:
        """Accept it: what cannot be is refused when it is made."""

    def bind(self, workspace: LocalWorkspace, target: str) -> None:
        """Let the target stand for the cluster that it names; most name none."""

    def keep(self, workspace: Workspace, file: Path) -> None:
        """Keep what is no part of the record: the secrets, if there are any, in a file of mode 0600.

        Args:
            workspace: Whose target it is.
            file: The target's record.
        """
        del workspace
        if self.secrets:
            secret = file.with_suffix(".secret")
            replace_file(secret, json.dumps(self.secrets).encode() + b"\n", mode=0o600)


class ComputeTarget(UnofferedByComputeTarget):
    """A compute target of the workspace.

    Attributes:
        workspace: Its workspace.
        name: Its name.
        type: What it is on Azure, such as `AKS`.
        provisioning_state: `Succeeded`.
        provisioning_errors: None.
        created_on: When it was created, RFC 3339 in UTC.
        vm_size: The machines that were asked for.
        agent_count: How many were asked for.
        location: The region that was asked for.
    """

    kind: ClassVar[str] = ""
    words: ClassVar[str] = "this machine stands for it"

    def __new__(cls, workspace: Workspace, name: str) -> Self:
        """A target is of the class of its kind, also one that is asked for as `ComputeTarget`."""
        record = _record(workspace, name)
        # All classes of targets are known once this module is loaded.
        found = deferred.compute.CLASSES.get(record["type"], cls)
        if not issubclass(found, cls):
            raise ComputeTargetException(
                f"{name} is a compute target of type {found.__name__}, not {cls.__name__}"
            )
        made: Any = super().__new__(found)
        return made  # type: ignore[no-any-return]  # a subclass

    def __init__(self, workspace: Workspace, name: str) -> None:
        """Find a target.

        Raises:
            ComputeTargetException: The workspace has none with this name.
        """
        record = _record(workspace, name)
        self.workspace = workspace
        self.name = name
        self.type: str = record["type"]
        self.provisioning_state = "Succeeded"
        self.provisioning_errors = None
        self.created_on: str = record["created_on"]
        self._configuration: dict[str, Any] = record["configuration"]
        self.vm_size: str | None = self._configuration.get("vm_size")
        self.agent_count: int | None = self._configuration.get("agent_count")
        self.location: str = self._configuration.get("location") or workspace.location

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(workspace={self.workspace!r}, name={self.name!r}, type={self.type!r}, "
            f"provisioning_state={self.provisioning_state!r})"
        )

    @staticmethod
    def create(
        workspace: Workspace, name: str, provisioning_configuration: Configuration, *, _again: bool = False
    ) -> ComputeTarget:
        """Keep a compute target in the workspace, or find it there; no machine is made, and a line says so.

        For one that is bound to a cluster the line says which machines that has of the size that is asked for.

        Raises:
            ComputeTargetException: It cannot have this name.
        """
        with raised_as(ComputeTargetException):
            checked_name(name, "compute target")
        is_new = name not in workspace.compute_targets
        if is_new or _again:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            _keep(workspace, name, now, provisioning_configuration)
            made = ComputeTarget(workspace, name)
            with raised_as(ComputeTargetException):
                for line in _said(made, provisioning_configuration.values) if is_new else ():
                    print(line)
        return ComputeTarget(workspace, name)

    @staticmethod
    def attach(workspace: Workspace, name: str, attach_configuration: Configuration) -> ComputeTarget:
        """Keep a compute target in the workspace; one that names a cluster is bound to it, a machine is logged in to.

        A cluster of Azure is the context of the kubeconfig with its name. What its pods run is what `STOKER_IMAGE`
        names, or the binding that the target has already.

        Raises:
            ComputeTargetException: It cannot have this name, or the cluster or machine that it names cannot be used.
        """
        with raised_as(ComputeTargetException):
            attach_configuration.bind(workspace.local, name)
        return ComputeTarget.create(workspace, name, attach_configuration, _again=True)

    @staticmethod
    def list(workspace: Workspace) -> Sequence[ComputeTarget]:
        """All compute targets of the workspace, by name."""
        names = {file.stem for file in (workspace.local.azure_dir / "compute").glob("*.json")}
        names |= set(deferred.definitions.list_targets(workspace.local.targets_dir))
        found = [name for name in sorted(names) if is_name(name) and _found(workspace, name) is not None]
        return [ComputeTarget(workspace, name) for name in found]

    def wait_for_completion(self, show_output: bool = False, is_delete_operation: bool = False) -> None:
        """Say that it is there."""
        del is_delete_operation
        if show_output:
            print(self.provisioning_state)
        print(f'Provisioning operation finished, operation "{self.provisioning_state}"')

    def refresh_state(self) -> None:
        """Nothing changes."""

    def get_status(self) -> str:
        """The state of its provisioning."""
        return self.provisioning_state

    def delete(self) -> None:
        """Forget it. Services that were deployed to it go on."""
        file = _file(self.workspace, self.name)
        file.unlink(missing_ok=True)
        file.with_suffix(".secret").unlink(missing_ok=True)

    def detach(self) -> None:
        """The same as `delete`."""
        self.delete()

    def serialize(self) -> dict[str, Any]:
        """The target as JSON."""
        return {
            "name": self.name,
            "computeType": self.type,
            "provisioningState": self.provisioning_state,
            "createdOn": self.created_on,
            "location": self.location,
            "properties": dict(self._configuration),
        }


class TargetOfRuns(ComputeTarget):
    """A compute target that scripts are sent to: one of `stoker targets` too."""

    def _keep(self, configuration: Configuration) -> None:
        """Keep other values of what it was made with."""
        _keep(self.workspace, self.name, self.created_on, configuration)

    def delete(self) -> None:
        """Forget it, unless a run is on it."""
        with raised_as(ComputeTargetException):
            deferred.attaching.detach(self.workspace.local, self.name)
        super().delete()


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def _said(target: ComputeTarget, configuration: Mapping[str, Any]) -> Iterator[str]:
    """What stands for the target."""
    binding = binding_of(target.workspace.local, target.name)
    if binding is None:
        yield f"{target.name}: {target.words}{_kept(configuration)}"
        return
    cluster = deferred.access.Cluster.connect(binding.context)
    yield f"{target.name}: the cluster {binding.context} stands for it, namespace {binding.namespace}"
    size = configuration.get("vm_size")
    if size is not None:
        yield f"{target.name}: {deferred.applying.said_of_machines(cluster, size, configuration.get('agent_count'))}"


def _kept(configuration: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in configuration.items())
    return f"; kept for it: {shown}" if shown else ""


def _keep(workspace: Workspace, name: str, created_on: str, configuration: Configuration) -> None:
    """Write the record of a target, and what is no part of it."""
    file = _file(workspace, name)
    with raised_as(ComputeTargetException):
        workspace.local.create()
        private_folder(file.parent)
        configuration.keep(workspace, file)
    record = {
        "name": name,
        "type": configuration.kind,
        "created_on": created_on,
        "configuration": configuration.values,
    }
    replace_file(file, json.dumps(record, indent=2).encode() + b"\n")


def _record(workspace: Workspace, name: str) -> dict[str, Any]:
    found = _found(workspace, name)
    if found is None:
        raise ComputeTargetException(
            none_in_workspace("ComputeTargetNotFound", "compute target", name, workspace.compute_targets)
        )
    return found


def _found(workspace: Workspace, name: str) -> dict[str, Any] | None:
    """The record of a target, with what `stoker targets` says of it; None where there is no such target."""
    file = _file(workspace, name)
    record: dict[str, Any] = json.loads(file.read_bytes()) if file.is_file() else {}
    if record and record["type"] not in _OF_RUNS:
        return record
    targets_dir = workspace.local.targets_dir
    if name not in deferred.definitions.list_targets(targets_dir):
        return None
    with raised_as(ComputeTargetException):
        target = deferred.definitions.find_target(targets_dir, name)
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


def _file(workspace: Workspace, name: str) -> Path:
    return workspace.local.azure_dir / "compute" / f"{name}.json"
