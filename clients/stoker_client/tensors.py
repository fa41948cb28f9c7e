"""Named tensors as binary data of the Open Inference Protocol v2: arrays -> bodies, replies -> arrays."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from stoker_client.answers import Answer, Reply, decode_json
from stoker_client.bodies import refuse_masked
from stoker_client.errors import InvalidRows, UnexpectedAnswer

__all__ = [
    "JSON_LENGTH",
    "ModelTensors",
    "TensorInfo",
    "declare_dtypes",
    "decode_outputs",
    "decode_scores",
    "encode_inputs",
    "exact_rows",
]

JSON_LENGTH: Final = "Inference-Header-Content-Length"
"""The header that says where the JSON of a body ends and the binary data begin."""

_DTYPES: Final = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_BFLOAT16: Final = "BF16"
_STRINGS: Final = "BYTES"
_LENGTH: Final = struct.Struct("<I")
# JSON and then the server make of one dtype for another the same as numpy does directly.
_EXACT_CASTS: Final = {"f8": ("f4", "f8"), "f4": ("f4",)}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the server describes it: its name, its datatype, and its sizes, -1 for those that are free."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The inputs and outputs of a model from its metadata; none for entry scripts that take whole bodies."""

    model: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    @classmethod
    def of(cls, reply: Reply) -> ModelTensors:
        """Read the answer of the metadata endpoint.

        Raises:
            UnexpectedAnswer: It is none.
        """
        metadata = decode_json(reply)
        try:
            inputs, outputs = (
                tuple(
                    TensorInfo(str(info["name"]), str(info["datatype"]), tuple(map(int, info["shape"])))
                    for info in metadata[side]
                )
                for side in ("inputs", "outputs")
            )
            return cls(str(metadata["name"]), inputs, outputs)
        except (TypeError, KeyError, ValueError) as error:
            raise UnexpectedAnswer("the server did not describe the model's tensors") from error


def _dtype_of(datatype: str) -> np.dtype[Any] | None:
    """Return the dtype of a datatype of numbers; None for others."""
    if datatype == _BFLOAT16:
        # Programs without such tensors are spared the import.
        try:
            from ml_dtypes import bfloat16
        except ImportError as error:
            raise ImportError("tensors of BF16 need ml_dtypes: pip install ml_dtypes") from error
        dtype: np.dtype[Any] = np.dtype(bfloat16)
        return dtype
    return _DTYPES.get(datatype)


