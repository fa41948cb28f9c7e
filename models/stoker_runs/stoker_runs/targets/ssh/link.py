"""The connection to a machine: made when it is needed, made again when it was cut, with reasons when it cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache
from threading import Thread
from typing import Any, Final, TypeVar

import asyncssh

from stoker_runs.records.failures import FailureCode, RunFailure
from stoker_runs.targets.engine import EngineFailure, Unreachable
from stoker_runs.targets.ssh.host_keys import HostKeys
from stoker_runs.targets.ssh.porter import Cut, Porter
from stoker_runs.targets.ssh.settings import SshSettings

__all__ = ["Link"]

_CONNECT_S: Final = 15.0
_ANSWER_S: Final = 15.0
_BEGIN_S: Final = 60.0
"""How long a container may take to begin."""
_KEEP_ALIVE_S: Final = 5.0
_KEEP_ALIVES: Final = 3
_Found = TypeVar("_Found")


class Link:
    """The connection to one machine, for functions that block; safe to use from several threads.

    Args:
        settings: How the machine is reached.
    """

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._open = _Open()
        # An engine that nobody has any more leaves no connection.
        weakref.finalize(self, _close, self._open)

    def call(
        self, work: Callable[[Porter], Awaitable[_Found]], *, timeout_s: float | None = _ANSWER_S
    ) -> _Found:
        """Have a porter of the machine do something; connects where that was not done, or the connection was cut.

        Args:
            work: What.
            timeout_s: After how long without an end the connection counts as cut; None where only silence counts.

        Raises:
            Unreachable: The machine does not answer.
            EngineFailure: It answers, but will not, or cannot, do it.
        """
        return asyncio.run_coroutine_threadsafe(self._do(self._porter(), work, timeout_s), _loop()).result()

    def call_within(
        self, command: Sequence[str], folder: str, work: Callable[[Porter], Awaitable[_Found]]
    ) -> _Found:
        """Have a porter do something that is run by a command of the machine, and ends with the work.

        Args:
            command: Runs its Python.
            folder: Where everything of runs is there, absolute.
            work: What.

        Raises:
            Unreachable: The machine does not answer.
            EngineFailure: It answers, but will not, or cannot, do it.
        """
        porter = self._porter_within(command, folder)
        return asyncio.run_coroutine_threadsafe(self._do(porter, work, None), _loop()).result()

    def host_key(self) -> str:
        """The public key of the machine, as in `known_hosts`; connects, but logs nobody in where it is connected.

        Raises:
            EngineFailure: It cannot be connected to.
        """

        async def shown(_: Porter) -> str:
            connection = self._open.connection
            key = connection.get_server_host_key() if connection is not None else None
            return "" if key is None else key.export_public_key().decode("ascii").strip()

        return " ".join(self.call(shown).split()[:2])

    async def _do(
        self,
        found: contextlib.AbstractAsyncContextManager[Porter],
        work: Callable[[Porter], Awaitable[_Found]],
        timeout_s: float | None,
    ) -> _Found:
        try:
            async with found as porter, asyncio.timeout(timeout_s):
                return await work(porter)
        except (Cut, TimeoutError, OSError, asyncssh.DisconnectError, asyncssh.ChannelOpenError) as error:
            self._open.abort()
            reason = str(error) or f"nothing was heard for {timeout_s or 0:g} s"
            raise Unreachable(
                RunFailure(
                    FailureCode.TARGET_UNUSABLE,
                    f"{self._settings.host} does not answer: {reason}",
                    f"stoker targets check {self._settings.name}",
                )
            ) from error

    @contextlib.asynccontextmanager
    async def _porter(self) -> AsyncIterator[Porter]:
        """One that nobody else uses meanwhile."""
        connection = await self._connection()
        porter = None
        while self._open.idle and porter is None:
            kept = self._open.idle.pop()
            porter = kept if kept.is_there else None
        if porter is None:
            async with asyncio.timeout(_CONNECT_S):
                porter = await Porter.begin(connection, self._settings)
        try:
            yield porter
        except EngineFailure:
            # Its requests behind the one that has failed are not answered any more.
            porter.close()
            raise
        if connection is self._open.connection:
            self._open.idle.append(porter)

    @contextlib.asynccontextmanager
    async def _porter_within(self, command: Sequence[str], folder: str) -> AsyncIterator[Porter]:
        connection = await self._connection()
        async with asyncio.timeout(_BEGIN_S):
            porter = await Porter.begin(connection, replace(self._settings, folder=folder), command)
        try:
            yield porter
        finally:
            porter.close()

    async def _connection(self) -> asyncssh.SSHClientConnection:
        async with self._open.lock:
            if self._open.connection is None or self._open.connection.is_closed():
                self._open.abort()
                self._open.connection = await self._connected()
            return self._open.connection

    async def _connected(self) -> asyncssh.SSHClientConnection:
        settings = self._settings
        keys = HostKeys(settings)
        for algorithms in keys.algorithms():
            try:
                return await asyncssh.connect(**_options(settings, keys, algorithms))
            except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed):
                continue
            except asyncssh.PermissionDenied as error:
                raise _refused(settings) from error
            except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
                raise _unusable_key(settings, error) from error
            except (OSError, asyncssh.Error) as error:
                if algorithms:
                    # It has no such key.
                    continue
                if getattr(error, "filename", None):
                    raise _unusable_key(settings, error) from error
                raise _unreachable(settings, error) from error
        raise EngineFailure(keys.refusal())


class _Open:
    """What is open: the connection, and porters that nobody uses now."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.connection: asyncssh.SSHClientConnection | None = None
        self.idle: list[Porter] = []

    def abort(self) -> None:
        """Give the connection up: nothing more is sent."""
        if self.connection is not None:
            self.connection.abort()
        self.connection, self.idle = None, []


