"""The changes that each of the 31 keywords of `AksWebservice.deploy_configuration` makes in the objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from stoker_azure.config import DeploymentConfig
from stoker_azure.sdk.services.cluster_deploying import make_plan
from stoker_cluster.plan import ClusterPlan

PRESENT = "an object"
"""Stands for all of an object that is there only with the keyword."""

POD = "Deployment/digits spec.template.spec"
SERVER = f"{POD}.containers[stoker]"
FILE = "ConfigMap/digits-config data.deployment.yaml"
NOTE = "Deployment/digits metadata.annotations.stoker.dev"
FINGERPRINT = "Deployment/digits spec.template.metadata.annotations.stoker.dev/config"
KEYS = "Secret/digits-keys stringData"
# Where the object ends, and each item of a list that has more to it.
_ENDS = re.compile(r" |(?<=\])\.")
SCALED = {"autoscale_enabled": True}


@dataclass(frozen=True)
class Effect:
    """A keyword's value and the changes in the objects.

    Attributes:
        value: Its value.
        changes: New contents by place; None for a place that only exists without the keyword.
        beside: Keywords that it needs; plans with and without it have them.
        given: Options without a keyword of Azure; plans with and without it have them.
        note: A part of the note to the operator, if the keyword changes nothing.
    """

    value: Any
    changes: Mapping[str, Any]
    beside: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


def _scaler(*kinds: str) -> dict[str, Any]:
    return {f"{kind}/digits-autoscaler": PRESENT for kind in kinds}


EFFECTS: dict[str, Effect] = {
    "num_replicas": Effect(3, {"Deployment/digits spec.replicas": 3}),
    "autoscale_enabled": Effect(
        True,
        {
            "Deployment/digits spec.replicas": None,
            f"{NOTE}/autoscale-min-replicas": "1",
            f"{NOTE}/autoscale-max-replicas": "10",
            f"{NOTE}/autoscale-refresh-seconds": "1",
            f"{NOTE}/autoscale-target-utilization": "70",
            **_scaler("ServiceAccount", "Role", "RoleBinding", "Deployment"),
        },
    ),
    "autoscale_min_replicas": Effect(2, {f"{NOTE}/autoscale-min-replicas": "2"}, SCALED),
    "autoscale_max_replicas": Effect(7, {f"{NOTE}/autoscale-max-replicas": "7"}, SCALED),
    "autoscale_refresh_seconds": Effect(3, {f"{NOTE}/autoscale-refresh-seconds": "3"}, SCALED),
    "autoscale_target_utilization": Effect(50, {f"{NOTE}/autoscale-target-utilization": "50"}, SCALED),
    "cpu_cores": Effect(
        4,
        {
            f"{SERVER}.resources.requests.cpu": "4",
            f"{FILE}.frontends": 2,
            f"{FILE}.models[digits].threads": 4,
        },
    ),
    "memory_gb": Effect(4, {f"{SERVER}.resources.requests.memory": "4G"}),
    "cpu_cores_limit": Effect(2, {f"{SERVER}.resources.limits.cpu": "2"}),
    "memory_gb_limit": Effect(2, {f"{SERVER}.resources.limits.memory": "2G"}),
    "gpu_cores": Effect(
        2,
        {
            f"{SERVER}.resources.limits.nvidia.com/gpu": 2,
            f"{FILE}.device": None,
            f"{FILE}.device[0]": "cuda:0",
            f"{FILE}.device[1]": "cuda:1",
            f"{POD}.tolerations[0]": PRESENT,
            # A new pod would wait for a GPU that an old one has.
            "Deployment/digits spec.strategy.rollingUpdate.maxSurge": 0,
            "Deployment/digits spec.strategy.rollingUpdate.maxUnavailable": 1,
        },
    ),
    "scoring_timeout_ms": Effect(
        5000, {f"{FILE}.timeout_ms": 5000, f"{POD}.terminationGracePeriodSeconds": 10 + 5 + 5}
    ),
    "replica_max_concurrent_requests": Effect(4, {f"{FILE}.models[digits].max_concurrent_requests": 4}),
    "max_request_wait_time": Effect(
        250,
        {f"{FILE}.models[digits].max_queue_wait_ms": 250},
        {"replica_max_concurrent_requests": 4},
    ),
    "auth_enabled": Effect(
        False,
        {
            f"{FILE}.auth": False,
            f"{FILE}.keys_dir": None,
            f"{SERVER}.volumeMounts[keys]": None,
            f"{POD}.volumes[keys]": None,
            f"{SERVER}.env[STOKER_ALLOWED_HOSTS]": PRESENT,
        },
    ),
    "token_auth_enabled": Effect(True, {f"{FILE}.auth": False, f"{FILE}.token_auth": True}),
    "primary_key": Effect("primary-of-the-tests", {f"{KEYS}.primary": "primary-of-the-tests"}),
    "secondary_key": Effect("second-of-the-tests", {f"{KEYS}.secondary": "second-of-the-tests"}),
    "period_seconds": Effect(20, {f"{SERVER}.livenessProbe.periodSeconds": 20}),
    "initial_delay_seconds": Effect(310, {f"{SERVER}.livenessProbe.initialDelaySeconds": 310}),
    "timeout_seconds": Effect(5, {f"{SERVER}.livenessProbe.timeoutSeconds": 5}),
    "success_threshold": Effect(2, {}, note="success_threshold 2 is 1"),
    "failure_threshold": Effect(5, {f"{SERVER}.livenessProbe.failureThreshold": 5}),
    "namespace": Effect("others", {}),
    "compute_target_name": Effect("aks", {f"{NOTE}/compute-target": "aks"}),
    "collect_model_data": Effect(True, {f"{FILE}.collect": True}, given={"collect_to": "records"}),
    # Fetched once.
    "blobfuse_enabled": Effect(False, {f"{FILE}.poll_s": None}, given={"server": {"poll_s": 2.0}}),
    "tags": Effect(
        {"stage": "test", "owner": "Ada Lovelace"},
        {
            f"{NOTE}/tags": '{"owner": "Ada Lovelace", "stage": "test"}',
            "Deployment/digits metadata.labels.tags.stoker.dev/stage": "test",
        },
    ),
    "properties": Effect({"commit": "1e5"}, {f"{NOTE}/properties": '{"commit": "1e5"}'}),
    "description": Effect(
        "Digits.", {f"{NOTE}/description": "Digits.", f"{FILE}.models[digits].description": "Digits."}
    ),
    "enable_app_insights": Effect(True, {"PodMonitor/digits": PRESENT}),
}
"""By keyword."""


def planned(keyword: str, namespace: str, *, given: bool) -> ClusterPlan:
    """The plan with a keyword or without it; both have the keyword's prerequisites."""
    effect = EFFECTS[keyword]
    keywords = {**effect.beside, **({keyword: effect.value} if given else {})}
    besides = {
        "name": "digits",
        "image": "stoker:1",
        "serves": ({"name": "digits", "path": "/models/digits.onnx"},),
        **({} if "namespace" in keywords else {"namespace": namespace}),
        **effect.given,
    }
    return make_plan(DeploymentConfig.from_keywords("aks", **keywords), besides)


