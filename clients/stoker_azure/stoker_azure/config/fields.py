"""The settings of a deployment on Azure: their names in the SDK and in the CLI's JSON, their values, their fate here.

One row a setting. Names and limits are those of `azureml-core` 1.61: the keywords of `AksWebservice`, `AciWebservice`
and `LocalWebservice.deploy_configuration`, and what `az ml model deploy --dc FILE` reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker_azure.config.values import flag, positive, text, texts, whole

__all__ = ["FIELDS", "KEPT_BECAUSE", "Field", "Group", "Kind", "fields_of"]

Kind = Literal["aks", "aci", "local"]
"""Where a deployment was to go: Kubernetes, Container Instances, Docker on the own machine."""

Group = Literal[
    "here",
    "autoscaling",
    "resources",
    "liveness probe",
    "placement",
    "network",
    "encryption",
    "monitoring",
    "labels",
]
"""`here`: it has an effect on this machine. Else it has none, and the group says why."""

KEPT_BECAUSE: Final[Mapping[Group, str]] = {
    "autoscaling": "the number of replicas is fixed on one machine",
    "resources": "a process is given no share of the machine",
    "liveness probe": "the supervisor sees at once when a process ends; /v2/health/live is there for probes",
    "placement": "there is no cluster here",
    "network": "TLS is a setting of Stoker: --tls-cert and --tls-key",
    "encryption": "nothing is stored in Azure",
    "monitoring": "metrics are at /metrics",
    "labels": "they are said here and do nothing",
}

_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Field:
    """One setting.

    Attributes:
        keyword: Its name in the SDK.
        json_names: Its names in the CLI's JSON, with dots for nesting; the first is the documented one. Empty where
            the CLI has none.
        kinds: The deployments that have it.
        check: Returns the value that is used, or raises ValueError with what is allowed ("must be ...").
        group: What becomes of it here.
    """

    keyword: str
    json_names: tuple[str, ...]
    kinds: frozenset[Kind]
    check: Callable[[Any], Any]
    group: Group

    def names(self, origin: Literal["keyword", "json"]) -> tuple[str, ...]:
        """The names under which it may be given there."""
        return (self.keyword,) if origin == "keyword" else self.json_names


def fields_of(kind: Kind) -> list[Field]:
    """The settings that a deployment of this kind has."""
    return [field for field in FIELDS if kind in field.kinds]


def _namespace(value: Any) -> str:
    if not isinstance(value, str) or not _NAMESPACE.fullmatch(value):
        raise ValueError("must be 1 to 63 small letters, digits and '-', which neither begins nor ends it")
    return value


_AKS: Final[frozenset[Kind]] = frozenset({"aks"})
_ACI: Final[frozenset[Kind]] = frozenset({"aci"})
_LOCAL: Final[frozenset[Kind]] = frozenset({"local"})
_CLOUD: Final = _AKS | _ACI
_REPLICAS: Final = whole(1, 10_000)
_SECONDS: Final = whole(1, 86_400)
_MILLISECONDS: Final = whole(1, 3_600_000)


def _field(
    keyword: str, json_names: str, kinds: frozenset[Kind], check: Callable[[Any], Any], group: Group = "here"
) -> Field:
    return Field(keyword, tuple(json_names.split()), kinds, check, group)


FIELDS: Final = (
    _field("autoscale_enabled", "autoScaler.autoscaleEnabled", _AKS, flag),
    _field("autoscale_min_replicas", "autoScaler.minReplicas", _AKS, _REPLICAS),
    _field("autoscale_max_replicas", "autoScaler.maxReplicas", _AKS, _REPLICAS, "autoscaling"),
    _field("autoscale_refresh_seconds", "autoScaler.refreshPeriodInSeconds", _AKS, _SECONDS, "autoscaling"),
    _field(
        "autoscale_target_utilization", "autoScaler.targetUtilization", _AKS, whole(1, 100), "autoscaling"
    ),
    _field("num_replicas", "numReplicas", _AKS, _REPLICAS),
    _field("collect_model_data", "dataCollection.storageEnabled", _CLOUD, flag),
    _field("auth_enabled", "authEnabled", _CLOUD, flag),
    _field("token_auth_enabled", "tokenAuthEnabled aadAuthEnabled", _AKS, flag),
    _field("primary_key", "keys.primaryKey", _CLOUD, text),
    _field("secondary_key", "keys.secondaryKey", _CLOUD, text),
    _field("scoring_timeout_ms", "scoringTimeoutMs", _AKS, _MILLISECONDS),
    _field("replica_max_concurrent_requests", "maxConcurrentRequestsPerContainer", _AKS, whole(1, 1024)),
    _field("max_request_wait_time", "maxQueueWaitMs", _AKS, _MILLISECONDS),
    _field("gpu_cores", "gpuCores containerResourceRequirements.gpu", _AKS, whole(0, 1024)),
    _field("cpu_cores", "containerResourceRequirements.cpu", _CLOUD, positive),
    _field("port", "port", _LOCAL, whole(1, 65_535)),
    _field("description", "description", _CLOUD, text),
    _field("tags", "tags", _CLOUD, texts, "labels"),
    _field("properties", "properties", _CLOUD, texts, "labels"),
    _field("memory_gb", "containerResourceRequirements.memoryInGB", _CLOUD, positive, "resources"),
    _field("cpu_cores_limit", "containerResourceRequirements.cpuLimit", _AKS, positive, "resources"),
    _field("memory_gb_limit", "containerResourceRequirements.memoryInGBLimit", _AKS, positive, "resources"),
    _field("period_seconds", "livenessProbeRequirements.periodSeconds", _AKS, _SECONDS, "liveness probe"),
    _field(
        "initial_delay_seconds",
        "livenessProbeRequirements.initialDelaySeconds",
        _AKS,
        _SECONDS,
        "liveness probe",
    ),
    _field("timeout_seconds", "livenessProbeRequirements.timeoutSeconds", _AKS, _SECONDS, "liveness probe"),
    _field(
        "success_threshold", "livenessProbeRequirements.successThreshold", _AKS, _SECONDS, "liveness probe"
    ),
    _field(
        "failure_threshold", "livenessProbeRequirements.failureThreshold", _AKS, _SECONDS, "liveness probe"
    ),
    _field("namespace", "namespace", _AKS, _namespace, "placement"),
    _field("compute_target_name", "computeTargetName", _AKS, text, "placement"),
    _field("blobfuse_enabled", "", _AKS, flag, "placement"),
    _field("location", "location", _ACI, text, "placement"),
    _field("enable_app_insights", "appInsightsEnabled", _CLOUD, flag, "monitoring"),
    _field("ssl_enabled", "sslEnabled", _ACI, flag, "network"),
    _field("ssl_cert_pem_file", "sslCertificate", _ACI, text, "network"),
    _field("ssl_key_pem_file", "sslKey", _ACI, text, "network"),
    _field("ssl_cname", "cname", _ACI, text, "network"),
    _field("dns_name_label", "dnsNameLabel", _ACI, text, "network"),
    _field("vnet_name", "vnetName", _ACI, text, "network"),
    _field("subnet_name", "subnetName", _ACI, text, "network"),
    _field("cmk_vault_base_url", "vaultBaseUrl", _ACI, text, "encryption"),
    _field("cmk_key_name", "keyName", _ACI, text, "encryption"),
    _field("cmk_key_version", "keyVersion", _ACI, text, "encryption"),
)
