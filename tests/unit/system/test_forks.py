"""Processes that code of a model forks: none of them comes back into the process that answers callers."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.descriptors import room_for_descriptors
from tests.patience import PATIENCE_S, PROGRAM_S
from tests.puppets import ROWS, Joined, rows_of

from stoker.arena import Arena, Outcome
from stoker.control.channel import ControlChannel
from stoker.control.device_messages import DEVICE_END
from stoker.device.lanes import Lane, SecondConsumer
from stoker.scripts.call_watchdog import Watchdog
from stoker.scripts.coroutines import SharedLoop, finish
from stoker.scripts.entry_script import EntryScript
from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.interception import redirect_calls
from stoker.scripts.invocation import ScriptCalls
from stoker.system.forks import CHILDREN, call_in_this_process
from stoker.wire.script_requests import RequestHead, ScriptRequest

Fork = Callable[[], int]

CAME_BACK = 99
"""The exit code of a child that has come out of the code under test."""
NO_CONSUMER = 98
"""The exit code of one that has been told that the rows are not its own."""
CONTEXT = multiprocessing.get_context("fork")


def fork_of_c() -> int:
    """Fork as a library of C does, unnoticed by Python.

    A thread that waits for the interpreter's lock asks for it after the switch interval, and a child that inherits
    such a request waits for ever for a thread that it does not have. So no thread of other tests may ask meanwhile:
    those that wait already get the lock while this one sleeps.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(PROGRAM_S)
    try:
        time.sleep(2 * interval_s)
        return int(ctypes.PyDLL(None).fork())
    finally:
        sys.setswitchinterval(interval_s)


def code_of(child: int) -> int:
    """Wait for a child to end."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def child_of(function: Callable[[Fork], Any], fork: Fork = os.fork) -> int:
    """Call a function that forks once; returns the exit code of its child."""
    process, children = os.getpid(), list[int]()

    def forking() -> int:
        child = fork()
        children.append(child)
        return child

    try:
        function(forking)
    except SecondConsumer:
        os._exit(NO_CONSUMER)
    finally:
        # It must not go on with the tests.
        if os.getpid() != process:
            os._exit(CAME_BACK)
    (child,) = children
    return code_of(child)


def raises(error: type[BaseException]) -> Callable[[], NoReturn]:
    """A function that raises."""

    def end() -> NoReturn:
        raise error

    return end


ENDS: dict[str, tuple[Callable[[], Any], int]] = {
    "returns": (lambda: "an answer", 0),
    "exits": (sys.exit, 0),
    "exits with a code": (lambda: sys.exit(3), 3),
    "exits with a text": (lambda: sys.exit("a reason"), 1),
    "fails": (raises(ValueError), 1),
    "is interrupted": (raises(KeyboardInterrupt), 1),
    "is closed": (raises(GeneratorExit), 1),
    "is cancelled": (raises(asyncio.CancelledError), 1),
    "raises what is no Exception": (raises(BaseException), 1),
}


@pytest.mark.parametrize("fork", [os.fork, fork_of_c])
@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_comes_back_ends(end: str, fork: Fork) -> None:
    """However it comes back, however it was forked, and with the code with which Python would have ended it."""
    come_back, code = ENDS[end]
    answers = []

    def call(forking: Fork) -> None:
        answers.append(call_in_this_process(lambda: "the parent's" if forking() else come_back()))

    assert child_of(call, fork) == code
    assert answers == ["the parent's"]


def test_a_child_may_have_calls_and_children_of_its_own() -> None:
    """Frames that begin and end in the child do not count; nor do those of its own children."""

    def call(forking: Fork) -> None:
        def script() -> None:
            if not forking():
                grandchild = call_in_this_process(os.fork)
                os._exit(7 if code_of(grandchild) == 0 else 8)

        call_in_this_process(script)

    assert child_of(call) == 7


class Doorbell:
    """A connection and what waits for it, as a device process holds them."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.wakes = os.eventfd(0, os.EFD_NONBLOCK)
        CHILDREN.cut_off(self)

    def descriptors(self) -> list[int]:
        """Both."""
        return [self.near.fileno(), self.wakes]

    def close(self) -> None:
        """Close all."""
        self.near.close()
        self.far.close()
        os.close(self.wakes)


def test_a_child_hears_and_tells_nothing() -> None:
    """Its connections have ended; messages are for the parent, which gets none from the child."""
    doorbell = Doorbell()
    doorbell.far.send(b"a row")

    def call(forking: Fork) -> None:
        if forking():
            return
        assert doorbell.near.recv(100) == b""
        with pytest.raises(BrokenPipeError):
            doorbell.near.send(b"an answer")
        with pytest.raises(BrokenPipeError):
            os.eventfd_write(doorbell.wakes, 1)
        os._exit(0)

    assert child_of(call) == 0
    assert doorbell.near.recv(100) == b"a row"
    with pytest.raises(BlockingIOError):
        os.eventfd_read(doorbell.wakes)
    # The parent alone holds its end: who is at the other one sees it end with the parent.
    doorbell.near.close()
    assert doorbell.far.recv(100) == b""
    doorbell.close()


