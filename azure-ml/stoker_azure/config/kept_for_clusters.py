"""Settings of Azure's files that have no effect on one machine: their groups, and the notes that say why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

KEPT_BECAUSE: Final = {
    "autoscaling": "the number of replicas is fixed on one machine",
    "resources": "a process is given no share of the machine",
    "liveness probe": "the supervisor sees at once when a process ends; /v2/health/live is there for probes",
    "probes": "the supervisor sees at once when a process ends; /v2/health/live and /v2/health/ready are there for "
    "probes",
    "placement": "there is no cluster here",
    "network": "TLS is a setting of Stoker: --tls-cert and --tls-key",
    "encryption": "nothing is stored in Azure",
    "monitoring": "metrics are at /metrics",
    "image": "no container is built here",
    "labels": "they are said here and do nothing",
}
"""By group; settings of other groups have an effect, or need none."""


def kept_notes(values: Mapping[str, Any], groups: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each group that has settings.

    Args:
        groups: The group of each setting that may have a value.
    """
    for group, because in KEPT_BECAUSE.items():
        shown = shown_settings({name: value for name, value in values.items() if groups[name] == group})
        if shown:
            yield f"kept for the cluster: {group} ({shown}); {because}"


def shown_settings(values: Mapping[str, Any]) -> str:
    """Return settings as text, for notes."""
    return ", ".join(f"{name} {_as_text(value)}" for name, value in values.items())


def _as_text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case Mapping():
            return " ".join(f"{name}={content}" for name, content in value.items()) or "none"
        case _:
            return str(value)
