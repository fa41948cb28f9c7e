"""The configuration of a model in Triton's form: the model configuration extension.

See `model_config.proto` of Triton Inference Server for the fields; those without a meaning here are left out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import NotReady
from stoker.gateway.pipelines.service import PipelineService
from stoker.sequence_steps import TEXT_IDS
from stoker.settings.readers import DEVICE_SEPARATOR
from stoker.wire.datatypes import DATATYPES
from stoker.wire.script_tensors import PIECE_TENSORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.deployment import Deployment
    from stoker.gateway.scoring.service import Service
    from stoker.models.pipelines import JoinedPipeline
    from stoker.sequence_steps import Control
    from stoker.settings.choices import ControlKind
    from stoker.settings.sequence import SequenceSettings, StateTensor
    from stoker.tensors import ModelTensors, Signature, TensorInfo

_PLATFORMS: Final = {
    "onnx": ("onnxruntime_onnx", "onnxruntime"),
    "tensorflow": ("tensorflow_savedmodel", "tensorflow"),
    "script": ("stoker_script", "python"),
    "sklearn": ("sklearn_sklearn", "python"),
    "torch": ("pytorch_libtorch", "pytorch"),
    "pipeline": ("ensemble", ""),
}

_CONTROLS: Final[dict[ControlKind, str]] = {
    "start": "CONTROL_SEQUENCE_START",
    "end": "CONTROL_SEQUENCE_END",
    "ready": "CONTROL_SEQUENCE_READY",
    "id": "CONTROL_SEQUENCE_CORRID",
}


def platform(framework: str) -> str:
    """Return the protocol's name of a framework."""
    return _PLATFORMS.get(framework, (framework, ""))[0]


def describe_tensors(signature: Signature | None) -> ModelTensors | None:
    """Return the inputs and outputs that a model shows to callers; None for scripts that take whole bodies."""
    if signature is None:
        return None
    return PIECE_TENSORS if _yields(signature) else signature.model_tensors


def _yields(signature: Signature) -> bool:
    return signature.script is not None and signature.script.yields


