"""`json.loads` is faster for bodies that the server has read."""

import json
import threading
from typing import Any

import numpy as np
import pytest

from stoker.scripts import quick_json
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging import MergedCalls
from stoker.wire.script_requests import ScriptRequest


@pytest.fixture
def quickened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace `json.loads` as for scripts; the list has the texts that the fast reader reads."""
    quick: list[Any] = []
    loads = quick_json.orjson.loads
    monkeypatch.setattr(quick_json.orjson, "loads", lambda text: (quick.append(text), loads(text))[1])
    monkeypatch.setattr(json, "loads", json.loads)
    quick_json.quicken_json_loads()
    return quick


def test_known_bodies_are_read_faster(quickened: list[Any]) -> None:
    """Bodies are read faster as text and as bytes, while they are known, on their thread."""
    body = '{"data": [[1, 2.5, "é"]]}'.encode()
    assert json.loads(body) == {"data": [[1, 2.5, "é"]]}
    elsewhere: list[Any] = []
    with quick_json.known_json(body):
        assert json.loads(body) == json.loads(body.decode()) == {"data": [[1, 2.5, "é"]]}
        assert json.loads('{"data": [[1, 2.5, "e"]]}') == {"data": [[1, 2.5, "e"]]}
        assert json.loads(body, parse_float=str) == {"data": [[1, "2.5", "é"]]}
        thread = threading.Thread(target=lambda: elsewhere.append(json.loads(body)))
        thread.start()
        thread.join()
        with pytest.raises(TypeError):
            json.loads(np.zeros(3))
    assert json.loads(body) == elsewhere[0]
    assert quickened == [body, body.decode()]
    quick_json.quicken_json_loads()
    assert not hasattr(json.loads.__wrapped__, "__wrapped__"), "it is replaced once"


def test_body_that_the_fast_reader_refuses_is_read_by_json(
    quickened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard reader reads a body that is nested too deeply for the fast one."""

    def refuse(text: Any) -> None:
        quickened.append(text)
        raise quick_json.orjson.JSONDecodeError("Recursion limit reached", "", 0)

    monkeypatch.setattr(quick_json.orjson, "loads", refuse)
    with quick_json.known_json(b"[[1]]"):
        assert json.loads(b"[[1]]") == [[1]]
    assert quickened == [b"[[1]]"]


def test_scripts_read_merged_and_lone_bodies_faster(quickened: list[Any]) -> None:
    """Only bodies whose rows a frontend has counted are read faster."""

    def add_up(raw_data: str) -> Any:
        return [sum(row) for row in json.loads(raw_data)["data"]]

    answers = MergedCalls(ScriptCalls(add_up), key="data", max_rows=8).answers
    good, other = b'{"data": [[1, 2]]}', b'{"data": [[1, NaN]]}'
    answers([ScriptRequest(b"id", good, 1)] * 2)
    answers([ScriptRequest(b"id", good, 1)])
    answers([ScriptRequest(b"id", other, 0)])
    assert quickened == ['{"data": [[1, 2], [1, 2]]}', good.decode()]
