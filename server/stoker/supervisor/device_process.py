"""One device process as known to the supervisor, over all its restarts."""

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
        quiet: Whether it loads its models at low priority.
        child: The process, while it runs.
        timer: The time limit of the model that it is loading.
        report: The device that it chose.
        failure: Why it ended or could not be started.
        failed: By number the models that it could not load at first, and has removed.
        loaded: Whether it has loaded all its models once; only then it is restarted with all of them when it ends.
        ended: Whether it will not be restarted.
        unloading: Numbers of the models that it was told to unload.
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
    """A failure that a device process reported, with its error code and exit code."""

    def __init__(self, message: str, code: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # the class attribute is the default
        self.exit_code = exit_code  # type: ignore[misc]  # the class attribute is the default
