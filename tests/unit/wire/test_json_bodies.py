"""JSON bodies: their depth, numbers as numpy prints them, and checks before parsing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.in_process import DOORS, InProcessServer
from tests.puppets import STEADY, PuppetRuntime

from stoker.errors import BodyTooLarge, InvalidSettings, MalformedBody, NonFiniteOutput
from stoker.settings.choices import NON_FINITE, NonFinite
from stoker.settings.model import model_settings
from stoker.tensors import TensorSpec
from stoker.wire import json_bodies
from stoker.wire.json_bodies import (
    check_slow,
    check_text,
    check_values,
    nesting_depth,
    nests_deeper,
    parse_document,
)
from stoker.wire.oip_requests import InferRequest, WantedOutput
from stoker.wire.oip_responses import encode_infer
from stoker.wire.scoring import encode_each, encode_outputs
from stoker.wire.tensor_json import encode_tensors


@settings(STEADY, max_examples=100)
@given(
    st.recursive(
        st.integers() | st.booleans() | st.none() | st.just("text"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("key"), inner),
        max_leaves=8,
    )
)
def test_nesting_depth_is_the_depth(value: Any) -> None:
    """Without brackets in strings it is exact."""

    def depth(value: Any) -> int:
        match value:
            case list():
                return 1 + max(map(depth, value), default=0)
            case dict():
                return 1 + max(map(depth, value.values()), default=0)
            case _:
                return 0

    assert nesting_depth(json.dumps(value).encode()) == depth(value)


@settings(STEADY, max_examples=100)
@given(
    st.lists(st.sampled_from([b"[", b"{", b"]", b"}", b"x"]), max_size=30).map(b"".join), st.integers(0, 12)
)
def test_the_quick_look_at_the_depth_says_the_same(body: bytes, levels: int) -> None:
    """For any brackets, in order or not, the early bound does not change the result."""
    assert nests_deeper(body, levels) == (nesting_depth(body) > levels)


def test_the_depth_goes_on_from_piece_to_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text is read in pieces, and one of them may have no bracket."""
    monkeypatch.setattr(json_bodies, "_PIECE_BYTES", 3)
    assert nesting_depth(b"[[[1, 2, 3, 4], [5, [6, 7]]]]") == 4


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (
            b'{"data": [[np.float64(inf)]]}',
            "; np.float64\\(inf\\) looks like Python's repr of numpy values, .*tolist",
        ),
        ('["ü", array([1, 2])]'.encode(), "; array\\(\\[1, 2\\]\\) looks like"),
        (b'{"data": [[None]]}', "char 11\\)$"),
    ],
)
def test_the_repr_of_numpy_values_is_explained(body: bytes, hint: str) -> None:
    """As `str(list(row))` makes it since numpy 2, which ran with the one before; other words get the place alone."""
    with pytest.raises(MalformedBody, match=f"is not valid JSON: .*{hint}"):
        parse_document(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"data": [[np.float64(0.0), np.float32(1e-05)]]}', {"data": [[0.0, 1e-05]]}),
        (b"\xef\xbb\xbf[np.int64(-3),np.uint8(255)]", [-3, 255]),
        ('["ü np.int8(1) \\\\", np.int8(1)]'.encode(), ["ü np.int8(1) \\", 1]),
    ],
)
def test_scalars_of_numpy_are_read(body: bytes, value: object) -> None:
    """`str(list(row))` of numpy 2 means numbers; what stands in strings is not touched."""
    assert parse_document(body) == value


@pytest.mark.parametrize(
    "scalar",
    [
        *(
            "np.float64(nan)",
            "np.float64(01)",
            "np.float64(1.)",
            "np.float64('1')",
            "np.float64( 1)",
            "np.int64(+1)",
        ),
        *(
            "np.float(1)",
            "numpy.float64(1)",
            "float64(1)",
            "np.float64(1",
            "np.float64(True)",
            "np.complex128(1)",
        ),
        *("np.float64(1)2", "np.float64(1)np.float64(2)", "3np.float64(1)", "-np.float64(1)"),
    ],
)
def test_other_texts_of_numpy_are_refused(scalar: str) -> None:
    """A text that is not exactly one number of numpy is refused as any other word."""
    with pytest.raises(MalformedBody):
        parse_document(f'{{"data": [[{scalar}]]}}'.encode())
    with pytest.raises(MalformedBody):
        parse_document(f'{{"data": [[np.int8(1), {scalar}]]}}'.encode())


