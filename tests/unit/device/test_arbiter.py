"""Which of several models runs next."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.arbiter import Arbiter, pick
from stoker.device.planner import Offer


def offer(cost_ns: int, latest_ns: int, rows: int = 1, tier: int = 1) -> Offer:
    """What a model would run."""
    return Offer(rows, cost_ns, latest_ns, tier, losing=False, look_again_ns=None)


def test_the_batch_that_has_to_begin_first_runs() -> None:
    """Who can wait waits, and grows."""
    arbiter = Arbiter({"a": 1, "b": 1})
    assert arbiter.choose(0, {"a": offer(5, 40), "b": offer(5, 20)}) == "b"


def test_who_has_nothing_or_waits_for_company_does_not_run() -> None:
    """If that is all of them, nobody does."""
    arbiter = Arbiter({"a": 1, "b": 1})
    assert arbiter.choose(0, {"a": offer(5, 0, rows=0), "b": offer(5, 20)}) == "b"
    assert arbiter.choose(0, {"a": offer(5, 0, rows=0)}) is None
    assert arbiter.choose(0, {}) is None


def test_a_short_batch_goes_before_one_that_would_make_it_late() -> None:
    """If that can still begin in time behind it, whatever each has used."""
    arbiter = Arbiter({"a": 1, "b": 1})
    arbiter.charge("b", 10**9)
    assert arbiter.choose(0, {"a": offer(50, 10), "b": offer(5, 20)}) == "b"


def test_in_a_conflict_the_one_that_has_used_less_runs() -> None:
    """By its share."""
    offers = {"a": offer(50, 10), "b": offer(50, 20)}
    arbiter = Arbiter({"a": 1, "b": 1})
    arbiter.choose(0, offers)
    arbiter.charge("a", 50)
    assert arbiter.choose(0, offers) == "b"
    arbiter = Arbiter({"a": 3, "b": 1})
    arbiter.choose(0, offers)
    arbiter.charge("a", 50)
    arbiter.charge("b", 50)
    assert arbiter.choose(0, offers) == "a"


def test_late_rows_run_behind_all_others() -> None:
    """Whenever these would have to begin."""
    arbiter = Arbiter({"a": 1, "b": 1})
    assert arbiter.choose(0, {"a": offer(5, 1, tier=3), "b": offer(5, 10**9)}) == "b"


def test_a_pause_earns_no_credit() -> None:
    """A model that did not want the device begins where the others stand."""
    arbiter = Arbiter({"a": 1, "b": 1})
    for _ in range(100):
        assert arbiter.choose(0, {"a": offer(50, 10)}) == "a"
        arbiter.charge("a", 50)
    both = {"a": offer(50, 10), "b": offer(50, 10)}
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
    """Whatever was before, times over shares of those that always want differ by two of the dearest at most."""
    shares = {str(number): float(share) for number, (share, _) in enumerate(models)}
    offers = {str(number): offer(cost_ns, 0) for number, (_, cost_ns) in enumerate(models)}
    arbiter = Arbiter(shares)
    for absent in pauses:
        chosen = arbiter.choose(0, {name: said for name, said in offers.items() if int(name) not in absent})
        if chosen is not None:
            arbiter.charge(chosen, offers[chosen].cost_ns)
    used: Counter[str] = Counter()
    dearest = max(said.cost_ns for said in offers.values()) / min(shares.values())
    # What is left of the time before is made up for first.
    for turn in range(400):
        chosen = arbiter.choose(0, offers)
        assert chosen is not None
        arbiter.charge(chosen, offers[chosen].cost_ns)
        if turn >= 200:
            used[chosen] += offers[chosen].cost_ns
    by_share = [used[name] / shares[name] for name in offers]
    assert max(by_share) - min(by_share) <= 2 * dearest


OFFERS = st.lists(
    st.tuples(st.integers(1, 50), st.integers(-20, 200), st.sampled_from([1, 1, 1, 3]), st.integers(0, 500)),
    min_size=1,
    max_size=6,
    # Ties are broken by the order in which models are named.
    unique_by=(lambda said: said[1], lambda said: said[3]),
)


def chosen_of(offers: list[tuple[int, int, int, int]], names: list[str], times: int = 1) -> int:
    """The place of the offer that is picked: cost, latest start, tier and what the model has used of each."""
    said = {
        name: offer(cost * times, latest * times, tier=tier)
        for name, (cost, latest, tier, _) in zip(names, offers, strict=True)
    }
    used = {name: of * times for name, (_, _, _, of) in zip(names, offers, strict=True)}
    picked = pick(0, said, used)
    assert picked is not None
    return names.index(picked)


@STEADY
@given(OFFERS, st.integers(2, 1000))
def test_names_and_units_of_time_do_not_matter(offers: list[tuple[int, int, int, int]], times: int) -> None:
    """Who is picked is the same for a slower device, and whatever models are called and in which order they come."""
    names = [str(number) for number in range(len(offers))]
    place = chosen_of(offers, names)
    assert chosen_of(offers, names, times) == place
    assert chosen_of(offers, names[::-1]) == place
    assert offers[::-1][chosen_of(offers[::-1], names)] == offers[place]
