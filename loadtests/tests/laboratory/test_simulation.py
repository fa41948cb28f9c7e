"""The simulator: its arrivals and devices, and what it makes of the planner of the server."""

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.cli import main
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.batching import BatchPolicy
from stoker.simulation.residency import TRACES
from stoker.simulation.scheduler import PlannedScheduler
from stoker.simulation.workload import CURVES, Curve, Jitter, Pattern, Requests, Stream, joined
from stoker.simulation.world import row_tables, run
from stoker_bench.laboratory.suite import SCHEDULERS, SUITE, Shared, simulate, simulate_load

SEED = 7
MS = 1_000_000
A100 = CURVES["resnet50-a100"]


@pytest.mark.parametrize("pattern", ["poisson", "gamma", "sine", "bursts"])
def test_requests_come_at_the_rate_that_was_asked_for(pattern: Pattern) -> None:
    """On average, in order, and within the time; rows of requests count, not requests."""
    stream = Stream(2000, 50, pattern=pattern, cv=2, most_rows=16)
    requests = stream.draw(10, np.random.default_rng(SEED))
    assert requests.rows.sum() == pytest.approx(20_000, rel=0.15)
    assert (np.diff(requests.at_ns) >= 0).all()
    assert requests.at_ns[-1] < 10e9
    assert requests.rows.max() <= 16
    assert (requests.target_ns == 50_000_000).all()


def test_pauses_vary_as_much_as_was_asked_for() -> None:
    """The coefficient of variation of a gamma renewal process."""
    requests = Stream(5000, 50, pattern="gamma", cv=4).draw(60, np.random.default_rng(SEED))
    pauses = np.diff(requests.at_ns)
    assert pauses.std() / pauses.mean() == pytest.approx(4, rel=0.1)


def test_streams_are_joined_in_order() -> None:
    """Each request keeps what it is."""
    chance = np.random.default_rng(SEED)
    both = joined([Stream(500, 20).draw(1, chance), Stream(500, 70, model=1).draw(1, chance)])
    assert (np.diff(both.at_ns) >= 0).all()
    assert set(both.model.tolist()) == {0, 1}
    assert ((both.target_ns == 70_000_000) == (both.model == 1)).all()


def test_batches_are_never_shorter_than_their_curve() -> None:
    """Jitter and hiccups only lengthen them."""
    jitter = Jitter(np.random.default_rng(SEED), spread=0.03, hiccups=0.01)
    factors = [jitter.factor() for _ in range(10_000)]
    assert min(factors) >= 1
    assert np.median(factors) < 1.05
    assert 50 < sum(factor > 1.9 for factor in factors) < 150


def test_a_bucket_takes_its_whole_time() -> None:
    """Rows that fill it up are computed too."""
    curve = Curve(1, 0.5, 8, (2, 4, 8))
    assert [curve.batch_ns(rows) for rows in (1, 2, 3, 8)] == [2_000_000, 2_000_000, 3_000_000, 5_000_000]
    assert (curve.full_ns, curve.peak_rows_per_s) == (5_000_000, 1600)


def in_time(name: str, scheduler: str) -> float:
    """The share of the rows of one run that is in time."""
    outcomes = simulate(SUITE[name], scheduler, [SEED])
    assert outcomes is not None
    return outcomes[0].in_time()


@pytest.mark.parametrize(("name", "least"), [("O1", 0.94), ("O4", 0.47), ("O5", 0.45)])
def test_overload_does_not_collapse(name: str, least: float) -> None:
    """Nearly as many are in time at twice the peak as the device can do; without targets half of them with 25 ms."""
    assert in_time(name, "Stoker") >= least
    assert in_time("O5", "timeouts") < 0.3


def test_others_are_simulated_as_they_are_known() -> None:
    """What serves the oldest first fails under overload, what drops early does not."""
    shares = {scheduler: in_time("O4", scheduler) for scheduler in SCHEDULERS}
    assert max(shares["Triton"], shares["Clipper"], shares["Clockwork"]) < 0.15
    assert min(shares["Nexus"], shares["Symphony"], shares["Stoker"]) > 0.45


@pytest.mark.parametrize("load", [2, 10])
def test_whoever_is_late_is_told_so_with_refuse(load: float) -> None:
    """Answers are in time, but for a few of batches that take longer than expected; nobody waits beyond that."""
    stream = Stream(load * A100.peak_rows_per_s, 50)
    outcome = simulate_load(A100, BatchPolicy(64, late="refuse"), stream, 0.5, SEED, hiccups=0)
    assert outcome.in_time() * load > 0.9
    assert outcome.latency_ms(0.99) <= 52
    assert outcome.end_ns < 0.7e9


def test_holding_saves_device_time_and_costs_latency() -> None:
    """At a third of the load, with half of the slack."""
    stream = Stream(0.3 * A100.peak_rows_per_s, 50)
    eager, held = (
        simulate_load(A100, BatchPolicy(64, hold=hold), stream, 1, SEED, hiccups=0) for hold in (0, 0.5)
    )
    assert eager.in_time() > 0.99
    assert held.in_time() > 0.99
    assert sum(held.busy_ns) < 0.6 * sum(eager.busy_ns)
    assert held.latency_ms(0.5) > 2 * eager.latency_ms(0.5)


