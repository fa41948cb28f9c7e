"""The choice of the model that runs next."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device import scheduler
from stoker.device.arbiter import pick
from stoker.device.batch_decisions import BatchPolicy, Proposal
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.row_queue import RowQueue

MS = 1_000_000
CAP = 64


class Arbiter:
    """Models of a device whose batches run as they are picked; usage is counted as `DeviceTurns` counts it.

    Args:
        shares: Weight of each model's device time in conflicts.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        # Device time by share. The lower bound for a returning model is the least of those that wanted to run
        # before.
        self._used = dict.fromkeys(shares, 0.0)
        self._wanting: list[str] = []

    def choose(self, now_ns: int, proposals: Mapping[str, Proposal]) -> str | None:
        """Return the model that runs now; None if none wants to.

        Args:
            now_ns: When the device is free.
            proposals: What each model would run; a model that waits for more rows, or has none, does not want to run.
        """
        self._lift([model for model, proposal in proposals.items() if proposal.rows])
        return pick(now_ns, proposals, self._used)

    def charge(self, model: str, cost_ns: int) -> None:
        """Record that a model uses the device for this long."""
        self._used[model] += cost_ns / self._shares[model]

    def _lift(self, wanting: list[str]) -> None:
        """Raise models that begin to want to run to the least usage among those that wanted before."""
        if wanting == self._wanting:
            return
        stayed = [self._used[model] for model in wanting if model in self._wanting]
        if stayed:
            floor = min(stayed)
            for model in wanting:
                if model not in self._wanting:
                    self._used[model] = max(self._used[model], floor)
        self._wanting = wanting


def propose(cost_ns: int, latest_ns: int, rows: int = 1, tier: int = 1) -> Proposal:
    """The batch that a model would run."""
    return Proposal(rows, cost_ns, latest_ns, tier, losing=False, check_again_ns=None)


def test_the_batch_that_has_to_begin_first_runs() -> None:
    """The batch with the later latest start waits, and may grow."""
    arbiter = Arbiter({"a": 1, "b": 1})
    assert arbiter.choose(0, {"a": propose(5, 40), "b": propose(5, 20)}) == "b"


def test_model_without_rows_or_waiting_for_more_is_not_chosen() -> None:
    """If no model has rows to run, none is chosen."""
    arbiter = Arbiter({"a": 1, "b": 1})
    assert arbiter.choose(0, {"a": propose(5, 0, rows=0), "b": propose(5, 20)}) == "b"
    assert arbiter.choose(0, {"a": propose(5, 0, rows=0)}) is None
    assert arbiter.choose(0, {}) is None


def test_a_short_batch_goes_before_one_that_would_make_it_late() -> None:
    """The long batch can still begin in time behind it, so device time used does not matter."""
    arbiter = Arbiter({"a": 1, "b": 1})
    arbiter.charge("b", 10**9)
    assert arbiter.choose(0, {"a": propose(50, 10), "b": propose(5, 20)}) == "b"


def test_in_a_conflict_the_one_that_has_used_less_runs() -> None:
    """Device time counts by the share of each model."""
    proposals = {"a": propose(50, 10), "b": propose(50, 20)}
    arbiter = Arbiter({"a": 1, "b": 1})
    arbiter.choose(0, proposals)
    arbiter.charge("a", 50)
    assert arbiter.choose(0, proposals) == "b"
    arbiter = Arbiter({"a": 3, "b": 1})
    arbiter.choose(0, proposals)
    arbiter.charge("a", 50)
    arbiter.charge("b", 50)
    assert arbiter.choose(0, proposals) == "a"


def test_late_rows_run_behind_all_others() -> None:
    """Late rows run last even if the other batch could wait for long."""
    arbiter = Arbiter({"a": 1, "b": 1})
    assert arbiter.choose(0, {"a": propose(5, 1, tier=3), "b": propose(5, 10**9)}) == "b"


def test_a_pause_earns_no_credit() -> None:
    """A model that did not want the device begins where the others stand."""
    arbiter = Arbiter({"a": 1, "b": 1})
    for _ in range(100):
        assert arbiter.choose(0, {"a": propose(50, 10)}) == "a"
        arbiter.charge("a", 50)
    both = {"a": propose(50, 10), "b": propose(50, 10)}
    runs = Counter[str]()
    for _ in range(20):
        chosen = arbiter.choose(0, both)
        assert chosen is not None
        arbiter.charge(chosen, 50)
        runs[chosen] += 1
    assert abs(runs["a"] - runs["b"]) <= 2


