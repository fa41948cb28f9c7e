"""Compute targets: each a record in the workspace, an object of the class of its kind.

Targets that run scripts are also compute targets of `stoker targets`, and exist as long as that has them, whether
Azure's SDK or the command made them. The record holds what only Azure's SDK knows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from stoker.errors import InvalidSettings
from stoker.settings.names import checked_name, is_name
from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker.system.durable import private_folder, replace_file
from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk.base import BaseWorkspace, none_in_workspace, raised_as
from stoker_azure.sdk.bindings import Binding, bind, binding_of, has_kubeconfig
from stoker_azure.sdk.unoffered import with_unoffered_names
from stoker_runs.targets.definitions import find_target, list_targets

if TYPE_CHECKING:
    from stoker_runs.targets.engine import NodePool

__all__ = [
    "CHECK_VARIABLE",
    "CLASSES",
    "AdlaCompute",
    "AksCompute",
    "AksConfiguration",
    "AmlCompute",
    "AmlComputeStatus",
    "BatchCompute",
    "ComputeTarget",
    "ComputeTargetException",
    "Configuration",
    "DatabricksCompute",
    "DsvmCompute",
    "HDInsightCompute",
    "RemoteCompute",
    "TargetOfRuns",
    "cores_and_gpus",
    "without_none",
]

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


@with_unoffered_names
class ComputeTarget:
    """A compute target of the workspace.

    Attributes:
        type: Azure's name of the type, such as `AKS`.
        created_on: Time of creation, RFC 3339 in UTC.
    """

    kind: ClassVar[str] = ""
    words: ClassVar[str] = "this machine stands for it"

    def __new__(cls, workspace: BaseWorkspace, name: str) -> Self:
        """Make an object of the class of the target's kind, also for `ComputeTarget(workspace, name)`."""
        record = _record(workspace, name)
        found = CLASSES.get(record["type"], cls)
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
            _save(workspace, name, now, provisioning_configuration)
            made = ComputeTarget(workspace, name)
            with raised_as(ComputeTargetException):
                for line in _description_lines(made, provisioning_configuration.values) if is_new else ():
                    print(line)
        return ComputeTarget(workspace, name)

    OLDER: ClassVar[Sequence[str]] = ("resource_id", "access_token")
    """What older code gives `attach` in the place of a configuration, in this order."""

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
        names = {file.stem for file in (workspace.local.azure_dir / "compute").glob("*.json")}
        names |= set(list_targets(workspace.local.targets_dir))
        return [name for name in sorted(names) if is_name(name) and _find_record(workspace, name) is not None]

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
        file = _file(self.workspace, self.name)
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
        _save(self.workspace, self.name, self.created_on, configuration)

    def delete(self) -> None:
        """Delete the target, unless a run uses it."""
        from stoker_runs.targets.attaching import detach

        with raised_as(ComputeTargetException):
            detach(self.workspace.local, self.name)
        super().delete()


