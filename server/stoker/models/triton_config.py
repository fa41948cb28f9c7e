"""Triton's `config.pbtxt` as settings: fields that count, that only change the speed, or that are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker.deployment import Declaration, WarmUpRequest
from stoker.errors import RepositoryError
from stoker.models.frameworks import Framework
from stoker.models.pbtxt_fields import Fields, InvalidField, read_fields
from stoker.models.triton_batching import batching_settings, version_settings
from stoker.models.triton_sequences import sequence_settings
from stoker.models.triton_tensors import read_tensor
from stoker.models.triton_warm_up import read_warm_up
from stoker.settings.model import ModelSettings, model_settings
from stoker.wire.datatypes import TRITON_DTYPES

CONFIG_FILE: Final = "config.pbtxt"

_FRAMEWORKS: Final[Mapping[str, Framework]] = {
    "onnxruntime": "onnx",
    "onnxruntime_onnx": "onnx",
    "tensorflow": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "pytorch": "torch",
    "pytorch_libtorch": "torch",
    "python": "script",
}
_INSTEAD: Final = {
    "ensemble": "write its steps under pipelines: in the deployment file",
    "tensorrt_plan": "serve the ONNX file that it was built of, with provider: tensorrt",
    "tensorrt": "serve the ONNX file that it was built of, with provider: tensorrt",
    "tensorflow_graphdef": "export the model as a SavedModel",
}
_THREADS: Final = ("intra_op_thread_count", "TF_NUM_INTRA_THREADS")
_PASSED_OVER: Final = {
    "runtime": "",
    "optimization": "provider, precision, execution and xla are the settings for that",
    "metric_tags": "",
    "model_transaction_policy": "each request has one answer, but for a score.py whose run yields",
    "response_cache": "answers are kept with the setting cache_mb",
    "model_metrics": "",
}
"""Fields that no answer depends on, each with the setting that has an effect instead."""
_REFUSED: Final = {
    "batch_input": "export the model without the inputs that the server makes",
    "batch_output": "export the model with an entry of each output for each row",
    "cc_model_filenames": "name the file for this machine with default_model_filename",
    "model_operations": "load the libraries in the init() of a score.py",
    "model_repository_agents": "registered models have checksums; unpack or decrypt files before they are served",
}
"""Fields that answers depend on, which are refused, each with the way to do without."""
_REFUSED_OF_PYTHON: Final = {
    "model_transaction_policy": "a score.py whose run yields answers in pieces",
    "sequence_batching": "a score.py is given the state of sequences",
}
"""Further fields that are refused beside a `model.py`."""
_GRAPH_TAG: Final = "serve"
"""The tag of the only graph of a SavedModel that is loaded."""
_READ: Final = (
    "name", "platform", "backend", "max_batch_size", "input", "output", "version_policy", "dynamic_batching",
    "instance_group", "model_warmup", "default_model_filename", "parameters", "ensemble_scheduling",
    "sequence_batching",
)  # fmt: skip


class TritonConfig(Struct, frozen=True):
    """The configuration of a model.

    Attributes:
        framework: The framework of the model's files; None if the configuration does not say it.
        filename: The file or folder of the model within a version's folder; None for the conventional ones.
        settings: Its content as settings, which the operator's settings overrule.
        warm_up: Requests for the warm-up.
        notes: A line for the operator about each field that is ignored because no answer depends on it.
        model_config: The configuration as JSON, which a `model.py` of Triton's Python backend gets; empty for others.
    """

    framework: Framework | None
    filename: str | None
    settings: ModelSettings
    declaration: Declaration
    warm_up: tuple[WarmUpRequest, ...]
    notes: tuple[str, ...]
    model_config: str = ""


def read_triton_config(base: Path) -> TritonConfig | None:
    """Read the configuration in the folder of a model; None if there is none."""
    file = base / CONFIG_FILE
    source = f"{CONFIG_FILE} of {base.name}"
    try:
        # Other kinds of files are refused below: without its configuration the model would give other answers.
        if not os.path.lexists(file):
            return None
    except OSError as error:
        raise RepositoryError(f"{source} cannot be read: {error}") from error
    return read_fields(file, source, lambda fields: _config(fields, source, base), RepositoryError)


def _config(fields: Fields, source: str, base: Path) -> TritonConfig:
    fields.check_known(*_READ, *_PASSED_OVER, *_REFUSED)
    name = fields.text("name")
    if name not in (None, base.name):
        raise InvalidField(f"its name is {name!r}, and its folder is {base.name}; give both the same name")
    framework = _framework(fields)
    rows = fields.number("max_batch_size")
    batched = None if rows is None else rows > 0
    notes: list[str] = []

    def pass_over(field: str, instead: str = "") -> None:
        notes.append(f"{source}: {field} is passed over{instead and f': {instead}'}")

    is_python = framework == "script"
    for field, instead in (_REFUSED | (_REFUSED_OF_PYTHON if is_python else {})).items():
        if fields.has(field) and not _is_off(fields, field):
            raise InvalidField(f"{field} is not offered: {instead}")
    for field, instead in _PASSED_OVER.items():
        if fields.has(field) and not _is_off(fields, field):
            pass_over(field, instead)
    inputs, outputs = (
        tuple(
            read_tensor(one, pass_over, base, batched=bool(batched), is_python=is_python)
            for one in fields.messages(side)
        )
        for side in ("input", "output")
    )
    declaration = Declaration(source, inputs, outputs, batched)
    settings = {
        **version_settings(fields, "version_policy"),
        **batching_settings(fields, pass_over),
        **sequence_settings(fields, declaration.inputs, pass_over, base),
        **({} if is_python else _parameters(fields, framework, pass_over)),
    }
    if is_python and "instances" in settings:
        # Its instances are processes, as in Triton.
        settings["replicas"] = settings.pop("instances") * len(settings.get("device", [""]))
    return TritonConfig(
        framework,
        _filename(fields),
        model_settings(settings, source),
        declaration,
        tuple(read_warm_up(one, base) for one in fields.messages("model_warmup")),
        tuple(notes),
        _model_config(fields, base, declaration) if is_python else "",
    )


def _model_config(fields: Fields, base: Path, declaration: Declaration) -> str:
    """Return the configuration that Triton gives a `model.py`."""
    first = int(bool(declaration.batched))
    data_types = {dtype: data_type for data_type, dtype in TRITON_DTYPES.items()}
    sides = {
        side: [
            {
                "name": one.name,
                "data_type": data_types[one.dtype],
                "dims": list(one.shape[first:]),
                **({"optional": True} if tensor.flag("optional") else {}),
            }
            for one, tensor in zip(declared, fields.messages(side), strict=True)
        ]
        for side, declared in (("input", declaration.inputs), ("output", declaration.outputs))
    }
    batching = fields.message("dynamic_batching")
    delay_us = 0 if batching is None else batching.number("max_queue_delay_microseconds") or 0
    groups = [
        {"kind": one.identifier("kind") or "KIND_AUTO", "count": one.number("count") or 1}
        | {"gpus": list(one.sizes("gpus"))}
        for one in fields.messages("instance_group")
    ]
    config = {
        "name": base.name,
        "platform": "",
        "backend": "python",
        "max_batch_size": fields.number("max_batch_size") or 0,
        **sides,
        "instance_group": groups,
        "parameters": _own_parameters(fields),
        "model_transaction_policy": {"decoupled": False},
        **({} if batching is None else {"dynamic_batching": {"max_queue_delay_microseconds": delay_us}}),
    }
    return json.dumps(config)


def _own_parameters(fields: Fields) -> dict[str, dict[str, str]]:
    parameters = {}
    for entry in fields.messages("parameters"):
        key, value = entry.text("key") or "", entry.message("value")
        if key == "EXECUTION_ENV_PATH":
            raise InvalidField(
                "the parameter EXECUTION_ENV_PATH is not offered: list the packages in a requirements.txt or "
                "conda.yaml beside model.py, and set environment_managed: system"
            )
        parameters[key] = {"string_value": "" if value is None else value.text("string_value") or ""}
    return parameters


def _framework(fields: Fields) -> Framework | None:
    if fields.has("ensemble_scheduling"):
        raise InvalidField(f"ensemble_scheduling is not offered: {_INSTEAD['ensemble']}")
    frameworks = set()
    for field in ("platform", "backend"):
        named = fields.text(field)
        if named and named not in _FRAMEWORKS:
            instead = _INSTEAD.get(named, "load the model in a score.py")
            raise InvalidField(
                f"the {field} {named!r} is not offered, only onnxruntime, python, pytorch and tensorflow: {instead}"
            )
        frameworks |= {_FRAMEWORKS[named]} if named else set()
    if len(frameworks) > 1:
        raise InvalidField("platform and backend contradict each other; leave one of them out")
    return next(iter(frameworks), None)


def _is_off(fields: Fields, field: str) -> bool:
    """Whether a field only repeats the behaviour of the server."""
    switches = {"response_cache": "enable", "model_transaction_policy": "decoupled"}
    if field not in switches:
        return False
    return not any(one.flag(switches[field]) for one in fields.messages(field))


def _parameters(
    fields: Fields, framework: Framework | None, pass_over: Callable[..., None]
) -> dict[str, Any]:
    """Return parameters of Triton's backends as settings; other parameters change no answer."""
    settings: dict[str, Any] = {}
    for entry in fields.messages("parameters"):
        key, value = entry.text("key"), entry.message("value")
        text = "" if value is None else (value.text("string_value") or "").strip()
        if key in _THREADS and text.isdecimal():
            # In Triton 0 means the default.
            settings |= {"threads": int(text)} if int(text) else {}
        elif framework != "onnx" and key == "TF_SIGNATURE_DEF" and text:
            settings["signature"] = text
        elif framework != "onnx" and key == "TF_GRAPH_TAG" and text:
            if text != _GRAPH_TAG:
                raise InvalidField(f"the parameter TF_GRAPH_TAG is {text!r}: only {_GRAPH_TAG!r} is loaded")
        elif framework != "onnx" and key == "TF_INIT_OPS_FILE" and text:
            raise InvalidField(
                "the parameter TF_INIT_OPS_FILE is not offered: export the model with an initializer"
            )
        else:
            pass_over(f"the parameter {key}")
    return settings


def _filename(fields: Fields) -> str | None:
    name = fields.text("default_model_filename")
    if name and (name in (".", "..") or "/" in name):
        raise InvalidField(f"default_model_filename is {name!r}; it must be a name without a folder")
    return name or None
