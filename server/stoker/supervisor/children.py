"""Child processes of the supervisor, each with a control channel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from stoker.control.channel import Codec, ControlChannel
from stoker.environments.variables import variables_for
from stoker.system import module_process
from stoker.system.logs import LOG_FORMAT_VARIABLE, log_format
from stoker.system.processes import LAST_STACKS_SIGNAL, STACKS_SIGNAL, ExitCode, be_expendable
from stoker.system.resources import MemoryKills

logger = logging.getLogger(__name__)

_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")

# On busy cores a process that yields may not be scheduled for a while.
_STACKS_S: Final = 2.0
_LAST_STACKS_S: Final = 1.0
_KILLS: Final = MemoryKills()
_KEY: Final = re.compile(r"STOKER_\w+_KEY")

_ENVIRONMENT: Final = {
    # glibc would map and unmap the memory of each body above 128 KiB, and fault in all its pages again (decision 12).
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}


def _without_keys(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not _KEY.fullmatch(name)}


class Child(Generic[_Sent, _Received]):
    """One running process. `on_message` is called for each of its messages, `on_exit` once."""

    def __init__(
        self,
        name: str,
        module: str,
        channel: ControlChannel[_Sent, _Received],
        process: asyncio.subprocess.Process,
    ) -> None:
        self.name = name
        self.module = module
        self.channel = channel
        self.process = process
        self.started_s = asyncio.get_running_loop().time()
        self.out_of_memory = False
        """Whether the kernel has killed it for want of memory."""
        self._killed = False

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        codec: Codec[_Sent, _Received],
        on_message: Callable[[Child[_Sent, _Received], _Received], None],
        on_exit: Callable[[Child[_Sent, _Received]], None],
        *,
        interpreter: Path | None = None,
        defaults: Mapping[str, str] = MappingProxyType({}),
        variables: Mapping[str, str] = MappingProxyType({}),
        expendable: int = 100,
    ) -> Child[_Sent, _Received]:
        """Run a module with `--control-fd N` in a session of its own: Ctrl-C is handled by the supervisor.

        Its environment is this process's with `variables` added, `defaults` where it has none, and keys removed:
        frontends get keys by message, and an entry script that prints its environment must not print them into the
        log. When memory runs out, the kernel prefers to kill it over this process, as if it used `expendable`
        thousandths more of the memory.
        """
        python = interpreter or Path(sys.executable)
        channel, far = ControlChannel.pair(codec)
        try:
            process = await asyncio.create_subprocess_exec(
                python,
                # A folder of the operator must not take precedence over the installed packages.
                "-P",
                "-m",
                module_process.__name__,
                module,
                "--control-fd",
                str(far.fileno()),
                pass_fds=(far.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                # Unbuffered, so that what an entry script prints is in the log at that time.
                env={
                    **_ENVIRONMENT,
                    **defaults,
                    **variables_for(python, {**_without_keys(os.environ), **variables}),
                    "PYTHONUNBUFFERED": "1",
                    # All processes log in the same format.
                    LOG_FORMAT_VARIABLE: log_format(),
                },
            )
        finally:
            far.close()
        be_expendable(expendable, process.pid)
        child = cls(name, module, channel, process)
        child._watch(on_message, on_exit)
        return child

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self.started_s

    @property
    def is_blameless(self) -> bool:
        """Whether no code of its own ended it: nothing sends SIGKILL to itself, and anything may lack memory."""
        return self.process.returncode in (-signal.SIGKILL, ExitCode.NO_MEMORY)

    def describe_exit(self) -> str:
        """Describe in words how it ended."""
        code = self.process.returncode
        if code is None:
            return "is running"
        if code < 0:
            # Real-time signals have no names, except for the first and the last.
            known = {number.value: number.name for number in signal.Signals}
            why = " by the kernel, which had no memory left: it needs more, or less may run here"
            return f"was ended by {known.get(-code, f'signal {-code}')}{why if self.out_of_memory else ''}"
        return "exited for lack of memory" if code == ExitCode.NO_MEMORY else f"exited with code {code}"

    def send(self, message: _Sent, fds: Sequence[int] = ()) -> None:
        """Send it a message; if that fails, it is killed, because its successor is told everything anew."""
        try:
            self.channel.send(message, fds)
        except OSError as error:
            kind = type(message).__name__
            logger.error("%s cannot be sent a message (%s), killing it: %s", self.name, kind, error)  # noqa: TRY400
            self.kill()

    async def end(self, timeout_s: float, *, busy: bool = False) -> None:
        """Close the control channel, which tells the process to exit; kill it if it does not.

        Args:
            busy: Whether it may be importing or loading, and so not listening: killing it is not logged as a fault
                then.
        """
        self._stop_reading()
        self.channel.close()
        try:
            await asyncio.wait_for(self.process.wait(), timeout_s)
        except TimeoutError:
            if not busy:
                logger.warning("%s does not end, killing it", self.name)
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """Kill it at once, with the processes that it has started."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def dump_stacks(self) -> None:
        """Have a process log the stacks of its threads."""
        self._send_signal(STACKS_SIGNAL)

    def dump_stacks_and_kill(self) -> None:
        """Have a process log the stacks of its threads, then kill it as `kill` does."""
        call_later = asyncio.get_running_loop().call_later

        def ask_again() -> None:
            if self.process.returncode is None:
                self._send_signal(LAST_STACKS_SIGNAL)
                call_later(_LAST_STACKS_S, end)

        def end() -> None:
            if self.process.returncode is None:
                self.kill()

        self.dump_stacks()
        call_later(_STACKS_S, ask_again)

    def _send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _watch(
        self,
        on_message: Callable[[Child[_Sent, _Received], _Received], None],
        on_exit: Callable[[Child[_Sent, _Received]], None],
    ) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                received = self.channel.receive()
            except OSError as error:
                logger.error("a message of %s is lost, killing it: %s", self.name, error)  # noqa: TRY400
                received = None
                self.kill()
            if received is None:
                self._stop_reading()
                return
            on_message(self, received[0])

        async def wait() -> None:
            status = await self.process.wait()
            self.out_of_memory = not self._killed and _KILLS.explain(status)
            # Its last messages are still in the channel, which its own child processes may keep open.
            with contextlib.suppress(OSError):
                while not self._ended and (received := self.channel.receive()) is not None:
                    on_message(self, received[0])
            self._stop_reading()
            self.channel.close()
            self.kill()
            on_exit(self)

        self._ended = False
        loop.add_reader(self.channel.fileno(), read)
        self._waiter = loop.create_task(wait())

    def _stop_reading(self) -> None:
        if not self._ended:
            self._ended = True
            asyncio.get_running_loop().remove_reader(self.channel.fileno())
