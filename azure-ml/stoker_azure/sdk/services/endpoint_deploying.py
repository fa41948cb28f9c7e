"""Deploying endpoints to a cluster: a Deployment for each version, and exact shares of the requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from stoker.errors import InvalidSettings
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
from stoker_cluster.errors import ClusterError
from stoker_cluster.objects.metadata import VERSION_LABEL
from stoker_cluster.plan import ClusterPlan

Report = Callable[[str], object]


def create(
    workspace: Workspace,
    services: Services,
    plan: Plan,
    binding: Binding,
    old: ServiceRecord | None,
    *,
    overwrite: bool,
    report: Report,
) -> ServiceRecord:
    """Apply an endpoint with its first version, which is the default one and the control.

    Raises:
        OperatorError: It is there already, a setting or model cannot be used, or the cluster refuses.
    """
    first = plan.first_version
    assert first is not None
    cluster = Cluster.connect(binding.context, warn=report)
    endpoint = Endpoint({first.name: _first_version(plan, first)}, first.name)
    shared = {name: value for name, value in plan.keywords.items() if name in ENDPOINT_KEYWORDS}
    of_all = dataclasses.replace(plan, keywords=shared)
    planned = _planned(workspace, cluster, of_all, binding, endpoint, first.name, report)
    namespace = planned.namespace or cluster.namespace
    there = _versions_there(cluster, namespace, plan.name)
    if there and not overwrite:
        raise InvalidSettings(
            f"there is a service {plan.name} already, in namespace {namespace} of {binding.context}; deploy it with "
            "overwrite=True, change its versions, or delete() it first"
        )
    cluster_deploying.apply_reporting(cluster, planned, report)
    for version in there:
        if version != first.name:
            applying.delete(cluster, namespace, f"{plan.name}-{version}")
    place = {"context": binding.context, "namespace": namespace}
    record = endpoint.update_record(cluster_deploying.record(of_all, planned, place, old))
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
    """List the versions of an endpoint in the cluster."""
    if cluster.find(Reference("apps/v1", "Deployment", namespace, name)) is not None:
        raise InvalidSettings(f"{name} is a service without versions; delete() it first")
    labels = f"app.kubernetes.io/name=stoker,app.kubernetes.io/part-of={name}"
    found = cluster.list("apps/v1", "Deployment", namespace, labels)
    return [one["metadata"]["labels"][VERSION_LABEL] for one in found]


class _EndpointUpdate(Struct, frozen=True):
    """An endpoint that is being changed."""

    workspace: Workspace
    services: Services
    cluster: Cluster
    binding: Binding
    record: ServiceRecord
    endpoint: Endpoint
    report: Report

    @classmethod
    def find(cls, workspace: Workspace, name: str, report: Report) -> _EndpointUpdate:
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
        cluster = Cluster.connect(binding.context, warn=report)
        return cls(workspace, services, cluster, binding, record, Endpoint.of(record), report)

    @property
    def namespace(self) -> str:
        assert self.record.cluster is not None
        return self.record.cluster["namespace"]

    def save(self, endpoint: Endpoint, **changed: Any) -> _EndpointUpdate:
        """Save the changed endpoint, and return the update with it."""
        record = endpoint.update_record(dataclasses.replace(self.record, updated_at=now(), **changed))
        self.services.write(record)
        return msgspec.structs.replace(self, record=record, endpoint=endpoint)

    def apply(self, name: str) -> None:
        """Apply a version, with the shares of all versions."""
        plan = Plan.of(self.record)
        planned = _planned(self.workspace, self.cluster, plan, self.binding, self.endpoint, name, self.report)
        cluster_deploying.apply_reporting(self.cluster, planned, self.report)

    def apply_shares(self, endpoint: Endpoint) -> _EndpointUpdate:
        """Set the shares of all versions at once."""
        set_shares(self.cluster, self.namespace, self.record.name, endpoint.traffic, endpoint.default)
        for name, weight in endpoint.weights.items():
            self.report(f"  {name}  {weight / 100:g}%")
        return self.save(endpoint)

    def apply_control(self, before: Endpoint) -> None:
        """Apply the versions that became the control, or are not any more."""
        for name, version in self.endpoint.versions.items():
            if name in before.versions and before.versions[name].is_control != version.is_control:
                self.apply(name)


def create_version(
    workspace: Workspace, name: str, version: str, change: VersionChange, report: Report = print
) -> None:
    """Add a version, and give it its share once its pods can score.

    Raises:
        OperatorError: The version exists, a setting or share is not allowed, or the pods cannot score; in that
            case the version stays without requests.
    """
    with Services(workspace).changing():
        found = _EndpointUpdate.find(workspace, name, report)
        wanted = change.apply_to(Version())
        waiting = found.endpoint.with_new_version(version, wanted)
        after = waiting.with_version(
            version, wanted, is_default=change.is_default, is_control=change.is_control
        )
        found = found.save(waiting)
        found.apply(version)
        if after.weights[version]:
            status = ClusterService(found.cluster, found.namespace, f"{name}-{version}").await_ready(report)
            if status.state != "Healthy":
                raise ClusterError(
                    f"the version {version} of {name} gets no requests, for it is {status.state}: {status.line}; "
                    "mend it with update_version(), or delete_version() it"
                )
        found.apply_shares(after).apply_control(waiting)


def update_version(
    workspace: Workspace, name: str, version: str, change: VersionChange, report: Report = print
) -> None:
    """Change a version, its share, or whether it is the default or the control.

    Raises:
        OperatorError: There is no such version, or a setting or share is not allowed.
    """
    with Services(workspace).changing():
        found = _EndpointUpdate.find(workspace, name, report)
        before = found.endpoint
        wanted = change.apply_to(before.version(version))
        after = before.with_version(
            version, wanted, is_default=change.is_default, is_control=change.is_control
        )
        if change.changes_pods:
            share = before.versions[version].traffic_percentile
            same = msgspec.structs.replace(wanted, traffic_percentile=share)
            found = found.save(before.with_version(version, same))
            found.apply(version)
        found.apply_shares(after).apply_control(before)


def delete_version(workspace: Workspace, name: str, version: str, report: Report = print) -> None:
    """Give the share of a version to the default one, then delete it.

    Raises:
        OperatorError: There is no such version, or it is the default one.
    """
    with Services(workspace).changing():
        found = _EndpointUpdate.find(workspace, name, report)
        after = found.endpoint.without_version(version)
        silent = msgspec.structs.replace(found.endpoint.version(version), traffic_percentile=0.0)
        found = found.apply_shares(found.endpoint.with_version(version, silent)).save(after)
        # No route leads to it any more when its Service goes.
        found.apply(after.default)
        applying.delete(found.cluster, found.namespace, f"{name}-{version}")


def update(workspace: Workspace, name: str, keywords: Mapping[str, Any], report: Report = print) -> None:
    """Change what all versions share.

    Raises:
        OperatorError: A keyword belongs to a version, or its value is not allowed.
    """
    with Services(workspace).changing():
        found = _EndpointUpdate.find(workspace, name, report)
        for keyword in keywords:
            if keyword not in ENDPOINT_KEYWORDS or keyword in ("namespace", "compute_target_name"):
                raise InvalidSettings(
                    f"{keyword} cannot be changed for a whole endpoint; see update_version()"
                )
        plan = Plan.of(found.record).updated(keywords)
        endpoint = found.endpoint
        planned = [
            _planned(workspace, found.cluster, plan, found.binding, endpoint, version, report)
            for version in endpoint.versions
        ]
        for one in planned:
            cluster_deploying.apply_reporting(found.cluster, one, report)
        assert found.record.cluster is not None
        record = cluster_deploying.record(plan, planned[0], found.record.cluster, found.record)
        found.services.write(endpoint.update_record(record))


def _planned(
    workspace: Workspace,
    cluster: Cluster,
    plan: Plan,
    binding: Binding,
    endpoint: Endpoint,
    name: str,
    report: Report,
) -> ClusterPlan:
    """Return the plan of a version: the settings of the endpoint, with the version's own."""
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
    return cluster_deploying.prepare(workspace, cluster, own, binding, report, among)
