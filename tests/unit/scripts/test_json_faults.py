"""Faults of bodies that are not JSON."""

import json

import numpy as np
import pytest

from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.json_faults import json_fault
from stoker.wire.script_requests import ScriptRequest


def as_the_client(row: np.ndarray) -> bytes:
    """A body made by `str(list(row))`, as the how-to's client makes it, by numpy 2."""
    with np.printoptions(legacy=False):
        return b'{"data": [%b]}' % str(list(row)).encode()


def test_a_script_gets_plain_numbers_for_scalars_of_numpy() -> None:
    """A script that cannot read numpy's scalars as JSON is called again with their numbers; strings stay."""
    bodies = []

    def run(raw_data: str) -> object:
        bodies.append(raw_data)
        return json.loads(raw_data)["data"]

    calls = ScriptCalls(run)
    body = as_the_client(np.array([0.0, 0.5, -1e-7, 1e300]))
    assert body.startswith(b'{"data": [[np.float64(0.0), ')
    assert calls.answer(ScriptRequest(b"1", body)).body == b"[[0.0, 0.5, -1e-07, 1e+300]]"
    assert bodies == [body.decode(), '{"data": [[0.0, 0.5, -1e-07, 1e+300]]}']
    body = b'{"data": [np.uint8(3), "np.uint8(3) \\" np.int64(4)"]}'
    assert json.loads(calls.answer(ScriptRequest(b"2", body)).body) == [3, 'np.uint8(3) " np.int64(4)']


@pytest.mark.parametrize(
    "body", [b'{"data": [np.float64(nan)]}', b'{"data": [np.float64(1.0)', b"[None, np.int8(1)]"]
)
def test_a_script_is_not_called_again_for_other_bodies(body: bytes) -> None:
    """A body that stays no JSON is refused; a text of the script's own that is no JSON is a failure of the script."""

    def loads(raw_data: str) -> object:
        return json.loads(raw_data)

    answer = ScriptCalls(loads).answer(ScriptRequest(b"1", body))
    assert (answer.status, b"is not valid JSON" in answer.body) == (400, True)
    own = ScriptCalls(lambda raw_data: json.loads("np.float64(1.0)")).answer(ScriptRequest(b"1", b"[1]"))
    assert own.status == 500


def test_the_repr_of_numpy_values_is_recognised() -> None:
    """If the script still fails, the answer explains the body."""
    body = as_the_client(np.array([0.0, 0.5]))
    with np.printoptions(legacy="1.25"):
        assert json_fault('{"data": [' + str(list(np.array([0.0, 0.5]))) + "]}") is None

    answer = ScriptCalls(lambda raw_data: 1 / 0).answer(ScriptRequest(b"request-7", body))

    assert answer.status == 400
    assert (
        b"Request body is not valid JSON: Expecting value: line 1 column 12 (char 11); np.float64(0.0) looks like "
        b"Python's repr of numpy values, as str(list(row)) gives it: use str(row.tolist()), or json.dumps"
    ) in answer.body


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("np.int64(3)", "np.int64(3)"),
        ("np.True_", "np.True_"),
        ("array([1, 2])", "array([1, 2])"),
        ("tensor(1.)", "tensor(1.)"),
        ("np.str_('a')", "np.str_('a')"),
        ("None", ""),
        ("'a'", ""),
        ("f(1)", ""),
    ],
)
def test_only_values_of_numpy_get_a_hint(value: str, shown: str) -> None:
    """The fault of other words has only their place."""
    fault = json_fault(f'{{"data": [[0, {value}]]}}')
    assert fault is not None
    place, _, hint = fault.partition("; ")
    assert place == "Expecting value: line 1 column 15 (char 14)"
    assert hint.partition(" looks like ")[0] == shown
