"""Triton's `config.pbtxt` as settings: what counts here, what only changes the speed, and what is refused."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stoker.deployment import Declaration, DeclaredTensor, WarmUpInput, WarmUpRequest
from stoker.errors import RepositoryError
from stoker.models.frameworks import Framework
from stoker.models.pbtxt import Fields, InvalidField, read_fields
from stoker.settings.model import ModelSettings, model_settings
from stoker.system.durable import read_regular

_NO_ITERATIONS: Final = "is not offered: a model that goes on by itself is a score.py whose run yields"
_KINDS: Final = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "id",
}
_FLAGS: Final = {"int32_false_true": "int32", "fp32_false_true": "float32", "bool_false_true": "bool"}
_IDS: Final = {
    "TYPE_UINT64": "uint64", "TYPE_INT64": "int64", "TYPE_UINT32": "uint32", "TYPE_INT32": "int32",
    "TYPE_STRING": "string",
}  # fmt: skip
_INITIAL_FOLDER: Final = "initial_state"
"""Where Triton looks for the files that states begin with, beside `config.pbtxt`."""


def sequence_settings(
    fields: Fields,
    inputs: Sequence[DeclaredTensor],
    dtypes: Mapping[str, str],
    pass_over: Callable[..., None],
    base: Path,
) -> dict[str, Any]:
    """Return the settings that a configuration makes; none if it says nothing of sequences.

    Args:
        inputs: The inputs that it declares; sizes that it fixes are those of a row.
        pass_over: Takes note of a field that has no effect, and of what has.
    """
    batching = fields.message("sequence_batching")
    if batching is None:
        return {}
    known = ("max_sequence_idle_microseconds", "direct", "oldest", "state", "control_input")
    batching.check_known(*known, "iterative_sequence")
    if batching.flag("iterative_sequence"):
        raise InvalidField(f"{batching.place}iterative_sequence {_NO_ITERATIONS}")
    whole = fields.number("max_batch_size") == 0
    states = [_state(one, dtypes, pass_over, base, whole=whole) for one in batching.messages("state")]
    controls = _controls(batching)
    if not states and not controls:
        raise InvalidField(f"{batching.place}state is missing: a model without it needs no sequences")
    taken = {*(state["input_name"] for state in states), *controls}
    # Where max_batch_size is said, 0 too, the first axis is that of the rows.
    first = int(fields.has("max_batch_size"))
    dims = {
        one.name: list((one.shape if one.model_shape is None else one.model_shape)[first:]) for one in inputs
    }
    sequence: dict[str, Any] = {
        "state": states,
        "dims": {
            name: sizes for name, sizes in dims.items() if name not in taken and min(sizes, default=0) > 0
        },
        "controls": controls,
    }
    idle_us = batching.number("max_sequence_idle_microseconds")
    if idle_us:
        sequence["max_idle_s"] = idle_us / 1e6
    return {"sequence": sequence, **_strategy(batching, sequence, pass_over)}


def _controls(batching: Fields) -> dict[str, dict[str, Any]]:
    listed = [_control(one) for one in batching.messages("control_input")]
    controls = dict(listed)
    if len(controls) < len(listed):
        raise InvalidField(f"{batching.place}control_input has two of one name")
    return controls


def _strategy(batching: Fields, sequence: dict[str, Any], pass_over: Callable[..., None]) -> dict[str, Any]:
    """Settings of how rows of sequences share batches; `sequence` receives how many of these there may be."""
    settings = {}
    for kind in ("direct", "oldest"):
        strategy = batching.message(kind)
        if strategy is None:
            continue
        delay_us = strategy.number("max_queue_delay_microseconds")
        if delay_us is not None:
            settings["max_delay_ms"] = delay_us / 1000
        if kind == "oldest" and (most := strategy.number("max_candidate_sequences")):
            sequence["max_sequences"] = most
        _pass_over_rest(strategy, kind, pass_over)
    return settings


def _state(
    fields: Fields, dtypes: Mapping[str, str], pass_over: Callable[..., None], base: Path, *, whole: bool
) -> dict[str, Any]:
    """A state; `whole` says that its dims have the batch axis too, whose size is 1 then."""
    passed = ("use_same_buffer_for_input_output", "use_growable_memory")
    fields.check_known("input_name", "output_name", "data_type", "dims", "initial_state", *passed)
    for field in passed:
        if fields.flag(field):
            pass_over(f"{fields.place}{field}")
    dims, data_type = fields.sizes("dims"), fields.identifier("data_type")
    if data_type is not None and data_type not in dtypes:
        raise InvalidField(f"{fields.place}data_type must be one of {', '.join(dtypes)}, not {data_type}")
    initials = fields.messages("initial_state")
    if len(initials) > 1:
        raise InvalidField(f"{fields.place}initial_state stands more than once")
    file = None
    for initial in initials:
        initial.check_known("name", "data_type", "dims", "zero_data", "data_file")
        for field, same in (
            ("data_type", initial.identifier("data_type") in (None, data_type)),
            ("dims", initial.sizes("dims") in ((), dims) or -1 in dims),
        ):
            if not same:
                raise InvalidField(f"{initial.place}{field} must be that of the state")
        file = initial.text("data_file")
        if file in (".", "..") or "/" in (file or ""):
            raise InvalidField(f"{initial.place}data_file is {file!r}; it must be a name without a folder")
    begins = {"initial": base.absolute() / _INITIAL_FOLDER / file} if file else {}
    named = {key: fields.text(key) for key in ("input_name", "output_name")}
    dtype = {} if data_type is None else {"dtype": dtypes[data_type]}
    axis = {}
    if whole and 1 in dims:
        one = dims.index(1)
        axis, dims = {"batch_axis": one}, (*dims[:one], *dims[one + 1 :])
    return {**named, **({"dims": list(dims)} if dims and min(dims) > 0 else {}), **axis, **dtype, **begins}


def _control(fields: Fields) -> tuple[str, dict[str, Any]]:
    """An input that the server fills, and with what."""
    fields.check_known("name", "control")
    name, controls = fields.text("name"), fields.messages("control")
    if not name or len(controls) != 1:
        raise InvalidField(f"{fields.place}name and one control are both needed")
    (control,) = controls
    control.check_known("kind", "data_type", *_FLAGS)
    kind = control.identifier("kind") or "CONTROL_SEQUENCE_START"
    if kind not in _KINDS:
        raise InvalidField(f"{control.place}kind must be one of {', '.join(_KINDS)}, not {kind}")
    if _KINDS[kind] == "id":
        data_type = control.identifier("data_type") or ""
        if data_type not in _IDS:
            raise InvalidField(f"{control.place}data_type must be one of {', '.join(_IDS)}")
        return name, {"is": "id", "dtype": _IDS[data_type]}
    said = [field for field in _FLAGS if control.has(field)]
    values = control.switches(said[0]) if len(said) == 1 else ()
    if len(values) != 2:
        raise InvalidField(f"{control.place}needs the two values of one of {', '.join(_FLAGS)}")
    return name, {"is": _KINDS[kind], "values": list(values), "dtype": _FLAGS[said[0]]}


def _pass_over_rest(strategy: Fields, kind: str, pass_over: Callable[..., None]) -> None:
    rest = ("preferred_batch_size", "preserve_ordering", "minimum_slot_utilization")
    strategy.check_known("max_queue_delay_microseconds", "max_candidate_sequences", *rest)
    for field in rest:
        if strategy.has(field):
            pass_over(f"sequence_batching.{kind}.{field}", "a batch leaves when the device is free")


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
_DTYPES: Final = {
    "TYPE_BOOL": "bool", "TYPE_UINT8": "uint8", "TYPE_UINT16": "uint16", "TYPE_UINT32": "uint32",
    "TYPE_UINT64": "uint64", "TYPE_INT8": "int8", "TYPE_INT16": "int16", "TYPE_INT32": "int32",
    "TYPE_INT64": "int64", "TYPE_FP16": "float16", "TYPE_BF16": "bfloat16", "TYPE_FP32": "float32",
    "TYPE_FP64": "float64", "TYPE_STRING": "string",
}  # fmt: skip
_MOST_BATCH_ROWS: Final = 65536
_MOST_ELEMENTS: Final = (1 << 31) - 1
_THREADS: Final = ("intra_op_thread_count", "TF_NUM_INTRA_THREADS")
_DEVICES: Final = {"KIND_CPU": ("cpu",)}
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
"""Fields that answers depend on and that are refused, each with what to do instead."""
_REFUSED_OF_PYTHON: Final = {
    "model_transaction_policy": "a score.py whose run yields answers in pieces",
    "sequence_batching": "a score.py is given the state of sequences",
}
"""Further fields that are refused beside a `model.py`."""
_REFUSED_OF_TENSORS: Final = {
    "is_shape_tensor": "shape tensors are TensorRT's: serve the ONNX file",
    "is_non_linear_format_io": "such formats are TensorRT's: serve the ONNX file",
    "allow_ragged_batch": "pad fills up free sizes, so that requests of different sizes share a batch",
    "optional": "export the model with the default value, or without the input",
}
_GRAPH_TAG: Final = "serve"
"""The tag of the only graph of a SavedModel that is loaded."""
_MOST_LABEL_BYTES: Final = 1 << 20
_MOST_LABEL_CHARACTERS: Final = 256
_READ: Final = (
    "name", "platform", "backend", "max_batch_size", "input", "output", "version_policy", "dynamic_batching",
    "instance_group", "model_warmup", "default_model_filename", "parameters", "ensemble_scheduling",
    "sequence_batching",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """The configuration of a model.

    Attributes:
        framework: What the model's files hold; None if that is not said.
        filename: The file or folder of the model within a version's folder; None for the conventional ones.
        settings: What it says as settings, which those of the operator are laid over.
        warm_up: Requests that it is to be warmed up with.
        notes: What is passed over because no answer depends on it, a line each for the operator.
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
        # Another kind of file is refused below: without its configuration the model would answer otherwise.
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
            _tensor(one, pass_over, base, batched=bool(batched), is_python=is_python)
            for one in fields.messages(side)
        )
        for side in ("input", "output")
    )
    declaration = Declaration(source, inputs, outputs, batched)
    settings = {
        **version_settings(fields, "version_policy"),
        **batching_settings(fields, pass_over),
        **sequence_settings(fields, declaration.inputs, _DTYPES, pass_over, base),
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
        tuple(_warm_up(one, base) for one in fields.messages("model_warmup")),
        tuple(notes),
        _model_config(fields, base, declaration) if is_python else "",
    )


