"""The processes of one attempt on this machine: one, or several that stand and fall together."""

import os
import select
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from stoker_run import processes
from stoker_run.attempt import Start
from stoker_run.lines import append_json
from stoker_run.logs import Log

__all__ = ["Member", "Team"]

_READ_BYTES = 1 << 16
_DRAIN_S = 1.0


class Member:
    """One process.

    Attributes:
        rank: Its rank in the attempt.
        pid: Its number.
        log: What it prints.
        status: As `waitpid` has it, once it has ended.
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
        """Whether it has ended, and not well."""
        return self.status is not None and self.status != 0


class Usage(NamedTuple):
    """What the processes that have ended have used."""

    peak_bytes: int = 0


class Team:
    """The processes of an attempt on this machine.

    Args:
        folder: The folder of the attempt.
        start: What is run.

    Attributes:
        members: The processes, by rank.
        first_failed: The one that failed before all others.
        usage: What those that have ended have used.
        settled: Whether it is settled how the attempt has ended: who fails from now on was made to.
    """

    def __init__(self, folder: Path, start: Start) -> None:
        self._folder = folder
        self._start = start
        self._poll = select.poll()
        self._pipes: Dict[int, Member] = {}
        self.members: List[Member] = []
        self.first_failed: Optional[Member] = None
        self.usage = Usage()
        self.settled = False

    def add(self, rank: int, variables: Dict[str, str]) -> None:
        """Start the process of a rank.

        Raises:
            OSError: It cannot be started.
        """
        log = Log(self._folder / f"log_{rank}.txt")
        ours, theirs = os.pipe()
        try:
            pid = processes.start(self._start.command, self._start.directory, variables, theirs)
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        member = Member(rank, pid, ours, log)
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
        self._say(member, "Started")

    @property
    def failed(self) -> bool:
        """Whether a process has failed: then all have to go."""
        return self.first_failed is not None

    @property
    def ended(self) -> bool:
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
        """Take what was printed, waiting for some; returns whether there was any."""
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
                self._forget(pipe)
        for member in self.members:
            member.log.tick(now)
        return bool(events)

    def reap(self, now_ms: int) -> None:
        """Bury who has ended, also those that we were given as orphans."""
        by_pid = {member.pid: member for member in self.members}
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.usage = Usage(max(self.usage.peak_bytes, used.ru_maxrss * 1024))
            member = by_pid.get(pid)
            if member is None:
                continue
            member.status = status
            if member.failed and self.first_failed is None and not self.settled:
                self.first_failed = member
            self._say(member, "Completed" if status == 0 else "Failed", now_ms)

    def close(self, now_ms: int) -> None:
        """Read what is still in the pipes, for a second at most, and close the logs."""
        self.reap(now_ms)
        until = time.monotonic() + _DRAIN_S
        while self._pipes and time.monotonic() < until:
            if not self.read(0.05):
                break
        for pipe in list(self._pipes):
            self._forget(pipe)
        for member in self.members:
            member.log.close(time.monotonic())

    def _forget(self, pipe: int) -> None:
        self._poll.unregister(pipe)
        os.close(pipe)
        del self._pipes[pipe]

    def _say(self, member: Member, status: str, now_ms: Optional[int] = None) -> None:
        said = {
            "process_name": str(member.rank),
            "timestamp": int(time.time() * 1000) if now_ms is None else now_ms,
            "status": status,
        }
        append_json(self._folder / "process_status.json", said)
