"""The spool: requests that wait on disk for their answers, and answers that wait for their callers.

One file is one request or one answer. It is written under a temporary name, flushed, given its name, and its folder
is flushed; so a file that has its name is whole, whatever was killed. A digest finds damage.

Several processes, also of two servers during a reload, share the folder. A process runs a request while it holds a
lock on the file, which the kernel releases when the process dies. One file of counters says how much there is; it is
changed under a lock, and counted anew by each sweep.

All methods block on the disk: call them on a thread.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import math
import os
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from stoker.control.frontend_messages import LaterRules
from stoker.errors import AnswerExpired, IdempotencyKeyReused, NotFound, SpoolFull
from stoker.system.durable import lock_file, private_folder, replace_file, sync_folder

ID_CHARS: Final = 32
OWNER_CHARS: Final = 8
"""An id begins with what its sender's ids have in common, so that senders can take turns."""
_ATTEMPT_CHARS: Final = 8
_DIGEST_CHARS: Final = 64
_PREFIX_BYTES: Final = _ATTEMPT_CHARS + 1 + _DIGEST_CHARS + 1
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_RETRY_S: Final = 5
_SHARES_S: Final = 1.0
_SECRET: Final = b"whsec_"


class Stored(NamedTuple):
    """The content of a file.

    Attributes:
        attempt: How often the request has been given to the server.
        head: What the writer said of the body.
    """

    attempt: int
    head: dict[str, Any]
    body: bytes


class Claim(NamedTuple):
    """A request that this process runs, until the claim is finished or released; `descriptor` holds the lock."""

    id: str
    descriptor: int
    attempt: int
    size_bytes: int


@dataclass(slots=True)
class Usage:
    """The counters of a spool, over all processes and restarts."""

    waiting: int = 0
    answers: int = 0
    size_bytes: int = 0
    accepted: int = 0
    answered: int = 0
    expired: int = 0
    cancelled: int = 0
    callbacks: int = 0
    callbacks_failed: int = 0


_USAGE: Final = struct.Struct(f"={len(fields(Usage))}q")


class DamagedFile(Exception):
    """A file of the spool is not what was written."""


