"""JSON of whole tensors: two readers with one result, and scores by class name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.errors import InvalidInput, NonFiniteOutput, StokerError
from stoker.settings.choices import NonFinite
from stoker.tensors import ModelTensors, NamedSignature, Signature, TensorInfo, TensorSpec
from stoker.wire import tensor_json
from stoker.wire.scoring import encode_each, encode_outputs
from stoker.wire.tensor_json import ColumnNames, TensorDecoder, decode_tensors
from stoker.wire.tfs import PredictRequest, encode_predict


def model(*infos: TensorInfo) -> ModelTensors:
    return ModelTensors(infos, (), batched=not any(info.any_rank for info in infos))


IDS = TensorInfo("ids", "int64", (-1, -1))
MODELS = {
    "one": model(IDS),
    "two": model(IDS, TensorInfo("mask", "int32", (-1, -1))),
    "floats": model(TensorInfo("x", "float32", (-1, 2, -1)), TensorInfo("y", "float64", (-1,))),
    "small": model(TensorInfo("u", "uint8", (), any_rank=True)),
}


def result(decode: Callable[[bytes], dict[str, np.ndarray]], body: bytes) -> Any:
    """The bits of the result, or the error."""
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
def test_both_paths_have_one_result(name: str) -> None:
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
        assert result(decoder.decode, bytes(body)) == result(
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
    """Bodies that fit take the fast path."""
    body = json.dumps({"data": data}).encode()
    expected = result(lambda body: decode_tensors(body, MODELS[name]), body)
    monkeypatch.setattr(tensor_json, "decode_tensors", None)
    assert result(TensorDecoder(MODELS[name]).decode, body) == expected


def test_texts_and_names_like_lists_are_left_to_the_careful_path() -> None:
    """Brackets prove nothing where names hold them."""
    odd = model(TensorInfo("a[", "int64", (-1,)), TensorInfo("b]", "int64", (-1,)))
    assert TensorDecoder(odd).decode(b'{"data": {"a[": [1], "b]": [2]}}')["b]"].tolist() == [2]
    texts = model(TensorInfo("s", "string", (-1,)))
    assert TensorDecoder(texts).decode(b'{"data": ["x"]}')["s"].tolist() == [b"x"]
    with pytest.raises(InvalidInput, match="inputs ids"):
        TensorDecoder(MODELS["one"]).decode(b'{"data": {"ids": [[1]], "more": [[1]]}}')


NAMES = ("cat", 'a "dog"', "},{")
SCORES = TensorInfo("scores", "float32", (-1, 3), labels=NAMES, as_objects=True)
LABEL = TensorInfo("label", "int64", (-1,))
NUMBERS = np.array([[0.1, 1e-30, 3], [1 / 3, 16777217, -0.0]], np.float32)
ODD = np.array([[0.5, np.nan, -np.inf], [1, 2, 3]], np.float32)


def objects(lists: bytes) -> Any:
    """The rows of an answer as objects, with their numbers as they were written."""
    rows = json.loads(lists, parse_float=str, parse_int=str, parse_constant=str)
    return [dict(zip(NAMES, row, strict=True)) for row in rows]


def read(text: bytes) -> Any:
    """An answer, with its numbers as they were written."""
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_are_written_as_in_lists(dtype: str) -> None:
    """Each name has the number of its column, digit by digit, with any characters in the name."""
    array = np.array([[0.1, 1e-3, 3], [1 / 3, 16384, -0.0]], dtype)
    lists = encode_outputs([TensorSpec("scores", dtype, (3,))], [array])
    names = ColumnNames([SCORES])
    assert read(names.encode_outputs([TensorSpec("scores", dtype, (3,))], [array])) == objects(lists)
    assert names.encode_each(array) == [names.encode_tensors({"scores": row[None]}) for row in array]
    assert [read(text) for text in names.encode_each(array)] == [[row] for row in objects(lists)]
    assert names.encode_tensors({"scores": array[:0]}) == b"[]"


@pytest.mark.parametrize("non_finite", ["words", "null"])
def test_non_finite_columns_are_written_as_in_lists(non_finite: NonFinite) -> None:
    """Non-finite numbers are words or null, and do not change the answers beside them."""
    names = ColumnNames([SCORES])
    plain = encode_each(ODD, non_finite)
    assert [read(text) for text in names.encode_each(ODD, non_finite)] == [objects(text) for text in plain]
    assert names.encode_each(ODD, non_finite)[1] == names.encode_tensors({"scores": ODD[1:]})


def test_non_finite_columns_are_refused_on_request() -> None:
    """Where non-finite numbers are errors, one in any output is refused."""
    names = ColumnNames([LABEL, SCORES])
    with pytest.raises(NonFiniteOutput):
        names.encode_tensors({"label": np.array([1, 2]), "scores": ODD}, "error")
    with pytest.raises(NonFiniteOutput):
        names.encode_tensors({"label": ODD[:, 0] * np.nan, "scores": NUMBERS}, "error")
    with pytest.raises(NonFiniteOutput):
        ColumnNames([SCORES]).encode_each(ODD, "error")


def test_other_outputs_are_lists() -> None:
    """Numbers and words beside the scores are as ever."""
    names = ColumnNames([LABEL, SCORES])
    rows = [dict(zip(NAMES, row, strict=True)) for row in NUMBERS.tolist()]
    words = np.array([b"cat", "é".encode()], object)
    answer = json.loads(names.encode_tensors({"label": words, "scores": NUMBERS.astype(np.float64)}))
    assert answer == {"label": ["cat", "é"], "scores": rows}
    specs = [TensorSpec("label", "int64", ()), TensorSpec("scores", "float64", (3,))]
    answer = json.loads(names.encode_outputs(specs, [np.array([4, 5]), NUMBERS.astype(np.float64)]))
    assert answer == {"label": [4, 5], "scores": rows}


def test_a_row_without_a_column_for_each_name_is_a_fault() -> None:
    """Scores never go under other names than their own."""
    with pytest.raises(ValueError, match=r"a row of shape \[2\] has no column for each of 3 names"):
        ColumnNames([SCORES]).encode_tensors({"scores": NUMBERS[:, :2]})


@pytest.mark.parametrize("rows", [True, False])
def test_tensorflow_servings_answers_have_objects(rows: bool) -> None:
    """In row and column format, with one output or several."""
    outputs = {"label": np.array([4, 5]), "scores": ODD}
    wanted = objects(encode_outputs([TensorSpec("scores", "float32", (3,))], [ODD]))

    def answer(*infos: TensorInfo) -> Any:
        signature = NamedSignature("", ModelTensors((), infos, batched=True))
        (value,) = read(encode_predict(PredictRequest(signature, {}, rows), outputs)).values()
        return value

    assert answer(SCORES) == wanted
    if rows:
        assert answer(LABEL, SCORES) == [
            {"label": label, "scores": row} for label, row in zip("45", wanted, strict=True)
        ]
    else:
        assert answer(LABEL, SCORES) == {"label": ["4", "5"], "scores": wanted}


def test_signature_marks_outputs_that_are_objects() -> None:
    """It does so for rows and for whole tensors; a signature saved by an older version marks none."""
    rows = Signature((), (TensorSpec("scores", "float32", (3,), labels=NAMES, as_objects=True),))
    packed = Signature((), (), "tensors", tensors=ModelTensors((), (SCORES, LABEL), batched=True))
    for signature in (rows, packed):
        assert Signature.from_json(signature.to_json()) == signature
        assert signature.model_tensors is not None
        assert signature.model_tensors.outputs[0] == SCORES
    older = packed.to_json()
    older["tensors"]["outputs"] = [list(entry.values())[:5] for entry in older["tensors"]["outputs"]]
    found = Signature.from_json(older).model_tensors
    assert found is not None
    assert [(info.labels, info.as_objects) for info in found.outputs] == [(NAMES, False), ((), False)]


def test_a_single_value_is_no_list_of_rows() -> None:
    """The error says so; so does that of an object without inputs."""
    text = TensorInfo("text", "string", (-1,), any_rank=True)
    tensors = ModelTensors((text,), (), batched=True)
    with pytest.raises(InvalidInput, match="text: expected a list of rows, got a single value"):
        decode_tensors(b'{"data": "x"}', tensors)
    with pytest.raises(InvalidInput, match="the inputs text; got none"):
        decode_tensors(b'{"data": {}}', tensors)
