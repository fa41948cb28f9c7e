"""An engine whose machine is an object: a test sets how many looks a script lasts and how it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker_runs.records.states import RunFailure
from stoker_runs.targets.engine import AttemptState, EngineFailure, Job, Presence, Say, Unreachable

__all__ = ["Machine", "PuppetEngine", "exited"]


def exited(status: int = 0, **more: Any) -> dict[str, Any]:
    """The exit record that an agent writes of a script that has ended by itself."""
    return {"version": 1, "outcome": "exited", "exit_status": status, "signal": None, "started_ms": 5, **more}


@dataclass
class Script:
    """One attempt on the machine."""

    looks_left: int
    exit: dict[str, Any]
    starts: int = 0
    prepared: bool = False
    stop_reason: str = ""
    gone: bool = False
    cleaned: bool = False
    pulled: bool = False


@dataclass
class Machine:
    """The machine of the scripts; it outlives the engines that look at it.

    Attributes:
        looks: How many looks a script lasts.
        exit: How it ends.
        heeds: Whether a script ends when an engine stops it.
        unreachable: Why the machine does not answer; empty while it does.
        problem: The problem that the agent reports.
        refuses: The failure of each preparation, if any.
        says: Lines of output while an attempt is prepared.
        scripts: The attempts by number.
        at: Called with the name of each call before it has an effect, and after it.
    """

    looks: int = 2
    exit: dict[str, Any] = field(default_factory=exited)
    heeds: bool = True
    unreachable: str = ""
    problem: str = ""
    refuses: RunFailure | None = None
    says: Sequence[str] = ()
    scripts: dict[int, Script] = field(default_factory=dict)
    at: Callable[[str], None] = lambda _: None

    def script(self, job: Job) -> Script:
        return self.scripts.setdefault(job.attempt, Script(self.looks, dict(self.exit)))

    def lose_power(self) -> None:
        """End all running scripts without a record."""
        for script in self.scripts.values():
            if script.starts and script.looks_left > 0:
                script.gone = True

    @property
    def running(self) -> list[int]:
        """The attempts whose scripts run."""
        return [n for n, one in self.scripts.items() if one.starts and one.looks_left > 0 and not one.gone]


class PuppetEngine:
    """An engine of a `Machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def check(self) -> Sequence[str]:
        self._reach()
        return ("a machine of objects",)

    def prepare(self, job: Job, say: Say) -> None:
        self._machine.at("prepare")
        if self._machine.refuses is not None:
            failure = self._machine.refuses
            raise EngineFailure(failure.message, failure.hint, code=failure.code, details=failure.details)
        for line in self._machine.says:
            say(line)
        job.place.mkdir(parents=True, exist_ok=True)
        self._machine.script(job).prepared = True
        self._machine.at("prepared")

    def start(self, job: Job) -> None:
        self._machine.at("start")
        script = self._machine.script(job)
        assert script.prepared
        if not script.starts:
            # An attempt is started once, whoever asks again.
            script.starts += 1
        self._machine.at("started")

    def observe(self, job: Job) -> AttemptState:
        self._machine.at("observe")
        self._reach()
        script = self._machine.script(job)
        if not script.starts:
            return AttemptState(Presence.ABSENT)
        if script.gone:
            return AttemptState(Presence.GONE)
        if script.stop_reason and self._machine.heeds:
            script.looks_left = 0
            script.exit = {
                **script.exit,
                "outcome": "stopped",
                "reason": script.stop_reason,
                "signal": "SIGTERM",
            }
        if script.looks_left <= 0:
            return AttemptState(Presence.ENDED, exit=script.exit)
        script.looks_left -= 1
        return AttemptState(Presence.ALIVE, self._machine.problem, 5)

    def pull(self, job: Job, *, final: bool) -> None:
        self._machine.at("pull")
        self._reach()
        self._machine.script(job).pulled |= final

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        self._machine.at("stop")
        self._machine.script(job).stop_reason = reason

    def clean(self, job: Job) -> None:
        self._machine.at("clean")
        self._reach()
        assert job.attempt not in self._machine.running
        self._machine.script(job).cleaned = True

    def _reach(self) -> None:
        if self._machine.unreachable:
            raise Unreachable(self._machine.unreachable)