def changed(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Contents that differ, by place; None for a place that is gone.

    Another deployment file also changes the mark of the pods; this is checked and left out.
    """
    old, new = flat(before), flat(after)
    found = {place: new.get(place) for place in {*old, *new} if old.get(place) != new.get(place)}
    is_another_file = any(place.startswith(f"{FILE}.") for place in found)
    assert (found.pop(FINGERPRINT, None) is not None) == is_another_file
    return dict(_whole(found, old, new))


def _whole(
    found: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Objects and items of lists that are new, or gone altogether, stand once."""
    for place, value in found.items():
        others = (old if value is not None else new).keys()
        parents = (place[: end.start()] for end in _ENDS.finditer(place))
        parent = next((one for one in parents if not any(other.startswith(one) for other in others)), None)
        yield (place, value) if parent is None else (parent, None if value is None else PRESENT)


def flat(objects: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Each value by its place: `KIND/NAME a.b`, list items by their names, deployment files by their contents."""
    found: dict[str, Any] = {}
    for content in objects:
        one = f"{content['kind']}/{content['metadata']['name']}"
        for place, value in _leaves(content, ""):
            if place.startswith("data.") and place.endswith(".yaml"):
                found |= {
                    f"{one} {place}.{inner}": leaf for inner, leaf in _leaves(yaml.safe_load(value), "")
                }
            else:
                found[f"{one} {place}"] = value
    return found


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            named = isinstance(inner, Mapping) and inner.get("name")
            yield from _leaves(inner, f"{place}[{named or number}]")
    else:
        yield place, value
