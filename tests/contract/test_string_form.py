"""Scripts without decorators (CONTRACT A.4, A.5, A.8): the body as text in, JSON out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.contract.in_process import InProcessServer, script

FAILED = "An unexpected error occurred in scoring script. Check the logs for more info."
INTERNAL = "An unexpected internal error occurred. Check the logs for more info."
BOM = b"\xef\xbb\xbf"


def echo(raw_data: str) -> str:
    """The text as it came."""
    return raw_data


def digits(raw_data: str) -> list[int]:
    """As the how-to's script reads its body: rows of three numbers, the place of the largest."""
    data = np.array(json.loads(raw_data)["data"], np.float64)
    if data.ndim != 2 or data.shape[1] != 3:
        raise ValueError(f"rows of three numbers, not {data.shape}")
    return data.argmax(axis=1).tolist()


def headers(raw_data: str, request_headers: dict[str, str]) -> dict[str, str]:
    """The headers."""
    del raw_data
    assert type(request_headers) is dict
    return request_headers


async def later(raw_data: str) -> str:
    """The text, from a coroutine."""
    return raw_data


@pytest.fixture(scope="module")
def text() -> Iterator[InProcessServer]:
    """A script that returns its text."""
    with InProcessServer(script(echo)) as server:
        yield server


@pytest.fixture(scope="module")
def numbers() -> Iterator[InProcessServer]:
    """A script that reads rows of numbers."""
    with InProcessServer(script(digits)) as server:
        yield server


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"text", "text"),
        ("naïve ✓".encode(), "naïve ✓"),
        (BOM + b"{}", "{}"),
        (b"a=1&b=%20", "a=1&b=%20"),
        (b" \r\n", " \r\n"),
        (b"\x00\x7f", "\x00\x7f"),
    ],
)
@pytest.mark.parametrize("content_type", [None, "application/json", "application/x-www-form-urlencoded"])
def test_the_body_is_text(
    text: InProcessServer, body: bytes, expected: str, content_type: str | None
) -> None:
    """UTF-8, without a byte order mark; also that of a form, which curl says it sends where nobody says otherwise."""
    sent = [] if content_type is None else [("Content-Type", content_type)]
    answer = text.by_both_doors(body, sent)

    assert (answer.status, answer.json()) == (200, expected)


def test_no_body_is_an_empty_text(text: InProcessServer) -> None:
    """A POST without a length, or with none of it, is scored."""
    assert text.ask("POST").json() == ""
    assert text.by_both_doors(b"").json() == ""


def test_a_form_with_parts_is_refused(text: InProcessServer) -> None:
    """Its parts are not what such a script can read; the real server gives it an empty text."""
    body = b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\n1\r\n--x--\r\n'
    answer = text.by_both_doors(body, [("Content-Type", "multipart/form-data; boundary=x")])

    assert (answer.status, answer.json()["code"]) == (415, "unsupported_encoding")
    assert answer.header("x-ms-run-function-failed") == "False"


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"\x1f\x8b\x08", "'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte"),
        (b'{"a": "\xff"}', "'utf-8' codec can't decode byte 0xff in position 7: invalid start byte"),
        ("{}".encode("utf-16"), "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_body_that_is_no_utf8_gets_400_in_azure_s_words(
    text: InProcessServer, body: bytes, where: str
) -> None:
    """Undeclared compression and other encodings get 400, which is no failure of the script."""
    answer = text.by_both_doors(body)

    assert (answer.status, answer.json()["message"]) == (400, f"Input cannot be decoded as UTF-8: {where}")
    assert answer.header("x-ms-run-function-failed") == "False"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"data": [[1, 2, 3]]} tail',
        b"data=1",
        b'{"data": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b"[" * 200_000,
        b'{"data": [[1, 2, ' + b"9" * 5000 + b"]]}",
    ],
    ids=["empty", "cut", "tail", "form", "deep", "deeper", "digits"],
)
def test_a_script_that_fails_on_malformed_json_is_a_400(numbers: InProcessServer, body: bytes) -> None:
    """400 that says where; the real server says 500 and blames the script."""
    answer = numbers.by_both_doors(body)

    assert (answer.status, answer.json()["code"]) == (400, "malformed_body")
    assert answer.json()["message"].startswith("Request body is not valid JSON: ")
    assert answer.header("x-ms-run-function-failed") == "False"


