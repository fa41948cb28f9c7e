"""Policies against tables that were computed by hand, for both goals; and what no policy may ever do."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidSettings
from stoker_runs.tuning.policies import (
    Bandit,
    Curve,
    Goal,
    Hyperband,
    MedianStopping,
    NoTermination,
    Policy,
    TruncationSelection,
    best_of,
    due_interval,
    read_goal,
    termination_reason,
)

MAX, MIN = Goal.MAXIMIZE, Goal.MINIMIZE
NAN = math.nan
# Runs in rows, values of the metric in columns.
TABLE = {
    "a": [0.50, 0.80, 0.79],
    "b": [0.40, 0.66, 0.70],
    "c": [0.60, 0.61, 0.62],
    "d": [0.10, 0.20, 0.90],
}


def kept(policy: Policy, goal: Goal, table: dict[str, list[float]], interval: int) -> str:
    """The names of the runs that a policy keeps at an interval."""
    names = ""
    for name, values in table.items():
        others = [Curve(other) for of, other in table.items() if of != name]
        if not termination_reason(policy, goal, Curve(values), others, interval):
            names += name
    return names


@pytest.mark.parametrize(
    ("policy", "goal", "interval", "names"),
    [
        # The best is 0.60, then 0.80, then 0.90; a run's own is its best so far.
        (Bandit(slack_factor=0.2), MAX, 1, "ac"),  # 0.60 / 1.2 = 0.50
        (Bandit(slack_factor=0.2), MAX, 2, "a"),  # 0.80 / 1.2 = 0.6667, just above b
        (Bandit(slack_factor=0.25), MAX, 2, "ab"),  # 0.64
        (Bandit(slack_amount=0.2), MAX, 2, "abc"),  # 0.60
        (Bandit(slack_amount=0.15), MAX, 3, "ad"),  # 0.75
        (Bandit(slack_factor=0), MAX, 3, "d"),
        # The best is 0.10 from the beginning on.
        (Bandit(slack_factor=3), MIN, 1, "bd"),  # 0.10 * 4 = 0.40
        (Bandit(slack_amount=0.4), MIN, 1, "abd"),  # 0.50
        # Averages of two: 0.65, 0.53, 0.605, 0.15; their median is 0.5675.
        (MedianStopping(), MAX, 2, "abc"),
        # Averages of three: 0.6967, 0.5867, 0.61, 0.40; their median is 0.5983.
        (MedianStopping(), MAX, 3, "abcd"),
        (MedianStopping(), MIN, 1, "bd"),  # of 0.5, 0.4, 0.6, 0.1 it is 0.45
        # Best so far: 0.80, 0.66, 0.61, 0.20.
        (TruncationSelection(25), MAX, 2, "abc"),
        (TruncationSelection(50), MAX, 2, "ab"),
        (TruncationSelection(24), MAX, 2, "abcd"),  # less than one of four
        (TruncationSelection(99), MAX, 3, "d"),
        (TruncationSelection(25), MIN, 1, "abd"),
        (NoTermination(), MAX, 3, "abcd"),
    ],
)
def test_policies_keep_the_runs_of_the_table(policy: Policy, goal: Goal, interval: int, names: str) -> None:
    """Computed by hand from Azure's definitions."""
    assert kept(policy, goal, TABLE, interval) == names


@pytest.mark.parametrize(
    ("policy", "goal", "names"),
    [
        # Below 0 the two goals change places: the best is -1, and 20 % of slack reach to -1.2.
        (Bandit(slack_factor=0.2), MAX, "ab"),
        # The best is -2, and the slack reaches to -2 / 1.2 = -1.667.
        (Bandit(slack_factor=0.2), MIN, "c"),
        (Bandit(slack_factor=1.0), MIN, "abc"),
    ],
)
def test_a_slack_factor_works_below_zero(policy: Policy, goal: Goal, names: str) -> None:
    """Dividing a best of -1 by 1.2 would end the best run itself."""
    assert kept(policy, goal, {"a": [-1.0], "b": [-1.1], "c": [-2.0]}, 1) == names


def test_younger_runs_are_compared_at_their_own_age() -> None:
    """A run at its second value meets the others' first two values, and none that has but one."""
    old, young, newborn = Curve([0.1, 0.2, 0.9]), Curve([0.15, 0.25]), Curve([0.8])
    assert termination_reason(Bandit(slack_factor=0.0), MAX, young, [old, newborn], 2) == ""
    assert termination_reason(Bandit(slack_factor=0.0), MAX, Curve([0.15, 0.15]), [old], 2) != ""


def test_finished_runs_can_be_left_out_of_a_truncation() -> None:
    """With them one of two is the worst half; without them a lone run is no half."""
    run, done = Curve([0.1]), Curve([0.9], is_over=True)
    assert termination_reason(TruncationSelection(50), MAX, run, [done], 1) != ""
    assert termination_reason(TruncationSelection(50, exclude_finished_jobs=True), MAX, run, [done], 1) == ""


def test_a_verdict_names_the_policy() -> None:
    """As the reason of a run that was ended."""
    reason = termination_reason(
        Bandit(slack_factor=0.1, evaluation_interval=2), MIN, Curve([3.0, NAN]), [Curve([1.0, 1.0])], 2
    )
    assert reason == "Bandit(slack_factor=0.1, evaluation_interval=2): 3 after 2 values"
    assert termination_reason(Bandit(slack_amount=0), MAX, Curve([NAN]), [Curve([1.0])], 1).endswith(
        "NaN after 1 value"
    )


