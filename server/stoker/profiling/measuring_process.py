"""Runs the process that measures a model, and kills it if the model takes too long to load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout
from stoker.profiling.measuring import Order, Report
from stoker.system.resources import MemoryKills

_MEASURING: Final = "stoker.profiling.measuring"


def measure_in_process(order: Order, report: Report) -> dict[str, Any]:
    """Run the measuring process; it is killed if this process is interrupted."""
    kills = MemoryKills()
    read, write = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(read, encoding="utf-8") as messages:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MEASURING, order.to_json(), str(write)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            # Ctrl-C reaches only this process, which ends the other one.
            start_new_session=True,
        )
        os.close(write)
        limit = _LoadLimit(process.kill)
        try:
            for line in messages:
                message = json.loads(line)
                limit.receive(message)
                if "error" in message:
                    raise _to_error(message)
                if "measured" in message:
                    measured: dict[str, Any] = message["measured"]
                    return measured
                report(message)
            status = process.wait()
        finally:
            limit.receive({})
            process.kill()
            process.wait()
        limit.check()
        raise LoadFailed(
            f"the process that measured {order.model} {kills.describe(status)}: {_last_line(log)}"
        )


class _LoadLimit:
    """Kills the measuring process if loading the model takes longer than its limit."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._timer: threading.Timer | None = None
        self._late = ""

    def receive(self, message: Mapping[str, Any]) -> None:
        """Receive a message of the process, which restarts the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if "load_timeout_s" in message:
            self._timer = threading.Timer(message["load_timeout_s"], self._end, [message])
            self._timer.daemon = True
            self._timer.start()

    def _end(self, message: Mapping[str, Any]) -> None:
        self._late = (
            f"{message['step']} took longer than {message['load_timeout_s']:g} s, so the process was ended; if the "
            "model only needs longer, raise load_timeout_s"
        )
        self._kill()

    def check(self) -> None:
        """Raise LoadTimeout if the time was up."""
        if self._late:
            raise LoadTimeout(self._late)


def _to_error(message: dict[str, Any]) -> InvalidSettings | LoadFailed:
    kind = InvalidSettings if message["exit_code"] == InvalidSettings.exit_code else LoadFailed
    return kind(message["error"])


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