@STEADY
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), min_size=2, max_size=5),
    st.lists(st.sets(st.integers(0, 4)), max_size=10),
)
def test_models_in_conflict_get_device_time_by_their_shares(
    models: list[tuple[int, int]], pauses: list[set[int]]
) -> None:
    """Used time by share differs by at most two of the dearest batches, whatever the models did before."""
    shares = {str(number): float(share) for number, (share, _) in enumerate(models)}
    proposals = {str(number): propose(cost_ns, 0) for number, (_, cost_ns) in enumerate(models)}
    arbiter = Arbiter(shares)
    for absent in pauses:
        chosen = arbiter.choose(0, {name: one for name, one in proposals.items() if int(name) not in absent})
        if chosen is not None:
            arbiter.charge(chosen, proposals[chosen].cost_ns)
    used: Counter[str] = Counter()
    dearest = max(one.cost_ns for one in proposals.values()) / min(shares.values())
    # Differences of the time before are made up for first.
    for turn in range(400):
        chosen = arbiter.choose(0, proposals)
        assert chosen is not None
        arbiter.charge(chosen, proposals[chosen].cost_ns)
        if turn >= 200:
            used[chosen] += proposals[chosen].cost_ns
    by_share = [used[name] / shares[name] for name in proposals]
    assert max(by_share) - min(by_share) <= 2 * dearest


OFFERS = st.lists(
    st.tuples(st.integers(1, 50), st.integers(-20, 200), st.sampled_from([1, 1, 1, 3]), st.integers(0, 500)),
    min_size=1,
    max_size=6,
    # Ties are broken by the order in which models are named.
    unique_by=(lambda offer: offer[1], lambda offer: offer[3]),
)


def chosen_of(proposals: list[tuple[int, int, int, int]], names: list[str], times: int = 1) -> int:
    """The place of the proposal that is picked: cost, latest start, tier and what the model has used of each."""
    offered = {
        name: propose(cost * times, latest * times, tier=tier)
        for name, (cost, latest, tier, _) in zip(names, proposals, strict=True)
    }
    used = {name: of * times for name, (_, _, _, of) in zip(names, proposals, strict=True)}
    picked = pick(0, offered, used)
    assert picked is not None
    return names.index(picked)


@STEADY
@given(OFFERS, st.integers(2, 1000))
def test_names_and_units_of_time_do_not_matter(
    proposals: list[tuple[int, int, int, int]], times: int
) -> None:
    """The same model is picked on a slower device, under other names and in another order."""
    names = [str(number) for number in range(len(proposals))]
    place = chosen_of(proposals, names)
    assert chosen_of(proposals, names, times) == place
    assert chosen_of(proposals, names[::-1]) == place
    assert proposals[::-1][chosen_of(proposals[::-1], names)] == proposals[place]


def test_a_model_that_loses_rows_anyway_lets_others_go_ahead() -> None:
    """They go ahead if they have used less, and have to begin at its end, when more of their rows may wait."""
    proposals = {"flood": propose(50, 1)._replace(losing=True), "b": propose(5, 59), "c": propose(5, 100)}
    assert pick(0, proposals, {"flood": 100, "b": 0, "c": 0}) == "b"
    # A model that loses no rows goes first, and so does one whose rival has used as much.
    assert pick(0, proposals | {"flood": propose(50, 1)}, {"flood": 100, "b": 0, "c": 0}) == "flood"
    assert pick(0, proposals, {"flood": 100, "b": 60, "c": 0}) == "flood"
    assert pick(0, proposals | {"b": propose(5, 60)}, {"flood": 100, "b": 0, "c": 0}) == "flood"
    # Behind one another, as large as they may be by then, they would begin too late, though each could alone.
    beside = {"b": propose(10, 75), "c": propose(10, 85)}
    assert pick(0, proposals | beside, {"flood": 100, "b": 0, "c": 0}) == "c"


