"""Compute targets: each a record in the workspace, an object of the class of its kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self

from stoker.azure.exceptions import ComputeTargetException
from stoker.azure_sdk import deferred
from stoker.azure_sdk.bindings import binding_of
from stoker.azure_sdk.failures import none_in_workspace, raised_as
from stoker.azure_sdk.unoffered import UnofferedByComputeTarget
from stoker.azure_sdk.workspace import Workspace
from stoker.names import checked_name, is_name
from stoker.system.durable import private_folder, replace_file
from stoker.workspace import Workspace as LocalWorkspace

__all__ = ["ComputeTarget", "Configuration", "given"]


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
        return f"{type(self).__name__}(workspace={self.workspace!r}, name={self.name!r})"

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
        file = _file(workspace, name)
        is_new = not file.exists()
        if is_new or _again:
            record: dict[str, Any] = {
                "name": name,
                "type": provisioning_configuration.kind,
                "created_on": datetime.now(UTC).isoformat(timespec="seconds"),
                "configuration": provisioning_configuration.values,
            }
            with raised_as(ComputeTargetException):
                workspace.local.create()
            private_folder(file.parent)
            with raised_as(ComputeTargetException):
                provisioning_configuration.keep(workspace, file)
            replace_file(file, json.dumps(record, indent=2).encode() + b"\n")
            made = ComputeTarget(workspace, name)
            with raised_as(ComputeTargetException):
                for line in _said(made, record["configuration"]) if is_new else ():
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
        names = sorted(file.stem for file in (workspace.local.azure_dir / "compute").glob("*.json"))
        return [ComputeTarget(workspace, name) for name in names if is_name(name)]

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
        yield f"{target.name}: {deferred.checking.said_of_machines(cluster, size, configuration.get('agent_count'))}"


def _kept(configuration: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in configuration.items())
    return f"; kept for it: {shown}" if shown else ""


def _record(workspace: Workspace, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(_file(workspace, name).read_bytes())
    except FileNotFoundError:
        raise ComputeTargetException(
            none_in_workspace("ComputeTargetNotFound", "compute target", name, workspace.compute_targets)
        ) from None
    return found


def _file(workspace: Workspace, name: str) -> Path:
    return workspace.local.azure_dir / "compute" / f"{name}.json"
