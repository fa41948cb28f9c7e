"""How many requests a call gets is proved with examples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.scripts.batch_runs import Run, doubled, fails_for

from stoker.deployment import Deployment
from stoker.script_form import ScriptForm
from stoker.scripts.request_batch_choice import MAX_UNVOUCHED, choose_request_batches
from stoker.scripts.request_batches import RequestBatches


def deployment(**settings: Any) -> Deployment:
    settings = {"max_batch_rows": 256, **settings}
    return Deployment("m", 1, "script", Path("s.py"), Path(), max_body_bytes=1 << 20, **settings)


def chosen(run: Run, **settings: Any) -> ScriptForm:
    return choose_request_batches(run, deployment(**settings), RequestBatches(run))


def test_examples_that_agree_let_requests_share_calls() -> None:
    """The largest call is made at load; the operator may allow more requests."""
    run = Run(doubled, [1, 2, 3])
    form = chosen(run)
    assert (form.batching, form.max_requests, form.kind, form.wants_head) == (
        "requests",
        MAX_UNVOUCHED,
        "raw",
        True,
    )
    assert max(map(len, run.calls)) == MAX_UNVOUCHED
    assert chosen(Run(doubled, [1, 2]), max_batch_rows=64, batching="rows").max_requests == 64


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (
            lambda numbers: [number - max(numbers) for number in numbers],
            "a request among others gets another answer",
        ),
        (lambda numbers: sorted(doubled(numbers)), "a request among others gets another answer"),
        (lambda numbers: doubled(numbers)[:1], "a call with 2 requests failed: ValueError: run.. returned 1"),
        (fails_for(1), "fails for the first example"),
        (fails_for(2, 3), "no second example"),
    ],
)
def test_disproved_script_is_not_batched(compute: Callable[..., Any], reason: str) -> None:
    """A script that mixes requests in the check is not batched, even if the operator vouches for it."""
    for settings in ({}, {"batching": "rows"}):
        form = chosen(Run(compute, [1, 2, 3]), **settings)
        assert (form.batching, form.max_requests) == ("none", 1)
        assert re.search(reason, form.batching_reason), form.batching_reason


def test_without_examples_the_operator_decides() -> None:
    """Without a setting, a handler without examples is not batched."""
    form = chosen(Run(doubled))
    assert (form.batching, form.max_requests) == ("none", 1)
    assert form.batching_reason.startswith("there is no sample input to check it with: put sample_input.json")
    form = chosen(Run(doubled), batching="rows", max_batch_rows=8)
    assert (form.batching, form.max_requests) == ("requests", 8)
    assert form.batching_reason.startswith("asked for, unchecked")
    assert chosen(Run(doubled, [1, 2]), batching="none").batching_reason == "asked for"
    assert chosen(Run(doubled, [1, 2]), max_batch_rows=1).max_requests == 1