def test_the_same_seeds_give_the_same_figures() -> None:
    """Nothing looks at a clock."""
    first, second = (simulate(SUITE["O3"], "Stoker", [3]) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first[0].done_ns == second[0].done_ns).all()


def test_models_that_share_a_device_do_not_starve() -> None:
    """Beside one that asks for one and a half times the device, three small ones have nearly all answers in time."""
    outcomes = simulate(SUITE["O8"], "Stoker", [SEED])
    assert outcomes is not None
    assert min(outcomes[0].in_time(model) for model in (1, 2, 3)) > 0.95
    # And the device does nearly what it can do in full batches.
    assert outcomes[0].in_time() * 1.86 > 0.83
    assert simulate(SUITE["O8"], "Nexus", [SEED]) is None


@pytest.mark.parametrize(("name", "all_rows"), [("O9", 0.27), ("O10", 0.3)])
def test_a_flood_takes_nothing_from_others(name: str, all_rows: float) -> None:
    """Five callers beside one with three times what the device can do, and a high tier beside such a low one."""
    workload = SUITE[name]
    outcomes = simulate(dataclasses.replace(workload, seconds=1.0), "Stoker", [SEED])
    assert outcomes is not None
    part = workload.in_time_beside(outcomes[0])
    assert part is not None
    assert part >= 0.99
    assert outcomes[0].in_time() >= all_rows


