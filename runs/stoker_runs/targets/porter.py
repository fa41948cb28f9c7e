"""The engine's end of a porter: it is started by a line of Python, then answers requests over one channel.

Many requests may be under way at once (decision 29).
"""

from __future__ import annotations

import asyncio
import errno
import json
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stoker_run.archive import archive_bytes
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.background import start_thread
from stoker_runs.targets.definitions import SshSettings
from stoker_runs.targets.engine import EngineFailure

if TYPE_CHECKING:
    import asyncssh

BEGINS = b"stoker_run:"
"""How each line of the first talk begins: what login scripts print does not."""

# No quote, no newline and no variable: the login shell may be any.
_PROGRAM: Final = "import sys;exec(sys.stdin.buffer.readline())"
_Found = TypeVar("_Found")

_SOURCE = """
import hashlib, json, os, shutil, sys
def say(**said):
    sys.stdout.buffer.write({begins!r} + json.dumps(said).encode("ascii") + b"\\n")
    sys.stdout.buffer.flush()
def begin():
    if sys.version_info < (3, 6):
        say(old=sys.version.split()[0])
        return
    folder = os.path.abspath(os.path.expanduser({folder!r}))
    place = os.path.join(folder, "agents", {digest!r} + ".zip")
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder)
            os.chmod(folder, 0o700)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not os.path.isfile(place):
            say(wants={size})
            data = sys.stdin.buffer.read({size})
            if hashlib.sha256(data).hexdigest() != {digest!r}:
                return
            beside = "{{}}.{{}}".format(place, os.getpid())
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, place)
        unpacked = place[:-4]
        if not os.path.isdir(unpacked):
            import zipfile
            beside = "{{}}.{{}}".format(unpacked, os.getpid())
            with zipfile.ZipFile(place) as archive:
                archive.extractall(beside)
            try:
                os.rename(beside, unpacked)
            except OSError:
                shutil.rmtree(beside)
                if not os.path.isdir(unpacked):
                    raise
    except OSError as error:
        say(errno=error.errno, error=error.strerror, path=error.filename or place)
        return
    sys.path.insert(0, unpacked)
    from stoker_run.porter import serve
    say(folder=folder, python=sys.version.split()[0], interpreter=sys.executable, path=os.environ.get("PATH", ""))
    serve(folder)
begin()
"""


def command(*python: str) -> str:
    """Return the command line that runs the first line.

    Args:
        python: The interpreter, or the words of a command that runs one.
    """
    return f'{shlex.join(python)} -c "{_PROGRAM}"'


def first_line(folder: str, digest: str, size: int) -> bytes:
    """Return the first line: Python that installs and starts the porter.

    Args:
        folder: The target's folder on the machine; `~` is the home of the user who logs in.
    """
    source = _SOURCE.format(begins=BEGINS, folder=folder, digest=digest, size=size)
    # Texts of any language, in characters that every encoding has.
    return f"exec({source!a})\n".encode("ascii")


_FOREIGN_LINES: Final = 200
_PIECE_BYTES: Final = 1 << 18
Request = tuple[Mapping[str, Any], bytes]
"""A request, and its bytes."""


@cache
def _archive() -> bytes:
    """Return the agent's zip."""
    return archive_bytes()


class ConnectionLost(Exception):
    """The connection is lost."""


class _LocalProcess:
    """A process of this machine, as asyncssh presents those of others."""

    exit_signal = None

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self.is_closing, self.close = process.stdin.is_closing, process.stdin.close

    @property
    def exit_status(self) -> int | None:
        """Its exit status after its end."""
        return self._process.returncode

    async def wait_closed(self) -> None:
        """Wait for its end."""
        await self._process.wait()


