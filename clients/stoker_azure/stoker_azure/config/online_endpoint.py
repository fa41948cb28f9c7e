"""An online endpoint, in Stoker's settings: who may call it, and how its requests are shared out to deployments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.files import read_yaml
from stoker.settings.names import checked_name
from stoker.settings.server import ImportedSettings
from stoker.settings.traffic import Endpoint
from stoker_azure.config.online_deployment import OnlineDeployment
from stoker_azure.config.online_fields import ENDPOINT_FIELDS, checked_values, kept_notes

__all__ = ["OnlineEndpoint"]

_SCHEMA: Final = "onlineendpoint.schema.json"
_ALL: Final = 100


@dataclass(frozen=True, slots=True)
class OnlineEndpoint:
    """An endpoint, checked.

    Attributes:
        values: The settings that were given, by their dotted names; none where there is no file.
        source: Name of the file, for messages.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    source: str = "endpoint"

    @classmethod
    def from_file(cls, file: Path) -> OnlineEndpoint:
        """Read the YAML of a managed or Kubernetes online endpoint as `az ml online-endpoint create -f` does.

        Raises:
            InvalidSettings: It cannot be read, or a setting is unknown or has a bad value.
        """
        content = read_yaml(file, "endpoint", "the settings of an online endpoint by name")
        schema = str(content.get("$schema", _SCHEMA))
        if not schema.lower().endswith(_SCHEMA):
            raise InvalidSettings(
                f"{file} is no online endpoint, for its $schema is {schema}; a deployment is given with --deployment"
            )
        return cls(checked_values(content, ENDPOINT_FIELDS, file.name), file.name)

    def imported(self, deployments: Sequence[OnlineDeployment]) -> ImportedSettings:
        """The settings of the server, with what the operator is told of the endpoint and its deployments.

        Raises:
            InvalidSettings: The deployments are of several endpoints or have the same name, or the endpoint's traffic
                does not fit them.
        """
        names = [deployment.name for deployment in deployments]
        if len(set(names)) < len(names):
            raise InvalidSettings(f"two deployments have the same name: {', '.join(names)}")
        endpoint = Endpoint(self._name(deployments), self._shares(names), self._mirrors(names))
        notes = [note for deployment in deployments for note in deployment.notes()]
        return ImportedSettings(
            self.source, self._access(), notes=(*notes, *self._notes(endpoint)), endpoint=endpoint
        )

    def _access(self) -> dict[str, Any]:
        mode = self.values.get("auth_mode")
        return {} if mode is None else {"auth": mode == "key", "token_auth": mode != "key"}

    def _name(self, deployments: Sequence[OnlineDeployment]) -> str:
        given = {self.values.get("name"), *(deployment.endpoint_name for deployment in deployments)} - {None}
        if len(given) > 1:
            raise InvalidSettings(
                f"the deployments are of several endpoints, {', '.join(sorted(map(str, given)))}; a server has one"
            )
        return checked_name(str(*given) if given else deployments[0].name, "endpoint")

    def _shares(self, names: Sequence[str]) -> dict[str, int]:
        traffic = self.values.get("traffic")
        if not traffic:
            first = self.values.get("defaults.deployment_name", names[0])
            traffic = {first: _ALL}
        self._check_names("traffic", traffic, names)
        total = sum(traffic.values())
        if total not in (0, _ALL):
            raise InvalidSettings(f"{self.source}: traffic must add up to {_ALL} (or to 0), got {total}")
        return {name: traffic.get(name, 0) for name in names}

    def _mirrors(self, names: Sequence[str]) -> dict[str, int]:
        mirrors = {name: part for name, part in (self.values.get("mirror_traffic") or {}).items() if part}
        self._check_names("mirror_traffic", mirrors, names)
        if len(mirrors) > 1:
            raise InvalidSettings(
                f"{self.source}: mirror_traffic must name one deployment, got {', '.join(mirrors)}"
            )
        for name in mirrors:
            if self._shares(names)[name]:
                raise InvalidSettings(
                    f"{self.source}: {name} cannot have traffic and mirror_traffic; as on Azure, it is either or"
                )
        return mirrors

    def _check_names(self, key: str, given: Mapping[str, int], names: Sequence[str]) -> None:
        unknown = [name for name, part in given.items() if name not in names and part]
        if unknown:
            raise InvalidSettings(
                f"{self.source}: {key} names {', '.join(unknown)}, and the deployments that are given are "
                f"{', '.join(names)}; give each with --deployment"
            )

    def _notes(self, endpoint: Endpoint) -> Iterable[str]:
        shares = ", ".join(f"{name} {share} %" for name, share in endpoint.shares.items())
        mirrors = "".join(f", a copy of {part} % to {name}" for name, part in endpoint.mirrors.items())
        yield f"endpoint {endpoint.name}: requests to /score go to {shares}{mirrors}"
        if not self.values.get("traffic") and len(endpoint.shares) > 1:
            yield "no traffic is given (--endpoint FILE): the first deployment gets all, the header chooses another"
        if self.values.get("auth_mode") == "aad_token":
            yield "auth_mode aad_token: tokens are those of this server, not of Microsoft Entra"
        yield from kept_notes(self.values, ENDPOINT_FIELDS, "")
