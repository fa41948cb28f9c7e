"""Shared memory of a device's processes: each model's proposal and device time.

All processes of a server map one memfd. It has a part for each device, with a slot for each model of each process,
written by that process alone. Locks on byte ranges belong to open file descriptions: each process opens the file
anew, and the kernel releases its locks when it ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from stoker.device.batch_decisions import Proposal
from stoker.device.byte_lock import ByteLock

MOST_TURNS: Final = 8
"""Most batches that run on a device at once."""
_DEVICES: Final = 32
_SLOTS: Final = 128
_PROCESSES: Final = 128
_SLOT_WORDS: Final = 16
_NAME_WORDS: Final = 8
_HEAD_WORDS: Final = 32
_DEVICE_WORDS: Final = _HEAD_WORDS + _SLOTS * _SLOT_WORDS
_BYTES: Final = -(-_DEVICES * _DEVICE_WORDS * 8 // mmap.PAGESIZE) * mmap.PAGESIZE

# Words of a device's header, after its name.
_NEEDED, _TURNS, _SEVERAL, _EDITION, _NEXT, _ENDS = 8, 9, 10, 11, 12, 12 + MOST_TURNS
# Words of a slot: its owner, the model's facts, and its proposal.
_OWNER, _THREADS, _WANTS_TURNS, _SEQUENCE, _ROWS, _COST, _LATEST, _TIER, _USED, _RUNNING = range(10)

# Offsets of the bytes that are locked, beyond the data.
_REGISTER: Final = 1 << 40
_LIVES: Final = _REGISTER + 1
_PER_DEVICE: Final = 1 << 20
_FIRST_TURN: Final = 1 << 41


class SlotFacts(NamedTuple):
    """A model in a process.

    Attributes:
        threads: How many batches of it may run at once.
        wants_turns: Whether it makes turns necessary.
    """

    threads: int
    wants_turns: bool


class Slot:
    """One model's slot in one process. One thread at a time writes it."""

    def __init__(self, words: memoryview, number: int) -> None:
        self.number = number
        self._words = words

    @property
    def owner(self) -> int:
        """The number of its process; 0 if the slot is free."""
        return self._words[_OWNER]

    @property
    def active(self) -> bool:
        """Whether the model wants the device or is using it."""
        return bool(self._words[_ROWS] or self._words[_RUNNING])

    @property
    def used_ns(self) -> int:
        """Device time that the model has used, divided by its share."""
        return self._words[_USED]

    def charge(self, used_ns: int) -> None:
        """Set `used_ns`."""
        self._words[_USED] = used_ns

    def set_running(self, batches: int) -> None:
        """Set how many of its batches are running on the device."""
        self._words[_RUNNING] = batches

    def publish(self, proposal: Proposal | None) -> None:
        """Write the model's proposal; None for none."""
        words = self._words
        words[_SEQUENCE] += 1
        if proposal is None:
            words[_ROWS] = 0
        else:
            words[_ROWS], words[_COST] = proposal.rows, proposal.cost_ns
            words[_LATEST], words[_TIER] = proposal.latest_ns, proposal.tier
        words[_SEQUENCE] += 1

    def proposal(self) -> Proposal | None:
        """Read the model's proposal; None if there is none, or if it is being written all the time."""
        words = self._words
        for _ in range(100):
            before = words[_SEQUENCE]
            rows, cost_ns, latest_ns, tier = (words[word] for word in (_ROWS, _COST, _LATEST, _TIER))
            if before % 2 == 0 and before == words[_SEQUENCE]:
                return (
                    Proposal(rows, cost_ns, latest_ns, tier, losing=False, check_again_ns=None)
                    if rows
                    else None
                )
        return None

    def take(self, owner: int, facts: SlotFacts) -> None:
        """Assign the slot to a process."""
        self._words[:] = memoryview(bytes(8 * _SLOT_WORDS)).cast("q")
        self._words[_THREADS], self._words[_WANTS_TURNS] = facts.threads, facts.wants_turns
        self._words[_OWNER] = owner

    def clear(self) -> None:
        """Free the slot."""
        self._words[_OWNER] = 0
        self.publish(None)

    @property
    def facts(self) -> SlotFacts:
        """The facts that its process has written."""
        return SlotFacts(self._words[_THREADS], bool(self._words[_WANTS_TURNS]))


