"""A deployment configuration for Azure in Stoker's settings: `deploymentconfig.json`, `deploy_configuration`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from stoker.errors import InvalidSettings
from stoker.settings.model import ModelSettings
from stoker.settings.server import ImportedSettings
from stoker_azure.config.fields import KEPT_BECAUSE, Field, Kind, fields_of
from stoker_azure.config.json_file import flatten, read_object, unknown

__all__ = ["DeploymentConfig"]

_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_MOST_REPLICAS: Final = 64
_SECRET: Final = {"primary_key", "secondary_key"}


@dataclass(frozen=True, slots=True)
class DeploymentConfig:
    """A deployment configuration, checked.

    Attributes:
        kind: Where the deployment was to go.
        values: The settings that were given, by their keyword in the SDK.
        source: Where they were given, for messages.
    """

    kind: Kind
    values: Mapping[str, Any] = field(repr=False)
    source: str

    @classmethod
    def from_file(cls, file: Path) -> DeploymentConfig:
        """Read a `deploymentconfig.json` as `az ml model deploy --dc` does.

        Raises:
            InvalidSettings: It cannot be read, a setting is unknown or has a bad value, or two contradict each
                other; the message names the setting and what is allowed.
        """
        content = read_object(file)
        given = content.pop("computeType", None)
        kind = next((kind for kind in _KINDS if isinstance(given, str) and given.lower() == kind), None)
        if kind is None:
            raise InvalidSettings(f"{file}: computeType must be {' or '.join(_KINDS)}, got {given!r}")
        known = {name: field for field in fields_of(kind) for name in field.json_names}
        groups = {name.partition(".")[0] for name in known if "." in name}
        return cls._checked(kind, dict(flatten(content, groups)), known, file.name)

    @classmethod
    def from_keywords(cls, kind: Kind, **keywords: Any) -> DeploymentConfig:
        """Take the keywords of `AksWebservice`, `AciWebservice` or `LocalWebservice.deploy_configuration`.

        Raises:
            InvalidSettings: As `from_file`.
        """
        known = {field.keyword: field for field in fields_of(kind)}
        given = {name: value for name, value in keywords.items() if value is not None}
        return cls._checked(kind, given, known, f"{kind.capitalize()}Webservice.deploy_configuration")

    @classmethod
    def _checked(
        cls, kind: Kind, given: Mapping[str, Any], known: Mapping[str, Field], source: str
    ) -> DeploymentConfig:
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                elsewhere = [
                    k for k in _KINDS if any(name in (f.keyword, *f.json_names) for f in fields_of(k))
                ]
                if elsewhere and kind not in elsewhere:
                    raise InvalidSettings(
                        f"{source}: a deployment of type {kind} has no {name}, one of type "
                        f"{' or '.join(elsewhere)} has"
                    )
                raise unknown(name, known, source)
            try:
                values[known[name].keyword] = known[name].check(value)
            except ValueError as error:
                shown = "" if known[name].keyword in _SECRET else f", got {value!r}"
                raise InvalidSettings(f"{source}: {name} {error}{shown}") from None
        names = {f.keyword: name for name, f in known.items()} | {known[n].keyword: n for n in given}
        for contradiction in _contradictions(values, names):
            raise InvalidSettings(f"{source}: {contradiction}")
        return cls(kind, values, source)

    def imported(self) -> ImportedSettings:
        """Return the settings of Stoker that it asks for on one machine, and what the operator is told of it.

        Raises:
            InvalidSettings: It asks for more than one machine runs.
        """
        values = self.values
        if (self.replicas or 0) > _MOST_REPLICAS:
            raise InvalidSettings(
                f"{self.source}: {self.replicas} replicas are more than the {_MOST_REPLICAS} of one machine; ask for "
                "fewer, or have them in a cluster (stoker kubernetes render)"
            )
        server = {
            "auth": self.takes_keys,
            "token_auth": self.takes_tokens,
            "port": values.get("port"),
            "timeout_ms": values.get("scoring_timeout_ms"),
            "replicas": self.replicas,
            "collect": values.get("collect_model_data"),
            "device": "cpu" if values.get("gpu_cores") == 0 else None,
        }
        cpu_cores = values.get("cpu_cores", 0)
        model = ModelSettings(
            max_concurrent_requests=self.max_concurrent_requests,
            max_queue_wait_ms=values.get("max_request_wait_time"),
            threads=math.floor(cpu_cores) if cpu_cores >= 1 else None,
            description=values.get("description"),
        )
        return ImportedSettings(
            self.source,
            {name: value for name, value in server.items() if value is not None},
            model,
            values.get("primary_key"),
            values.get("secondary_key"),
            tuple(self._notes()),
        )

    @property
    def takes_keys(self) -> bool:
        """Whether callers send keys; where nothing is said, in Kubernetes alone, as on Azure."""
        return bool(self.values.get("auth_enabled", self.kind == "aks" and not self.takes_tokens))

    @property
    def takes_tokens(self) -> bool:
        """Whether callers send tokens."""
        return bool(self.values.get("token_auth_enabled"))

    @property
    def replicas(self) -> int | None:
        """How many replicas run: as many as asked for, or the fewest that Azure's autoscaler would keep."""
        fewest: int | None = self.values.get("num_replicas", self.values.get("autoscale_min_replicas"))
        return fewest

    @property
    def max_concurrent_requests(self) -> int | None:
        """Most requests in flight over all replicas; None is without limit."""
        of_replica: int | None = self.values.get("replica_max_concurrent_requests")
        return of_replica and of_replica * (self.replicas or 1)

    def _notes(self) -> Iterable[str]:
        values = self.values
        yield f"{self.source} ({self.kind}): {self._effects()}"
        if values.get("autoscale_enabled"):
            yield f"autoscaling is off on one machine: the fewest replicas that it allows run, {self.replicas or 1}"
        if self.max_concurrent_requests is not None:
            yield (
                f"at most {self.max_concurrent_requests} at once (replica_max_concurrent_requests): "
                "a batch cannot have rows of more requests; without that setting there is no limit"
            )
        elif "max_request_wait_time" in values:
            yield "max_request_wait_time has no effect without replica_max_concurrent_requests"
        if 0 < values.get("cpu_cores", 1) < 1:
            yield f"kept for the cluster: cpu_cores {values['cpu_cores']:g}; a core is not shared out here"
        for group, because in KEPT_BECAUSE.items():
            shown = _shown(values, [f for f in fields_of(self.kind) if f.group == group])
            if shown:
                yield f"kept for the cluster: {group} ({shown}); {because}"

    def _effects(self) -> str:
        silent = {*_SECRET, "auth_enabled", "token_auth_enabled", "autoscale_enabled"}
        effective = [f for f in fields_of(self.kind) if f.group == "here" and f.keyword not in silent]
        access = "tokens" if self.takes_tokens else "keys" if self.takes_keys else "no keys"
        return ", ".join(filter(None, (access, _shown(self.values, effective))))


