"""KServe's own definition, in a real API server, takes what `stoker kubernetes kserve` prints."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.definitions import SERVING_RUNTIMES, definition
from tests.live_server import wait_until

from stoker_cluster.objects.kserve import kserve

COLLECTION = "/apis/serving.kserve.io/v1alpha1/clusterservingruntimes"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
VARIANTS: list[dict[str, Any]] = [
    {},
    {"gpu_name": "nvidia.com/gpu"},
    {"scripts": True},
    {"protocol": "grpc", "gpu_name": "nvidia.com/mig-1g.10gb"},
]


@pytest.fixture(scope="module")
def kserve_plane(control_plane: ControlPlane) -> ControlPlane:
    """A control plane that knows serving runtimes."""
    try:
        runtimes = definition(SERVING_RUNTIMES)
    except LookupError as reason:
        pytest.skip(str(reason))
    control_plane.create(DEFINITIONS, runtimes)

    # Until it serves them it knows nothing of them, or asks to come again.
    wait_until(
        lambda: control_plane.api.get(COLLECTION).status_code == httpx.codes.OK, "serving runtimes are served"
    )
    return control_plane


def post(plane: ControlPlane, content: dict[str, Any]) -> httpx.Response:
    """Create a runtime; a field that the definition does not know is an error."""
    return plane.api.post(COLLECTION, params={"fieldValidation": "Strict"}, json=content)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_runtime_is_accepted_strictly(kserve_plane: ControlPlane, variant: dict[str, Any]) -> None:
    """Each variant is taken without a warning, and nothing of it is dropped."""
    (runtime,) = kserve("registry.example.com/stoker:1", **variant)
    answer = post(kserve_plane, runtime)

    assert answer.status_code == httpx.codes.CREATED, answer.text
    assert "warning" not in answer.headers
    kept = answer.json()["spec"]
    assert {name: kept[name] for name in runtime["spec"]} == runtime["spec"]


def test_an_unknown_field_is_refused(kserve_plane: ControlPlane) -> None:
    """The check is one: a field that KServe has not is named."""
    (runtime,) = copy.deepcopy(kserve("registry.example.com/stoker:1"))
    runtime["metadata"]["name"], runtime["spec"]["protocols"] = "another", ["v2"]

    answer = post(kserve_plane, runtime)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert 'unknown field "spec.protocols"' in answer.json()["message"]
