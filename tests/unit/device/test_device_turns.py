"""Turns of a device: within a process, between processes, and when one of these is killed."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack

import pytest
from tests.patience import PATIENCE_S
from tests.pipelined_puppets import PipelinedJoined
from tests.puppets import HandClock, Joined, JoiningTicket, PuppetRuntime, PuppetTicket

from stoker.device import device_turns
from stoker.device.batch_decisions import BatchPolicy, Proposal
from stoker.device.device_page import DevicePage, SlotFacts
from stoker.device.device_turns import DeviceTurns, ModelTurn
from stoker.device.overlap import WORTH, gain

MS = 1_000_000
FACTS = SlotFacts(threads=1, wants_turns=True)


def propose(cost_ms: float = 5, latest_ms: float = 1000, rows: int = 1) -> Proposal:
    """The batch that a model would run; the clock of the tests begins at a second."""
    return Proposal(
        rows, round(cost_ms * MS), round(latest_ms * MS) + 10**9, 1, losing=False, check_again_ns=None
    )


class Device:
    """The shared memory of a device, and the processes that are on it, all of them in this one."""

    def __init__(self, stack: ExitStack) -> None:
        self.fd = os.memfd_create("turns", os.MFD_CLOEXEC)
        self.clock = HandClock()
        self._stack = stack
        stack.callback(os.close, self.fd)

    def process(self) -> DeviceTurns:
        """One more process."""
        page = DevicePage(self.fd, "cuda:0")
        self._stack.callback(page.close)
        turns = DeviceTurns(page, self.clock)
        self._stack.callback(turns.stop)
        return turns


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device whose processes may come as late for their turns as the threads of a busy machine do."""
    monkeypatch.setattr(device_turns, "_PATIENCE_S", PATIENCE_S)
    with ExitStack() as stack:
        yield Device(stack)


def wait_for(turn: ModelTurn) -> int:
    """Wait until it is given a turn, as a worker waits."""
    assert select.select([turn.wake_fd], [], [], PATIENCE_S)[0], "no turn was given"
    number = turn.take()
    assert number is not None
    return number


def test_turns_are_needed_where_more_could_run_than_may(device: Device) -> None:
    """A model must want them too: with one thread, or without a target, no turns are taken."""
    turns = device.process()
    first = turns.join(1, FACTS)
    assert not first.needed
    second = turns.join(1, SlotFacts(threads=1, wants_turns=False))
    assert first.needed
    assert second.needed
    first.leave()
    assert not second.needed
    third = turns.join(1, SlotFacts(threads=2, wants_turns=True))
    assert second.needed
    turns.set_turns(3)
    assert not third.needed


def test_a_free_device_gives_its_turn_at_once(device: Device) -> None:
    """The other model waits until the turn is given back."""
    turns = device.process()
    first, second = turns.join(1, FACTS), turns.join(1, FACTS)
    number = first.ask(propose(cost_ms=7), device.clock())
    assert number == 0
    assert first.free_ns == device.clock() + 7 * MS
    assert second.ask(propose(), device.clock()) is None
    assert second.take() is None
    device.clock.advance_ms(6)
    first.give_back(number, 6 * MS)
    assert wait_for(second) == 0
    assert second.waited_ns(device.clock()) == 6 * MS
    second.give_back(0, 5 * MS)
    assert first.free_ns == 0


def test_model_that_gives_back_its_turn_competes_for_the_next(device: Device) -> None:
    """Two busy models share a device by their weights: one gets three times the time."""
    turns = device.process()
    models = {"a": turns.join(3, FACTS), "b": turns.join(1, FACTS)}
    late = propose(latest_ms=-1)
    running = models["a"]
    number = running.ask(late, device.clock())
    models["b"].ask(late, device.clock())
    order = []
    for _ in range(41):
        assert number is not None
        order.append(running)
        running.give_back(number, 5 * MS, late)
        running = next(turn for turn in models.values() if turn.given)
        number = running.take()
    assert order.count(models["a"]) == pytest.approx(3 * order.count(models["b"]), abs=3)


