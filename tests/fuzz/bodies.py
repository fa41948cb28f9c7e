"""Bodies that may come: valid ones of each protocol, nearly valid ones, and damaged ones."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from tests.contract.protocol_models import DATATYPES

__all__ = [
    "Info",
    "array_bodies",
    "compressed",
    "damaged",
    "infer_requests",
    "predict_bodies",
    "scoring_bodies",
    "sizes_of",
]

_ODD: Final = [
    None, True, False, 0, -1, 1, 2.0, 0.5, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e39, 1e308, float("nan"),
    float("inf"), "", "x", "1", "\x00", "é", [], {}, [[]], [1, [2]], {"b64": "AA=="}, {"b64": "%"}, {"b64": 1},
]  # fmt: skip
odd = st.sampled_from(_ODD) | st.text(max_size=5) | st.integers() | st.floats()
values = st.recursive(
    odd,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
numbers = (
    st.integers(-300, 300)
    | st.floats(-1e6, 1e6, width=32)
    | st.sampled_from([0, 1, 0.1] * 3 + [2**40, 1e300])
)
words = st.text(max_size=8) | st.text(max_size=8) | st.sampled_from([{"b64": "w6k="}, {"b64": ""}])


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Usually what belongs there, now and then anything."""
    return st.integers(0, 19).flatmap(lambda dice: usual if dice else values)


@st.composite
def damaged(draw: st.DrawFn, bodies: st.SearchStrategy[bytes]) -> bytes:
    """A body, in one of four cases with some of its bytes changed, left out, repeated or put in."""
    body = bytearray(draw(bodies))
    if draw(st.integers(0, 3)):
        return bytes(body)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(body)))
        length = draw(st.integers(0, 8))
        match draw(st.integers(0, 4)):
            case 0:
                body[place : place + length] = draw(st.binary(max_size=8))
            case 1:
                del body[place : place + length]
            case 2:
                body[place:place] = body[place : place + length] * draw(st.integers(1, 200))
            case 3:
                body[place:place] = draw(
                    st.sampled_from([b"[", b"{", b"}", b"]", b'"', b",", b"NaN", b"\xff", b"e9"])
                )
            case _:
                del body[place:]
    return bytes(body)


def dumped(documents: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """JSON texts, with the tokens of numbers that are not finite."""
    return documents.map(lambda document: json.dumps(document).encode(errors="surrogatepass"))


def nested(items: st.SearchStrategy[Any], shape: list[int]) -> st.SearchStrategy[Any]:
    """Lists of this shape."""
    count = int(np.prod(shape))
    return st.lists(items, min_size=count, max_size=count).map(lambda flat: _folded(flat, shape))


def _folded(flat: list[Any], shape: list[int]) -> Any:
    if not shape:
        return flat[0]
    step = int(np.prod(shape[1:]))
    return [_folded(flat[start * step : (start + 1) * step], shape[1:]) for start in range(shape[0])]


shapes = st.lists(st.integers(0, 3), max_size=3)

Info = tuple[str, str, tuple[int, ...]]
"""Name, datatype and shape of an input; free sizes are -1."""


@st.composite
def sizes_of(draw: st.DrawFn, info: Info, rows: int) -> list[int]:
    """A shape that fits the input, seldom another one."""
    if not draw(st.integers(0, 9)):
        return draw(shapes)
    fitting = [draw(st.integers(0, 3)) if size < 0 else size for size in info[2]]
    if info[2][:1] == (-1,):
        fitting[0] = rows
    return fitting


def items_of(datatype: str) -> st.SearchStrategy[Any]:
    """Elements as they belong there."""
    match datatype:
        case "BYTES":
            return words
        case "BOOL":
            return st.booleans()
        case "FP16" | "FP32" | "FP64":
            return numbers
        case _:
            return st.integers(0, 120) | st.sampled_from([1] * 9 + [-1, 255, 2**31, 2**63])


def tensor_data(info: Info, shape: list[int], *, flat: bool = False) -> st.SearchStrategy[Any]:
    """The data of a tensor: nested as the shape says, or flat."""
    sizes = [int(np.prod(shape))] if flat else shape
    return mostly(nested(items_of(info[1]), sizes))


@st.composite
def tensors_of(draw: st.DrawFn, infos: Sequence[Info]) -> dict[str, Any]:
    """Nested lists by the names of the inputs; seldom one is missing, or has another name."""
    rows = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
    data = {}
    for info in infos:
        name = draw(st.sampled_from([info[0]] * 12 + ["z", ""]))
        if name:
            data[name] = draw(tensor_data(info, draw(sizes_of(info, rows))))
    return data


@st.composite
def inputs(draw: st.DrawFn, info: Info, rows: int) -> tuple[Any, bytes]:
    """An input of an infer request, and what follows the JSON for it."""
    name, datatype, _ = info
    shape = draw(sizes_of(info, rows))
    described: dict[str, Any] = {
        "name": draw(mostly(st.just(name))),
        "datatype": draw(mostly(st.just(datatype))),
        "shape": draw(mostly(st.just(shape))),
    }
    if draw(st.booleans()):
        described["data"] = draw(tensor_data(info, shape, flat=draw(st.booleans())))
        return described, b""
    size = int(np.prod(shape)) * np.dtype(DATATYPES.get(datatype, "uint32")).itemsize
    # Zeros are the lengths of empty strings.
    whole = st.just(bytes(size)) | st.binary(min_size=size, max_size=size)
    content = draw(st.integers(0, 9).flatmap(lambda dice: whole if dice else st.binary(max_size=size + 8)))
    described["parameters"] = {"binary_data_size": draw(mostly(st.just(len(content))))}
    return described, content


@st.composite
def infer_requests(
    draw: st.DrawFn, infos: Sequence[Info], outputs: Sequence[str]
) -> tuple[bytes, str | None]:
    """A body, and the length of its JSON as the header would say it."""
    rows = draw(st.sampled_from([0, 1, 1, 2, 2, 3]))
    listed = [draw(inputs(info, rows)) for info in infos]
    document: dict[str, Any] = {"inputs": draw(mostly(st.just([info for info, _ in listed])))}
    if draw(st.booleans()):
        parameters = st.dictionaries(
            st.sampled_from(["binary_data", "classification", "x"]),
            mostly(st.integers(0, 3) | st.booleans()),
            max_size=2,
        )
        names = st.sampled_from([*outputs] * 9 + ["z"])
        wanted = st.fixed_dictionaries({"name": names}, optional={"parameters": parameters})
        document["outputs"] = draw(mostly(st.lists(wanted, max_size=3)))
    if not draw(st.integers(0, 3)):
        document[draw(st.sampled_from(["id", "parameters", "extra"]))] = draw(values)
    if not draw(st.integers(0, 3)):
        known = ["binary_data_output", "timeout", "sequence_id", "triton_x", "priority"]
        parameters = st.dictionaries(st.sampled_from(known), values | st.booleans(), max_size=2)
        document["parameters"] = draw(parameters)
    text = draw(damaged(dumped(st.just(document))))
    body = text + b"".join(content for _, content in listed)
    binary = len(body) > len(text)
    length = draw(mostly(st.just(len(text)) if binary else st.sampled_from([None, len(text)])))
    return body, None if length is None else str(length)[:30]


@st.composite
def predict_bodies(draw: st.DrawFn, infos: Sequence[Info]) -> bytes:
    """Bodies for predict, classify and regress."""
    document: dict[str, Any] = {}
    columns = draw(tensors_of(infos))
    rows = (
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]
        if all(isinstance(value, list) for value in columns.values())
        else []
    )
    bare = draw(st.booleans()) and len(columns) == 1
    for key in draw(
        st.sampled_from(
            [["instances"], ["inputs"], ["examples"], ["examples", "context"], ["inputs", "instances"]]
        )
    ):
        if key == "inputs":
            document[key] = draw(mostly(st.just(next(iter(columns.values())) if bare else columns)))
        elif key == "instances":
            document[key] = draw(
                mostly(st.just([next(iter(row.values())) for row in rows] if bare else rows))
            )
        elif key == "examples":
            document[key] = draw(mostly(st.just(rows)))
        else:
            document[key] = draw(mostly(st.just(rows[0] if rows else {})))
    if not draw(st.integers(0, 3)):
        document["signature_name"] = draw(mostly(st.just("serving_default")))
    return draw(damaged(dumped(mostly(st.just(document)))))


