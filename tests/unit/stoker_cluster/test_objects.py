"""The objects of a plan."""

import argparse
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.stoker_cluster.plans import PLANS, by_kind, objects, plan, pod

from stoker.settings.loading import load_settings
from stoker_cluster.commands.autoscale import add_arguments
from stoker_cluster.objects.configuration import pod_file
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.render import as_yaml, objects_of
from stoker_cluster.traffic_shares import effective_weights

CUSTOM = {"HTTPRoute", "PodMonitor", "ScaledObject"}
EACH = pytest.mark.parametrize("found", PLANS, ids=[f"plan {number}" for number in range(len(PLANS))])


@EACH
def test_objects_of_each_plan_pass_kubernetes_schemas(
    check_schema: Callable[..., None], found: ClusterPlan
) -> None:
    """Objects of built-in kinds, read from YAML, pass the strict schemas of the three newest minors."""
    for content in yaml.load_all(as_yaml(objects_of(found)), yaml.CSafeLoader):
        if content["kind"] not in CUSTOM:
            check_schema(content, PLANS.index(found) % 3)
        names = [content["metadata"]["name"], *content["metadata"].get("labels", {}).values()]
        assert all(len(name) <= 63 for name in names)
        for label in content["metadata"].get("labels", {}):
            assert re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", label)


