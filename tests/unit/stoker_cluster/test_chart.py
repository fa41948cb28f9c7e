"""The Helm chart gives the objects that `render` gives, and takes the settings that a plan has."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.patience import PROGRAM_S

from stoker.errors import InvalidSettings
from stoker.settings.readers import settings_of
from stoker_cluster.options import plan_from
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.render import objects_of

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "stoker"
HELM = os.environ.get("HELM") or shutil.which("helm")
NEEDS_HELM = pytest.mark.skipif(
    HELM is None, reason="there is no helm here; HELM names one that is not on the PATH"
)

GPU = {"gpu_resource": "nvidia.com/gpu"}
TWO = [
    {"path": "a.onnx", "name": "a", "max_batch_rows": 10, "load_timeout_s": 60},
    {"path": "b/score.py", "name": "b", "model_dir": "b/model", "timeout_ms": 90500},
]
VALUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gpus": {**GPU, "replicas": 8},
    "many": {"gpus": 2, "replicas": 20, "spare_gpus": 5, "runtime_class": "nvidia"},
    "large": {
        **GPU,
        "replicas": 40,
        "node_selector": {"pool": "1"},
        "tolerations": ["sku=gpu:NoSchedule", "spot"],
    },
    "mig": {"gpu_resource": "nvidia.com/mig-1g.10gb", "max_unavailable": "25%"},
    "dra": {"dra": "gpu.nvidia.com", "gpus": 2, "max_unavailable": 3},
    "amounts": {"cpu_cores": 6.5, "memory_gb": 0.5, "cpu_cores_limit": 8, "memory_gb_limit": 4.25},
    "two models": {"name": "pair", "serves": TWO, "server": {"load_timeout_s": 300, "drain_grace_s": 0.5}},
    "hpa": {"autoscaler": "hpa", "max_replicas": 30, "serves": TWO, "target_utilization": 50, **GPU},
    "keda": {"autoscaler": "keda", "min_replicas": 12, "serves": TWO, "autoscale_refresh_s": 5},
    "stoker": {"autoscaler": "stoker", "max_replicas": 40, **GPU},
    "from zero": {"autoscaler": "stoker", "min_replicas": 0, "router": True},
    "stoker with a key": {
        "autoscaler": "stoker",
        "version_name": "a",
        "gateway": "gw/main",
        "image_pull_secrets": ["registry"],
        "server": {"metrics_auth": True},
    },
    "none": {"autoscaler": "none", "server": {"auth": False, "port": 9, "host": "::"}},
    "claim": {"models": "pvc://weights/digits/3", "collect_to": "records", "server": {"collect": True}},
    "answers later": {"later_to": "spool", "name": "b", "server": {"later_mb": 64}},
    "volume": {"models": f"oci://r/m@sha256:{'a' * 64}", "image_pull_secrets": ["registry"]},
    "polled": {"allow_egress": True, "allow_from": ["monitoring"], "server": {"poll_s": 2.5}},
    "open": {
        "service_type": "LoadBalancer",
        "grpc": True,
        "allow_egress": True,
        "liveness_initial_delay_s": 310,
    },
    "route": {"gateway": "gw/main", "allow_from": ["monitoring"], "pod_monitor": True, "name": "b"},
    "hosts": {
        "gateway": "gw/main",
        "hostnames": ["a.example.com"],
        "server": {"timeout_ms": 1500, "metrics_auth": True, "grpc_port": 9001, "token_auth": True},
        "pod_monitor": True,
        "network_policy": False,
    },
    "version": {
        "gateway": "gw/main",
        "version_name": "a",
        "traffic": {"a": 20, "b": 33.33},
        "default_version": "a",
    },
}


VALUES |= {
    "router": {
        "router": True,
        "service_type": "LoadBalancer",
        "serves": [
            {**TWO[0], "max_concurrent_requests": 3, "max_queue_wait_ms": 100},
            {**TWO[1], "max_concurrent_requests": 4},
        ],
        "autoscaler": "keda",
        "router_image": "stoker:0",
    },
    "routed and scaled": {"router": True, "autoscaler": "stoker", "max_replicas": 4},
    "routed version": {
        **VALUES["version"],
        "router": True,
        "allow_from": ["monitoring"],
        "image_pull_secrets": ["registry"],
    },
}


def templated(tmp_path: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with these values."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"image": "stoker:1", "serves": [{"path": "digits.onnx"}], **values}))
    command = [str(HELM), "template", "digits", str(CHART), "--values", str(file)]
    command += ["--namespace", "models", "--kube-version", "1.36.0"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROGRAM_S)


def planned(tmp_path: Path, values: dict[str, Any]) -> ClusterPlan:
    """The plan of the same settings."""
    content = {**values.get("server", {}), "models": values.get("serves", [{"path": "digits.onnx"}])}
    content["kubernetes"] = {
        name: value for name, value in values.items() if name not in ("server", "serves")
    }
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(content))
    given = {"image": "stoker:1", "namespace": "models"}
    return plan_from(given if "name" in values else {**given, "name": "digits"}, [], file, None)


def comparable(contents: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """Objects by kind and name, with the deployment file parsed and without its fingerprint."""
    found = {}
    for content in contents:
        if content["kind"] == "ConfigMap":
            content["data"] = {name: yaml.safe_load(text) for name, text in content["data"].items()}
        if content["kind"] == "Deployment":
            content["spec"]["template"]["metadata"].get("annotations", {}).pop("stoker.dev/config", None)
        found[content["kind"], content["metadata"]["name"]] = content
    return found


def test_the_chart_takes_the_settings_of_a_plan() -> None:
    """Each has a default and a place in the schema, but for the namespace, which is that of the release."""
    expected = {*settings_of(ClusterPlan), "serves", "server"} - {"namespace", "create_namespace"}
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())) == expected
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) == {*expected, "global"}
    assert schema["additionalProperties"] is False


@NEEDS_HELM
@pytest.mark.parametrize("name", VALUES)
def test_chart_and_render_give_equal_objects(tmp_path: Path, name: str) -> None:
    """Their objects are equal, for each of these plans."""
    done = templated(tmp_path, VALUES[name])
    assert done.returncode == 0, done.stderr
    of_the_chart = [content for content in yaml.load_all(done.stdout, yaml.CSafeLoader) if content]
    assert comparable(of_the_chart) == comparable(objects_of(planned(tmp_path, VALUES[name])))


@NEEDS_HELM
def test_the_route_of_an_endpoint_belongs_to_one_release(tmp_path: Path) -> None:
    """Helm refuses an object that another release has: the version that is not the default one has no route."""
    values = {**VALUES["version"], "version_name": "b"}
    expected = comparable(objects_of(planned(tmp_path, values)))
    del expected["HTTPRoute", "digits"]
    done = templated(tmp_path, values)
    assert (
        comparable([content for content in yaml.load_all(done.stdout, yaml.CSafeLoader) if content])
        == expected
    )


@NEEDS_HELM
@pytest.mark.parametrize(
    "values",
    [
        {"replica": 3},
        {"replicas": 0},
        {"serves": [{"registered": "mnist"}]},
        {"models": "oci://r/m:latest"},
        {"models": "s3://bucket/m"},
        {"models": "https://h/m"},
        {"image": ""},
        {"serves": []},
        {"replicas": 2, "autoscaler": "hpa"},
        {"max_replicas": 2},
        {"gpus": 1, "max_unavailable": 0},
        {"gpus": 2, "gpu_resource": "nvidia.com/mig-1g.10gb"},
        {"version_name": "a"},
        {"version_name": "a", "gateway": "gw/main", "traffic": {"a": 33.333}, "default_version": "a"},
        {"version_name": "servers", "router": True},
        {"router": True, "grpc": True},
        {"server": {"collect": True}},
    ],
    ids=str,
)
def test_chart_refuses_values_that_a_plan_refuses(tmp_path: Path, values: dict[str, Any]) -> None:
    """Its schema refuses them, or its templates with the words of `render`."""
    with pytest.raises(InvalidSettings):
        planned(tmp_path, {"image": "stoker:1", **values})
    assert templated(tmp_path, values).returncode == 1