def test_text_is_checked_as_utf_8() -> None:
    """ASCII and UTF-8 pass, anything else is refused with the place."""
    check_text(b"plain")
    check_text("naïve ✓".encode())
    with pytest.raises(MalformedBody, match="in position 3"):
        check_text(b"abc\xe9")


def test_long_bodies_with_wide_letters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them makes Python take two or four bytes for each other letter of its text."""
    monkeypatch.setattr(json_bodies, "MAX_VALUES", 10)
    monkeypatch.setattr(json_bodies, "_MAX_WIDE_BYTES", 20)
    for letter in "\u0100中😀\U0010ffff":
        with pytest.raises(BodyTooLarge, match="letters beyond U"):
            check_values(f'"{letter}"'.encode().ljust(21))
        check_values(f'"{letter}"'.encode().ljust(20))
    check_values('"a\x7f\x80é\xff"'.encode().ljust(21))


def test_long_texts_for_the_slow_parser_are_refused() -> None:
    """It takes a second for each dozen megabytes, in which the frontend does nothing else."""
    check_slow(bytes(16 << 20))
    with pytest.raises(BodyTooLarge, match="is read up to 16 MiB"):
        check_slow(bytes((16 << 20) + 1))


@pytest.mark.parametrize("unit", [b"0,", b"[0],", b"{},", b'"",', b'{"a":0},'])
def test_more_values_than_memory_allows_are_refused(unit: bytes) -> None:
    """Some bytes of JSON make ten times as many of Python's; the error names smaller forms."""
    few, many = (b'{"data": [' + unit * count + b'0], "x": 1}' for count in (1 << 19, 1 << 22))
    check_values(few)
    with pytest.raises(BodyTooLarge, match="4194304 JSON values"):
        parse_document(many)


ODD = np.array([[1, np.nan], [-np.inf, 2]], np.float32)
PLAIN = np.array([[1, 2]], np.float32)
SPECS = [TensorSpec("y", "float32", (2,)), TensorSpec("z", "float32", (2,))]
WANTED = {"words": "[[1.0, NaN], [-Infinity, 2.0]]", "null": "[[1.0,null],[null,2.0]]"}


def encoded(array: np.ndarray, non_finite: NonFinite) -> list[bytes]:
    """An array by each encoder of Azure's JSON and of v2, without its envelope."""
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
def test_non_finite_numbers_are_written_as_words_or_null(non_finite: NonFinite) -> None:
    """Non-finite numbers are words, which Python reads, or null, which all parsers read."""
    one, packed, named, each, infer = encoded(ODD, non_finite)
    assert one.decode() == packed.decode() == WANTED[non_finite]
    parsed = json.loads(named, parse_constant=str)
    assert parsed["y"] == parsed["z"] == json.loads(one, parse_constant=str)
    assert json.loads(b"[" + each + b"]", parse_constant=str) == [[row] for row in parsed["y"]]
    assert json.loads(infer, parse_constant=str)["outputs"][0]["data"] == [*parsed["y"][0], *parsed["y"][1]]


def test_non_finite_numbers_are_refused_on_request() -> None:
    """Only numbers count: a string may say null, and so may a request's id."""
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
    requests: dict[str, Any] = {
        "/score": {"data": rows},
        "/v2/models/model/infer": {"inputs": [tensor]},
        "/v1/models/model:predict": {"instances": rows},
        "/v1/models/model:classify": {"examples": [{"x": row} for row in rows]},
    }
    return {path: json.dumps(body).encode() for path, body in requests.items()}


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
