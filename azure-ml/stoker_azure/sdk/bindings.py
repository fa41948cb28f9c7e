"""Bindings of compute targets to clusters: records of the workspace, also for targets that do not exist yet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.names import checked_name, is_name, read_address
from stoker.settings.readers import read_settings
from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder, replace_file
from stoker_cluster.plan import ClusterPlan

_OF_THE_SERVICE: Final = (
    "name",
    "replicas",
    "version_name",
    "traffic",
    "default_version",
    "create_namespace",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The cluster of a compute target.

    Attributes:
        namespace: Default namespace of services.
        fields: Fields of the plan of each of its services, as the command line or a file has them.
    """

    context: str
    namespace: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str | None:
        """The address to which the files of services are sent, and where pods fetch them; None for other places."""
        found = read_address(str(self.fields.get("models", "")))
        return None if found is None else found.rstrip("/")

    def planned(self) -> dict[str, Any]:
        """Return the fields of a plan.

        Raises:
            InvalidSettings: A field is not allowed.
        """
        fields = dict(self.fields)
        if self.address is not None:
            fields = {"allow_egress": True, **fields}
            del fields["models"]
        return {
            **read_settings(ClusterPlan, fields, "the compute target"),
            "namespace": self.namespace,
        }


def bind(workspace: Workspace, target: str, binding: Binding) -> None:
    """Bind a compute target to a cluster.

    Raises:
        InvalidSettings: The name or a field of the plan is not allowed, or a field belongs to a service.
    """
    checked_name(target, "compute target")
    for name in _OF_THE_SERVICE:
        if name in binding.fields:
            raise InvalidSettings(f"{name} is said of a service, not of a compute target; leave it out")
    if "image" not in binding.fields:
        raise InvalidSettings("no image is named; say with --image what the pods run")
    binding.planned()
    workspace.create()
    folder = private_folder(workspace.azure_dir / "clusters")
    replace_file(folder / f"{target}.json", json.dumps(asdict(binding), indent=2).encode() + b"\n")


def unbind(workspace: Workspace, target: str) -> bool:
    """Remove the binding of a compute target, and return whether it was bound. Services stay."""
    was_bound = binding_of(workspace, target) is not None
    if was_bound:
        (workspace.azure_dir / "clusters" / f"{target}.json").unlink(missing_ok=True)
    return was_bound


def binding_of(workspace: Workspace, target: str | None) -> Binding | None:
    """Return the binding of a compute target; None if this machine stands for it.

    Raises:
        InvalidSettings: The record cannot be read.
    """
    if target is None or not is_name(target):
        return None
    file = workspace.azure_dir / "clusters" / f"{target}.json"
    try:
        return Binding(**json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise InvalidSettings(f"the record {file} cannot be read: {error}; bind {target} again") from error


def has_kubeconfig() -> bool:
    """Whether this machine has a kubeconfig."""
    files = os.environ.get("KUBECONFIG") or "~/.kube/config"
    return any(Path(file).expanduser().is_file() for file in files.split(os.pathsep))


def vm_size_of(workspace: Workspace, target: str | None) -> str | None:
    """Return the size of machines of a compute target; None if it has none."""
    if target is None or not is_name(target):
        return None
    try:
        record = json.loads((workspace.azure_dir / "compute" / f"{target}.json").read_bytes())
    except FileNotFoundError:
        return None
    size: str | None = record["configuration"].get("vm_size")
    return size


def bindings(workspace: Workspace) -> dict[str, Binding]:
    """Return all bindings, by the name of the compute target."""
    names = sorted(file.stem for file in (workspace.azure_dir / "clusters").glob("*.json"))
    return {name: found for name in names if (found := binding_of(workspace, name)) is not None}
