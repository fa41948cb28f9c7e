"""The connection to a machine: made when it is needed, made again when it was cut, with reasons when it cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar

import asyncssh

from stoker_runs.targets.definitions import SshSettings
from stoker_runs.targets.engine import EngineFailure, Unreachable
from stoker_runs.targets.porter import ConnectionLost, Porter

_SYSTEM_WIDE: Final = Path("/etc/ssh/ssh_known_hosts")
_ALGORITHMS: Final = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
)


class HostKeys:
    """The known host keys of a machine, and the keys that it has shown."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._pinned_key: asyncssh.SSHKey | None = None
        if settings.host_key and not settings.host_key.startswith("SHA256:"):
            self._pinned_key = _public_key(settings)
        self._known: Sequence[asyncssh.SSHKey] = ()
        self._shown: list[asyncssh.SSHKey] = []

    @property
    def accepted(self) -> asyncssh.SSHKey | None:
        """The shown key that matches the target's fingerprint, or None."""
        return next((key for key in self._shown if self._is_meant(key)), None)

    def client(self) -> asyncssh.SSHClient:
        """Return the client that asyncssh asks about unknown keys."""
        return _Client(self._shown, self._is_meant)

    def known_hosts(self, host: str, address: str, port: int | None) -> Sequence[Any]:
        """Keys of the machine for asyncssh: the one of the target, else those of the user's and the system's files.

        Raises:
            ValueError: A file of known hosts is not as it should be.
        """
        if self._settings.host_key:
            return ([self._pinned_key] if self._pinned_key is not None else [], [], [])
        files = [
            str(path) for path in (Path("~/.ssh/known_hosts").expanduser(), _SYSTEM_WIDE) if path.is_file()
        ]
        found = asyncssh.match_known_hosts(files or b"", host, address, port)
        self._known = found[0]
        return found

    def algorithms(self) -> Sequence[Any]:
        """Return the kinds of host keys to request in turn: a fingerprint may be of any kind."""
        by_fingerprint = bool(self._settings.host_key) and self._pinned_key is None
        return ((), *([name] for name in _ALGORITHMS)) if by_fingerprint else ((),)

    def refusal(self) -> EngineFailure:
        """Return why the machine is refused, and what to do."""
        host = self._settings.host
        shown = " and ".join(dict.fromkeys(map(_named, self._shown))) or "a key of another kind"
        fingerprint = _fingerprint(self._shown[0]) if self._shown else "SHA256:FINGERPRINT"
        again = self._settings.attach_line("--host-key", fingerprint)
        if self._settings.host_key or self._known:
            was = self._settings.host_key if self._pinned_key is None else _named(self._pinned_key)
            was = was or " or ".join(map(_named, self._known))
            mend = again if self._settings.host_key else f"ssh-keygen -R '{self._in_known_hosts}' && {again}"
            return EngineFailure(
                f"the host key of {host} has changed: it shows {shown}, known is {was}; nothing was sent to it",
                "somebody may be in between, or the machine was installed anew: ask its owner for its fingerprint; "
                f"only if that is the one shown: {mend}",
            )
        return EngineFailure(
            f"the host key of {host} is not known: it shows {shown}",
            "compare that with what its owner says (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub there), then: "
            f"{again}",
        )

    @property
    def _in_known_hosts(self) -> str:
        port = self._settings.port
        return self._settings.address if port in (None, 22) else f"[{self._settings.address}]:{port}"

    def _is_meant(self, key: asyncssh.SSHKey) -> bool:
        return self._settings.host_key == _fingerprint(key)


