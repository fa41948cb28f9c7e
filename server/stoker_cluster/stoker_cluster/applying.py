"""From the objects of a plan to those of a cluster: applied, compared, pruned, deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from msgspec import Struct, field

from stoker_cluster.access import Cluster, Reference
from stoker_cluster.errors import ClusterError, FieldConflict
from stoker_cluster.keys import ensure_keys
from stoker_cluster.objects.metadata import ANNOTATIONS
from stoker_cluster.objects.router import router_name
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.render import as_yaml, objects_of

KINDS: Final = (
    ("v1", "ServiceAccount"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("v1", "ConfigMap"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("v1", "Service"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"),
    ("apps/v1", "Deployment"),
    ("policy/v1", "PodDisruptionBudget"),
    ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("keda.sh/v1alpha1", "ScaledObject"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
)
"""Kinds of objects of a service, except its namespace and keys; objects that a plan no longer has are removed."""

_SECRET: Final = ("v1", "Secret")
_REPLICAS_MANAGER: Final = "stoker-replicas"
_REPLICAS: Final = ".spec.replicas"
_SERVER_FIELDS: Final = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")


class Change(Struct, frozen=True):
    """A change of an object."""

    reference: Reference
    verb: Literal["created", "changed", "unchanged", "removed"]

    def __str__(self) -> str:
        return f"{self.verb} {self.reference}"


def apply(cluster: Cluster, plan: ClusterPlan, *, force: bool = False) -> Iterator[Change]:
    """Create, change and remove objects so that they match the plan; yields the change of each.

    All objects are checked before anything is changed: if one is refused, or has fields that others have changed,
    nothing is done. Objects of the service that the plan no longer has are removed, except its keys.

    Args:
        force: Take over fields that others have changed.

    Raises:
        ClusterError: An object is refused, or some of its fields belong to other managers.
    """
    objects = _objects(cluster, plan)
    checked = _dry_run(cluster, objects, force=force)
    for content in objects:
        reference = cluster.reference(content)
        if content["kind"] == "Deployment":
            if plan.takes_keys:
                yield from _keys(cluster, plan)
            _keep_replicas(cluster, content)
        answer = cluster.apply(content, force=force or reference in checked.forced)
        same = reference in checked.unchanged
        yield Change(reference, "created" if answer.is_new else "unchanged" if same else "changed")
    wanted = {cluster.reference(content) for content in objects}
    for reference in _existing(cluster, plan):
        if reference not in wanted and cluster.delete(reference):
            yield Change(reference, "removed")


def delete(cluster: Cluster, namespace: str, name: str) -> list[Reference]:
    """Delete all objects of a service, or of all versions of an endpoint, including the keys; the namespace stays.

    A single version can be named as `NAME-VERSION`; keys and route belong to the endpoint, and stay.

    Returns:
        What there was.
    """
    found = [reference for kind in (*KINDS, _SECRET) for reference in _owned(cluster, namespace, name, *kind)]
    return [reference for reference in dict.fromkeys(found) if cluster.delete(reference)]


def _owned(cluster: Cluster, namespace: str, name: str, api_version: str, kind: str) -> list[Reference]:
    """Return the objects of a kind that Stoker has made for a service, or for the versions of an endpoint."""
    if not cluster.knows(api_version, kind):
        return []
    return [
        cluster.reference(content)
        for label in ("instance", "part-of")
        for content in cluster.list(api_version, kind, namespace, _labels(label, name))
    ]


def _labels(label: str, name: str) -> str:
    return f"app.kubernetes.io/managed-by=stoker,app.kubernetes.io/{label}={name}"


def _objects(cluster: Cluster, plan: ClusterPlan) -> list[dict[str, Any]]:
    """The objects that belong to the plan alone: keys are created once, and outlive it."""
    if plan.router and plan.router_image is None:
        plan = replace(plan, router_image=_image_of_the_router(cluster, plan))
    return [content for content in objects_of(plan) if content["kind"] != "Secret"]


def _image_of_the_router(cluster: Cluster, plan: ClusterPlan) -> str | None:
    """The router's present image: it holds requests while pods restart, so a new image must not restart it too."""
    namespace = plan.namespace or cluster.namespace
    found = cluster.find(Reference("apps/v1", "Deployment", namespace, router_name(plan)))
    return None if found is None else str(found["spec"]["template"]["spec"]["containers"][0]["image"])


