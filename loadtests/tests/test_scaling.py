"""The simulation of rules that choose the number of pods."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stoker_bench.scaling import (
    STEP_S,
    TRACES,
    Fixed,
    Fleet,
    Horizontal,
    Knative,
    Model,
    main,
    rules_for,
    simulate,
    table,
)
from stoker_cluster.scaling import ScalingPolicy

MODEL = Model(start_s=2, drain_s=1)
POLICY = ScalingPolicy(1, 50, 70)


def fleet(replicas: int) -> Fleet:
    return Fleet(MODEL, replicas, np.random.default_rng(1))


def second(pods: Fleet, asked: float) -> None:
    for _ in range(round(1 / STEP_S)):
        pods.step(asked)


def test_a_pod_that_is_wanted_is_ready_later_and_has_its_gpu_at_once() -> None:
    """Starting and draining pods hold GPUs, and serve nobody."""
    pods = fleet(1)
    pods.scale(3)
    second(pods, 0)
    assert (pods.ready, pods.pod_s) == (1, 3.0)
    second(pods, 0)
    second(pods, 0)
    assert pods.ready == 3
    pods.scale(1)
    second(pods, 0)
    assert (pods.ready, pods.pod_s) == (1, 9.0 + 1 + 2 * 0.75)


def test_pods_that_start_go_first_and_then_the_idlest() -> None:
    """Nobody waits for those; of the others those are kept in which rows wait."""
    pods = fleet(3)
    pods.backlog = np.array([5.0, 0.0, 9.0])
    pods.scale(5)
    pods.scale(2)
    assert (pods.ready, pods.backlog.tolist()) == (2, [5.0, 9.0])


def test_what_comes_is_done_waits_or_is_refused() -> None:
    """Two pods with the work of four: half is done, a second of it waits, the rest is refused, and all is late."""
    pods = fleet(2)
    for _ in range(10):
        second(pods, 4)
    done = 10 * 2 * MODEL.capacity_rows_s
    assert pods.rows == pytest.approx(done + pods.backlog.sum() + pods.refused.sum(), rel=1e-9)
    assert pods.backlog.sum() == pytest.approx(2 * MODEL.capacity_rows_s)
    assert pods.missed > 0.9 * pods.rows
    idle = fleet(2)
    second(idle, 1.2)
    assert (idle.missed, idle.refused.sum()) == (0, 0)


def test_batches_grow_with_what_comes() -> None:
    """One row alone, and at most a full batch."""
    few, many = MODEL.batch_s(np.array([1.0, 1e9]))
    assert few == pytest.approx(MODEL.fixed_s + MODEL.row_s)
    assert many == pytest.approx(MODEL.batch_rows / MODEL.capacity_rows_s)


def test_enough_pods_miss_nothing() -> None:
    """The highest load that a rule with a target of 70 percent leaves them is one that they bear."""
    outcome = simulate(Fixed(10), np.full(30, 7.0), MODEL, 0.7, np.random.default_rng(1))
    assert (outcome.missed_percent, outcome.most) == (0, 10)
    assert outcome.gpu_hours == pytest.approx(10 * 30 / 3600)


@pytest.mark.parametrize("name", list(rules_for(POLICY, MODEL, 7.0)))
def test_each_rule_follows_a_lasting_step(name: str) -> None:
    """From one pod to what 7 need, whatever it looks at, and to no more than it may have."""
    asked = np.concatenate((np.full(60, 0.5), np.full(240, 7.0)))
    outcome = simulate(rules_for(POLICY, MODEL, 7.0)[name], asked, MODEL, 0.7, np.random.default_rng(1))
    assert 10 <= outcome.most <= 50
    assert outcome.missed_percent < 60


def looked(rule: Horizontal | Knative, pods: Fleet, asked: float, seconds: int) -> list[int]:
    """What a rule wants, second by second; nothing is done about it."""
    wanted = []
    for _ in range(seconds):
        second(pods, asked)
        wanted.append(rule.decide(pods))
    return wanted


def test_a_horizontal_pod_autoscaler_looks_every_15_s_and_steps_by_four_or_as_many_again() -> None:
    """It sees what was scraped some seconds before; within a tenth of its target it does nothing."""
    assert looked(Horizontal(POLICY), fleet(2), 10.0, 24) == [2] * 22 + [6, 2]
    assert set(looked(Horizontal(POLICY), fleet(10), 7.4, 60)) == {10}


def test_it_comes_down_when_its_window_is_over() -> None:
    """At once to what was wanted at most; as rendered a tenth of the pods within a minute."""
    assert looked(Horizontal(POLICY, down_window_s=60), fleet(10), 0.1, 110)[-1] == 10
    quick = Horizontal(POLICY, down_window_s=0)
    assert min(looked(quick, fleet(10), 0.1, 40)) == 1
    slow = Horizontal(POLICY, down_window_s=0, down_share=0.1, down_period_s=60)
    assert min(looked(slow, fleet(30), 0.1, 40)) == 27


def test_knative_panics_at_twice_what_is_ready() -> None:
    """Then six seconds count instead of sixty, and pods only come."""
    rule = Knative(POLICY, MODEL.capacity_rows_s, by_rate=True)
    pods = fleet(4)
    assert looked(rule, pods, 2.8, 60)[-1] == 4
    wanted = looked(rule, pods, 14.0, 10)
    assert max(wanted) == pytest.approx(20, abs=1)
    assert max(looked(rule, pods, 2.8, 20)) == max(wanted)


@pytest.mark.parametrize("name", TRACES)
def test_traces_are_what_their_seed_makes_them(name: str) -> None:
    """The same seed asks the same, and never more than 700 pods can do: 1,000 at 70 percent."""
    first, again = (TRACES[name](1200, np.random.default_rng(5)) for _ in range(2))
    assert (first == again).all()
    assert len(first) == 1200
    assert 0 < first.min() < first.max() <= 700
    assert math.isfinite(first.sum())


def test_the_table_is_reproducible(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a line for each rule on each trace, the same ones each time."""
    options = ["--seconds", "20", "--traces", "crowd", "--gpus", "60"]
    assert main(options) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("| trace | rule | missed | GPU hours |")
    assert lines == list(table(["crowd"], 20, 1, Model(), ScalingPolicy(1, 60, 70)))
    assert [line.split(" | ")[1] for line in lines] == list(rules_for(POLICY, MODEL, 1.0))
