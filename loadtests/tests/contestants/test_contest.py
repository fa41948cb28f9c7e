"""Turns, medians and ratios."""

import pytest

from stoker_bench.contestants.contest import Case, Slice, disturbance, ratio, run_in_turns, standing


def rate(requests_per_s: float, **figures: float) -> Slice:
    """Return a slice of one row a request."""
    return Slice(requests_per_s, requests_per_s, int(figures.pop("errors", 0)), **figures)


class Puppet:
    """A contestant whose slices are given."""

    def __init__(self, name: str, slices: list[Slice], diary: list[str]) -> None:
        self.name = name
        self._slices = iter(slices)
        self._diary = diary

    def run(self, case: Case, seconds: int) -> Slice:
        """Note the turn and hand out the next slice."""
        self._diary.append(f"{self.name} {case.connections} {seconds}")
        return next(self._slices)


def test_contestants_take_turns() -> None:
    """Every round gives each contestant one slice, after a second that does not count."""
    diary: list[str] = []
    seen: list[tuple[str, Slice]] = []
    first = Puppet("a", [rate(0), rate(1), rate(0), rate(2)], diary)
    second = Puppet("b", [rate(0), rate(3), rate(0), rate(4)], diary)
    slices = run_in_turns(
        [first, second], Case(8), seconds=3, rounds=2, on_slice=lambda name, taken: seen.append((name, taken))
    )
    assert diary == ["a 8 1", "a 8 3", "b 8 1", "b 8 3"] * 2
    assert slices == {"a": [rate(1), rate(2)], "b": [rate(3), rate(4)]}
    assert seen == [("a", rate(1)), ("b", rate(3)), ("a", rate(2)), ("b", rate(4))]


def test_ratio_is_taken_within_each_round() -> None:
    """A clock that halves for one round moves both contestants and leaves the ratio as it is."""
    mine, theirs = [rate(200), rate(100), rate(220)], [rate(100), rate(50), rate(100)]
    assert ratio(lambda taken: taken.requests_per_s, mine, theirs) == 2.0


def test_ratio_of_unknown_figures_is_unknown() -> None:
    """Rounds in which either figure is missing or nothing was done do not count; without any there is no ratio."""
    mine, theirs = [rate(1, cpu_us_per_request=10), rate(1)], [rate(1, cpu_us_per_request=5), rate(1)]
    assert ratio(lambda taken: taken.cpu_us_per_request, mine, theirs) == 2.0
    assert ratio(lambda taken: taken.p50_ms, mine, theirs) is None
    assert ratio(lambda taken: taken.requests_per_s, [rate(1)], [rate(0)]) is None


def test_standing_is_medians_and_all_errors() -> None:
    """One outlier moves no median, unknown figures are left out, and no error is lost."""
    medians = standing([rate(10, p50_ms=1, errors=2), rate(1000, p50_ms=3), rate(12, errors=1)])
    assert medians.requests_per_s == 12
    assert medians.p50_ms == 2
    assert medians.p99_ms is None
    assert medians.errors == 3


@pytest.mark.parametrize(
    ("case", "title"),
    [
        (Case(1), "1 connection, 1 row a request"),
        (Case(64), "64 connections, 1 row a request"),
        (Case(4, 256), "4 connections, 256 rows a request"),
    ],
)
def test_case_titles(case: Case, title: str) -> None:
    """Titles read as English."""
    assert case.title == title


def test_disturbance_is_told_from_a_tenth_of_a_core() -> None:
    """A busy neighbour is told of, a quiet machine and unknown clocks are not."""
    assert disturbance([rate(1, foreign_cores=0.02), rate(1)]) is None
    assert disturbance([rate(1)]) is None
    assert "0.5 cores" in (disturbance([rate(1, foreign_cores=0.4), rate(1, foreign_cores=0.6)]) or "")
