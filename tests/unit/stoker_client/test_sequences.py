"""Requests to models with state: their headers, and no retry of requests that may have run."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from tests.unit.stoker_client.scripted import Caller, Kind, error, ok

from stoker_client import ConnectionFailed, UnknownSequence

ROWS = np.zeros((1, 784), np.float32)


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({}, None),
        ({"sequence_id": 7}, "7"),
        ({"sequence_id": 2**64 - 1, "sequence_start": True}, "18446744073709551615; start"),
        ({"sequence_id": "call-7", "sequence_end": True}, "call-7; end"),
        ({"sequence_id": "a", "sequence_start": True, "sequence_end": True}, "a; start; end"),
    ],
)
def test_call_names_its_sequence_in_a_header(kind: Kind, options: dict[str, Any], header: str | None) -> None:
    """By the header that every protocol of the server takes."""
    caller = Caller(kind, [ok()])
    caller.call("score", ROWS, **options)
    assert [request.headers.get("stoker-sequence") for request in caller.requests] == [header]


@pytest.mark.parametrize(
    "options",
    [
        {"sequence_start": True},
        {"sequence_end": True},
        {"sequence_id": 0},
        {"sequence_id": 2**64},
        {"sequence_id": ""},
        {"sequence_id": "a;b"},
        {"sequence_id": "a b"},
        {"sequence_id": "ä"},
        {"sequence_id": "a" * 129},
    ],
)
def test_invalid_sequence_options_are_not_sent(kind: Kind, options: dict[str, Any]) -> None:
    """An invalid id, or none where one is needed, raises ValueError."""
    caller = Caller(kind, [ok()])
    with pytest.raises(ValueError, match="sequence"):
        caller.call("score", ROWS, **options)
    assert not caller.requests


def test_request_of_a_lost_connection_is_not_sent_again(kind: Kind) -> None:
    """It may have been run, and would be run from another state; one of no sequence is sent again."""
    lost = httpx.RemoteProtocolError("closed")
    caller = Caller(kind, [lost, ok()])
    with pytest.raises(ConnectionFailed):
        caller.call("score", ROWS, sequence_id=7)
    assert len(caller.requests) == 1
    again = Caller(kind, [lost, ok()])
    again.call("score", ROWS)
    assert len(again.requests) == 2


def test_refused_sequence_request_is_sent_again(kind: Kind) -> None:
    """A request is repeated after 503, which changes no state; an ended sequence raises an error."""
    caller = Caller(kind, [error(503, "overloaded"), ok()])
    caller.call("score", ROWS, sequence_id=7)
    assert [request.headers["stoker-sequence"] for request in caller.requests] == ["7", "7"]
    ended = Caller(kind, [error(400, "unknown_sequence")])
    with pytest.raises(UnknownSequence):
        ended.call("score", ROWS, sequence_id=7)


def test_several_servers_have_no_sequence_together(kind: Kind) -> None:
    """No server knows the state of the others."""
    caller = Caller(kind, [ok()], uri=["http://a/score", "http://b/score"])
    with pytest.raises(ValueError, match="with one server"):
        caller.call("score", ROWS, sequence_id=7)
