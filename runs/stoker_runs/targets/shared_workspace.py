"""Parts of cluster engines whose nodes see the workspace at its path on this machine.

So nothing is copied: the agent writes into the run's folder from whichever node it is on, and what a node has written
is there when the node is gone.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder, replace_file
from stoker_base.trees import remove_tree
from stoker_run import archive, observing
from stoker_run.gang import find_failure, folders_of, has_ended
from stoker_run.json_files import read_json, replace_json
from stoker_run.worker import CURRENT, LOST
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment, record_packages
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import AttemptState, EngineFailure, Job, Presence, Say, attempt_state
from stoker_runs.targets.local import (
    as_failure,
    collect,
    prepare_attempt,
    remove_work,
    request_stop,
    shared_folder,
)

_PYTHON: Final = "python3"
_SILENT_AFTER_S: Final = 15.0
"""The agent's heart beats every 5 s."""
_RENEW_S: Final = 1.0
"""How often leases are renewed."""
_ASK_EVERY_S: Final = 1.0
_LOOK_S: Final = 0.2
_NO_ANSWER: Final = (-float("inf"), "", None)
_State = TypeVar("_State")


class SharedWorkspaceEngine:
    """Runs attempts on nodes that see the workspace.

    Attributes:
        elapsed_s: A clock that only goes forward, in seconds.
    """

    def __init__(self, target: Target, workspace: Workspace) -> None:
        self.elapsed_s = time.monotonic
        self._target = target
        self._workspace = workspace
        self._home = workspace.root / target.type
        self._python = str(target.settings.get("python", _PYTHON))
        self._beats: dict[Path, tuple[Any, float]] = {}
        self._renewed_s = -float("inf")
        self._last_answer: tuple[float, str, Any] = _NO_ANSWER

    def agent_archive(self) -> Path:
        """The path of the agent's zip, which nodes read."""
        place = private_folder(self._home / "agents") / f"{archive.digest()}.zip"
        if not place.exists():
            replace_file(place, archive.archive_bytes())
        return place

    def prepare(self, job: Job, say: Say) -> None:
        """Copy the snapshot to a working directory, and build the environment, both in the workspace."""
        definition = job.record.definition
        another_may_follow = definition.attempts > 1 or job.attempt > 1
        # Each renewal answers a heartbeat, so that a shorter lease would run out between two of them.
        lease_s = max(definition.lost_after_s, _SILENT_AFTER_S)
        prepare_attempt(
            job,
            self._workspace,
            lambda requested: self.environment(requested, job, say),
            lambda: shared_folder(self._target.settings, job, self._workspace),
            lease_s=lease_s if another_may_follow else None,
        )

    def environment(self, requested: RequestedEnvironment, job: Job, _say: Say) -> RunEnvironment:
        """Return the interpreter of the nodes, or the one that the run names, as the environment."""
        python = requested.python or self._python
        record_packages(job.folder.environment, ["the interpreter of the nodes as it is"], python, {})
        return RunEnvironment(Path(python))

    def observe(self, job: Job) -> AttemptState:
        """Read what the agent has written; ask the cluster while the agent says nothing."""
        try:
            # Asks the server of a shared folder what is new: single names may be answered from old answers.
            names = {path.name for path in job.place.iterdir()}
        except OSError as error:
            is_new = isinstance(error, FileNotFoundError)
            return AttemptState(
                Presence.ABSENT if is_new else Presence.UNREACHABLE, "" if is_new else str(error)
            )
        if "start.json" not in names:
            return AttemptState(Presence.ABSENT)
        places = places_of(job)
        if all(map(has_ended, places)):
            return _end_of(places)
        if "agent.json" not in names:
            return self.observe_waiting(job)
        silent_s, place = max((self._silence_s(place), place) for place in places)
        self._renew_leases(places)
        if silent_s <= _SILENT_AFTER_S:
            return attempt_state({**observing.observe(job.place), "exit": None, "alive": True})
        agent = read_json(place / "agent.json")
        host = agent.get("host") if isinstance(agent, dict) else "its node"
        return self.observe_silent(job, silent_s, f"nothing was heard of {host} for {silent_s:.0f} s")

    def observe_waiting(self, job: Job) -> AttemptState:
        """Return the state of an attempt that no agent has begun with."""
        raise NotImplementedError

    def observe_silent(self, job: Job, silent_s: float, reason: str) -> AttemptState:
        """Return the state of an attempt with a silent node."""
        raise NotImplementedError

    def ask_seldom(self, name: str, ask: Callable[[str], _State]) -> _State:
        """Return what the cluster says of a job, asked once a second at most."""
        now_s = self.elapsed_s()
        if self._last_answer[1] != name or now_s - self._last_answer[0] > _ASK_EVERY_S:
            self._last_answer = (now_s, name, ask(name))
        answer: _State = self._last_answer[2]
        return answer

    def forget_answer(self) -> None:
        """Ask the cluster anew: what it said is no longer so."""
        self._last_answer = _NO_ANSWER

    def _silence_s(self, place: Path) -> float:
        """Return how long the agent of a node has said nothing; 0 if it has ended."""
        if has_ended(place):
            return 0.0
        heartbeat, now_s = read_json(place / "heartbeat.json"), self.elapsed_s()
        beat = heartbeat.get("up_s") if isinstance(heartbeat, dict) else None
        if place not in self._beats or self._beats[place][0] != beat:
            self._beats[place] = (beat, now_s)
        return now_s - self._beats[place][1]

    def _renew_leases(self, places: Sequence[Path]) -> None:
        """Tell each agent which of its heartbeats was the last to be heard: its lease counts from there."""
        now_s = self.elapsed_s()
        if now_s - self._renewed_s > _RENEW_S:
            self._renewed_s = now_s
            for place in places:
                heard_s, _ = self._beats.get(place, (None, 0.0))
                if heard_s is not None:
                    with contextlib.suppress(OSError):
                        replace_json(place / "lease.json", {"heard_s": heard_s})

    def pull(self, job: Job, *, final: bool) -> None:
        """Move the script's outputs and logs to the run's folder when its processes have ended.

        If a node has not reported its end, copy them: its script may hold them open, and write when it wakes up.
        """
        if final:
            places = places_of(job)
            with as_failure("what other nodes have logged cannot be read"):
                for place in places[1:]:
                    _append_lines(place, job.place)
            collect(job, is_over=all(map(has_ended, places)))

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Write the request to stop, which the agents read; an attempt that waits for a node is taken back."""
        for place in places_of(job):
            if place.is_dir():
                request_stop(place, grace_s, reason)
        if not (job.place / "agent.json").exists():
            with as_failure("the attempt cannot be taken back"):
                if self.take_back(job):
                    replace_json(job.place / LOST, {"reason": reason})
                    self.forget_worker(job)

    def take_back(self, job: Job) -> bool:
        """Take a waiting attempt back; return whether no worker has begun with it."""
        raise NotImplementedError

    def forget_worker(self, job: Job) -> None:
        """Have the cluster forget what was to run an attempt that was taken back."""
        raise NotImplementedError

    def wait_for_facts(
        self, folder: Path, limit_s: float, find_failure: Callable[[], EngineFailure | None]
    ) -> dict[str, Any] | None:
        """Return what the worker of a check writes of its node; None after the time.

        Args:
            find_failure: Returns why there will be no worker, or None.
        """
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            failure = find_failure()
            facts = read_json(folder / "worker.json")
            if isinstance(facts, dict):
                return facts
            if failure is not None:
                raise failure
            time.sleep(_LOOK_S)
        return None

    def clean(self, job: Job) -> None:
        """Remove the attempt's working directory, and the agents' own files."""
        with as_failure("what is left of the run cannot be removed"):
            for place in places_of(job)[1:]:
                for name in ("agent", "ranks"):
                    remove_tree(place / name, ignore_errors=True)
            remove_work(job)


def places_of(job: Job) -> list[Path]:
    """Return the folder of the attempt on each of its nodes."""
    return folders_of(job.place, job.record.definition.nodes)


def has_agent(job: Job) -> bool:
    """Whether an agent has begun with the attempt, or a worker has given it up."""
    return any((job.place / name).exists() for name in ("agent.json", "exit.json", LOST))


def beginning_state(job: Job, folder: Path | None, *, is_over: bool, reason: str) -> AttemptState:
    """Return the state of an attempt that no longer waits for a worker, and has no agent yet.

    Args:
        folder: The folder of its worker, if there is one.
        is_over: Whether the cluster says that the worker has ended, with this reason.
    """
    was_taken = folder is not None and (folder / CURRENT).exists()
    if was_taken and is_over:
        return AttemptState(Presence.GONE, reason)
    # The attempt may have ended since the folder was read.
    return AttemptState(Presence.PENDING if was_taken or has_agent(job) else Presence.ABSENT)


def is_given_up(job: Job, silent_s: float) -> bool:
    """Whether an attempt with a silent node is lost, if the cluster does not know its worker any more."""
    definition = job.record.definition
    # Where another attempt may follow, the runner waits until the lease has run out there too.
    return definition.attempts == 1 and silent_s > definition.lost_after_s


def _end_of(places: Sequence[Path]) -> AttemptState:
    """Return the state of an attempt all of whose nodes have ended: that of the first one that has failed."""
    failure = find_failure(list(places))
    if failure is not None and "outcome" not in failure:
        return AttemptState(Presence.GONE, str(failure.get("reason", "")))
    seen = observing.observe(places[0])
    return attempt_state(seen if failure is None else {**seen, "exit": failure})


def _append_lines(place: Path, first: Path) -> None:
    """Add what another node has logged to what the first one has; once, even when called again."""
    for name in ("metrics.jsonl", "events.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            taken = (place / name).rename(place / f"{name}.taken")
            with (first / name).open("ab") as file:
                file.write(taken.read_bytes())


def assign_attempt(job: Job, entry: Path) -> None:
    """Write an attempt into the queue of workers.

    Args:
        entry: The file that a worker takes from the queue.
    """
    replace_file(entry, json.dumps({"attempt": str(job.place)}).encode())


def take_back(job: Job, entry: Path, worker: Callable[[], Path | None]) -> bool:
    """Take an attempt out of the queue; return whether no worker has begun with it.

    Args:
        worker: Returns the folder of the worker that has the attempt, or None.
    """
    try:
        entry.unlink()
    except FileNotFoundError:
        return worker() is None and not has_agent(job)
    return True