def test_a_pause_earns_no_credit(device: Device) -> None:
    """A model that comes back begins at the least usage of those that run, and has no run of turns."""
    turns = device.process()
    busy, idle, _never_run = (turns.join(1, FACTS) for _ in range(3))
    late = propose(latest_ms=-1)
    number = busy.ask(late, device.clock())
    for _ in range(20):
        assert number is not None
        busy.give_back(number, 5 * MS, late)
        number = busy.take()
    assert idle.ask(late, device.clock()) is None
    order = []
    running = busy
    for _ in range(10):
        assert number is not None
        running.give_back(number, 5 * MS, late)
        running = next(turn for turn in (busy, idle) if turn.given)
        number = running.take()
        order.append(running)
    assert 4 <= order.count(idle) <= 6


def test_two_turns_are_for_two_batches(device: Device) -> None:
    """The third one waits; also that of a model with instances of its own."""
    turns = device.process()
    turns.set_turns(2)
    first, second = turns.join(1, SlotFacts(2, wants_turns=True)), turns.join(1, FACTS)
    assert first.ask(propose(), device.clock()) == 0
    assert first.ask(propose(), device.clock()) == 1
    assert second.ask(propose(), device.clock()) is None
    first.give_back(1, 5 * MS)
    assert wait_for(second) == 1


def test_a_model_that_leaves_gives_its_turn_to_the_next(device: Device) -> None:
    """It was unloaded just when its turn had come."""
    turns = device.process()
    first, second, third = (turns.join(1, FACTS) for _ in range(3))
    number = first.ask(propose(), device.clock())
    second.ask(propose(latest_ms=1), device.clock())
    third.ask(propose(), device.clock())
    assert number is not None
    first.give_back(number, 5 * MS)
    assert second.given
    second.leave()
    assert wait_for(third) == 0


def test_processes_take_turns(device: Device) -> None:
    """The batch that has to begin first is the next one, in any process."""
    near, far = device.process(), device.process()
    first, second = near.join(1, FACTS), near.join(1, FACTS)
    third = far.join(1, FACTS)
    number = first.ask(propose(), device.clock())
    assert number == 0
    assert second.ask(propose(latest_ms=900), device.clock()) is None
    assert third.ask(propose(latest_ms=500), device.clock()) is None
    first.give_back(number, 5 * MS, propose(latest_ms=2000))
    third.give_back(wait_for(third), 5 * MS)
    second.give_back(wait_for(second), 5 * MS)
    assert wait_for(first) == 0


def test_processes_share_by_their_models_weights(device: Device) -> None:
    """Three that always want get the device by one to one to two, in three processes."""
    models = [device.process().join(share, FACTS) for share in (1, 1, 2)]
    late = propose(latest_ms=-1)
    runs = [0, 0, 0]
    for model in models:
        model.waited_ns(0)
        assert model.ask(late, device.clock()) in (0, None)
    # The first model got the turn when it asked.
    holder, number = 0, 0
    for _ in range(80):
        runs[holder] += 1
        models[holder].give_back(number, 5 * MS, late)
        ready, _, _ = select.select([model.wake_fd for model in models], [], [], PATIENCE_S)
        (holder,) = [place for place, model in enumerate(models) if model.wake_fd in ready]
        taken = models[holder].take()
        assert taken is not None
        number = taken
    assert runs == [pytest.approx(20, abs=2), pytest.approx(20, abs=2), pytest.approx(40, abs=2)]


def test_a_process_that_comes_later_is_let_in(device: Device) -> None:
    """The first had the device for itself, without a lock, and is never idle."""
    first = device.process().join(1, FACTS)
    number = first.ask(propose(latest_ms=-1), device.clock())
    second = device.process().join(1, FACTS)
    # It does not know that the other one computes: once that has ended, they take turns.
    assert second.ask(propose(latest_ms=-1), device.clock()) == 0
    assert number == 0
    first.give_back(number, 5 * MS, propose(latest_ms=-1))
    assert not first.given
    second.give_back(0, 6 * MS, propose(latest_ms=-1))
    assert wait_for(first) == 0
    first.give_back(0, 5 * MS)
    assert wait_for(second) == 0


