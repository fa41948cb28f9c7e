"""Shortages of the system: room on the disk, descriptors, memory; and a clock that jumps.

Everything is done to running processes by their limits, which needs no rights that their user has not.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.ledger import GONE, Verdict
from tests.chaos.scene import Scene, action
from tests.http.raw_http import Connection
from tests.live_server import wait_until

__all__: list[str] = []

_DAY_S: Final = 86_400
_REFUSED: Final = "stoker_accept_failures_total"


@action
def disk_full(scene: Scene) -> Iterator[None]:
    """Processes that cannot write to any file go on answering, and count the records that they could not collect."""
    dropped = "stoker_collection_dropped_total"
    before = scene.server.metric_total(dropped) if scene.alone else 0.0
    # RLIMIT_FSIZE needs no rights and no file system of its own; writes fail as they do on a full one.
    with contextlib.ExitStack() as limits:
        kinds = scene.server.kinds()
        for pid in (*kinds["frontend"], *kinds["device"]):
            limits.enter_context(_limited(pid, resource.RLIMIT_FSIZE, 0))
        yield
        if scene.alone:
            wait_until(lambda: scene.server.metric_total(dropped) > before, "lost records are counted")


@action
def descriptors_gone(scene: Scene) -> Iterator[None]:
    """A frontend that has no descriptors left hands newcomers on; where no frontend has any, they are counted."""
    server = scene.server
    everywhere = scene.alone and scene.random.random() < 0.5
    pids = server.kinds()["frontend"] if everywhere else [scene.choose_process("frontend")]
    scene.allow(Verdict.LOST, fits=lambda outcome: outcome.first)

    def come() -> None:
        with contextlib.suppress(OSError):
            opened.enter_context(Connection(server.port))

    def served() -> bool:
        # On the way from one frontend to another it may still meet a closed door, as many come at once.
        with contextlib.suppress(OSError, AssertionError):
            return server.live.get("/v2/health/live").status == 200
        return False

    def counted() -> bool:
        # On a busy machine it may look late: then who comes now is the first to be closed.
        come()
        return server.metric_total(_REFUSED, asker) > before

    with contextlib.ExitStack() as opened:
        asker = opened.enter_context(Connection(server.port)) if everywhere else None
        before = server.metric_total(_REFUSED, asker) if everywhere else 0.0
        for pid in pids:
            with contextlib.suppress(OSError):
                used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
                opened.enter_context(_limited(pid, resource.RLIMIT_NOFILE, (used + 20) * 8 // 7))
        # A frontend looks at its limit once a second.
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            for _ in range(20):
                come()
            time.sleep(0.1)
        if everywhere:
            wait_until(counted, "those that are closed are counted", every_s=0.1)
        elif scene.alone:
            wait_until(served, "another frontend serves newcomers", every_s=0.1)
        yield


# Not beside a killed frontend: the process has to map an arena of the next one, and ends where it cannot.
@partial(action, group="frontend killed")
def memory_limited(scene: Scene) -> Iterator[None]:
    """A device process that gets no more memory answers what fits, or ends, and another one takes its place."""
    scene.allow(Verdict.REFUSED, *GONE)
    pid = scene.choose_process("device")
    with contextlib.ExitStack() as limits:
        with contextlib.suppress(OSError):
            virtual = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
            limits.enter_context(_limited(pid, resource.RLIMIT_AS, virtual))
        yield


@contextlib.contextmanager
def _limited(pid: int, limit: int, soft: int) -> Iterator[None]:
    """Lower a limit of a process, and raise it again; one that has ended meanwhile needs neither."""
    try:
        before = resource.prlimit(pid, limit)
        resource.prlimit(pid, limit, (soft, before[1]))
    except ProcessLookupError:
        yield
        return
    yield
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, limit, before)


@action
def clock_jumps(scene: Scene) -> Iterator[None]:
    """The wall clock may jump by years, there and back, without costing anybody anything."""
    scene.server.set_clock(scene.random.choice((-400 * _DAY_S, -3600, 3600, 400 * _DAY_S)))
    yield
    scene.server.set_clock(0)
