"""Endpoints in the cluster that their compute target stands for: a Deployment for each version, and exact shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.errors import ClusterError, InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_azure.sdk.bindings import Binding, binding_of
from stoker_azure.sdk.services import cluster_deploying
from stoker_azure.sdk.services.records import (
    ENDPOINT_KEYWORDS,
    Endpoint,
    FirstVersion,
    Plan,
    ServiceRecord,
    Services,
    Version,
    VersionChange,
    now,
)
from stoker_cluster import applying
from stoker_cluster.access import Cluster, Reference
from stoker_cluster.canary import set_shares
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.objects.metadata import VERSION_LABEL
from stoker_cluster.plan import ClusterPlan

__all__ = ["create", "create_version", "delete_version", "update", "update_version"]

Say = Callable[[str], object]


def create(
    workspace: Workspace,
    services: Services,
    plan: Plan,
    binding: Binding,
    old: ServiceRecord | None,
    *,
    overwrite: bool,
    say: Say,
) -> ServiceRecord:
    """Apply an endpoint with its first version, which is the default one and the control.

    Raises:
        OperatorError: It is there already, a setting or model cannot be used, or the cluster refuses.
    """
    first = plan.first_version
    assert first is not None
    cluster = Cluster.connect(binding.context, warn=say)
    endpoint = Endpoint({first.name: _first_version(plan, first)}, first.name)
    shared = {name: value for name, value in plan.keywords.items() if name in ENDPOINT_KEYWORDS}
    of_all = dataclasses.replace(plan, keywords=shared)
    planned = _planned(workspace, cluster, of_all, binding, endpoint, first.name, say)
    namespace = planned.namespace or cluster.namespace
    there = _versions_there(cluster, namespace, plan.name)
    if there and not overwrite:
        raise InvalidSettings(
            f"there is a service {plan.name} already, in namespace {namespace} of {binding.context}; deploy it with "
            "overwrite=True, change its versions, or delete() it first"
        )
    _apply(cluster, planned, say)
    for version in there:
        if version != first.name:
            applying.delete(cluster, namespace, f"{plan.name}-{version}")
    place = {"context": binding.context, "namespace": namespace}
    record = endpoint.into(cluster_deploying.record(of_all, planned, place, old))
    services.write(record)
    return record


def _first_version(plan: Plan, first: FirstVersion) -> Version:
    return Version(
        keywords={name: value for name, value in plan.keywords.items() if name not in ENDPOINT_KEYWORDS},
        models=plan.models,
        inference=plan.inference,
        traffic_percentile=first.traffic_percentile,
        is_control=True,
    )


def _versions_there(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """The versions of an endpoint that the cluster has.

    Raises:
        InvalidSettings: It is a service without versions.
    """
    if cluster.find(Reference("apps/v1", "Deployment", namespace, name)) is not None:
        raise InvalidSettings(f"{name} is a service without versions; delete() it first")
    labels = f"app.kubernetes.io/name=stoker,app.kubernetes.io/part-of={name}"
    found = cluster.list("apps/v1", "Deployment", namespace, labels)
    return [one["metadata"]["labels"][VERSION_LABEL] for one in found]


@dataclass(frozen=True, slots=True)
class _Open:
    """An endpoint that is being changed."""

    workspace: Workspace
    services: Services
    cluster: Cluster
    binding: Binding
    record: ServiceRecord
    endpoint: Endpoint
    say: Say

    @classmethod
    def find(cls, workspace: Workspace, name: str, say: Say) -> _Open:
        services = Services(workspace)
        record = services.find(name)
        if record is None:
            raise InvalidSettings(f"there is no endpoint {name} in the workspace")
        binding = binding_of(workspace, record.compute_name)
        if binding is None:
            raise InvalidSettings(
                f"{name} is in a cluster for which its compute target does not stand any more; bind the target again "
                "(stoker compute bind)"
            )
        cluster = Cluster.connect(binding.context, warn=say)
        return cls(workspace, services, cluster, binding, record, Endpoint.of(record), say)

    @property
    def namespace(self) -> str:
        assert self.record.cluster is not None
        return self.record.cluster["namespace"]

    def becomes(self, endpoint: Endpoint, **changed: Any) -> _Open:
        """It, once it is known of that it is this one."""
        record = endpoint.into(dataclasses.replace(self.record, updated_at=now(), **changed))
        self.services.write(record)
        return dataclasses.replace(self, record=record, endpoint=endpoint)

    def apply(self, name: str) -> None:
        """Apply a version, with the shares that all have."""
        plan = Plan.of(self.record)
        planned = _planned(self.workspace, self.cluster, plan, self.binding, self.endpoint, name, self.say)
        _apply(self.cluster, planned, self.say)

    def share_out(self, endpoint: Endpoint) -> _Open:
        """Give the versions these shares, at once."""
        set_shares(self.cluster, self.namespace, self.record.name, endpoint.traffic, endpoint.default)
        for name, weight in endpoint.weights.items():
            self.say(f"  {name}  {weight / 100:g}%")
        return self.becomes(endpoint)

    def relabel(self, before: Endpoint) -> None:
        """Say in the cluster which version is the control now."""
        for name, version in self.endpoint.versions.items():
            if name in before.versions and before.versions[name].is_control != version.is_control:
                self.apply(name)


def create_version(
    workspace: Workspace, name: str, version: str, change: VersionChange, say: Say = print
) -> None:
    """Add a version, and give it its share once its pods can score.

    Raises:
        OperatorError: There is such a version, a setting or share cannot be, or its pods cannot score; then it is
            there, and gets nothing.
    """
    with Services(workspace).changing():
        found = _Open.find(workspace, name, say)
        wanted = change.over(Version())
        waiting = found.endpoint.waiting(version, wanted)
        after = waiting.changed(version, wanted, is_default=change.is_default, is_control=change.is_control)
        found = found.becomes(waiting)
        found.apply(version)
        if after.weights[version]:
            status = ClusterService(found.cluster, found.namespace, f"{name}-{version}").await_ready(say)
            if status.state != "Healthy":
                raise ClusterError(
                    f"the version {version} of {name} gets no requests, for it is {status.state}: {status.line}; "
                    "mend it with update_version(), or delete_version() it"
                )
        found.share_out(after).relabel(waiting)


def update_version(
    workspace: Workspace, name: str, version: str, change: VersionChange, say: Say = print
) -> None:
    """Change a version, its share or its place among the others.

    Raises:
        OperatorError: There is no such version, or a setting or share cannot be.
    """
    with Services(workspace).changing():
        found = _Open.find(workspace, name, say)
        before = found.endpoint
        wanted = change.over(before.version(version))
        after = before.changed(version, wanted, is_default=change.is_default, is_control=change.is_control)
        if change.is_of_its_pods:
            share = before.versions[version].traffic_percentile
            same = dataclasses.replace(wanted, traffic_percentile=share)
            found = found.becomes(before.changed(version, same))
            found.apply(version)
        found.share_out(after).relabel(before)


def delete_version(workspace: Workspace, name: str, version: str, say: Say = print) -> None:
    """Give the share of a version to the default one, then delete it.

    Raises:
        OperatorError: There is no such version, or it is the default one.
    """
    with Services(workspace).changing():
        found = _Open.find(workspace, name, say)
        after = found.endpoint.without(version)
        silent = dataclasses.replace(found.endpoint.version(version), traffic_percentile=0.0)
        found = found.share_out(found.endpoint.changed(version, silent)).becomes(after)
        # No route leads to it any more when its Service goes.
        found.apply(after.default)
        applying.delete(found.cluster, found.namespace, f"{name}-{version}")


def update(workspace: Workspace, name: str, keywords: Mapping[str, Any], say: Say = print) -> None:
    """Change what all versions share.

    Raises:
        OperatorError: A keyword is one of a version, or cannot be.
    """
    with Services(workspace).changing():
        found = _Open.find(workspace, name, say)
        for keyword in keywords:
            if keyword not in ENDPOINT_KEYWORDS or keyword in ("namespace", "compute_target_name"):
                raise InvalidSettings(
                    f"{keyword} cannot be changed for a whole endpoint; see update_version()"
                )
        plan = Plan.of(found.record).updated(keywords)
        endpoint = found.endpoint
        planned = [
            _planned(workspace, found.cluster, plan, found.binding, endpoint, version, say)
            for version in endpoint.versions
        ]
        for one in planned:
            _apply(found.cluster, one, say)
        assert found.record.cluster is not None
        record = cluster_deploying.record(plan, planned[0], found.record.cluster, found.record)
        found.services.write(endpoint.into(record))


def _planned(
    workspace: Workspace,
    cluster: Cluster,
    plan: Plan,
    binding: Binding,
    endpoint: Endpoint,
    name: str,
    say: Say,
) -> ClusterPlan:
    """The plan of a version: what the endpoint says of all, and what it says itself."""
    version = endpoint.version(name)
    own = dataclasses.replace(
        plan,
        keywords={**plan.keywords, **version.keywords},
        models=tuple(version.models),
        inference=version.inference,
    )
    among = {
        "version_name": name,
        "traffic": endpoint.traffic,
        "default_version": endpoint.default,
        "version_type": version.kind,
    }
    return cluster_deploying.prepare(workspace, cluster, own, binding, say, among)


def _apply(cluster: Cluster, planned: ClusterPlan, say: Say) -> None:
    for change in applying.apply(cluster, planned):
        if change.verb != "unchanged":
            say(f"  {change}")
