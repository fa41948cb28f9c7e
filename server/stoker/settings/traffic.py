"""How requests are shared between versions and deployments, and what a new version must show before it takes over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from stoker.settings.names import NAME_RULE, is_name
from stoker.settings.readers import number_of, read_members

ParityMode = Literal["off", "warn", "require"]

PARITY_TOLERANCE: Final = 1e-3
_ALL: Final = 100
_MOST_WEIGHT: Final = 1_000_000
_HEADER: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_MODES: Final = ("off", "warn", "require")


@dataclass(frozen=True, slots=True)
class Parity:
    """Whether the answers of a new version are compared with those of its predecessor before it takes over.

    Attributes:
        mode: `off` compares nothing and keeps no samples; `warn` tells of differences; `require` keeps a version from
            taking over that was not shown to give the same answers.
        tolerance: The allowed difference, relative to the largest number of an output.
    """

    mode: ParityMode = "off"
    tolerance: float = PARITY_TOLERANCE


@dataclass(frozen=True, slots=True)
class Canary:
    """How the requests that name no version go to the versions with labels.

    Attributes:
        weights: Weights by label; the first label is the baseline of the others. Empty: all go to the default.
        by: The mark that keeps a caller on one version: `key`, or a header name in lower case; empty for none.
        shadow: By label, the percentage of rows that are copied to its version; the answers are dropped.
    """

    weights: Mapping[str, int] = field(default_factory=dict)
    by: str = ""
    shadow: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = ", ".join(f"{label}={weight}" for label, weight in self.weights.items()) or "off"
        if self.by and self.weights:
            shown += f" by {self.by}"
        copies = "".join(f"; a copy of {percent} % to {label}" for label, percent in self.shadow.items())
        return shown + copies

    def to_json(self) -> dict[str, Any]:
        """Return it as files and requests have it."""
        return {"weights": dict(self.weights), "by": self.by, "shadow": dict(self.shadow)}

    @classmethod
    def from_json(cls, value: Any) -> Canary:
        """Inverse of `to_json`; all but the weights may be left out.

        Raises:
            ValueError: It is something else.
        """
        if (
            not isinstance(value, Mapping)
            or "weights" not in value
            or set(value) - {"weights", "by", "shadow"}
        ):
            raise ValueError(
                'must be such as {"weights": {"stable": 90, "next": 10}, "by": "key", "shadow": {}}'
            )
        by = value.get("by")
        weights, shadow = read_weights(value["weights"]), read_percents(value.get("shadow", {}))
        return cls(weights, read_sticky(by) if by else "", shadow)


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a version loses its weight.

    Attributes:
        requests: Minimum requests of each version in the last minutes before they are compared.
        error_rate: Allowed difference of its share of failed requests to the baseline's.
        latency_ratio: Allowed ratio of its 95th percentile of latency to the baseline's.
    """

    requests: int = 100
    error_rate: float = 0.01
    latency_ratio: float = 2.0


_BOUNDS: Final = {
    "requests": number_of(int, 10, 1_000_000),
    "error_rate": number_of(float, 0, 1),
    "latency_ratio": number_of(float, 1, 1000),
}


def read_rollback(value: Any) -> Bounds | Literal[False]:
    """Read bounds from a mapping of some of them; false for `off`."""
    if value is False or value == "off":
        return False
    if not isinstance(value, Mapping):
        raise ValueError(f"must be off, or a mapping of {', '.join(_BOUNDS)}")
    return Bounds(**read_members(value, _BOUNDS))


def read_weights(value: Any) -> dict[str, int]:
    """Return weights by label, of a mapping or of a text such as `stable=90,next=10`; `off` for none."""
    if value is False or value == "off":
        return {}
    if isinstance(value, str):
        value = {
            label.strip(): weight for label, _, weight in (part.partition("=") for part in value.split(","))
        }
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of labels to weights, such as stable: 90, next: 10")
    for label, weight in value.items():
        if not isinstance(label, str) or not is_name(label):
            raise ValueError(f"must have labels of {NAME_RULE}, not {label!r}")
        if (
            isinstance(weight, bool)
            or not re.fullmatch("[0-9]{1,7}", str(weight))
            or int(weight) > _MOST_WEIGHT
        ):
            raise ValueError(f"must have whole numbers from 0 to {_MOST_WEIGHT} as weights, not {weight!r}")
    if value and not any(int(weight) for weight in value.values()):
        raise ValueError("must have a weight above 0")
    return {label: int(weight) for label, weight in value.items()}


def read_percents(value: Any) -> dict[str, int]:
    """Return percents by label, of a mapping or of a text such as `next=10`; `off` for none."""
    percents = read_weights(value)
    if any(percent > _ALL for percent in percents.values()):
        raise ValueError(f"must have percents up to {_ALL}")
    return percents


def read_sticky(value: Any) -> str:
    """Return `key`, or the name of a header in lower case."""
    if not isinstance(value, str) or not _HEADER.fullmatch(value.lower()):
        raise ValueError("must be key, or the name of a header")
    return value.lower()


def read_parity(value: Any) -> ParityMode:
    """Return `off`, `warn` or `require`; YAML reads a bare `off` as false."""
    word = "off" if value is False else value
    if word not in _MODES:
        raise ValueError(f"must be {' or '.join(_MODES)}")
    return cast("ParityMode", word)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint, as known to the supervisor and the frontends.

    Attributes:
        shares: Percent of its requests by deployment, in the order in which they were given; 0 is reached by the
            header alone. The deployments are services of these names.
        mirrors: Percentage of its requests that are copied to a deployment; the answers are dropped.
    """

    name: str
    shares: Mapping[str, int]
    mirrors: Mapping[str, int] = field(default_factory=dict)

    @property
    def leading(self) -> str:
        """The deployment with the largest share, which describes the endpoint in metadata."""
        return max(self.shares, key=lambda name: self.shares[name])


def keys_owner(endpoint: Endpoint | None, service: str) -> str:
    """Return the name under which a service's keys are stored: an endpoint's keys open all its deployments."""
    return endpoint.name if endpoint is not None and service in endpoint.shares else service
