"""Cores and GPUs of a machine, shared by runs: which run holds what, which waits, and for what.

slots/POOL/.lock            held while slots are assigned
slots/POOL/holders/RUN_ID   what a run holds, JSON
slots/POOL/waiting/RUN_ID   what a run waits for, JSON

A file counts until its run has ended, even if the runner was killed: a script that goes on without its runner
keeps its GPUs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from stoker.settings.workspace import Workspace
from stoker.system.durable import locked, private_folder, replace_file
from stoker.system.wording import format_count
from stoker_runs.errors import SubmissionRefused, UnknownRun
from stoker_runs.records.serialization import Record
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import Capacity, Target

if TYPE_CHECKING:
    from stoker_runs.records.record import Definition, RunRecord


class ResourceRequest(Struct, frozen=True):
    """The cores and GPUs that a run needs."""

    cores: int
    gpus: int

    @classmethod
    def of(cls, definition: Definition, capacity: Capacity) -> Self:
        """Return what a run needs of one machine that stands for all its nodes.

        Each node has GPUs of its own; nodes share cores where the machine has fewer than they ask for together. A
        cluster counts its GPUs itself.
        """
        if capacity.is_cluster:
            return cls(definition.nodes * (1 if capacity.unit == "node" else definition.cores), 0)
        cores = max(definition.cores, min(definition.cores * definition.nodes, capacity.cores))
        return cls(cores, (definition.gpus or 0) * definition.gpu_nodes)


class Allocation(Record, frozen=True, rename={"since_ms": "since"}):
    """The cores and GPUs that a run holds, or waits for.

    Attributes:
        gpus: The names of its GPUs; an empty name for each requested GPU while the run waits.
    """

    run: str
    since_ms: int
    cores: int
    gpus: tuple[str, ...] = ()


def check_request(ask: ResourceRequest, capacity: Capacity) -> None:
    """Refuse a request that exceeds the capacity.

    Raises:
        SubmissionRefused: More is asked for than there is; the message has both numbers.
    """
    for wanted, there, resource in (
        (ask.gpus, len(capacity.gpus), "GPU"),
        (ask.cores, capacity.cores, "core"),
    ):
        if wanted > there:
            raise SubmissionRefused(
                f"{format_count(wanted, resource)} asked for, and this target has {there}; ask for fewer, or name "
                "another target"
            )


def choose(
    ask: ResourceRequest,
    holders: Sequence[Allocation],
    earlier: Sequence[Allocation],
    capacity: Capacity,
) -> list[str] | str:
    """Choose the GPUs of a run, if there is room.

    Those who came earlier and wait are served first: what they wait for is not given away. So a run for cores passes
    one that waits for a GPU, if the cores are enough for both.

    Returns:
        The GPUs by name, or the missing resource with the run that holds it.
    """
    taken = {gpu for held in holders for gpu in held.gpus}
    free = [gpu for gpu in capacity.gpus if gpu not in taken]
    cores = capacity.cores - sum(held.cores for held in holders)
    spare_gpus = len(free) - sum(len(one.gpus) for one in earlier)
    spare_cores = cores - sum(one.cores for one in earlier)
    if ask.gpus and spare_gpus < ask.gpus:
        of_gpus = [held for held in holders if held.gpus]
        return _waiting_for(format_count(ask.gpus, "GPU"), of_gpus, [one for one in earlier if one.gpus])
    if spare_cores < ask.cores:
        return _waiting_for(format_count(ask.cores, capacity.unit), holders, earlier)
    return free[: ask.gpus]


def _waiting_for(resource: str, holders: Sequence[Allocation], earlier: Sequence[Allocation]) -> str:
    if holders:
        oldest = min(holders, key=lambda held: held.since_ms)
        since = datetime.fromtimestamp(oldest.since_ms / 1000).astimezone().isoformat(" ", "seconds")
        others = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
        return f"waits for {resource}: held by {oldest.run}{others} since {since}"
    return f"waits for {resource}: {earlier[0].run} came earlier"


class Slots:
    """The slots of one pool in a workspace; safe to use from several processes at once."""

    def __init__(self, folder: Path, store: RunStore, capacity: Capacity) -> None:
        self._holders = folder / "holders"
        self._waiting = folder / "waiting"
        self._lock = folder / ".lock"
        self._store = store
        self.capacity = capacity

    def ask(self, run_id: str, ask: ResourceRequest, submitted_ms: int, now_ms: int) -> Allocation | str:
        """Allocate slots to a run, or queue it and return what it waits for. A run that holds slots keeps them.

        Raises:
            OSError: The workspace cannot be read or written.
        """
        private_folder(self._holders)
        private_folder(self._waiting)
        with locked(self._lock):
            holders = self._live(self._holders)
            for held in holders:
                if held.run == run_id:
                    return held
            waiting = sorted(self._live(self._waiting), key=lambda one: (one.since_ms, one.run))
            earlier = [one for one in waiting if (one.since_ms, one.run) < (submitted_ms, run_id)]
            chosen = choose(ask, holders, earlier, self.capacity)
            if isinstance(chosen, str):
                wanted = Allocation(run_id, submitted_ms, ask.cores, ("",) * ask.gpus)
                self._write(self._waiting, wanted)
                return chosen
            held = Allocation(run_id, now_ms, ask.cores, tuple(chosen))
            self._write(self._holders, held)
            (self._waiting / run_id).unlink(missing_ok=True)
            return held

    def release(self, run_id: str) -> None:
        """Release the slots of a run, and its place in the queue."""
        for folder in (self._holders, self._waiting):
            (folder / run_id).unlink(missing_ok=True)

    def overview(self) -> tuple[list[Allocation], list[Allocation]]:
        """Return the allocations and the queue, the oldest first."""
        found = [self._live(folder) if folder.is_dir() else [] for folder in (self._holders, self._waiting)]
        holders, waiting = (sorted(one, key=lambda held: held.since_ms) for one in found)
        return holders, waiting

    def _live(self, folder: Path) -> list[Allocation]:
        """Return the allocations in a folder; remove torn ones, and those of runs that have ended or are gone.

        Raises:
            OSError: An allocation or the state of its run cannot be read; it is kept.
        """
        found = []
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            if self._is_over(path.name):
                path.unlink(missing_ok=True)
                continue
            with contextlib.suppress(FileNotFoundError):  # released meanwhile
                content = path.read_bytes()
                try:
                    found.append(Allocation.from_json(json.loads(content)))
                except (ValueError, LookupError, TypeError):
                    path.unlink()
        return found

    def _is_over(self, run_id: str) -> bool:
        try:
            return self._store.get(run_id).state().is_terminal
        except UnknownRun as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                # It is there, and may go on.
                raise cause from None
            return True

    @staticmethod
    def _write(folder: Path, held: Allocation) -> None:
        replace_file(folder / held.run, json.dumps(held.to_json()).encode())


class SlotClaim:
    """The claim of one run to cores and GPUs of its target.

    Args:
        slots: The slots of the target; None if it has none, so that every claim is granted.
    """

    def __init__(self, slots: Slots | None, record: RunRecord) -> None:
        self._slots = slots
        self._record = record
        self._allocation: Allocation | None = None

    @property
    def gpus(self) -> tuple[str, ...] | None:
        """The names of the run's GPUs; None if the script may choose among all."""
        if self._allocation is None or not (self._allocation.gpus or self._record.definition.gpus == 0):
            return None
        return self._allocation.gpus

    def make(self, submitted_ms: int, now_ms: int) -> str:
        """Claim the run's slots, unless it has them; return the reason if it has to wait, else an empty text.

        Raises:
            OSError: The workspace cannot be read or written.
        """
        if self._slots is None or self._allocation is not None:
            return ""
        request = ResourceRequest.of(self._record.definition, self._slots.capacity)
        answer = self._slots.ask(self._record.id, request, submitted_ms, now_ms)
        if isinstance(answer, str):
            return answer
        self._allocation = answer
        return ""

    def release(self) -> None:
        """Give the slots to other runs."""
        if self._slots is not None:
            self._slots.release(self._record.id)


def slots_of(target: Target, workspace: Workspace) -> Slots | None:
    """Return the slots of a target; None if its cores are not counted here."""
    capacity = target.capacity
    if capacity is None:
        return None
    return Slots(workspace.root / "slots" / target.pool, RunStore(workspace.runs_dir), capacity)