@pytest.mark.parametrize(
    ("interval", "delay", "looks"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5, 6]),
        (2, 0, [0, 0, 2, 2, 4, 4, 6]),
        (2, 3, [0, 0, 0, 0, 4, 4, 6]),
        (3, 6, [0, 0, 0, 0, 0, 0, 6]),
    ],
)
def test_policies_look_at_multiples_from_the_delay_on(interval: int, delay: int, looks: list[int]) -> None:
    """The last one that is due after each number of values; 0 before the first."""
    policy = MedianStopping(interval, delay)
    assert [due_interval(policy, count) for count in range(7)] == looks


def test_hyperband_looks_at_rungs_and_compares_within_a_bracket() -> None:
    """With 9 values and a factor of 3: 9 children are first looked at after 1 value, 5 after 3, and 3 never."""
    policy = Hyperband(max_values=9)
    assert policy.rungs == [1, 3]
    assert [policy.first_rung(number) for number in range(17)] == [0] * 9 + [1] * 5 + [2] * 3
    assert policy.first_rung(17) == 0
    assert [due_interval(policy, count) for count in (0, 1, 2, 3, 8, 9, 40)] == [0, 1, 1, 3, 3, 3, 3]
    others = [Curve([0.9], number=1), Curve([0.8], number=2), Curve([0.7], number=3)]
    # One of three goes on; the first one that arrives always does.
    assert termination_reason(policy, MAX, Curve([0.1], number=0), [], 1) == ""
    reason = termination_reason(policy, MAX, Curve([0.85], number=0), others, 1)
    assert reason == "Hyperband(max_values=9, min_values=1, reduction_factor=3): 0.85 after 1 value"
    assert termination_reason(policy, MAX, Curve([0.95], number=0), others, 1) == ""
    # Of another bracket: not looked at yet, and compared with nobody of the first one.
    assert termination_reason(policy, MAX, Curve([0.1], number=9), others, 1) == ""
    long = [Curve([0.9, 0.9, 0.9], number=1)]
    assert termination_reason(policy, MAX, Curve([0.1, 0.1, 0.1], number=9), long, 3) == ""
    assert termination_reason(policy, MAX, Curve([0.1, 0.1, 0.1], number=0), long, 3) != ""
    assert termination_reason(policy, MAX, Curve([0.1, 0.1, 0.1], number=14), long, 3) == ""


numbers = st.floats(-1e6, 1e6) | st.sampled_from([NAN, math.inf, -math.inf])
policies = st.one_of(
    st.builds(Bandit, slack_factor=st.floats(0, 10)),
    st.builds(lambda amount: Bandit(slack_amount=amount), st.floats(0, 10)),
    st.just(MedianStopping()),
    st.builds(TruncationSelection, st.integers(1, 99)),
    st.builds(Hyperband, st.integers(2, 30)),
)


@given(
    policies,
    st.sampled_from(Goal),
    st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=8),
)
def test_the_best_run_is_never_ended(policy: Policy, goal: Goal, rows: list[list[float]]) -> None:
    """Of the runs that are best at an interval none is ended, for any values of the others."""
    best = [best_of(values, goal) for values in rows]
    finite = [goal.sign * value for value in best if value is not None]
    for place, values in enumerate(rows):
        value = best[place]
        if finite and (value is None or goal.sign * value < max(finite)):
            continue
        others = [Curve(other) for of, other in enumerate(rows) if of != place]
        assert termination_reason(policy, goal, Curve(values), others, 3) == ""


def test_a_mean_is_rounded_to_no_more_than_the_best_value() -> None:
    """The mean of these equal values, as floats have it, is above each of them."""
    run = Curve([2.9412724709912214e-158] * 3)
    assert termination_reason(MedianStopping(), Goal.MAXIMIZE, run, [], 3) == ""


@given(policies, st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=1, max_size=8))
def test_the_goals_mirror_each_other(policy: Policy, rows: list[list[float]]) -> None:
    """A run that is ended when its values are to be maximized is ended when their negatives are to be minimized."""
    for place, values in enumerate(rows):
        others = [other for of, other in enumerate(rows) if of != place]
        one = termination_reason(policy, MAX, Curve(values), [Curve(other) for other in others], 2)
        mirrored = [Curve([-value for value in other]) for other in others]
        other = termination_reason(policy, MIN, Curve([-value for value in values]), mirrored, 2)
        assert bool(one) == bool(other)


@given(policies, st.floats(-1e6, 1e6), st.integers(1, 8))
def test_equals_are_kept(policy: Policy, value: float, count: int) -> None:
    """Where all have the same, none is worse than another."""
    others = [Curve([value])] * (count - 1)
    assert termination_reason(policy, MAX, Curve([value]), others, 1) == ""


@given(policies)
def test_policies_are_kept_whole(policy: Policy) -> None:
    """Through JSON."""
    assert type(policy).from_json(policy.to_json()) == policy


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Bandit, "either slack_factor or slack_amount"),
        (lambda: Bandit(0.1, 0.1), "either slack_factor or slack_amount"),
        (lambda: Bandit(-0.1), "from 0 up, and is -0.1"),
        (
            lambda: Bandit(0.1, evaluation_interval=0),
            "evaluation_interval has to be a whole number from 1 up",
        ),
        (lambda: MedianStopping(delay_evaluation=-1), "delay_evaluation has to be a whole number from 0 up"),
        (lambda: TruncationSelection(100), "from 1 to 99, and is 100"),
        (lambda: read_goal("larger"), "'larger' has to be maximize or minimize"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(make: object, words: str) -> None:
    """With the number that is wrong."""
    with pytest.raises(InvalidSettings, match=words):
        make()  # type: ignore[operator]