class Spool:
    """The spool of a server; creates its folders.

    Args:
        clock_s: Seconds of the epoch.
    """

    def __init__(self, rules: LaterRules, clock_s: Callable[[], float] = time.time) -> None:
        self.rules = rules
        self._clock_s = clock_s
        self._shares: Counter[tuple[str, str]] = Counter()
        """Files and bytes of each owner, counted at `_shares_s`."""
        self._shares_s = -math.inf
        self._requests = private_folder(rules.folder / "requests")
        self._answers = private_folder(rules.folder / "answers")
        self._callbacks = private_folder(rules.folder / "callbacks")
        self.secret_path = rules.folder / "secret"
        """Signs callbacks, and makes ids of idempotency keys; the operator may replace it."""
        if not self.secret_path.exists():
            with contextlib.suppress(FileExistsError):
                _create_secret(self.secret_path)

    @property
    def secret(self) -> bytes:
        """The present secret: the bytes that `whsec_` and Base64 stand for, or the file's own."""
        text = self.secret_path.read_bytes().strip()
        return base64.b64decode(text[len(_SECRET) :]) if text.startswith(_SECRET) else text

    def new_id(self, owner: str, idempotency_key: bytes = b"") -> str:
        """Return the id for a request of an owner: random, or the same for the same key."""
        group = hashlib.sha256(owner.encode()).hexdigest()[:OWNER_CHARS]
        if not idempotency_key:
            return group + secrets.token_hex((ID_CHARS - OWNER_CHARS) // 2)
        keyed = hmac.new(self.secret, owner.encode() + b"\0" + idempotency_key, "sha256")
        return group + keyed.hexdigest()[: ID_CHARS - OWNER_CHARS]

    def add(self, name: str, head: dict[str, Any], body: bytes, *, keyed: bool = False) -> Stored | None:
        """Add a request; returns when it would survive a power cut.

        Args:
            name: Its id.
            head: It needs `expires_s`, in seconds of the epoch, and `fingerprint`, the same for equal requests.
            keyed: Whether the id is that of an idempotency key, so that others may send the same request.

        Returns:
            The earlier request with this id, if there is one; the body is empty.

        Raises:
            SpoolFull: There is no room.
            IdempotencyKeyReused: There is a request with this id and another fingerprint.
            OSError: The disk fails. A keyed request may be kept nevertheless: sent again, it is found.
        """
        try:
            return self._add(name, head, body, keyed=keyed)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise _full() from error
            raise

    def _add(self, name: str, head: dict[str, Any], body: bytes, *, keyed: bool) -> Stored | None:
        known = self._find_twin(name, head)
        if known is not None:
            return known
        content = _encode(head, body)
        staged = self._requests / f".{name}.{secrets.token_hex(8)}"
        descriptor = self._reserve(name, staged, len(content))
        request, is_linked = self._requests / name, False
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            # Not between two looks of a sweep, which would count it twice or not at all.
            with self._usage():
                # Unlike renaming, linking replaces nothing.
                request.hardlink_to(staged)
            is_linked = True
            sync_folder(self._requests)
        except BaseException as error:
            if is_linked:
                if keyed:
                    # Another sender of it may have flushed the folder meanwhile, and been told that it is kept.
                    raise
                # Its sender is refused, so it must not run.
                request.unlink(missing_ok=True)
            with self._usage() as usage:
                usage.waiting -= 1
                usage.accepted -= 1
                usage.size_bytes -= len(content)
            if isinstance(error, FileExistsError):
                return self._find_twin(name, head)
            raise
        finally:
            staged.unlink(missing_ok=True)
            os.close(descriptor)
        return None

    def _find_twin(self, name: str, head: dict[str, Any]) -> Stored | None:
        try:
            known, is_answer = self.find(name)
        except NotFound:
            return None
        except AnswerExpired:
            self.remove(name, expired=True)
            return None
        if known.head["fingerprint"] != head["fingerprint"]:
            raise IdempotencyKeyReused(
                "Another request was sent with this Idempotency-Key; choose a new key."
            )
        if not is_answer:
            # The process that wrote it may not have flushed the folder yet.
            sync_folder(self._requests)
        return known

    def _reserve(self, name: str, staged: Path, size_bytes: int) -> int:
        """Create a file of this size and return the descriptor, which holds its lock."""
        with self._usage() as usage:
            self._check_room(usage, name[:OWNER_CHARS], size_bytes)
            descriptor = _create_locked(staged)
            try:
                os.posix_fallocate(descriptor, 0, size_bytes)
            except OSError:
                os.close(descriptor)
                staged.unlink()
                raise
            usage.waiting += 1
            usage.accepted += 1
            usage.size_bytes += size_bytes
            return descriptor

    def _check_room(self, usage: Usage, owner: str, size_bytes: int) -> None:
        """Refuse a request beyond the limits, or one that would leave others too little room.

        An owner may have twice what stays free, so that no owner can fill the spool.
        """
        left = self.rules.most_requests - usage.waiting - usage.answers - 1
        left_bytes = self.rules.budget_bytes - usage.size_bytes - size_bytes
        if left < 0 or left_bytes < 0:
            raise _full()
        if usage.waiting + usage.answers < 2 * left and usage.size_bytes + size_bytes <= 2 * left_bytes:
            return
        if time.monotonic() - self._shares_s > _SHARES_S:
            self._shares = _shares_of(self._requests) + _shares_of(self._answers)
            self._shares_s = time.monotonic()
        held = self._shares[owner, "files"], self._shares[owner, "bytes"]
        if held[0] >= 2 * left or held[1] + size_bytes > 2 * left_bytes:
            raise _full()

    def find(self, name: str, *, with_body: bool = False) -> tuple[Stored, bool]:
        """Return what is known of a request: the answer and True, or the request and False.

        Args:
            with_body: Whether the body is read, and the digest checked.

        Raises:
            NotFound: There is none, or it was cancelled.
            AnswerExpired: Its time has passed, or the file is not what was written.
        """
        for folder, is_answer in ((self._answers, True), (self._requests, False), (self._answers, True)):
            try:
                stored = _read(folder / name, with_body=with_body)
            except FileNotFoundError:
                continue
            except DamagedFile:
                raise AnswerExpired("The answer was damaged on the disk and is gone.") from None
            if self.has_expired(stored.head):
                raise AnswerExpired("The answer was not fetched in time and is gone.")
            return stored, is_answer
        raise NotFound("There is no such request: it was cancelled, has expired, or was never here.")

    def has_expired(self, head: Mapping[str, Any]) -> bool:
        """Whether the time of a request or an answer has passed."""
        return bool(head["expires_s"] <= self._clock_s())

    def waiting_ids(self) -> list[str]:
        """Return the ids of the requests that have no answer."""
        return _names(self._requests)

    def claim(self, name: str) -> Claim | None:
        """Take a request to run it; None if it has ended, or if another process runs it.

        Each claim counts as an attempt.
        """
        descriptor = _lock(self._requests / name)
        if descriptor is None:
            return None
        keeps = False
        try:
            facts = os.fstat(descriptor)
            if not facts.st_nlink:
                return None
            if (self._answers / name).exists():
                # The process that answered it was killed before it could remove the request.
                self._drop_request(name, facts.st_size)
                return None
            attempt = int(os.pread(descriptor, _ATTEMPT_CHARS, 0)) + 1
            _set_attempt(descriptor, attempt)
            keeps = True
            return Claim(name, descriptor, attempt, facts.st_size)
        finally:
            if not keeps:
                os.close(descriptor)

    def read(self, claim: Claim) -> Stored:
        """Read a claimed request; raises DamagedFile."""
        return _decode(os.pread(claim.descriptor, claim.size_bytes, 0))

    def release(self, claim: Claim, *, ran: bool) -> None:
        """Give a request back; if it did not run, the attempt does not count."""
        try:
            if not ran:
                _set_attempt(claim.descriptor, claim.attempt - 1)
        finally:
            # The lock ends, whether the file can be written or not: otherwise nobody could run the request again.
            os.close(claim.descriptor)

    def finish(self, claim: Claim, head: dict[str, Any], body: bytes, callback: str = "") -> None:
        """Store the answer of a claimed request, and then remove the request; nothing is stored if it was cancelled.

        Args:
            head: With `expires_s`.
            callback: The URL that is told, or nothing.
        """
        content = _encode(head, body, claim.attempt)
        staged = self._answers / f".{claim.id}.{secrets.token_hex(8)}"
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, claim.descriptor)
            # Not between two looks of a sweep, which would take it for a dead process's.
            with self._usage():
                descriptor = _create_locked(staged)
            opened.callback(os.close, descriptor)
            opened.callback(staged.unlink, missing_ok=True)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
                file.flush()
                os.utime(descriptor, (head["expires_s"], head["expires_s"]))
                os.fsync(descriptor)
            with self._usage() as usage:
                if not os.fstat(claim.descriptor).st_nlink:
                    return
                if callback:
                    replace_file(self._callbacks / claim.id, callback.encode())
                staged.rename(self._answers / claim.id)
                usage.answers += 1
                usage.answered += 1
                usage.size_bytes += len(content)
            sync_folder(self._answers)
            self._drop_request(claim.id, claim.size_bytes)

    def _drop_request(self, name: str, size_bytes: int) -> None:
        with self._usage() as usage, contextlib.suppress(FileNotFoundError):
            (self._requests / name).unlink()
            usage.waiting -= 1
            usage.size_bytes -= size_bytes

    def remove(self, name: str, *, expired: bool = False) -> None:
        """Remove a request and its answer: one that waits is not run, and the answer to one that runs is dropped."""
        with self._usage() as usage:
            for folder in (self._requests, self._answers):
                with contextlib.suppress(FileNotFoundError):
                    size_bytes = (folder / name).stat().st_size
                    (folder / name).unlink()
                    usage.size_bytes -= size_bytes
                    if folder is self._answers:
                        usage.answers -= 1
                    else:
                        usage.waiting -= 1
                    if expired:
                        usage.expired += 1
                    elif folder is self._requests:
                        usage.cancelled += 1
            (self._callbacks / name).unlink(missing_ok=True)

    def usage(self) -> Usage:
        """Return the present counters."""
        with self._usage() as usage:
            return usage

    def sweep(self) -> None:
        """Remove expired answers and what killed processes have left, and count anew how much there is."""
        now_s = self._clock_s()
        with self._usage() as usage:
            usage.waiting, requests_bytes = _count(self._requests, with_staged=True)
            for name in _names(self._answers):
                if (self._answers / name).stat().st_mtime <= now_s:
                    (self._answers / name).unlink()
                    (self._callbacks / name).unlink(missing_ok=True)
                    usage.expired += 1
            usage.answers, answers_bytes = _count(self._answers, with_staged=False)
            usage.size_bytes = requests_bytes + answers_bytes

    # Callbacks: a file is a URL that has not been told yet.

    def waiting_callbacks(self) -> list[str]:
        """Return the ids of the answers of which somebody has to be told."""
        return _names(self._callbacks)

    def claim_callback(self, name: str) -> tuple[int, str] | None:
        """Take a callback: the descriptor that holds its lock, and the URL; None if there is none to deliver."""
        descriptor = _lock(self._callbacks / name)
        if descriptor is None:
            return None
        if not os.fstat(descriptor).st_nlink or not (self._answers / name).exists():
            os.close(descriptor)
            return None
        return descriptor, os.pread(descriptor, 1 << 16, 0).decode()

    def release_callback(self, name: str, descriptor: int, *, delivered: bool) -> None:
        """Give a callback back, and remove it if it was delivered."""
        try:
            with self._usage() as usage:
                usage.callbacks += delivered
                usage.callbacks_failed += not delivered
                if delivered:
                    (self._callbacks / name).unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _usage(self) -> Iterator[Usage]:
        """Hold the lock of the counters during the block, and write them after it."""
        descriptor = lock_file(self.rules.folder / "usage")
        try:
            content = os.pread(descriptor, _USAGE.size, 0)
            usage = Usage(*_USAGE.unpack(content)) if len(content) == _USAGE.size else Usage()
            before = asdict(usage)
            try:
                yield usage
            finally:
                if asdict(usage) != before:
                    _write_usage(descriptor, usage)
        finally:
            os.close(descriptor)


