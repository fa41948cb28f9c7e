"""One device process as its supervisor sees it, over all restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.control.device_messages import (
    FromDevice,
    LoadModel,
    ToDevice,
)
from stoker.deployment import Deployment
from stoker.errors import OperatorError
from stoker.supervisor.backoff import Backoff
from stoker.supervisor.children import Child
from stoker.supervisor.groups import Group
from stoker.supervisor.load_timer import LoadTimer
from stoker.supervisor.reports import DeviceReport

DeviceChild = Child[ToDevice, FromDevice]


@dataclass(eq=False)
class DeviceProcess:
    """One device process, over all its restarts.

    Attributes:
        timer: The time limit of the model that it is loading.
        failure: Why it ended or could not be started.
        loaded: Numbers of the models that it has loaded once; when it ends, it is restarted with these.
        unloading: Numbers of the models that it was told to unload.
        closed: Why no more models are loaded into it, and those in it move to others; empty otherwise.
        base_bytes: Private memory that it had before it loaded its first model; None before it has.
        slow: A model whose load is slow: while it goes on, others are loaded elsewhere.
    """

    group: Group
    quiet: bool = False
    backoff: Backoff = field(default_factory=Backoff)
    child: DeviceChild | None = None
    timer: LoadTimer | None = None
    report: DeviceReport | None = None
    failure: OperatorError | None = None
    loaded: set[int] = field(default_factory=set)
    ended: bool = False
    unloading: set[int] = field(default_factory=set)
    closed: str = ""
    base_bytes: int | None = None
    slow: Deployment | None = None

    @property
    def is_open(self) -> bool:
        """Whether models may be loaded into it while it runs."""
        is_slow = self.slow is not None and self.timer is not None and self.slow is self.timer.current
        is_running = self.group.packs and self.child is not None and not self.ended
        return is_running and not self.closed and not is_slow

    def load(self, model: Deployment) -> None:
        """Load a model beside those that serve; only while it is open."""
        assert self.child is not None, "it is open"
        assert self.timer is not None, "it began with the process"
        self.timer.add(model)
        self.child.send(LoadModel(model))


class ReportedFailure(OperatorError):
    """A failure that a device process reported, with its error code and exit code."""

    def __init__(self, message: str, code: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the class attribute is the default
        self.exit_code = exit_code  # type: ignore[misc]  # the class attribute is the default
