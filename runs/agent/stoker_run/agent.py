"""The agent: starts the processes of one attempt on this machine, follows them, and reports how they ended."""

import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from stoker_base import memory
from stoker_base.boot import boot_id
from stoker_run import archive, processes
from stoker_run.attempt import (
    VERSION,
    Refused,
    Start,
    attempt_key,
    read_start,
    variables,
)
from stoker_run.json_files import append_json, read_json, replace_json
from stoker_run.logs import Log, last_lines, traceback_in
from stoker_run.processes import Watchdog
from stoker_run.ranks import collect_outputs, local_peers, rank_variables, visible_gpus, working_folder

_READ_BYTES = 1 << 16
_DRAIN_S = 1.0


class RankProcess:
    """One process.

    Attributes:
        status: The status of `waitpid` after its end.
    """

    def __init__(self, rank: int, pid: int, pipe: int, log: Log) -> None:
        self.rank = rank
        self.pid = pid
        self.pipe = pipe
        self.log = log
        self.status: Optional[int] = None

    @property
    def exit_status(self) -> Optional[int]:
        """Its exit status, if it has ended by itself."""
        if self.status is None or not os.WIFEXITED(self.status):
            return None
        return os.WEXITSTATUS(self.status)

    @property
    def signal(self) -> Optional[int]:
        """The signal that has killed it."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        return os.WTERMSIG(self.status)

    @property
    def failed(self) -> bool:
        """Whether the process has failed."""
        return self.status is not None and self.status != 0


class ProcessGroup:
    """The processes of an attempt on this machine.

    Attributes:
        peak_bytes: The largest memory that an ended process has used.
        settled: Whether the outcome is decided: processes that fail from now on were killed.
    """

    def __init__(self, folder: Path, start: Start) -> None:
        self._folder = folder
        self._start = start
        self._poll = select.poll()
        self._pipes: Dict[int, RankProcess] = {}
        self.members: List[RankProcess] = []
        self.first_failed: Optional[RankProcess] = None
        self.peak_bytes = 0
        self.settled = False

    def add(self, rank: int, directory: Path, variables: Dict[str, str]) -> None:
        """Start the process of a rank in its directory.

        Raises:
            OSError: It cannot be started.
        """
        log = Log(self._folder / f"log_{rank}.txt")
        ours, theirs = os.pipe()
        try:
            pid = processes.start(self._start.command, directory, variables, theirs)
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        member = RankProcess(rank, pid, ours, log)
        self.members.append(member)
        self._pipes[ours] = member
        self._poll.register(ours, select.POLLIN)
        append_json(
            self._folder / "process_info.json",
            {
                "process_name": str(rank),
                "node_id": os.uname().nodename,
                "pid_in_container": pid,
                "private_ip": "127.0.0.1",
                "log": f"log_{rank}.txt",
            },
        )
        self._write_status(member, "Started")

    @property
    def failed(self) -> bool:
        """Whether a process has failed: then all are ended."""
        return self.first_failed is not None

    @property
    def is_over(self) -> bool:
        """Whether one has failed, or all have ended but parameter servers."""
        workers = self._start.world - self._start.parameter_servers
        return self.failed or all(
            member.status is not None for member in self.members if member.rank < workers
        )

    @property
    def running(self) -> int:
        """How many have not ended."""
        return sum(member.status is None for member in self.members)

    @property
    def problem(self) -> Optional[str]:
        """Why a log cannot be written."""
        return next((member.log.problem for member in self.members if member.log.problem), None)

    def read(self, timeout_s: float) -> bool:
        """Read output, waiting for some; return whether there was any."""
        if not self._pipes:
            time.sleep(timeout_s)
            return False
        events = self._poll.poll(timeout_s * 1000)
        now = time.monotonic()
        for pipe, _ in events:
            member = self._pipes[pipe]
            try:
                data = os.read(pipe, _READ_BYTES)
            except BlockingIOError:
                continue
            if data:
                member.log.feed(data, now)
            else:
                self._close_pipe(pipe)
        for member in self.members:
            member.log.tick(now)
        return bool(events)

    def reap(self, now_ms: int) -> None:
        """Reap ended processes, including adopted orphans."""
        by_pid = {member.pid: member for member in self.members}
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.peak_bytes = max(self.peak_bytes, used.ru_maxrss * 1024)
            member = by_pid.get(pid)
            if member is None:
                continue
            member.status = status
            if member.failed and self.first_failed is None and not self.settled:
                self.first_failed = member
            self._write_status(member, "Completed" if status == 0 else "Failed", now_ms)

    def close(self, now_ms: int) -> None:
        """Read what is still in the pipes, for a second at most, and close the logs."""
        self.reap(now_ms)
        until = time.monotonic() + _DRAIN_S
        while self._pipes and time.monotonic() < until:
            if not self.read(0.05):
                break
        for pipe in list(self._pipes):
            self._close_pipe(pipe)
        for member in self.members:
            member.log.close(time.monotonic())

    def _close_pipe(self, pipe: int) -> None:
        self._poll.unregister(pipe)
        os.close(pipe)
        del self._pipes[pipe]

    def _write_status(self, member: RankProcess, status: str, now_ms: Optional[int] = None) -> None:
        facts = {
            "process_name": str(member.rank),
            "timestamp": int(time.time() * 1000) if now_ms is None else now_ms,
            "status": status,
        }
        append_json(self._folder / "process_status.json", facts)


class Stop(NamedTuple):
    """Why the processes are ended, and after which grace period they are killed."""

    outcome: str
    reason: str
    grace_s: float


class ExitReport:
    """Builds the report of how an attempt has ended.

    Attributes:
        left_over: Number of processes that the script left running.
    """

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._kills_before = memory.kills_for_memory()
        self.left_over = 0

    def report(self, group: ProcessGroup, stop: Optional[Stop], not_started: Optional[str]) -> Dict[str, Any]:
        """Return the content of `exit.json`.

        Args:
            not_started: Why no process was started, or None.
        """
        member = group.first_failed if stop is None else None
        if member is None and stop is None and not_started is None and group.members:
            member = group.members[0]
        outcome, reason = self._outcome(member, stop, not_started)
        number = member.signal if member is not None else None
        shown = member if member is not None else next(iter(group.members), None)
        tail = shown.log.tail if shown is not None else b""
        trace = traceback_in(tail) if member is not None and member.failed else None
        return {
            "version": VERSION,
            "outcome": outcome,
            "exit_status": member.exit_status if member is not None else None,
            "signal": _name(number),
            "rank": member.rank if member is not None and member.failed else None,
            "reason": reason,
            "out_of_memory": self._out_of_memory(number, trace),
            "peak_bytes": group.peak_bytes,
            "limit_bytes": memory.limit_bytes(),
            "traceback": trace,
            "last_lines": last_lines(tail),
            "left_over": self.left_over,
            "started_ms": self._started_ms,
            "ended_ms": int(time.time() * 1000),
            "processes": [
                {"rank": one.rank, "exit_status": one.exit_status, "signal": _name(one.signal)}
                for one in group.members
            ],
        }

    @staticmethod
    def _outcome(
        member: Optional[RankProcess], stop: Optional[Stop], not_started: Optional[str]
    ) -> List[Any]:
        if not_started is not None:
            return ["not_started", not_started]
        if stop is not None:
            return [stop.outcome, stop.reason]
        return ["exited" if member is None or member.signal is None else "signalled", None]

    def _out_of_memory(self, number: Optional[int], trace: Optional[str]) -> bool:
        if number == signal.SIGKILL and memory.kills_for_memory() > self._kills_before:
            return True
        last = (trace or "").rpartition("\n")[2]
        return last.split(":")[0].rpartition(".")[2] in ("MemoryError", "_ArrayMemoryError")


def _name(number: Optional[int]) -> Optional[str]:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


_TURN_S = 0.1
_HEARTBEAT_S = 5.0
_LEASE_POLL_S = 1.0
_LEFT_OVER_GRACE_S = 1.0
_UNKILLABLE_S = 20.0
# Python 3.6 knows the clock by no name; it goes on while the machine sleeps.
_CLOCK_BOOTTIME = 7


class AlreadyStarted(Exception):
    """Another agent runs, or has run, this attempt."""


def lock(folder: Path) -> int:
    """Acquire the lock of an attempt; return its file descriptor.

    Raises:
        AlreadyStarted: It is taken, or the attempt has ended.
        Refused: The folder cannot be written to.
    """
    try:
        file = os.open(str(folder / "agent.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(f"{folder} cannot be written to: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise AlreadyStarted(f"another agent has {folder}") from None
    if (folder / "exit.json").exists():
        os.close(file)
        raise AlreadyStarted(f"{folder} has ended; an attempt is started once")
    return file


def run(folder: Path, lock_file: int, started: Callable[[], None] = lambda: None) -> None:
    """Run the attempt of a folder to its end, and write `exit.json`.

    Args:
        started: Called when the processes exist, or could not be started.

    Raises:
        Refused: `start.json` is not there or wrong; nothing was started.
    """
    start = read_start(folder)
    replace_json(
        folder / "agent.json",
        {
            "version": VERSION,
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "boot_id": boot_id(),
            "python": "{}.{}.{}".format(*sys.version_info[:3]),
            "started_ms": _now_ms(),
        },
    )
    Agent(folder, start, lock_file).run(started)


class Agent:
    """One attempt on one machine."""

    def __init__(self, folder: Path, start: Start, lock_file: int) -> None:
        self._folder = folder
        self._start = start
        self._lock = lock_file
        self._group = ProcessGroup(folder, start)
        self._exit_report = ExitReport(_now_ms())
        self._stop: Optional[Stop] = None
        self._signalled = False
        self._beat_at = -_HEARTBEAT_S
        self._lease = read_json(folder / "lease.json")
        self._lease_at = self._lease_polled_at = time.clock_gettime(_CLOCK_BOOTTIME)
        self._began_at = time.clock_gettime(_CLOCK_BOOTTIME)

    def run(self, started: Callable[[], None]) -> None:
        """Start, follow, end, report."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        watchdog = Watchdog(attempt_key(self._folder), self._lock)
        processes.adopt_orphans()
        reason = self._prepare(watchdog)
        started()
        if reason is None:
            self._follow()
            self._end_processes(watchdog)
        report = self._exit_report.report(self._group, self._stop, reason)
        _persist(self._folder / "exit.json", report)
        watchdog.dismiss()

    def _prepare(self, watchdog: Watchdog) -> Optional[str]:
        """Start all processes; return why that failed, or None."""
        start = self._start
        try:
            archive.unpack(self._folder / "agent")
            if not start.directory.is_dir():
                return f"there is no folder {start.directory}"
            if start.shared_directory is not None:
                Path(start.shared_directory).expanduser().mkdir(parents=True, exist_ok=True)
            for place in start.outputs.values():
                Path(place).mkdir(parents=True, exist_ok=True)
            peers: List[str] = []
            if start.world > 1 or start.communicator != "none":
                peers = start.peers or local_peers(start.world)
            # All of them before a script starts and writes beside its files.
            directories = [working_folder(start, self._folder, rank) for rank in start.ranks]
            for rank, directory in zip(start.ranks, directories):
                self._group.add(rank, directory, self._variables(rank, directory, peers))
        except (OSError, ValueError) as error:
            processes.kill(processes.descendants(os.getpid(), [watchdog.pid]), signal.SIGKILL)
            missing = getattr(error, "filename", None) or start.command[0]
            return "{} cannot be started: {}".format(missing, getattr(error, "strerror", None) or error)
        return None

    def _variables(self, rank: int, directory: Path, peers: List[str]) -> Dict[str, str]:
        """Return the environment variables of one process."""
        inherited = dict(os.environ)
        gpus = visible_gpus(self._start, rank)
        if gpus is not None:
            inherited["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        found = variables(self._start, self._folder, directory, inherited)
        if peers:
            found.update(rank_variables(self._start, rank, peers))
        return found

    def _follow(self) -> None:
        """Wait until the processes have ended, or must be ended."""
        while not self._group.is_over:
            self._turn()
            if self._stop is not None:
                return

    def _turn(self) -> None:
        self._group.read(_TURN_S)
        self._group.reap(_now_ms())
        now = time.clock_gettime(_CLOCK_BOOTTIME)
        self._write_heartbeat(now)
        if self._stop is None and not self._group.is_over:
            self._stop = self._stop_request(now)

    def _stop_request(self, now: float) -> Optional[Stop]:
        start = self._start
        request = read_json(self._folder / "stop.json")
        if isinstance(request, dict):
            grace = request.get("grace_s")
            grace_s = float(grace) if isinstance(grace, (int, float)) else start.grace_s
            return Stop("stopped", str(request.get("reason", "canceled")), grace_s)
        if self._signalled:
            return Stop("stopped", "terminated", start.grace_s)
        if start.max_duration_s is not None and now - self._began_at > start.max_duration_s:
            return Stop("timed_out", f"ran longer than {start.max_duration_s:g} s", start.grace_s)
        overdue_s = -1.0 if start.lease_s is None else self._lease_age_s(now) - start.lease_s
        if overdue_s > 0:
            # A machine that has hung wakes up when the time for a last checkpoint is over: another attempt may run.
            grace_s = max(0.0, start.grace_s - overdue_s)
            return Stop("lease_lost", f"not renewed for {start.lease_s:g} s", grace_s)
        return None

    def _lease_age_s(self, now: float) -> float:
        if now - self._lease_polled_at >= _LEASE_POLL_S:
            self._lease_polled_at = now
            found = read_json(self._folder / "lease.json")
            if isinstance(found, dict) and found != self._lease:
                # It counts from the heartbeat that it answers, if it answers one: it may have lain here for long.
                self._lease, self._lease_at = found, found.get("heard_s", now)
        return now - self._lease_at

    def _end_processes(self, watchdog: Watchdog) -> None:
        """End the remaining processes: within the grace period if asked to stop, otherwise at once."""
        self._group.settled = True
        me, but = os.getpid(), [watchdog.pid]
        left = processes.descendants(me, but)
        self._exit_report.left_over = len(left) if self._stop is None and len(self._start.ranks) == 1 else 0
        grace_s = self._stop.grace_s if self._stop is not None else _LEFT_OVER_GRACE_S
        if self._group.failed and self._stop is None and len(self._start.ranks) > 1:
            grace_s = min(self._start.grace_s, 5.0)
        processes.kill(left, signal.SIGTERM)
        begun = time.monotonic()
        signalled = set(left)
        while left and time.monotonic() - begun < grace_s:
            self._turn()
            left = processes.descendants(me, but)
            # Processes that were started meanwhile get SIGTERM too, once.
            processes.kill(left - signalled, signal.SIGTERM)
            signalled |= left
        begun = time.monotonic()
        while left and time.monotonic() - begun < _UNKILLABLE_S:
            processes.kill(left, signal.SIGKILL)
            self._turn()
            left = processes.descendants(me, but)
        self._group.close(_now_ms())
        collect_outputs(self._start, self._folder)

    def _write_heartbeat(self, now: float) -> None:
        if now - self._beat_at < _HEARTBEAT_S:
            return
        self._beat_at = now
        facts = {
            "t_ms": _now_ms(),
            "up_s": now,
            "processes": self._group.running,
            "problem": self._group.problem,
        }
        try:
            replace_json(self._folder / "heartbeat.json", facts)
        except OSError:
            return

    def _on_signal(self, _number: int, _frame: Optional[FrameType]) -> None:
        self._signalled = True


def _persist(path: Path, report: Dict[str, Any]) -> None:
    """Write the report; retry while the disk is full."""
    while True:
        try:
            replace_json(path, report)
        except OSError:
            time.sleep(1.0)
        else:
            return


def _now_ms() -> int:
    return int(time.time() * 1000)