class Porter:
    """A process on the machine that answers requests.

    Attributes:
        host: The name of the machine in messages.
        folder: The target's folder on the machine, absolute.
    """

    def __init__(
        self, process: asyncssh.SSHClientProcess[bytes] | _LocalProcess, settings: SshSettings
    ) -> None:
        self._process = process
        self._settings = settings
        self.host = settings.host
        self.folder = ""
        self.interpreter = ""
        self.path = ""
        self.archive = ""

    @classmethod
    async def begin(
        cls, connection: asyncssh.SSHClientConnection, settings: SshSettings, within: Sequence[str] = ()
    ) -> Porter:
        """Start a porter on a machine that SSH reaches, and send the agent's zip if the machine lacks it.

        Args:
            within: The command that runs Python, instead of the target's interpreter.

        Raises:
            EngineFailure: There is no Python, or no room.
            ConnectionLost: The connection is gone.
        """
        line = command(*(within or (settings.python,)))
        porter = cls(await connection.create_process(line, encoding=None), settings)
        await porter._install()
        return porter

    @classmethod
    async def begin_here(
        cls, within: Sequence[str], settings: SshSettings, environ: Mapping[str, str]
    ) -> Porter:
        """Start a porter by a command of this machine, as `begin` does on another one.

        Args:
            within: The command that runs Python.
        """
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *within, "-c", _PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe, env=environ
        )
        porter = cls(_LocalProcess(process), settings)
        await porter._install()
        return porter

    async def _install(self) -> None:
        archive = _archive()
        digest = sha256(archive).hexdigest()
        self._process.stdin.write(first_line(self._settings.folder, digest, len(archive)))
        line = await self._next_line()
        if "wants" in line:
            self._process.stdin.write(archive)
            line = await self._next_line()
        if "errno" in line:
            raise self._failure(line)
        if "old" in line:
            raise self._no_python(f"{self._settings.python} there is Python {line['old']}")
        self.folder, self.interpreter, self.path = (
            str(line[name]) for name in ("folder", "interpreter", "path")
        )
        self.archive = f"{self.folder}/agents/{digest}.zip"

    async def _next_line(self) -> dict[str, Any]:
        """Return the porter's next line; skip lines that login scripts print."""
        for _ in range(_FOREIGN_LINES):
            line = await self._process.stdout.readline()
            at = line.find(BEGINS)
            if at >= 0 and line.endswith(b"\n"):
                found: dict[str, Any] = json.loads(line[at + len(BEGINS) :])
                return found
            if not line:
                break
        complaint = (await self._process.stderr.read()).decode("utf-8", "replace").strip()
        await self._process.wait_closed()
        if self._process.exit_status is None and self._process.exit_signal is None:
            raise ConnectionLost("the connection was cut")
        last = complaint.rpartition("\n")[2] or f"it ended with status {self._process.exit_status}"
        raise self._no_python(last)

    def _no_python(self, complaint: str) -> EngineFailure:
        return EngineFailure(
            f"no Python from 3.6 up can be run on {self._settings.host}: {complaint}",
            f"install python3 there, or name it: python: /path/to/python3 in targets/{self._settings.name}.yaml",
        )

    async def ask(self, data: bytes = b"", /, **request: Any) -> tuple[dict[str, Any], bytes]:
        """Send one request; return the answer and its bytes.

        Raises:
            EngineFailure: It cannot be done.
            ConnectionLost: The connection is gone.
        """
        answers = [answer async for answer in self.exchange([(request, data)])]
        return answers[0]

    async def exchange(
        self, requests: Iterable[Request], sent: Callable[[int], None] = lambda _: None
    ) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
        """Send requests without waiting for each answer, and yield the answers in order.

        Args:
            requests: The requests, taken as the connection accepts them.
            sent: Called with the number of bytes sent.

        Yields:
            The answers, in order.

        Raises:
            EngineFailure: One cannot be done; the rest was not looked at.
            ConnectionLost: The connection is gone.
        """
        awaited: asyncio.Queue[bool] = asyncio.Queue()
        asking = asyncio.ensure_future(self._send(requests, awaited, sent))
        # Where the connection breaks, whoever reads says so too.
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            while await awaited.get():
                reply, data = await self._frame()
                if "errno" in reply:
                    raise self._failure(reply)
                yield reply, data
            await asking
        finally:
            if not asking.done():
                # Half of a conversation is no good for the next one.
                asking.cancel()
                self.close()

    async def _send(
        self, requests: Iterable[Request], awaited: asyncio.Queue[bool], sent: Callable[[int], None]
    ) -> None:
        try:
            for request, data in requests:
                content = json.dumps(request).encode("ascii")
                self._process.stdin.write(b"%d %d\n" % (len(content), len(data)) + content)
                awaited.put_nowait(True)
                for begin in range(0, len(data), _PIECE_BYTES):
                    self._process.stdin.write(data[begin : begin + _PIECE_BYTES])
                    await self._process.stdin.drain()
                await self._process.stdin.drain()
                sent(len(data))
        finally:
            awaited.put_nowait(False)

    async def _frame(self) -> tuple[dict[str, Any], bytes]:
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise ConnectionLost("the connection was cut")
        length, size = map(int, line.split())
        content, data = await self._bytes(length), await self._bytes(size)
        return json.loads(content), data

    async def _bytes(self, count: int) -> bytes:
        pieces = []
        while count:
            piece = await self._process.stdout.read(min(count, _PIECE_BYTES))
            if not piece:
                raise ConnectionLost("the connection was cut")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    @property
    def is_there(self) -> bool:
        """Whether the porter can take requests."""
        return not (self._process.is_closing() or self._process.stdout.at_eof())

    def close(self) -> None:
        """Close the porter."""
        self._process.close()

    async def wait_closed(self) -> None:
        """Wait until the porter has ended."""
        await self._process.wait_closed()

    async def call_blocking(self, work: Callable[[BlockingPorter], _Found]) -> _Found:
        """Run a function that blocks, on a thread beside this loop."""
        blocking = BlockingPorter(self)
        return await asyncio.wrap_future(start_thread(lambda: work(blocking)))

    def _failure(self, reply: Mapping[str, Any]) -> EngineFailure:
        number, problem = reply["errno"], str(reply["error"])
        host, where = self._settings.host, reply.get("path") or self._settings.folder
        if number in (errno.ENOSPC, errno.EDQUOT):
            return EngineFailure(
                f"the disk of {host} is full: {where} cannot be written",
                "make room there, or name a folder on another disk: folder: in "
                f"targets/{self._settings.name}.yaml",
            )
        if number is None:
            last = problem.strip().rpartition("\n")[2]
            message, details = f"the agent on {host} has failed: {last}", {"traceback": problem}
            return EngineFailure(message, code=FailureCode.INTERNAL, details=details)
        hint = ""
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = f"name a folder that may be written to: folder: in targets/{self._settings.name}.yaml"
        return EngineFailure(f"{where} on {host}: {problem}", hint)


class BlockingPorter:
    """A porter for a function that blocks."""

    def __init__(self, porter: Porter) -> None:
        self.porter = porter
        self._loop = asyncio.get_running_loop()

    def ask(self, data: bytes = b"", /, **request: Any) -> tuple[dict[str, Any], bytes]:
        """Send one request; return the answer and its bytes."""
        return asyncio.run_coroutine_threadsafe(self.porter.ask(data, **request), self._loop).result()
