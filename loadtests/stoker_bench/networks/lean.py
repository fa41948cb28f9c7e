"""Models that hardly compute, so that what is measured is how their requests are read: of images, and of tokens."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker_bench.networks.onnx_file import FLOAT32, INT64, Tensor, model_bytes, node

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "IMAGE_SHAPE",
    "TOKEN_SHAPE",
    "averages",
    "jpeg",
    "sums",
    "tokens_json",
    "write_averages",
    "write_sums",
]

IMAGE_SHAPE: Final = (3, 224, 224)
TOKEN_SHAPE: Final = (128,)

_VOCABULARY: Final = 30_000
# Between these pixels an image is smooth, as photographs are; noise would take a decoder several times as long.
_SEEN_EVERY: Final = 4
_QUALITY: Final = 90


def write_averages() -> bytes:
    """Return an ONNX model of images, float32 [rows, 3, 224, 224], that gives the mean of each channel."""
    nodes = [node("GlobalAveragePool", ["image"], "pooled"), node("Flatten", ["pooled"], "averages")]
    inputs = [Tensor("image", FLOAT32, ("rows", *IMAGE_SHAPE))]
    return model_bytes("averages", nodes, {}, inputs, [Tensor("averages", FLOAT32, ("rows", 3))])


def write_sums() -> bytes:
    """Return an ONNX model of token ids and a mask, int64 [rows, tokens] each, whose unmasked ones it sums up."""
    names = ("input_ids", "attention_mask")
    nodes = [node("Mul", names, "unmasked"), node("ReduceSum", ["unmasked", "axes"], "sums")]
    inputs = [Tensor(name, INT64, ("rows", "tokens")) for name in names]
    return model_bytes("sums", nodes, {"axes": np.array([1])}, inputs, [Tensor("sums", INT64, ("rows", 1))])


def jpeg(rows: NDArray[np.float32]) -> bytes:
    """Make a JPEG of one row [1, 3, 224, 224] of numbers in [0, 1)."""
    from PIL import Image

    seen = (rows[0, :, ::_SEEN_EVERY, ::_SEEN_EVERY].transpose(1, 2, 0) * 255).astype(np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(seen).resize(IMAGE_SHAPE[:0:-1], Image.Resampling.BICUBIC).save(
        encoded, "JPEG", quality=_QUALITY
    )
    return encoded.getvalue()


def averages(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the model answers to the JPEG of a row, float32 [1, 3]."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(jpeg(rows))), np.float64)
    means: NDArray[np.float32] = (pixels / 255).mean(axis=(0, 1))[None].astype(np.float32)
    return means


def _ids(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    return (rows * _VOCABULARY).astype(np.int64)


def tokens_json(rows: NDArray[np.float32]) -> bytes:
    """Return the body of a request in the Azure form with the token ids of rows [n, tokens], and their mask."""
    ids = _ids(rows)
    data: dict[str, Any] = {"input_ids": ids.tolist(), "attention_mask": np.ones_like(ids).tolist()}
    return json.dumps({"data": data}, separators=(",", ":")).encode()


def sums(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what the model answers to the tokens of rows [n, tokens], [n, 1]; exact up to 2^24."""
    summed: NDArray[np.float32] = _ids(rows).sum(axis=1, keepdims=True).astype(np.float32)
    return summed
