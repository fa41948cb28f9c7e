"""The services that deployment code has started: a folder for each in the workspace, found again by later code.

services/NAME/service.json      what is known of it
services/NAME/REVISION/…        what its process was started from, its log and its lock; see `process`
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from stoker.errors import InvalidSettings
from stoker.settings.names import is_name
from stoker.settings.workspace import Workspace
from stoker.system.durable import locked, private_folder, replace_file
from stoker_azure.config.fields import Kind

__all__ = ["ServiceRecord", "Services", "now"]

_RECORD: Final = "service.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """What is known of a service. Its keys are not in it.

    Attributes:
        name: Its name.
        kind: What it would be on Azure.
        compute_name: The compute target that it was deployed to.
        keywords: Keywords of `deploy_configuration`, without keys, tags and properties.
        tags: Labels.
        properties: Labels that are given once.
        models: References of its registered models, `NAME:VERSION`.
        inference: What `InferenceConfig.to_json` gave; None if the model is served without a script.
        revision: Number of its latest start.
        pid: Number of that process.
        host: Address at which it is reached.
        port: Port of it.
        auth: Whether callers send keys.
        token_auth: Whether callers send tokens.
        replicas: How many device processes serve it.
        made_keys: Whether its keys were made for it, and end with it.
        created_at: Time of its first deployment, RFC 3339 in UTC.
        updated_at: Time of its latest change.
        cluster: The context and the namespace of the cluster that it is in; None for a process of this machine.
        versions: The versions of an endpoint, by name; None for a service without versions.
        default_version: The one of them that gets what all shares leave.
    """

    name: str
    kind: Kind
    compute_name: str | None
    keywords: Mapping[str, Any]
    tags: Mapping[str, str]
    properties: Mapping[str, str]
    models: Sequence[str]
    inference: Mapping[str, Any] | None
    revision: int
    pid: int
    host: str
    port: int
    auth: bool
    token_auth: bool
    replicas: int
    made_keys: bool
    created_at: str
    updated_at: str
    cluster: Mapping[str, str] | None = None
    versions: Mapping[str, Mapping[str, Any]] | None = None
    default_version: str | None = None

    @property
    def base_uri(self) -> str:
        """Where its server answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Take what `to_json` gave."""
        return cls(**content)

    def to_json(self) -> dict[str, Any]:
        """The record as its file has it."""
        return dataclasses.asdict(self)


class Services:
    """The services of a workspace.

    Args:
        workspace: The workspace on this machine.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._root = workspace.services_dir

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Keep others from deploying, changing and deleting services in the body."""
        with locked(private_folder(self._root) / ".lock"):
            yield

    def find(self, name: str) -> ServiceRecord | None:
        """What is known of a service; None if it was never deployed, or was deleted.

        Raises:
            InvalidSettings: Its record cannot be read.
        """
        if not is_name(name):
            return None
        file = self._root / name / _RECORD
        try:
            return ServiceRecord.from_json(json.loads(file.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise InvalidSettings(
                f"the record {file} cannot be read: {error}; delete {file.parent} and deploy the service again"
            ) from error

    def list(self) -> Sequence[ServiceRecord]:
        """All services, by name."""
        names = sorted(folder.name for folder in self._root.glob("*"))
        return [record for name in names if (record := self.find(name)) is not None]

    def write(self, record: ServiceRecord) -> None:
        """Keep what is known of a service."""
        content = json.dumps(record.to_json(), indent=2).encode() + b"\n"
        replace_file(private_folder(self._root / record.name) / _RECORD, content)

    def folder(self, record: ServiceRecord) -> Path:
        """Folder of its latest start."""
        return self._root / record.name / str(record.revision)

    def new_folder(self, name: str) -> Path:
        """Make the folder of its next start."""
        parent = private_folder(self._root / name)
        used = [int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()]
        return private_folder(parent / str(1 + max(used, default=0)))

    def remove(self, name: str) -> None:
        """Forget a service."""
        shutil.rmtree(self._root / name, ignore_errors=True)


def now() -> str:
    """The time, RFC 3339 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
