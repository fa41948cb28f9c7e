"""The generation of a workspace's keys, which changes with every key, and how running servers learn of a change.

keys/generation            a counter of 8 bytes
keys/.followers/ID         the socket of a running server

Frontends compare the generation before every verification (decision 7), so it has to be a read of memory. That memory
belongs to
the server alone, because a mapped file ends its readers by SIGBUS as soon as anyone truncates it. The `Follower` of a
supervisor writes it. Commands that change a key call `raise_generation`, which waits for every follower: when
a command returns, all frontends see its change. Other changes, such as a restored backup, are seen within a second.

The module is imported by frontends, so it needs nothing beyond the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from stoker.system.durable import private_folder, read_regular

_FILE: Final = "generation"
_BYTES: Final = 8
_FOLLOWERS: Final = ".followers"
_CHECK_S: Final = 1.0
_WORD_S: Final = 2.0
_WAITING: Final = 64

_log = logging.getLogger(__name__)


class Generation(Protocol):
    """A number at index 0 that changes when a key or a signing secret does."""

    def __getitem__(self, index: int, /) -> int:
        """Return the number."""


class FileGeneration:
    """The generation from the file alone, for processes that have no follower."""

    def __init__(self, keys_dir: Path) -> None:
        self._path = keys_dir / _FILE

    def __getitem__(self, index: int, /) -> int:
        """Return the number; 0 without a file."""
        try:
            return int.from_bytes(read_regular(self._path, _BYTES), sys.byteorder)
        except OSError:
            return 0


def raise_generation(keys_dir: Path) -> None:
    """Increment the counter and wait for the running servers, which are notified even if this raises OSError.

    The caller holds the folder's lock.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(keys_dir / _FILE, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file; remove it", str(keys_dir / _FILE))
            before = int.from_bytes(os.pread(descriptor, _BYTES, 0), sys.byteorder)
            after = (before + 1) % (1 << 8 * _BYTES)
            os.pwrite(descriptor, after.to_bytes(_BYTES, sys.byteorder), 0)
        finally:
            os.close(descriptor)
    finally:
        _notify_followers(keys_dir)


def _notify_followers(keys_dir: Path) -> None:
    with _sockets(keys_dir) as (folder, names):
        for name in names:
            try:
                _connect(folder, name)
            except (ConnectionRefusedError, FileNotFoundError):
                # Its server has ended, or runs on another machine and checks the file by itself.
                continue
            except OSError as error:
                _log.warning(
                    "a running server does not answer (%s); its frontends follow when it does", error
                )


def _connect(folder: int, name: str) -> None:
    """Notify one follower, and wait until its frontends see the change."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as follower:
        follower.settimeout(_WORD_S)
        # Addresses of sockets have 107 bytes at most, paths of workspaces more.
        follower.connect(f"/proc/self/fd/{folder}/{name}")
        follower.recv(1)


@contextlib.contextmanager
def _sockets(keys_dir: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the folder of the followers' sockets and their names; no names without a folder."""
    try:
        folder = os.open(keys_dir / _FOLLOWERS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield -1, []
        return
    try:
        # A new socket has a dot before its name until it listens.
        yield folder, [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208
    finally:
        os.close(folder)


class Follower:
    """Follows the keys of a workspace on a thread, and raises a number in memory at each change.

    Args:
        number: Memory of one number that only this object writes.
    """

    def __init__(self, keys_dir: Path, number: memoryview, check_s: float = _CHECK_S) -> None:
        self._keys_dir, self._number, self._check_s = keys_dir, number, check_s
        self._name = os.urandom(8).hex()
        self._ending, self._end = socket.socketpair()
        self._socket: socket.socket | None = None
        self._seen = self._mark()
        self._listen()
        self._thread = threading.Thread(target=self._run, name="following keys", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._end.close()
        self._thread.join()
        self._ending.close()
        self._close_socket()

    def check(self) -> None:
        """Raise the number if a file of the folder has changed since the last check."""
        mark = self._mark()
        if mark != self._seen:
            self._raise(mark)
        if self._socket is None or not (self._keys_dir / _FOLLOWERS / self._name).exists():
            self._listen()

    def _raise(self, mark: object) -> None:
        # Later changes are found by the next check.
        self._seen = mark
        self._number[0] += 1

    def _run(self) -> None:
        while True:
            # Not `select`, which takes no descriptor above 1023.
            heard = select.poll()
            heard.register(self._ending, select.POLLIN)
            if self._socket is not None:
                heard.register(self._socket, select.POLLIN)
            ready = [descriptor for descriptor, _ in heard.poll(self._check_s * 1000)]
            if self._ending.fileno() in ready:
                return
            try:
                if ready:
                    self._answer()
                else:
                    self.check()
            except OSError as error:
                _log.warning("the keys in %s cannot be looked at: %s", self._keys_dir, error)

    def _answer(self) -> None:
        assert self._socket is not None, "it was ready"
        asker, _ = self._socket.accept()
        with asker:
            self._raise(self._mark())
            with contextlib.suppress(OSError):
                asker.send(b"\n")

    def _mark(self) -> object:
        """Return a value that changes with every file of the folder, however it is written."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self._keys_dir) as entries:
            for entry in entries:
                if entry.name not in (_FOLLOWERS, ".lock"):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((entry.name, facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return sorted(found)

    def _listen(self) -> None:
        """Create the socket, and remove those of servers that have ended."""
        self._close_socket()
        if not self._keys_dir.is_dir():
            return
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            private_folder(self._keys_dir / _FOLLOWERS)
            with _sockets(self._keys_dir) as (folder, names):
                self._sweep(folder, names)
                made.bind(f"/proc/self/fd/{folder}/.{self._name}")
                os.chmod(f".{self._name}", 0o600, dir_fd=folder)
                made.listen(_WAITING)
                os.rename(f".{self._name}", self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            # Not every file system has sockets.
            made.close()
            _log.debug("changed keys take a second to hold: %s", error)
            return
        self._socket = made

    @staticmethod
    def _sweep(folder: int, names: list[str]) -> None:
        for name in names:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
                other.setblocking(False)
                try:
                    other.connect(f"/proc/self/fd/{folder}/{name}")
                except ConnectionRefusedError:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=folder)
                except OSError:
                    continue

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                (self._keys_dir / _FOLLOWERS / self._name).unlink()