def _write_usage(descriptor: int, usage: Usage) -> None:
    try:
        os.pwrite(descriptor, _USAGE.pack(*astuple(usage)), 0)
    except OSError as error:
        # The next sweep counts anew; what is done is done.
        if error.errno not in _NO_ROOM:
            raise


def _full() -> SpoolFull:
    return SpoolFull(
        "The server keeps as many requests to be answered later as it may.", retry_after_s=_FULL_RETRY_S
    )


def _create_secret(path: Path) -> None:
    # Two processes may start at the same time: the first link counts.
    staged = path.with_name(f".secret.{secrets.token_hex(8)}")
    replace_file(staged, _SECRET + base64.b64encode(secrets.token_bytes(32)) + b"\n")
    try:
        path.hardlink_to(staged)
    finally:
        staged.unlink()


def _names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208  # Path is slower


def _count(folder: Path, *, with_staged: bool) -> tuple[int, int]:
    """Count files and their bytes; temporary files whose writer has died are removed.

    Args:
        with_staged: Whether temporary files that have no other name yet count: there is a reservation for each.
    """
    count = size_bytes = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            is_staged = entry.name.startswith(".")
            descriptor = _lock(Path(entry.path)) if is_staged else None
            if descriptor is not None:
                Path(entry.path).unlink(missing_ok=True)
                os.close(descriptor)
                continue
            with contextlib.suppress(FileNotFoundError):
                facts = entry.stat()
                if not is_staged or (with_staged and facts.st_nlink == 1):
                    size_bytes += facts.st_size
                    count += 1
    return count, size_bytes