def test_a_process_that_does_not_come_is_passed_over(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be stopped while its batch has to begin first: the others go on after a moment."""
    monkeypatch.setattr(device_turns, "_PATIENCE_S", 0.0)
    first, stopped = device.process().join(1, FACTS), device.process().join(1, FACTS)
    assert first.ask(propose(), device.clock()) == 0
    stopped.slot.publish(propose(latest_ms=1))
    first.give_back(0, 5 * MS, propose(latest_ms=900))
    assert wait_for(first) == 0


KILLED = """
import sys
from stoker.device.batch_decisions import Proposal
from stoker.device.device_page import DevicePage, SlotFacts
from stoker.device.device_turns import DeviceTurns
turns = DeviceTurns(DevicePage(int(sys.argv[1]), "cuda:0"))
turn = turns.join(1, SlotFacts(1, True))
number = turn.ask(Proposal(1, 10**12, 0, 1, False, None), 0)
print(number, flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_killed_frees_its_turn(device: Device) -> None:
    """The kernel frees it at once, and the proposals of the process are gone."""
    waiting = device.process().join(1, FACTS)
    command = [sys.executable, "-c", KILLED, str(device.fd)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[device.fd]
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"0\n"
        assert waiting.ask(propose(), time.monotonic_ns()) is None
        assert waiting.take() is None
        other.kill()
        assert select.select([waiting.wake_fd], [], [], PATIENCE_S)[0], "the turn is not free"
    assert waiting.take() == 0
    third = device.process().join(1, FACTS)
    waiting.give_back(0, 5 * MS)
    assert third.ask(propose(), time.monotonic_ns()) == 0


def test_workers_take_turns(device: Device) -> None:
    """While one computes the other gathers rows; then it runs them as one batch, and both have counted that."""
    turns = device.process()
    policy = BatchPolicy(16, target_ms=1000)
    with (
        Joined(policy=policy, turn=turns.join(1, FACTS)) as first,
        Joined(policy=policy, turn=turns.join(1, FACTS)) as second,
    ):
        tickets: list[PuppetTicket] = []

        def meanwhile() -> None:
            for number in range(3):
                tickets.append(second.submit(number))
                second.turn_frontends()
                second.turn_device()
                device.clock.advance_ms(1)

        first.runtime.during = meanwhile
        tickets.append(first.submit(7))
        first.settle()
        assert second.runtime.batches == []
        second.settle()
        assert [ticket.completions for ticket in tickets] == [1] * 4
        assert len(second.runtime.batches) == 1
        assert first.totals().dispatches()["idle"] == 1
        assert second.totals().dispatches()["turn"] == 1
        assert [sum(joined.totals().turn_waits().counts) for joined in (first, second)] == [1, 1]
        assert turns.join(1, FACTS).ask(propose(), device.clock()) == 0


def test_a_batch_in_flight_has_the_turn_until_it_is_computed(device: Device) -> None:
    """Its model is not given another one meanwhile, nor is another model; then all that waits runs."""
    turns = device.process()
    policy = BatchPolicy(16, target_ms=1000)
    with (
        PipelinedJoined(policy=policy, turn=turns.join(1, FACTS)) as first,
        PipelinedJoined(policy=policy, turn=turns.join(1, FACTS)) as second,
    ):
        first.completes = second.completes = False
        tickets = []
        for joined in (first, first, second, second):
            tickets.append(joined.submit(len(tickets)))
            joined.turn_frontends()
            joined.turn_device()
            device.clock.advance_ms(1)
        assert (first.pipeline.begun, second.pipeline.begun) == ([1], [])
        first.complete()
        first.completes = second.completes = True
        for _ in range(3):
            second.settle()
            first.settle()
        assert [ticket.completions for ticket in tickets] == [1] * 4
        assert (first.pipeline.begun, second.pipeline.begun) == ([1, 1], [2])
        assert [sum(joined.totals().turn_waits().counts) for joined in (first, second)] == [2, 1]
        assert turns.join(1, FACTS).ask(propose(), device.clock()) == 0


@pytest.mark.parametrize("kind", [PuppetTicket, JoiningTicket])
def test_requests_get_the_time_that_their_batch_waited(device: Device, kind: type[PuppetTicket]) -> None:
    """Each only for as long as it was there, and nothing of it once no turns are taken any more."""
    turns = device.process()
    policy = BatchPolicy(16, target_ms=1000)
    with (
        Joined(policy=policy, turn=turns.join(1, FACTS)) as first,
        Joined(policy=policy, turn=turns.join(1, FACTS)) as second,
    ):
        waited: list[PuppetTicket] = []

        def meanwhile() -> None:
            for rows in (1, 2):
                waited.append(second.submit(*range(rows), ticket=kind()))
                second.turn_frontends()
                second.turn_device()
                second.clock.advance_ms(4)

        first.runtime.during = meanwhile
        free = first.submit(7, ticket=kind())
        first.settle()
        second.settle()
        assert [ticket.turn_ns for ticket in (free, *waited)] == [0, 8 * MS, 4 * MS]
        assert [ticket.started_ns - ticket.enqueued_ns for ticket in waited] == [8 * MS, 4 * MS]
        first.kill_device()
        # In the same rows.
        alone = second.submit(*range(3), ticket=kind())
        second.turn_frontends()
        second.clock.advance_ms(50)
        second.settle()
        assert {*alone.row_numbers} == {number for ticket in waited for number in ticket.row_numbers}
        assert alone.turn_ns == 0


def test_rows_that_nobody_wants_any_more_give_their_turn_back(device: Device) -> None:
    """The rows were cancelled while they waited for the turn."""
    turns = device.process()
    holder = turns.join(1, FACTS)
    with Joined(policy=BatchPolicy(16, target_ms=1000), turn=turns.join(1, FACTS)) as joined:
        number = holder.ask(propose(), device.clock())
        joined.submit(1, timeout_ms=50)
        joined.settle()
        joined.clock.advance_ms(100)
        joined.sweep()
        assert number is not None
        holder.give_back(number, 5 * MS)
        joined.settle()
        assert joined.runtime.batches == []
        assert holder.ask(propose(), device.clock()) == 0


def test_instances_of_a_model_take_turns(device: Device) -> None:
    """Two that lead and run on threads of their own answer everything, one batch at a time."""
    turns = device.process()
    running: list[int] = []
    most: list[int] = []

    def during() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    puppets = [PuppetRuntime(), PuppetRuntime()]
    for puppet in puppets:
        puppet.during = during
    turn = turns.join(1, SlotFacts(2, wants_turns=True))
    with Joined(puppets[0], further=puppets[1:], policy=BatchPolicy(2, target_ms=1000), turn=turn) as joined:
        tickets = [joined.submit(number) for number in range(12)]
        for place in range(30):
            joined.turn_frontends()
            joined.turn_device(place % 2)
        joined.turn_frontends()
        assert [ticket.completions for ticket in tickets] == [1] * 12
    assert all(puppet.batches for puppet in puppets)
    assert max(most) == 1


@pytest.mark.parametrize(("together_ms", "gained"), [(20, 0.0), (10, 1.0), (15, 1 / 3)])
def test_gain_of_two_batches_at_once_is_measured(together_ms: int, gained: float) -> None:
    """The gain compares two of the longest batches at once with one after the other."""
    begun: list[int] = []

    def begin(place: int) -> Future[int]:
        begun.append(place)
        took: Future[int] = Future()
        alone = [10, 1, 10][place]
        took.set_result((alone if len(begun) <= 9 else together_ms) * MS)
        return took

    assert gain([lambda place=place: begin(place) for place in range(3)]) == pytest.approx(gained)
    assert set(begun[9:]) == {0, 2}
    assert (gained >= WORTH) == (together_ms <= 15)
