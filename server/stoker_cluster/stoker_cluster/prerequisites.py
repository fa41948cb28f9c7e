"""The parts of a cluster that a plan needs and does not create, in sentences for the operator."""

from __future__ import annotations

from collections.abc import Iterator

from stoker_cluster.objects.volumes import claim_of
from stoker_cluster.plan import ClusterPlan


def list_prerequisites(plan: ClusterPlan) -> Iterator[str]:
    """Yield a sentence for each option of the plan that the cluster must be prepared for."""
    yield from _monitoring_needs(plan)
    if plan.autoscaler == "hpa":
        yield "--autoscaler hpa needs a server of custom metrics, such as prometheus-adapter, that has stoker_load"
    if plan.autoscaler == "keda":
        yield "--autoscaler keda needs KEDA in the namespace keda"
    if plan.gateway is not None:
        yield f"--gateway needs the Gateway API, and the Gateway {plan.gateway} must allow routes of this namespace"
    if plan.dra is not None:
        yield f"--dra needs the driver that offers the device class {plan.dra} (Kubernetes 1.34 or newer)"
    elif plan.gpu_count:
        yield f"GPUs need the device plugin that offers {plan.gpu_name}"
    if plan.models.startswith("oci://"):
        yield "models of oci:// need image volumes (Kubernetes 1.35, or their feature gate)"
    if plan.runtime_class is not None:
        yield f"--runtime-class needs the RuntimeClass {plan.runtime_class}"
    for option, claim in (
        ("--models", claim_of(plan.models)[0]),
        ("--collect-to", plan.collect_to),
        ("--later-to", plan.later_to),
    ):
        if claim:
            yield f"{option} needs the PersistentVolumeClaim {claim}"
    if plan.image_pull_secrets:
        yield f"--image-pull-secrets needs the Secrets {', '.join(plan.image_pull_secrets)}"


def _monitoring_needs(plan: ClusterPlan) -> Iterator[str]:
    if plan.pod_monitor:
        yield "--pod-monitor needs Prometheus' operator, and a Prometheus that selects PodMonitors of this namespace"
    is_scraped = plan.pod_monitor or plan.autoscaler == "hpa"
    admits_others = not plan.network_policy or plan.service_type != "ClusterIP" or plan.allow_from
    if is_scraped and not admits_others:
        yield (
            "the NetworkPolicy admits no Prometheus of another namespace to /metrics; name its namespace with "
            "--allow-from"
        )
