"""Calls of scripts in tests: a request with a head if the script wants one, and the text of an error."""

from __future__ import annotations

import json
from typing import Any

from stoker.scripts.invocation import ScriptCalls
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest

SCRIPT_FAILED = "An unexpected error occurred in scoring script. Check the logs for more info."
JSON_TYPE = ("content-type", "application/json")


def ask(
    calls: ScriptCalls, body: bytes = b"", *headers: tuple[str, str], method: str = "POST", query: str = ""
) -> ScriptAnswer:
    """Return the answer to a request, with a head if the script wants one."""
    head = RequestHead(method, "/score", query, list(headers), "127.0.0.1") if calls.wants_head else None
    return calls.answer(ScriptRequest(b"request-7", body, head=head))


def message(answer: ScriptAnswer) -> str:
    """The text of an error."""
    return str(json.loads(answer.body)["message"])


def echo(raw_data: Any) -> Any:
    """A `run` that returns what it gets."""
    return raw_data


def raises(raw_data: Any) -> Any:
    """A `run` that raises for every request."""
    raise KeyError("secret")
