"""What is told of the queries of an open loop."""

from __future__ import annotations

import numpy as np
import pytest

from stoker_bench.agreement import Answers


def test_answers_are_counted_by_what_became_of_them() -> None:
    """In time are those that are answered within the target; refusals have a time of their own; others failed."""
    table = np.array(
        [
            [7.2, 0.3, 200],
            [7.0, 0.1, 200],
            [7.1, 0.2, 200],
            [7.3, 0.004, 503],
            [7.4, 0.2, 504],
            [7.5, 0.0, 0],
            [7.6, 0.001, 500],
            [7.7, 0.002, 503],
        ]
    )
    answers = Answers.of(table)
    assert answers.due_s == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert (answers.in_time(200), answers.in_time(1000)) == (2 / 8, 3 / 8)
    assert answers.p50_ms(200) == pytest.approx(150)
    assert (answers.refused, answers.failed) == (2 / 8, 2)
    assert answers.refusals_p99_ms == pytest.approx(3.98)


def test_a_run_without_answers_has_none_in_time() -> None:
    """And no median, and no refusals."""
    answers = Answers.of(np.empty((0, 3)))
    assert (answers.in_time(200), answers.refused, answers.refusals_p99_ms, answers.failed) == (0, 0, None, 0)
    assert np.isnan(answers.p50_ms(200))