def model_config(service: Service, versions: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a served version, as JSON has it; `versions` are all that are served."""
    facts, signature = service.facts, service.signature
    deployment = facts.deployment
    if signature is None:
        raise NotReady(f"Model '{service.name}' is not ready.", retry_after_s=1)
    tensors = describe_tensors(signature)
    batched = tensors is None or tensors.batched
    # Requests for whole bodies have no rows.
    rows = _most_rows(service) if tensors is not None and batched else 0
    config = {
        "name": service.name,
        "platform": platform(facts.framework),
        "backend": _PLATFORMS.get(facts.framework, ("", facts.framework))[1],
        "version_policy": {"specific": {"versions": sorted(map(int, versions))}},
        "max_batch_size": rows,
        "input": [] if tensors is None else _sides(tensors, tensors.inputs, {"format": "FORMAT_NONE"}),
        "output": [] if tensors is None else _sides(tensors, tensors.outputs, {"label_filename": ""}),
        "instance_group": [] if deployment is None else _instance_groups(deployment),
        "model_transaction_policy": {"decoupled": _yields(signature)},
    }
    if isinstance(service, PipelineService) and service.joined is not None:
        return config | {"ensemble_scheduling": {"step": _steps(service.joined)}}
    if deployment is None:
        return config
    if deployment.sequence is not None:
        config["sequence_batching"] = _sequence_batching(deployment, deployment.sequence, signature)
    elif rows and (signature.isolation is None or signature.isolation.batched):
        config["dynamic_batching"] = {
            "preferred_batch_size": list(deployment.batch_buckets or ()),
            "max_queue_delay_microseconds": round(deployment.max_delay_ms * 1000),
        }
    return config


def _most_rows(service: Service) -> int:
    """Return the most rows in one batch; of a pipeline, the least of its models."""
    steps = service.models if isinstance(service, PipelineService) else [service]
    deployments = (step.facts.deployment for step in steps)
    return min(1 if deployment is None else deployment.max_batch_rows for deployment in deployments)


def _steps(joined: JoinedPipeline) -> list[dict[str, Any]]:
    """Return the steps of a pipeline; Triton writes -1 for the default version."""
    return [
        {
            "model_name": step.model,
            "model_version": "-1" if step.version is None else str(step.version),
            "input_map": dict(links.takes),
            "output_map": dict(links.gives),
        }
        for step, links in zip(joined.pipeline.steps, joined.links, strict=True)
    ]


def _sequence_batching(
    deployment: Deployment, settings: SequenceSettings, signature: Signature
) -> dict[str, Any]:
    """Return the settings of sequences. A batch may have rows of any sequences, oldest first: Triton's `oldest`."""
    return {
        "max_sequence_idle_microseconds": round(settings.max_idle_s * 1e6),
        "oldest": {
            "max_candidate_sequences": settings.max_sequences,
            "preferred_batch_size": list(deployment.batch_buckets or ()),
            "max_queue_delay_microseconds": round(deployment.max_delay_ms * 1000),
        },
        "state": [
            {
                "input_name": state.input_name,
                "output_name": state.output_name,
                **({} if state.dims is None else {"dims": list(state.dims)}),
                **({} if state.initial is None else {"initial_state": [_initial_state(state)]}),
            }
            for state in settings.state
        ],
        **({"control_input": list(map(_control_input, signature.controls))} if signature.controls else {}),
    }


def _initial_state(state: StateTensor) -> dict[str, Any]:
    assert state.initial is not None, "the caller has looked"
    return {"name": state.initial.stem, "data_file": state.initial.name}


def _control_input(control: Control) -> dict[str, Any]:
    """Return a control input, which the server fills, with its values."""
    values: dict[str, Any] = {"kind": _CONTROLS[control.kind]}
    if control.kind == "id":
        values["data_type"] = "TYPE_STRING" if control.dtype == TEXT_IDS else f"TYPE_{control.dtype.upper()}"
    elif control.dtype == "float32":
        values["fp32_false_true"] = [control.off, control.on]
    elif control.dtype == "bool":
        values["bool_false_true"] = [bool(control.off), bool(control.on)]
    else:
        values["int32_false_true"] = [int(control.off), int(control.on)]
    return {"name": control.name, "control": [values]}


def _sides(tensors: ModelTensors, infos: Sequence[TensorInfo], more: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": info.name, "data_type": _data_type(info), **more, **_dims(info, tensors.batched)}
        | ({"optional": True} if info.optional else {})
        for info in infos
    ]


def _data_type(info: TensorInfo) -> str:
    datatype = DATATYPES[info.dtype]
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _dims(info: TensorInfo, batched: bool) -> dict[str, Any]:
    """Return the shape of a row, or of the tensor if it has no rows. Triton has no empty shapes."""
    dims = [-1] if info.any_rank else list(info.shape[1:] if batched else info.shape)
    return {"dims": dims} if dims else {"dims": [1], "reshape": {"shape": []}}


def _instance_groups(deployment: Deployment) -> list[dict[str, Any]]:
    """Return a group for each device, with the instances of all replicas on it."""
    groups = []
    for number, (device, replicas) in enumerate(Counter(deployment.devices).items()):
        group: dict[str, Any] = {"name": f"{deployment.name}_{number}", "kind": _kind(device)}
        if deployment.instances is not None:
            group["count"] = replicas * deployment.instances
        names = device.split(DEVICE_SEPARATOR)
        if all(name.startswith("cuda:") for name in names):
            group["gpus"] = [int(name.removeprefix("cuda:")) for name in names]
        groups.append(group)
    return groups


def _kind(device: str) -> str:
    return {"auto": "KIND_AUTO", "cpu": "KIND_CPU"}.get(device, "KIND_GPU")
