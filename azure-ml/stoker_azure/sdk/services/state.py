"""The state of a deployed service: its error and log, and waiting for it."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from stoker_azure.exceptions import WebserviceException
from stoker_azure.sdk.base import raised_as
from stoker_azure.sdk.services.recorded import RecordedService, find_record

_DOT_EVERY_S: Final = 1.0


class ServiceState(RecordedService):
    """The state of a deployed service."""

    @property
    def state(self) -> str:
        """`Transitioning`, `Healthy`, `Unhealthy`, `Failed` or `Deleted`."""
        return self._state()

    @property
    def error(self) -> Any:
        """Why the service does not run, with the end of its log; in a cluster `code` and `message`."""
        with raised_as(WebserviceException):
            return None if self._found() is None else self._backend.error()

    def update_deployment_state(self, must_exist: bool = False) -> None:
        """Do nothing: attributes are looked up when they are read.

        Args:
            must_exist: Raise if the service has been deleted.

        Raises:
            WebserviceException: It has been deleted, and must not have been.
        """
        if must_exist:
            find_record(self.workspace, self.name)

    def wait_for_deployment(self, show_output: bool = False, timeout_sec: float | None = None) -> None:
        """Wait until the service can score.

        Args:
            timeout_sec: Seconds after which to stop waiting; the deployment continues.

        Raises:
            WebserviceException: The process has ended; the message has the end of its log. Or the time is over.
        """
        begun_s = time.monotonic()
        dots = 0
        _show(show_output, "Running")
        # One that was ready before, and whose process lives, is on its way to be so again.
        while (state := self._state()) == "Transitioning" or (state == "Unhealthy" and self.error is None):
            waited_s = time.monotonic() - begun_s
            if timeout_sec is not None and waited_s > timeout_sec:
                _show(show_output, "\n")
                raise WebserviceException(
                    f"{self.name} is not deployed after {timeout_sec:g} s; it goes on, see state and get_logs()"
                )
            if waited_s > dots * _DOT_EVERY_S:
                _show(show_output, ".")
                dots += 1
            time.sleep(self._backend.poll_s)
        _show(show_output, f"\n{'Succeeded' if state == 'Healthy' else 'Failed'}\n")
        if state != "Healthy":
            raise WebserviceException(f"{self.name} is not deployed, its state is {state}: {self.error}")
        print(f'{self.type_name} service creation operation finished, operation "Succeeded"')

    def _state(self) -> str:
        with raised_as(WebserviceException):
            return "Deleted" if self._found() is None else self._backend.state()

    def _has_started(self) -> bool:
        """Wait while the service starts, at most as long as a model may load; return whether it can score."""
        state = self._state()
        while state == "Transitioning":
            time.sleep(self._backend.poll_s)
            state = self._state()
        return state == "Healthy"

    def get_logs(self, num_lines: int = 5000, init: bool = False, raw: bool = False) -> str:
        """Return the last lines of the log.

        Args:
            init: Not used: there is no init container.
            raw: Not used: lines are always as they were written.

        Raises:
            WebserviceException: `num_lines` is not a whole number above 0, or the log cannot be read.
        """
        del init, raw
        if not isinstance(num_lines, int) or num_lines < 1:
            raise WebserviceException(f"num_lines must be a whole number above 0, got {num_lines!r}")
        with raised_as(WebserviceException):
            return "" if self._found() is None else self._backend.log(num_lines)


def _show(wanted: bool, text: str) -> None:
    if wanted:
        sys.stdout.write(text)
        sys.stdout.flush()
