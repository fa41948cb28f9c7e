"""The turns of a device: models of this process and of others propose batches, and run them in turn (decision 30).

A worker has a `TurnTaking`, which plans for a `ModelTurn`. `DeviceTurns` gives the turns; `stoker.device.arbiter`
chooses the model that gets the next one.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final

from stoker.device.arbiter import pick
from stoker.device.batch_decisions import BatchDecision, BatchPolicy, Proposal
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.byte_lock import ByteLock
from stoker.device.device_page import MOST_TURNS, DevicePage, Slot, SlotFacts
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import propose, schedule
from stoker.system.vital_work import start_thread

_REFRESH_NS: Final = 1_000_000
"""How long before a turn is expected to be free a waiting model updates its proposal."""
_PATIENCE_S: Final = 0.002
"""How long a process that was named may take to fetch its turn; another one has it then."""
_LOOK_S: Final = 0.00005


class _State(Enum):
    AWAY = 0
    """The turn may be held by another process."""
    FETCHING = 1
    """The turn's thread is waiting for it."""
    HERE = 2


class ModelTurn:
    """One model's participation. The thread that leads its queue asks for turns.

    Any of its threads may give one back.

    Attributes:
        wake_fd: An eventfd that is written when a turn was given.
        waiting_since_ns: When it began to wait; None while it does not wait.
    """

    def __init__(self, turns: DeviceTurns, slot: Slot, share: float, needed: memoryview) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.waiting_since_ns: int | None = None
        self.slot = slot
        self.share = share
        self.proposal: Proposal | None = None
        self.running = 0
        self.given: list[int] = []
        self._turns = turns
        self._needed = needed

    @property
    def needed(self) -> bool:
        """Whether batches take turns now."""
        return bool(self._needed[0] or self.given)

    @property
    def free_ns(self) -> int:
        """When a turn is expected to be free; 0 if one is free."""
        return self._turns.free_ns

    @property
    def other_ns(self) -> int:
        """The longest batch that another model proposes; 0 if there is none."""
        return self._turns.longest_beside(self)

    def poller(self) -> select.epoll:
        """A poller for its eventfd."""
        poller = select.epoll()
        poller.register(self.wake_fd, select.EPOLLIN)
        return poller

    def take(self) -> int | None:
        """Take the turn that was given; None if none was."""
        if not self.given:
            return None
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        return self.given.pop()

    def ask(self, proposal: Proposal, now_ns: int) -> int | None:
        """Propose a batch; returns the turn if it is given at once."""
        if self.waiting_since_ns is None:
            self.waiting_since_ns = now_ns
        return self._turns.ask(self, proposal, now_ns)

    def waited_ns(self, now_ns: int) -> int:
        """Stop waiting, because there is a turn; returns how long it was."""
        waiting_since_ns, self.waiting_since_ns = self.waiting_since_ns, None
        return 0 if waiting_since_ns is None else now_ns - waiting_since_ns

    def withdraw(self) -> None:
        """Withdraw the proposal."""
        self.waiting_since_ns = None
        if self.proposal is not None:
            self._turns.withdraw(self)

    def give_back(self, number: int, elapsed_ns: int, proposal: Proposal | None = None) -> None:
        """End a turn.

        Args:
            number: The turn.
            elapsed_ns: How long the device was used.
            proposal: What the model would run next; None keeps its present proposal.
        """
        self._turns.give_back(self, number, elapsed_ns, proposal)

    def leave(self) -> None:
        """Stop participating."""
        self.withdraw()
        for number in self.given:
            self.give_back(number, 0)
        self._turns.leave(self)
        os.close(self.wake_fd)