@st.composite
def scoring_bodies(draw: st.DrawFn, infos: Sequence[Info]) -> bytes:
    """Bodies for `/score`."""
    tensors = draw(tensors_of(infos))
    data = next(iter(tensors.values())) if len(tensors) == 1 and draw(st.integers(0, 5)) else tensors
    document = {"data": draw(mostly(st.just(data)))}
    if not draw(st.integers(0, 5)):
        document[draw(st.text(max_size=4))] = draw(values)
    return draw(damaged(dumped(mostly(st.just(document)))))


@st.composite
def array_bodies(draw: st.DrawFn, info: Info) -> tuple[bytes, dict[str, str]]:
    """A body that is an array, and its headers."""
    own = DATATYPES.get(info[1], "U2")
    dtype = np.dtype(draw(st.sampled_from([own] * 5 + [*DATATYPES.values(), ">f4", ">i8", "S3"])))
    shape = draw(sizes_of(info, draw(st.sampled_from([0, 1, 2, 3]))))
    size = int(np.prod(shape)) * dtype.itemsize
    content = draw(st.just(bytes(size)) | st.binary(min_size=size, max_size=size))
    headers = {"accept": "application/x-npy"} if draw(st.booleans()) else {}
    headers["content-type"] = "application/x-npy"
    file = io.BytesIO()
    order = draw(st.sampled_from("CF"))
    array = np.frombuffer(content, dtype).reshape(shape, order=order) if size else np.empty(shape, dtype)
    version = draw(st.sampled_from([(1, 0), (2, 0)]))
    np.lib.format.write_array(file, array, version, allow_pickle=False)
    return draw(damaged(st.just(file.getvalue()))), headers


@st.composite
def compressed(draw: st.DrawFn, bodies: st.SearchStrategy[bytes]) -> tuple[bytes, str]:
    """A body in a coding, whole, damaged, or several times over; and what the coding is said to be."""
    body = draw(bodies)
    deflater = zlib.compressobj(wbits=-15)
    packed, coding = {
        "gzip": (gzip.compress(body), "gzip"),
        "zlib": (zlib.compress(body), "deflate"),
        "deflate": (deflater.compress(body) + deflater.flush(), "deflate"),
        "zeros": (gzip.compress(bytes(draw(st.sampled_from([1 << 18, (1 << 18) + 1, 1 << 22])))), "gzip"),
    }[draw(st.sampled_from(["gzip", "zlib", "deflate", "gzip", "zlib", "zeros"]))]
    packed *= draw(st.sampled_from([1] * 9 + [2, 50]))
    return draw(damaged(st.just(packed))), draw(st.sampled_from([coding] * 9 + ["gzip", "deflate"]))