def test_a_child_has_no_part_in_the_channels_of_a_device_process() -> None:
    """It has neither the doorbells, nor the worker's waits, nor the channel to the supervisor."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = ControlChannel.inherited(os.dup(far.fileno()), DEVICE_END)
    with Joined(frontends=2) as joined:
        joined.submit(1.0)
        joined.turn_frontends()

        def call(forking: Fork) -> None:
            if forking():
                return
            assert [lane.receive() for lane in joined.lanes] == [None, None]
            assert channel.receive() is None
            with pytest.raises(OSError, match="Invalid argument"):
                joined.worker.doorbells.poller.poll(0)
            with pytest.raises(BrokenPipeError):
                joined.worker.stop()
            os._exit(0)

        assert child_of(call) == 0
        joined.settle()
        assert joined.runtime.rows_run == [1.0]
    for end in (near, far, channel):
        end.close()


def fork_without_room_for_descriptors() -> None:
    """Fail unless a child that cannot open descriptors hears nothing of a doorbell."""
    doorbell = Doorbell()

    def call(forking: Fork) -> None:
        with room_for_descriptors(0):
            if forking():
                return
            with pytest.raises(OSError, match="Bad file descriptor"):
                doorbell.near.recv(1)
            os._exit(0)

    assert child_of(call) == 0
    doorbell.close()


def test_a_child_without_room_for_descriptors_hears_nothing_either() -> None:
    """Where there is no room for the dead connection, the numbers are closed.

    In an interpreter of its own: libraries that other tests have loaded, such as gRPC, abort a child in which they
    cannot open descriptors.
    """
    program = (
        "from tests.unit.system.test_forks import fork_without_room_for_descriptors as run_test; run_test()"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=PROGRAM_S)


@pytest.mark.parametrize("fork", [os.fork, fork_of_c])
def test_a_second_consumer_of_rows_is_an_error(fork: Fork) -> None:
    """A child that passes all other checks writes nothing to the rows: the parent's answers stay right."""
    with Joined() as joined:

        def call(forking: Fork) -> None:
            joined.runtime.during = forking
            joined.settle()

        ticket = joined.submit(1.0, 2.0)
        assert child_of(call, fork) == NO_CONSUMER
        assert ticket.completions == 1
        assert ticket.answer is not None
        assert ticket.answer[0].tolist() == (rows_of(1.0, 2.0)[0] * 2).tolist()


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_that_comes_second_cannot_hand_rows_back(fails: bool) -> None:
    """Nor can it take rows that another process runs, or write them by inherited memory."""
    fd = Arena.create(ROWS, 4)
    arena, near = Arena(fd, ROWS, 4), socket.socketpair()
    lane = Lane(arena, near[0])
    assert arena.consumer[0] == os.getpid()

    def call(forking: Fork) -> None:
        if not forking():
            if fails:
                Lane(Arena(fd, ROWS, 4), near[1])
            else:
                lane.hand_back(arena.done[:, 0].astype("uint32"), Outcome.EXPIRED, 5)

    assert child_of(call) == NO_CONSUMER
    assert not arena.done.any()
    for end in near:
        end.close()
    os.close(fd)


def request(*accept: str) -> ScriptRequest:
    """A request of a caller who takes a list of pieces."""
    head = RequestHead("POST", "/score", "", [("accept", one) for one in accept], "127.0.0.1")
    return ScriptRequest(b"id", b'"text"', head=head)


def forms(forking: Fork) -> dict[str, Callable[..., Any]]:
    """Scripts that fork, and whose children come back, in each form of `run`."""

    def plain(raw_data: Any) -> Any:
        return raw_data if forking() else sys.exit(0)

    def piecewise(raw_data: Any) -> Any:
        yield 1
        if not forking():
            return
        yield 2

    async def awaited(raw_data: Any) -> Any:
        await asyncio.sleep(0)
        return raw_data if forking() else sys.exit(0)

    async def awaited_pieces(raw_data: Any) -> Any:
        yield 1
        await asyncio.sleep(0)
        if not forking():
            return
        yield 2

    class Encoded(dict[str, int]):
        """An object that is checked when it is encoded."""

        def items(self) -> Any:
            return {"a": 1}.items() if forking() else sys.exit(0)

    def encoding(raw_data: Any) -> Any:
        return Encoded(b=1)

    return {
        "plain": plain,
        "yields": piecewise,
        "async": awaited,
        "async yields": awaited_pieces,
        "encodes": encoding,
    }


@pytest.mark.parametrize("form", forms(os.fork))
def test_a_call_has_one_answer(form: str) -> None:
    """In each form of `run`: the child's is none."""
    answers = []

    def call(forking: Fork) -> None:
        answers.append(ScriptCalls(forms(forking)[form]).answer(request("application/json")))

    assert child_of(call) == 0
    assert [answer.status for answer in answers] == [200]


