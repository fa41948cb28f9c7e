"""The settings of online endpoints and deployments in the YAML of `az ml` (CLI v2): names, values and effect.

One row a setting, for the keys of the schemas `managedOnlineDeployment`, `kubernetesOnlineDeployment`,
`managedOnlineEndpoint` and `kubernetesOnlineEndpoint`. What has a shape of its own (the model, the environment, what
is collected) is read by `online_assets`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.settings.readers import read_flag, read_text, read_value, unknown_setting
from stoker_azure.config.kept_for_clusters import kept_notes
from stoker_azure.config.readers import read_texts, whole_number

_CPU: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m?)", re.ASCII)


class OnlineField(Struct, frozen=True):
    """A setting.

    Attributes:
        name: Name in the YAML, with dots for nesting.
        read: Reads a value; see `stoker.settings.readers`.
        group: `here` where it has an effect here, `silent` where it needs none, else a group of `KEPT_BECAUSE`.
    """

    name: str
    read: Callable[[Any], Any]
    group: str = "here"


def read_fields(content: Mapping[str, Any], fields: Iterable[OnlineField], source: str) -> dict[str, Any]:
    """Read the settings of a file by their dotted names; null is not a value."""
    known = {field.name: field for field in fields}
    return dict(_read(content, "", known, source))


def notes_without_effect(
    values: Mapping[str, Any], fields: Iterable[OnlineField], prefix: str
) -> Iterator[str]:
    """Yield notes on the settings without effect, one a group."""
    yield from (prefix + note for note in kept_notes(values, {field.name: field.group for field in fields}))


def _read(
    content: Mapping[str, Any], prefix: str, known: Mapping[str, OnlineField], source: str
) -> Iterable[tuple[str, Any]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if name in known:
            if value is not None:
                yield name, read_value(name, value, known[name].read, source)
        elif not any(other.startswith(f"{name}.") for other in known):
            raise unknown_setting(name, sorted(known), source)
        elif isinstance(value, Mapping):
            yield from _read(value, f"{name}.", known, source)
        elif value is not None:
            raise InvalidSettings(f"{source}: {name} must be a mapping, got {value!r}")


def _one_of(*words: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        # As the CLI does, whatever the case: Enabled, enabled.
        found = value.lower() if isinstance(value, str) else None
        if found not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return found

    return check


def _unchecked(value: Any) -> Any:
    return value


def _cpus(value: Any) -> float:
    """Read cores as Kubernetes does: `2`, `0.5`, `500m`."""
    found = _CPU.fullmatch(str(value)) if not isinstance(value, bool) else None
    if found is None or not float(found[1]):
        raise ValueError("must be a number of cores above 0, such as 2, 0.5 or 500m")
    return float(found[1]) / (1000 if found[2] else 1)


def _percents(most: int) -> Callable[[Any], dict[str, int]]:
    percent = whole_number(0, 100)

    def check(value: Any) -> dict[str, int]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ValueError("must be percents by the names of deployments")
        try:
            given = {name: percent(share) for name, share in value.items()}
        except ValueError as error:
            raise ValueError(f"{error} for each deployment") from None
        if sum(given.values()) > most:
            raise ValueError(f"must not add up to more than {most}")
        return given

    return check


_AUTH: Final = _one_of("key", "aml_token", "aad_token")
_SWITCHED: Final = _one_of("enabled", "disabled")
_SECONDS: Final = whole_number(0, 86_400)


def _probe(name: str) -> tuple[OnlineField, ...]:
    parts = ("initial_delay", "period", "timeout", "success_threshold", "failure_threshold")
    return tuple(OnlineField(f"{name}.{part}", _SECONDS, "probes") for part in parts)


_COMMON: Final = (
    OnlineField("$schema", read_text, "silent"),
    OnlineField("name", read_text),
    OnlineField("description", read_text),
    OnlineField("tags", read_texts, "labels"),
    OnlineField("properties", read_texts, "labels"),
    OnlineField("id", read_text, "silent"),
    OnlineField("provisioning_state", read_text, "silent"),
)

DEPLOYMENT_FIELDS: Final = (
    *_COMMON,
    OnlineField("type", _one_of("managed", "kubernetes"), "silent"),
    OnlineField("endpoint_name", read_text),
    OnlineField("model", _unchecked),
    OnlineField("code_configuration.code", read_text),
    OnlineField("code_configuration.scoring_script", read_text),
    OnlineField("environment", _unchecked),
    OnlineField("environment_variables", _unchecked),
    OnlineField("instance_count", whole_number(1, 64)),
    OnlineField("request_settings.request_timeout_ms", whole_number(1, 3_600_000)),
    OnlineField("request_settings.max_concurrent_requests_per_instance", whole_number(1, 1024)),
    OnlineField("request_settings.max_queue_wait_ms", whole_number(0, 3_600_000)),
    OnlineField("scale_settings.type", _one_of("default", "target_utilization"), "silent"),
    OnlineField("scale_settings.min_instances", whole_number(1, 64)),
    OnlineField("scale_settings.max_instances", whole_number(1, 10_000), "autoscaling"),
    OnlineField("scale_settings.polling_interval", whole_number(1, 86_400), "autoscaling"),
    OnlineField("scale_settings.target_utilization_percentage", whole_number(1, 100), "autoscaling"),
    OnlineField("data_collector.collections", _unchecked),
    OnlineField("data_collector.sampling_rate", _unchecked),
    OnlineField("data_collector.rolling_rate", read_text, "monitoring"),
    OnlineField("data_collector.request_logging", _unchecked, "monitoring"),
    OnlineField("instance_type", read_text, "resources"),
    OnlineField("resources.requests.cpu", _cpus),
    OnlineField("resources.requests.memory", _unchecked, "resources"),
    OnlineField("resources.requests.gpu", _unchecked, "resources"),
    OnlineField("resources.requests.nvidia.com/gpu", _unchecked, "resources"),
    OnlineField("resources.limits.cpu", _cpus, "resources"),
    OnlineField("resources.limits.memory", _unchecked, "resources"),
    OnlineField("resources.limits.gpu", _unchecked, "resources"),
    OnlineField("resources.limits.nvidia.com/gpu", _unchecked, "resources"),
    *_probe("liveness_probe"),
    *_probe("readiness_probe"),
    *_probe("startup_probe"),
    OnlineField("egress_public_network_access", _SWITCHED, "network"),
    OnlineField("private_network_connection", read_flag, "network"),
    OnlineField("app_insights_enabled", read_flag, "monitoring"),
    OnlineField("model_mount_path", read_text, "image"),
)
"""The settings of a deployment."""

ENDPOINT_FIELDS: Final = (
    *_COMMON,
    OnlineField("auth_mode", _AUTH),
    OnlineField("traffic", _percents(100)),
    OnlineField("mirror_traffic", _percents(50)),
    OnlineField("defaults.deployment_name", read_text),
    OnlineField("public_network_access", _SWITCHED, "network"),
    OnlineField("identity", _unchecked, "placement"),
    OnlineField("location", read_text, "placement"),
    OnlineField("compute", read_text, "placement"),
    OnlineField("kind", read_text, "silent"),
    OnlineField("type", read_text, "silent"),
    OnlineField("scoring_uri", read_text, "silent"),
    OnlineField("openapi_uri", read_text, "silent"),
)
"""The settings of an endpoint."""
