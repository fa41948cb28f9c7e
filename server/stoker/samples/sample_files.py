"""Reads files with requests as a model's inputs: JSON of any served protocol, arrays, or images."""

from __future__ import annotations

import math
import mimetypes
import zipfile
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.errors import InvalidInput, LoadFailed, RequestError
from stoker.settings.files import MOST_SAMPLE_BYTES, read_sample_file
from stoker.settings.image_input import ImageInput
from stoker.tensors import ModelTensors, NamedSignature, Signature, TensorInfo, TensorSpec
from stoker.wire.array_bodies import decode_npy
from stoker.wire.datatypes import DATATYPES
from stoker.wire.images import ImageReader
from stoker.wire.json_bodies import kind_of, parse_document
from stoker.wire.oip_requests import decode_inputs
from stoker.wire.tensor_json import decode_tensors
from stoker.wire.tfs import decode_predict

_NPY: Final = b"\x93NUMPY"
_ZIP: Final = b"PK\x03\x04"
# The file is the operator's own, so the limit is Pillow's threshold for decompression bombs.
_MAX_PIXELS: Final = 89_478_485


def read_sample(
    path: Path, inputs: Sequence[TensorInfo], *, model: str = "", image: ImageInput | None = None
) -> dict[str, np.ndarray]:
    """Read a file as a model's inputs: JSON of any served protocol, `.npy`, `.npz`, or an image.

    Args:
        path: The file; its format is detected from its content.
        model: Its name, for error messages.
        image: How the model's input is made from images; None if it takes none.

    Returns:
        The inputs by name, of the model's dtypes; strings are `object` arrays of `bytes`.
    """
    try:
        content = read_sample_file(path)
    except OSError as error:
        raise LoadFailed.unreadable_sample(error) from error
    try:
        feeds = _from_images(content, inputs, image) if image is not None else None
        if feeds is None:
            feeds = _decoded(content, path, ModelTensors(tuple(inputs), (), batched=False), model)
    except RequestError as error:
        reason = str(error).rstrip(".")
        raise LoadFailed(f"the sample input {path} is not what the model takes: {reason}") from error
    empty = next((name for name, array in feeds.items() if not array.size), None)
    if empty is not None:
        raise LoadFailed(f"the sample input {path} is empty: it has no values for {empty!r}")
    # Decoders return read-only views of the file.
    return {info.name: np.array(feeds[info.name]) for info in inputs}