def test_a_lock_that_another_thread_held_makes_no_child_hang() -> None:
    """It is never released in the child, which ends before it asks for it."""
    watchdog = Watchdog(60_000)
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with watchdog._lock:
            held.set()
            forked.wait(PATIENCE_S)

    def call(forking: Fork) -> None:
        def run(raw_data: Any) -> None:
            holding.start()
            held.wait(PATIENCE_S)
            if forking():
                forked.set()

        holding = threading.Thread(target=hold)
        assert ScriptCalls(run, watchdog=watchdog).answer(request()).status == 200
        holding.join()

    assert child_of(call) == 0


def test_a_child_of_gathered_requests_ends() -> None:
    """It has the thread of one of them, and neither goes to the desk nor takes the next request."""
    answers = []

    def call(forking: Fork) -> None:
        def run(raw_data: Any) -> Any:
            if raw_data == '"forks"' and not forking():
                sys.exit(5)
            return raw_data

        gathered = GatheredCalls(ScriptCalls(run), max_rows=8)
        answers.extend(gathered.answers([ScriptRequest(b"", b'"forks"'), ScriptRequest(b"", b"[1]")]))
        gathered.close()

    assert child_of(call) == 5
    assert [answer.status for answer in answers] == [200, 200]


@pytest.mark.parametrize("code", ["import os\nFORK\ndef init(): pass", "def init():\n    FORK"])
def test_a_child_of_a_script_that_loads_ends(code: str, tmp_path: Path) -> None:
    """Whether it was forked by the module or by `init`."""
    script = tmp_path / "score.py"
    forks = "__import__('builtins').forking() or exit(4)"
    script.write_text(code.replace("FORK", forks) + "\ndef run(raw_data): pass\n")

    def call(forking: Fork) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("builtins.forking", forking, raising=False)
            EntryScript(script, tmp_path).initialise(finish)

    assert child_of(call) == 4
    sys.modules.pop("entry_module", None)


def test_a_child_of_a_coroutine_leaves_the_others_to_its_parent() -> None:
    """On the loop that several threads share, whether it returns or waits for something."""
    loop = SharedLoop()

    async def forks(forking: Fork, waits: bool) -> str:
        if not forking() and waits:
            await asyncio.Event().wait()
        return "the parent's"

    for waits in (False, True):
        answers = []

        def call(forking: Fork, waits: bool = waits, answers: list[str] = answers) -> None:
            answers.append(loop.finish(forks(forking, waits)))

        assert child_of(call) == 0
        assert answers == ["the parent's"]
    loop.close()


def test_a_coroutine_that_exits_takes_no_others_with_it() -> None:
    """Its waiter gets the error; the loop goes on for the others."""
    loop = SharedLoop()

    async def leaves() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        loop.finish(leaves())
    assert loop.finish(asyncio.sleep(0, "on")) == "on"
    loop.close()


class _Closed:
    """A desk where nobody makes calls."""

    def submit(self, call: Any) -> NoReturn:
        """Fail, where a thread would wait for ever."""
        raise AssertionError("a process that was forked brought a call to the desk")


def _from_desk(number: int) -> int:
    from stoker.scripts.interception import _intercepted

    return int(_intercepted(lambda handle, given: given + 1, "puppet")(None, number))


def test_multiprocessing_goes_on_working() -> None:
    """A pool by fork, made and used within a call; its workers call models themselves."""

    def run(raw_data: Any) -> list[int]:
        with CONTEXT.Pool(2) as pool:
            return pool.map(_from_desk, range(4))

    with redirect_calls(_Closed()):
        answer = ScriptCalls(run).answer(request())
    assert (answer.status, answer.body) == (200, b"[1, 2, 3, 4]")


LEAVES = """
import atexit, os, sys
from stoker.scripts.script_process import leave_script_process

def note(name):
    # At once: the other process writes too.
    os.write(1, f"{name} {os.getpid() == parent}\\n".encode())

def forks():
    child = os.fork()
    note("forks")
    if child:
        os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    elif HOW == "exits":
        sys.exit(3)

HOW, parent = sys.argv[1], os.getpid()
atexit.register(note, "last")
atexit.register(forks)
leave_script_process(lambda: (note("end"), os._exit(6)))
"""


@pytest.mark.parametrize("how", ["returns", "exits"])
def test_a_child_of_a_handler_at_exit_ends(how: str) -> None:
    """It calls none of the other functions, which are the parent's, nor what ends the parent."""
    printed = subprocess.run(
        [sys.executable, "-c", LEAVES, how], capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert printed.returncode == 6
    assert sorted(printed.stdout.splitlines()) == sorted(
        ["forks False", "forks True", "0", "last True", "end True"]
    )


def test_a_child_of_a_thread_of_the_script_ends() -> None:
    """It has nothing of the server on its stack: when its function returns the process ends."""
    code = """
import os, threading
from stoker.system.forks import call_in_this_process
def thread():
    global child
    child = os.fork()
def script():
    worker = threading.Thread(target=thread)
    worker.start(); worker.join()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(call_in_this_process(script))
"""
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROGRAM_S, check=True
    )
    assert printed.stdout.split() == ["0"]
