"""Compute targets that train: clusters, for which the slots of this machine stand, and machines that are attached."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk import deferred
from stoker_azure.sdk.compute_target import ComputeTarget, Configuration, TargetOfRuns, given
from stoker_azure.sdk.workspace import Workspace

__all__ = [
    "CHECK_VARIABLE",
    "AdlaCompute",
    "AmlCompute",
    "AmlComputeStatus",
    "BatchCompute",
    "DatabricksCompute",
    "DsvmCompute",
    "HDInsightCompute",
    "RemoteCompute",
    "cores_and_gpus",
]

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
    """What a machine of Azure has; of a size that is not known one core, and a GPU where its name begins with N."""
    name = vm_size.upper().removesuffix("_PROMO")
    return _SIZES.get(name, (1, 1 if name.removeprefix("STANDARD_").startswith("N") else 0))


@dataclass(frozen=True, slots=True)
class AmlComputeStatus:
    """How a cluster is.

    Attributes:
        nodes: How many machines it has: this one, as long as it is not scaled to none.
        running: How many of them have runs.
        least: How many it keeps.
        most: How many it may have.
        idle_s: How long one may be idle.
        vm_size: Their size.
        vm_priority: `dedicated` or `lowpriority`.
    """

    nodes: int
    running: int
    least: int
    most: int
    idle_s: int
    vm_size: str
    vm_priority: str

    @property
    def current_node_count(self) -> int:
        """How many machines it has."""
        return self.nodes

    def serialize(self) -> dict[str, Any]:
        """Azure's JSON."""
        counts = dict.fromkeys(("preparing", "running", "idle", "unusable", "leaving", "preempted"), 0) | {
            "running": self.running,
            "idle": self.nodes - self.running,
        }
        return {
            "currentNodeCount": self.nodes,
            "targetNodeCount": self.nodes,
            "nodeStateCounts": {f"{name}NodeCount": count for name, count in counts.items()},
            "allocationState": "Steady",
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
    """What is asked for of a cluster; it becomes a compute target of `stoker targets` too."""

    def keep(self, workspace: Workspace, file: Path) -> None:
        """Write the target's file."""
        nodes = {name: self.values[name] for name in ("min_nodes", "max_nodes")}
        deferred.attaching.attach(workspace.local, file.stem, {"type": "amlcompute", **nodes}, {}, None)


class AmlCompute(TargetOfRuns):
    """A cluster that trains. The slots of this machine stand for it."""

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
        """What `ComputeTarget.create` takes.

        Args:
            vm_size: Size of the machines, such as `STANDARD_NC6`; says how many GPUs a run is to have.
            vm_priority: `dedicated` or `lowpriority`.
            min_nodes: How many there always are. Texts, as of environment variables, are numbers too.
            max_nodes: How many there may be; mandatory.
            idle_seconds_before_scaledown: How long one may be idle.
            others: Azure's further arguments, which are about its network.

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

    def update(  # type: ignore[override]  # other targets refuse it
        self,
        min_nodes: int | str | None = None,
        max_nodes: int | str | None = None,
        idle_seconds_before_scaledown: int | str | None = None,
    ) -> None:
        """Change how many nodes it may have, and how long one may be idle; what is not given stays.

        Raises:
            ComputeTargetException: `max_nodes` is less than `min_nodes`, or one is no number.
        """
        asked = given(
            {
                "min_nodes": min_nodes,
                "max_nodes": max_nodes,
                "idle_seconds_before_scaledown": idle_seconds_before_scaledown,
            }
        )
        self._configuration |= _scale(**{**self._scale_settings(), **asked})
        self._keep(_Cluster(self.kind, self._configuration))

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
        """Say that it is there: this machine is."""
        del min_node_count, timeout_in_minutes
        super().wait_for_completion(show_output, is_delete_operation)

    def get_status(self) -> Any:
        """How many machines it has: one, this one."""
        kept, scale = self._configuration, self._scale_settings()
        return AmlComputeStatus(
            min(1, scale["max_nodes"]),
            0,
            scale["min_nodes"],
            scale["max_nodes"],
            scale["idle_seconds_before_scaledown"],
            kept.get("vm_size", ""),
            kept.get("vm_priority", "dedicated"),
        )

    def list_nodes(self) -> list[dict[str, Any]]:
        """The machines that run something now: none is known, since this one is no node of a cluster."""
        return []

    @staticmethod
    def supported_vmsizes(workspace: Any, location: str | None = None) -> list[dict[str, Any]]:
        """Sizes of machines whose cores and GPUs are known."""
        del workspace, location
        return [
            {"name": name.title().replace("_V", "_v"), "vCPUs": cores, "gpus": gpus}
            for name, (cores, gpus) in _SIZES.items()
        ]


class _Attached(ComputeTarget):
    """A machine that is attached with what SSH needs."""

    kind: ClassVar[str] = ""
    words: ClassVar[str] = "it is kept as a record"
    configuration: ClassVar[type[Configuration]] = Configuration

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
    ) -> Configuration:
        """What `ComputeTarget.attach` takes. Password and passphrase are kept in a file of mode 0600."""
        del resource_id
        known = {"address": address, "ssh_port": ssh_port, "username": username}
        values = given({**known, "private_key_file": private_key_file or None})
        secrets = {"password": password, "private_key_passphrase": private_key_passphrase}
        return cls.configuration(cls.kind, values, {name: text for name, text in secrets.items() if text})


class _BySsh(Configuration):
    """How a machine is reached; it becomes a compute target of `stoker targets` too, which has the secrets."""

    def keep(self, workspace: Workspace, file: Path) -> None:
        """Attach the machine, which is logged in to, unless `STOKER_ATTACH_CHECK` is `0`.

        Raises:
            OperatorError: It cannot be used; nothing is kept.
        """
        settings = {"type": "ssh", **{_KEYS_OF_SSH[name]: value for name, value in self.values.items()}}
        secrets = {_SECRETS_OF_SSH[name]: text for name, text in self.secrets.items()}
        if self.values.get("private_key_file"):
            settings["key_file"] = str(Path(self.values["private_key_file"]).expanduser().absolute())
        engine_of = None if os.environ.get(CHECK_VARIABLE) == "0" else deferred.registry.engine_of
        deferred.attaching.attach(workspace.local, file.stem, settings, secrets, engine_of)


class RemoteCompute(TargetOfRuns, _Attached):
    """A virtual machine, or any other that SSH reaches: scripts are sent there."""

    kind = "VirtualMachine"
    words = "scripts are sent there by SSH"
    configuration = _BySsh


class DsvmCompute(RemoteCompute):
    """A Data Science Virtual Machine, by its class of before."""

    kind = "DataScienceVirtualMachine"


class HDInsightCompute(_Attached):
    """The head node of an HDInsight cluster."""

    kind = "HDInsight"


class _OfPipelines(ComputeTarget):
    """A service of Azure that takes steps of pipelines, and no scripts; there is none of it here."""

    kind: ClassVar[str] = ""
    words: ClassVar[str] = f"it is kept as a record; {_STEPS_ALONE}"

    @property
    def cluster_resource_id(self) -> str:
        """Its names on Azure."""
        return "/".join(str(value) for value in self._configuration.values())


class BatchCompute(_OfPipelines):
    """Azure Batch."""

    kind = "Batch"

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None, account_name: str | None = None, resource_id: str | None = None
    ) -> Configuration:
        """What `ComputeTarget.attach` takes."""
        return Configuration(BatchCompute.kind, given(locals()))


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
        """What `ComputeTarget.attach` takes. The token is kept in a file of mode 0600."""
        names = {
            "resource_group": resource_group,
            "workspace_name": workspace_name,
            "resource_id": resource_id,
        }
        return Configuration(
            DatabricksCompute.kind, given(names), {"access_token": access_token} if access_token else {}
        )


class AdlaCompute(_OfPipelines):
    """Data Lake Analytics."""

    kind = "DataLakeAnalytics"

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None, account_name: str | None = None, resource_id: str | None = None
    ) -> Configuration:
        """What `ComputeTarget.attach` takes."""
        return Configuration(AdlaCompute.kind, given(locals()))


def _scale(
    min_nodes: int | str, max_nodes: int | str, idle_seconds_before_scaledown: int | str
) -> dict[str, int]:
    """How many nodes a cluster may have, and how long one may be idle, as numbers."""
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