class DeviceTurns:
    """The turns of a device, for one process. All methods may be called on any thread.

    Args:
        page: What the processes of the device share.
        is_forced: Whether turns are taken even if no model wants them.
    """

    def __init__(
        self, page: DevicePage, clock_ns: Callable[[], int] = time.monotonic_ns, *, is_forced: bool = False
    ) -> None:
        self._is_forced = is_forced
        self._page = page
        self._clock_ns = clock_ns
        self._changed = threading.Condition(threading.Lock())
        self._models: dict[int, ModelTurn] = {}
        self._states = [_State.AWAY] * MOST_TURNS
        self._keepers: dict[int, _Keeper] = {}
        self._locked: set[int] = set()
        self._stopped = False

    @property
    def free_ns(self) -> int:
        """When a turn is expected to be free; 0 if one is free."""
        return self._page.free_ns

    def longest_beside(self, turn: ModelTurn) -> int:
        """The longest batch that a model other than this one proposes; 0 if there is none."""
        proposals = [slot.proposal() for slot in self._known() if slot is not turn.slot]
        return max((proposal.cost_ns for proposal in proposals if proposal is not None), default=0)

    def join(self, share: float, facts: SlotFacts) -> ModelTurn:
        """Let a model participate.

        Args:
            share: Weight of its device time in conflicts.
            facts: What the other processes are told of it.
        """
        slot = self._page.join(facts._replace(wants_turns=facts.wants_turns or self._is_forced))
        turn = ModelTurn(self, slot, share, self._page.needed)
        with self._changed:
            self._models[turn.slot.number] = turn
        return turn

    def set_turns(self, turns: int) -> None:
        """Set how many batches may run at once."""
        self._page.set_turns(turns)

    def leave(self, turn: ModelTurn) -> None:
        """Remove a model."""
        with self._changed:
            del self._models[turn.slot.number]
        self._page.leave(turn.slot)

    def stop(self) -> None:
        """Release all turns; threads that wait for turns of other processes end once they get them."""
        with self._changed:
            self._stopped = True
            for number in list(self._locked):
                self._unlock(number)
            self._changed.notify_all()

    def ask(self, turn: ModelTurn, proposal: Proposal, now_ns: int) -> int | None:
        """See `ModelTurn.ask`."""
        with self._changed:
            self._publish(turn, proposal)
            for number in range(self._page.turns):
                if turn.given:
                    break
                if self._states[number] is _State.AWAY:
                    self._try(number, now_ns, turn)
            return turn.take() if turn.given else None

    def withdraw(self, turn: ModelTurn) -> None:
        """See `ModelTurn.withdraw`."""
        with self._changed:
            turn.proposal = None
            turn.slot.publish(None)

    def give_back(self, turn: ModelTurn, number: int, elapsed_ns: int, proposal: Proposal | None) -> None:
        """See `ModelTurn.give_back`."""
        with self._changed:
            turn.slot.charge(turn.slot.used_ns + round(elapsed_ns / turn.share))
            if proposal is not None:
                # Before it gives up its turn: the process was not away, so it is not treated as returning.
                self._publish(turn, proposal)
                turn.waiting_since_ns = self._clock_ns()
            turn.running -= 1
            turn.slot.set_running(turn.running)
            self._states[number] = _State.AWAY
            if self._page.several and number not in self._locked:
                # When it was taken, the device belonged to this process alone.
                self._try(number, self._clock_ns())
            else:
                self._give(number, self._clock_ns())

    def fetch(self, number: int, lock: ByteLock) -> None:
        """Wait until this process gets a turn that other processes take too, and give it to one of its models.

        Args:
            number: The turn.
            lock: The calling thread's lock on it.
        """
        waited_for, absent = -1, set[int]()
        while True:
            lock.lock()
            with self._changed:
                self._locked.add(number)
                waited_for = self._pass_on(number, waited_for, absent)
            if waited_for < 0:
                return
            until_s = time.monotonic() + _PATIENCE_S
            while self._page.times_named(number) == waited_for and time.monotonic() < until_s:
                time.sleep(_LOOK_S)

    def _pass_on(self, number: int, waited_for: int, absent: set[int]) -> int:
        """Pass on a turn that has arrived: to a model of this process, or to the process that was named.

        Args:
            number: The turn.
            waited_for: What this returned last.
            absent: Processes that did not come for it; updated here.

        Returns:
            How often a process has been named, if that has to be waited for; -1 if none has.
        """
        page = self._page
        if self._stopped:
            self._unlock(number)
            return -1
        named, times_named = page.next_process(number), page.times_named(number)
        if named in (0, page.process):
            absent.clear()
        elif times_named != waited_for:
            self._unlock(number)
            return times_named
        else:
            absent.add(named)
            page.free_slots_of_dead()
        # One more, whatever the page says by now: the process that is named may have fetched it, and named another.
        is_named = self._give(number, self._clock_ns(), absent, own=named == page.process)
        return times_named + 1 if is_named else -1

    def wait_for_work(self, number: int) -> bool:
        """Wait until a turn has to be fetched; False if there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._states[number] is _State.FETCHING)
            return not self._stopped

    def _try(self, number: int, now_ns: int, asker: ModelTurn | None = None) -> None:
        """Take a turn if it is free; otherwise have its thread wait for it."""
        if self._page.several:
            named = self._page.next_process(number)
            if named not in (0, self._page.process) or not self._keeper(number).turn.try_lock():
                self._request_fetch(number)
                return
            self._locked.add(number)
        self._give(number, now_ns, asker=asker)

    def _give(
        self,
        number: int,
        now_ns: int,
        absent: Collection[int] = (),
        *,
        own: bool = False,
        asker: ModelTurn | None = None,
    ) -> int:
        """Give a turn that is held to the next model; returns the process that was named instead, or 0.

        Args:
            number: The turn.
            absent: Processes that do not come for it.
            own: Whether to prefer a model of this process, if it has one that wants to run.
            asker: The model that is asking, and needs no notification if it is given the turn.
        """
        page = self._page
        chosen = self._pick(now_ns, absent, own=own)
        if chosen is None or chosen.owner != page.process:
            named = 0 if chosen is None else chosen.owner
            page.set_end(number, 0)
            page.set_next_process(number, named)
            is_fetched = self._states[number] is _State.FETCHING and named
            self._states[number] = _State.FETCHING if is_fetched else _State.AWAY
            self._unlock(number)
            if named and not is_fetched and any(turn.proposal is not None for turn in self._models.values()):
                self._request_fetch(number)
            return named
        turn = self._models[chosen.number]
        assert turn.proposal is not None, "it was chosen"
        page.set_end(number, now_ns + turn.proposal.cost_ns)
        page.set_next_process(number, 0)
        self._states[number] = _State.HERE
        turn.running += 1
        turn.slot.set_running(turn.running)
        turn.proposal = None
        turn.slot.publish(None)
        turn.given.append(number)
        if turn is not asker:
            os.eventfd_write(turn.wake_fd, 1)
        return 0

    def _pick(self, now_ns: int, absent: Collection[int], *, own: bool) -> Slot | None:
        slots = {turn.slot.number: turn.slot for turn in self._models.values() if turn.proposal is not None}
        proposals = {number: self._models[number].proposal for number in slots}
        if self._page.several and not (own and slots):
            for slot in self._page.used_slots():
                if slot.owner not in (0, self._page.process, *absent):
                    slots[slot.number], proposals[slot.number] = slot, slot.proposal()
        published = {number: proposal for number, proposal in proposals.items() if proposal is not None}
        chosen = pick(now_ns, published, {number: slots[number].used_ns for number in published})
        return None if chosen is None else slots[chosen]

    def _publish(self, turn: ModelTurn, proposal: Proposal) -> None:
        if turn.proposal is None and not turn.running:
            # A returning model starts at the least usage among the others.
            floor = [slot.used_ns for slot in self._known() if slot is not turn.slot and slot.active]
            if floor:
                turn.slot.charge(max(turn.slot.used_ns, min(floor)))
        turn.proposal = proposal
        turn.slot.publish(proposal)

    def _known(self) -> list[Slot]:
        return (
            self._page.used_slots() if self._page.several else [turn.slot for turn in self._models.values()]
        )

    def _unlock(self, number: int) -> None:
        if number in self._locked:
            self._locked.discard(number)
            self._keepers[number].turn.unlock()

    def _request_fetch(self, number: int) -> None:
        """Have the turn's thread fetch it."""
        self._keeper(number)
        self._states[number] = _State.FETCHING
        self._changed.notify_all()

    def _keeper(self, number: int) -> _Keeper:
        if number not in self._keepers:
            self._keepers[number] = _Keeper(self, self._page, number)
        return self._keepers[number]


