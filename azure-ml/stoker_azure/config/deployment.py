"""Deployment configurations for Azure: their settings by names of the SDK and of the CLI's JSON, and their effect.

One row a setting. Names and limits are those of `azureml-core` 1.61: the keywords of `AksWebservice`, `AciWebservice`
and `LocalWebservice.deploy_configuration`, and what `az ml model deploy --dc FILE` reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.settings.files import read_json
from stoker.settings.model import ModelSettings
from stoker.settings.readers import read_flag, read_text, read_value, unknown_setting
from stoker.settings.server import ImportedSettings
from stoker_azure.config.kept_for_clusters import kept_notes, shown_settings
from stoker_azure.config.readers import read_positive, read_texts, whole_number

Kind = Literal["aks", "aci", "local"]
"""The platform on Azure: Kubernetes, Container Instances, Docker on the own machine."""

_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


class Field(Struct, frozen=True):
    """A setting.

    Attributes:
        json: Its names in the CLI's JSON, with dots for nesting, as words; the first is the documented one. Empty
            where the CLI has none.
        kinds: The deployments that have it.
        read: Reads a value; see `stoker.settings.readers`.
        group: `here` where it has an effect here, else the reason why not: a group of `KEPT_BECAUSE`.
    """

    keyword: str
    json: str
    kinds: frozenset[Kind]
    read: Callable[[Any], Any]
    group: str = "here"

    @property
    def json_names(self) -> tuple[str, ...]:
        """Its names in the CLI's JSON."""
        return tuple(self.json.split())


def fields_of(kind: Kind) -> list[Field]:
    """Return the settings of a kind of deployment."""
    return [field for field in FIELDS if kind in field.kinds]


def _namespace(value: Any) -> str:
    if not isinstance(value, str) or not _NAMESPACE.fullmatch(value):
        raise ValueError("must be 1 to 63 small letters, digits and '-', which neither begins nor ends it")
    return value


_AKS: Final[frozenset[Kind]] = frozenset({"aks"})
_ACI: Final[frozenset[Kind]] = frozenset({"aci"})
_LOCAL: Final[frozenset[Kind]] = frozenset({"local"})
_CLOUD: Final = _AKS | _ACI
_REPLICAS: Final = whole_number(1, 10_000)
_SECONDS: Final = whole_number(1, 86_400)
_MILLISECONDS: Final = whole_number(1, 3_600_000)


FIELDS: Final = (
    Field("autoscale_enabled", "autoScaler.autoscaleEnabled", _AKS, read_flag),
    Field("autoscale_min_replicas", "autoScaler.minReplicas", _AKS, _REPLICAS),
    Field("autoscale_max_replicas", "autoScaler.maxReplicas", _AKS, _REPLICAS, "autoscaling"),
    Field("autoscale_refresh_seconds", "autoScaler.refreshPeriodInSeconds", _AKS, _SECONDS, "autoscaling"),
    Field(
        "autoscale_target_utilization",
        "autoScaler.targetUtilization",
        _AKS,
        whole_number(1, 100),
        "autoscaling",
    ),
    Field("num_replicas", "numReplicas", _AKS, _REPLICAS),
    Field("collect_model_data", "dataCollection.storageEnabled", _CLOUD, read_flag),
    Field("auth_enabled", "authEnabled", _CLOUD, read_flag),
    Field("token_auth_enabled", "tokenAuthEnabled aadAuthEnabled", _AKS, read_flag),
    Field("primary_key", "keys.primaryKey", _CLOUD, read_text),
    Field("secondary_key", "keys.secondaryKey", _CLOUD, read_text),
    Field("scoring_timeout_ms", "scoringTimeoutMs", _AKS, _MILLISECONDS),
    Field(
        "replica_max_concurrent_requests", "maxConcurrentRequestsPerContainer", _AKS, whole_number(1, 1024)
    ),
    Field("max_request_wait_time", "maxQueueWaitMs", _AKS, _MILLISECONDS),
    Field("gpu_cores", "gpuCores containerResourceRequirements.gpu", _AKS, whole_number(0, 1024)),
    Field("cpu_cores", "containerResourceRequirements.cpu", _CLOUD, read_positive),
    Field("port", "port", _LOCAL, whole_number(1, 65_535)),
    Field("description", "description", _CLOUD, read_text),
    Field("tags", "tags", _CLOUD, read_texts, "labels"),
    Field("properties", "properties", _CLOUD, read_texts, "labels"),
    Field("memory_gb", "containerResourceRequirements.memoryInGB", _CLOUD, read_positive, "resources"),
    Field("cpu_cores_limit", "containerResourceRequirements.cpuLimit", _AKS, read_positive, "resources"),
    Field(
        "memory_gb_limit", "containerResourceRequirements.memoryInGBLimit", _AKS, read_positive, "resources"
    ),
    Field("period_seconds", "livenessProbeRequirements.periodSeconds", _AKS, _SECONDS, "liveness probe"),
    Field(
        "initial_delay_seconds",
        "livenessProbeRequirements.initialDelaySeconds",
        _AKS,
        _SECONDS,
        "liveness probe",
    ),
    Field("timeout_seconds", "livenessProbeRequirements.timeoutSeconds", _AKS, _SECONDS, "liveness probe"),
    Field(
        "success_threshold", "livenessProbeRequirements.successThreshold", _AKS, _SECONDS, "liveness probe"
    ),
    Field(
        "failure_threshold", "livenessProbeRequirements.failureThreshold", _AKS, _SECONDS, "liveness probe"
    ),
    Field("namespace", "namespace", _AKS, _namespace, "placement"),
    Field("compute_target_name", "computeTargetName", _AKS, read_text, "placement"),
    Field("blobfuse_enabled", "", _AKS, read_flag, "placement"),
    Field("location", "location", _ACI, read_text, "placement"),
    Field("enable_app_insights", "appInsightsEnabled", _CLOUD, read_flag, "monitoring"),
    Field("ssl_enabled", "sslEnabled", _ACI, read_flag, "network"),
    Field("ssl_cert_pem_file", "sslCertificate", _ACI, read_text, "network"),
    Field("ssl_key_pem_file", "sslKey", _ACI, read_text, "network"),
    Field("ssl_cname", "cname", _ACI, read_text, "network"),
    Field("dns_name_label", "dnsNameLabel", _ACI, read_text, "network"),
    Field("vnet_name", "vnetName", _ACI, read_text, "network"),
    Field("subnet_name", "subnetName", _ACI, read_text, "network"),
    Field("cmk_vault_base_url", "vaultBaseUrl", _ACI, read_text, "encryption"),
    Field("cmk_key_name", "keyName", _ACI, read_text, "encryption"),
    Field("cmk_key_version", "keyVersion", _ACI, read_text, "encryption"),
)


