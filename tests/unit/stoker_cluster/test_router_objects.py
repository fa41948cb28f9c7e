"""The objects of a service with a router."""

from typing import Any

import pytest
import yaml
from tests.unit.stoker_cluster.plans import objects, plan

from stoker.errors import InvalidSettings
from stoker.settings.readers import read_settings
from stoker_cluster.objects.configuration import pod_file
from stoker_cluster.objects.router import router_file
from stoker_cluster.render import objects_of
from stoker_cluster.router_settings import RouterSettings

VERSIONS = {"version_name": "a", "traffic": {"a": 20.0, "b": 10.0}, "router": True}
LIMITED = {"max_concurrent_requests": 4, "max_queue_wait_ms": 700}


def settings(**fields: Any) -> RouterSettings:
    """The settings of the router in the cluster, read as the router reads them."""
    (file,) = objects("router", router=True, **fields)["ConfigMap"]["data"].values()
    return RouterSettings(**read_settings(RouterSettings, yaml.safe_load(file), "router.yaml"))


def test_callers_reach_the_router_by_the_name_of_the_service() -> None:
    """Its pods are not selected as servers, for each type of Service."""
    fields = {"router": True, "service_type": "LoadBalancer", "gateway": "gw/main"}
    servers, router = objects(**fields), objects("router", **fields)
    assert (servers["Service"]["metadata"]["name"], router["Service"]["metadata"]["name"]) == (
        "digits-servers",
        "digits",
    )
    assert (servers["Service"]["spec"]["type"], router["Service"]["spec"]["type"]) == (
        "ClusterIP",
        "LoadBalancer",
    )
    chosen = router["Service"]["spec"]["selector"]
    assert chosen.items() <= router["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert not chosen.items() <= servers["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert servers["HTTPRoute"]["spec"]["rules"][0]["backendRefs"] == [
        {"name": "digits", "port": 80, "weight": 10_000}
    ]
    assert "from" in servers["NetworkPolicy"]["spec"]["ingress"][0]
    assert "from" not in router["NetworkPolicy"]["spec"]["ingress"][0]


def test_router_settings_follow_the_plan() -> None:
    """Its queue has the pods' limits if each model has one; its timeout is a second above theirs."""
    made = settings(
        serves=({"name": "digits", "path": "/models/a.onnx", **LIMITED},), server={"timeout_ms": 1500}
    )
    assert (made.service, made.traffic, made.timeout_ms) == ("digits-servers", None, 1500)
    assert (made.max_concurrent_requests, made.max_queue_wait_ms) == (4, 700)
    one, other = {"name": "a", "path": "/models/a.onnx"}, {"name": "b", "path": "/models/b.onnx", **LIMITED}
    assert settings(serves=(one, other)).max_concurrent_requests == 0
    assert settings(serves=({**one, **LIMITED}, other)).max_concurrent_requests == 8


def test_all_versions_have_one_router() -> None:
    """Whichever is rendered; it spreads requests by the weights of all, and a Gateway has nothing to weigh."""
    first, second = (
        [
            content
            for content in objects_of(plan(**{**VERSIONS, "version_name": version, "gateway": "gw/main"}))
            if content["metadata"]["name"] in ("digits", "digits-router")
        ]
        for version in "ab"
    )
    assert first == second
    assert (
        settings(**{name: VERSIONS[name] for name in ("version_name", "traffic")}).traffic
        == VERSIONS["traffic"]
    )
    assert router_file(plan(**VERSIONS))["default_version"] == "a"
    assert objects(**VERSIONS)["Service"]["metadata"]["name"] == "digits-a"
    route = next(content for content in first if content["kind"] == "HTTPRoute")
    assert [rule["backendRefs"] for rule in route["spec"]["rules"]] == [
        [{"name": "digits", "port": 80, "weight": 10_000}]
    ]


def test_the_autoscaler_asks_the_servers_and_not_the_router() -> None:
    """It finds pods by the Service that leads to them."""
    scaled = {"router": True, "autoscaler": "stoker", "namespace": "ml"}
    deployments = {
        one["metadata"]["name"]: one for one in objects_of(plan(**scaled)) if one["kind"] == "Deployment"
    }
    (container,) = deployments["digits-autoscaler"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--service", "digits-servers"]
    keda = objects(**{**scaled, "autoscaler": "keda"})["ScaledObject"]["spec"]["triggers"][0]["metadata"]
    assert keda["url"].startswith("http://digits-servers.ml:")


def test_requests_wait_for_a_pod_as_long_as_their_callers_may_have_to() -> None:
    """The pods go sooner, as only routers have to hear; a router that goes waits for those that wait in it."""
    patient = {"timeout_ms": 90_000}
    assert [settings(server=server).hold_s for server in ({}, patient, {"timeout_ms": 100})] == [60, 90, 30]
    deployment = objects("router", router=True, server=patient)["Deployment"]
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 10 + 90 + 90 + 5
    drains = [plan(), plan(router=True), plan(router=True, server={"drain_grace_s": 1.5})]
    assert [pod_file(one)["drain_grace_s"] for one in drains] == [10, 5, 1.5]


def test_a_router_is_given_time_to_start() -> None:
    """As a first process without handlers it would not hear SIGTERM, and be killed later under its requests."""
    deployment = objects("router", router=True)["Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["httpGet"] == liveness["httpGet"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 60


def test_a_router_may_have_an_image_of_its_own() -> None:
    """Else that of the pods."""

    def image(**fields: Any) -> str:
        spec = objects("router", router=True, **fields)["Deployment"]["spec"]["template"]["spec"]
        return str(spec["containers"][0]["image"])

    assert image(image="stoker:2", router_image="stoker:1") == "stoker:1"
    assert image(image="stoker:2") == "stoker:2"


def test_routers_see_endpoints_and_nothing_else() -> None:
    """Their account may list those of its namespace; servers have none."""
    found = objects("router", **VERSIONS)
    assert found["Role"]["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    ]
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == found["RoleBinding"]["subjects"][0]["name"] == "digits-router"
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version_name": "a"}, "or have a --router"),
        ({"router_image": "stoker:1"}, "leave it out, or have a --router"),
        ({"router": True, "grpc": True}, "the router speaks no gRPC"),
        ({"router": True, "version_name": "router"}, "call the version otherwise"),
        ({"router": True, "version_name": "a", "traffic": {"a": 99.999}}, "two digits after the point"),
    ],
)
def test_impossible_router_plan_is_refused(fields: dict[str, Any], words: str) -> None:
    """One sentence says what to do."""
    with pytest.raises(InvalidSettings, match=words):
        plan(**fields)