def test_the_command_prints_a_line_for_each_load(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the device, its ceiling and the target; as JSON the same, by keys of one form."""
    asked = ["simulate", "--load", "0.2,2", "--seeds", "1", "--seconds", "0.2", "--batch-buckets", "8,64"]
    assert main(asked) == 0
    device, ceiling, target, head, *lines = capsys.readouterr().out.splitlines()
    assert device == "resnet50-a100: 1.7 ms a batch and 0.25 ms a row, at most 64 rows a batch"
    assert (ceiling[:25], target[:13]) == ("load 1 is the ceiling, 3,", "target 50 ms;")
    assert head.split() == [
        "load",
        "rows",
        "in",
        "time",
        "p50",
        "ms",
        "p99",
        "ms",
        "rows",
        "a",
        "batch",
        "busy",
        "not",
        "taken",
    ]
    assert [line.split()[0] for line in lines] == ["0.2", "2.0"]
    assert main([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["load"], row["device"], row["target_ms"]) for row in rows] == [
        (0.2, "resnet50-a100", 50),
        (2.0, "resnet50-a100", 50),
    ]
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in rows[0])


def test_admission_is_as_a_deployment_has_it_unless_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Under overload some are refused when they come, at little cost of rows in time; with `rows` nobody is."""
    asked = ["simulate", "--load", "4", "--seeds", "1", "--seconds", "0.2", "--json"]
    assert main(asked) == 0
    (admitted,) = json.loads(capsys.readouterr().out)
    assert main([*asked, "--admission", "rows"]) == 0
    (everybody,) = json.loads(capsys.readouterr().out)
    assert "not_taken" not in everybody
    assert admitted["not_taken"] > 0.2
    assert admitted["in_time"] > 0.95 * everybody["in_time"]
    assert main([*asked, "--gpus", "2", "--admission", "target"]) == 2
    assert "leave --admission target out" in capsys.readouterr().err


def test_admission_leaves_the_freshest_rows_to_short_targets() -> None:
    """At ten times the load, with 1.4 full batches, as many are in time as if all were taken; most are refused."""
    stream, policy = Stream(10 * A100.peak_rows_per_s, 24.8), BatchPolicy(A100.max_batch_rows)
    all_taken, refusing = (
        simulate_load(A100, policy, stream, 0.2, 1, 0.0, admission) for admission in ("rows", "target")
    )
    assert refusing.in_time() >= 0.98 * all_taken.in_time()
    assert refusing.refused_rows > 0.7 * refusing.requests.rows.sum()


def test_who_comes_is_told_of_the_other_models_of_the_device() -> None:
    """When it has done the batch of any of them, and how long the longest is that another one offers."""
    chance, now_ns = np.random.default_rng(SEED), 10 * MS
    requests = joined([Stream(3000, 50, model=model).draw(0.01, chance) for model in (0, 1)])
    tables = row_tables(requests, 2)
    shared = Shared(tables, [BatchPolicy(64)] * 2, admits=True)
    for model, table in enumerate(tables):
        for rows in (1, 32, 64):
            shared.ran(model, rows, A100.batch_ns(rows))
        shared.arrive(model, 0, len(table.at_ns))
    ran, rows, _ = shared.next_batch(now_ns)
    assert len(rows) == len(tables[ran].at_ns)
    boards = [model.admission.board for model in shared.models if model.admission is not None]
    other_rows = len(tables[1 - ran].at_ns)
    assert boards[ran].free_ns == boards[1 - ran].free_ns
    assert boards[ran].free_ns - now_ns == pytest.approx(A100.batch_ns(len(rows)), rel=0.1)
    assert boards[ran].other_ns == pytest.approx(A100.batch_ns(other_rows), rel=0.1)
    assert [sum(board.waiting) for board in (boards[ran], boards[1 - ran])] == [0, other_rows]
    assert boards[1 - ran].other_ns == 0


@pytest.mark.parametrize("kind", ["callers", "tiers"])
def test_a_neighbour_takes_nothing_from_others(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Callers who ask for less, and the higher tier, are in time beside a flood, which has what they leave."""
    asked = ["simulate", "--neighbours", kind, "--load", "4", "--seeds", "1", "--seconds", "0.4", "--json"]
    assert main(asked) == 0
    alone, beside = json.loads(capsys.readouterr().out)
    assert (alone["neighbour"], alone["neighbours_part"]) == (0, 0)
    assert beside["worst"] >= 0.99
    assert beside["p99_ms"] > alone["p99_ms"]
    assert beside["neighbours_part"] > 0.4


def test_bounds_stand_beside_what_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """Of requests of one row both, of larger ones the one that allows for them."""
    asked = ["simulate", "--bounds", "--load", "1", "--seeds", "1", "--seconds", "0.1", "--json"]
    assert main(asked) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["in_time"] <= row["exact"] <= row["fluid"] <= 1
    assert main([*asked, "--most-rows", "8"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["exact"] is None
    assert row["in_time"] <= row["fluid"]


@settings(STEADY, max_examples=25)
@given(
    st.builds(Curve, st.integers(0, 10), st.integers(1, 4), st.integers(1, 16)),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 4)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=30),
)
@example(Curve(3, 3, 4), [(14, 4)], [(19, 1), (0, 15)])
def test_lower_tiers_make_nobody_late_by_more_than_a_block(
    curve: Curve, high: list[tuple[int, int]], low: list[tuple[int, int]]
) -> None:
    """Whoever would be in time alone with `tier_block_ms` to spare is so beside any rows of a lower tier.

    A batch takes at most half of the smallest target: a request that needs more than that is cut, and may be late.
    """
    block_ms = 2 * (curve.batch_ms + curve.row_ms)
    rows = 1
    at_ms = [0]
    for pause_ms, count in high:
        # Nobody above waits for another one.
        at_ms.append(at_ms[-1] + pause_ms + 2 * round(block_ms + curve.full_ns / MS))
        rows = max(rows, min(count, curve.max_batch_rows))
    alone_ms = curve.batch_ms + curve.row_ms * rows
    wait_ms = alone_ms + max(alone_ms, block_ms + 1)
    parts = [kind_of(at_ms, [1, *(min(n, curve.max_batch_rows) for _, n in high)], wait_ms, tier=0)]
    if low:
        parts.append(
            kind_of(np.cumsum([pause for pause, _ in low]).tolist(), [n for _, n in low], 1e4, tier=2)
        )
    requests = joined(parts)
    tables = row_tables(requests, 1)
    times = ServiceTimes()
    for _ in range(4):
        for count in (1, 2, max(1, curve.max_batch_rows // 2), curve.max_batch_rows):
            times.learn(count, curve.batch_ns(count))
    policy = BatchPolicy(curve.max_batch_rows, tier_block_ms=block_ms, tier_floor=0)
    steady = Jitter(np.random.default_rng(1), spread=0, hiccups=0)
    planned = PlannedScheduler(tables[0], policy, times=times)
    assert run(requests, [curve], tables, planned, steady).in_time(tier=0) == 1


def kind_of(at_ms: list[int], rows: list[int], target_ms: float, tier: int) -> Requests:
    """Requests of one tier."""
    same = np.ones(len(at_ms), np.int64)
    return Requests(
        np.array(at_ms) * MS,
        np.array(rows),
        0 * same,
        round(target_ms * MS) * same,
        tier * same,
        0 * same,
    )


def test_an_earlier_name_of_a_device_is_still_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The published curve was renamed; it is not the measured device whose name has the same words."""
    tables = []
    for name in ("resnet50-h200", "resnet50-h200-published"):
        assert main(["simulate", "--device", name, "--load", "0.5", "--seconds", "0.05", "--seeds", "1"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]


def test_a_device_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With those that are known."""
    assert main(["simulate", "--device", "abacus"]) != 0
    assert "there is no device 'abacus'; there are resnet50-a100" in capsys.readouterr().err


def test_models_in_a_memory_are_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each trace with the wait by each rule; options of other simulations are refused."""
    asked = ["simulate", "--memory-mb", "200", "--models", "6", "--seeds", "1"]
    assert main([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["trace"] for row in rows] == list(TRACES)
    assert all(0 <= row["hits"] <= 1 and row["stoker"] > 0 and row["gdsf"] > 0 for row in rows)
    assert "device" not in rows[0]
    assert main([*asked, "--gpus", "2"]) == 2
    assert "leave --gpus out" in capsys.readouterr().err
