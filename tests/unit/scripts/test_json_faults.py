"""What callers are told of bodies that are not JSON."""

import numpy as np
import pytest

from stoker.scripts.calls import ScriptCalls
from stoker.scripts.json_faults import json_fault
from stoker.wire.envelope import ScriptRequest


def test_the_repr_of_numpy_values_is_recognised() -> None:
    """A body made by `str(list(row))`, as the how-to's client makes it, is explained where numpy 2 made it."""
    row = np.array([0.0, 0.5])
    body = '{"data": [' + str(list(row)) + "]}"
    assert body == '{"data": [[np.float64(0.0), np.float64(0.5)]]}'
    with np.printoptions(legacy="1.25"):
        assert json_fault('{"data": [' + str(list(row)) + "]}") is None

    answer = ScriptCalls(lambda raw_data: 1 / 0).answer(ScriptRequest(b"request-7", body.encode()))

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
def test_values_of_numpy_are_told_from_other_words(value: str, shown: str) -> None:
    """Other words that are not JSON get the place alone."""
    fault = json_fault(f'{{"data": [[0, {value}]]}}')
    assert fault is not None
    place, _, hint = fault.partition("; ")
    assert place == "Expecting value: line 1 column 15 (char 14)"
    assert hint.partition(" looks like ")[0] == shown