def _shown(values: Mapping[str, Any], fields: Iterable[Field]) -> str:
    return ", ".join(f"{f.keyword} {_as_text(values[f.keyword])}" for f in fields if f.keyword in values)


def _as_text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case dict():
            return " ".join(f"{name}={content}" for name, content in value.items()) or "none"
        case _:
            return str(value)


def _contradictions(values: Mapping[str, Any], names: Mapping[str, str]) -> Iterable[str]:
    """What Azure refuses too. `names` are those under which the settings were given."""
    if values.get("auth_enabled") and values.get("token_auth_enabled"):
        yield f"{names['auth_enabled']} and {names['token_auth_enabled']} cannot both be true"
    for request, limit in (("cpu_cores", "cpu_cores_limit"), ("memory_gb", "memory_gb_limit")):
        if request in values and limit in values and values[limit] < values[request]:
            yield f"{names[limit]} must be at least {names[request]}"
    yield from _autoscale_contradictions(values, names)
    for together in (
        ("vnet_name", "subnet_name"),
        ("cmk_vault_base_url", "cmk_key_name", "cmk_key_version"),
        *(
            [("ssl_enabled", "ssl_cert_pem_file", "ssl_key_pem_file", "ssl_cname")]
            if values.get("ssl_enabled")
            else []
        ),
    ):
        given = [names[keyword] for keyword in together if keyword in values]
        if given and len(given) < len(together):
            missing = [names[keyword] for keyword in together if keyword not in values]
            yield f"{' and '.join(given)} must have {' and '.join(missing)} beside"


def _autoscale_contradictions(values: Mapping[str, Any], names: Mapping[str, str]) -> Iterable[str]:
    enabled = values.get("autoscale_enabled")
    if enabled:
        if "num_replicas" in values:
            yield f"{names['num_replicas']} cannot be given while {names['autoscale_enabled']} is true"
        low, high = values.get("autoscale_min_replicas"), values.get("autoscale_max_replicas")
        if low is not None and high is not None and low > high:
            yield f"{names['autoscale_min_replicas']} must not be above {names['autoscale_max_replicas']}"
        return
    if enabled is False and "num_replicas" not in values:
        yield f"{names['num_replicas']} must be given while {names['autoscale_enabled']} is false"
    for keyword in values:
        if keyword.startswith("autoscale_") and keyword != "autoscale_enabled":
            yield f"{names[keyword]} must not be given unless {names['autoscale_enabled']} is true"
