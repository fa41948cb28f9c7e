"""The agent: starts the processes of one attempt on this machine, follows them, and says how they ended."""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Dict, List, Optional

from stoker_run import archive, processes
from stoker_run.attempt import OUTPUTS, VERSION, Refused, Start, read_start
from stoker_run.ending import Ending, Stop
from stoker_run.environ import attempt_key, local_peers, variables
from stoker_run.lines import read_json, replace_json
from stoker_run.team import Team
from stoker_run.warden import Warden

__all__ = ["Agent", "AlreadyStarted", "lock", "run"]

_TURN_S = 0.1
_HEARTBEAT_S = 5.0
_LEASE_LOOK_S = 1.0
_LEFT_OVER_GRACE_S = 1.0
_UNKILLABLE_S = 20.0
# Python 3.6 knows the clock by no name; it goes on while the machine sleeps.
_CLOCK_BOOTTIME = 7


class AlreadyStarted(Exception):
    """Another agent has, or has had, this attempt."""


def lock(folder: Path) -> int:
    """Take the lock of an attempt; returns its file descriptor.

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
        folder: The folder, absolute.
        lock_file: What `lock` has given.
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
            "boot_id": processes.boot_id(),
            "python": "{}.{}.{}".format(*sys.version_info[:3]),
            "started_ms": _now_ms(),
        },
    )
    Agent(folder, start, lock_file).run(started)


class Agent:
    """One attempt on one machine.

    Args:
        folder: The folder of the attempt, absolute.
        start: What to run.
        lock_file: File descriptor of the lock.
    """

    def __init__(self, folder: Path, start: Start, lock_file: int) -> None:
        self._folder = folder
        self._start = start
        self._lock = lock_file
        self._team = Team(folder, start)
        self._ending = Ending(_now_ms())
        self._stop: Optional[Stop] = None
        self._signalled = False
        self._beat = 0
        self._beat_at = -_HEARTBEAT_S
        self._lease = read_json(folder / "lease.json")
        self._lease_at = self._lease_looked_at = time.clock_gettime(_CLOCK_BOOTTIME)
        self._began_at = time.clock_gettime(_CLOCK_BOOTTIME)

    def run(self, started: Callable[[], None]) -> None:
        """Start, follow, end, report."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        warden = Warden(attempt_key(self._folder), self._lock)
        processes.adopt_orphans()
        reason = self._prepare(warden)
        started()
        if reason is None:
            self._follow()
            self._clear_away(warden)
        report = self._ending.report(self._team, self._stop, reason)
        _persist(self._folder / "exit.json", report)
        warden.dismiss()

    def _prepare(self, warden: Warden) -> Optional[str]:
        """Start all processes; returns the reason why they are not there."""
        start = self._start
        try:
            archive.unpack(self._folder / "agent")
            if not start.directory.is_dir():
                return f"there is no folder {start.directory}"
            for name in OUTPUTS:
                (start.directory / name).mkdir(exist_ok=True)
            if start.shared_directory is not None:
                Path(start.shared_directory).expanduser().mkdir(parents=True, exist_ok=True)
            peers: List[str] = []
            if start.world > 1 or start.communicator != "none":
                peers = start.peers or local_peers(start.world)
            for rank in start.ranks:
                self._team.add(rank, variables(start, self._folder, rank, peers, os.environ))
        except (OSError, ValueError) as error:
            processes.kill(processes.descendants(os.getpid(), [warden.pid]), signal.SIGKILL)
            what = getattr(error, "filename", None) or start.command[0]
            return "{} cannot be started: {}".format(what, getattr(error, "strerror", None) or error)
        return None

    def _follow(self) -> None:
        """Until the processes have ended by themselves, or have to be ended."""
        while not self._team.ended:
            self._turn()
            if self._stop is not None:
                return

    def _turn(self) -> None:
        self._team.read(_TURN_S)
        self._team.reap(_now_ms())
        now = time.clock_gettime(_CLOCK_BOOTTIME)
        self._beat_when_due(now)
        if self._stop is None and not self._team.ended:
            self._stop = self._asked_to_stop(now)

    def _asked_to_stop(self, now: float) -> Optional[Stop]:
        start = self._start
        asked = read_json(self._folder / "stop.json")
        if isinstance(asked, dict):
            grace = asked.get("grace_s")
            grace_s = float(grace) if isinstance(grace, (int, float)) else start.grace_s
            return Stop("stopped", str(asked.get("reason", "canceled")), grace_s)
        if self._signalled:
            return Stop("stopped", "terminated", start.grace_s)
        if start.max_duration_s is not None and now - self._began_at > start.max_duration_s:
            return Stop("timed_out", f"ran longer than {start.max_duration_s:g} s", start.grace_s)
        if start.lease_s is not None and self._lease_age_s(now) > start.lease_s:
            return Stop("lease_lost", f"not renewed for {start.lease_s:g} s", start.grace_s)
        return None

    def _lease_age_s(self, now: float) -> float:
        if now - self._lease_looked_at >= _LEASE_LOOK_S:
            self._lease_looked_at = now
            found = read_json(self._folder / "lease.json")
            if found is not None and found != self._lease:
                self._lease, self._lease_at = found, now
        return now - self._lease_at

    def _clear_away(self, warden: Warden) -> None:
        """End whatever is left: what was asked to stop within its grace, what was left over at once."""
        self._team.settled = True
        me, but = os.getpid(), [warden.pid]
        left = processes.descendants(me, but)
        self._ending.left_over = len(left) if self._stop is None and self._start.processes == 1 else 0
        grace_s = self._stop.grace_s if self._stop is not None else _LEFT_OVER_GRACE_S
        if self._team.failed and self._stop is None and self._start.processes > 1:
            grace_s = min(self._start.grace_s, 5.0)
        processes.kill(left, signal.SIGTERM)
        begun = time.monotonic()
        told = set(left)
        while left and time.monotonic() - begun < grace_s:
            self._turn()
            left = processes.descendants(me, but)
            # Who was started meanwhile is told too, once.
            processes.kill(left - told, signal.SIGTERM)
            told |= left
        begun = time.monotonic()
        while left and time.monotonic() - begun < _UNKILLABLE_S:
            processes.kill(left, signal.SIGKILL)
            self._turn()
            left = processes.descendants(me, but)
        self._team.close(_now_ms())

    def _beat_when_due(self, now: float) -> None:
        if now - self._beat_at < _HEARTBEAT_S:
            return
        self._beat_at = now
        self._beat += 1
        said = {
            "t_ms": _now_ms(),
            "beat": self._beat,
            "processes": self._team.running,
            "problem": self._team.problem,
        }
        try:
            replace_json(self._folder / "heartbeat.json", said)
        except OSError:
            return

    def _on_signal(self, _number: int, _frame: Optional[FrameType]) -> None:
        self._signalled = True


def _persist(path: Path, report: Dict[str, Any]) -> None:
    """Write the report, however long the disk is full."""
    while True:
        try:
            replace_json(path, report)
        except OSError:
            time.sleep(1.0)
        else:
            return


def _now_ms() -> int:
    return int(time.time() * 1000)