def describe_sample(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read a file as the inputs of a model that does not say what it takes.

    Args:
        path: `.npy`, `.npz`, or JSON of the Open Inference Protocol; JSON with `data` or `instances` too for a model
            with one input, whose numbers are float32 if one of them has a fraction, else int64.
        names: The names of the inputs.

    Raises:
        LoadFailed: It cannot be read, or its format does not say what the inputs are.
    """
    try:
        content = read_sample_file(path)
        if content.startswith(_NPY):
            feeds = {names[0]: load_array(content)}
        elif content.startswith(_ZIP):
            feeds = {name: load_array(member) for name, member in _members(content).items()}
        else:
            feeds = _described_json(parse_document(content), names)
    except OSError as error:
        raise LoadFailed.unreadable_sample(error) from error
    except (RequestError, ValueError, KeyError, TypeError) as error:
        raise LoadFailed(
            f"the sample input {path} does not say what the model takes: {error}; save its inputs as .npz"
        ) from error
    if sorted(feeds) != sorted(names):
        raise LoadFailed(
            f"the sample input {path} has {', '.join(sorted(feeds)) or 'nothing'}, and the model takes "
            f"{', '.join(names)}: name them alike"
        )
    return {name: np.array(feeds[name]) for name in names}


def load_array(content: bytes) -> np.ndarray:
    """Read an array that numpy has saved; its header may announce no more numbers than there are bytes."""
    file = BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize > len(content):
        raise ValueError("an array is cut short")
    return np.load(BytesIO(content), allow_pickle=False)  # type: ignore[no-any-return]  # no archive


def _described_json(document: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    if not isinstance(document, dict):
        raise InvalidInput(f"expected a JSON object, got {kind_of(document)}")
    if "inputs" in document and _is_open_inference(document["inputs"]):
        dtypes = {datatype: dtype for dtype, datatype in DATATYPES.items()}
        return {
            one["name"]: np.array(one["data"], dtypes[one["datatype"]]).reshape(one["shape"])
            for one in document["inputs"]
        }
    rows = document.get("data", document.get("instances"))
    if rows is None or len(names) != 1:
        raise InvalidInput(f"it has to name {', '.join(names)} with their types")
    array = np.array(rows)
    if array.dtype.kind not in "if":
        raise InvalidInput("its rows are no numbers of one shape")
    return {names[0]: array.astype(np.float32 if array.dtype.kind == "f" else np.int64)}


def _from_images(
    content: bytes, inputs: Sequence[TensorInfo], image: ImageInput
) -> dict[str, np.ndarray] | None:
    """The rows of an image file; None if the file is no image."""
    fixed = [info for info in inputs if info.dtype != "string" and -1 not in info.shape[1:]]
    specs = tuple(TensorSpec(info.name, info.dtype, info.shape[1:]) for info in fixed)
    if len(specs) < len(inputs):
        return None
    rows_bytes = len(content) * max(spec.row_bytes for spec in specs)
    reader = ImageReader(image, Signature(specs, ()), max_pixels=_MAX_PIXELS, max_rows_bytes=rows_bytes)
    if not reader.claims(content, b""):
        return None
    opened = reader.open(content, b"")
    return None if isinstance(opened, list) else {specs[0].name: opened.rows(lambda: None)[0]}


def _decoded(content: bytes, path: Path, tensors: ModelTensors, model: str) -> dict[str, np.ndarray]:
    names = ", ".join(info.name for info in tensors.inputs)
    if content.startswith(_NPY):
        if len(tensors.inputs) != 1:
            raise InvalidInput(f"a .npy file holds one array, and the model has {names}: save it as .npz")
        return {tensors.inputs[0].name: decode_npy(content, tensors.inputs[0])}
    if content.startswith(_ZIP):
        return _from_archive(content, tensors)
    media_type = mimetypes.guess_type(path.name)[0] or ""
    if media_type.startswith("image/"):
        raise InvalidInput("it is an image, and the settings of the model have no image input")
    return _from_json(content, tensors, model)


def _from_archive(content: bytes, tensors: ModelTensors) -> dict[str, np.ndarray]:
    members = _members(content)
    wanted = {info.name for info in tensors.inputs}
    if members.keys() != wanted:
        raise InvalidInput(
            f"it holds the arrays {', '.join(sorted(members)) or 'none'}, and the model has the inputs "
            f"{', '.join(sorted(wanted))}"
        )
    return {info.name: decode_npy(members[info.name], info) for info in tensors.inputs}


def _members(content: bytes) -> dict[str, bytes]:
    """Return the `.npy` files of a `.npz` archive by name; `MOST_SAMPLE_BYTES` is their limit together."""
    members, left_bytes = {}, MOST_SAMPLE_BYTES
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            for name in archive.namelist():
                if archive.getinfo(name).file_size > left_bytes:
                    raise _too_large()
                with archive.open(name) as member:
                    inflated = member.read(left_bytes + 1)
                # A header that lies about the size is found here.
                if len(inflated) > left_bytes:
                    raise _too_large()
                members[name.removesuffix(".npy")] = inflated
                left_bytes -= len(inflated)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise InvalidInput(f"it is no .npz file: {error}") from error
    return members


def _too_large() -> InvalidInput:
    return InvalidInput(f"its arrays have more than {MOST_SAMPLE_BYTES >> 20} MiB")


def _from_json(content: bytes, tensors: ModelTensors, model: str) -> dict[str, np.ndarray]:
    document = parse_document(content)
    if not isinstance(document, dict):
        raise InvalidInput(
            f'expected a JSON object with "data", "instances" or "inputs", got {kind_of(document)}'
        )
    if "data" in document:
        return decode_tensors(content, tensors)
    if "inputs" in document and _is_open_inference(document["inputs"]):
        return decode_inputs(model, tensors, document, memoryview(b""))
    if "inputs" in document or "instances" in document:
        # A sample belongs to this signature, whichever one the request names.
        named = NamedSignature(str(document.get("signature_name", "")), tensors)
        return decode_predict([named], content).inputs
    keys = ", ".join(map(repr, document)) or "none"
    raise InvalidInput(f'the JSON has the keys {keys}; expected "data", "instances" or "inputs"')


def _is_open_inference(inputs: Any) -> bool:
    """Whether `inputs` are the Open Inference Protocol's and not TensorFlow Serving's columns."""
    return isinstance(inputs, list) and all(isinstance(i, dict) and "datatype" in i for i in inputs)
