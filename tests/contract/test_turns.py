"""Two models on a device that runs one batch at a time: what answers say of waiting for it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from tests.contract.in_process import DOORS, InProcessServer
from tests.http.raw_http import Answer, Headers
from tests.live_server import wait_until
from tests.patience import PATIENCE_S
from tests.puppets import PuppetRuntime

from stoker.device.device_page import DevicePage, SlotFacts
from stoker.device.device_turns import DeviceTurns


def _stages(answer: Answer) -> dict[str, float]:
    stages = (entry.split(";dur=") for entry in (answer.header("server-timing") or "").split(", "))
    return {name: float(duration) for name, duration in stages}


# A server for each: a model may keep its turn for a moment behind its last answer.
@pytest.mark.parametrize("headers", DOORS.values(), ids=DOORS)
def test_answers_tell_how_long_their_batch_waited_for_its_turn(headers: Headers) -> None:
    """It is apart from the time in the queue; a request that found the device free has no such stage."""
    fd = os.memfd_create("turns", os.MFD_CLOEXEC)
    turns = DeviceTurns(DevicePage(fd, "cuda:0"))
    os.close(fd)
    first, second = (turns.join(1, SlotFacts(threads=1, wants_turns=True)) for _ in range(2))
    busy = PuppetRuntime()

    def ask(server: InProcessServer, model: str) -> Answer:
        return server.ask("POST", f"/api/v1/service/{model}/score", headers, b'{"data": [[1, 2]]}')

    with (
        InProcessServer({"busy": busy, "waits": PuppetRuntime()}, turns=[first, second]) as server,
        ThreadPoolExecutor(2) as callers,
    ):
        busy.hold, busy.entered = Event(), Event()
        running = callers.submit(ask, server, "busy")
        assert busy.entered.wait(PATIENCE_S)
        waiting = callers.submit(ask, server, "waits")
        wait_until(lambda: second.waiting_since_ns is not None, "the second model wants the device")
        busy.hold.set()
        assert list(_stages(running.result(PATIENCE_S))) == ["parse", "queue", "compute", "total"]
        stage_times = _stages(waiting.result(PATIENCE_S))
        assert list(stage_times) == ["parse", "queue", "turn", "compute", "total"]
        assert min(stage_times.values()) >= 0
        assert stage_times["turn"] > 0
        total = stage_times.pop("total")
        assert sum(stage_times.values()) <= total + 0.01
    turns.stop()
