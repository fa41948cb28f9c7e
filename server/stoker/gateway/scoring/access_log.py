"""The access log: a line for each sampled scoring request, written without slowing requests down.

The event loop only appends to a bounded queue; a thread makes lines of it and writes them. What does not fit into
the queue, because the reader of the log is slow, is dropped, counted and reported.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stoker.gateway.scoring.background_writer import BackgroundWriter
from stoker.gateway.scoring.call import request_facts
from stoker.gateway.scoring.observers import ObservedCall, Observer
from stoker.system.durable import write_all
from stoker.system.logs import escaped, json_line, log_settings, text_line

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.gateway.http.request_ids import RequestIds
    from stoker.gateway.scoring.call import ServiceBase

logger = logging.getLogger(__name__)

_LOGGER: Final = "stoker.access"
_MAX_QUEUED: Final = 8192
_TICK_S: Final = 0.1
# Linux writes up to this many bytes to a pipe atomically, so lines of several processes do not mix.
_WRITE_BYTES: Final = 4096
_STANDARD_ERROR: Final = 2


class _Served(NamedTuple):
    """One request as the event loop passes it to the thread.

    Stages are nanoseconds, empty for a request that was not run.
    """

    time_s: float
    ids: RequestIds
    service: Any
    status: int
    code: str
    total_ns: int
    rows: int
    caller: int
    stages_ns: Mapping[str, int]


class AccessLog(BackgroundWriter[_Served, bytes], Observer):
    """The access log of one frontend; `share` of the requests are logged, by `write`, which may raise OSError."""

    def __init__(
        self,
        share: float,
        write: Callable[[bytes], object] | None = None,
        chance: Callable[[], float] = random.random,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("access log", _TICK_S)
        self._share, self._chance, self._clock_s = share, chance, clock_s
        self._write_bytes = write or partial(write_all, _STANDARD_ERROR)
        self._left_out = self._reported_left_out = 0

    def accepts(self, call: ObservedCall, ids: RequestIds | None) -> bool:
        """Whether a request is logged."""
        del call, ids
        return self._chance() < self._share

    def record(self, call: ObservedCall, status: int) -> None:
        """Queue the line of an answered request."""
        stages_ns = call.stages_ns if call.was_run else {}
        caller = 0 if call.urgency is None else call.urgency.caller.number
        total_ns, rows = time.monotonic_ns() - call.received_ns, getattr(call, "rows", 0)
        self._enqueue(
            _Served(
                self._clock_s(), call.ids, call.service, status, call.code, total_ns, rows, caller, stages_ns
            )
        )

    def record_refusal(self, service: ServiceBase, ids: RequestIds, error: StokerError) -> None:
        """Queue the line of a request that is refused before it is scored, if it is sampled."""
        if self._chance() < self._share:
            self._enqueue(_Served(self._clock_s(), ids, service, error.status, error.code, 0, 0, 0, {}))

    def _enqueue(self, served: _Served) -> None:
        if len(self._queue) >= _MAX_QUEUED:
            self._left_out += 1
        else:
            self._queue.append(served)

    def write_queued(self) -> None:
        """Write all that is queued, unless the log has no such lines now, and how many were left out."""
        # This can be changed while the server runs, as the form can.
        if not log_settings().info:
            self._queue.clear()
        super().write_queued()
        left_out = self._left_out
        if left_out > self._reported_left_out:
            logger.warning("%d lines of the access log are left out here", left_out - self._reported_left_out)
            self._reported_left_out = left_out

    def _encode(self, queued: _Served) -> bytes:
        return _json(queued) if log_settings().form == "json" else _text(queued)

    def _write(self, encoded: list[bytes]) -> None:
        chunk = b""
        try:
            for line in encoded:
                if chunk and len(chunk) + len(line) > _WRITE_BYTES:
                    self._write_bytes(chunk)
                    chunk = b""
                chunk += line
            self._write_bytes(chunk)
        except OSError:
            # The disk is full, or the reader has gone: requests are served all the same.
            return


def _facts(served: _Served) -> dict[str, Any]:
    more: dict[str, Any] = {"status": served.status, "code": served.code}
    if served.total_ns:
        more |= {"duration_ms": served.total_ns / 1e6, "rows": served.rows, "caller": served.caller}
    if served.stages_ns:
        more["stages_ms"] = {name: stage_ns / 1e6 for name, stage_ns in served.stages_ns.items()}
    facts = request_facts(served.ids, served.service, **more)["facts"]
    return {name: escaped(value) if isinstance(value, str) else value for name, value in facts.items()}


def _json(served: _Served) -> bytes:
    line = json_line(served.time_s, "INFO", "frontend", _LOGGER, f"answered {served.status}", _facts(served))
    return line.encode() + b"\n"


def _text(served: _Served) -> bytes:
    facts = _facts(served)
    parts = [
        f"request {facts['request_id']}: {facts['model']} version {facts['version']} answered {served.status}"
    ]
    if served.code:
        parts.append(f" {served.code}")
    if served.total_ns:
        parts.append(f" in {served.total_ns / 1e6:.3f} ms")
    if served.stages_ns:
        stages = ", ".join(f"{name} {took:.3f}" for name, took in facts["stages_ms"].items())
        parts.append(f" ({stages})")
    if served.total_ns:
        parts.append(f", {served.rows} rows, caller {served.caller}")
    if "trace_id" in facts:
        parts.append(f" (trace {facts['trace_id']})")
    line = text_line(served.time_s, "INFO", "frontend", _LOGGER, "".join(parts))
    return line.encode(errors="backslashreplace") + b"\n"
