"""Reading and changing services in a cluster; the API server is a puppet, tests/cluster has a real one."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.stoker_cluster.plans import plan
from tests.unit.stoker_cluster.puppet_api import PuppetApi

from stoker_cluster.applying import apply, delete
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.errors import ClusterError
from stoker_cluster.machines import describe_machines
from stoker_cluster.plan import ClusterPlan

LABELS = {"app.kubernetes.io/name": "stoker", "app.kubernetes.io/instance": "digits"}
NOW = datetime(2026, 11, 22, tzinfo=UTC)
KEY = "a-key-that-is-long-enough"


def applied(api: PuppetApi, wanted: ClusterPlan) -> dict[str, list[str]]:
    """The changed kinds by verb."""
    changes: dict[str, list[str]] = {}
    for change in apply(api.cluster(), wanted):
        changes.setdefault(change.verb, []).append(change.reference.kind)
    return changes


def service(api: PuppetApi) -> ClusterService:
    """The service of that plan."""
    return ClusterService(api.cluster(), "models", "digits", clock=lambda: NOW)


def ready_pod(api: PuppetApi, name: str, **status: Any) -> None:
    """A pod that can score."""
    running = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"state": {"running": {}}}],
    }
    metadata = {"labels": LABELS, "creationTimestamp": NOW.isoformat()}
    api.put("Pod", name, metadata=metadata, status=running | status)


def test_plan_is_applied_and_deleted() -> None:
    """The keys come before the pods, a second time nothing changes, and nothing is left."""
    api = PuppetApi()
    first = applied(api, plan(replicas=2))["created"]
    assert first.index("Secret") < first.index("Deployment")
    assert set(applied(api, plan(replicas=2))) == {"unchanged"}
    assert applied(api, plan(replicas=2, network_policy=False))["removed"] == ["NetworkPolicy"]
    assert len(delete(api.cluster(), "models", "digits")) == len(first) - 1
    assert api.objects == {}


def test_keys_are_made_once_read_and_replaced() -> None:
    """Given keys are taken, tokens get a secret when they are switched on, and pods get a mark after a change."""
    api = PuppetApi()
    applied(api, plan())
    secret = "/api/v1/namespaces/models/secrets/digits-keys"
    made = api.objects[secret].pop("stringData")
    api.objects[secret]["data"] = {
        slot: base64.b64encode(key.encode()).decode() for slot, key in made.items()
    }
    assert service(api).keys().primary == made["primary"]
    with pytest.raises(ClusterError, match="no signing secret"):
        service(api).signing_secret()
    assert applied(api, plan(primary_key=KEY))["changed"] == ["Secret"]
    signing = plan(server={"auth": True, "token_auth": True})
    assert applied(api, signing)["changed"][0] == "ConfigMap"
    assert (service(api).keys().primary, service(api).keys().secondary) == (KEY, made["secondary"])
    assert len(service(api).signing_secret()) == 32
    ready_pod(api, "digits-1")
    assert service(api).regenerate_key("primary") == {"digits-1": "its Stoker does not tell"}
    api.close()
    assert service(api).keys().primary not in (KEY, made["primary"])
    # Made, a key given, a secret for tokens, and this one.
    assert base64.b64decode(api.objects[secret]["data"]["generation"]) == b"4"
    pod = api.objects["/api/v1/namespaces/models/pods/digits-1"]
    assert pod["metadata"]["annotations"] == {"stoker.dev/keys-changed": NOW.isoformat()}
    api.objects[secret]["data"] = {}
    with pytest.raises(ClusterError, match="neither primary nor secondary"):
        service(api).keys()
    del api.objects[secret]
    with pytest.raises(ClusterError, match="takes no keys there"):
        service(api).keys()


def test_logs_are_those_of_pods_that_have_begun() -> None:
    """Pods come one after the other; without any, the error has the reason of the wait."""
    api = PuppetApi()
    with pytest.raises(ClusterError, match="no pod of digits has begun yet: is not there"):
        list(service(api).logs())
    ready_pod(api, "digits-1")
    ready_pod(api, "digits-2")
    api.logs = {"digits-1": "a\nb\n", "digits-2": "c"}
    assert list(service(api).logs(10)) == [("digits-1", "a"), ("digits-1", "b"), ("digits-2", "c")]
    assert service(api).ready_pods() == ["digits-1", "digits-2"]
    assert service(api).error is None


def test_the_address_is_that_of_the_gateway_else_of_the_service() -> None:
    """From most to least preferred: the route's host, its Gateway, a load balancer, a node, none."""
    api = PuppetApi()
    assert service(api).base_uri() is None
    ready_pod(api, "digits-1", hostIP="192.0.2.7")
    spec: dict[str, Any] = {"type": "ClusterIP", "ports": [{"name": "http", "port": 80, "nodePort": 31234}]}
    found = api.put("Service", "digits", spec=spec)
    assert service(api).base_uri() is None
    spec["type"] = "NodePort"
    assert service(api).base_uri() == "http://192.0.2.7:31234"
    found["status"] = {"loadBalancer": {"ingress": [{"ip": "2001:db8::1"}]}}
    assert service(api).base_uri() == "http://[2001:db8::1]"
    route = api.put(
        "HTTPRoute", "digits", spec={"parentRefs": [{"name": "main"}], "hostnames": ["*.example.com"]}
    )
    assert service(api).base_uri() == "http://[2001:db8::1]"
    listeners = [{"protocol": "HTTP", "port": 8000}]
    api.put("Gateway", "main", spec={"listeners": listeners}, status={"addresses": [{"value": "192.0.2.9"}]})
    assert service(api).base_uri() == "http://192.0.2.9:8000"
    route["spec"]["hostnames"].append("digits.example.com")
    assert service(api).base_uri() == "http://digits.example.com:8000"


def test_machines_of_a_size_are_described() -> None:
    """By their number and their GPUs, MIG devices among them; an account that may not list nodes sees none."""
    api = PuppetApi()
    label = {"labels": {"node.kubernetes.io/instance-type": "big"}}
    for name in "ab":
        amounts = {"cpu": "8", "nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "2"}
        api.put("Node", name, metadata=label, status={"allocatable": amounts})
    text = describe_machines(api.cluster(), "big", 3)
    assert text == "2 nodes of size big, with 12 GPUs, 3 asked for; none are made"
    assert "no node of the cluster says that it is a small" in describe_machines(api.cluster(), "small", None)
    api.denied = {"nodes"}
    assert "no node of the cluster says that it is a big" in describe_machines(api.cluster(), "big", None)