class _Client(asyncssh.SSHClient):
    """Records the keys that the machine shows, and accepts the expected one."""

    def __init__(self, shown: list[asyncssh.SSHKey], is_meant: Callable[[asyncssh.SSHKey], bool]) -> None:
        self._shown = shown
        self._is_meant = is_meant

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Whether the key is the one meant; asked for keys that are in no file."""
        del host, addr, port
        self._shown.append(key)
        return self._is_meant(key)


def _public_key(settings: SshSettings) -> asyncssh.SSHKey:
    from stoker.errors import InvalidSettings

    try:
        return asyncssh.import_public_key(settings.host_key)
    except asyncssh.KeyImportError:
        raise InvalidSettings(
            f"compute target {settings.name}: host_key is neither a public key (ssh-ed25519 AAAA…) nor a "
            "fingerprint (SHA256:…)"
        ) from None


def _fingerprint(key: asyncssh.SSHKey) -> str:
    return str(key.get_fingerprint())


def _named(key: asyncssh.SSHKey) -> str:
    return f"{key.get_algorithm()} {_fingerprint(key)}"


_CONNECT_S: Final = 15.0
_ANSWER_S: Final = 15.0
_BEGIN_S: Final = 60.0
"""How long a container may take to begin."""
_KEEP_ALIVE_S: Final = 5.0
_KEEP_ALIVES: Final = 3
_Found = TypeVar("_Found")


class Link:
    """The connection to one machine, for functions that block; safe to use from several threads."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._open = _OpenConnection()
        # An engine that nobody has any more leaves no connection.
        weakref.finalize(self, _close, self._open)

    def call(
        self, work: Callable[[Porter], Awaitable[_Found]], *, timeout_s: float | None = _ANSWER_S
    ) -> _Found:
        """Run work with a porter of the machine; connect if there is no connection.

        Args:
            timeout_s: Time limit of the work, after which the connection counts as lost; None for no limit.

        Raises:
            Unreachable: The machine does not answer.
            EngineFailure: It answers, but will not, or cannot, do it.
        """
        return asyncio.run_coroutine_threadsafe(self._do(self._porter(), work, timeout_s), _loop()).result()

    def ask(
        self, data: bytes = b"", /, *, timeout_s: float | None = _ANSWER_S, **request: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Send one request to a porter of the machine; return the answer and its bytes.

        Raises:
            Unreachable: The machine does not answer.
            EngineFailure: It answers, but will not, or cannot, do it.
        """
        return self.call(lambda porter: porter.ask(data, **request), timeout_s=timeout_s)

    def call_in_command(
        self, command: Sequence[str], folder: str, work: Callable[[Porter], Awaitable[_Found]]
    ) -> _Found:
        """Run work with a porter that a command of the machine starts, and that ends with the work.

        Args:
            folder: The target's folder on the machine, absolute.

        Raises:
            Unreachable: The machine does not answer.
            EngineFailure: It answers, but will not, or cannot, do it.
        """
        porter = self._porter_in_command(command, folder)
        return asyncio.run_coroutine_threadsafe(self._do(porter, work, None), _loop()).result()

    def host_key(self) -> str:
        """The public key of the machine, as in `known_hosts`; connects, but logs nobody in where it is connected."""

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
        except (
            ConnectionLost,
            TimeoutError,
            OSError,
            asyncssh.DisconnectError,
            asyncssh.ChannelOpenError,
        ) as error:
            self._open.abort()
            reason = str(error) or f"nothing was heard for {timeout_s or 0:g} s"
            raise Unreachable(
                f"{self._settings.host} does not answer: {reason}",
                f"stoker targets check {self._settings.name}",
            ) from error

    @contextlib.asynccontextmanager
    async def _porter(self) -> AsyncIterator[Porter]:
        """Yield a porter for exclusive use."""
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
    async def _porter_in_command(self, command: Sequence[str], folder: str) -> AsyncIterator[Porter]:
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
        raise keys.refusal()


class _OpenConnection:
    """The open connection, and idle porters."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.connection: asyncssh.SSHClientConnection | None = None
        self.idle: list[Porter] = []

    def abort(self) -> None:
        """Abort the connection without sending more."""
        if self.connection is not None:
            self.connection.abort()
        self.connection, self.idle = None, []


# Of each connection it would tell a dozen lines.
asyncssh.set_log_level("WARNING")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all connections of this process, which runs on its own thread."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="ssh", daemon=True).start()
    return loop


def _close(opened: _OpenConnection) -> None:
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
    user = f"{settings.username}@{settings.host}" if settings.username else settings.host
    if settings.key_file:
        credential, mend = (
            f"the key {settings.key_file}",
            "add its public key to ~/.ssh/authorized_keys there",
        )
    elif settings.password:
        credential = "the password"
        mend = f"give the right one: {settings.attach_line('--ask-password')}"
    else:
        credential = "every key of the SSH agent and of ~/.ssh"
        mend = f"let a key in there, or give the password: {settings.attach_line('--ask-password')}"
    return EngineFailure(f"{user} has refused {credential}", mend)


def _unusable_key(settings: SshSettings, error: Exception) -> EngineFailure:
    if isinstance(error, OSError):
        problem, mend = error.strerror or str(error), "is the path right?"
    else:
        problem, mend = str(error), f"with a passphrase: {settings.attach_line('--ask-passphrase')}"
    return EngineFailure(
        f"the private key {settings.key_file or 'in ~/.ssh'} cannot be used: {problem}", mend
    )


def _unreachable(settings: SshSettings, error: BaseException) -> Unreachable:
    if isinstance(error, socket.gaierror):
        problem, hint = "there is no machine of this name", "is the address spelled right?"
    elif isinstance(error, ConnectionRefusedError):
        problem, hint = "the connection was refused", "does an SSH server listen there, on that port?"
    elif isinstance(error, TimeoutError):
        problem = f"nothing was heard for {_CONNECT_S:g} s"
        hint = "is the machine on, and does the network let you through?"
    elif isinstance(error, OSError):
        problem, hint = error.strerror or str(error), "is the machine on?"
    else:
        problem, hint = str(error) or type(error).__name__, "is that an SSH server?"
    return Unreachable(f"{settings.host} cannot be reached: {problem}", hint)
