"""Stoker as a runtime of KServe, which then makes the pods itself."""

from __future__ import annotations

from typing import Any, Final

from stoker_cluster.objects.metadata import CONTAINER_SECURITY, POD_SECURITY, manifest
from stoker_cluster.objects.volumes import HOME_VARIABLE, TMP, WORKSPACE, contents_of, mounts_of, workspace

_HTTP_PORT: Final = 8080
_GRPC_PORT: Final = 9000
_VOLUMES: Final = (workspace(), TMP)
_USER: Final = {name: value for name, value in POD_SECURITY.items() if not name.startswith("fsGroup")}
_READY: Final = {
    "httpGet": {"path": "/v2/health/ready", "port": _HTTP_PORT},
    "periodSeconds": 2,
    "timeoutSeconds": 2,
}
_LIVE: Final = {
    "httpGet": {"path": "/v2/health/live", "port": _HTTP_PORT},
    "periodSeconds": 10,
    "timeoutSeconds": 2,
}
# Ten minutes, in which a model is loaded and warmed up.
_LOOKS: Final = 330


def kserve(
    image: str, gpu_name: str | None = None, *, scripts: bool = False, protocol: str = "http"
) -> list[dict[str, Any]]:
    """Return the ClusterServingRuntime.

    KServe lays the model below /mnt/models, fills in the name of the InferenceService, and sends requests to the one
    port that the container names.

    Args:
        gpu_name: What the cluster calls the GPU of each pod; None serves on the CPU.
        scripts: Whether it is for entry scripts, score.py beside their model, instead of ONNX and SavedModels.
        protocol: `http`, or `grpc`.
    """
    container = _container(image, scripts, protocol)
    spec: dict[str, Any] = {
        "annotations": {
            "prometheus.kserve.io/port": str(_HTTP_PORT),
            "prometheus.kserve.io/path": "/metrics",
        },
        "supportedModelFormats": _formats(scripts),
        "protocolVersions": ["grpc-v2"] if protocol == "grpc" else ["v1", "v2"],
        "containers": [container],
        "volumes": contents_of(_VOLUMES),
    }
    container["args"].append("--device=cuda:0" if gpu_name else "--device=cpu")
    if gpu_name:
        container["resources"] = {"limits": {gpu_name: 1}}
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    variants = [("azureml", scripts), ("gpu", gpu_name), ("grpc", protocol == "grpc")]
    name = "-".join(["stoker", *(word for word, chosen in variants if chosen)])
    return [
        manifest(
            "serving.kserve.io/v1alpha1",
            "ClusterServingRuntime",
            {"name": name, "labels": {"app.kubernetes.io/name": "stoker"}},
            spec=spec,
        )
    ]


def _container(image: str, scripts: bool, protocol: str) -> dict[str, Any]:
    args = ["/mnt/models/score.py" if scripts else "/mnt/models", "--name={{.Name}}", "--no-auth"]
    args.append(f"--port={_HTTP_PORT}")
    if scripts:
        args.append("--model-dir=/mnt/models")
    port: dict[str, Any] = {"containerPort": _HTTP_PORT, "protocol": "TCP"}
    if protocol == "grpc":
        args.append(f"--grpc-port={_GRPC_PORT}")
        # KServe reads HTTP/2 without TLS from the port's name.
        port = {"name": "h2c", "containerPort": _GRPC_PORT, "protocol": "TCP"}
    return {
        "name": "kserve-container",
        "image": image,
        "args": args,
        "env": [
            {"name": "STOKER_HOST", "value": "0.0.0.0"},  # noqa: S104  # a pod's address is its own
            {"name": "STOKER_WORKSPACE", "value": WORKSPACE},
            # It has no keys, and KServe reaches it by names that are not known here.
            {"name": "STOKER_ALLOWED_HOSTS", "value": "*"},
            HOME_VARIABLE,
        ],
        "ports": [port],
        "startupProbe": {**_READY, "failureThreshold": _LOOKS},
        # KServe's own probe would only test the port.
        "readinessProbe": {**_READY, "failureThreshold": 1},
        "livenessProbe": {**_LIVE, "failureThreshold": 3},
        # A runtime has no security context for pods, so the container has all fields except those about files.
        "securityContext": {**_USER, **CONTAINER_SECURITY},
        "volumeMounts": mounts_of(_VOLUMES),
    }


def _formats(scripts: bool) -> list[dict[str, Any]]:
    if scripts:
        return [{"name": "azureml", "version": "1"}]
    return [
        {"name": name, "version": version, "autoSelect": True, "priority": 2}
        for name, version in (("onnx", "1"), ("tensorflow", "2"))
    ]
