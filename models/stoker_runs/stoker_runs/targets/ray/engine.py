"""The engine of Ray clusters, whose nodes see the workspace at the path that it has here.

So nothing is copied: the agent writes into the run's folder from whichever node it is on, and what a node has written
is there when the node is gone. Ray chooses the node. A job of Ray takes seconds to start, so it is a worker
(`stoker_run.worker`), which runs one attempt after the other for as long as there are any.

WORKSPACE/ray/agents/DIGEST.zip        the agent
WORKSPACE/ray/TARGET/SHAPE/WORKER/     a worker's folder; SHAPE is what it has, WORKER is its job's name in Ray
attempts/N/placement.json              the worker to which the attempt was given
attempts/N/lost.json                   the worker's word that the attempt has ended without a report
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder, replace_file
from stoker_run import archive, observing
from stoker_run.gang import find_failure, folders_of, has_ended
from stoker_run.json_files import read_json, replace_json
from stoker_run.trees import remove_tree
from stoker_run.worker import LOST
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment, record_packages
from stoker_runs.records.record import Definition
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.definitions import Target, read_secrets
from stoker_runs.targets.engine import (
    AttemptState,
    EngineFailure,
    Job,
    NodeCounts,
    Presence,
    Say,
    Unreachable,
    attempt_state,
)
from stoker_runs.targets.local import (
    as_failure,
    collect,
    prepare_attempt,
    remove_work,
    request_stop,
    shared_folder,
    with_variables,
)
from stoker_runs.targets.ray.cluster import JobStatus, RayCluster

_DAEMON: Final = "raylet"
_PYTHON: Final = "python3"
_IDLE_S: Final = 5
_SILENT_AFTER_S: Final = 15.0
"""The agent's heart beats every 5 s."""
_ASK_EVERY_S: Final = 1.0
_RENEW_S: Final = 1.0
"""How often leases are renewed."""
_TRIES: Final = 3
"""How many workers are started for an attempt that none of them begins with."""
_CHECK_S: Final = 60.0
_CHECK_IDLE_S: Final = 3
_HOLD: Final = (
    "import ray; from ray.autoscaler.sdk import request_resources; ray.init(); request_resources(bundles="
)


@dataclass(frozen=True, slots=True)
class _Placement:
    """The worker to which an attempt was given.

    Attributes:
        tries: How many workers were started for the attempt.
        is_new: Whether it was started for the attempt.
    """

    folder: Path
    tries: int = 1
    is_new: bool = False

    @property
    def was_seen(self) -> bool:
        """Whether a worker has been there: it removes its folder when it ends."""
        return not self.folder.exists() or (self.folder / "worker.json").exists()

    def is_claimed(self, job: Job) -> bool:
        """Whether the worker waits for the attempt, which was not written yet."""
        names = ("next", "current")
        claimed = (self.folder / f"taken.{_key(job)}").exists()
        return claimed and not any((self.folder / name).exists() for name in names)

    def again(self) -> _Placement:
        """The same with one more try."""
        return replace(self, tries=self.tries + 1)

    def write(self, job: Job) -> None:
        """Write it into the attempt's folder, before the worker hears of it."""
        content = {"worker": str(self.folder), "tries": self.tries, "is_new": self.is_new}
        replace_json(job.place / "placement.json", content)