def without_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def _description_lines(target: ComputeTarget, configuration: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that say what runs the target's jobs."""
    binding = binding_of(target.workspace.local, target.name)
    if binding is None:
        yield f"{target.name}: {target.words}{_kept_text(configuration)}"
        return
    from stoker_cluster.access import Cluster
    from stoker_cluster.survey import describe_machines

    cluster = Cluster.connect(binding.context)
    yield f"{target.name}: the cluster {binding.context} stands for it, namespace {binding.namespace}"
    size = configuration.get("vm_size")
    if size is not None:
        yield f"{target.name}: {describe_machines(cluster, size, configuration.get('agent_count'))}"


def _kept_text(configuration: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in configuration.items())
    return f"; kept for it: {shown}" if shown else ""


def _save(workspace: BaseWorkspace, name: str, created_on: str, configuration: Configuration) -> None:
    """Write the record of a target and its secrets."""
    file = _file(workspace, name)
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


def _record(workspace: BaseWorkspace, name: str) -> dict[str, Any]:
    found = _find_record(workspace, name)
    if found is None:
        raise ComputeTargetException(
            none_in_workspace("ComputeTargetNotFound", "compute target", name, ComputeTarget.names(workspace))
        )
    return found


def _find_record(workspace: BaseWorkspace, name: str) -> dict[str, Any] | None:
    """Find the record of a target, with its settings in `stoker targets`; None if there is no such target."""
    file = _file(workspace, name)
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


def _file(workspace: BaseWorkspace, name: str) -> Path:
    return workspace.local.azure_dir / "compute" / f"{name}.json"


CHECK_VARIABLE: Final = "STOKER_ATTACH_CHECK"
"""Set to `0`, machines are attached without logging in, as `python -m stoker.azure --no-check` has it."""

_IDLE_S: Final = 1800
_SIZES: Final[dict[str, tuple[int, int]]] = {
    "STANDARD_D2_V2": (2, 0),
    "STANDARD_D3_V2": (4, 0),
    "STANDARD_D12_V2": (4, 0),
    "STANDARD_D2S_V3": (2, 0),
    "STANDARD_DS3_V2": (4, 0),
    "STANDARD_DS12_V2": (4, 0),
    "STANDARD_NC6": (6, 1),
    "STANDARD_NC12": (12, 2),
    "STANDARD_NC24": (24, 4),
    "STANDARD_NC6S_V2": (6, 1),
    "STANDARD_NC6S_V3": (6, 1),
    "STANDARD_NC12S_V3": (12, 2),
    "STANDARD_NC24S_V3": (24, 4),
    "STANDARD_ND6S": (6, 1),
    "STANDARD_NV6": (6, 1),
    "STANDARD_NC4AS_T4_V3": (4, 1),
}
_KEYS_OF_SSH: Final = {
    "address": "address",
    "ssh_port": "port",
    "username": "username",
    "private_key_file": "key_file",
}
_SECRETS_OF_SSH: Final = {"password": "password", "private_key_passphrase": "passphrase"}
_STEPS_ALONE: Final = "Azure takes it for steps of pipelines alone"


def cores_and_gpus(vm_size: str) -> tuple[int, int]:
    """Return the cores and GPUs of a size of machines; an unknown one has 1 core, and a GPU if it begins with N."""
    name = vm_size.upper().removesuffix("_PROMO")
    return _SIZES.get(name, (1, 1 if name.removeprefix("STANDARD_").startswith("N") else 0))


@dataclass(frozen=True, slots=True)
class AmlComputeStatus:
    """The status of a cluster.

    Attributes:
        nodes: Number of machines: of a cluster, or 1, this one, or 0 if the cluster may have none.
        running: Number of machines with runs.
        preparing: Number of machines that are about to be there.
        vm_priority: `dedicated` or `lowpriority`.
    """

    nodes: int
    running: int
    least: int
    most: int
    idle_s: int
    vm_size: str
    vm_priority: str
    preparing: int = 0
    unusable: int = 0

    @property
    def current_node_count(self) -> int:
        """Number of machines."""
        return self.nodes

    def serialize(self) -> dict[str, Any]:
        """Return the status in Azure's JSON."""
        counts = dict.fromkeys(("preparing", "running", "idle", "unusable", "leaving", "preempted"), 0) | {
            "running": self.running,
            "idle": self.nodes - self.running,
            "preparing": self.preparing,
            "unusable": self.unusable,
        }
        return {
            "currentNodeCount": self.nodes,
            "targetNodeCount": self.nodes + self.preparing,
            "nodeStateCounts": {f"{name}NodeCount": count for name, count in counts.items()},
            "allocationState": "Resizing" if self.preparing else "Steady",
            "errors": None,
            "provisioningState": "Succeeded",
            "provisioningStateTransitionTime": None,
            "scaleSettings": {
                "minNodeCount": self.least,
                "maxNodeCount": self.most,
                "nodeIdleTimeBeforeScaleDown": f"PT{self.idle_s}S",
            },
            "vmPriority": self.vm_priority.capitalize(),
            "vmSize": self.vm_size.upper(),
        }


class _Cluster(Configuration):
    """The arguments for a cluster, which becomes a compute target of `stoker targets` too."""

    def save(self, workspace: BaseWorkspace, file: Path) -> None:
        """Attach the cluster as a target of `stoker targets`."""
        from stoker_runs.targets.attaching import attach

        nodes = {name: self.values[name] for name in ("min_nodes", "max_nodes")}
        if _bound_cluster(workspace, file.stem) is None:
            attach(workspace.local, file.stem, {"type": "amlcompute", **nodes}, {}, None)
            return
        if self.values["idle_seconds_before_scaledown"] != _IDLE_S:
            nodes["idle_s"] = self.values["idle_seconds_before_scaledown"]
        attach(workspace.local, file.stem, {"type": "ray", **nodes}, {}, None)
        cluster = _bound_cluster(workspace, file.stem)
        assert cluster is not None
        cluster.hold_nodes()


def _bound_cluster(workspace: BaseWorkspace, name: str) -> NodePool | None:
    """Return the engine of the cluster that is bound to a name; None where this machine stands for it."""
    from stoker_runs.targets.engine import NodePool
    from stoker_runs.targets.registry import engine_of

    if name not in list_targets(workspace.local.targets_dir):
        return None
    engine = engine_of(find_target(workspace.local.targets_dir, name), workspace.local)
    return engine if isinstance(engine, NodePool) else None


@with_unoffered_names
class AmlCompute(TargetOfRuns):
    """A cluster for training: the Ray cluster that is bound to its name, or this machine's slots."""

    kind: ClassVar[str] = "AmlCompute"
    words: ClassVar[str] = "the cores and GPUs of this machine stand for the cluster"

    @staticmethod
    def provisioning_configuration(
        vm_size: str = "",
        vm_priority: str = "dedicated",
        min_nodes: int | str = 0,
        max_nodes: int | str | None = None,
        idle_seconds_before_scaledown: int | str = _IDLE_S,
        **others: Any,
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.create`.

        Args:
            vm_size: Size of the machines, such as `STANDARD_NC6`; sets the number of GPUs of a run.
            vm_priority: `dedicated` or `lowpriority`.
            min_nodes: Smallest number of machines, a number or its text.
            max_nodes: Largest number of machines; mandatory.
            others: Azure's arguments about its network, without effect.

        Raises:
            ComputeTargetException: `max_nodes` is missing or less than `min_nodes`.
        """
        del others
        if max_nodes is None:
            raise ComputeTargetException("max_nodes is missing: a cluster needs its largest number of nodes")
        values = {"vm_size": vm_size, "vm_priority": vm_priority}
        return _Cluster(
            AmlCompute.kind, {**values, **_scale(min_nodes, max_nodes, idle_seconds_before_scaledown)}
        )

    def update(
        self,
        min_nodes: int | str | None = None,
        max_nodes: int | str | None = None,
        idle_seconds_before_scaledown: int | str | None = None,
    ) -> None:
        """Change the limits of the cluster; arguments that are None change nothing.

        Raises:
            ComputeTargetException: `max_nodes` is less than `min_nodes`, or one is no number.
        """
        asked = without_none(
            {
                "min_nodes": min_nodes,
                "max_nodes": max_nodes,
                "idle_seconds_before_scaledown": idle_seconds_before_scaledown,
            }
        )
        self._configuration |= _scale(**{**self._scale_settings(), **asked})
        self._save(_Cluster(self.kind, self._configuration))

    def _scale_settings(self) -> dict[str, Any]:
        known = {"min_nodes": 0, "idle_seconds_before_scaledown": _IDLE_S, **self._configuration}
        return {name: known[name] for name in ("min_nodes", "max_nodes", "idle_seconds_before_scaledown")}

    def wait_for_completion(
        self,
        show_output: bool = False,
        is_delete_operation: bool = False,
        min_node_count: int | None = None,
        timeout_in_minutes: float = 25,
    ) -> None:
        """Wait until a bound cluster has so many nodes, and print that the cluster is ready.

        Args:
            min_node_count: The number of nodes; None for its smallest number.
            timeout_in_minutes: How long to wait; then a line says how many nodes there are.
        """
        cluster = _bound_cluster(self.workspace, self.name)
        if cluster is not None and not is_delete_operation:
            least = self._scale_settings()["min_nodes"] if min_node_count is None else int(min_node_count)
            until_s = time.monotonic() + 60 * timeout_in_minutes
            with raised_as(ComputeTargetException):
                while (nodes := cluster.count_nodes()).current < least and time.monotonic() < until_s:
                    time.sleep(1.0)
            if nodes.current < least:
                print(f"{self.name}: waited for {least} nodes; the cluster has {nodes}")
        super().wait_for_completion(show_output, is_delete_operation)

    def get_status(self) -> Any:
        """Return the number of machines and the limits."""
        kept, scale = self._configuration, self._scale_settings()
        cluster = _bound_cluster(self.workspace, self.name)
        with raised_as(ComputeTargetException):
            nodes = None if cluster is None else cluster.count_nodes()
        return AmlComputeStatus(
            min(1, scale["max_nodes"]) if nodes is None else nodes.current,
            0 if nodes is None else nodes.running,
            scale["min_nodes"],
            scale["max_nodes"],
            scale["idle_seconds_before_scaledown"],
            kept.get("vm_size", ""),
            kept.get("vm_priority", "dedicated"),
            0 if nodes is None else nodes.preparing,
            0 if nodes is None else nodes.unusable,
        )

    def list_nodes(self) -> list[dict[str, Any]]:
        """Return an empty list: Azure's nodes are machines to log in to."""
        return []

    @staticmethod
    def supported_vmsizes(workspace: Any, location: str | None = None) -> list[dict[str, Any]]:
        """Return the sizes of machines whose cores and GPUs are known."""
        del workspace, location
        return [
            {"name": name.title().replace("_V", "_v"), "vCPUs": cores, "gpus": gpus}
            for name, (cores, gpus) in _SIZES.items()
        ]


class _Attached(ComputeTarget):
    """A machine that is reached by SSH."""

    kind: ClassVar[str] = ""
    words: ClassVar[str] = "it is kept as a record"
    configuration: ClassVar[type[Configuration]] = Configuration
    OLDER = ("username", "address", "ssh_port", "password", "private_key_file", "private_key_passphrase")

    @classmethod
    def attach_configuration(
        cls,
        username: str | None = None,
        resource_id: str | None = None,
        address: str | None = None,
        ssh_port: int = 22,
        password: str | None = "",
        private_key_file: str | None = "",
        private_key_passphrase: str | None = "",
        **on_azure: Any,
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.attach`. Secrets are kept in a file of mode 0600.

        Raises:
            ComputeTargetException: The machine is named only by what it is called on Azure.
        """
        if not address:
            raise ComputeTargetException(
                f"{cls.__name__} is reached by the address of a machine: give address and username in place of "
                f"{', '.join(on_azure) or 'resource_id'}"
            )
        del resource_id
        known = {"address": address, "ssh_port": ssh_port, "username": username}
        values = without_none({**known, "private_key_file": private_key_file or None})
        secrets = {"password": password, "private_key_passphrase": private_key_passphrase}
        return cls.configuration(cls.kind, values, {name: text for name, text in secrets.items() if text})


class _BySsh(Configuration):
    """The arguments for a machine, which becomes a compute target of `stoker targets` too, with the secrets."""

    def save(self, workspace: BaseWorkspace, file: Path) -> None:
        """Attach the machine after logging in to it; if `STOKER_ATTACH_CHECK` is `0`, without logging in.

        Raises:
            OperatorError: The machine cannot be used; nothing is saved.
        """
        from stoker_runs.targets.attaching import attach
        from stoker_runs.targets.registry import engine_of

        kind = "spark" if self.kind == HDInsightCompute.kind else "ssh"
        settings = {"type": kind, **{_KEYS_OF_SSH[name]: value for name, value in self.values.items()}}
        secrets = {_SECRETS_OF_SSH[name]: text for name, text in self.secrets.items()}
        if self.values.get("private_key_file"):
            settings["key_file"] = str(Path(self.values["private_key_file"]).expanduser().absolute())
        check_with = None if os.environ.get(CHECK_VARIABLE) == "0" else engine_of
        attach(workspace.local, file.stem, settings, secrets, check_with)


class RemoteCompute(TargetOfRuns, _Attached):
    """A machine that SSH reaches: scripts are sent there."""

    kind = "VirtualMachine"
    words = "scripts are sent there by SSH"
    configuration = _BySsh


class DsvmCompute(RemoteCompute):
    """A Data Science Virtual Machine."""

    kind = "DataScienceVirtualMachine"


class HDInsightCompute(TargetOfRuns, _Attached):
    """The head node of an HDInsight cluster: spark-submit runs scripts there."""

    kind = "HDInsight"
    words = "scripts are sent there by SSH, and run by spark-submit"
    configuration = _BySsh


class _OfPipelines(ComputeTarget):
    """A service of Azure for steps of pipelines, kept as a record."""

    kind: ClassVar[str] = ""
    words: ClassVar[str] = f"it is kept as a record; {_STEPS_ALONE}"

    @property
    def cluster_resource_id(self) -> str:
        """The names of the resource on Azure."""
        return "/".join(str(value) for value in self._configuration.values())


class BatchCompute(_OfPipelines):
    """Azure Batch."""

    kind = "Batch"

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None, account_name: str | None = None, resource_id: str | None = None
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.attach`."""
        return Configuration(BatchCompute.kind, without_none(locals()))


class DatabricksCompute(_OfPipelines):
    """A workspace of Databricks."""

    kind = "Databricks"

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None,
        workspace_name: str | None = None,
        resource_id: str | None = None,
        access_token: str = "",
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.attach`. The token is kept in a file of mode 0600."""
        names = {
            "resource_group": resource_group,
            "workspace_name": workspace_name,
            "resource_id": resource_id,
        }
        return Configuration(
            DatabricksCompute.kind,
            without_none(names),
            {"access_token": access_token} if access_token else {},
        )


class AdlaCompute(_OfPipelines):
    """Data Lake Analytics."""

    kind = "DataLakeAnalytics"

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None, account_name: str | None = None, resource_id: str | None = None
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.attach`."""
        return Configuration(AdlaCompute.kind, without_none(locals()))


def _scale(
    min_nodes: int | str, max_nodes: int | str, idle_seconds_before_scaledown: int | str
) -> dict[str, int]:
    """Return the limits of a cluster as numbers."""
    least, most = _number("min_nodes", min_nodes), _number("max_nodes", max_nodes)
    if not 0 <= least <= most:
        raise ComputeTargetException(f"max_nodes is {most}, less than min_nodes, {least}")
    idle_s = _number("idle_seconds_before_scaledown", idle_seconds_before_scaledown)
    return {"min_nodes": least, "max_nodes": most, "idle_seconds_before_scaledown": idle_s}


def _number(name: str, value: int | str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ComputeTargetException(f"{name} is {value!r}, and has to be a number") from None


_TYPE: Final = "AKS"
_IMAGE: Final = "STOKER_IMAGE"


class AksConfiguration(Configuration):
    """The arguments for a cluster of Azure Kubernetes Service."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(_TYPE, values)

    def bind(self, workspace: LocalWorkspace, target: str) -> None:
        """Bind the target to the cluster that the arguments name, if there is a kubeconfig.

        Raises:
            InvalidSettings: No image is named, or the name is not allowed.
            ClusterError: The kubeconfig has no such context.
        """
        name = self.values.get("cluster_name") or str(self.values.get("resource_id", "")).rpartition("/")[2]
        if not name or not has_kubeconfig():
            return
        old = binding_of(workspace, target)
        if old is not None and old.context == name:
            return
        from stoker_cluster.access import Cluster

        cluster = Cluster.connect(name)
        image = os.environ.get(_IMAGE)
        if image is None:
            raise InvalidSettings(
                f"nothing says what the pods of {target} run; set {_IMAGE} to an image, or bind it first: "
                f"stoker compute bind {target} --context {name} --image IMAGE"
            )
        bind(workspace, target, Binding(context=name, namespace=cluster.namespace, fields={"image": image}))

    def enable_ssl(self, **ssl: Any) -> None:
        """Keep the names of the TLS arguments; pods speak plain HTTP."""
        self.values["ssl"] = sorted(ssl)


class AksCompute(ComputeTarget):
    """A cluster of Azure Kubernetes Service: this machine stands for it, or the cluster that it is bound to."""

    kind = _TYPE
    words = "this machine stands for the cluster"

    class ClusterPurpose:
        """Purposes of a cluster."""

        FAST_PROD = "FastProd"
        DEV_TEST = "DevTest"

    @staticmethod
    def provisioning_configuration(
        agent_count: int | None = None,
        vm_size: str | None = None,
        ssl_cname: str | None = None,
        ssl_cert_pem_file: str | None = None,
        ssl_key_pem_file: str | None = None,
        location: str | None = None,
        vnet_resourcegroup_name: str | None = None,
        vnet_name: str | None = None,
        subnet_name: str | None = None,
        service_cidr: str | None = None,
        dns_service_ip: str | None = None,
        docker_bridge_cidr: str | None = None,
        cluster_purpose: str | None = None,
        load_balancer_type: str | None = None,
        load_balancer_subnet: str | None = None,
    ) -> AksConfiguration:
        """Return the arguments for `ComputeTarget.create`."""
        return AksConfiguration(without_none(locals()))

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None,
        cluster_name: str | None = None,
        resource_id: str | None = None,
        cluster_purpose: str | None = None,
        load_balancer_type: str | None = None,
        load_balancer_subnet: str | None = None,
    ) -> AksConfiguration:
        """Return the arguments for `ComputeTarget.attach`."""
        return AksConfiguration(without_none(locals()))


CLASSES: Final[dict[str, type[ComputeTarget]]] = {
    one.kind: one
    for one in (
        AdlaCompute,
        AksCompute,
        AmlCompute,
        BatchCompute,
        DatabricksCompute,
        DsvmCompute,
        HDInsightCompute,
        RemoteCompute,
    )
}
"""The class of each kind of target."""