# Of each connection it would tell a dozen lines.
asyncssh.set_log_level("WARNING")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all connections of this process, on a thread of its own."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="ssh", daemon=True).start()
    return loop


def _close(opened: _Open) -> None:
    async def close() -> None:
        connection = opened.connection
        opened.abort()
        if connection is not None:
            await connection.wait_closed()

    if opened.connection is not None:
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(close(), _loop()).result(1.0)


def _options(settings: SshSettings, keys: HostKeys, algorithms: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "host": settings.address,
        "known_hosts": keys.known_hosts,
        "client_factory": keys.client,
        "server_host_key_algs": algorithms,
        "connect_timeout": _CONNECT_S,
        "login_timeout": _CONNECT_S,
        "keepalive_interval": _KEEP_ALIVE_S,
        "keepalive_count_max": _KEEP_ALIVES,
    }
    if settings.port is not None:
        options["port"] = settings.port
    if settings.username:
        options["username"] = settings.username
    if settings.key_file:
        # No other key is shown: some machines end the talk after a few.
        options |= {"client_keys": [settings.key_file], "agent_path": None}
    elif settings.password:
        options |= {"client_keys": None, "agent_path": None}
    if settings.passphrase:
        options["passphrase"] = settings.passphrase
    if settings.password:
        options["password"] = settings.password
    return options


def _refused(settings: SshSettings) -> EngineFailure:
    who = f"{settings.username}@{settings.host}" if settings.username else settings.host
    if settings.key_file:
        what, mend = f"the key {settings.key_file}", "add its public key to ~/.ssh/authorized_keys there"
    elif settings.password:
        what = "the password"
        mend = f"give the right one: {settings.attach_line('--ask-password')}"
    else:
        what = "every key of the SSH agent and of ~/.ssh"
        mend = f"let a key in there, or give the password: {settings.attach_line('--ask-password')}"
    return EngineFailure(RunFailure(FailureCode.TARGET_UNUSABLE, f"{who} has refused {what}", mend))


def _unusable_key(settings: SshSettings, error: Exception) -> EngineFailure:
    if isinstance(error, OSError):
        said, mend = error.strerror or str(error), "is the path right?"
    else:
        said, mend = str(error), f"with a passphrase: {settings.attach_line('--ask-passphrase')}"
    return EngineFailure(
        RunFailure(
            FailureCode.TARGET_UNUSABLE,
            f"the private key {settings.key_file or 'in ~/.ssh'} cannot be used: {said}",
            mend,
        )
    )


def _unreachable(settings: SshSettings, error: BaseException) -> Unreachable:
    if isinstance(error, socket.gaierror):
        said, hint = "there is no machine of this name", "is the address spelled right?"
    elif isinstance(error, ConnectionRefusedError):
        said, hint = "the connection was refused", "does an SSH server listen there, on that port?"
    elif isinstance(error, TimeoutError):
        said = f"nothing was heard for {_CONNECT_S:g} s"
        hint = "is the machine on, and does the network let you through?"
    elif isinstance(error, OSError):
        said, hint = error.strerror or str(error), "is the machine on?"
    else:
        said, hint = str(error) or type(error).__name__, "is that an SSH server?"
    return Unreachable(
        RunFailure(FailureCode.TARGET_UNUSABLE, f"{settings.host} cannot be reached: {said}", hint)
    )
