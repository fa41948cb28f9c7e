"""Processes that are killed and stopped while callers ask; each action's first sentence is what is promised.

To add one, write a generator function: first it allows what it may cost, then it strikes; after `yield` it mends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.chaos.ledger import GONE, Outcome, Verdict
from tests.chaos.scene import Scene, action
from tests.http.raw_http import Connection, rows_body, scoring
from tests.live_server import PRIMARY, wait_until
from tests.observing import state_of
from tests.tiny_models import DIE, FORK

__all__: list[str] = []

_HELD_UP: Final = 2.0
"""So many times as long as other faults last: at the longest, longer than a request may take."""
_MOST_OOM_SCORE_ADJ: Final = 1000
_FORKS: Final = 12


@action
def device_killed(scene: Scene) -> Iterator[None]:
    """Requests of a killed device process run again in another replica or are answered 503 with Retry-After."""
    scene.allow(Verdict.REFUSED, *GONE)
    scene.signal(scene.choose_process("device"), signal.SIGKILL)
    yield


@action
def all_devices_killed(scene: Scene) -> Iterator[None]:
    """When all device processes are killed at once, requests are told 503 with Retry-After until they are back."""
    scene.allow(Verdict.REFUSED, *GONE)
    for pid in scene.server.kinds()["device"]:
        scene.signal(pid, signal.SIGKILL)
    yield


@action
def script_ends_its_process(scene: Scene) -> Iterator[None]:
    """A script that ends its own process costs requests to that script, each told 503 with Retry-After."""
    scene.allow(Verdict.REFUSED, *GONE, protocols=("script",))
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):
            connection = opened.enter_context(Connection(scene.server.port))
            connection.send(scoring("/api/v1/service/tripler/score", PRIMARY, rows_body([DIE, 0, 0, 0])))
        yield


@action
def script_forks(scene: Scene) -> Iterator[None]:
    """A script whose children come back from its call, however, answers as if it had not forked."""
    for how in scene.random.choices(range(4), k=_FORKS):
        # Another fault may end the connection, or the script's process.
        with contextlib.suppress(OSError, AssertionError), Connection(scene.server.port) as connection:
            connection.ask(scoring("/api/v1/service/tripler/score", PRIMARY, rows_body([FORK, how, 0, 0])))
    yield


@action
def frontend_killed(scene: Scene) -> Iterator[None]:
    """A killed frontend loses what was under way on its own connections; no other connection, none that waits."""
    pid = scene.choose_process("frontend")
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        # Stopped, it takes no further connection between the look and the end.
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state_of(pid) in "TtZX", "the frontend is stopped")
        held = scene.server.connections_of(pid)
        own, calls = held[scene.server.port], len(held[scene.server.grpc_port])

        def carried(outcome: Outcome) -> bool:
            return outcome.port in own

        # Each of them is lost once, whenever its caller learns of it.
        scene.allow(Verdict.LOST, fits=carried, most=len(own))
        scene.allow(Verdict.LOST, protocols=("grpc",), most=calls)
        os.kill(pid, signal.SIGKILL)
    yield


@action
def killed_for_memory(scene: Scene) -> Iterator[None]:
    """The process that the kernel would kill for memory is never the supervisor, and its end costs what it held."""
    kinds = scene.server.kinds()
    (supervisor,) = kinds["supervisor"]
    scores = {}
    for pid in (*kinds["frontend"], *kinds["device"], supervisor):
        with contextlib.suppress(OSError):
            scores[pid] = int(Path(f"/proc/{pid}/oom_score").read_text())
    victim = max(scores, key=lambda pid: scores[pid])
    # Where everything is to be killed first, as in a pod of the lowest class, nothing can come before it.
    bounded = int(Path(f"/proc/{supervisor}/oom_score_adj").read_text()) == _MOST_OOM_SCORE_ADJ
    assert bounded or scores[supervisor] < scores[victim], f"the kernel would kill the supervisor: {scores}"
    if victim in kinds["frontend"]:
        yield from frontend_killed(scene)
    else:
        scene.allow(Verdict.REFUSED, *GONE)
        scene.signal(victim, signal.SIGKILL)
        yield


@action
def device_stopped(scene: Scene) -> Iterator[None]:
    """While a device process is stopped, its requests wait or are told 504; when it goes on, it is as before."""
    _stop(scene, "device")
    yield


@action
def frontend_stopped(scene: Scene) -> Iterator[None]:
    """While a frontend is stopped, those who are connected to it wait; when it goes on, it answers or tells 504."""
    _stop(scene, "frontend")
    yield


def _stop(scene: Scene, kind: str) -> None:
    """Stop a process for a while.

    That has an end of its own: who is stopped until other faults are over, whose looks take as long as the machine
    needs for them, would at some time be taken for one that hangs.
    """
    scene.allow(Verdict.LATE)
    pid = scene.choose_process(kind)
    scene.signal(pid, signal.SIGSTOP)

    def go_on() -> None:
        time.sleep(_HELD_UP * scene.hold_s)
        scene.signal(pid, signal.SIGCONT)

    scene.errand(go_on)
