"""The configuration of a model as Triton has it, made from what the model is: the model configuration extension.

See `model_config.proto` of Triton Inference Server for the fields; those that say nothing here are left out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import NotReady
from stoker.wire.oip_tensors import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.gateway.scoring.service import Service
    from stoker.hosting import Hosting
    from stoker.tensors import ModelTensors, TensorInfo

__all__ = ["model_config", "platform"]

_PLATFORMS: Final = {
    "onnx": ("onnxruntime_onnx", "onnxruntime"),
    "tensorflow": ("tensorflow_savedmodel", "tensorflow"),
    "script": ("stoker_script", "python"),
}


def platform(framework: str) -> str:
    """Return the protocol's name of a framework."""
    return _PLATFORMS.get(framework, (framework, ""))[0]


def model_config(service: Service, versions: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a served version, as JSON has it.

    Args:
        service: The version.
        versions: All versions of the model that are served.

    Raises:
        NotReady: Its model has not been loaded yet, so its tensors are not known.
    """
    facts, signature = service.facts, service.signature
    if signature is None:
        raise NotReady(f"Model '{service.name}' is not ready.", retry_after_s=1)
    tensors = signature.model_tensors
    batched = tensors is None or tensors.batched
    # Requests for whole bodies have no rows.
    rows = facts.hosting.max_batch_rows if tensors is not None and batched else 0
    config = {
        "name": service.name,
        "platform": platform(facts.framework),
        "backend": _PLATFORMS.get(facts.framework, ("", facts.framework))[1],
        "version_policy": {"specific": {"versions": sorted(map(int, versions))}},
        "max_batch_size": rows,
        "input": [] if tensors is None else _sides(tensors, tensors.inputs, {"format": "FORMAT_NONE"}),
        "output": [] if tensors is None else _sides(tensors, tensors.outputs, {"label_filename": ""}),
        "instance_group": _instance_groups(service.name, facts.hosting),
        "model_transaction_policy": {"decoupled": False},
    }
    if rows and (signature.verdict is None or signature.verdict.batched):
        config["dynamic_batching"] = {
            "preferred_batch_size": list(facts.hosting.buckets or ()),
            "max_queue_delay_microseconds": round(facts.hosting.max_delay_ms * 1000),
        }
    return config


def _sides(tensors: ModelTensors, infos: Sequence[TensorInfo], more: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": info.name, "data_type": _data_type(info), **more, **_dims(info, tensors.batched)}
        for info in infos
    ]


def _data_type(info: TensorInfo) -> str:
    datatype = DATATYPES[info.dtype]
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _dims(info: TensorInfo, batched: bool) -> dict[str, Any]:
    """The sizes of one row, or of all where there are no rows. No list of sizes is empty in Triton."""
    dims = [-1] if info.any_rank else list(info.shape[1:] if batched else info.shape)
    return {"dims": dims} if dims else {"dims": [1], "reshape": {"shape": []}}


def _instance_groups(name: str, hosting: Hosting) -> list[dict[str, Any]]:
    """A group for each device, of as many instances as all its replicas have there."""
    groups = []
    for number, (device, replicas) in enumerate(Counter(hosting.devices).items()):
        group: dict[str, Any] = {"name": f"{name}_{number}", "kind": _kind(device)}
        if hosting.instances is not None:
            group["count"] = replicas * hosting.instances
        if device.startswith("cuda:"):
            group["gpus"] = [int(device.removeprefix("cuda:"))]
        groups.append(group)
    return groups


def _kind(device: str) -> str:
    return {"auto": "KIND_AUTO", "cpu": "KIND_CPU"}.get(device, "KIND_GPU")