@EACH
def test_pods_are_as_the_profile_restricted_asks(found: ClusterPlan) -> None:
    """No pod needs a right, writes its root file system, or has a volume that the profile does not allow."""
    spec = by_kind(found)["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for first in spec.get("initContainers", []):
        assert first["securityContext"] == container["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert spec["automountServiceAccountToken"] is False
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "image"}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


@EACH
def test_objects_mean_the_same_pods(found: ClusterPlan) -> None:
    """Each selector selects the Deployment's pods, and all objects have one name and namespace."""
    kinds = by_kind(found)
    spec = kinds["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"].items()
    selectors = [
        spec["selector"]["matchLabels"],
        kinds["Service"]["spec"]["selector"],
        kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    for kind, at in (("NetworkPolicy", "podSelector"), ("PodMonitor", "selector")):
        if kind in kinds:
            selectors.append(kinds[kind]["spec"][at]["matchLabels"])
    assert all(selector == selectors[0] and selector.items() <= labels for selector in selectors)
    for kind, content in kinds.items():
        if kind != "Namespace":
            assert content["metadata"].get("namespace") == found.namespace
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        if kind in kinds:
            target = kinds[kind]["spec"]["scaleTargetRef"]["name"]
            assert target == kinds["Deployment"]["metadata"]["name"]
            assert "replicas" not in spec


@EACH
def test_a_rollout_ends_and_asks_for_no_gpu_that_is_not_there(found: ClusterPlan) -> None:
    """Pods with GPUs never surge beyond the spare ones, and some pod may always come or go."""
    update = by_kind(found)["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    if found.gpu_count:
        assert update["maxSurge"] * found.gpu_count <= found.spare_gpus
    assert update["maxSurge"] or update["maxUnavailable"] not in (0, "0%")


@EACH
def test_pods_read_a_deployment_file_that_servers_take(found: ClusterPlan, tmp_path: Path) -> None:
    """The file in the ConfigMap is valid for a server and has the settings that the objects depend on."""
    file = tmp_path / "deployment.yaml"
    file.write_text(by_kind(found)["ConfigMap"]["data"]["deployment.yaml"])
    read = load_settings({}, {}, file, ())
    spec = by_kind(found)["Deployment"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= read.drain_grace_s + read.timeout_ms / 1000 + 5
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert ports == {"http": read.port, **({"grpc": read.grpc_port} if read.grpc_port else {})}
    assert (read.keys_dir is not None) == (read.auth or read.token_auth)
    assert len(read.device) == max(1, found.gpu_count)


@EACH
def test_the_same_plan_gives_the_same_bytes(found: ClusterPlan) -> None:
    """Rendering twice gives equal bytes, and parsing them gives the objects."""
    text = as_yaml(objects_of(found))
    assert text == as_yaml(objects_of(found))
    assert list(yaml.load_all(text, yaml.CSafeLoader)) == objects_of(found)


def test_without_a_gpu_to_spare_pods_go_first() -> None:
    """Surge 0 and unavailable 1 on GPUs, a tenth from 20 pods on; a spare GPU, or none at all, turns that round."""

    def update(**fields: Any) -> tuple[Any, Any]:
        rolling = objects(**fields)["Deployment"]["spec"]["strategy"]["rollingUpdate"]
        return rolling["maxSurge"], rolling["maxUnavailable"]

    assert update(gpus=1, replicas=8) == (0, 1)
    assert update(gpus=1, replicas=20) == (0, "10%")
    assert update(gpus=1, autoscaler="none", max_replicas=40) == (0, "10%")
    assert update(gpus=2, spare_gpus=5) == (2, 0)
    assert update(gpus=1, max_unavailable=3, replicas=8) == (0, 3)
    assert update(replicas=8) == (1, 0)


def test_the_numbers_of_the_pod() -> None:
    """Probes and graces follow from the times that requests and loading may take."""
    server = {"timeout_ms": 90_500, "load_timeout_s": 300}
    models = ({"name": "a", "path": "/models/a"}, {"name": "b", "path": "/models/b", "load_timeout_s": 60})
    deployment = objects(server=server, serves=models)["Deployment"]["spec"]
    container = deployment["template"]["spec"]["containers"][0]
    assert deployment["template"]["spec"]["terminationGracePeriodSeconds"] == 10 + 91 + 5
    assert deployment["progressDeadlineSeconds"] == 360 + 120
    assert container["startupProbe"]["failureThreshold"] == 180 + 30
    assert container["readinessProbe"]["failureThreshold"] == 1
    assert "initialDelaySeconds" not in container["livenessProbe"]


def test_gpus_become_resources_and_devices() -> None:
    """A pod has its GPUs by their resource, tolerates their taint, and its server runs on all of them."""
    spec = pod(gpus=2)
    assert spec["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    assert pod_file(plan(gpus=2))["device"] == ["cuda:0", "cuda:1"]
    mig = plan(gpu_resource="nvidia.com/mig-1g.10gb")
    assert (mig.gpu_count, pod_file(mig)["device"]) == (1, "auto")
    assert pod_file(plan())["device"] == "cpu"


def test_gpus_by_dynamic_allocation() -> None:
    """A claim template in the place of the resource, to which the pod and its container refer."""
    found = objects(dra="gpu.nvidia.com", gpus=2)
    request = found["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][0]
    assert request["exactly"] == {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 2,
    }
    spec = found["Deployment"]["spec"]["template"]["spec"]
    template = found["ResourceClaimTemplate"]["metadata"]["name"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": template}]
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}


def test_cores_are_shared_out_to_frontends_and_threads() -> None:
    """Half of the requested cores are for frontends, and a model may use all of them; settings of the file win."""
    assert pod_file(plan(cpu_cores=6.5))["frontends"] == 3
    assert pod_file(plan(cpu_cores=6.5))["models"][0]["threads"] == 6
    assert pod_file(plan(cpu_cores=0.1))["frontends"] == 1
    assert pod_file(plan(cpu_cores=64))["frontends"] == 8
    own = plan(
        cpu_cores=8, serves=({"name": "a", "path": "/models/a", "threads": 2},), server={"frontends": 1}
    )
    assert (pod_file(own)["frontends"], pod_file(own)["models"][0]["threads"]) == (1, 2)


def test_amounts_are_decimal() -> None:
    """Memory is in GB of 10⁹ bytes, as Azure counts; no limit is invented."""
    assert pod(cpu_cores=0.1, memory_gb=0.5)["containers"][0]["resources"] == {
        "requests": {"cpu": "100m", "memory": "500M"}
    }
    limited = pod(cpu_cores=2, cpu_cores_limit=2.5, memory_gb=4, memory_gb_limit=4.25)
    assert limited["containers"][0]["resources"]["limits"] == {"cpu": "2500m", "memory": "4250M"}


def test_models_come_from_where_the_plan_says() -> None:
    """From the image there is no volume; a claim and an image volume are mounted read-only at /models."""
    assert not any(volume["name"] == "models" for volume in pod()["volumes"])
    claimed = pod(models="pvc://weights/digits/3")
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}} in claimed[
        "volumes"
    ]
    mounts = claimed["containers"][0]["volumeMounts"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True, "subPath": "digits/3"} in mounts
    reference = f"registry/digits@sha256:{'a' * 64}"
    assert {"name": "models", "image": {"reference": reference}} in pod(models=f"oci://{reference}")[
        "volumes"
    ]


def test_each_pod_collects_into_its_own_folder() -> None:
    """Pods share the claim, and no file of it."""
    spec = pod(collect_to="records", server={"collect": True})
    mounts = {m["mountPath"]: m.get("subPathExpr") for m in spec["containers"][0]["volumeMounts"]}
    assert mounts["/workspace/data"] == "$(POD_NAME)/data"
    assert mounts["/workspace/modeldata"] == "$(POD_NAME)/modeldata"
    assert "POD_NAME" in {variable["name"] for variable in spec["containers"][0]["env"]}


def test_all_pods_have_one_spool() -> None:
    """Any of them has the answers, and runs what another one has left. Services have folders of their own."""
    spec = pod(later_to="spool", server={"later_mb": 64})
    mounts = {m["mountPath"]: m.get("subPath") for m in spec["containers"][0]["volumeMounts"]}
    assert mounts["/workspace/later"] == "digits"
    assert {"name": "later", "persistentVolumeClaim": {"claimName": "spool"}} in spec["volumes"]


def test_keys_are_mounted_and_given_ones_are_a_secret() -> None:
    """Pods refer to one Secret by its name; it is among the objects only if the plan was given keys."""
    assert "Secret" not in objects()
    found = objects(primary_key="primary-of-the-tests")
    assert found["Secret"]["stringData"] == {"primary": "primary-of-the-tests"}
    volume = found["Deployment"]["spec"]["template"]["spec"]["volumes"][-1]
    assert volume["secret"]["secretName"] == found["Secret"]["metadata"]["name"] == "digits-keys"
    assert not any(v["name"] == "keys" for v in pod(server={"auth": False})["volumes"])


@pytest.mark.parametrize(
    ("server", "hosts"),
    [
        ({"auth": False}, ["*"]),
        ({"auth": False, "allowed_hosts": ["a.example.com"]}, []),
        ({"auth": False, "token_auth": True}, []),
        ({}, []),
    ],
)
def test_pods_without_keys_answer_for_the_names_of_the_cluster(
    server: dict[str, Any], hosts: list[str]
) -> None:
    """Unless the plan says for which; with keys they answer for all names anyway."""
    (container,) = pod(server=server)["containers"]
    found = [entry["value"] for entry in container["env"] if entry["name"] == "STOKER_ALLOWED_HOSTS"]
    assert found == hosts


def test_network_policy_admits_the_named_namespaces() -> None:
    """Its own, the Gateway's and the named namespaces reach the pods; an open Service admits everybody."""
    policy = objects(gateway="gateways/main", allow_from=("monitoring",))["NetworkPolicy"]["spec"]
    names = [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for peer in policy["ingress"][0]["from"]
        if "namespaceSelector" in peer
    ]
    assert names == ["gateways", "monitoring"]
    assert ("egress" in policy, policy["policyTypes"]) == (False, ["Ingress", "Egress"])
    assert "from" not in objects(service_type="NodePort")["NetworkPolicy"]["spec"]["ingress"][0]
    assert objects(allow_egress=True)["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress"]
    keda = objects(autoscaler="keda", namespace="models")["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert "keda" in str(keda)
    assert "NetworkPolicy" not in objects(network_policy=False)


def test_autoscalers_look_at_the_load() -> None:
    """Of all models of a pod, against the utilisation that is wanted."""
    metric = objects(autoscaler="hpa", target_utilization=50)["HorizontalPodAutoscaler"]["spec"]["metrics"][0]
    assert metric["pods"] == {
        "metric": {"name": "stoker_load"},
        "target": {"type": "AverageValue", "averageValue": "500m"},
    }


def test_keda_adds_up_each_model_in_all_pods() -> None:
    """KEDA asks every pod, at the port of the pod, for the load of each model by its name."""
    models = ({"name": "a", "path": "/models/a"}, {"name": "b", "path": "/models/b"})
    spec = objects(autoscaler="keda", namespace="ml", serves=models, autoscale_refresh_s=2)["ScaledObject"][
        "spec"
    ]
    first, second = (trigger["metadata"] for trigger in spec["triggers"])
    assert first["url"] == "http://digits.ml:8080/metrics"
    assert first["valueLocation"] == 'stoker_load{model="a"}'
    assert (second["targetValue"], second["aggregationType"]) == ("0.7", "sum")
    assert (spec["pollingInterval"], spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 1, 10)


def autoscaler_of(**fields: Any) -> dict[str, Any]:
    """The objects of Stoker's own autoscaler by kind."""
    made = objects_of(plan(autoscaler="stoker", namespace="models", **fields))
    own = {one["kind"]: one for one in made if one["metadata"]["name"].endswith("-autoscaler")}
    assert list(own) == ["ServiceAccount", "Role", "RoleBinding", "Deployment"]
    return own


def test_stokers_own_autoscaler_may_change_one_number() -> None:
    """It reads its Deployment and the pods' addresses, and writes replicas, and marks on pods."""
    own = autoscaler_of()
    rights = {
        (*rule["resources"], *rule["verbs"]): rule.get("resourceNames") for rule in own["Role"]["rules"]
    }
    assert rights == {
        ("deployments", "get"): ["digits"],
        ("deployments/scale", "patch"): ["digits"],
        ("endpointslices", "list"): None,
        ("pods", "patch"): None,
    }
    spec = own["Deployment"]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == own["ServiceAccount"]["metadata"]["name"] == "digits-autoscaler"
    (container,) = spec["containers"]
    assert container["command"] + container["args"] == [
        "stoker",
        "autoscale",
        "digits",
        "--namespace",
        "models",
        "--heartbeat-file",
        "/tmp/heartbeat",
    ]
    assert own["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_arguments_of_the_autoscalers_pod_are_options_of_its_command() -> None:
    """The command parses them; the key file is the mounted Secret's, and the heartbeat lies on a writable volume."""
    spec = autoscaler_of(server={"metrics_auth": True})["Deployment"]["spec"]["template"]["spec"]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_args(spec["containers"][0]["args"])
    mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert (
        parsed.key_file == Path(mounts["keys"]["mountPath"]) / volumes["keys"]["secret"]["items"][0]["path"]
    )
    assert volumes["keys"]["secret"]["secretName"] == "digits-keys"
    assert parsed.heartbeat_file.parent == Path(mounts["tmp"]["mountPath"])
    assert "emptyDir" in volumes["tmp"]


@pytest.mark.parametrize(
    ("refresh_s", "age_s", "is_alive"),
    [(1, 100, True), (1, 200, False), (600, 1200, True), (600, 1500, False), (1, None, False)],
)
def test_liveness_of_the_autoscaler_fails_once_its_heartbeat_is_old(
    tmp_path: Path, refresh_s: int, age_s: int | None, is_alive: bool
) -> None:
    """The probe passes while the file is younger than two intervals and two minutes, and fails without a file."""
    found = autoscaler_of(autoscale_refresh_s=refresh_s)
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    *shell, script = container["livenessProbe"]["exec"]["command"]
    file = tmp_path / "heartbeat"
    if age_s is not None:
        file.touch()
        os.utime(file, (time.time() - age_s,) * 2)
    assert "/tmp/heartbeat" in script
    result = subprocess.run(
        [*shell, script.replace("/tmp/heartbeat", str(file))], check=False, capture_output=True
    )
    assert (result.returncode == 0) is is_alive


def test_every_emptydir_has_a_limit() -> None:
    """No pod that a plan makes can fill its node's disk by an emptyDir without a limit."""
    for made in (plan(router=True, autoscaler="stoker", namespace="ml"), plan()):
        for content in objects_of(made):
            template = content.get("spec", {}).get("template", {})
            for volume in template.get("spec", {}).get("volumes", []):
                assert volume.get("emptyDir", {"sizeLimit": ""}).keys() == {"sizeLimit"}, volume


def test_requests_never_reach_the_autoscaler() -> None:
    """Nothing that picks the pods of the service picks its pod."""
    labels = autoscaler_of()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    made = {
        one["kind"]: one
        for one in objects_of(plan(autoscaler="stoker", namespace="models"))
        if one["metadata"]["name"] == "digits"
    }
    picked = [
        made["Service"]["spec"]["selector"],
        made["Deployment"]["spec"]["selector"]["matchLabels"],
        made["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    assert not any(selector.items() <= labels.items() for selector in picked)


def test_a_route_leads_by_host_or_by_the_name_of_the_service() -> None:
    """Without hosts only paths with the service's name lead to it, so that several share a Gateway."""
    rule = objects(gateway="gw/main")["HTTPRoute"]["spec"]["rules"][0]
    paths = [match["path"]["value"] for match in rule["matches"]]
    assert paths == ["/api/v1/service/digits", "/v2/models/digits"]
    assert rule["timeouts"] == {"request": "61s"}
    hosted = objects(gateway="gw/main", hostnames=("digits.example.com",))["HTTPRoute"]["spec"]
    assert hosted["hostnames"] == ["digits.example.com"]
    assert hosted["rules"][0]["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]


@pytest.mark.parametrize(
    ("traffic", "default", "expected"),
    [
        ({"a": 20, "b": 10}, None, {"a": 9000, "b": 1000}),
        ({"a": 20, "b": 40}, "b", {"a": 2000, "b": 8000}),
        ({"a": 100.0}, None, {"a": 10_000}),
        ({"a": 0, "b": 0}, "b", {"a": 0, "b": 10_000}),
        ({"a": 33.33, "b": 33.33}, "a", {"a": 6667, "b": 3333}),
    ],
)
def test_rest_of_the_traffic_goes_to_the_default_version(
    traffic: dict[str, float], default: str | None, expected: dict[str, int]
) -> None:
    """Percentages may add up to less than 100, as on Azure; weights always add up."""
    assert effective_weights(traffic, default) == expected


def test_versions_of_an_endpoint() -> None:
    """Each version has pods of its own, under the endpoint's name and keys; all have the same route."""
    traffic = {"a": 20.0, "b": 10.0}
    first, second = (
        objects(version_name=version, traffic=traffic, gateway="gw/main", primary_key="k" * 16)
        for version in "ab"
    )
    assert [found["Deployment"]["metadata"]["name"] for found in (first, second)] == ["digits-a", "digits-b"]
    assert first["HTTPRoute"] == second["HTTPRoute"]
    assert first["Secret"] == second["Secret"]
    assert "name: digits\n" in second["ConfigMap"]["data"]["deployment.yaml"]
    *picked, shared = first["HTTPRoute"]["spec"]["rules"]
    assert [(ref["name"], ref["weight"]) for ref in shared["backendRefs"]] == [
        ("digits-a", 9000),
        ("digits-b", 1000),
    ]
    headers = [rule["matches"][0]["headers"][0] for rule in picked]
    assert headers == [{"name": "azureml-model-deployment", "value": version} for version in "ab"]


def test_texts_like_other_yaml_types_are_quoted() -> None:
    """Kubernetes reads YAML by Go's rules: 1e5 is a number there, and an annotation has to be a text."""
    text = as_yaml([{"texts": ["1e5", "0x1f", "012345", "y", "yes", "null", ".5", "plain"], "number": 5}])
    assert text == (
        'texts:\n  - "1e5"\n  - "0x1f"\n  - "012345"\n  - "y"\n  - \'yes\'\n'
        "  - 'null'\n  - \".5\"\n  - plain\nnumber: 5\n"
    )


def test_a_changed_file_is_a_new_pod() -> None:
    """The pods' template carries a fingerprint of the deployment file alone."""

    def mark(**fields: Any) -> str:
        template = objects(**fields)["Deployment"]["spec"]["template"]["metadata"]
        return str(template["annotations"]["stoker.dev/config"])

    assert mark() == mark(replicas=5) != mark(server={"timeout_ms": 5})
