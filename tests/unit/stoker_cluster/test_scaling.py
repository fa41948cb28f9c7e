"""The policy of the autoscaler."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker_cluster.scaling import Decision, PodLoad, Pods, ScalingPolicy, ScalingState, decide, period_s

POLICY = ScalingPolicy(1, 1000, 70)


def names(count: int) -> list[str]:
    return [f"pod-{number:04}" for number in range(count)]


class Cluster:
    """A Deployment whose pods share a load, and are ready some seconds after they are wanted."""

    def __init__(self, replicas: int, policy: ScalingPolicy = POLICY, start_s: float = 0.0) -> None:
        self.policy, self.start_s = policy, start_s
        self.state, self.now_s = ScalingState(), 1000.0
        self.replicas, self.born = replicas, [-math.inf] * replicas
        self.refused = 0
        self.history: list[int] = []

    @property
    def ready(self) -> list[str]:
        return [
            name
            for name, born in zip(names(self.replicas), self.born, strict=True)
            if self.now_s - born >= self.start_s
        ]

    def look(self, load: float, *, silent: int = 0) -> Decision:
        """One look at pods that share this load, some of which say nothing; then the period goes by."""
        ready = self.ready
        speaking = ready[silent:]
        loads = {name: PodLoad(load / len(ready), self.refused, self.now_s) for name in speaking}
        pods = Pods(self.replicas, frozenset(ready), loads)
        decision = decide(pods, self.now_s, self.state, self.policy)
        self.state = decision.state
        self.born = (self.born + [self.now_s] * decision.replicas)[: decision.replicas]
        self.replicas = decision.replicas
        self.history.append(decision.replicas)
        self.now_s += self.policy.refresh_s
        return decision

    def run(self, looks: int, load: Callable[[int], float] | float, *, silent: int = 0) -> list[int]:
        """Look so often; returns how many pods were wanted each time."""
        for number in range(looks):
            self.look(load(number) if callable(load) else load, silent=silent)
        return self.history[-looks:]


def test_a_step_of_load_is_followed_within_three_looks() -> None:
    """From 1 to 20 pods: twice as many and four more each time, though the first are not ready yet."""
    cluster = Cluster(1, start_s=8)
    assert cluster.run(3, 14.0) == [6, 16, 20]
    assert cluster.run(600, 14.0) == [20] * 600


def test_it_comes_down_after_a_minute_a_tenth_at_a_time() -> None:
    """No pod goes until the load has been lower for a minute; then a tenth of them, at least one."""
    cluster = Cluster(20)
    cluster.run(70, 14.0)
    down = cluster.run(90, 0.1)
    assert down[:59] == [20] * 59
    assert down[59:65] == [18, 17, 16, 15, 14, 13]
    assert down[-1] == 1


def test_it_comes_down_to_the_most_of_the_last_minute() -> None:
    """The spike of the last minute sets the number, not the present load."""
    cluster = Cluster(40)
    cluster.run(61, 28.0)
    cluster.run(30, 5.0)
    cluster.look(10.5)
    # 10.5 is 15 pods at 0.7, and a twentieth to spare.
    assert cluster.run(45, 5.0)[-2:] == [16, 16]
    assert cluster.run(30, 5.0)[-1] == 8


def test_noise_moves_nothing() -> None:
    """A load that goes up and down by 4 percent keeps its pods, once the highest of it was seen."""
    cluster = Cluster(100)
    history = cluster.run(900, lambda second: 70.0 * (1 + 0.04 * math.sin(second)))
    assert len(set(history[120:])) == 1


def test_refused_requests_add_one_pod_at_a_time() -> None:
    """Reported loads do not count then; a starting pod is waited for."""
    cluster = Cluster(4, start_s=5)
    cluster.run(2, 1.0)
    cluster.refused += 1
    assert cluster.look(1.0).replicas == 5
    for _ in range(4):
        cluster.refused += 1
        assert cluster.look(1.0).replicas == 5, "it starts"
    cluster.refused += 1
    cluster.run(1, 1.0)
    cluster.refused += 1
    assert cluster.look(1.0).replicas == 6


def test_refusals_before_the_first_look_are_history() -> None:
    """A new autoscaler does not take all that was ever refused for news; a pod that is new to it has news."""
    cluster = Cluster(4)
    cluster.refused = 100
    assert cluster.run(2, 1.0) == [4, 4]
    pods = Pods(5, frozenset(names(5)), {name: PodLoad(0.2, 100, cluster.now_s) for name in names(5)})
    assert decide(pods, cluster.now_s, cluster.state, POLICY).replicas == 6


def test_those_with_the_least_to_do_go_first() -> None:
    """As many as go, in the order of their loads."""
    cluster = Cluster(20)
    cluster.run(70, 1.0)
    loads = {
        name: PodLoad((7 * number % 20) / 100, 0, cluster.now_s) for number, name in enumerate(names(20))
    }
    pods = Pods(20, frozenset(loads), loads)
    decision = decide(pods, cluster.now_s, cluster.state, POLICY)
    assert (decision.replicas, decision.leaving) == (18, ("pod-0000", "pod-0003"))


def test_a_pod_that_says_nothing_keeps_all() -> None:
    """It may have everything to do; when it speaks again the minute begins."""
    cluster = Cluster(20)
    assert set(cluster.run(200, 1.0, silent=1)) == {20}
    assert cluster.run(60, 1.0) == [20] * 60
    assert cluster.look(1.0).replicas == 18


def test_silent_pods_count_as_loaded_at_the_target() -> None:
    """The other pods count with their own load."""
    cluster = Cluster(10)
    assert cluster.look(20.0, silent=5).replicas == 20


def test_stale_load_counts_as_unknown() -> None:
    """A load is stale after three looks and three seconds."""
    loads = {"pod": PodLoad(5.0, 0, 100.0)}
    pods = Pods(1, frozenset(loads), loads)
    fresh = decide(pods, 103.0, ScalingState(), POLICY)
    assert (fresh.replicas, fresh.unknown) == (6, 0)
    stale = decide(pods, 103.1, ScalingState(), POLICY)
    assert (stale.replicas, stale.unknown) == (1, 1)
    slow = msgspec.structs.replace(POLICY, refresh_s=5)
    assert decide(pods, 115.0, ScalingState(), slow).unknown == 0
    assert decide(pods, 115.1, ScalingState(), slow).unknown == 1


def test_minute_begins_anew_after_a_pause() -> None:
    """The load during the pause is unknown."""
    cluster = Cluster(20)
    cluster.run(50, 1.0)
    cluster.now_s += 30
    assert set(cluster.run(60, 1.0)) == {20}
    assert cluster.look(1.0).replicas == 18


def test_no_ready_pod_is_no_news() -> None:
    """All may be about to start, or nobody can see them."""
    cluster = Cluster(3, start_s=1e9)
    cluster.born = [cluster.now_s] * 3
    assert set(cluster.run(100, 0.0)) == {3}


def test_no_pods_at_all_stay_none() -> None:
    """An operator has set that, and means it."""
    pods = Pods(0, frozenset(), {})
    assert decide(pods, 1.0, ScalingState(), POLICY).replicas == 0


def test_a_waiting_request_starts_the_first_pod() -> None:
    """If the least number is none, one pod starts for any waiting requests and goes after an idle minute."""
    policy = ScalingPolicy(0, 10)
    none = Pods(0, frozenset(), {})
    assert decide(none, 1.0, ScalingState(), policy).replicas == 0
    assert decide(none._replace(waiting=30), 1.0, ScalingState(), policy).replicas == 1
    assert decide(none._replace(waiting=30), 1.0, ScalingState(), POLICY).replicas == 0
    cluster = Cluster(1, policy, start_s=1e9)
    cluster.born = [cluster.now_s]
    assert set(cluster.run(100, 0.0)) == {1}, "it starts"
    cluster = Cluster(1, policy)
    assert cluster.run(59, 0.0)[-1] == 1
    assert cluster.run(3, 0.0)[-1] == 0
    assert set(Cluster(1, policy).run(200, 1e-6)) == {1}, "it has a little to do"


@pytest.mark.parametrize(("replicas", "bounds", "expected"), [(50, (1, 10), 10), (1, (30, 40), 30)])
def test_bounds_that_an_operator_moves_hold_at_once(
    replicas: int, bounds: tuple[int, int], expected: int
) -> None:
    """They need no minute, and no steps."""
    cluster = Cluster(replicas, ScalingPolicy(*bounds))
    assert cluster.look(0.0).replicas == expected


def test_many_pods_are_read_less_often() -> None:
    """A thousand pods are read every two seconds, five hundred every second."""
    policy = ScalingPolicy(refresh_s=1)
    assert [period_s(policy, pods) for pods in (1, 500, 1000)] == [1, 1, 2]


@pytest.mark.parametrize(
    "fields", [(0, 0, 70), (-1, 1, 70), (3, 2, 70), (1, 2, 0), (1, 2, 101), (1, 2, 70, 0.0)]
)
def test_impossible_policy_is_refused(fields: tuple[int, ...]) -> None:
    """Callers check the values of users first, so this is a plain ValueError."""
    with pytest.raises(ValueError, match=r"must have|is no"):
        ScalingPolicy(*fields)


class Look(NamedTuple):
    """The pods between two decisions.

    Attributes:
        after_s: Seconds since the one before.
        ready: How many pods are ready.
        load: The load of each but one.
        odd: The load of that one: as the others, nothing, stale, or nonsense.
    """

    after_s: float
    ready: int
    load: float
    odd: Literal["", "nothing", "old", "nan"]


LOOKS = st.lists(
    st.builds(
        Look,
        st.sampled_from([0.5, 1, 2, 3, 3, 3, 3, 4]),
        st.integers(0, 6),
        st.one_of(st.just(0.0), st.floats(0, 5), st.just(math.inf)),
        st.sampled_from(["", "", "", "", "", "", "", "", "", "nothing", "old", "nan"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(LOOKS, st.integers(1, 20), st.integers(0, 40), st.integers(1, 100), st.integers(1, 60))
def test_random_loads_keep_bounds_and_steps(
    looks: list[Look], least: int, more: int, target: int, replicas: int
) -> None:
    """A decision is at most a step up or down, and down only after a minute with loads of all pods."""
    policy = ScalingPolicy(least, least + more, target)
    state, now_s, known_since_s = ScalingState(), 100.0, math.inf
    replicas = min(max(replicas, policy.min_replicas), policy.max_replicas)
    # Each look is repeated, so that a minute of the same is among them.
    for look in [look for look in looks for _ in range(8)]:
        now_s += look.after_s
        ready = frozenset(names(look.ready))
        loads_by_pod = {name: PodLoad(look.load, 0, now_s - 1) for name in ready}
        spoke = not look.odd
        if look.odd == "nothing":
            loads_by_pod.pop("pod-0000", None)
        elif look.odd:
            load, ago_s = (math.nan, 0) if look.odd == "nan" else (0.1, 4)
            loads_by_pod["pod-0000"] = PodLoad(load, 0, now_s - ago_s)
        decision = decide(Pods(replicas, ready, loads_by_pod), now_s, state, policy)
        assert policy.min_replicas <= decision.replicas <= policy.max_replicas
        assert decision.replicas <= 2 * replicas + 4
        gone = replicas - decision.replicas
        assert gone <= max(1, replicas // 10)
        if not (ready and spoke):
            known_since_s = math.inf
        elif look.after_s > 3:
            known_since_s = now_s
        known_since_s = min(known_since_s, now_s) if ready and spoke else math.inf
        if gone > 0:
            assert now_s - known_since_s >= 60
            assert len(decision.leaving) <= max(replicas, len(ready)) - decision.replicas
            assert set(decision.leaving) <= ready
        else:
            assert decision.leaving == ()
        state, replicas = decision.state, decision.replicas


def test_pods_that_still_leave_are_not_counted_as_those_that_are_to_go() -> None:
    """A pod that was removed may still serve: the next step names it again beside the next idlest one."""
    state = ScalingState(99.0, 0.0, ((99.0, 1),), {})
    pods = Pods(
        4, frozenset(names(5)), {name: PodLoad(place / 100, 0, 99.5) for place, name in enumerate(names(5))}
    )
    decision = decide(pods, 100.0, state, ScalingPolicy(1, 8, 70))
    assert decision.replicas == 3
    assert decision.leaving == tuple(names(5))[:2]


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 30), st.integers(1, 50))
def test_steady_load_comes_to_rest(load: float, replicas: int) -> None:
    """Wherever it begins, and then it stays there: enough for the target, and at most a twentieth and one more."""
    cluster = Cluster(replicas, msgspec.structs.replace(POLICY, refresh_s=15))
    cluster.run(50, load)
    rest = cluster.history[-1]
    assert set(cluster.run(6, load)) == {rest}
    assert load / rest <= 0.7 * (1 + 1e-6)
    assert rest <= 1.05 * load / 0.7 + 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 3), min_size=1, max_size=20), st.floats(0, 3))
def test_more_load_never_wants_fewer_pods(loads: list[float], more: float) -> None:
    """The pods are the same, one of them with more load."""
    before = {name: PodLoad(load, 0, 1.0) for name, load in zip(names(len(loads)), loads, strict=True)}
    after = before | {"pod-0000": before["pod-0000"]._replace(load=loads[0] + more)}
    few, many = (
        decide(Pods(len(loads), frozenset(loads_by_pod), loads_by_pod), 1.0, ScalingState(), POLICY).replicas
        for loads_by_pod in (before, after)
    )
    assert many >= few