_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_MOST_REPLICAS: Final = 64
_SECRET: Final = {"primary_key", "secondary_key"}


@dataclass(frozen=True, slots=True)
class DeploymentConfig:
    """A checked deployment configuration.

    Attributes:
        kind: The platform on Azure.
        values: The given settings, by keyword of the SDK.
        source: Where the settings are from, for messages.
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
        content = read_json(file)
        given = content.pop("computeType", None)
        kind = next((kind for kind in _KINDS if isinstance(given, str) and given.lower() == kind), None)
        if kind is None:
            raise InvalidSettings(f"{file}: computeType must be {' or '.join(_KINDS)}, got {given!r}")
        known = {name: field for field in fields_of(kind) for name in field.json_names}
        groups = {name.partition(".")[0] for name in known if "." in name}
        return cls._read(kind, dict(_flatten(content, groups)), known, file.name)

    @classmethod
    def from_keywords(cls, kind: Kind, **keywords: Any) -> DeploymentConfig:
        """Read the keywords of `AksWebservice`, `AciWebservice` or `LocalWebservice.deploy_configuration`."""
        known = {field.keyword: field for field in fields_of(kind)}
        given = {name: value for name, value in keywords.items() if value is not None}
        return cls._read(kind, given, known, f"{kind.capitalize()}Webservice.deploy_configuration")

    @classmethod
    def _read(
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
                raise unknown_setting(name, sorted(known), source)
            field = known[name]
            is_secret = field.keyword in _SECRET
            values[field.keyword] = read_value(name, value, field.read, source, is_secret=is_secret)
        names = {f.keyword: name for name, f in known.items()} | {known[n].keyword: n for n in given}
        for contradiction in _contradictions(values, names):
            raise InvalidSettings(f"{source}: {contradiction}")
        return cls(kind, values, source)

    def imported(self) -> ImportedSettings:
        """Return the settings of Stoker for one machine, and notes for the operator.

        Raises:
            InvalidSettings: The configuration needs more than one machine.
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
        """Whether callers send keys; by default only for Kubernetes, as on Azure."""
        return bool(self.values.get("auth_enabled", self.kind == "aks" and not self.takes_tokens))

    @property
    def takes_tokens(self) -> bool:
        """Whether callers send tokens."""
        return bool(self.values.get("token_auth_enabled"))

    @property
    def replicas(self) -> int | None:
        """Number of replicas: the requested one, or the fewest that Azure's autoscaler would keep."""
        fewest: int | None = self.values.get("num_replicas", self.values.get("autoscale_min_replicas"))
        return fewest

    @property
    def max_concurrent_requests(self) -> int | None:
        """Largest number of requests in flight over all replicas; None is no limit."""
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
        yield from kept_notes(*self._in_order())

    def _effects(self) -> str:
        silent = {*_SECRET, "auth_enabled", "token_auth_enabled", "autoscale_enabled"}
        values, groups = self._in_order()
        effective = {
            name: value for name, value in values.items() if groups[name] == "here" and name not in silent
        }
        access = "tokens" if self.takes_tokens else "keys" if self.takes_keys else "no keys"
        return ", ".join(filter(None, (access, shown_settings(effective))))

    def _in_order(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values in the order of `FIELDS`, and the group of each."""
        given = [field for field in fields_of(self.kind) if field.keyword in self.values]
        values = {field.keyword: self.values[field.keyword] for field in given}
        return values, {field.keyword: field.group for field in given}


def _flatten(content: Mapping[str, Any], nested: Iterable[str]) -> Iterable[tuple[str, Any]]:
    """Yield the settings of an object by their dotted names, without those that are null.

    Only the objects named in `nested` group settings; other objects are values.
    """
    groups = set(nested)
    for name, value in content.items():
        if name in groups and isinstance(value, Mapping):
            yield from (
                (f"{name}.{inner}", content) for inner, content in value.items() if content is not None
            )
        elif value is not None:
            yield name, value


def _contradictions(values: Mapping[str, Any], names: Mapping[str, str]) -> Iterable[str]:
    """Yield contradictions that Azure refuses too; `names` has the names under which settings were given."""
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
