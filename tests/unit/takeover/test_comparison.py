"""Differences between the answers of two versions: by field, by class, and over many requests."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import BODIES, ROWS, STEADY, TEXTS

from stoker.errors import ServingError
from stoker.row_isolation import RowIsolation
from stoker.takeover.comparison import (
    RESULTS,
    Comparison,
    FieldDifference,
    alike,
    compare,
    json_fields,
    script_fields,
)
from stoker.wire.script_requests import ScriptAnswer

FEW = settings(STEADY, max_examples=30)

numbers = st.floats(-1e6, 1e6, width=32)
rows = st.lists(numbers, min_size=3, max_size=3).map(lambda row: np.array([row], np.float32))
differences = st.builds(FieldDifference, st.floats(0), st.floats(0), st.integers(0, 9), st.integers(0, 9))
times = st.lists(st.integers(1, 9), max_size=3).map(tuple)
comparisons = st.builds(
    Comparison,
    st.dictionaries(st.sampled_from(RESULTS), st.integers(0, 9)),
    st.dictionaries(st.sampled_from("xyz"), differences, max_size=2),
    times,
    times,
)


def result(old: Any, new: Any, tolerance: float = 1e-3) -> str:
    """The result of comparing two arrays."""
    (only,) = compare({"y": np.array(old)}, {"y": np.array(new)}, tolerance).results
    return only


@FEW
@given(comparisons, comparisons, comparisons)
def test_parts_add_up_in_any_order(a: Comparison, b: Comparison, c: Comparison) -> None:
    """Frontends compare beside each other, and report when they like."""

    def facts(whole: Comparison) -> Any:
        return dict(whole.results), dict(whole.fields), sorted(whole.old_ns), sorted(whole.new_ns)

    assert facts((a + b) + c) == facts(a + (b + c)) == facts(c + a + b)
    assert facts(a + Comparison()) == facts(Comparison() + a)
    assert (a + b).requests == a.requests + b.requests
    json.dumps((a + b).to_json(), allow_nan=False)


@FEW
@given(rows, st.floats(0, 1e-4), st.floats(-1, 1))
def test_answers_agree_exactly_within_the_tolerance(row: np.ndarray, tolerance: float, share: float) -> None:
    """Answers agree within the tolerance, relative to the largest number, and not beyond."""
    size = max(float(np.abs(row).max()), 1e-6)
    exact = row.astype(np.float64)
    near = exact + 0.9 * share * tolerance * size
    assert compare({"y": exact}, {"y": near}, tolerance).agrees
    far = compare({"y": exact}, {"y": exact + (1.1 * tolerance + 1e-3) * size}, tolerance)
    assert (dict(far.results), far.agrees) == ({"different": 1}, False)
    same = compare({"y": row}, {"y": row.copy()}, tolerance)
    assert dict(same.results) == {"same": 1}
    assert same.fields["y"].largest == same.fields["y"].relative == 0


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([[1.0, 2.0]], [[1.0, math.nan]], "not_finite"),
        ([[1.0, math.inf]], [[1.0, math.inf]], "same"),
        ([[1.0, math.nan]], [[1.0, 2.0]], "different"),
        ([[1.0, 2.0]], [[1.0]], "different"),
        ([3], [4], "different"),
        ([3], [3.0], "same"),
        ([3], [3.0001], "close"),
        ([True], [False], "different"),
    ],
)
def test_each_request_has_one_result(old: Any, new: Any, expected: str) -> None:
    """Numbers not finite before may stay so; whole numbers are equal or different."""
    assert result(old, new) == expected


def test_an_answer_that_is_missing_or_has_other_fields_is_no_agreement() -> None:
    """A version that fails differs from one that gives another answer."""
    old = {"y": np.ones((1, 2))}
    failed = compare(old, None, 1e-3, 5)
    assert (dict(failed.results), failed.old_ns, failed.new_ns) == ({"failed": 1}, (5,), ())
    renamed = compare(old, {"z": np.ones((1, 2))}, 1e-3, 5, 10)
    assert dict(renamed.results) == {"different": 1}
    assert renamed.fields["z"].relative == math.inf
    assert (renamed.latency_ratio, failed.latency_ratio, Comparison().agrees) == (2.0, None, False)


@pytest.mark.parametrize(
    ("old", "new", "classified", "flipped"),
    [
        ([[0.1, 0.9]], [[0.6, 0.4]], 1, 1),
        ([[0.1, 0.9]], [[0.2, 0.8]], 1, 0),
        ([0.25, 0.75], [0.75, 0.25], 1, 1),
        ([20.5, 70.5], [70.5, 20.5], 0, 0),
        ([[0.1], [0.9]], [[0.9], [0.1]], 0, 0),
        ([7], [9], 1, 1),
    ],
)
def test_classes_flip_where_answers_look_like_scores(
    old: Any, new: Any, classified: int, flipped: int
) -> None:
    """Rows of scores, shares that add up to 1, and single labels; a list of other numbers says nothing of classes."""
    field = compare({"y": np.array(old)}, {"y": np.array(new)}, 1e-3).fields["y"]
    assert (field.classified, field.flipped) == (classified, flipped)


def test_str_of_a_comparison_sums_up_its_differences() -> None:
    """The line is in the log and in the error of a load."""
    old, new = {"p": np.array([[0.1, 0.9]])}, {"p": np.array([[0.6, 0.4]])}
    whole = compare(old, new, 1e-3, 10, 20) + compare(old, old, 1e-3, 10, 20)
    assert str(whole) == (
        "2 requests compared: 1 same, 1 different; p differs by at most 0.5 (0.556 of the largest number), "
        "1 of 2 classes flip; 2.00 times the time on the device"
    )


def test_answers_of_scripts_are_compared_by_the_members_of_their_json() -> None:
    """Numbers in lists are arrays, inner objects have dots; other values, and answers without JSON, are texts."""
    fields = json_fields(b'{"scores": [[1, 2], [3, 4.5]], "at": {"x": 1, "odd": [[1], [2, 3]]}, "who": "me"}')
    assert {name: (array.dtype.kind, array.shape) for name, array in fields.items()} == {
        "scores": ("f", (2, 2)),
        "at.x": ("i", ()),
        "at.odd": ("O", (1,)),
        "who": ("O", (1,)),
    }
    assert json_fields(b"[1, 2]")[""].tolist() == [1, 2]
    assert json_fields(b"no json")[""].tolist() == [b"no json"]
    refused = script_fields(ScriptAnswer(b"[1]", 422).pack())
    assert {name: array.tolist() for name, array in refused.items()} == {"": [1], "status": [422]}
    with pytest.raises(ServingError, match="failed with status 500"):
        script_fields(ScriptAnswer(b"", 500, failed=True).pack())


def test_only_versions_that_take_and_give_the_same_are_alike() -> None:
    """How much room a text has is not part of that; a model with state has no answers to compare."""
    assert alike(ROWS, ROWS)
    counting = replace(ROWS, isolation=RowIsolation(False, "read", "it counts", keeps_state=True))
    assert not alike(ROWS, counting)
    assert not alike(counting, ROWS)
    assert not alike(ROWS, TEXTS)
    assert not alike(TEXTS, BODIES)
