"""Tensors in JSON by the fast path: what it takes is what the careful one makes of it; it leaves the rest to that."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.errors import InvalidInput, StokerError
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire import tensor_json
from stoker.wire.tensor_json import TensorDecoder, decode_tensors


def model(*infos: TensorInfo) -> ModelTensors:
    return ModelTensors(infos, (), batched=not any(info.any_rank for info in infos))


IDS = TensorInfo("ids", "int64", (-1, -1))
MODELS = {
    "one": model(IDS),
    "two": model(IDS, TensorInfo("mask", "int32", (-1, -1))),
    "floats": model(TensorInfo("x", "float32", (-1, 2, -1)), TensorInfo("y", "float64", (-1,))),
    "small": model(TensorInfo("u", "uint8", (), any_rank=True)),
}


def verdict(decode: Callable[[bytes], dict[str, np.ndarray]], body: bytes) -> Any:
    """What came out, bit for bit, or the error."""
    try:
        return [(name, array.dtype, array.shape, array.tobytes()) for name, array in decode(body).items()]
    except StokerError as error:
        return type(error), str(error)


def body_of(chance: random.Random, tensors: ModelTensors) -> bytes:
    """A request that mostly fits."""
    rows = chance.choice((0, 1, 1, 2, 3))

    def element(info: TensorInfo) -> Any:
        if info.dtype.startswith("f"):
            return chance.choice(
                (chance.uniform(-9, 9), chance.randrange(-9, 9), 1e39, 2**53 + 1, -0.0, 5e-324)
            )
        return chance.choice(
            (chance.randrange(200), chance.randrange(200), -1, 2**31, 2**63, 1.0, True, None)
        )

    def lists(info: TensorInfo, sizes: tuple[int, ...]) -> Any:
        if not sizes:
            return element(info) if chance.random() < 0.1 else chance.randrange(200)
        return [lists(info, sizes[1:]) for _ in range(sizes[0])]

    data: Any = {
        info.name: lists(
            info, (rows, *(size if size > 0 else chance.randrange(4) for size in info.shape[1:]))
        )
        for info in tensors.inputs
    }
    if len(data) == 1 and chance.random() < 0.7:
        (data,) = data.values()
    return json.dumps({"data": data}, indent=chance.choice((None, None, 1))).encode()


@pytest.mark.parametrize("name", MODELS)
def test_both_paths_have_one_verdict(name: str) -> None:
    """For requests that fit, that hold something else, and that have lost, doubled or changed some bytes."""
    chance = random.Random(name)
    tensors = MODELS[name]
    decoder = TensorDecoder(tensors)
    for _ in range(400):
        body = bytearray(body_of(chance, tensors))
        for _ in range(chance.choice((0, 0, 1, 2))):
            start = chance.randrange(len(body))
            piece = body[start : start + chance.choice((1, 1, 8))]
            body[start : start + len(piece)] = chance.choice(
                (b"", piece + piece, b"[", b"]", b",", b"7", b'"')
            )
        assert verdict(decoder.decode, bytes(body)) == verdict(
            lambda body: decode_tensors(body, tensors), bytes(body)
        ), body


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("one", [[1, 2], [3, 4]]),
        ("one", {"ids": [[1, -2]]}),
        ("two", {"mask": [[1, 0]], "ids": [[7, 8]]}),
        ("floats", {"x": [[[1], [2.5]]], "y": [1e300]}),
        ("small", [[[[[255]]]]]),
    ],
)
def test_numbers_never_become_lists_of_python(monkeypatch: pytest.MonkeyPatch, name: str, data: Any) -> None:
    """What fits is taken by the fast path."""
    body = json.dumps({"data": data}).encode()
    expected = verdict(lambda body: decode_tensors(body, MODELS[name]), body)
    monkeypatch.setattr(tensor_json, "decode_tensors", None)
    assert verdict(TensorDecoder(MODELS[name]).decode, body) == expected


def test_texts_and_names_like_lists_are_left_to_the_careful_path() -> None:
    """Brackets prove nothing where names hold them."""
    odd = model(TensorInfo("a[", "int64", (-1,)), TensorInfo("b]", "int64", (-1,)))
    assert TensorDecoder(odd).decode(b'{"data": {"a[": [1], "b]": [2]}}')["b]"].tolist() == [2]
    texts = model(TensorInfo("s", "string", (-1,)))
    assert TensorDecoder(texts).decode(b'{"data": ["x"]}')["s"].tolist() == [b"x"]
    with pytest.raises(InvalidInput, match="inputs ids"):
        TensorDecoder(MODELS["one"]).decode(b'{"data": {"ids": [[1]], "more": [[1]]}}')
