"""What the console shows of models: their versions, and all that a frontend knows of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stoker.gateway.describing.model_config import platform
from stoker.gateway.gateway import SERVICE_PATH
from stoker.wire.oip_tensors import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.scoring.service import Service
    from stoker.gateway.served_models import ServedModel
    from stoker.metrics.totals import Totals
    from stoker.tensors import TensorInfo

__all__ = ["describe_models"]


def describe_models(gateway: Gateway) -> list[dict[str, Any]]:
    """Return all models with all versions that have been served, as JSON has it."""
    totals = gateway.metrics.totals()
    return [_model(totals, name, model) for name, model in gateway.models.items()]


def _model(totals: Totals, name: str, model: ServedModel) -> dict[str, Any]:
    versions = []
    for number, version in model.versions.items():
        standing = version.standing
        shown: dict[str, Any] = {
            "version": number,
            "state": standing.state,
            "reason": standing.reason,
            "error": standing.error,
        }
        if version.service is not None:
            counters = totals.model(standing.slot)
            shown |= _service(version.service)
            shown |= {
                "ready": version.service.ready,
                "replicas": counters.ready_replicas,
                "batch_cap_rows": counters.batch_cap_rows,
            }
        versions.append(shown)
    return {
        "name": name,
        "default": model.default,
        "labels": dict(model.labels),
        "weights": {} if model.split is None else dict(model.split.weights),
        "path": f"{SERVICE_PATH}{quote(name)}/score",
        "versions": versions,
    }


def _service(service: Service) -> dict[str, Any]:
    facts, signature = service.facts, service.signature
    hosting = facts.hosting
    shown: dict[str, Any] = {
        "framework": facts.framework,
        "platform": platform(facts.framework),
        "description": facts.description,
        "devices": list(hosting.devices),
        "instances": hosting.instances,
        "max_batch_rows": hosting.max_batch_rows,
        "max_delay_ms": hosting.max_delay_ms,
        "buckets": None if hosting.buckets is None else list(hosting.buckets),
        "precision": hosting.precision,
        "origin": dict(hosting.origin),
        "images": service.images is not None,
        "sequences": signature is not None and signature.sequences,
        "takes": None,
        "inputs": [],
        "outputs": [],
        "batching": None,
    }
    if signature is None:
        return shown
    tensors, script = signature.model_tensors, signature.script
    shown["takes"] = signature.takes
    if tensors is not None:
        shown |= {"inputs": _sides(tensors.inputs), "outputs": _sides(tensors.outputs)}
    if script is not None:
        shown["batching"] = {"how": script.batching, "reason": script.batching_reason}
        shown["example"] = (script.input_schema or {}).get("example")
    elif signature.verdict is not None:
        shown["batching"] = {"how": str(signature.verdict), **signature.verdict.to_json()}
    return shown


def _sides(infos: Sequence[TensorInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": info.name,
            "datatype": DATATYPES[info.dtype],
            "shape": list(info.shape),
            "labels": list(info.labels),
        }
        for info in infos
    ]
