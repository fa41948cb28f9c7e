"""`AmlCompute`: a cluster for training, which is a Ray cluster or the slots of this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk.base import BaseWorkspace, raised_as
from stoker_azure.sdk.compute_targets.records import Configuration, without_none
from stoker_azure.sdk.compute_targets.target import TargetOfRuns
from stoker_azure.sdk.unoffered import with_unoffered_names
from stoker_runs.targets.definitions import find_target, list_targets

if TYPE_CHECKING:
    from stoker_runs.targets.engine import NodePool


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


class AmlComputeStatus(Struct, frozen=True):
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
        changed = without_none(
            {
                "min_nodes": min_nodes,
                "max_nodes": max_nodes,
                "idle_seconds_before_scaledown": idle_seconds_before_scaledown,
            }
        )
        self._configuration |= _scale(**{**self._scale_settings(), **changed})
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
