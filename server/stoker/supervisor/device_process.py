"""One device process as the supervisor knows it, over all its restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.control.device_messages import FromDevice, ToDevice
from stoker.errors import OperatorError
from stoker.supervisor.children import Backoff, Child
from stoker.supervisor.groups import Group
from stoker.supervisor.load_timer import LoadTimer
from stoker.supervisor.start_up import DeviceReport

__all__ = ["DeviceChild", "DeviceProcess", "ReportedFailure"]

DeviceChild = Child[ToDevice, FromDevice]


@dataclass(eq=False)
class DeviceProcess:
    """One device process, over all its restarts.

    Attributes:
        group: Its models.
        quiet: Whether it loads its models behind everything else that runs on the cores.
        child: The process, while it runs.
        timer: How long it may take to load its models.
        report: Which device it chose.
        failure: Why it ended, or could not be started.
        failed: By number the models that it could not load at first, and has no more.
        loaded: Whether it has once loaded all its models; only then it is started again with all when it ends.
        ended: Whether it has ended for good.
        unloading: Numbers of models that it has been told to unload.
    """

    group: Group
    quiet: bool = False
    backoff: Backoff = field(default_factory=Backoff)
    child: DeviceChild | None = None
    timer: LoadTimer | None = None
    report: DeviceReport | None = None
    failure: OperatorError | None = None
    failed: dict[int, OperatorError] = field(default_factory=dict)
    loaded: bool = False
    ended: bool = False
    unloading: set[int] = field(default_factory=set)


class ReportedFailure(OperatorError):
    """A failure that a device process reported, with the code and the exit code that it has there."""

    def __init__(self, message: str, code: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the class attribute is the default
        self.exit_code = exit_code  # type: ignore[misc]  # the class attribute is the default
