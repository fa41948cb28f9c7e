"""Differences of answers alone and batched."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from tests.puppets import STEADY
from tests.unit.scripts.json_values import JSON

from stoker.scripts.answer_differences import answer_difference, difference
from stoker.wire.script_requests import ScriptAnswer

pytestmark = pytest.mark.usefixtures("without_flask")


@given(JSON)
@STEADY
def test_equal_values_agree(value: Any) -> None:
    """A JSON value agrees with itself after a round trip."""
    assert difference(value, json.loads(json.dumps(value))) is None


@pytest.mark.parametrize(
    ("alone", "batched", "differs"),
    [
        ([0.5, 100.0], [0.5004, 100.05], None),
        ([0.0, 1.0], [0.0005, 1.0], None),
        ([0.0, 0.01], [0.0005, 0.01], "[0] is 0.0 alone, 0.0005 batched"),
        (1e-7, 2e-7, None),
        (0.5, 0.501, "the answer is 0.5 alone, 0.501 batched"),
        (float("nan"), float("nan"), None),
        ([float("inf"), 1.0], [float("inf"), 1.0], None),
        ([float("inf"), 1.0], [1.0, 1.0], "[0] is inf alone, 1.0 batched"),
        (1, 1.0, "the answer is 1 alone, 1.0 batched"),
        (1, True, "the answer is 1 alone, True batched"),
        (None, 0, "the answer is None alone, 0 batched"),
        ([1, 2], [1, 3], "[1] is 2 alone, 3 batched"),
        ([1, 2], [1], "the answer is [1, 2] alone, [1] batched"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "the answer is {'a': 1, 'b': 2} alone, {'b': 2, 'a': 1} batched"),
        ({"a": ["x", "y"]}, {"a": ["x", "z"]}, "['a'][1] is 'y' alone, 'z' batched"),
        ('[{"p": 0.25}]', '[{"p": 0.25000001}]', None),
        ('[{"p": 0.25}]', '[{"p": 0.75}]', "[0]['p'] is 0.25 alone, 0.75 batched"),
        ("[oops", "[oops ", "the answer is '[oops' alone, '[oops ' batched"),
        ("7.1", "7.2", "the answer is '7.1' alone, '7.2' batched"),
        (np.float32([[1, 2]]), np.float32([[1, 2.001]]), None),
        (np.float32([[1, 2]]), np.float32([[1, 2.1]]), "[0][1] is 2.0 alone, 2.0999999046325684 batched"),
        (np.int64([1]), np.float32([1]), "the answer is int64[1] alone, float32[1] batched"),
        ([np.array(["a"], object)], [np.array(["b"], object)], "[0] is 'a' alone, 'b' batched"),
    ],
)  # fmt: skip
def test_answers_agree_or_the_difference_is_named(alone: Any, batched: Any, differs: str | None) -> None:
    """Fractions agree within a thousandth of the largest in their list, other values exactly."""
    assert difference(alone, batched) == differs


@pytest.mark.parametrize(
    ("alone", "batched", "differs"),
    [
        (ScriptAnswer(b"[1.0]", exec_ns=1), ScriptAnswer(b"[1.00000001]", exec_ns=2), None),
        (ScriptAnswer(b"[1]"), ScriptAnswer(b"[1]", status=500), "status 200 alone, 500 batched"),
        (ScriptAnswer(b"a"), ScriptAnswer(b"b"), "b'a' alone, b'b' batched"),
    ],
)
def test_whole_answers_are_compared(alone: ScriptAnswer, batched: ScriptAnswer, differs: str | None) -> None:
    """Status, header lines and body count; the time does not."""
    assert answer_difference(alone, batched) == differs
