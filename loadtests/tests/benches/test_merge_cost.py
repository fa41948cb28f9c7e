"""The cost of merging, step by step."""

import pytest

from stoker_bench.benches import script_bench
from stoker_bench.benches.script_bench import measure_merge_cost
from stoker_bench.generators.scoring_request import DATA_LISTS, random_rows


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no time for good figures."""
    monkeypatch.setattr(script_bench, "REPEATS", 1)
    monkeypatch.setattr(script_bench, "CALLS", 1)


def test_every_step_has_its_cost_and_merging_its_own() -> None:
    """The cost of every script's request is separate from the cost that merging adds."""
    body = DATA_LISTS.encode(random_rows(1, (784,)))
    cost = measure_merge_cost(body, requests=8)
    assert all(step.us > 0 for step in cost.steps)
    assert {step.name for step in cost.steps if step.merging} == {
        "count the rows",
        "find what may be merged",
        "merge the bodies",
        "split the result",
    }
    assert cost.merging_us + cost.envelope_us == pytest.approx(sum(step.us for step in cost.steps))
    assert (cost.body_bytes, cost.requests) == (len(body), 8)


def test_steps_are_those_of_bodies_that_can_be_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body without rows would make every step cheap: it is refused."""
    with pytest.raises(ValueError, match="cannot be merged"):
        measure_merge_cost(b'{"data": 1}', requests=8)