def _shares_of(folder: Path) -> Counter[tuple[str, str]]:
    shares: Counter[tuple[str, str]] = Counter()
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                owner = entry.name.removeprefix(".")[:OWNER_CHARS]
                shares[owner, "bytes"] += entry.stat().st_size
                shares[owner, "files"] += 1
    return shares


def _lock(path: Path) -> int | None:
    """Open a file and lock it; None if it does not exist, or another process has the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _create_locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _set_attempt(descriptor: int, attempt: int) -> None:
    os.pwrite(descriptor, f"{attempt:0{_ATTEMPT_CHARS}}".encode(), 0)


def _encode(head: dict[str, Any], body: bytes, attempt: int = 0) -> bytes:
    """The attempt, which may be overwritten; a digest of what follows; the head as JSON; the body."""
    text = json.dumps(head).encode() + b"\n"
    digest = hashlib.sha256(text)
    digest.update(body)
    return b"%08d\n%b\n%b%b" % (attempt, digest.hexdigest().encode(), text, body)


def _decode(content: bytes) -> Stored:
    view = memoryview(content)[_PREFIX_BYTES:]
    if hashlib.sha256(view).hexdigest().encode() != content[_ATTEMPT_CHARS + 1 : _PREFIX_BYTES - 1]:
        raise DamagedFile
    end = content.index(b"\n", _PREFIX_BYTES) + 1
    return Stored(int(content[:_ATTEMPT_CHARS]), json.loads(content[_PREFIX_BYTES:end]), content[end:])


def _read(path: Path, *, with_body: bool) -> Stored:
    if with_body:
        return _decode(path.read_bytes())
    with path.open("rb") as file:
        try:
            attempt, _, head = int(file.readline()), file.readline(), json.loads(file.readline())
        except ValueError as error:
            raise DamagedFile from error
        return Stored(attempt, head, b"")
