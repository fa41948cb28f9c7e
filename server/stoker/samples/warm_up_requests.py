"""Reads the warm-up requests that models come with: TensorFlow Serving's records, Triton's `model_warmup`.

Sources: `tensorflow_serving/apis/prediction_log.proto` and `predict.proto`, whose few needed fields are parsed by
hand because TensorFlow has no classes for them; Triton's `model_config.proto`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.deployment import WarmUpInput, WarmUpRequest
from stoker.errors import LoadFailed, RequestError
from stoker.settings.files import read_sample_file
from stoker.system.resources import require_memory
from stoker.tensors import TensorInfo, number_kind
from stoker.wire.datatypes import TRITON_DTYPES
from stoker.wire.oip_tensors import from_raw
from stoker.wire.protobuf import MalformedMessage
from stoker.wire.protobuf_message import Message

_MAX_RECORDS: Final = 1000
"""TensorFlow Serving refuses files with more records."""
_MAX_ROWS: Final = 32
_PREDICT_LOG: Final = 6
_REQUEST: Final = 1
_INPUTS: Final = 2
_KEY, _VALUE = 1, 2


def read_recorded_requests(path: Path, inputs: Sequence[TensorInfo]) -> dict[str, np.ndarray] | None:
    """Read TensorFlow Serving's warm-up requests of a SavedModel.

    Predict requests with exactly these inputs are read; classify, regress and other requests are skipped, and so are
    requests to other signatures. Rows of requests with equal row shapes are concatenated, up to 32.

    Args:
        path: A TFRecord file of `PredictionLog` messages.

    Returns:
        The inputs by name; None if no request is for this signature.
    """
    names = {info.name for info in inputs}
    found: list[dict[str, np.ndarray]] = []
    try:
        for record in islice(_records(path), _MAX_RECORDS):
            tensors = _predict_inputs(record)
            if tensors is not None and tensors.keys() == names:
                found.append({name: _array(content) for name, content in tensors.items()})
    except Exception as error:
        # Protobuf, TensorFlow and numpy each raise errors of their own for malformed content.
        raise LoadFailed(f"the warm-up requests {path} cannot be read: {error}") from error
    if not found:
        return None
    for request in found:
        for info in inputs:
            _check(request[info.name], info, f"the warm-up requests {path}")
    return _joined(found) if all(info.shape[:1] == (-1,) for info in inputs) else found[0]


def _records(path: Path) -> Iterator[bytes]:
    import tensorflow as tf

    yield from tf.data.TFRecordDataset(str(path)).as_numpy_iterator()


def _predict_inputs(record: bytes) -> dict[str, bytes] | None:
    """The `TensorProto` messages of a `PredictionLog` by input; None if it is not a predict request."""
    try:
        log = Message(record)
        if not log.has(_PREDICT_LOG):
            return None
        entries = log.message(_PREDICT_LOG).message(_REQUEST).messages(_INPUTS)
        return {entry.text(_KEY): entry.content(_VALUE) for entry in entries}
    except (MalformedMessage, IndexError) as error:
        raise ValueError("a record is no protobuf message") from error


def _array(content: bytes) -> np.ndarray:
    import tensorflow as tf
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    array: np.ndarray = tf.make_ndarray(TensorProto.FromString(content))
    return array


def _check(array: np.ndarray, info: TensorInfo, source: str) -> None:
    dtype = "string" if array.dtype == object else array.dtype.name
    if dtype != info.dtype or not info.fits(array.shape) or not array.size:
        shape = ",".join(map(str, array.shape))
        raise LoadFailed(f"{source} are not what the model takes: expected {info}, got {dtype}[{shape}]")


def _joined(requests: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of the first request, and of those with equal row shapes, up to the limit of rows."""
    alike = [request for request in requests if _row_shapes(request) == _row_shapes(requests[0])]
    kept, rows = [alike[0]], _row_count(alike[0])
    for request in alike[1:]:
        count = _row_count(request)
        if count and rows and rows + count <= _MAX_ROWS:
            kept.append(request)
            rows += count
    return {name: np.concatenate([request[name] for request in kept]) for name in kept[0]}


def _row_shapes(request: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape[1:] for name, array in request.items()}


def _row_count(request: dict[str, np.ndarray]) -> int:
    """The length of all first axes; 0 if they differ."""
    counts = {len(array) for array in request.values()}
    return counts.pop() if len(counts) == 1 else 0


def make_warm_up_feeds(request: WarmUpRequest, inputs: Sequence[TensorInfo]) -> dict[str, np.ndarray]:
    """Make a model's inputs from one of Triton's warm-up requests.

    Returns:
        The inputs by name, of the model's dtypes; all rows of a request are equal, as in Triton.
    """
    described = {entry.name: entry for entry in request.inputs}
    missing = [info.name for info in inputs if info.name not in described]
    if missing:
        raise LoadFailed(
            f"the model_warmup {request.name!r} has no input {missing[0]!r}; add it to config.pbtxt"
        )
    random = np.random.default_rng(20260721)
    return {info.name: _warm_up_array(request, described[info.name], info, random) for info in inputs}


def _warm_up_array(
    request: WarmUpRequest, entry: WarmUpInput, info: TensorInfo, random: np.random.Generator
) -> np.ndarray:
    batched = len(entry.dims) + 1 == len(info.shape)
    shape = (1, *entry.dims) if batched else entry.dims
    rows = max(request.batch_size, 1) if batched else 1
    given = (rows, *entry.dims) if batched else shape
    if TRITON_DTYPES.get(entry.data_type) != info.dtype or not info.fits(given) or not math.prod(given):
        sizes = ",".join(map(str, shape))
        raise LoadFailed(
            f"the model_warmup {request.name!r} does not fit the model: expected {info}, got {entry.data_type} "
            f"of the sizes {sizes}"
        )
    if entry.data == "file":
        array = _from_file(request, entry, info, shape)
    else:
        array = _made(info.dtype, shape, random if entry.data == "random" else None)
    return np.repeat(array, rows, axis=0) if batched else np.array(array)


def _from_file(
    request: WarmUpRequest, entry: WarmUpInput, info: TensorInfo, shape: tuple[int, ...]
) -> np.ndarray:
    if entry.file is None:
        raise ValueError(f"the input {entry.name!r} is from a file, and names none")
    try:
        content = read_sample_file(entry.file)
    except OSError as error:
        raise LoadFailed(f"the data of the model_warmup {request.name!r} cannot be read: {error}") from error
    if info.dtype != "string":
        # Triton accepts files that are longer than needed.
        content = content[: math.prod(shape) * np.dtype(info.dtype).itemsize]
    try:
        return from_raw(request.name, info, shape, content)
    except RequestError as error:
        raise LoadFailed(f"the data of the model_warmup {request.name!r}, {entry.file}: {error}") from error


def _made(dtype: str, shape: tuple[int, ...], random: np.random.Generator | None) -> np.ndarray:
    require_memory(8 * math.prod(shape), f"a warm-up input of {' × '.join(map(str, shape))} numbers")
    if dtype == "string":
        texts = np.empty(shape, object)
        texts[...] = b"" if random is None else b"word"
        return texts
    if random is None:
        return np.zeros(shape, dtype)
    is_float = number_kind(np.dtype(dtype)) == "f"
    made: Any = random.random(shape) if is_float else random.integers(0, 2, shape)
    array: np.ndarray = made.astype(dtype)
    return array
