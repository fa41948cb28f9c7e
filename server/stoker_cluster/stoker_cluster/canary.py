"""Changes the percentages of the versions of a running endpoint: in its route, or in its router's settings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml
from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker_cluster.access import Cluster
from stoker_cluster.objects.route import DEFAULT_VERSION, TRAFFIC
from stoker_cluster.objects.router import ROUTER_FILE
from stoker_cluster.readers import read_traffic
from stoker_cluster.render import as_yaml
from stoker_cluster.traffic_shares import effective_weights

_PLACES: Final = (("v1", "ConfigMap"), ("gateway.networking.k8s.io/v1", "HTTPRoute"))
_SENT_FIELDS: Final = ("apiVersion", "kind", "spec", "data")
_IDENTITY: Final = ("name", "namespace", "labels", "annotations")


class Shares(Struct, frozen=True):
    """How the requests to an endpoint are divided.

    Attributes:
        default: The version that gets the rest up to 100.
    """

    traffic: Mapping[str, float]
    default: str

    def changed(self, traffic: Mapping[str, float], default: str | None = None) -> Shares:
        """Return the division after a change.

        Args:
            traffic: New percentages; the others stay as they are.

        Raises:
            InvalidSettings: There is no such version, or they add up to more than 100.
        """
        for name in (*traffic, *([default] if default else [])):
            if name not in self.traffic:
                raise InvalidSettings(f"there is no version {name}; there are {', '.join(self.traffic)}")
        new = Shares({**self.traffic, **traffic}, default or self.default)
        others = {version: share for version, share in new.traffic.items() if version != new.default}
        # The default version gets the rest up to 100, whatever its former percentage.
        if new.default not in traffic:
            new = Shares({version: others.get(version, 0.0) for version in new.traffic}, new.default)
        effective_weights(new.traffic, new.default)
        return new


def shares_of(content: Mapping[str, Any]) -> Shares | None:
    """Return the shares in a route, or in the ConfigMap of a router; None if it has no versions."""
    if content["kind"] == "ConfigMap":
        settings = yaml.safe_load(content.get("data", {}).get(ROUTER_FILE, "")) or {}
        if not settings.get("traffic"):
            return None
        return Shares(
            {name: float(share) for name, share in settings["traffic"].items()}, settings["default_version"]
        )
    annotations = content["metadata"].get("annotations", {})
    if TRAFFIC not in annotations:
        return None
    return Shares(read_traffic(annotations[TRAFFIC]), annotations[DEFAULT_VERSION])


def with_shares(content: Mapping[str, Any], shares: Shares) -> dict[str, Any]:
    """Return the object with other shares, without the fields that the server adds."""
    changed = {name: copy.deepcopy(content[name]) for name in _SENT_FIELDS if name in content}
    changed["metadata"] = {
        name: copy.deepcopy(content["metadata"][name]) for name in _IDENTITY if name in content["metadata"]
    }
    if content["kind"] == "ConfigMap":
        settings = yaml.safe_load(content["data"][ROUTER_FILE])
        settings |= {"traffic": dict(shares.traffic), "default_version": shares.default}
        changed["data"][ROUTER_FILE] = as_yaml([settings])
        return changed
    changed["metadata"]["annotations"] |= {
        TRAFFIC: ",".join(f"{name}={share:g}" for name, share in shares.traffic.items()),
        DEFAULT_VERSION: shares.default,
    }
    weights = effective_weights(shares.traffic, shares.default)
    for backend, weight in zip(changed["spec"]["rules"][-1]["backendRefs"], weights.values(), strict=True):
        backend["weight"] = weight
    return changed


def set_shares(
    cluster: Cluster,
    namespace: str,
    name: str,
    traffic: Mapping[str, float],
    default: str | None = None,
) -> dict[str, int]:
    """Give the versions of an endpoint other shares, at once; returns the weights in hundredths of a percent.

    Args:
        traffic: New percentages; those of other versions stay, and the default version gets what is left.

    Raises:
        InvalidSettings: There is no such endpoint or version, or the shares cannot be.
    """
    found = list(_shared_objects(cluster, namespace, name))
    if not found:
        raise InvalidSettings(
            f"{name} has no versions that share requests in {namespace}; render some with --traffic"
        )
    new = found[0][1].changed(traffic, default)
    for content, _ in found:
        cluster.apply(with_shares(content, new))
    mark = {"metadata": {"annotations": {TRAFFIC: str(dict(new.traffic)), DEFAULT_VERSION: new.default}}}
    labels = f"app.kubernetes.io/name=stoker-router,app.kubernetes.io/part-of={name}"
    for pod in cluster.list("v1", "Pod", namespace, labels):
        # A pod that changes gets its ConfigMaps anew at once, instead of within a minute and a half.
        cluster.merge(cluster.reference(pod), mark)
    return effective_weights(new.traffic, new.default)


def _shared_objects(cluster: Cluster, namespace: str, name: str) -> Iterator[tuple[dict[str, Any], Shares]]:
    labels = f"app.kubernetes.io/managed-by=stoker,app.kubernetes.io/part-of={name}"
    for api_version, kind in _PLACES:
        if cluster.knows(api_version, kind):
            for content in cluster.list(api_version, kind, namespace, labels):
                shares = shares_of(content)
                if shares is not None:
                    yield content, shares
