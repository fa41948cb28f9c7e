"""Deployments of Azure Kubernetes Service as plans."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.azure_config import DeploymentConfig
from stoker.azure_config.fields import fields_of
from stoker.cluster.azure import plan_of
from stoker.cluster.plan import ClusterPlan
from stoker.cluster.pod_file import pod_file
from stoker.cluster.render import objects_of
from stoker.errors import InvalidSettings

GIVEN: dict[str, Any] = {
    "name": "digits",
    "image": "stoker:1",
    "serves": ({"name": "digits", "path": "/models/digits.onnx"},),
}


def planned(given: dict[str, Any] | None = None, **keywords: Any) -> ClusterPlan:
    """The plan of `AksWebservice.deploy_configuration` with these keywords."""
    return plan_of(DeploymentConfig.from_keywords("aks", **keywords), {**GIVEN, **(given or {})})


def found(plan: ClusterPlan, kind: str) -> dict[str, Any]:
    return next(content for content in objects_of(plan) if content["kind"] == kind)


def container(plan: ClusterPlan) -> dict[str, Any]:
    first: dict[str, Any] = found(plan, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return first


def annotation(plan: ClusterPlan, name: str) -> Any:
    return found(plan, "Deployment")["metadata"].get("annotations", {}).get(f"stoker.dev/{name}")


SCALED = {"autoscale_enabled": True}
HPA = {"autoscaler": "hpa"}
EFFECTS: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    # keyword: what is given with it, what Azure has no keyword for, and what is looked at
    "num_replicas": ({"num_replicas": 100}, {}, lambda p: found(p, "Deployment")["spec"]["replicas"] == 100),
    "autoscale_enabled": (SCALED, HPA, lambda p: "replicas" not in found(p, "Deployment")["spec"]),
    "autoscale_min_replicas": (
        {**SCALED, "autoscale_min_replicas": 2},
        HPA,
        lambda p: found(p, "HorizontalPodAutoscaler")["spec"]["minReplicas"] == 2,
    ),
    "autoscale_max_replicas": (
        {**SCALED, "autoscale_max_replicas": 7},
        HPA,
        lambda p: found(p, "HorizontalPodAutoscaler")["spec"]["maxReplicas"] == 7,
    ),
    "autoscale_refresh_seconds": (
        {**SCALED, "autoscale_refresh_seconds": 3},
        {"autoscaler": "keda", "namespace": "a"},
        lambda p: found(p, "ScaledObject")["spec"]["pollingInterval"] == 3,
    ),
    "autoscale_target_utilization": (
        {**SCALED, "autoscale_target_utilization": 50},
        HPA,
        lambda p: (
            annotation(p, "autoscale-target-utilization") == "50"
            and "'averageValue': '500m'" in str(found(p, "HorizontalPodAutoscaler"))
        ),
    ),
    "cpu_cores": ({"cpu_cores": 2}, {}, lambda p: container(p)["resources"]["requests"]["cpu"] == "2"),
    "memory_gb": ({"memory_gb": 4}, {}, lambda p: container(p)["resources"]["requests"]["memory"] == "4G"),
    "cpu_cores_limit": (
        {"cpu_cores_limit": 2},
        {},
        lambda p: container(p)["resources"]["limits"]["cpu"] == "2",
    ),
    "memory_gb_limit": (
        {"memory_gb_limit": 2},
        {},
        lambda p: container(p)["resources"]["limits"]["memory"] == "2G",
    ),
    "gpu_cores": (
        {"gpu_cores": 2},
        {},
        lambda p: (
            container(p)["resources"]["limits"]["nvidia.com/gpu"] == 2
            and pod_file(p)["device"] == ["cuda:0", "cuda:1"]
        ),
    ),
    "scoring_timeout_ms": ({"scoring_timeout_ms": 5000}, {}, lambda p: pod_file(p)["timeout_ms"] == 5000),
    "replica_max_concurrent_requests": (
        {"replica_max_concurrent_requests": 4, "num_replicas": 3},
        {},
        lambda p: pod_file(p)["models"][0]["max_concurrent_requests"] == 4,
    ),
    "max_request_wait_time": (
        {"max_request_wait_time": 250},
        {},
        lambda p: pod_file(p)["models"][0]["max_queue_wait_ms"] == 250,
    ),
    "auth_enabled": ({"auth_enabled": False}, {}, lambda p: "keys_dir" not in pod_file(p)),
    "token_auth_enabled": (
        {"token_auth_enabled": True},
        {},
        lambda p: (pod_file(p)["auth"], pod_file(p)["token_auth"]) == (False, True),
    ),
    "primary_key": (
        {"primary_key": "primary-of-the-tests"},
        {},
        lambda p: found(p, "Secret")["stringData"]["primary"] == "primary-of-the-tests",
    ),
    "secondary_key": (
        {"secondary_key": "second-of-the-tests"},
        {},
        lambda p: found(p, "Secret")["stringData"] == {"secondary": "second-of-the-tests"},
    ),
    "period_seconds": (
        {"period_seconds": 20},
        {},
        lambda p: container(p)["livenessProbe"]["periodSeconds"] == 20,
    ),
    "initial_delay_seconds": (
        {"initial_delay_seconds": 310},
        {},
        lambda p: container(p)["livenessProbe"]["initialDelaySeconds"] == 310,
    ),
    "timeout_seconds": (
        {"timeout_seconds": 5},
        {},
        lambda p: container(p)["livenessProbe"]["timeoutSeconds"] == 5,
    ),
    "success_threshold": (
        {"success_threshold": 2},
        {},
        lambda p: (
            "successThreshold" not in container(p)["livenessProbe"]
            and "success_threshold 2 is 1" in p.notes[-1]
        ),
    ),
    "failure_threshold": (
        {"failure_threshold": 5},
        {},
        lambda p: container(p)["livenessProbe"]["failureThreshold"] == 5,
    ),
    "namespace": (
        {"namespace": "models"},
        {},
        lambda p: found(p, "Service")["metadata"]["namespace"] == "models",
    ),
    "compute_target_name": (
        {"compute_target_name": "aks"},
        {},
        lambda p: annotation(p, "compute-target") == "aks",
    ),
    "collect_model_data": (
        {"collect_model_data": True},
        {"collect_to": "records"},
        lambda p: pod_file(p)["collect"] is True,
    ),
    "blobfuse_enabled": (
        {"blobfuse_enabled": False},
        {},
        lambda p: "blobfuse_enabled has no effect" in p.notes[-1],
    ),
    "tags": (
        {"tags": {"stage": "test", "owner": "Ada Lovelace"}},
        {},
        lambda p: (
            json.loads(annotation(p, "tags")) == {"stage": "test", "owner": "Ada Lovelace"}
            and found(p, "Deployment")["metadata"]["labels"]["tags.stoker.dev/stage"] == "test"
            and "tags.stoker.dev/owner" not in found(p, "Deployment")["metadata"]["labels"]
        ),
    ),
    "properties": (
        {"properties": {"commit": "1e5"}},
        {},
        lambda p: json.loads(annotation(p, "properties")) == {"commit": "1e5"},
    ),
    "description": (
        {"description": "digits"},
        {},
        lambda p: annotation(p, "description") == pod_file(p)["models"][0]["description"] == "digits",
    ),
    "enable_app_insights": ({"enable_app_insights": True}, {}, lambda p: found(p, "PodMonitor")),
}


def test_each_of_the_keywords_has_its_place() -> None:
    """All 31 keywords of `AksWebservice.deploy_configuration` are in the table below."""
    assert sorted(EFFECTS) == sorted(field.keyword for field in fields_of("aks"))
    assert len(EFFECTS) == 31


@pytest.mark.parametrize("keyword", EFFECTS)
def test_each_keyword_is_in_the_objects_and_only_where_it_was_given(keyword: str) -> None:
    """What it means is found in the objects, or said where it can mean nothing."""
    keywords, given, effect = EFFECTS[keyword]
    assert effect(planned(given, **keywords))
    without = {name: value for name, value in keywords.items() if name != keyword}
    if not (without.keys() & {"autoscale_enabled"}) and keyword != "autoscale_enabled":
        # Where there is nothing, there is nothing to look at.
        with contextlib.suppress(KeyError, StopIteration, IndexError, TypeError):
            assert not effect(planned({}, **without))


def test_the_how_to() -> None:
    """Three pods of two cores and 4 GB; with a GPU each where the environment has a GPU base image."""
    how_to = {"autoscale_enabled": False, "num_replicas": 3, "cpu_cores": 2, "memory_gb": 4}
    configuration = DeploymentConfig.from_keywords("aks", **how_to)
    plan = plan_of(configuration, GIVEN, gpu_environment=True)
    assert found(plan, "Deployment")["spec"]["replicas"] == 3
    assert container(plan)["resources"] == {
        "requests": {"cpu": "2", "memory": "4G"},
        "limits": {"nvidia.com/gpu": 1},
    }
    assert plan.takes_keys
    assert plan.notes == ()
    assert plan_of(configuration, GIVEN).gpu_count == 0
    none = DeploymentConfig.from_keywords("aks", **how_to, gpu_cores=0)
    assert plan_of(none, GIVEN, gpu_environment=True).gpu_count == 0


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
    """Before anything is sent: by the keywords' own rules, then by what a cluster needs to know besides."""
    with pytest.raises(InvalidSettings) as refused:
        planned(**keywords)
    assert message in str(refused.value)


def test_other_deployments_are_for_one_machine(tmp_path: Path) -> None:
    """Those of types local and aci are no plan; one of more than 64 replicas is no server of one machine."""
    with pytest.raises(InvalidSettings, match="a deployment of type local is for one machine; serve it with"):
        plan_of(DeploymentConfig.from_keywords("local", port=80), GIVEN)
    with pytest.raises(InvalidSettings, match="65 replicas are more than the 64 of one machine"):
        DeploymentConfig.from_keywords("aks", num_replicas=65).imported()


def test_what_is_given_besides_wins() -> None:
    """A field of the plan and a setting of the deployment file win over the keyword."""
    plan = planned({"replicas": 2, "server": {"timeout_ms": 7}}, num_replicas=3, scoring_timeout_ms=9000)
    assert (plan.fixed_replicas, pod_file(plan)["timeout_ms"]) == (2, 7)
