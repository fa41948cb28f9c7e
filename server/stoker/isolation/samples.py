"""Requests that a model is known to answer: finding them, and reading them as its inputs.

What is made up need not be valid: an encoded image, an index, a text that a model parses. A sample is.
"""

from __future__ import annotations

import mimetypes
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.errors import InvalidInput, LoadFailed, RequestError
from stoker.image_input import ImageInput
from stoker.isolation.warm_up_requests import read_recorded_requests, warm_up_feeds
from stoker.servable import Servable
from stoker.tensors import ModelTensors, NamedSignature, Signature, TensorInfo, TensorSpec
from stoker.wire.array_bodies import decode_npy
from stoker.wire.images import ImageReader
from stoker.wire.json_bodies import kind_of, parse_document
from stoker.wire.oip import decode_inputs
from stoker.wire.tensor_json import decode_tensors
from stoker.wire.tfs import decode_predict

__all__ = ["Sample", "find_sample_feeds", "first_rows", "read_sample"]

_NPY: Final = b"\x93NUMPY"
_ZIP: Final = b"PK\x03\x04"
_RECORDED: Final = Path("assets.extra", "tf_serving_warmup_requests")
# The operator's own file: what Pillow itself takes for an attack is the limit.
_MAX_PIXELS: Final = 89_478_485


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that a model is known to answer.

    Attributes:
        feeds: The inputs by name, of the model's dtypes; strings are `object` arrays of `bytes`. All can be written.
        source: Where it is from, as the operator is told.
    """

    feeds: Mapping[str, np.ndarray]
    source: str

    @property
    def rows(self) -> int | None:
        """The length of all first axes; None if they differ, so that they can be no batch axis."""
        counts = {array.shape[0] if array.ndim else None for array in self.feeds.values()}
        return counts.pop() if len(counts) == 1 else None


def find_sample_feeds(servable: Servable, inputs: Sequence[TensorInfo]) -> Sample | None:
    """Find a request that a model is known to answer.

    It is the first of these: the file that the setting names, `sample_input.json` beside the model, a SavedModel's
    `assets.extra/tf_serving_warmup_requests`, Triton's `model_warmup`.

    Args:
        servable: The model; no entry script, which gets its sample as it is.
        inputs: What it takes.

    Raises:
        LoadFailed: What is there cannot be read, or does not fit the model.
        InvalidSettings: The sample is an image, and the model cannot take what its image input says.
    """
    file = servable.sample_file
    if file is not None:
        return Sample(read_sample(file, inputs, model=servable.name, image=servable.image), file.name)
    recorded = servable.path / _RECORDED
    if servable.framework == "tensorflow" and recorded.is_file():
        feeds = read_recorded_requests(recorded, inputs)
        if feeds is not None:
            return Sample(feeds, recorded.name)
    if servable.warm_up:
        # Values of a file have been chosen by somebody, others by nobody.
        by_files = sorted(servable.warm_up, key=lambda request: all(i.file is None for i in request.inputs))
        return Sample(warm_up_feeds(by_files[0], inputs), f"model_warmup {by_files[0].name!r}")
    return None


def first_rows(
    specs: Sequence[TensorSpec], rows: int, sample: Mapping[str, np.ndarray] | None
) -> list[np.ndarray]:
    """Return inputs `[rows, *row_shape]` for the first batches of a model: its sample over and over, or zeros."""
    if sample is None:
        return [np.zeros((rows, *spec.shape), spec.dtype) for spec in specs]
    return [np.resize(sample[spec.name], (rows, *spec.shape)).astype(spec.dtype) for spec in specs]


def read_sample(
    path: Path, inputs: Sequence[TensorInfo], *, model: str = "", image: ImageInput | None = None
) -> dict[str, np.ndarray]:
    """Read a file as a model's inputs: JSON of any protocol that is served, `.npy`, `.npz`, or an image.

    Args:
        path: The file; what it is follows from its content.
        inputs: What the model takes.
        model: Its name, for error messages.
        image: How its input is made from images; None if it takes none.

    Returns:
        The inputs by name, of the model's dtypes; strings are `object` arrays of `bytes`.

    Raises:
        LoadFailed: It cannot be read, does not fit the model, or holds no rows.
        InvalidSettings: It is an image, and the model cannot take what `image` says.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadFailed(f"the sample input cannot be read: {error}") from error
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
    # Decoders give views of the file, which cannot be written.
    return {info.name: np.array(feeds[info.name]) for info in inputs}


def _from_images(
    content: bytes, inputs: Sequence[TensorInfo], image: ImageInput
) -> dict[str, np.ndarray] | None:
    """The rows of images; None if there are none in the file."""
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
    """The arrays of a `.npz` file, which is a ZIP of a `.npy` file for each of them."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise InvalidInput(f"it is no .npz file: {error}") from error
    wanted = {info.name for info in tensors.inputs}
    if members.keys() != wanted:
        raise InvalidInput(
            f"it holds the arrays {', '.join(sorted(members)) or 'none'}, and the model has the inputs "
            f"{', '.join(sorted(wanted))}"
        )
    return {info.name: decode_npy(members[info.name], info) for info in tensors.inputs}


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
        # Whichever it names: it is a sample of this one.
        named = NamedSignature(str(document.get("signature_name", "")), tensors)
        return decode_predict([named], content).inputs
    keys = ", ".join(map(repr, document)) or "none"
    raise InvalidInput(f'the JSON has the keys {keys}; expected "data", "instances" or "inputs"')


def _is_open_inference(inputs: Any) -> bool:
    """Whether `inputs` are the Open Inference Protocol's and not TensorFlow Serving's columns."""
    return isinstance(inputs, list) and all(isinstance(i, dict) and "datatype" in i for i in inputs)
