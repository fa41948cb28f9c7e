"""Calls of `run`: its results, exceptions and coroutines, and the answers that callers get."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from typing import Any

import numpy as np
import pytest
from tests.unit.scripts.calling import SCRIPT_FAILED, ask, echo, message, raises

from stoker.errors import ScoringTimeout
from stoker.scripts.invocation import ScriptCalls
from stoker_azure.aml_response import AMLResponse

pytestmark = pytest.mark.usefixtures("without_flask")

INTERNAL = "An unexpected internal error occurred. Check the logs for more info."


@pytest.mark.parametrize(
    ("result", "body"),
    [
        ([4], b"[4]"),
        ({"a": 1, "b": (2, 3)}, b'{"a": 1, "b": [2, 3]}'),
        ("h\u00e9", b'"h\\u00e9"'),
        ("[1, 2]", b'"[1, 2]"'),
        (None, b"{}"),
        (True, b"true"),
        (0.5, b"0.5"),
        (float("nan"), b"NaN"),
        (np.arange(3), b"[0, 1, 2]"),
        (np.float32(0.5), b"0.5"),
        ({"p": np.ones((1, 2))}, b'{"p": [[1.0, 1.0]]}'),
    ],
)
def test_results_are_json(result: Any, body: bytes) -> None:
    """The answer is 200, with the time that `run` took."""
    answer = ask(ScriptCalls(lambda raw_data: result))
    assert (answer.status, answer.body, answer.lines, answer.failed) == (200, body, b"", False)
    assert answer.exec_ns is not None
    assert answer.exec_ns >= 0


class _Exploding:
    @property
    def headers(self) -> None:
        raise RuntimeError("headers")

    def get_data(self) -> None: ...


_endless: list[Any] = []
_endless.append(_endless)


@pytest.mark.parametrize(
    "result",
    [b"bytes", {1, 2}, object(), _endless, (n for n in "ab"), {(1, 2): 3}, _Exploding()],
    ids=["bytes", "set", "object", "circle", "generator", "key", "property that raises"],
)
def test_a_result_that_cannot_be_sent_is_an_internal_error(
    result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The text is that of the Azure inference server, the script counts as failed, and the log has the reason."""
    answer = ask(ScriptCalls(lambda raw_data: result))
    assert (answer.status, answer.failed, answer.exec_ns) == (500, True, None)
    content = json.loads(answer.body)
    assert content["message"] == INTERNAL
    (record,) = caplog.records
    assert content["error_id"] in record.message
    assert record.exc_info is not None


def test_a_response_is_sent_as_it_is() -> None:
    """Status, headers and body are the script's; 5xx is a failure, 4xx is not; the answer has the time."""

    def run(raw_data: str) -> AMLResponse:
        return AMLResponse(raw_data, int(raw_data), {"X-Kind": "a"})

    teapot, bad = ask(ScriptCalls(run), b"418"), ask(ScriptCalls(run), b"503")
    assert (teapot.status, teapot.body, teapot.failed) == (418, b"418", False)
    assert b"X-Kind: a\r\n" in teapot.lines
    assert teapot.exec_ns is not None
    assert (bad.status, bad.failed) == (503, True)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        SystemExit(0),
        SystemExit("secret"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        RecursionError(),
        StopIteration(),
    ],
    ids=repr,
)
def test_an_exception_of_a_script_is_only_in_the_log(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is 500 with the id of the log line, and no details; an exit does not end the process."""

    def run(raw_data: str) -> None:
        raise error

    answer = ask(ScriptCalls(run), b"[]")
    assert (answer.status, answer.failed, answer.exec_ns) == (500, True, None)
    content = json.loads(answer.body)
    assert content == {
        "message": SCRIPT_FAILED,
        "code": "model_failed",
        "error_id": content["error_id"],
    }
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert content["error_id"] in record.message
    assert "in run" in caplog.text


def test_the_log_shows_an_exception_from_the_script_on(caplog: pytest.LogCaptureFixture) -> None:
    """Frames of the server are of no use to the script's author."""

    def run(raw_data: str) -> None:
        raise ValueError("no rows")

    ask(ScriptCalls(run), b"[]")
    begins, *_ = re.findall(r"Traceback \(most recent call last\):\n +File .*, in (\w+)", caplog.text)
    assert begins == "run"


def test_a_result_that_cannot_be_read_does_not_end_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """Methods of a result are code of the script too, and may raise BaseExceptions."""

    class Cancelled(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise asyncio.CancelledError

    answer = ask(ScriptCalls(lambda raw_data: Cancelled(a=1)), b"[]")
    assert (answer.status, answer.failed) == (500, True)
    assert "the result of run() cannot be sent" in caplog.text


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"data": [1 2]}', "Expecting ',' delimiter: line 1 column 13 (char 12)"),
        (b'{"data": [1]} x', "Extra data: line 1 column 15 (char 14)"),
        (b"a=1&b=2", "Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 levels deep: line 1 column 101 (char 100)"),
        (b"[" + b"1" * 5000 + b"]", "an integer has too many digits"),
    ],
)
def test_a_script_that_fails_at_a_body_that_is_no_json_gives_400(body: bytes, where: str) -> None:
    """The answer says where the body is wrong."""
    answer = ask(ScriptCalls(raises), body)
    assert (answer.status, answer.failed) == (400, False)
    assert message(answer) == f"Request body is not valid JSON: {where}"
    assert json.loads(answer.body)["code"] == "malformed_body"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"\xef\xbb\xbf{}",
        b"[NaN, Infinity]",
        b'"\\ud800"',
        b"[" + b"1" * 400 + b"]",
        b"[" * 100 + b"]" * 100,
        b'["' + b"[" * 200 + b'"]',
    ],
)
def test_a_script_that_fails_at_valid_json_gives_500(body: bytes) -> None:
    """All texts that Python's reader takes count as JSON."""
    answer = ask(ScriptCalls(raises), body)
    assert (answer.status, answer.failed) == (500, True)
    assert message(answer) == SCRIPT_FAILED


def test_a_script_may_take_bodies_that_are_no_json() -> None:
    """The body is refused only if the script raises."""
    assert ask(ScriptCalls(echo), b"not json").status == 200


def test_an_interrupted_script_answers_with_the_timeout() -> None:
    """The answer has the timeout even if the body is no JSON."""

    def run(raw_data: str) -> None:
        raise ScoringTimeout(5)

    answer = ask(ScriptCalls(run), b"not json")
    assert (answer.status, answer.failed, message(answer)) == (500, True, "Scoring timeout after 5 ms")


def test_a_coroutine_is_awaited() -> None:
    """The answer is the result of `async def run`; all calls of a thread share an event loop."""
    loops = []

    async def run(raw_data: str) -> str:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return raw_data

    calls = ScriptCalls(run)
    assert [ask(calls, b"a").body, ask(calls, b"b").body] == [b'"a"', b'"b"']
    assert loops[0] is loops[1]


def test_a_coroutine_that_raises_fails_alone() -> None:
    """The next request can use the same event loop."""

    async def run(raw_data: str) -> str:
        await asyncio.sleep(0)
        if raw_data == "1":
            sys.exit(3)
        return raw_data

    calls = ScriptCalls(run)
    assert [ask(calls, b"1").status, ask(calls, b"b").status] == [500, 200]