def taught(batch_ms: float, row_ms: float) -> ServiceTimes:
    """Times that were learned from an exact line."""
    times = ServiceTimes()
    for _ in range(4):
        for rows in (1, 2, CAP // 2, CAP):
            times.learn(rows, round((batch_ms + row_ms * rows) * MS))
    return times


@dataclass
class Shared:
    """Models of one device whose batches take the learned times; the first gets three times the rows that it can do.

    Attributes:
        row_ms: Time of each row.
        rows_of_batch: How many rows take as long as a batch of none.
        due_after: How many full batches after it came each row is due.
    """

    row_ms: float
    rows_of_batch: float
    due_after: int
    queues: list[RowQueue] = field(default_factory=list)
    lost: int = 0

    def __post_init__(self) -> None:
        self.times = taught(self.row_ms * self.rows_of_batch, self.row_ms)
        self.full_ns = self.times.costs_ns(CAP)[CAP]
        self.policy = BatchPolicy(CAP, target_ms=self.due_after * self.full_ns / MS, late="refuse")

    def push(self, model: int, at_ns: np.ndarray) -> None:
        """Queue requests of one row each."""
        nothing = np.zeros(len(at_ns), np.int64)
        self.queues[model].push(0, nothing.astype(np.int32), nothing, at_ns, at_ns + 10**12)

    def run(self, comes_ns: list[list[int]]) -> None:
        """Let the rows of all models but the first come, and run until they have left."""
        self.queues = [RowQueue() for _ in range(len(comes_ns) + 1)]
        arbiter = Arbiter({str(model): 1.0 for model in range(len(self.queues))})
        coming = [list(times) for times in comes_ns]
        before_ns, now_ns = -self.full_ns, 0
        while any(coming) or any(queue.rows for queue in self.queues[1:]):
            flood = 3 * CAP * (now_ns - before_ns) // self.full_ns
            self.push(0, np.linspace(before_ns, now_ns, flood, dtype=np.int64))
            before_ns = now_ns
            for model, times in enumerate(coming, 1):
                here = [at_ns for at_ns in times if at_ns <= now_ns]
                del times[: len(here)]
                self.push(model, np.array(here, np.int64))
            now_ns += self.run_one(arbiter, now_ns)

    def run_one(self, arbiter: Arbiter, now_ns: int) -> int:
        """Let the batch run that is chosen; returns how long it takes."""
        proposals = {}
        for model, queue in enumerate(self.queues):
            proposal = scheduler.propose(queue, now_ns, self.policy, self.times)
            if proposal is not None:
                proposals[str(model)] = proposal
            elif queue.rows:
                self.take(model, now_ns)
        chosen = arbiter.choose(now_ns, proposals)
        assert chosen is not None
        arbiter.charge(chosen, proposals[chosen].cost_ns)
        self.take(int(chosen), now_ns)
        return proposals[chosen].cost_ns

    def take(self, model: int, now_ns: int) -> None:
        """Schedule the batch of a model; count the rows that the others lose."""
        planned = scheduler.schedule(self.queues[model], now_ns, self.policy, self.times)
        if model:
            self.lost += sum(block.rows for block in planned.expired)


@settings(STEADY, max_examples=10)
@given(
    st.sampled_from([0.25, 0.5, 1.0]),
    st.sampled_from([4.0, 6.8, 8.0]),
    st.integers(4, 6),
    st.lists(st.lists(st.sampled_from([1, 1.5, 3, 8]), min_size=1, max_size=12), min_size=1, max_size=6),
)
@example(1.0, 8.0, 6, [[1, 1], [1, 1, 1.5, 1]])
@example(
    0.5, 4.0, 5, [[1], [3, 1.5, 8, 8, 8, 3, 3, 3], [1.5, 1.5, 1.5, 1.5, 3, 1.5, 8, 1, 8], [8, 8, 8, 1, 1]]
)
def test_a_small_model_loses_nothing_to_one_that_cannot_have_enough(
    row_ms: float, rows_of_batch: float, due_after: int, pauses: list[list[float]]
) -> None:
    """As long as no more of its rows come while a full batch runs than double the time of its own."""
    shared = Shared(row_ms, rows_of_batch, due_after)
    least_ns = shared.full_ns / (rows_of_batch + 1) * len(pauses)
    # First the large one has the device alone: who has used nothing yet has no more right than others.
    comes_ns = [(np.cumsum(each) * least_ns + 6 * shared.full_ns).astype(int).tolist() for each in pauses]
    shared.run(comes_ns)
    assert not shared.lost
