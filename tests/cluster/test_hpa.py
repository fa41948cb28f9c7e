"""An HPA that moves a Deployment by the load of its pods, and objects of KEDA and the Gateway API."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.definitions import HTTP_ROUTES, SCALED_OBJECTS, Definition, definition
from tests.cluster.kinds import installed
from tests.cluster.plans import digits

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.canary import set_shares
from stoker_cluster.errors import ClusterRefusal

TLS = Path(__file__).parents[1] / "tls"
GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"
ROOT = f"/apis/{GROUP}/{VERSION}"


class Metrics:
    """The answers of a metrics adapter: the load of each pod; all pods share the requested load."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._control_plane = control_plane
        self._namespace = namespace
        self.load = 0.0

    def answer(self, path: str) -> dict[str, Any] | None:
        """Return the object at a path; None if there is none."""
        if path == ROOT:
            resource = {
                "name": "pods/stoker_load",
                "namespaced": True,
                "kind": "MetricValueList",
                "verbs": ["get"],
            }
            return {"kind": "APIResourceList", "groupVersion": f"{GROUP}/{VERSION}", "resources": [resource]}
        if path != f"{ROOT}/namespaces/{self._namespace}/pods/%2A/stoker_load":
            return None
        labels = "labelSelector=app.kubernetes.io/name=stoker"
        pods = self._control_plane.get(f"/api/v1/namespaces/{self._namespace}/pods?{labels}")["items"]
        value = f"{round(1000 * self.load / max(1, len(pods)))}m"
        items = [self._item(pod["metadata"]["name"], value) for pod in pods]
        return {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}

    def _item(self, pod: str, value: str) -> dict[str, Any]:
        described = {"kind": "Pod", "namespace": self._namespace, "name": pod, "apiVersion": "v1"}
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            "describedObject": described,
            "metric": {"name": "stoker_load"},
            "timestamp": now,
            "value": value,
        }


@pytest.fixture
def metrics(control_plane: ControlPlane, namespace: str) -> Iterator[Metrics]:
    """An API of custom metrics that the API server leads to."""
    serving = Metrics(control_plane, namespace)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = serving.answer(self.path.partition("?")[0])
            content = json.dumps(found or {}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "localhost.crt", TLS / "localhost.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    services, api_services = (
        f"/api/v1/namespaces/{namespace}/services",
        "/apis/apiregistration.k8s.io/v1/apiservices",
    )
    # Endpoints may not be on the loopback interface, names may mean it.
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    control_plane.create(services, {"metadata": {"name": "metrics"}, "spec": spec})
    name = f"{VERSION}.{GROUP}"
    spec = {
        "group": GROUP,
        "version": VERSION,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"namespace": namespace, "name": "metrics", "port": port},
    }
    control_plane.create(api_services, {"metadata": {"name": name}, "spec": spec})
    control_plane.eventually(
        f"{api_services}/{name}",
        lambda found: any(one["status"] == "True" for one in found.get("status", {}).get("conditions", [])),
    )
    yield serving
    control_plane.api.delete(f"{api_services}/{name}")
    server.shutdown()
    server.server_close()


def test_an_hpa_moves_the_deployment_by_the_load_of_its_pods(
    cluster: Cluster, control_plane: ControlPlane, namespace: str, metrics: Metrics
) -> None:
    """Kubernetes' own controller, with the object as it is rendered: from one pod to eight, of which each has 0.7."""
    list(apply(cluster, digits(namespace, autoscaler="hpa", max_replicas=20)))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/digits"
    control_plane.eventually(path, lambda found: found["status"].get("readyReplicas") == 1)
    metrics.load = 5.6
    begun_s = time.monotonic()
    control_plane.eventually(path, lambda found: found["spec"]["replicas"] == 8, 240.0)
    print(f"8 pods are wanted after {time.monotonic() - begun_s:.1f} s")
    found = control_plane.eventually(path, lambda found: found["status"].get("readyReplicas") == 8, 240.0)
    assert found["spec"]["replicas"] == 8
    scaler = control_plane.get(f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/digits")
    assert scaler["status"]["desiredReplicas"] == 8


def require_definition(wanted: Definition) -> dict[str, Any]:
    """Return the definition of a kind; skip the test where it is missing."""
    try:
        return definition(wanted)
    except LookupError as reason:
        pytest.skip(str(reason))


def test_a_scaled_object_is_taken_by_kedas_own_definition(
    cluster: Cluster, control_plane: ControlPlane, namespace: str, warnings: list[str]
) -> None:
    """The rendered object gives no warning of an unknown field, and known fields are valid."""
    with installed(control_plane, require_definition(SCALED_OBJECTS)):
        changes = {str(change) for change in apply(cluster, digits(namespace, autoscaler="keda"))}
        assert "created ScaledObject digits" in changes
        path = f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects/digits"
        assert control_plane.get(path)["spec"]["triggers"][0]["type"] == "metrics-api"
        assert warnings == []
        bad = {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "bad"},
            "spec": {},
        }
        with pytest.raises(ClusterRefusal, match=r"spec\.triggers"):
            cluster.apply({**bad, "metadata": {"name": "bad", "namespace": namespace}})


def test_weights_of_a_route_are_changed_in_place(
    cluster: Cluster, control_plane: ControlPlane, namespace: str, warnings: list[str]
) -> None:
    """The HTTPRoute is taken by the Gateway API's own definition; a canary changes its weights and nothing else."""
    with installed(control_plane, require_definition(HTTP_ROUTES)):
        for version in "ab":
            plan = digits(
                namespace, version_name=version, traffic={"a": 100.0, "b": 0.0}, gateway="gateways/main"
            )
            list(apply(cluster, plan))
        path = f"/apis/gateway.networking.k8s.io/v1/namespaces/{namespace}/httproutes/digits"
        before = control_plane.get(path)["spec"]
        assert set_shares(cluster, namespace, "digits", {"b": 33.33}) == {"a": 6667, "b": 3333}
        after = control_plane.get(path)["spec"]
        weights = [one.pop("weight") for one in after["rules"][-1]["backendRefs"]]
        assert weights == [6667, 3333]
        assert [one.pop("weight") for one in before["rules"][-1]["backendRefs"]] == [10_000, 0]
        assert after == before
        assert warnings == []