class _DryRun(Struct, frozen=True):
    """The objects that are as they should be, and those whose conflicting fields are taken over."""

    unchanged: set[Reference] = field(default_factory=set)
    forced: set[Reference] = field(default_factory=set)


def _dry_run(cluster: Cluster, objects: Sequence[dict[str, Any]], *, force: bool) -> _DryRun:
    """Check with the server whether all objects would be accepted.

    Raises:
        ClusterError: One would be refused; the message names all fields that others have changed.
    """
    checked = _DryRun()
    conflicts: list[str] = []
    for content in objects:
        reference = cluster.reference(content)
        if content["kind"] == "Namespace" and cluster.find(reference) is None:
            # The API cannot check objects of a namespace that does not exist.
            return _DryRun()
        try:
            if not _would_change(cluster, content, force=force):
                checked.unchanged.add(reference)
        except FieldConflict as error:
            if set(error.fields) == {_REPLICAS} and _is_scaled(cluster.find(reference)):
                # The plan sets a number of pods that an autoscaler set before: the change that is wanted.
                checked.forced.add(reference)
            else:
                conflicts += [f"{reference} {path}: {reason}" for path, reason in error.fields.items()]
    if conflicts:
        raise ClusterError(
            "nothing was changed, for others have changed what belongs to Stoker; take it over with "
            "--force-conflicts, or put it into the plan:\n  " + "\n  ".join(conflicts)
        )
    return checked


def _would_change(cluster: Cluster, content: Mapping[str, Any], *, force: bool) -> bool:
    """Whether applying an object would change it; what controllers write meanwhile is no such change."""
    reference = cluster.reference(content)
    before = _text(cluster.find(reference))
    while _text(cluster.apply(content, force=force, dry_run=True).content) != before:
        found = _text(cluster.find(reference))
        if found == before:
            return True
        before = found
    return False


def _is_scaled(deployment: Mapping[str, Any] | None) -> bool:
    """Whether the plan that was applied last leaves the number of pods to an autoscaler."""
    annotations = {} if deployment is None else deployment["metadata"].get("annotations", {})
    return any(name.startswith(f"{ANNOTATIONS}/autoscale-") for name in annotations)


def _keep_replicas(cluster: Cluster, content: Mapping[str, Any]) -> None:
    """Keep the present number of pods when the plan leaves it to an autoscaler from now on.

    A field that no manager sets falls back to its default, so there would be one pod until the autoscaler acts.
    """
    reference = cluster.reference(content)
    found = cluster.find(reference)
    if "replicas" in content["spec"] or found is None or _is_scaled(found):
        return
    identity = {"name": reference.name, "namespace": reference.namespace}
    kept = {"apiVersion": content["apiVersion"], "kind": content["kind"], "metadata": identity}
    replicas = {"spec": {"replicas": found["spec"]["replicas"]}}
    cluster.apply(kept | replicas, manager=_REPLICAS_MANAGER, force=True)


def _keys(cluster: Cluster, plan: ClusterPlan) -> Iterator[Change]:
    """Keys are created before the pods that wait for them."""
    if (verb := ensure_keys(cluster, plan)) is not None:
        namespace = plan.namespace or cluster.namespace
        yield Change(Reference("v1", "Secret", namespace, plan.keys_secret), verb)


def _existing(cluster: Cluster, plan: ClusterPlan) -> Iterator[Reference]:
    """The service's objects in the cluster now. Objects that versions share belong to none of them."""
    namespace = plan.namespace or cluster.namespace
    for api_version, kind in KINDS:
        if not cluster.knows(api_version, kind):
            continue
        labels = [_labels("instance", plan.instance)]
        if plan.version_name is None:
            labels.append(f"{_labels('part-of', plan.name)},!{ANNOTATIONS}/version")
        for one in labels:
            yield from map(cluster.reference, cluster.list(api_version, kind, namespace, one))


def _text(content: Mapping[str, Any] | None) -> str:
    """An object as text, without the fields that the server adds."""
    if content is None:
        return ""
    metadata = {name: value for name, value in content["metadata"].items() if name not in _SERVER_FIELDS}
    return as_yaml([{**content, "metadata": metadata, "status": None}])
