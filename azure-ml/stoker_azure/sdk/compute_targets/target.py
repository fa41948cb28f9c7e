"""`ComputeTarget`: a compute target of the workspace, an object of the class of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Self

from stoker.settings.names import checked_name
from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk.base import BaseWorkspace, raised_as
from stoker_azure.sdk.bindings import binding_of
from stoker_azure.sdk.compute_targets.records import (
    Configuration,
    record_file,
    require_record,
    save_record,
    target_names,
)
from stoker_azure.sdk.unoffered import with_unoffered_names

_CLASSES: Final[dict[str, type[ComputeTarget]]] = {}
"""The class of each kind of target."""


@with_unoffered_names
class ComputeTarget:
    """A compute target of the workspace.

    Attributes:
        type: Azure's name of the type, such as `AKS`.
        created_on: Time of creation, RFC 3339 in UTC.
    """

    kind: ClassVar[str] = ""
    words: ClassVar[str] = "this machine stands for it"

    def __init_subclass__(cls) -> None:
        """Have the targets of a kind be objects of its class."""
        if cls.kind:
            _CLASSES[cls.kind] = cls

    def __new__(cls, workspace: BaseWorkspace, name: str) -> Self:
        """Make an object of the class of the target's kind, also for `ComputeTarget(workspace, name)`."""
        record = require_record(workspace, name)
        found = _CLASSES.get(record["type"], cls)
        if not issubclass(found, cls):
            raise ComputeTargetException(
                f"{name} is a compute target of type {found.__name__}, not {cls.__name__}"
            )
        made: Any = super().__new__(found)
        return made  # type: ignore[no-any-return]  # a subclass

    def __init__(self, workspace: BaseWorkspace, name: str) -> None:
        """Find a compute target.

        Raises:
            ComputeTargetException: The workspace has none with this name.
        """
        record = require_record(workspace, name)
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
        workspace: BaseWorkspace,
        name: str,
        provisioning_configuration: Configuration,
        *,
        _again: bool = False,
    ) -> ComputeTarget:
        """Save a compute target in the workspace, or find it there. No machine is created, and a line says so.

        If the target is bound to a cluster, the line counts the machines of the requested size.

        Raises:
            ComputeTargetException: The name is not allowed.
        """
        with raised_as(ComputeTargetException):
            checked_name(name, "compute target")
        is_new = name not in ComputeTarget.names(workspace)
        if is_new or _again:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            save_record(workspace, name, now, provisioning_configuration)
            made = ComputeTarget(workspace, name)
            with raised_as(ComputeTargetException):
                for line in _description_lines(made, provisioning_configuration.values) if is_new else ():
                    print(line)
        return ComputeTarget(workspace, name)

    OLDER: ClassVar[Sequence[str]] = ("resource_id", "access_token")
    """Arguments that older code gives `attach` in place of a configuration, in this order."""

    @classmethod
    def attach(
        cls, workspace: BaseWorkspace, name: str, attach_configuration: Any = None, *more: Any, **older: Any
    ) -> ComputeTarget:
        """Save a compute target. A target that names a cluster is bound to it; a machine is logged in to.

        Older code gives the class of a target the arguments of its `attach_configuration` themselves.

        The cluster is the context of the kubeconfig with its name. Its pods run the image in
        `STOKER_IMAGE`, or that of an existing binding.

        Raises:
            ComputeTargetException: The name is not allowed, or the cluster or machine cannot be used.
        """
        if not isinstance(attach_configuration, Configuration):
            given = [] if attach_configuration is None else [attach_configuration, *more]
            attach_configuration = cls._older_configuration(dict(zip(cls.OLDER, given, strict=False)) | older)
        with raised_as(ComputeTargetException):
            attach_configuration.bind(workspace.local, name)
        return ComputeTarget.create(workspace, name, attach_configuration, _again=True)

    @classmethod
    def _older_configuration(cls, arguments: Mapping[str, Any]) -> Configuration:
        make: Callable[..., Configuration] | None = getattr(cls, "attach_configuration", None)
        if make is None:
            raise ComputeTargetException(
                f"{cls.__name__}.attach takes a configuration: that of the target's class, such as "
                "RemoteCompute.attach_configuration(address=…, username=…)"
            )
        return make(**arguments)

    @staticmethod
    def list(workspace: BaseWorkspace) -> Sequence[ComputeTarget]:
        """Return all compute targets of the workspace, by name."""
        return [ComputeTarget(workspace, name) for name in ComputeTarget.names(workspace)]

    @staticmethod
    def names(workspace: BaseWorkspace) -> Sequence[str]:
        """Return the names of all compute targets of the workspace."""
        return target_names(workspace)

    def wait_for_completion(self, show_output: bool = False, is_delete_operation: bool = False) -> None:
        """Print that the target is ready."""
        del is_delete_operation
        if show_output:
            print(self.provisioning_state)
        print(f'Provisioning operation finished, operation "{self.provisioning_state}"')

    def refresh_state(self) -> None:
        """Do nothing: a target is always ready."""

    def get_status(self) -> str:
        """Return the provisioning state."""
        return self.provisioning_state

    def delete(self) -> None:
        """Delete the record of the target. Services that were deployed to the target keep running."""
        file = record_file(self.workspace, self.name)
        file.unlink(missing_ok=True)
        file.with_suffix(".secret").unlink(missing_ok=True)

    def detach(self) -> None:
        """Delete the target."""
        self.delete()

    def serialize(self) -> dict[str, Any]:
        """Return the target as JSON."""
        return {
            "name": self.name,
            "computeType": self.type,
            "provisioningState": self.provisioning_state,
            "createdOn": self.created_on,
            "location": self.location,
            "properties": dict(self._configuration),
        }


class TargetOfRuns(ComputeTarget):
    """A compute target for runs; `stoker targets` lists it too."""

    def _save(self, configuration: Configuration) -> None:
        """Save changed arguments."""
        save_record(self.workspace, self.name, self.created_on, configuration)

    def delete(self) -> None:
        """Delete the target, unless a run uses it."""
        from stoker_runs.targets.attaching import detach

        with raised_as(ComputeTargetException):
            detach(self.workspace.local, self.name)
        super().delete()


def _description_lines(target: ComputeTarget, configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that say what runs the target's jobs."""
    binding = binding_of(target.workspace.local, target.name)
    if binding is None:
        yield f"{target.name}: {target.words}{_kept_text(configuration)}"
        return
    from stoker_cluster.access import Cluster
    from stoker_cluster.machines import describe_machines

    cluster = Cluster.connect(binding.context)
    yield f"{target.name}: the cluster {binding.context} stands for it, namespace {binding.namespace}"
    size = configuration.get("vm_size")
    if size is not None:
        yield f"{target.name}: {describe_machines(cluster, size, configuration.get('agent_count'))}"


def _kept_text(configuration: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in configuration.items())
    return f"; kept for it: {shown}" if shown else ""