class DevicePage:
    """The part of one device, as used by one process.

    Attributes:
        process: The number of this process within the server.
        needed: A word that is 1 where batches take turns: more batches could run at once than allowed, and a model
            asks for turns.
    """

    def __init__(self, fd: int, device: str) -> None:
        """Find the device's part, or create it.

        Args:
            fd: Shared memory of any size; may be closed afterwards.
            device: The name of the device.

        Raises:
            OSError: There are too many devices, or processes.
        """
        os.ftruncate(fd, _BYTES)
        memory = mmap.mmap(fd, _BYTES)
        self._lock = ByteLock(fd, _REGISTER)
        self._life = ByteLock(fd, _LIVES)
        with self._registering():
            self._place, words = _find_part(memoryview(memory).cast("q"), device)
            self.process = self._take_process_number()
        self._head = words[:_HEAD_WORDS]
        self.needed = words[_NEEDED : _NEEDED + 1]
        self._slots = [
            Slot(words[_HEAD_WORDS + number * _SLOT_WORDS :][:_SLOT_WORDS], number)
            for number in range(_SLOTS)
        ]
        self._used_slots: tuple[int, list[Slot]] = (-1, [])

    @property
    def turns(self) -> int:
        """How many batches may run at once."""
        return self._head[_TURNS] or 1

    @property
    def several(self) -> bool:
        """Whether models of several processes take turns."""
        return bool(self._head[_SEVERAL])

    def join(self, facts: SlotFacts) -> Slot:
        """Add a model of this process.

        Raises:
            OSError: There are too many models.
        """
        with self._registering():
            self._free_slots_of_dead()
            slot = next((slot for slot in self._slots if not slot.owner), None)
            if slot is None:
                raise OSError(f"at most {_SLOTS} models can take turns on a device")
            slot.take(self.process, facts)
            self._update_need()
        return slot

    def leave(self, slot: Slot) -> None:
        """Remove a model."""
        with self._registering():
            slot.clear()
            self._update_need()

    def close(self) -> None:
        """Remove this process: all of its slots become free."""
        self._life.close()
        self._lock.close()

    def set_turns(self, turns: int) -> None:
        """Set how many batches may run at once."""
        with self._registering():
            self._head[_TURNS] = turns
            self._update_need()

    def used_slots(self) -> list[Slot]:
        """The slots in use."""
        edition = self._head[_EDITION]
        if edition != self._used_slots[0]:
            self._used_slots = edition, [slot for slot in self._slots if slot.owner]
        return self._used_slots[1]

    def next_process(self, turn: int) -> int:
        """The process that gets the turn next and has not fetched it yet; 0 for none."""
        return self._head[_NEXT + turn] % _PROCESSES

    def times_named(self, turn: int) -> int:
        """How often that has been set: it changes when the process has come."""
        return self._head[_NEXT + turn] // _PROCESSES

    def set_next_process(self, turn: int, process: int) -> None:
        """Name the process that gets the turn next; done by the holder of the turn."""
        self._head[_NEXT + turn] = (self.times_named(turn) + 1) * _PROCESSES + process

    @property
    def free_ns(self) -> int:
        """When a turn is expected to be free; 0 if one is free."""
        return min(self._head[_ENDS : _ENDS + self.turns].tolist())

    def set_end(self, turn: int, ends_ns: int) -> None:
        """Set when a turn is expected to be free; 0 if it is free."""
        self._head[_ENDS + turn] = ends_ns

    def free_slots_of_dead(self) -> None:
        """Free the slots of processes that have ended."""
        with self._registering():
            self._free_slots_of_dead()
            self._update_need()

    def lock_on(self, place: int) -> ByteLock:
        """A new lock on a byte."""
        return ByteLock(self._lock.fd, place)

    def turn_place(self, turn: int) -> int:
        """The offset of the byte whose lock is the turn."""
        return _FIRST_TURN + self._place * _PER_DEVICE + turn

    @contextmanager
    def _registering(self) -> Iterator[None]:
        self._lock.lock()
        try:
            yield
        finally:
            self._lock.unlock()

    def _take_process_number(self) -> int:
        for process in range(1, _PROCESSES):
            if self._life.try_lock(_LIVES + process):
                return process
        raise OSError(f"at most {_PROCESSES - 1} device processes can take turns")

    def _free_slots_of_dead(self) -> None:
        for process in {slot.owner for slot in self._slots} - {0, self.process}:
            # Locks belong to one open file description, so taking and releasing one here does no harm.
            if self._life.try_lock(_LIVES + process):
                self._life.unlock(_LIVES + process)
                for slot in self._slots:
                    if slot.owner == process:
                        slot.clear()

    def _update_need(self) -> None:
        """Compute whether turns are needed, and for how many processes."""
        self._head[_EDITION] += 1
        facts = [slot.facts for slot in self.used_slots()]
        self._head[_SEVERAL] = len({slot.owner for slot in self.used_slots()}) > 1
        self._head[_NEEDED] = (
            any(one.wants_turns for one in facts) and sum(one.threads for one in facts) > self.turns
        )


def _find_part(words: memoryview, device: str) -> tuple[int, memoryview]:
    name = memoryview(device.encode()[: 8 * _NAME_WORDS].ljust(8 * _NAME_WORDS, b"\0")).cast("q").tolist()
    for place in range(_DEVICES):
        part = words[place * _DEVICE_WORDS :][:_DEVICE_WORDS]
        known = part[:_NAME_WORDS].tolist()
        if not any(known):
            part[:_NAME_WORDS] = memoryview(struct.pack(f"{_NAME_WORDS}q", *name)).cast("q")
        elif known != name:
            continue
        return place, part
    raise OSError(f"at most {_DEVICES} devices can be shared")
