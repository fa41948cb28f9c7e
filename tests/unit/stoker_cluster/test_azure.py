"""Deployments of Azure Kubernetes Service as plans."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.stoker_cluster.keywords import EFFECTS, PRESENT, changed, flat
from tests.unit.stoker_cluster.keywords import planned as keyword_plan

from stoker.errors import InvalidSettings
from stoker_azure.config import DeploymentConfig
from stoker_azure.config.deployment import fields_of
from stoker_azure.sdk.services.cluster_deploying import make_plan
from stoker_cluster.objects.configuration import pod_file
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.render import objects_of

GIVEN: dict[str, Any] = {
    "name": "digits",
    "image": "stoker:1",
    "serves": ({"name": "digits", "path": "/models/digits.onnx"},),
}


def planned(given: dict[str, Any] | None = None, **keywords: Any) -> ClusterPlan:
    """The plan of `AksWebservice.deploy_configuration` with these keywords."""
    return make_plan(DeploymentConfig.from_keywords("aks", **keywords), {**GIVEN, **(given or {})})


def found(plan: ClusterPlan, kind: str) -> dict[str, Any]:
    return next(content for content in objects_of(plan) if content["kind"] == kind)


def container(plan: ClusterPlan) -> dict[str, Any]:
    first: dict[str, Any] = found(plan, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return first


SCALED = {"autoscale_enabled": True}
HPA = {"autoscaler": "hpa"}


def test_each_of_the_keywords_has_its_place() -> None:
    """All 31 keywords of `AksWebservice.deploy_configuration` are in the table."""
    assert sorted(EFFECTS) == sorted(field.keyword for field in fields_of("aks"))
    assert len(EFFECTS) == 31


@pytest.mark.parametrize("keyword", [keyword for keyword in EFFECTS if keyword != "namespace"])
def test_keyword_changes_its_places_and_no_other(keyword: str) -> None:
    """The objects differ as the table lists, or the operator gets a note where the keyword has no effect."""
    effect = EFFECTS[keyword]
    before, after = (keyword_plan(keyword, "models", given=given) for given in (False, True))
    expected = dict(effect.changes)
    for place in [place for place in expected if place.startswith("Secret/")]:
        # Without a given key the Secret is somebody else's.
        expected[place.partition(" ")[0]] = PRESENT
        assert flat(objects_of(after))[place] == expected.pop(place)
    assert changed(objects_of(before), objects_of(after)) == expected
    assert any(effect.note in note for note in set(after.notes) - set(before.notes)) or not effect.note


def test_the_keyword_namespace_moves_all_objects() -> None:
    """Each object of the service is in it."""
    objects = objects_of(keyword_plan("namespace", "models", given=True))
    assert {content["metadata"]["namespace"] for content in objects} == {EFFECTS["namespace"].value}


def test_the_keywords_of_the_queue_are_those_of_the_router_too() -> None:
    """Requests that a pod may not have wait in the router, as long as they may; it gives a request its time."""
    keywords = {
        "replica_max_concurrent_requests": 4,
        "max_request_wait_time": 250,
        "scoring_timeout_ms": 5000,
    }
    before, after = planned({"router": True}), planned({"router": True}, **keywords)
    router = {
        place.partition("router.yaml.")[2]: value
        for place, value in changed(objects_of(before), objects_of(after)).items()
        if place.startswith("ConfigMap/digits-router")
    }
    assert router == {
        "max_concurrent_requests": 4,
        "max_queue_wait_ms": 250,
        "timeout_ms": 5000,
        "hold_s": 30,
    }


def test_the_how_to() -> None:
    """Three pods of two cores and 4 GB; with a GPU each where the environment has a GPU base image."""
    how_to = {"autoscale_enabled": False, "num_replicas": 3, "cpu_cores": 2, "memory_gb": 4}
    configuration = DeploymentConfig.from_keywords("aks", **how_to)
    plan = make_plan(configuration, GIVEN, gpu_environment=True)
    assert found(plan, "Deployment")["spec"]["replicas"] == 3
    assert container(plan)["resources"] == {
        "requests": {"cpu": "2", "memory": "4G"},
        "limits": {"nvidia.com/gpu": 1},
    }
    assert plan.takes_keys
    assert plan.notes == ()
    assert make_plan(configuration, GIVEN).gpu_count == 0
    none = DeploymentConfig.from_keywords("aks", **how_to, gpu_cores=0)
    assert make_plan(none, GIVEN, gpu_environment=True).gpu_count == 0


def test_azures_own_defaults() -> None:
    """A tenth of a core and half a GB; one pod, and a word on Azure's autoscaler, until one is chosen."""
    plan = planned()
    assert container(plan)["resources"]["requests"] == {"cpu": "100m", "memory": "500M"}
    assert plan.fixed_replicas == 1
    assert "Azure would scale from 1 to 10" in plan.notes[0]
    scaled = planned(HPA)
    assert (scaled.scaling_range, scaled.notes) == ((1, 10), ())
    assert planned(cpu_cores_limit=0.05).cpu_cores == 0.05
    assert planned(**SCALED, namespace="models").autoscaler == "stoker"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"autoscale_enabled": True, "num_replicas": 2},
            "num_replicas cannot be given while autoscale_enabled is true",
        ),
        ({"autoscale_enabled": False}, "num_replicas must be given while autoscale_enabled is false"),
        ({"autoscale_min_replicas": 2}, "must not be given unless autoscale_enabled is true"),
        (
            {**SCALED, "autoscale_min_replicas": 3, "autoscale_max_replicas": 2},
            "autoscale_min_replicas must not be above autoscale_max_replicas",
        ),
        ({"auth_enabled": True, "token_auth_enabled": True}, "cannot both be true"),
        ({"cpu_cores": 2, "cpu_cores_limit": 1}, "cpu_cores_limit must be at least cpu_cores"),
        ({"memory_gb": 2, "memory_gb_limit": 1}, "memory_gb_limit must be at least memory_gb"),
        ({"cpu_cores": 0}, "cpu_cores must be a number above 0"),
        ({"num_replicas": 0}, "num_replicas must be a whole number from 1 to 10000"),
        ({"namespace": "Models"}, "namespace must be 1 to 63 small letters"),
        (SCALED, "rights are given to the autoscaler of a namespace; give it with --namespace"),
        ({"collect_model_data": True}, "name a claim with --collect-to"),
    ],
)
def test_contradictions_are_refused_as_azure_refuses_them(keywords: dict[str, Any], message: str) -> None:
    """Before any request, by the keywords' own rules, then by those of a cluster."""
    with pytest.raises(InvalidSettings) as refused:
        planned(**keywords)
    assert message in str(refused.value)


def test_other_deployments_are_for_one_machine(tmp_path: Path) -> None:
    """Those of types local and aci are no plan; one of more than 64 replicas is no server of one machine."""
    with pytest.raises(InvalidSettings, match="a deployment of type local is for one machine; serve it with"):
        make_plan(DeploymentConfig.from_keywords("local", port=80), GIVEN)
    with pytest.raises(InvalidSettings, match="65 replicas are more than the 64 of one machine"):
        DeploymentConfig.from_keywords("aks", num_replicas=65).imported()


def test_plan_fields_win_over_azure_s_keywords() -> None:
    """A field of the plan and a setting of the deployment file win over the keyword."""
    plan = planned({"replicas": 2, "server": {"timeout_ms": 7}}, num_replicas=3, scoring_timeout_ms=9000)
    assert (plan.fixed_replicas, pod_file(plan)["timeout_ms"]) == (2, 7)
