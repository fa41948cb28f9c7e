"""Plans and their contradictions."""

from typing import Any

import pytest
from tests.unit.stoker_cluster.plans import plan

from stoker.errors import InvalidSettings
from stoker.settings.readers import read_settings
from stoker_cluster.plan import ClusterPlan


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "the service has no name; give it with --name"),
        ({"image": ""}, "no image is named; say with --image"),
        ({"serves": ()}, "nothing is served; name a model's path"),
        ({"name": "a" * 40, "version_name": "b" * 20}, "too long for the names of objects"),
        ({"create_namespace": True}, "create_namespace needs the namespace"),
        ({"hostnames": ("a.b",)}, "give its Gateway with --gateway"),
        ({"replicas": 2, "autoscaler": "hpa"}, "replicas cannot be given beside autoscaler hpa"),
        ({"max_replicas": 2}, "max_replicas must not be given unless an autoscaler is"),
        ({"target_utilization": 70}, "target_utilization must not be given unless"),
        (
            {"autoscaler": "hpa", "min_replicas": 3, "max_replicas": 2},
            "min_replicas 3 must not be above max_replicas 2",
        ),
        (
            {"autoscaler": "stoker", "namespace": "a", "min_replicas": 0},
            "min_replicas 0 needs --autoscaler stoker",
        ),
        (
            {"autoscaler": "hpa", "router": True, "min_replicas": 0},
            "min_replicas 0 needs --autoscaler stoker",
        ),
        ({"autoscaler": "keda"}, "KEDA finds pods by their namespace"),
        ({"autoscaler": "stoker"}, "rights are given to the autoscaler of a namespace"),
        (
            {"autoscaler": "keda", "namespace": "a", "version_name": "a", "gateway": "a/b"},
            "KEDA cannot tell the versions",
        ),
        (
            {"autoscaler": "keda", "namespace": "a", "server": {"metrics_auth": True}},
            "reads /metrics without a key",
        ),
        ({"cpu_cores": 2, "cpu_cores_limit": 1}, "cpu_cores_limit 1 must be at least cpu_cores 2"),
        ({"memory_gb": 2, "memory_gb_limit": 1}, "memory_gb_limit 1 must be at least memory_gb 2"),
        ({"memory_gb_limit": 0.05}, "memory_gb_limit 0.05 is too little"),
        ({"dra": "gpu.nvidia.com", "gpu_resource": "nvidia.com/gpu"}, "two ways to the same GPUs"),
        ({"gpus": 0, "gpu_resource": "nvidia.com/gpu"}, "gpus 0 contradicts"),
        ({"gpus": 2, "gpu_resource": "nvidia.com/mig-1g.10gb"}, "a process uses one MIG device"),
        ({"server": {"device": ["cuda:0"]}}, "device cuda:0 needs GPUs; give them with --gpus"),
        ({"gpus": 4, "spare_gpus": 2}, "spare_gpus 2 are too few for a pod, which has 4"),
        ({"spare_gpus": 2}, "spare_gpus are of pods with GPUs"),
        ({"gpus": 1, "max_unavailable": 0}, "max_unavailable 0 needs a GPU to spare"),
        ({"traffic": {"a": 10.0}}, "say which this is with --version-name"),
        ({"version_name": "a"}, "a Service cannot split requests by weights"),
        (
            {"version_name": "a", "gateway": "a/b", "traffic": {"b": 10.0}},
            "traffic has no a, which these pods are",
        ),
        (
            {"version_name": "a", "gateway": "a/b", "default_version": "b"},
            "traffic has no b, the default version",
        ),
        (
            {"version_name": "a", "gateway": "a/b", "traffic": {"a": 60.0, "b": 50.0}},
            "traffic adds up to 110 percent",
        ),
        ({"server": {"collect": True}}, "name a claim with --collect-to"),
        ({"server": {"later_mb": 64}}, "name a claim with --later-to"),
        ({"later_to": "spool"}, "give them room with later_mb"),
        ({"primary_key": "k" * 16, "server": {"auth": False}}, "keys are given, but none are asked for"),
        ({"primary_key": "k" * 16, "server": {"token_auth": True}}, "make digits-keys yourself"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    """Each is one sentence, which says what to do."""
    with pytest.raises(InvalidSettings) as refused:
        plan(**fields)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "Digits", "name must be 1 to 50 small letters"),
        ("name", "1digits", "the first a letter"),
        ("namespace", "-a", "namespace must be 1 to 63 small letters"),
        ("image", "a b", "image must be a text without spaces"),
        ("models", "store", "models must be image, pvc://CLAIM/PATH or oci://"),
        ("models", "s3://bucket", "an address is the path of a model: s3://bucket/digits"),
        ("models", "oci://registry/model:latest", "a tag may name another image tomorrow"),
        ("models", "pvc://claim/../other", "models must be image"),
        ("replicas", 0, "replicas must be a whole number between 1 and 10000"),
        ("replicas", 10_001, "between 1 and 10000"),
        ("gpu_resource", "gpu", "gpu_resource must be the name of a resource"),
        ("max_unavailable", "half", "max_unavailable must be a number of pods or a percentage"),
        ("max_unavailable", "101%", "must be a number of pods or a percentage"),
        ("gateway", "main", "gateway must be the Gateway as NAMESPACE/NAME"),
        ("traffic", "a=x", "must have numbers as percentages, not 'x' for a"),
        ("traffic", "a=101", "must have percentages from 0 to 100"),
        ("traffic", "a=1,a=2", "must have each name once"),
        ("traffic", "a", "must be VERSION=PERCENTAGE"),
        ("node_selector", "pool=a b", "must be labels"),
        ("tolerations", "sku=gpu:Never", "one of the effects NoSchedule"),
        ("tolerations", "a b", "must be NAME"),
        ("hostnames", "Example", "must be names of small letters"),
        ("autoscaler", "vpa", "autoscaler must be stoker or hpa or keda or none"),
        ("service_type", "ExternalName", "service_type must be ClusterIP"),
    ],
)
def test_values_that_cannot_be_are_refused(field: str, value: Any, message: str) -> None:
    """The message names the field and the allowed values."""
    with pytest.raises(InvalidSettings, match=r"^test: ") as refused:
        read_settings(ClusterPlan, {field: value}, "test")
    assert message in str(refused.value)


def test_values_from_the_command_line_and_from_yaml_are_the_same() -> None:
    """Texts with commas, lists and mappings come to the same plan."""
    texts = {
        "traffic": "a=80,b=20",
        "node_selector": "pool=gpus,zone=1",
        "tolerations": "sku=gpu:NoSchedule,spot",
        "hostnames": "a.example.com,*.example.com",
        "max_unavailable": "2",
    }
    typed = {
        "traffic": {"a": 80, "b": 20.0},
        "node_selector": {"pool": "gpus", "zone": 1},
        "tolerations": ["sku=gpu:NoSchedule", "spot"],
        "hostnames": ["a.example.com", "*.example.com"],
        "max_unavailable": 2,
    }
    assert read_settings(ClusterPlan, texts, "test") == read_settings(ClusterPlan, typed, "test")


def test_repr_of_a_plan_hides_its_keys() -> None:
    """A plan in a message or log shows no key."""
    assert "secret-of" not in repr(plan(primary_key="secret-of-the-tests"))
