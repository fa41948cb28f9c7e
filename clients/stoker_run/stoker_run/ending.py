"""How an attempt has ended: the verdict of the agent, which is in `exit.json`."""

import signal
import time
from typing import Any, Dict, List, NamedTuple, Optional

from stoker_run import memory
from stoker_run.attempt import VERSION
from stoker_run.logs import last_lines, traceback_in
from stoker_run.team import Member, Team

__all__ = ["Ending", "Stop"]


class Stop(NamedTuple):
    """Why, and how gently, the processes are ended."""

    outcome: str
    reason: str
    grace_s: float


class Ending:
    """What is known of the end.

    Args:
        started_ms: When the attempt began.

    Attributes:
        left_over: How many processes the script had left running.
    """

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._kills_before = memory.kills_for_memory()
        self.left_over = 0

    def report(self, team: Team, stop: Optional[Stop], not_started: Optional[str]) -> Dict[str, Any]:
        """What `exit.json` holds.

        Args:
            team: The processes, all of them ended.
            stop: Why they were ended, if they were.
            not_started: Why there are none, if so.
        """
        member = team.first_failed if stop is None else None
        if member is None and stop is None and not_started is None and team.members:
            member = team.members[0]
        outcome, reason = self._outcome(member, stop, not_started)
        number = member.signal if member is not None else None
        shown = member if member is not None else next(iter(team.members), None)
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
            "peak_bytes": team.usage.peak_bytes,
            "limit_bytes": memory.limit_bytes(),
            "traceback": trace,
            "last_lines": last_lines(tail),
            "left_over": self.left_over,
            "started_ms": self._started_ms,
            "ended_ms": int(time.time() * 1000),
            "processes": _processes(team.members),
        }

    @staticmethod
    def _outcome(member: Optional[Member], stop: Optional[Stop], not_started: Optional[str]) -> List[Any]:
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


def _processes(members: List[Member]) -> List[Dict[str, Any]]:
    return [
        {"rank": member.rank, "exit_status": member.exit_status, "signal": _name(member.signal)}
        for member in members
    ]


def _name(number: Optional[int]) -> Optional[str]:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
