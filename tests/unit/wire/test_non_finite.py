"""NaN and infinities in the JSON of answers: as words, as null, or as an error."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.contract.in_process import DOORS, InProcessServer
from tests.puppets import PuppetRuntime

from stoker.errors import InvalidSettings, NonFiniteOutput
from stoker.settings.choices import NON_FINITE, NonFinite
from stoker.settings.model import model_settings
from stoker.tensors import TensorSpec
from stoker.wire.oip_requests import InferRequest, WantedOutput
from stoker.wire.oip_responses import encode_infer
from stoker.wire.scoring import encode_each, encode_outputs
from stoker.wire.tensor_json import encode_tensors

ODD = np.array([[1, np.nan], [-np.inf, 2]], np.float32)
PLAIN = np.array([[1, 2]], np.float32)
SPECS = [TensorSpec("y", "float32", (2,)), TensorSpec("z", "float32", (2,))]
WANTED = {"words": "[[1.0, NaN], [-Infinity, 2.0]]", "null": "[[1.0,null],[null,2.0]]"}


def encoded(array: np.ndarray, non_finite: NonFinite) -> list[bytes]:
    """An array by each of the encoders of Azure's JSON and of v2, beside what they put around it."""
    request = InferRequest("null", {}, (WantedOutput("y", binary=False),))
    _, infer = encode_infer("m", "1", request, {"y": array}, batched=True, non_finite=non_finite)
    return [
        encode_outputs(SPECS[:1], [array], non_finite),
        encode_tensors({"y": array}, non_finite),
        encode_outputs(SPECS, [array, array], non_finite),
        b",".join(encode_each(array, non_finite)),
        infer,
    ]


@pytest.mark.parametrize("non_finite", ["words", "null"])
def test_what_is_not_finite_is_written(non_finite: NonFinite) -> None:
    """As words, which Python and JavaScript's older cousins read, or as null, which all parsers do."""
    one, packed, named, each, infer = encoded(ODD, non_finite)
    assert one.decode() == packed.decode() == WANTED[non_finite]
    parsed = json.loads(named, parse_constant=str)
    assert parsed["y"] == parsed["z"] == json.loads(one, parse_constant=str)
    assert json.loads(b"[" + each + b"]", parse_constant=str) == [[row] for row in parsed["y"]]
    assert json.loads(infer, parse_constant=str)["outputs"][0]["data"] == [*parsed["y"][0], *parsed["y"][1]]


def test_what_is_not_finite_is_refused() -> None:
    """Only that: a string may say null, and so may a request's id."""
    with pytest.raises(NonFiniteOutput):
        encode_outputs(SPECS[:1], [ODD], "error")
    with pytest.raises(NonFiniteOutput):
        encode_each(ODD, "error")
    with pytest.raises(NonFiniteOutput):
        encode_tensors({"y": ODD}, "error")
    request = InferRequest("", {}, (WantedOutput("y", binary=False),))
    with pytest.raises(NonFiniteOutput):
        encode_infer("m", "1", request, {"y": ODD}, batched=True, non_finite="error")
    words = np.array([[b"null"]], object)
    assert encode_tensors({"words": words}, "error") == b'[["null"]]'
    for one in NON_FINITE:
        assert encoded(PLAIN, one) == encoded(PLAIN, "words")


def test_binary_tensors_are_as_they_are() -> None:
    """They hold such numbers."""
    request = InferRequest("", {}, (WantedOutput("y", binary=True),))
    length, body = encode_infer("m", "1", request, {"y": ODD}, batched=True, non_finite="error")
    assert body[length:] == ODD.tobytes()


def spoil(inputs: Any) -> list[np.ndarray]:
    """Twice the numbers, and NaN for those below 0."""
    return [np.where(inputs[0] < 0, np.nan, inputs[0] * 2).astype(np.float32)]


def bodies(*rows: list[float]) -> dict[str, bytes]:
    """Requests of all protocols with these rows, by their paths."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": rows}
    asked: dict[str, Any] = {
        "/score": {"data": rows},
        "/v2/models/model/infer": {"inputs": [tensor]},
        "/v1/models/model:predict": {"instances": rows},
        "/v1/models/model:classify": {"examples": [{"x": row} for row in rows]},
    }
    return {path: json.dumps(body).encode() for path, body in asked.items()}


@pytest.mark.parametrize("non_finite", NON_FINITE)
def test_every_protocol_heeds_the_setting(non_finite: NonFinite) -> None:
    """By both paths, for rows that come back alone and in several; an error has a code."""
    with InProcessServer(PuppetRuntime(answer=spoil), non_finite=non_finite) as server:
        for rows in ([[-1.0, 2.0]], [[-1.0, 2.0], [3.0, 4.0]]):
            for path, body in bodies(*rows).items():
                for headers in DOORS.values():
                    answer = server.ask("POST", path, headers, body)
                    if non_finite == "error":
                        assert answer.status == 500
                        code = answer.json().get("code") or answer.header("x-stoker-error-code")
                        assert code == "non_finite_output"
                        assert answer.header("x-ms-run-function-failed") == "True"
                    else:
                        assert answer.status == 200
                        assert (b"NaN" in answer.body, b"null" in answer.body) == (
                            non_finite == "words",
                            non_finite == "null",
                        )
            for path, body in bodies([1.0, 2.0]).items():
                assert server.ask("POST", path, (), body).status == 200


@pytest.mark.parametrize(
    ("value", "read"), [("words", "words"), ("null", "null"), (None, "null"), ("error", "error")]
)
def test_the_setting_is_one_of_three(value: Any, read: str) -> None:
    """YAML's null without quotes is meant as the word."""
    assert model_settings({"non_finite": value}, "test").non_finite == read
    with pytest.raises(InvalidSettings, match="non_finite must be words or null or error"):
        model_settings({"non_finite": "nan"}, "test")