@pytest.mark.parametrize(
    "body",
    [
        b'{"rows": [[1, 2, 3]]}',
        b'{"data": [[1, 2]]}',
        b'{"data": [[1, 2, 3], [1]]}',
        b'{"data": [["a", "b", "c"]]}',
        b'{"data": []}',
        b"7",
    ],
    ids=["key", "columns", "ragged", "letters", "no rows", "no object"],
)
def test_a_script_that_fails_on_json_has_failed(numbers: InProcessServer, body: bytes) -> None:
    """A failure with a JSON body is a 500, without the text of the exception."""
    answer = numbers.by_both_doors(body)

    assert (answer.status, answer.json()["message"]) == (500, FAILED)
    assert answer.header("x-ms-run-function-failed") == "True"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"data": [[1, 2, 3]]}', [2]),
        (b'{"data": [[1, 2, 3], [9, 2, 3]]}', [2, 0]),
        (BOM + b'{"data": [[1, 2, 3]]}', [2]),
        (b'{"data": [["1", true, "3.5"]]}', [2]),
        (b'{"data": [[5, 2, 3]], "data": [[1, 2, 3]]}', [2]),
        (b'{"data": [[1, 1e999, 3]]}', [1]),
        (b'{"data": [[1, Infinity, 3]]}', [1]),
        (b'{"data": [[null, 2, 3]]}', [0]),
    ],
    ids=["row", "rows", "mark", "texts", "twice", "overflow", "infinity", "null"],
)
def test_a_script_that_reads_its_body_decides_its_form(
    numbers: InProcessServer, body: bytes, expected: list[int]
) -> None:
    """Texts as numbers, the last of two keys, tokens that are no JSON and null are numpy's and json's affair."""
    answer = numbers.by_both_doors(body)

    assert (answer.status, answer.json()) == (200, expected)


def test_headers_come_in_title_case() -> None:
    """A plain dict, repeated ones joined by commas, names with an underscore left out."""
    with InProcessServer(script(headers)) as server:
        sent = [("x-custom", "1"), ("X-CUSTOM", "2"), ("X_Hidden", "3"), ("x-ms-request-id", "B")]
        seen = server.ask("POST", "/score", sent, b"{}").json()

    assert seen["X-Custom"] == "1,2"
    assert seen["X-Ms-Request-Id"] == "B"
    assert (seen["Host"], seen["Content-Length"]) == ("localhost", "2")
    assert "X_Hidden" not in seen
    assert not any("_" in name for name in seen)


def test_headers_come_with_a_get_too() -> None:
    """A request by query has headers as well."""
    with InProcessServer(script(headers)) as server:
        assert server.ask("GET", "/score?a=1", [("x-custom", "1")]).json()["X-Custom"] == "1"


RESULTS: dict[str, tuple[Any, bytes]] = {
    "list": ([4, 8], b"[4, 8]"),
    "object": ({"b": [1.5, None], "a": True}, b'{"b": [1.5, null], "a": true}'),
    "tuple": ((1, "x"), b'[1, "x"]'),
    "number": (7, b"7"),
    "float": (0.1, b"0.1"),
    "bool": (False, b"false"),
    "text": ("hello é", b'"hello \\u00e9"'),
    "JSON text": ("[1, 2]", b'"[1, 2]"'),
    "nothing": (None, b"{}"),
    "not finite": ([float("nan"), float("inf"), -float("inf")], b"[NaN, Infinity, -Infinity]"),
    "array": (np.array([[1, 2], [3, 4]], np.uint8), b"[[1, 2], [3, 4]]"),
    "numpy number": ({"p": np.float64(0.5), "n": np.int64(3)}, b'{"p": 0.5, "n": 3}'),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results_are_written_as_json_dumps_writes_them(kind: str) -> None:
    """Its separators and escapes; texts encoded again, nothing as an object; arrays and numbers of numpy too."""
    result, expected = RESULTS[kind]
    with InProcessServer(script(lambda raw_data: result)) as server:
        answer = server.by_both_doors(b"{}")

    assert (answer.status, answer.body) == (200, expected)
    assert answer.header("content-type") == "application/json"


@pytest.mark.parametrize("result", [b"bytes", {1, 2}, object()], ids=["bytes", "set", "object"])
def test_results_that_json_cannot_hold_are_a_failure(result: Any) -> None:
    """The answer is 500 in Azure's words; the real server denies that the script has failed."""
    with InProcessServer(script(lambda raw_data: result)) as server:
        answer = server.by_both_doors(b"{}")

    assert (answer.status, answer.json()["message"]) == (500, INTERNAL)
    assert answer.header("x-ms-run-function-failed") == "True"


def test_coroutines_are_awaited() -> None:
    """`async def run` serves; with the real server each call fails."""
    with InProcessServer(script(later)) as server:
        assert server.by_both_doors(b'"x"').json() == '"x"'


def test_nothing_ends_the_process_of_the_script() -> None:
    """`sys.exit` and an interruption are failures of their own request; the next one is scored."""
    raised = iter([SystemExit(0), KeyboardInterrupt()] * 2)

    def run(raw_data: str) -> str:
        if raw_data == '"end"':
            raise next(raised)
        return raw_data

    with InProcessServer(script(run)) as server:
        for _ in range(2):
            answer = server.by_both_doors(b'"end"')
            assert (answer.status, answer.json()["message"]) == (500, FAILED)
            assert answer.header("content-type") == "application/json"
            assert server.ask(body=b"1").status == 200


@pytest.mark.parametrize("header", [("X-Request-Timeout-Ms", "9000"), ("grpc-timeout", "9S")])
def test_a_script_gets_the_remaining_time_of_its_caller(header: tuple[str, str]) -> None:
    """Less than the caller has said, by the time that has passed; who says nothing is not spoken for."""
    with InProcessServer(script(headers)) as server:
        left_ms = server.ask("POST", "/score", [header], b"{}").json()["X-Request-Timeout-Ms"]
        assert 0 < int(left_ms) <= 9000
        assert "X-Request-Timeout-Ms" not in server.ask("POST", "/score", [], b"{}").json()