def _model_config(fields: Fields, base: Path, declaration: Declaration) -> str:
    """Return what Triton gives a `model.py` as its configuration."""
    first = int(bool(declaration.batched))
    data_types = {dtype: data_type for data_type, dtype in _DTYPES.items()}
    sides = {
        side: [
            {
                "name": one.name,
                "data_type": data_types[one.dtype],
                "dims": list(one.shape[first:]),
                **({"optional": True} if said.flag("optional") else {}),
            }
            for one, said in zip(declared, fields.messages(side), strict=True)
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
        asked = fields.text(field)
        if asked and asked not in _FRAMEWORKS:
            instead = _INSTEAD.get(asked, "load the model in a score.py")
            raise InvalidField(
                f"the {field} {asked!r} is not offered, only onnxruntime, python, pytorch and tensorflow: {instead}"
            )
        frameworks |= {_FRAMEWORKS[asked]} if asked else set()
    if len(frameworks) > 1:
        raise InvalidField("platform and backend contradict each other; leave one of them out")
    return next(iter(frameworks), None)


def _is_off(fields: Fields, field: str) -> bool:
    """Whether a field says what is so anyway."""
    switches = {"response_cache": "enable", "model_transaction_policy": "decoupled"}
    if field not in switches:
        return False
    return not any(one.flag(switches[field]) for one in fields.messages(field))


def _tensor(
    fields: Fields, pass_over: Callable[[str], None], base: Path, *, batched: bool, is_python: bool = False
) -> DeclaredTensor:
    known = ("name", "data_type", "format", "dims", "reshape", "label_filename")
    fields.check_known(*known, *_REFUSED_OF_TENSORS)
    name, data_type = fields.text("name"), fields.identifier("data_type")
    if not name:
        raise InvalidField(f"{fields.place}name is missing")
    if data_type not in _DTYPES:
        dtypes = ", ".join(_DTYPES)
        raise InvalidField(f"{fields.place}data_type of {name} must be one of {dtypes}, not {data_type}")
    if not fields.has("dims"):
        raise InvalidField(f"{fields.place}dims of {name} are missing")
    for flag, instead in _REFUSED_OF_TENSORS.items():
        if fields.flag(flag) and not (is_python and flag == "optional"):
            raise InvalidField(f"{fields.place}{flag} of {name} is not offered: {instead}")
    if is_python and fields.has("reshape"):
        raise InvalidField(f"{fields.place}reshape of {name} is not offered: reshape it in execute")
    if fields.identifier("format") not in (None, "FORMAT_NONE"):
        pass_over(f"format of {name}")
    axis = (-1,) if batched else ()
    shape = fields.sizes("dims")
    if math.prod(size for size in shape if size > 0) > _MOST_ELEMENTS:
        raise InvalidField(f"{fields.place}dims of {name} hold more than {_MOST_ELEMENTS} elements")
    reshape = fields.message("reshape")
    model_shape = None if reshape is None else reshape.sizes("shape")
    if model_shape is not None and not _same_elements(shape, model_shape):
        raise InvalidField(
            f"{fields.place}reshape of {name}: {list(shape)} cannot become {list(model_shape)}"
        )
    reshaped = None if model_shape is None or model_shape == shape else (*axis, *model_shape)
    return DeclaredTensor(name, _DTYPES[data_type], (*axis, *shape), reshaped, _labels(fields, base))


def _labels(fields: Fields, base: Path) -> tuple[str, ...]:
    """Return the labels of an output: the lines of its `label_filename`."""
    name = fields.text("label_filename")
    if not name:
        return ()
    if name in (".", "..") or "/" in name:
        raise InvalidField(f"{fields.place}label_filename is {name!r}; it must be a name without a folder")
    try:
        text = read_regular(base / name, _MOST_LABEL_BYTES).decode("utf-8")
        labels = tuple(line.rstrip("\r") for line in text.split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField(f"{fields.place}label_filename: {name} cannot be read: {error}") from None
    if max(map(len, labels)) > _MOST_LABEL_CHARACTERS:
        raise InvalidField(
            f"{fields.place}label_filename: a line of {name} has more than {_MOST_LABEL_CHARACTERS} characters"
        )
    return labels if labels[-1] else labels[:-1]


def _same_elements(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    if -1 in (*shape, *other):
        # Free sizes keep their order, so there have to be as many.
        fixed = [math.prod(size for size in sizes if size >= 0) for sizes in (shape, other)]
        return shape.count(-1) == other.count(-1) and fixed[0] == fixed[1]
    return math.prod(shape) == math.prod(other)


def version_settings(fields: Fields, name: str) -> dict[str, Any]:
    """Return what the field of this name says of the versions that are served, as settings of the model."""
    policy = fields.message(name)
    if policy is None:
        return {}
    policy.check_known("latest", "all", "specific")
    latest, specific = policy.message("latest"), policy.message("specific")
    if specific is not None:
        return {"versions": list(specific.sizes("versions"))}
    if latest is not None:
        return {"versions": f"latest:{latest.number('num_versions') or 1}"}
    return {"versions": "all"} if policy.has("all") else {}


def batching_settings(fields: Fields, pass_over: Callable[..., None]) -> dict[str, Any]:
    """Return what a configuration says of batches and where they run, as settings of the model.

    Args:
        pass_over: Called with each field that has no effect, and with what has instead.
    """
    rows = fields.number("max_batch_size")
    return {
        **({"max_batch_rows": min(rows, _MOST_BATCH_ROWS)} if rows else {}),
        **_dynamic_batching(fields, pass_over),
        **_instances(fields, pass_over),
    }


def _dynamic_batching(fields: Fields, pass_over: Callable[..., None]) -> dict[str, Any]:
    batching = fields.message("dynamic_batching")
    if batching is None:
        return {}
    instead = {
        "preferred_batch_size": "a batch leaves when the device is free; batch_buckets are sizes to fill up to",
        "preserve_ordering": "an answer goes out when it is ready",
        "priority_levels": "",
        "default_priority_level": "",
        "default_queue_policy": "timeout_ms and max_concurrent_requests limit how long and how many wait",
        "priority_queue_policy": "",
    }
    batching.check_known("max_queue_delay_microseconds", *instead)
    for field, why in instead.items():
        if batching.has(field) and not (field == "preserve_ordering" and not batching.flag(field)):
            pass_over(f"dynamic_batching.{field}", why)
    delay_us = batching.number("max_queue_delay_microseconds")
    return {} if delay_us is None else {"max_delay_ms": delay_us / 1000}


def _instances(fields: Fields, pass_over: Callable[..., None]) -> dict[str, Any]:
    groups = fields.messages("instance_group")
    counts: list[int] = []
    devices: list[str] = []
    for group in groups:
        others = ("rate_limiter", "secondary_devices", "profile", "host_policy")
        group.check_known("name", "kind", "count", "gpus", "passive", *others)
        if group.flag("passive"):
            raise InvalidField(f"{group.place}passive is not offered: leave the group out")
        for field in others:
            if group.has(field):
                pass_over(f"{group.place}{field}")
        kind = group.identifier("kind") or "KIND_AUTO"
        if kind not in ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"):
            raise InvalidField(
                f"{group.place}kind must be KIND_AUTO, KIND_GPU, KIND_CPU or KIND_MODEL, not {kind}"
            )
        counts.append(group.number("count") or 1)
        devices += _DEVICES.get(kind, ()) or [f"cuda:{index}" for index in group.sizes("gpus")]
    if len(set(counts)) > 1:
        pass_over("instance_group.count where it differs", f"each device has {max(counts)} instances")
    settings: dict[str, Any] = {"instances": max(counts)} if counts else {}
    return {**settings, "device": list(dict.fromkeys(devices))} if devices else settings


def _parameters(
    fields: Fields, framework: Framework | None, pass_over: Callable[..., None]
) -> dict[str, Any]:
    """Return what the parameters of Triton's backends say; other parameters change no answer of these."""
    settings: dict[str, Any] = {}
    for entry in fields.messages("parameters"):
        key, value = entry.text("key"), entry.message("value")
        text = "" if value is None else (value.text("string_value") or "").strip()
        if key in _THREADS and text.isdecimal():
            # 0 is their word for the default.
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


def _warm_up(fields: Fields, base: Path) -> WarmUpRequest:
    fields.check_known("name", "batch_size", "inputs", "count")
    name = fields.text("name") or fields.place.rstrip(".")
    inputs = tuple(_warm_up_inputs(fields, name, base))
    return WarmUpRequest(name, fields.number("batch_size") or 0, inputs)


def _warm_up_inputs(fields: Fields, name: str, base: Path) -> Iterator[WarmUpInput]:
    for entry in fields.messages("inputs"):
        key, value = entry.text("key"), entry.message("value")
        if not key or value is None:
            raise InvalidField(f"{entry.place}key and value are both needed")
        value.check_known("data_type", "dims", "zero_data", "random_data", "input_data_file")
        data_type, file = value.identifier("data_type") or "", value.text("input_data_file")
        if file:
            inside = PurePosixPath(file)
            if inside.is_absolute() or ".." in inside.parts:
                raise InvalidField(
                    f"the model_warmup {name!r}: input_data_file is {file!r}; it must be below the folder warmup"
                )
            path = base / "warmup" / inside
            yield WarmUpInput(key, data_type, value.sizes("dims"), "file", path)
        elif value.flag("zero_data") or value.flag("random_data"):
            kind = "zero" if value.flag("zero_data") else "random"
            yield WarmUpInput(key, data_type, value.sizes("dims"), kind)  # type: ignore[arg-type]  # one of both
        else:
            raise InvalidField(
                f"the model_warmup {name!r} has no data for {key}: zero_data, random_data or input_data_file"
            )