class _Keeper:
    """The thread that waits for one turn, where other processes take turns too.

    Attributes:
        turn: The lock that is the turn.
    """

    def __init__(self, turns: DeviceTurns, page: DevicePage, number: int) -> None:
        self.turn = page.lock_on(page.turn_place(number))
        self._turns = turns
        self._number: Final = number
        start_thread(self._keep, f"turn {number}")

    def _keep(self) -> None:
        while self._turns.wait_for_work(self._number):
            self._turns.fetch(self._number, self.turn)
        self.turn.close()


class TurnTaking:
    """A model's participation in the turns of its device.

    Attributes:
        wake_fd: Becomes readable when a turn was given; it is read when the turn is taken.
        begun: Whether it has ever had a turn.
        waited_ns: How long the last turn was waited for.
    """

    def __init__(self, turn: ModelTurn) -> None:
        self.wake_fd = turn.wake_fd
        self.begun, self.waited_ns = False, 0
        self._turn = turn
        self._propose_again_ns = 0

    @property
    def needed(self) -> bool:
        """Whether batches take turns now, or this model has made a proposal."""
        return self._turn.needed or self._turn.proposal is not None

    @property
    def free_ns(self) -> int:
        """When a turn is expected to be free; 0 for now, or where there are no turns."""
        return self._turn.free_ns if self._turn.needed else 0

    @property
    def other_ns(self) -> int:
        """The longest batch that another model proposes."""
        return self._turn.other_ns if self._turn.needed else 0

    @property
    def given(self) -> bool:
        """Whether there is a turn that has not been taken yet."""
        return bool(self._turn.given)

    def schedule(
        self, queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes
    ) -> tuple[BatchDecision, int | None]:
        """Schedule a batch if there is a turn, otherwise propose what would run; returns the turn too."""
        turn = self._turn
        number = turn.take()
        if number is not None:
            self._begin(now_ns)
            return schedule(queue, now_ns, policy, times)._replace(reason="turn"), number
        if turn.proposal is not None and now_ns < self._propose_again_ns:
            return BatchDecision([], [], "", self._propose_again_ns), None
        free_ns = turn.free_ns
        proposal = propose(queue, now_ns, policy, times, free_ns)
        if proposal is None or not proposal.rows or not turn.needed:
            turn.withdraw()
            # Rows that cannot be in time then are handed back now.
            return schedule(queue, now_ns, policy, times, free_ns if turn.needed else None), None
        number = turn.ask(proposal, now_ns)
        if number is not None:
            self._begin(now_ns)
            return schedule(queue, now_ns, policy, times, free_ns), number
        # Rows that arrive until shortly before are part of the next proposal.
        self._propose_again_ns = free_ns - _REFRESH_NS
        return BatchDecision(
            [], [], "", self._propose_again_ns if self._propose_again_ns > now_ns else None
        ), None

    def _begin(self, now_ns: int) -> None:
        self.begun, self.waited_ns = True, self._turn.waited_ns(now_ns)

    def end(
        self,
        number: int,
        elapsed_ns: int,
        queue: RowQueue | None = None,
        now_ns: int = 0,
        policy: BatchPolicy | None = None,
        times: ServiceTimes | None = None,
    ) -> None:
        """Give a turn back.

        Args:
            number: The turn.
            elapsed_ns: How long the device was used.
            queue: The waiting rows, from which the next proposal is made.
        """
        proposal = None
        if queue is not None and queue.rows and policy is not None and times is not None:
            proposal = propose(queue, now_ns, policy, times)
        self._turn.give_back(number, elapsed_ns, proposal if proposal is not None and proposal.rows else None)

    def leave(self) -> None:
        """Stop participating."""
        self._turn.leave()
