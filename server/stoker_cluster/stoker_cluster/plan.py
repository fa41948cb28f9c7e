"""The plan of a service in a cluster: frozen, and checked once. All objects follow from it and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from stoker.errors import InvalidSettings
from stoker.settings.readers import choice_of, number_of, read_switch, setting
from stoker_cluster.readers import (
    read_claim,
    read_count_or_share,
    read_gateway,
    read_label,
    read_labels_by_name,
    read_models_place,
    read_object_name,
    read_object_names,
    read_resource,
    read_tolerations,
    read_traffic,
    read_word,
)
from stoker_cluster.traffic_shares import effective_weights

Autoscaler = Literal["stoker", "hpa", "keda", "none"]
"""The autoscaler: Stoker's, Kubernetes' HorizontalPodAutoscaler, KEDA, or one that the plan does not make."""

_REPLICAS: Final = number_of(int, 1, 10_000)
_SECONDS: Final = number_of(int, 1, 86_400)
_CORES: Final = number_of(float, 0.001, 10_000)
_GB: Final = number_of(float, 0.001, 100_000)
_AUTOSCALING: Final = ("min_replicas", "max_replicas", "target_utilization", "autoscale_refresh_s")
_GPU_RESOURCE: Final = "nvidia.com/gpu"
_LONGEST_NAME: Final = 50
_OF_THE_ROUTER: Final = ("router", "servers")

WORKSPACE_GB: Final = 20
"""Disk of a pod for its workspace, in GB."""

_LEAST_MEMORY_GB: Final = 0.1
"""Memory of the processes of a server with one frontend, without the model, in GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """A service in a cluster.

    The first fields are what can be set, by an option of `stoker kubernetes`, and by a key below `kubernetes` in the
    deployment file.

    Attributes:
        serves: The models, each as the pod's deployment file has it; paths are those in the pod.
        server: Settings of the server, as the deployment file has them.
        model_defaults: Default settings of the models.
        primary_key, secondary_key: Keys that were given; without them the Secret has to be there.
        tags, properties: What Azure keeps beside a service.
        description: What the service is for.
        compute_target: The compute target that it was planned for.
        version_type: Whether a version is the one that others are compared with.
        notes: Lines for the operator.

    Raises:
        InvalidSettings: Two of them contradict each other; the message says what to do.
    """

    name: str = setting(
        "",
        read_object_name,
        "name of the service and its objects (default: the one that stoker serve gives the only model)",
        "NAME",
    )
    image: str = setting("", read_word, "image of the pods", "IMAGE")
    namespace: str | None = setting(None, read_label, "namespace (default: the context's)", "NAME")
    create_namespace: bool = setting(
        False, read_switch, "create the namespace, with the restricted Pod Security profile", "BOOL"
    )
    image_pull_secrets: tuple[str, ...] = setting(
        (), read_object_names, "Secrets with credentials of the image's registry, with commas", "NAMES"
    )
    models: str = setting(
        "image",
        read_models_place,
        "source of the models: image, pvc://CLAIM/PATH, or oci://REFERENCE@sha256:DIGEST",
        "PLACE",
    )
    replicas: int | None = setting(None, _REPLICAS, "number of pods (default 1)")
    autoscaler: Autoscaler | None = setting(
        None,
        choice_of("stoker", "hpa", "keda", "none"),
        "autoscaler: stoker, hpa, keda, or none for one of your own (default: a fixed number of pods)",
        "WHO",
    )
    min_replicas: int | None = setting(
        None, number_of(int, 0, 10_000), "minimum pods of an autoscaler, 0 with a router (default 1)"
    )
    max_replicas: int | None = setting(None, _REPLICAS, "maximum pods of an autoscaler (default 10)")
    target_utilization: int | None = setting(
        None, number_of(int, 1, 100), "target load of pods for an autoscaler, in percent (default 70)"
    )
    autoscale_refresh_s: int | None = setting(
        None, _SECONDS, "interval of the autoscaler, where it has this setting (default 1)"
    )
    cpu_cores: float | None = setting(None, _CORES, "CPU request of a pod, in cores", "CORES")
    memory_gb: float | None = setting(None, _GB, "memory request of a pod, in GB (10⁹ bytes)", "GB")
    cpu_cores_limit: float | None = setting(None, _CORES, "CPU limit of a pod, in cores", "CORES")
    memory_gb_limit: float | None = setting(None, _GB, "memory limit of a pod, in GB (10⁹ bytes)", "GB")
    workspace_gb: float = setting(
        WORKSPACE_GB,
        _GB,
        "disk of a pod for its workspace, such as fetched models, in GB",
        "GB",
    )
    gpus: int | None = setting(
        None, number_of(int, 0, 64), "GPUs of a pod (default: 1 with --gpu-resource or --dra, else 0)"
    )
    gpu_resource: str | None = setting(
        None, read_resource, "resource name of the GPUs (default nvidia.com/gpu)", "NAME"
    )
    dra: str | None = setting(
        None, read_claim, "device class of GPUs for dynamic resource allocation", "CLASS"
    )
    spare_gpus: int = setting(
        0, number_of(int, 0, 10_000), "free GPUs for a rollout; without them pods stop before new ones start"
    )
    max_unavailable: int | str | None = setting(
        None,
        read_count_or_share,
        "pods, or percentage of them, that a rollout may stop at once (default 1, or 10% from 20 on; 0 without GPUs)",
    )
    collect_to: str | None = setting(None, read_claim, "claim for collected data, a folder per pod", "CLAIM")
    later_to: str | None = setting(None, read_claim, "claim for answers later, shared by all pods", "CLAIM")
    grpc: bool = setting(False, read_switch, "serve gRPC on port 9000 of pods and Service", "BOOL")
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = setting(
        "ClusterIP", choice_of("ClusterIP", "NodePort", "LoadBalancer"), "type of the Service", "TYPE"
    )
    gateway: str | None = setting(None, read_gateway, "Gateway of the HTTPRoute", "NAMESPACE/NAME")
    router: bool = setting(False, read_switch, "put a router, HAProxy in two pods, before the pods", "BOOL")
    router_image: str | None = setting(
        None,
        read_word,
        "image of the router's pods (default: their current one, at first the pods' image)",
        "IMAGE",
    )
    hostnames: tuple[str, ...] = setting(
        (),
        read_object_names,
        "hosts of the route, with commas (default: all, with the service in the path)",
        "HOSTS",
    )
    version_name: str | None = setting(
        None, read_object_name, "version of the endpoint NAME that these pods serve", "VERSION"
    )
    traffic: Mapping[str, float] | None = setting(
        None, read_traffic, "percentages of the endpoint's versions: a=80,b=20", "SHARES"
    )
    default_version: str | None = setting(
        None, read_object_name, "version that gets the rest up to 100 (default: the first)", "VERSION"
    )
    network_policy: bool = setting(
        True, read_switch, "limit with a NetworkPolicy who reaches the pods (default: yes)", "BOOL"
    )
    allow_from: tuple[str, ...] = setting(
        (),
        read_object_names,
        "further namespaces that may reach the pods, such as that of monitoring",
        "NAMES",
    )
    allow_egress: bool = setting(False, read_switch, "pods may open connections (default: no)", "BOOL")
    pod_monitor: bool = setting(
        False, read_switch, "create a PodMonitor for Prometheus' operator (default: no)", "BOOL"
    )
    node_selector: Mapping[str, str] | None = setting(
        None, read_labels_by_name, "labels of the nodes for the pods: NAME=VALUE, with commas", "LABELS"
    )
    tolerations: tuple[str, ...] = setting(
        (), read_tolerations, "tolerated taints: NAME[=VALUE][:EFFECT], with commas", "TAINTS"
    )
    runtime_class: str | None = setting(None, read_claim, "RuntimeClass of the pods, such as nvidia", "NAME")
    liveness_initial_delay_s: int | None = setting(
        None, _SECONDS, "delay of the first liveness probe after the pod has started to answer", "S"
    )
    liveness_period_s: int = setting(10, _SECONDS, "interval of liveness probes", "S")
    liveness_timeout_s: int = setting(2, _SECONDS, "timeout of a liveness probe", "S")
    liveness_failures: int = setting(3, _SECONDS, "failed liveness probes in a row that restart a pod")

    serves: tuple[Mapping[str, Any], ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    model_defaults: Mapping[str, Any] = field(default_factory=dict)
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None
    compute_target: str | None = None
    version_type: Literal["control", "treatment"] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for contradiction in _contradictions(self):
            raise InvalidSettings(contradiction)

    @property
    def instance(self) -> str:
        """The name of the Deployment: the service, or NAME-VERSION of an endpoint."""
        return self.name if self.version_name is None else f"{self.name}-{self.version_name}"

    @property
    def servers_service(self) -> str:
        """The Service of the pods; with a router, the Service with the plain name is the router's."""
        return f"{self.name}-servers" if self.router and self.version_name is None else self.instance

    @property
    def keys_secret(self) -> str:
        """The Secret with the keys; all versions of an endpoint have one."""
        return f"{self.name}-keys"

    @property
    def autoscaler_name(self) -> str:
        """The name of Stoker's autoscaler, its account and role."""
        return f"{self.instance}-autoscaler"

    @property
    def takes_keys(self) -> bool:
        """Whether callers send keys or tokens."""
        return bool(self.server.get("auth", True) or self.server.get("token_auth", False))

    @property
    def services(self) -> tuple[str, ...]:
        """Names under which callers reach the models and their pipelines."""
        models = (str(model.get("name", self.name)) for model in self.serves)
        return tuple(dict.fromkeys((*models, *self.server.get("pipelines", ()))))

    @property
    def fixed_replicas(self) -> int | None:
        """The fixed number of pods; None with an autoscaler."""
        return None if self.autoscaler is not None else self.replicas or 1

    @property
    def most_replicas(self) -> int:
        """How many pods there can be."""
        return self.fixed_replicas or self.scaling_range[1]

    @property
    def scaling_range(self) -> tuple[int, int]:
        """Fewest and most pods of an autoscaler; by default Azure's."""
        fewest = 1 if self.min_replicas is None else self.min_replicas
        return fewest, max(fewest, 10) if self.max_replicas is None else self.max_replicas

    @property
    def gpu_count(self) -> int:
        """GPUs of a pod."""
        return int(bool(self.gpu_resource or self.dra)) if self.gpus is None else self.gpus

    @property
    def gpu_name(self) -> str:
        """The resource name of the GPUs."""
        return self.gpu_resource or _GPU_RESOURCE

    @property
    def surge(self) -> int:
        """Pods that a rollout may start before others are gone."""
        return self.spare_gpus // self.gpu_count if self.gpu_count else 1

    @property
    def grpc_port(self) -> int:
        """The port for gRPC; 0 without."""
        return int(self.server.get("grpc_port", 0)) or (9000 if self.grpc else 0)

    @property
    def timeout_s(self) -> float:
        """The longest timeout of requests."""
        of_all = self.server.get("timeout_ms", 60_000)
        return max((float(m.get("timeout_ms", of_all)) for m in self.serves), default=float(of_all)) / 1000

    @property
    def load_timeout_s(self) -> float:
        """Longest time until the models are loaded, one after the other."""
        of_all = self.server.get("load_timeout_s", 600)
        return sum(float(m.get("load_timeout_s", of_all)) for m in self.serves)


def _contradictions(plan: ClusterPlan) -> Iterator[str]:
    if not plan.name:
        yield "the service has no name; give it with --name"
    if not plan.image:
        yield "no image is named; say with --image what the pods run"
    if not plan.serves:
        yield "nothing is served; name a model's path, or list models in the deployment file"
    if len(plan.instance) > _LONGEST_NAME:
        yield f"{plan.instance} is too long for the names of objects; have at most {_LONGEST_NAME} characters"
    if plan.create_namespace and plan.namespace is None:
        yield "create_namespace needs the namespace; give it with --namespace"
    if plan.router and plan.grpc_port:
        yield "the router speaks no gRPC; leave out gRPC, or let a Gateway lead to the pods instead of --router"
    if plan.router_image and not plan.router:
        yield "router_image is that of a router's pods; leave it out, or have a --router"
    if plan.hostnames and plan.gateway is None:
        yield "hostnames are those of a route; give its Gateway with --gateway NAMESPACE/NAME"
    yield from _scaling_contradictions(plan)
    yield from _resource_contradictions(plan)
    yield from _rollout_contradictions(plan)
    yield from _version_contradictions(plan)
    yield from _pod_contradictions(plan)


def _scaling_contradictions(plan: ClusterPlan) -> Iterator[str]:
    if plan.autoscaler is None:
        for name in _AUTOSCALING:
            if getattr(plan, name) is not None:
                yield f"{name} must not be given unless an autoscaler is; give it with --autoscaler"
        return
    if plan.replicas is not None:
        yield f"replicas cannot be given beside autoscaler {plan.autoscaler}, which chooses them; leave one out"
    fewest, most = plan.scaling_range
    if fewest > most:
        yield f"min_replicas {fewest} must not be above max_replicas {most}"
    if not fewest and (plan.autoscaler != "stoker" or not plan.router or plan.version_name is not None):
        yield (
            "min_replicas 0 needs --autoscaler stoker and a --router, in which requests wait for the first pod, and "
            "no versions"
        )
    if plan.autoscaler == "keda" and plan.namespace is None:
        yield "KEDA finds pods by their namespace; give it with --namespace"
    if plan.autoscaler == "stoker" and plan.namespace is None:
        yield "rights are given to the autoscaler of a namespace; give it with --namespace"
    if plan.autoscaler == "keda" and plan.version_name is not None:
        yield (
            "KEDA cannot tell the versions of an endpoint apart, whose metrics have the same names; use "
            "--autoscaler hpa"
        )
    if plan.autoscaler == "keda" and plan.server.get("metrics_auth"):
        yield "KEDA reads /metrics without a key; leave metrics_auth out, or use --autoscaler hpa"


def _resource_contradictions(plan: ClusterPlan) -> Iterator[str]:
    for name in ("cpu_cores", "memory_gb"):
        requested, limit = getattr(plan, name), getattr(plan, f"{name}_limit")
        if requested is not None and limit is not None and limit < requested:
            yield f"{name}_limit {limit:g} must be at least {name} {requested:g}"
    if plan.memory_gb_limit is not None and plan.memory_gb_limit < _LEAST_MEMORY_GB:
        yield (
            f"memory_gb_limit {plan.memory_gb_limit:g} is too little: the processes of a server need "
            f"{_LEAST_MEMORY_GB:g} GB before any model is loaded"
        )
    if plan.dra is not None and plan.gpu_resource is not None:
        yield "dra and gpu_resource are two ways to the same GPUs; leave one out"
    if plan.gpus == 0 and (plan.dra or plan.gpu_resource or plan.spare_gpus):
        yield "gpus 0 contradicts gpu_resource, dra and spare_gpus; leave those out"
    if "mig" in plan.gpu_name and plan.gpu_count > 1:
        yield f"a process uses one MIG device; have one {plan.gpu_name} a pod and more replicas"
    devices = plan.server.get("device", ())
    if plan.gpu_count == 0 and any(str(device).startswith("cuda") for device in devices):
        yield f"device {','.join(devices)} needs GPUs; give them with --gpus"


def _rollout_contradictions(plan: ClusterPlan) -> Iterator[str]:
    if plan.spare_gpus and plan.spare_gpus < plan.gpu_count:
        yield f"spare_gpus {plan.spare_gpus} are too few for a pod, which has {plan.gpu_count}"
    if plan.spare_gpus and not plan.gpu_count:
        yield "spare_gpus are of pods with GPUs; give those with --gpus"
    if plan.surge == 0 and plan.max_unavailable in (0, "0%"):
        yield "max_unavailable 0 needs a GPU to spare for each rollout; say so with --spare-gpus"


def _version_contradictions(plan: ClusterPlan) -> Iterator[str]:
    if plan.version_name is None:
        if plan.traffic or plan.default_version:
            yield "traffic and default_version are of an endpoint's versions; say which this is with --version-name"
        return
    if plan.gateway is None and not plan.router:
        yield (
            "a Service cannot split requests by weights; name a Gateway that can with --gateway NAMESPACE/NAME, or "
            "have a --router"
        )
    if plan.router and plan.version_name in _OF_THE_ROUTER:
        yield f"{plan.instance} is what the router's own objects are called; call the version otherwise"
    traffic = plan.traffic or {plan.version_name: 100.0}
    if plan.version_name not in traffic:
        yield f"traffic has no {plan.version_name}, which these pods are; name all versions, those with 0 too"
    # It refuses what cannot be kept exactly.
    effective_weights(traffic, plan.default_version)


def _pod_contradictions(plan: ClusterPlan) -> Iterator[str]:
    if plan.server.get("collect") and plan.collect_to is None:
        yield "what is collected would end with its pod; name a claim with --collect-to"
    if plan.server.get("later_mb") and plan.later_to is None:
        yield "requests that are answered later would end with their pod; name a claim with --later-to"
    if plan.later_to is not None and not plan.server.get("later_mb"):
        yield "later_to is of requests that are answered later; give them room with later_mb in the deployment file"
    if plan.primary_key or plan.secondary_key:
        if not plan.takes_keys:
            yield "keys are given, but none are asked for; leave out the keys, or auth false"
        if plan.server.get("token_auth"):
            yield (
                f"the Secret of a service with tokens has the secret that signs them too: make {plan.keys_secret} "
                "yourself and leave the keys out"
            )
