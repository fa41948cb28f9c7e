"""The requests that load is made of: random rows, JSON bodies, HTTP bytes, and how answers are read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stoker.errors import InvalidSettings

VALUE_DECIMALS = 4
JSON_HEADERS = {"Content-Type": "application/json"}
DATATYPES = {"float32": "FP32", "float16": "FP16", "uint8": "UINT8", "int64": "INT64"}
"""The protocol's names of numpy's dtypes; the bytes are little-endian, as on every machine that Stoker runs on."""


def random_rows(count: int, row_shape: tuple[int, ...], seed: int = 11) -> NDArray[np.float32]:
    """Return float32 [count, *row_shape] in [0, 1), each the nearest to a number of 4 decimals."""
    values = np.random.default_rng(seed).random((count, *row_shape)).round(VALUE_DECIMALS)
    return values.astype(np.float32)


class Dialect(Struct, frozen=True):
    """How a server wants rows and gives outputs.

    Attributes:
        encode: Turns rows [n, ...] into a body.
        decode: Turns an answer's body and n into the outputs [n, ...]; raises ValueError if there are none.
        headers: Returns the headers for rows.
    """

    encode: Callable[[NDArray[np.float32]], bytes]
    decode: Callable[[bytes, int], NDArray[np.float64]]
    headers: Callable[[NDArray[np.float32]], dict[str, str]] = lambda _: JSON_HEADERS


def _decimals(rows: NDArray[np.float32]) -> list[Any]:
    nested: list[Any] = rows.astype(np.float64).round(VALUE_DECIMALS).tolist()
    return nested


def _compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _as_outputs(values: object, rows: int) -> NDArray[np.float64]:
    try:
        outputs = np.asarray(values, dtype=np.float64)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if outputs.size == 0 or outputs.size % rows:
        raise ValueError(f"{outputs.size} values for {rows} rows")
    return outputs.reshape(rows, -1)


def _encode_data_lists(rows: NDArray[np.float32]) -> bytes:
    return _compact({"data": _decimals(rows)})


def _decode_data_lists(body: bytes, rows: int) -> NDArray[np.float64]:
    """Read a list of outputs, or an object whose first value is one, encoded once or, as on Azure, twice."""
    document = json.loads(body)
    if isinstance(document, str):
        document = json.loads(document)
    if isinstance(document, dict):
        document = next(iter(document.values()), None)
    return _as_outputs(document, rows)


def _encode_open_inference(rows: NDArray[np.float32]) -> bytes:
    tensor = {
        "name": "images",
        "shape": list(rows.shape),
        "datatype": "FP32",
        "data": _decimals(rows.reshape(-1)),
    }
    return _compact({"inputs": [tensor]})


def _decode_open_inference(body: bytes, rows: int) -> NDArray[np.float64]:
    try:
        values = json.loads(body)["outputs"][0]["data"]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("no outputs in the answer") from error
    return _as_outputs(values, rows)


DATA_LISTS = Dialect(_encode_data_lists, _decode_data_lists)
"""`{"data": [[…], …]}` to `[[…], …]`, the Azure form."""

OPEN_INFERENCE = Dialect(_encode_open_inference, _decode_open_inference)
"""The Open Inference Protocol (v2) with JSON tensors."""


def binary_description(input_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the JSON before the bytes of the only input; binary outputs are asked for."""
    tensor = {
        "name": input_name,
        "shape": list(shape),
        "datatype": DATATYPES[dtype.name],
        "parameters": {"binary_data_size": math.prod(shape) * dtype.itemsize},
    }
    return _compact({"inputs": [tensor], "parameters": {"binary_data_output": True}})


def binary_headers(description: bytes) -> dict[str, str]:
    """Return the headers that go with such a body."""
    length = str(len(description))
    return {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": length}


def binary_open_inference(
    input_name: str, convert: Callable[[NDArray[np.float32]], NDArray[Any]] = lambda rows: rows
) -> Dialect:
    """Return the Open Inference Protocol (v2) with its binary extension, for requests and answers.

    Args:
        convert: Converts rows to a dtype of `DATATYPES`.
    """

    def describe(sent: NDArray[Any]) -> bytes:
        return binary_description(input_name, sent.shape, sent.dtype)

    def headers(rows: NDArray[np.float32]) -> dict[str, str]:
        return binary_headers(describe(convert(rows)))

    def encode(rows: NDArray[np.float32]) -> bytes:
        sent = convert(rows)
        return describe(sent) + sent.tobytes()

    return Dialect(encode, _decode_binary, headers)


def _decode_binary(body: bytes, rows: int) -> NDArray[np.float64]:
    """Read the first output, float32, after the answer's JSON."""
    try:
        answer, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
        size_bytes = answer["outputs"][0]["parameters"]["binary_data_size"]
        return _as_outputs(np.frombuffer(body[end : end + size_bytes], "<f4"), rows)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("no binary output in the answer") from error


@dataclass(frozen=True)
class ScoringRequest:
    """A whole POST request, or a call of gRPC with its message as the body."""

    host: str
    port: int
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The scoring URI."""
        return f"http://{self.host}:{self.port}{self.path}"

    def http_head(self, body_bytes: int) -> bytes:
        """Return everything before the body; the connection is kept alive by HTTP/1.1's default."""
        fields = {"Host": f"{self.host}:{self.port}", **self.headers, "Content-Length": str(body_bytes)}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1")

    @property
    def http_bytes(self) -> bytes:
        """The request as it goes over the wire."""
        return self.http_head(len(self.body)) + self.body


def scoring_request(
    uri: str, body: bytes, key: str | None = None, headers: Mapping[str, str] = JSON_HEADERS
) -> ScoringRequest:
    """Build the request for a scoring URI such as `http://127.0.0.1:8080/score`; the key goes to the headers."""
    parts = urlsplit(uri)
    if parts.scheme == "https":
        raise InvalidSettings(
            f"{uri!r} is of TLS, which the generators do not speak; give one such as http://127.0.0.1:8080/score"
        )
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidSettings(f"{uri!r} is no scoring URI; give one such as http://127.0.0.1:8080/score")
    authorization = {"Authorization": f"Bearer {key}"} if key else {}
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ScoringRequest(parts.hostname, parts.port or 80, path, body, {**headers, **authorization})
