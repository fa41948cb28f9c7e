"""Messages of gRPC that may come: `ModelInferRequest` and `PredictRequest`, whole and damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from tests.contract.protocol_models import DATATYPES
from tests.fuzz.bodies import Info, damaged, sizes_of

from stoker.gateway.grpc.messages import SERVING, ModelInferRequest, message
from stoker.gateway.protocols.tfs import DTYPES

__all__ = ["infer_messages", "predict_messages"]

_PredictRequest: Final = message("PredictRequest", SERVING)

_FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_ELEMENTS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "bool_contents": st.booleans(),
    "int_contents": st.integers(-200, 200) | st.sampled_from([-(2**31), 2**31 - 1]),
    "int64_contents": st.integers(-(2**63), 2**63 - 1),
    "uint_contents": st.integers(0, 300) | st.just(2**32 - 1),
    "uint64_contents": st.integers(0, 2**64 - 1),
    "fp32_contents": st.floats(width=32),
    "fp64_contents": st.floats(),
    "bytes_contents": st.binary(max_size=6) | st.sampled_from([b"caf\xc3\xa9", b"\xff"]),
}
_TENSOR_FIELDS: Final = {
    "half_val": st.integers(-1, 1 << 16),
    "float_val": _ELEMENTS["fp32_contents"],
    "double_val": _ELEMENTS["fp64_contents"],
    "int_val": _ELEMENTS["int_contents"],
    "string_val": _ELEMENTS["bytes_contents"],
    "int64_val": _ELEMENTS["int64_contents"],
    "bool_val": _ELEMENTS["bool_contents"],
    "uint32_val": _ELEMENTS["uint_contents"],
    "uint64_val": _ELEMENTS["uint64_contents"],
}
_FIELDS_OF_TENSORS: Final = {
    "BOOL": "bool_val",
    "INT64": "int64_val",
    "UINT32": "uint32_val",
    "UINT64": "uint64_val",
    "FP32": "float_val",
    "FP64": "double_val",
    "BYTES": "string_val",
}
_ODD_SIZES: Final = [-1, -(2**63), 2**31, 2**40, 2**62, 2**63 - 1]
# Fields that are none of this message, groups, a length that does not end, one of ten bytes, one of 4 GiB.
_ODD_BYTES: Final = [
    b"\x40\x01", b"\x3b\x3c", b"\x0a", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x3a\xff\xff\xff\xff\x0f",
    b"\x3a\x80\x00", b"\x0a\x02\xff\xfe", b"\xfa\x3f\x01x",
]  # fmt: skip


@st.composite
def _shapes(draw: st.DrawFn, info: Info, rows: int) -> list[int]:
    shape = draw(sizes_of(info, rows))
    if not draw(st.integers(0, 19)):
        shape.insert(draw(st.integers(0, len(shape))), draw(st.sampled_from(_ODD_SIZES)))
    return shape


@st.composite
def infer_messages(draw: st.DrawFn, infos: Sequence[Info], outputs: Sequence[str], model: str = "m") -> bytes:
    """The bytes of a request."""
    rows = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
    request = ModelInferRequest(model_name=model, id=draw(st.text(max_size=5)))
    raw = draw(st.booleans())
    for name, datatype, declared in infos:
        shape = draw(_shapes((name, datatype, declared), rows))
        tensor = request.inputs.add(
            name=draw(st.sampled_from([name] * 19 + ["z"])),
            datatype=draw(st.sampled_from([datatype] * 19 + ["FP16", "BF16", ""])),
            shape=shape,
        )
        count = int(np.prod([size for size in shape if 0 <= size < 100]))
        if raw != (not draw(st.integers(0, 19))):
            size = count * np.dtype(DATATYPES.get(datatype, "uint32")).itemsize
            size += draw(st.sampled_from([0] * 19 + [1, -1]))
            # Zeros are the lengths of empty strings.
            content = draw(
                st.just(bytes(max(0, size))) | st.binary(min_size=max(0, size), max_size=max(0, size))
            )
            request.raw_input_contents.append(content)
        else:
            fields = [_FIELDS.get(datatype, "fp32_contents")] * 19 + list(_FIELDS.values())
            field = draw(st.sampled_from(fields))
            few = max(0, count + draw(st.sampled_from([0] * 19 + [1, -1])))
            getattr(tensor.contents, field).extend(
                draw(st.lists(_ELEMENTS[field], min_size=few, max_size=few))
            )
    _add_parameters(draw, request.parameters)
    for name in draw(st.lists(st.sampled_from([*outputs] * 9 + ["z"]), max_size=3)):
        _add_parameters(draw, request.outputs.add(name=name).parameters)
    content = request.SerializeToString()
    if not draw(st.integers(0, 9)):
        place = draw(st.sampled_from([0, len(content)]))
        content = content[:place] + draw(st.sampled_from(_ODD_BYTES)) + content[place:]
    return draw(damaged(st.just(content)))


@st.composite
def predict_messages(draw: st.DrawFn, infos: Sequence[Info]) -> bytes:
    """The bytes of a request to TensorFlow Serving."""
    rows = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
    request = _PredictRequest(
        model_spec={"name": "m"}, output_filter=draw(st.lists(st.just("y"), max_size=2))
    )
    for name, datatype, declared in infos:
        shape = draw(_shapes((name, datatype, declared), rows))
        tensor = request.inputs[draw(st.sampled_from([name] * 19 + ["z"]))]
        tensor.dtype = draw(st.sampled_from([DTYPES[DATATYPES.get(datatype, "string")]] * 19 + ["DT_HALF"]))
        for size in shape:
            tensor.tensor_shape.dim.add(size=size)
        count = int(np.prod([size for size in shape if 0 <= size < 100]))
        if draw(st.booleans()):
            size = count * np.dtype(DATATYPES.get(datatype, "uint32")).itemsize
            size += draw(st.sampled_from([0] * 19 + [1, -1]))
            tensor.tensor_content = draw(st.binary(min_size=max(0, size), max_size=max(0, size)))
        else:
            fields = [_FIELDS_OF_TENSORS.get(datatype, "int_val")] * 19 + list(_TENSOR_FIELDS)
            field = draw(st.sampled_from(fields))
            few = max(0, count + draw(st.sampled_from([0] * 15 + [1, -1, -2])))
            getattr(tensor, field).extend(draw(st.lists(_TENSOR_FIELDS[field], min_size=few, max_size=few)))
    return draw(damaged(st.just(request.SerializeToString())))


def _add_parameters(draw: st.DrawFn, parameters: Any) -> None:
    if draw(st.integers(0, 3)):
        return
    known = ["timeout", "classification", "binary_data_output", "binary_data", "sequence_id", "triton_x", "x"]
    for name in draw(st.lists(st.sampled_from(known), max_size=2)):
        match draw(st.integers(0, 4)):
            case 0:
                parameters[name].bool_param = draw(st.booleans())
            case 1:
                parameters[name].int64_param = draw(st.sampled_from([0, 1, 2, 3, -1, 2**62]))
            case 2:
                parameters[name].string_param = draw(st.text(max_size=4))
            case 3:
                parameters[name].double_param = draw(st.floats())
            case _:
                parameters[name].SetInParent()
