"""Work beside the loop of a supervisor: restarts that are tried until they succeed, and calls that may block."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from stoker.supervisor.background import Background, in_thread
from stoker.supervisor.backoff import Backoff
from stoker.supervisor.children import Child


def others() -> set[asyncio.Task[Any]]:
    """The tasks beside the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def ended_child(returncode: int = -9, lived_s: float = 0.0, *, out_of_memory: bool = False) -> Any:
    """A process that has ended."""
    process = SimpleNamespace(returncode=returncode)
    child: Any = SimpleNamespace(process=process, out_of_memory=out_of_memory)
    blameless: Any = Child.is_blameless
    return SimpleNamespace(
        lived_s=lived_s,
        describe_exit=lambda: Child.describe_exit(child),
        is_blameless=blameless.fget(child),
    )


def test_a_process_that_cannot_be_started_is_tried_until_it_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where processes are killed for want of memory, forks fail too; the delays go on growing."""
    delays: list[float] = []
    give_delay = Backoff.delay_s

    def delay_s(backoff: Backoff, lived_s: float) -> float:
        delays.append(give_delay(backoff, lived_s))
        return 0.0

    monkeypatch.setattr(Backoff, "delay_s", delay_s)

    async def scene() -> int:
        background, started = Background(), asyncio.Event()
        tries = 0

        async def start() -> None:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            started.set()

        background.restart("a frontend", ended_child(), Backoff(), start)
        await asyncio.wait_for(started.wait(), PATIENCE_S)
        return tries

    assert asyncio.run(scene()) == 4
    assert delays == [0.25, 0.5, 1, 2]
    assert "a frontend was ended by SIGKILL; starting it again in 0 s" in caplog.text
    assert caplog.text.count("a frontend cannot be started: [Errno 11] Resource temporarily unavailable") == 3


def test_nothing_is_started_again_when_the_server_stops() -> None:
    """Neither what has ended nor what could not be started."""
    tries: list[int] = []

    async def scene() -> None:
        background = Background()

        async def start() -> None:
            tries.append(1)
            background.stop()
            raise BlockingIOError(11, "Resource temporarily unavailable")

        background.restart("a frontend", ended_child(), Backoff(), start)
        await asyncio.gather(*others())
        background.restart("a frontend", ended_child(), Backoff(), start)
        await asyncio.gather(*others())

    asyncio.run(scene())
    assert tries == [1]


def test_a_look_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    """An error that repeats itself is logged once; another error, or the same one later, is logged again."""
    outcomes = iter(["away", "away", "other", None, "other"])

    async def look() -> bool:
        outcome = next(outcomes, "end")
        if outcome not in {None, "end"}:
            raise ValueError(outcome)
        return outcome != "end"

    async def scene() -> None:
        background = Background()
        background.repeat("looking", 0, look)
        await asyncio.gather(*others())

    asyncio.run(scene())
    assert next(outcomes, "end") == "end"
    failures = [record for record in caplog.records if record.getMessage().startswith("looking failed")]
    shown = [str(record.exc_info[1]) for record in failures if record.exc_info]
    assert shown == ["away", "other", "other"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (70, "exited with code 70"),
        (73, "exited for lack of memory"),
        (-9, "was ended by SIGKILL"),
        (-35, "was ended by signal 35"),
        (None, "is running"),
    ],
)
def test_every_exit_has_words(code: int, words: str) -> None:
    """Also one by a real-time signal, which has no name."""
    assert ended_child(code).describe_exit() == words


@pytest.mark.parametrize(("code", "is_blameless"), [(-9, True), (73, True), (70, False), (-11, False)])
def test_killed_process_and_one_without_memory_blame_no_model(code: int, is_blameless: bool) -> None:
    """The model that was being loaded then would get a process of its own, for which there may never be room."""
    assert ended_child(code).is_blameless == is_blameless


def test_an_end_for_want_of_memory_is_called_so() -> None:
    """An operator who reads of SIGKILL alone looks for who sent it."""
    text = ended_child(out_of_memory=True).describe_exit()
    assert (
        text
        == "was ended by SIGKILL by the kernel, which had no memory left: it needs more, or less may run here"
    )


def test_a_call_in_a_thread_gives_the_result() -> None:
    """Its result or its exception; the loop goes on meanwhile."""

    async def scene() -> None:
        assert await in_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(divmod, 7, 0)
        go_on = threading.Event()
        waiting = asyncio.ensure_future(in_thread(go_on.wait, 30))
        await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        assert await waiting

    asyncio.run(scene())


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_hangs_holds_up_neither_its_caller_nor_the_end(fails: bool) -> None:
    """A disk or a driver may never answer; what it says when nobody waits any more is nobody's business."""
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def hang() -> None:
        threads.append(threading.current_thread())
        begun.set()
        assert go_on.wait(PATIENCE_S)
        if fails:
            raise OSError("the disk is away")

    async def scene() -> None:
        hanging = asyncio.ensure_future(in_thread(hang))
        await in_thread(begun.wait, 30)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging

    asyncio.run(scene())
    (thread,) = threads
    assert thread.is_alive()
    assert thread.daemon, "nor does the process wait for it"
    go_on.set()
    thread.join(PATIENCE_S)