def encode_inputs(
    model: ModelTensors, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None
) -> tuple[bytes, int]:
    """Encode an infer request whose tensors are binary in both directions.

    Args:
        outputs: The requested outputs; None for all.

    Returns:
        The body, and how many of its bytes are JSON.

    Raises:
        InvalidRows: An input is unknown, or holds something that does not become the model's datatype.
    """
    infos = {info.name: info for info in model.inputs}
    if not isinstance(inputs, Mapping):
        raise InvalidRows(
            f"inputs has to be a dict of arrays by name, of {', '.join(infos) or 'none'}, not {type(inputs).__name__}"
        )
    unknown = [name for name in inputs if name not in infos]
    if unknown:
        raise InvalidRows(
            f"{model.model} has no input {', '.join(map(repr, unknown))}; it has {', '.join(infos) or 'none'}"
        )
    described, contents = [], []
    for name, value in inputs.items():
        array = _as_tensor(infos[name], value)
        content = _join_strings(array) if array.dtype == object else array.tobytes()
        described.append(_described(infos[name], array.shape, len(content)))
        contents.append(content)
    request: dict[str, Any] = {"inputs": described, "parameters": {"binary_data_output": True}}
    if outputs is not None:
        request["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    text = orjson.dumps(request)
    return b"".join((text, *contents)), len(text)


def _described(info: TensorInfo, shape: Sequence[int], size_bytes: int) -> dict[str, Any]:
    parameters = {"binary_data_size": size_bytes}
    return {"name": info.name, "datatype": info.datatype, "shape": shape, "parameters": parameters}


def _as_tensor(info: TensorInfo, value: npt.ArrayLike) -> Array:
    """An array of the input's datatype, strings as objects of bytes."""
    refuse_masked(value, f"{info.name} is")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidRows(f"{info.name}: {error}") from error
    if info.datatype == _STRINGS:
        return _as_strings(info, array)
    dtype = _dtype_of(info.datatype)
    if dtype is None:
        raise InvalidRows(f"{info.name} is {info.datatype}, which this client does not send")
    # numpy calls bfloat16 V.
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "V": "iufV"}[dtype.kind]
    if array.size and array.dtype.kind not in kinds:
        raise InvalidRows(f"{info.name} takes {info.datatype}, not an array of dtype {array.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(cast, array):
        raise InvalidRows(f"{info.name} takes {info.datatype}, and a number is out of its range")
    if dtype.kind in "fV" and array.dtype.kind == "f" and (np.isinf(cast) & ~np.isinf(array)).any():
        raise InvalidRows(f"{info.name} takes {info.datatype}, and a number is too large for it")
    return cast


def _as_strings(info: TensorInfo, array: Array) -> Array:
    strings = np.empty(array.size, object)
    for index, item in enumerate(array.reshape(-1).tolist()):
        if not isinstance(item, str | bytes):
            raise InvalidRows(f"{info.name} takes strings, not {type(item).__name__}")
        strings[index] = item.encode() if isinstance(item, str) else item
    return strings.reshape(array.shape)


def _join_strings(array: Array) -> bytes:
    return b"".join(part for item in array.reshape(-1) for part in (_LENGTH.pack(len(item)), item))


def decode_outputs(reply: Reply) -> dict[str, Array]:
    """Return the outputs of an infer reply by name, in the model's datatypes; strings are objects of bytes.

    Raises:
        UnexpectedAnswer: It is no such reply.
    """
    try:
        return {output["name"]: _array_of(output, content) for output, content in _outputs(reply)}
    except (TypeError, KeyError, ValueError, struct.error) as error:
        raise UnexpectedAnswer(f"the answer holds no tensors: {error}", status=reply.status) from error


def _outputs(reply: Reply) -> list[tuple[dict[str, Any], bytes | None]]:
    """The outputs of a reply, each with its binary data if it has some."""
    length = reply.headers.get(JSON_LENGTH)
    start = len(reply.content) if length is None else int(length)
    head = Reply(reply.status, reply.content[:start], reply.headers)
    outputs = []
    for output in decode_json(head)["outputs"]:
        size = None if "data" in output else int(output["parameters"]["binary_data_size"])
        content = None if size is None else reply.content[start : start + size]
        outputs.append((output, content))
        start += size or 0
    return outputs


def _array_of(output: dict[str, Any], content: bytes | None) -> Array:
    shape, datatype = output["shape"], output["datatype"]
    if datatype == _STRINGS:
        items = [item.encode() for item in output["data"]] if content is None else _split_strings(content)
        strings = np.empty(len(items), object)
        strings[:] = items
        return strings.reshape(shape)
    dtype = _dtype_of(datatype)
    if dtype is None:
        raise ValueError(f"a tensor of {datatype}")
    if content is None:
        return np.array(output["data"], dtype).reshape(shape)
    # A copy, for arrays that share the reply's bytes cannot be written.
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _split_strings(content: bytes) -> list[bytes]:
    items, start = [], 0
    while start < len(content):
        (size,) = _LENGTH.unpack_from(content, start)
        start += _LENGTH.size
        items.append(content[start : start + size])
        start += size
    return items


def exact_rows(model: ModelTensors, rows: Array) -> tuple[bytes, int] | None:
    """Encode rows for the model's only input, if the answer is sure to be the one that they would get as JSON.

    Returns:
        As `encode_inputs`; outputs are asked for as JSON, whose decimals are those of the scoring URI's answers.
        None where JSON has to decide: numbers that are not finite or do not fit, other shapes, other dtypes.
    """
    if len(model.inputs) != 1 or any(
        info.datatype not in _DTYPES for info in (*model.inputs, *model.outputs)
    ):
        return None
    (info,) = model.inputs
    dtype = _DTYPES[info.datatype]
    fits = len(rows.shape) == len(info.shape) and all(
        free in (-1, size) for free, size in zip(info.shape, rows.shape, strict=True)
    )
    exact = rows.dtype.newbyteorder("<") == dtype or dtype.str[1:] in _EXACT_CASTS.get(rows.dtype.str[1:], ())
    if not fits or not exact:
        return None
    with np.errstate(over="ignore"):
        cast = rows.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(cast).all():
        return None
    content = cast.tobytes()
    # FP16 has no JSON form in this protocol.
    outputs = [
        {"name": info.name, "parameters": {"binary_data": info.datatype == "FP16"}} for info in model.outputs
    ]
    text = orjson.dumps({"inputs": [_described(info, rows.shape, len(content))], "outputs": outputs})
    return text + content, len(text)


def declare_dtypes(model: ModelTensors, answer: Answer) -> Answer:
    """Return an answer read from JSON, its arrays in the dtypes that the model declares for its outputs.

    Arrays that the model does not declare, or whose values do not fit their declared dtype, stay as they are.
    """
    datatypes = {info.name: info.datatype for info in model.outputs}
    if isinstance(answer, dict):
        return {name: _cast_numbers(value, datatypes.get(name)) for name, value in answer.items()}
    return _cast_numbers(answer, model.outputs[0].datatype) if len(model.outputs) == 1 else answer


def _cast_numbers(value: Answer, datatype: str | None) -> Answer:
    dtype = None if datatype is None else _dtype_of(datatype)
    if dtype is None or not isinstance(value, np.ndarray):
        return value
    dtype = dtype.newbyteorder("=")
    # numpy calls bfloat16 V.
    if dtype.kind in "fV" and value.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            return value.astype(dtype)
    if not value.size or (dtype.kind in "iu" and value.dtype.kind in "iu"):
        cast = value.astype(dtype)
        return cast if np.array_equal(cast, value) else value
    return value


def decode_scores(reply: Reply) -> Answer:
    """Return the outputs of a reply to `exact_rows` as the scoring URI's answer would be given.

    Raises:
        UnexpectedAnswer: It is no such reply.
    """
    try:
        scores = {output["name"]: _score_of(output, content) for output, content in _outputs(reply)}
    except (TypeError, KeyError, ValueError, IndexError) as error:
        raise UnexpectedAnswer(f"the answer holds no tensors: {error}", status=reply.status) from error
    return next(iter(scores.values())) if len(scores) == 1 else scores


def _score_of(output: dict[str, Any], content: bytes | None) -> Answer:
    array = _array_of(output, content)
    return array if output["shape"] else array.item()
