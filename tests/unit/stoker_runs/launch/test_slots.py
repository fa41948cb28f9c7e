"""Slots: cores and GPUs of runs, queues, and impossible requests."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.stoker_runs.launch.conftest import World

from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.slots import (
    Allocation,
    ResourceRequest,
    SlotClaim,
    Slots,
    check_request,
    choose,
)
from stoker_runs.records.record import Definition
from stoker_runs.records.states import RunState, Status
from stoker_runs.targets.definitions import Capacity

FOUR = Capacity(4, ("0", "1"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=12))
def test_no_gpu_is_given_twice(asks: list[tuple[int, int]]) -> None:
    """For any requests, holders have no more than there is, and no GPU has two holders."""
    holders: list[Allocation] = []
    for number, (cores, gpus) in enumerate(asks):
        chosen = choose(ResourceRequest(cores, gpus), holders, [], FOUR)
        if not isinstance(chosen, str):
            assert len(chosen) == gpus
            holders.append(Allocation(str(number), number, cores, tuple(chosen)))
    given_gpus = [gpu for held in holders for gpu in held.gpus]
    assert len(given_gpus) == len(set(given_gpus))
    assert sum(held.cores for held in holders) <= FOUR.cores


def test_earlier_run_is_served_first() -> None:
    """Slots are kept for the earlier run; a run for cores alone passes one that waits for GPUs."""
    holder = Allocation("a", 1, 1, ("0",))
    earlier = Allocation("b", 2, 1, ("", ""))
    waits = choose(ResourceRequest(1, 1), [holder], [earlier], FOUR)
    assert isinstance(waits, str)
    assert waits.startswith("waits for 1 GPU: held by a since ")
    assert choose(ResourceRequest(1, 0), [holder], [earlier], FOUR) == []
    behind = choose(ResourceRequest(4, 0), [], [Allocation("b", 2, 1)], FOUR)
    assert behind == "waits for 4 cores: b came earlier"


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (ResourceRequest(1, 8), "8 GPUs asked for, and this target has 2"),
        (ResourceRequest(5, 0), "5 cores asked for, and this target has 4"),
    ],
)
def test_request_beyond_the_capacity_is_refused(ask: ResourceRequest, reason: str) -> None:
    """The error has both numbers, so that no run waits for ever."""
    with pytest.raises(SubmissionRefused, match=reason):
        check_request(ask, FOUR)
    check_request(ResourceRequest(4, 2), FOUR)


def test_allocation_is_kept_until_its_run_ends(world: World) -> None:
    """A run that asks again gets its allocation; when it has ended or is deleted, the next one gets it."""
    slots = Slots(world.root / "slots", world.store, Capacity(1, ("7",)))
    one, two, three = (world.submit() for _ in range(3))
    first = slots.ask(one.id, ResourceRequest(1, 1), 1, 10)
    assert isinstance(first, Allocation)
    assert first.gpus == ("7",)
    assert slots.ask(one.id, ResourceRequest(1, 1), 1, 20) == first
    assert isinstance(slots.ask(two.id, ResourceRequest(1, 1), 2, 20), str)
    assert isinstance(slots.ask(three.id, ResourceRequest(1, 1), 3, 20), str)
    one.write_state(RunState(Status.COMPLETED))
    # It came later than one that waits.
    assert isinstance(slots.ask(three.id, ResourceRequest(1, 1), 3, 30), str)
    assert isinstance(slots.ask(two.id, ResourceRequest(1, 1), 2, 30), Allocation)
    world.store.delete(two)
    assert isinstance(slots.ask(three.id, ResourceRequest(1, 1), 3, 40), Allocation)
    slots.release(three.id)
    assert list((world.root / "slots" / "holders").iterdir()) == []


def test_a_torn_file_of_slots_holds_nothing(world: World) -> None:
    """The remains of a power cut are passed over."""
    slots = Slots(world.root / "slots", world.store, Capacity(1))
    one, two = world.submit(), world.submit()
    slots.ask(one.id, ResourceRequest(1, 0), 1, 1)
    (world.root / "slots" / "holders" / one.id).write_bytes(b"")
    assert isinstance(slots.ask(two.id, ResourceRequest(1, 0), 2, 2), Allocation)


def test_no_gpu_is_given_while_its_holder_cannot_be_read(world: World) -> None:
    """Where a process may open no more files its request fails, and the holder keeps its GPU."""
    slots = Slots(world.root / "slots", world.store, Capacity(1, ("7",)))
    one, two = world.submit(), world.submit()
    held = slots.ask(one.id, ResourceRequest(1, 1), 1, 10)

    def fail(_: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        with pytest.raises(OSError, match="Too many open files"):
            slots.ask(two.id, ResourceRequest(1, 1), 2, 20)
    assert slots.overview() == ([held], [])
    assert isinstance(slots.ask(two.id, ResourceRequest(1, 1), 2, 20), str)


def test_nodes_on_one_machine_share_cores_and_no_gpus() -> None:
    """Each node requests GPUs for its worker, and more than there are never begin; cores are shared."""
    several = Definition("a.py", nodes=3, gpus=1, cores=2, parameter_servers=1)
    assert ResourceRequest.of(several, FOUR) == ResourceRequest(4, 2)
    with pytest.raises(SubmissionRefused, match="3 GPUs asked for, and this target has 2"):
        check_request(ResourceRequest.of(several.replace(parameter_servers=0), FOUR), FOUR)
    with pytest.raises(SubmissionRefused, match="5 cores asked for, and this target has 4"):
        check_request(ResourceRequest.of(several.replace(cores=5), FOUR), FOUR)


def test_claim_waits_until_the_slots_are_released(world: World) -> None:
    """The reason names the holder; a claim that was granted keeps its GPUs and asks no more."""
    slots = Slots(world.root / "slots", world.store, Capacity(2, ("7",)))
    claims = [SlotClaim(slots, world.submit(Definition("a.py", gpus=1)).record()) for _ in range(2)]
    assert claims[0].make(1, 10) == ""
    assert claims[0].gpus == ("7",)
    assert claims[1].make(2, 20).startswith("waits for 1 GPU: held by ")
    assert claims[1].gpus is None
    claims[0].release()
    assert claims[1].make(2, 30) == ""
    assert claims[1].gpus == ("7",)


def test_claim_on_a_target_without_slots_is_granted(world: World) -> None:
    """The script may then choose among all GPUs."""
    claim = SlotClaim(None, world.submit().record())
    assert claim.make(1, 10) == ""
    assert claim.gpus is None
    claim.release()
