"""Applying against a puppet of an API server; tests/cluster has the same against a real one."""

from __future__ import annotations

import pytest
from tests.unit.stoker_cluster.plans import plan
from tests.unit.stoker_cluster.puppet_api import PuppetApi

from stoker_cluster.applying import KINDS, apply, difference
from stoker_cluster.errors import ClusterError
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.render import objects_of

SERVES = ({"path": "/models/digits.onnx", "name": "digits"},)


def test_whatever_a_plan_can_have_is_looked_for_when_it_has_it_no_more() -> None:
    """A kind that is not in the list would stay in the cluster for ever."""
    said = {"name": "digits", "image": "stoker:1", "namespace": "models", "serves": SERVES}
    plans = [
        ClusterPlan(
            **said, dra="gpu.nvidia.com", pod_monitor=True, gateway="gateways/main", create_namespace=True
        ),
        ClusterPlan(**said, autoscaler="hpa", primary_key="a-key-that-is-long-enough"),
        ClusterPlan(**said, autoscaler="keda", router=True),
        ClusterPlan(**said, autoscaler="stoker"),
    ]
    made = {(one["apiVersion"], one["kind"]) for plan in plans for one in objects_of(plan)}
    # The namespace is never deleted; keys are made and deleted apart.
    assert made - set(KINDS) == {("v1", "Namespace"), ("v1", "Secret")}
    assert set(KINDS) <= made
    assert len(set(KINDS)) == len(KINDS)


def test_fields_changed_by_others_are_not_overwritten() -> None:
    """All conflicting fields are named and nothing is applied, unless they are taken over."""
    api = PuppetApi()
    list(apply(api.cluster(), plan()))
    root = "/apis/apps/v1/namespaces/models/deployments/digits"
    service = "/api/v1/namespaces/models/services/digits"
    api.conflicts = {root: [".spec.strategy", ".spec.replicas"], service: [".spec.type"]}
    sent = len(api.sent)
    with pytest.raises(ClusterError) as raised:
        list(apply(api.cluster(), plan(replicas=3)))
    said, *fields = str(raised.value).splitlines()
    assert "take it over with --force-conflicts" in said
    assert sorted(fields) == [
        '  Deployment digits .spec.replicas: conflict with "kubectl"',
        '  Deployment digits .spec.strategy: conflict with "kubectl"',
        '  Service digits .spec.type: conflict with "kubectl"',
    ]
    assert len(api.sent) == sent
    verbs = {
        str(change.reference): change.verb for change in apply(api.cluster(), plan(replicas=3), force=True)
    }
    assert verbs["Deployment digits"] == "changed"
    assert api.objects[root]["spec"]["replicas"] == 3


def test_a_number_of_pods_is_left_to_an_autoscaler_and_taken_back() -> None:
    """What it has chosen is kept when it takes over, and is no conflict when the plan says a number again."""
    api = PuppetApi()
    root = "/apis/apps/v1/namespaces/models/deployments/digits"
    list(apply(api.cluster(), plan(replicas=4, namespace="models")))
    sent = len(api.sent)
    list(apply(api.cluster(), plan(autoscaler="stoker", max_replicas=8, namespace="models")))
    assert api.objects[root]["spec"]["replicas"] == 4
    assert api.sent[sent:].count(("patch", root)) == 2
    api.conflicts = {root: [".spec.replicas"]}
    list(apply(api.cluster(), plan(replicas=2, namespace="models")))
    assert api.objects[root]["spec"]["replicas"] == 2


def test_a_namespace_that_is_made_is_not_asked_for_before() -> None:
    """Nothing of what is to be in it could be; a difference shows what is to come, and what is to go."""
    api = PuppetApi()
    made = plan(namespace="models", create_namespace=True)
    assert next(iter(apply(api.cluster(), made))).reference.kind == "Namespace"
    list(apply(api.cluster(), made))
    text = difference(api.cluster(), plan(namespace="models", network_policy=False))
    assert "--- NetworkPolicy/digits\n+++ /dev/null\n" in text