class RayEngine:
    """Runs attempts on the nodes of a Ray cluster.

    Attributes:
        elapsed_s: A clock that only goes forward, in seconds.
    """

    def __init__(self, target: Target, workspace: Workspace) -> None:
        self._target = target
        self._workspace = workspace
        self._python = str(target.settings.get("python", _PYTHON))
        self._home = workspace.root / "ray"
        token = read_secrets(target, workspace.targets_dir).get("token", "")
        self.elapsed_s = time.monotonic
        self._cluster = RayCluster(target.name, str(target.settings.get("address", "")), token)
        self._asked: tuple[float, str, JobStatus | None] = (-float("inf"), "", None)
        self._beats: dict[Path, tuple[Any, float]] = {}
        self._renewed_s = -float("inf")

    def check(self) -> Sequence[str]:
        """Have a worker started that finds nothing to do, and read what it writes into the workspace.

        It takes no cores, so that it needs no node but the head.
        """
        version = self._cluster.version()
        job = f"stoker-check-{secrets.token_hex(4)}"
        folder = private_folder(self._home / self._target.name / "check" / job)
        try:
            facts = self._facts(job, folder)
        finally:
            remove_tree(folder, ignore_errors=True)
        nodes = self._cluster.count_nodes()
        most = self._target.settings["max_nodes"]
        return (
            f"Python {facts['python']} on {facts['host']}, the head of the cluster",
            f"Ray {version} at {self._cluster.address}",
            f"nodes: {nodes}; at most {most}",
            f"workspace: {self._workspace.root}, which the head sees",
        )

    def _facts(self, job: str, folder: Path) -> Mapping[str, Any]:
        with as_failure("the workspace cannot be written to"):
            self._cluster.submit(job, self._command(_work(folder, _CHECK_IDLE_S)), 0, 0)
        until_s = time.monotonic() + _CHECK_S
        while time.monotonic() < until_s:
            facts = read_json(folder / "worker.json")
            if isinstance(facts, dict):
                return facts
            status = self._cluster.status(job)
            if status is not None and status.is_over and not (folder / "worker.json").exists():
                raise self._unseen(job, status)
            time.sleep(0.1)
        raise EngineFailure(
            FailureCode.TARGET_UNUSABLE,
            f"a job of the Ray cluster at {self._cluster.address} has not begun after {_CHECK_S:g} s",
            "does ray status there list a node that is idle?",
        )

    def _unseen(self, job: str, status: JobStatus) -> EngineFailure:
        """Return why a job has ended before it could write into the workspace."""
        last = status.message
        with contextlib.suppress(EngineFailure):
            last = self._cluster.log_tail(job) or last
        return EngineFailure(
            FailureCode.TARGET_UNUSABLE,
            f"the Ray cluster at {self._cluster.address} could not start a worker for {self._workspace.root}: {last}",
            "put the workspace into a folder that all nodes and this machine have at the same path, with the rights "
            f"to write there (STOKER_WORKSPACE), and name a Python that the nodes have: python: {self._python}",
        )

    def hold_nodes(self) -> None:
        """Have the cluster keep as many nodes as the target says, also without runs.

        Raises:
            EngineFailure: The cluster cannot be told.
        """
        settings = self._target.settings
        bundle = {"CPU": settings.get("node_cores", 1)}
        if settings.get("node_gpus"):
            bundle["GPU"] = settings["node_gpus"]
        program = f"{_HOLD}{[bundle] * settings.get('min_nodes', 0)!r})"
        job = f"stoker-nodes-{secrets.token_hex(4)}"
        self._cluster.submit(job, shlex.join([self._python, "-c", program]), 0, 0)

    def count_nodes(self) -> NodeCounts:
        """Return the number of nodes in each state."""
        return self._cluster.count_nodes()

    def prepare(self, job: Job, say: Say) -> None:
        """Copy the snapshot to a working directory, and build the environment, both in the workspace."""
        definition = job.record.definition
        another_may_follow = definition.attempts > 1 or job.attempt > 1
        prepare_attempt(
            job,
            lambda asked: self._environment(asked, job, say),
            lambda: shared_folder(self._target.settings, job, self._workspace),
            lease_s=definition.lost_after_s if another_may_follow else None,
        )

    def _environment(self, asked: RequestedEnvironment, job: Job, say: Say) -> RunEnvironment:
        if asked.kind == "user":
            python = asked.python or self._python
            record_packages(job.folder.environment, ["the interpreter of the nodes as it is"], python, {})
            return RunEnvironment(Path(python))
        # Not above: the libraries that read environment files take longer to import than all the rest.
        from stoker_runs.run_environment import prepare_environment

        gpus = job.record.definition.gpus or 0
        home = self._workspace.environments_dir
        return with_variables(prepare_environment(asked, job.folder.environment, home, say, gpus))

    def start(self, job: Job) -> None:
        """Give the attempt to a worker that has nothing to do, or else to a new one."""
        with as_failure("the attempt cannot be handed to a node"):
            if any((job.place / name).exists() for name in ("agent.json", "exit.json", LOST)):
                return
            placed = self._placement(job)
            if placed is not None and not placed.is_claimed(job):
                if not self._is_free_again(job, placed):
                    return
                placed = placed.again()
            folder = self._claimed(job)
            if folder is not None:
                _Placement(folder).write(job)
                with contextlib.suppress(FileNotFoundError):
                    _assign(job, folder)
                    return
            self._start_worker(job, 1 if placed is None else placed.tries)

    def _is_free_again(self, job: Job, placed: _Placement) -> bool:
        """Whether the worker of an attempt is gone without having begun with it; one that was never started is now.

        Raises:
            EngineFailure: The nodes cannot run workers.
        """
        name = placed.folder.name
        try:
            status = self._cluster.status(name)
        except Unreachable:
            return False
        if status is None and placed.is_new:
            self._submit(job, placed.folder)
            return False
        if (status is not None and not status.is_over) or not _take_back(placed.folder):
            return False
        has_failed = status is not None and bool(status.exit_status) and not placed.was_seen
        if status is not None and (has_failed or placed.tries >= _TRIES):
            raise self._unseen(name, status)
        return True

    def _start_worker(self, job: Job, tries: int) -> None:
        workers = self._workers(job.record.definition)
        folder = workers / f"stoker-{job.record.id}-{job.attempt}-{secrets.token_hex(4)}"
        _Placement(folder, tries, is_new=True).write(job)
        self._submit(job, folder)

    def _submit(self, job: Job, folder: Path) -> None:
        """Have Ray start a worker with this attempt; what cannot be asked of it now is asked again later."""
        private_folder(folder)
        _assign(job, folder)
        definition = job.record.definition
        cores, gpus = definition.cores, definition.gpus or 0
        with contextlib.suppress(Unreachable):
            if definition.nodes > 1:
                options = ["gang", str(folder), str(job.place), "--cores", str(cores), "--gpus", str(gpus)]
                self._cluster.submit(folder.name, self._command(options), 0, 0)
            else:
                idle_s = int(self._target.settings.get("idle_s", _IDLE_S))
                self._cluster.submit(folder.name, self._command(_work(folder, idle_s)), cores, gpus)

    def _claimed(self, job: Job) -> Path | None:
        """Return a worker that has nothing to do, and that waits for this attempt from now on."""
        if job.record.definition.nodes > 1:
            return None
        workers, mark = self._workers(job.record.definition), f"taken.{_key(job)}"
        for folder in sorted(workers.iterdir()) if workers.is_dir() else ():
            if (folder / mark).exists():
                return folder
            with contextlib.suppress(OSError):
                (folder / "idle").rename(folder / mark)
                return folder
        return None

    def _command(self, words: Sequence[str]) -> str:
        """Return the command line of the agent with some arguments; the shell that Ray starts is replaced by it."""
        agents = private_folder(self._home / "agents")
        place = agents / f"{archive.digest()}.zip"
        if not place.exists():
            replace_file(place, archive.archive_bytes())
        return f"exec {shlex.join([self._python, str(place), *words])}"

    def _workers(self, definition: Definition) -> Path:
        """Return the folder of the workers that have what a run asks for."""
        shape = "gangs" if definition.nodes > 1 else f"{definition.cores}c{definition.gpus or 0}g"
        return self._home / self._target.name / shape

    @staticmethod
    def _placement(job: Job) -> _Placement | None:
        found = read_json(job.place / "placement.json")
        if not isinstance(found, dict):
            return None
        return _Placement(Path(found["worker"]), int(found["tries"]), bool(found["is_new"]))

    def observe(self, job: Job) -> AttemptState:
        """Read what the agent has written; ask Ray while the agent says nothing."""
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
        places = _places(job)
        if all(map(has_ended, places)):
            return _end_of(places)
        if "agent.json" not in names:
            return self._waiting(job)
        self._renew_lease(places)
        return self._running(job, places)

    def _waiting(self, job: Job) -> AttemptState:
        """The state of an attempt that no agent has."""
        placed = self._placement(job)
        if placed is None:
            return AttemptState(Presence.ABSENT)
        is_ahead = (placed.folder / "next").exists()
        try:
            status = self._status(placed.folder.name)
        except Unreachable as error:
            return AttemptState(Presence.PENDING, error.failure.message)
        if not is_ahead:
            has_begun = (placed.folder / "current").exists()
            if has_begun and (status is None or status.is_over):
                return AttemptState(Presence.GONE, "the node has ended while the script began")
            # What was there a moment ago may be done by now.
            has_begun |= any((job.place / name).exists() for name in ("agent.json", "exit.json", LOST))
            return AttemptState(Presence.PENDING if has_begun else Presence.ABSENT)
        if status is None or status.is_over:
            return AttemptState(Presence.ABSENT)
        return AttemptState(Presence.PENDING, self._wait_reason(job) if status.status == "PENDING" else "")

    def _wait_reason(self, job: Job) -> str:
        definition = job.record.definition
        what = f"{definition.cores} core{'s' * (definition.cores != 1)}"
        if definition.gpus:
            what += f" and {definition.gpus} GPU{'s' * (definition.gpus != 1)}"
        with contextlib.suppress(EngineFailure):
            nodes = self._cluster.count_nodes()
            return f"waits for a node with {what} of its own: {nodes}"
        return f"waits for a node with {what} of its own"

    def _running(self, job: Job, places: Sequence[Path]) -> AttemptState:
        silent_s, place = max((self._silence_s(place), place) for place in places)
        if silent_s <= _SILENT_AFTER_S:
            return attempt_state({**observing.observe(job.place), "exit": None, "alive": True})
        agent = read_json(place / "agent.json")
        host = agent.get("host") if isinstance(agent, dict) else "its node"
        said = f"nothing was heard of {host} for {silent_s:.0f} s"
        placed = self._placement(job)
        try:
            status = None if placed is None else self._status(placed.folder.name)
        except EngineFailure as error:
            return AttemptState(Presence.UNREACHABLE, f"{said}; {error.failure.message}")
        if status is None or status.is_over:
            said += f"; Ray: {'the job is unknown' if status is None else status.message}"
            definition = job.record.definition
            # Where another attempt may follow, the runner waits until the lease has run out there too.
            if definition.attempts == 1 and silent_s > definition.lost_after_s:
                return AttemptState(Presence.GONE, said)
        return AttemptState(Presence.UNREACHABLE, said)

    def _silence_s(self, place: Path) -> float:
        """Return how long the agent of a node has said nothing; 0 if it has ended."""
        if has_ended(place):
            return 0.0
        heartbeat, now_s = read_json(place / "heartbeat.json"), self.elapsed_s()
        beat = heartbeat.get("beat") if isinstance(heartbeat, dict) else None
        if place not in self._beats or self._beats[place][0] != beat:
            self._beats[place] = (beat, now_s)
        return now_s - self._beats[place][1]

    def _renew_lease(self, places: Sequence[Path]) -> None:
        now_s = self.elapsed_s()
        if now_s - self._renewed_s > _RENEW_S:
            self._renewed_s = now_s
            for place in places:
                with contextlib.suppress(OSError):
                    replace_json(place / "lease.json", {"renewal": time.time_ns() // 1_000_000})

    def _status(self, name: str) -> JobStatus | None:
        """Return what Ray says of a worker's job, asked once a second at most."""
        now_s = self.elapsed_s()
        if self._asked[1] != name or now_s - self._asked[0] > _ASK_EVERY_S:
            self._asked = (now_s, name, self._cluster.status(name))
        return self._asked[2]

    def pull(self, job: Job, *, final: bool) -> None:
        """Move the script's outputs and logs to the run's folder when its processes have ended."""
        if final:
            with as_failure("what other nodes have logged cannot be read"):
                for place in _places(job)[1:]:
                    _append_lines(place, job.place)
            collect(job)

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Write the request to stop, which the agent reads; an attempt that waits is taken back from its worker."""
        for place in _places(job):
            if place.is_dir():
                request_stop(place, grace_s, reason)
        placed = self._placement(job)
        if placed is None or (job.place / "agent.json").exists():
            return
        with as_failure("the attempt cannot be taken back"):
            if _take_back(placed.folder):
                replace_json(job.place / LOST, {"reason": reason})
                self._end_worker(job, placed.folder)

    def clean(self, job: Job) -> None:
        """Have Ray end the worker of an attempt that is lost, and remove the attempt's working directory."""
        if not job.place.is_dir():
            return
        with as_failure("what is left of the run cannot be removed"):
            placed = self._placement(job)
            if placed is not None and not (job.place / "exit.json").exists():
                _take_back(placed.folder)
                self._end_worker(job, placed.folder)
            for place in _places(job)[1:]:
                for name in ("agent", "ranks"):
                    remove_tree(place / name, ignore_errors=True)
            remove_work(job)

    def _end_worker(self, job: Job, folder: Path) -> None:
        """Have Ray end a worker, unless it has another attempt by now."""
        current = read_json(folder / "current")
        if isinstance(current, dict) and current.get("attempt") != str(job.place):
            return
        with contextlib.suppress(EngineFailure):
            self._cluster.stop(folder.name)
        if not (folder / "current").exists():
            remove_tree(folder, ignore_errors=True)


def _work(folder: Path, idle_s: int) -> list[str]:
    return ["work", str(folder), "--idle", str(idle_s), "--daemon", _DAEMON]


def _places(job: Job) -> list[Path]:
    """Return the folder of the attempt on each of its nodes."""
    return folders_of(job.place, job.record.definition.nodes)


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


def _key(job: Job) -> str:
    return f"{job.record.id}.{job.attempt}"


def _assign(job: Job, folder: Path) -> None:
    """Write what the worker of a folder has to run.

    Raises:
        FileNotFoundError: The worker has ended.
    """
    replace_file(folder / "next", json.dumps({"attempt": str(job.place)}).encode())


def _take_back(folder: Path) -> bool:
    """Take an attempt back from a worker that has not begun with it; return whether it has not."""
    try:
        (folder / "next").rename(folder / "revoked")
    except OSError:
        return not (folder / "current").exists()
    return True
