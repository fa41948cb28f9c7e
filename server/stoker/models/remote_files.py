"""Files of object stores and other machines, by fsspec: mirrored in a folder of this machine, and sent there.

CACHE/KEY/files/NAME/…   the files; KEY is the digest of the address and options, NAME the last part of its path
CACHE/KEY/mirror.json    what is known of each file: its mark in the store, size and SHA-256
CACHE/KEY/parts/         files that are not whole yet; a later call continues them
CACHE/KEY/lock           held while files are fetched
CACHE/KEY/used           held by who uses the files; its time of modification is that of the last use

fsspec and its packages for each kind of store are imported where they are used. Credentials are those that each
store's own programs use, or options; no message has them.

See decision 59.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from stoker.errors import OperatorError
from stoker.settings.names import name_from_file, read_address
from stoker.system.durable import lock_file, locked, private_folder, replace_file
from stoker.system.extras import how_to_install, is_installed
from stoker.system.wording import format_count
from stoker_base.trees import files_below, remove_tree

if TYPE_CHECKING:
    from stoker.settings.server import ServerSettings
    from stoker.settings.workspace import Workspace

DEFAULT_CACHE_GB: Final = 50.0
"""How much the files of all addresses may take."""
CACHE_VARIABLE: Final = "STOKER_REMOTE_CACHE_GB"
"""The variable that says something else."""
_CHUNK_BYTES: Final = 8 << 20
_THREADS: Final = 8
_CONTACT_S: Final = 20.0
"""The time in which a store has to answer at all: the packages of some try again for minutes."""
_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 15.0
_S3_TRIES: Final = 2
_LOOKS: Final = 3
_Answer = TypeVar("_Answer")
_TALKATIVE: Final = ("aiobotocore", "botocore", "gcsfs", "adlfs", "azure", "asyncssh")
"""Packages that log each request; what goes wrong is in their errors."""
_SECRETS: Final = re.compile(r"(\w://)(?:[^\s/'\"]*@)?([^\s?'\"]*)(?:\?[^\s'\"]*)?")
_DIGEST: Final = re.compile(r"sha256=([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Store:
    """A kind of store.

    Attributes:
        protocol: fsspec's name of it.
        module: The package that fsspec needs for it.
        credentials: What its packages read credentials from.
    """

    protocol: str
    module: str
    extra: str
    credentials: str


_S3: Final = _Store("s3", "s3fs", "s3", "AWS_ACCESS_KEY_ID, AWS_PROFILE or the machine's role")
_GOOGLE: Final = _Store("gcs", "gcsfs", "gcs", "GOOGLE_APPLICATION_CREDENTIALS or the machine's account")
_AZURE: Final = _Store(
    "abfs", "adlfs", "blob", "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_NAME or az login"
)
_SFTP: Final = _Store("ssh", "sshfs", "sftp", "the keys and known_hosts in ~/.ssh")
_WEB: Final = _Store("http", "aiohttp", "https", "the address itself")
_FILE: Final = _Store("file", "fsspec", "https", "none")
_STORES: Final[Mapping[str, _Store]] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "sftp": _SFTP,
    "ssh": _SFTP,
    "http": _WEB,
    "https": _WEB,
    "file": _FILE,
}


def shown_address(address: str) -> str:
    """Return an address without a password, token or query."""
    parts = urlsplit(address)
    host = (
        parts.netloc.rpartition("@")[2] if parts.scheme in ("http", "https", "sftp", "ssh") else parts.netloc
    )
    return f"{parts.scheme}://{host}{parts.path}"


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a store.

    Attributes:
        key: Its path in fsspec's file system.
        mark: What changes with its content: the store's ETag, else its time; empty if the store has neither.
        size_bytes: Its size; None where the store does not say.
    """

    key: str
    mark: str
    size_bytes: int | None


class _Listing(msgspec.Struct, frozen=True):
    """The files at an address, and in `mirror.json` those that were fetched.

    Attributes:
        is_file: Whether the address is that of a single file.
        files: The files by their names below the address.
        digests: The SHA-256 of each file that was fetched.
    """

    is_file: bool
    files: dict[str, RemoteFile]
    digests: dict[str, str] = {}


class Mirror:
    """The files of one address on this machine.

    Args:
        address: `s3://bucket/folder`, `az://container/file` and so on. `#sha256=HEX` at the end of a single file's
            address is the digest that it must have.
        cache: The folder of all mirrors.
        options: What fsspec's file system takes besides: credentials, endpoints.

    Raises:
        OperatorError: The packages for this kind of store are not installed.
    """

    def __init__(self, address: str, cache: Path, options: Mapping[str, Any] | None = None) -> None:
        self.address, _, fragment = address.partition("#")
        self.shown = shown_address(self.address)
        expected = _DIGEST.fullmatch(fragment)
        if fragment and expected is None:
            raise OperatorError(
                f"{self.shown}: #{fragment} is no digest; write #sha256= and 64 hexadecimal digits"
            )
        self._sha256 = "" if expected is None else expected[1]
        self._options = dict(options or {})
        self._cache = cache
        self._opened: tuple[Any, str] | None = None
        # The same address names other files for another account or endpoint.
        key = self.address + (json.dumps(self._options, sort_keys=True, default=str) if options else "")
        self._home = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
        _check_installed(self.address)

    @property
    def path(self) -> Path:
        """The file, or the folder of the files, on this machine.

        Raises:
            OperatorError: Nothing was fetched yet.
        """
        kept = self._kept()
        if kept is None:
            raise OperatorError(f"{self.shown} has not been fetched yet")
        return self._place(next(iter(kept.files)), kept) if kept.is_file else self._base(kept)

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file, by its name in the folder."""
        kept = self._kept()
        return {} if kept is None else kept.digests

    def hold(self) -> int:
        """Keep the files from being removed until the returned descriptor is closed or this process ends."""
        while True:
            private_folder(self._home)
            try:
                (self._home / "used").touch()
                descriptor = lock_file(self._home / "used", shared=True)
            except FileNotFoundError:
                continue
            if os.fstat(descriptor).st_nlink:
                return descriptor
            # Another process has removed the mirror before it was held.
            os.close(descriptor)

    def update(
        self,
        say: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], object] | None = None,
    ) -> bool:
        """Fetch what is new or has changed in the store, and remove what is gone; return whether anything was.

        The files change when all have come. What came before a break is kept, and the next call continues it.

        Args:
            say: Called with a line if anything is fetched.
            progress: Called with the bytes fetched so far, and the bytes to fetch.

        Raises:
            OperatorError: The store cannot be read, or has nothing at the address, or a file has another digest than
                it must have, or there is no room.
        """
        held = self.hold()
        try:
            with locked(self._home / "lock"), _errors_of_store(self.address):
                return self._update(say, progress)
        finally:
            os.close(held)

    def _update(self, say: Callable[[str], None], progress: Callable[[int, int], object] | None) -> bool:
        facts = _answered_soon(self.shown, self._look)
        assert self._opened is not None, "opened to look"
        system, root = self._opened
        before = self._kept()
        wanted = _list_files(system, root, self.shown, facts)
        for _ in range(_LOOKS):
            fetched: dict[str, str] = {}
            if not wanted.files:
                raise OperatorError(f"there are no files at {self.shown}")
            missing = {
                name: file for name, file in wanted.files.items() if not self._is_there(name, file, before)
            }
            if not missing:
                break
            total_bytes = sum(file.size_bytes or 0 for file in missing.values())
            many = format_count(len(missing), "file")
            say(f"fetching {many} ({total_bytes / 1e6:,.1f} MB) of {self.shown}")
            self._make_room(sum(file.size_bytes or 0 for file in wanted.files.values()), total_bytes)
            fetched = self._fetch(system, missing, progress)
            again = _list_files(system, root, self.shown)
            if again == wanted:
                break
            # Somebody has written meanwhile.
            wanted = again
        else:
            raise OperatorError(f"{self.shown} changes while it is fetched; fetch it once it is written")
        known = {} if before is None else before.digests
        changed = [name for name, digest in fetched.items() if known.get(name, digest) != digest]
        if changed:
            first = changed[0]
            many = f"{len(changed)} files" if len(changed) > 1 else first
            say(
                f"{many} of {self.shown} changed since the last time: sha256 {fetched[first][:12]}, before "
                f"{known[first][:12]}"
            )
        same_names = before is not None and before.files.keys() == wanted.files.keys()
        if not fetched and same_names:
            return False
        return self._bring_in(wanted, before, fetched) or not same_names

    def _look(self) -> Mapping[str, Any]:
        """Return what the store says of the address."""
        if self._opened is None:
            self._opened = open_store(self.address, self._options)
        system, root = self._opened
        system.invalidate_cache()
        facts: Mapping[str, Any] = system.info(root)
        return facts

    def _kept(self) -> _Listing | None:
        try:
            return msgspec.json.decode((self._home / "mirror.json").read_bytes(), type=_Listing)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _base(self, listing: _Listing) -> Path:
        """The folder of the files; that of a single file is called as the folder in the store."""
        parts = urlsplit(self.address)
        names = [parts.netloc.rpartition("@")[2].partition(":")[0], *PurePosixPath(parts.path).parts[1:]]
        named = names[-2] if listing.is_file and len(names) > 1 else names[-1]
        return self._home / "files" / name_from_file(named)

    def _place(self, name: str, listing: _Listing) -> Path:
        return self._base(listing) / name

    def _part(self, name: str, file: RemoteFile) -> Path:
        return self._home / "parts" / hashlib.sha256(f"{name}\0{file.mark}".encode()).hexdigest()[:32]

    def _is_there(self, name: str, file: RemoteFile, before: _Listing | None) -> bool:
        kept = None if before is None else before.files.get(name)
        if before is None or kept is None or not file.mark or kept.mark != file.mark:
            return False
        place = self._place(name, before)
        return place.is_file() and place.stat().st_size == (file.size_bytes or place.stat().st_size)

    def _fetch(
        self, system: Any, missing: Mapping[str, RemoteFile], progress: Callable[[int, int], object] | None
    ) -> dict[str, str]:
        """Fetch files into `parts`; return the digest of each."""
        private_folder(self._home / "parts")
        total_bytes = sum(file.size_bytes or 0 for file in missing.values())
        fetched_bytes, counting, stopped = 0, threading.Lock(), threading.Event()

        def report(count: int) -> None:
            nonlocal fetched_bytes
            if stopped.is_set():
                raise ConnectionAbortedError("another file could not be fetched")
            with counting:
                fetched_bytes += count
                if progress is not None:
                    progress(fetched_bytes, max(total_bytes, fetched_bytes))

        with ThreadPoolExecutor(_THREADS) as pool:
            jobs = {
                name: pool.submit(_fetch_file, system, file, self._part(name, file), report)
                for name, file in missing.items()
            }
            try:
                digests = {name: job.result() for name, job in jobs.items()}
            except BaseException:
                # Files of gigabytes are not fetched to their ends.
                stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for name, digest in digests.items():
            if self._sha256 not in ("", digest):
                self._part(name, missing[name]).unlink()
                raise OperatorError(f"{self.shown} has the SHA-256 {digest}, and should have {self._sha256}")
        return digests

    def _bring_in(self, wanted: _Listing, before: _Listing | None, fetched: Mapping[str, str]) -> bool:
        """Move fetched files to their places, and remove those that are gone; return whether a file was replaced.

        A file of the same content stays, with its time: a server that polls would load the model again.
        """
        known = {} if before is None else before.digests
        if before is not None and self._base(before) == self._base(wanted):
            for name in before.files.keys() - wanted.files.keys():
                place = self._place(name, before)
                place.unlink(missing_ok=True)
                # An empty folder would be a version without a model.
                with contextlib.suppress(OSError):
                    while place.parent != self._base(before):
                        place = place.parent
                        place.rmdir()
        else:
            remove_tree(self._home / "files", ignore_errors=True)
        replaced = False
        for name, digest in fetched.items():
            place = self._place(name, wanted)
            if digest == known.get(name) and place.is_file():
                continue
            replaced = True
            if place.is_dir():
                remove_tree(place)
            for folder in reversed(place.relative_to(self._home).parents):
                if (self._home / folder).is_file():
                    (self._home / folder).unlink()
            private_folder(place.parent)
            self._part(name, wanted.files[name]).replace(place)
        digests = {name: fetched.get(name) or known[name] for name in wanted.files}
        kept = msgspec.structs.replace(wanted, digests=digests)
        replace_file(self._home / "mirror.json", msgspec.json.encode(kept))
        remove_tree(self._home / "parts", ignore_errors=True)
        return replaced

    def _make_room(self, wanted_bytes: int, missing_bytes: int) -> None:
        """Remove mirrors that nobody uses, the least recently used first, until this one has room.

        Args:
            wanted_bytes: The size of all files of this mirror.
            missing_bytes: The size of those that are to be fetched.

        Raises:
            OperatorError: There would not be enough.
        """
        limit_bytes = cache_limit_bytes()
        others = [home for home in self._cache.iterdir() if home.is_dir() and home != self._home]
        taken = {home: _taken_bytes(home) for home in others}
        for home in sorted(
            others, key=lambda home: (home / "used").stat().st_mtime if (home / "used").exists() else 0.0
        ):
            if sum(taken.values()) + wanted_bytes <= limit_bytes:
                break
            with contextlib.suppress(BlockingIOError):
                descriptor = lock_file(home / "used", wait=False)
                try:
                    remove_tree(home, ignore_errors=True)
                finally:
                    os.close(descriptor)
                del taken[home]
        limits = (
            (wanted_bytes, limit_bytes - sum(taken.values())),
            (missing_bytes, shutil.disk_usage(self._cache).free),
        )
        for needed_bytes, free_bytes in limits:
            if needed_bytes > free_bytes:
                raise OperatorError(
                    f"{self.shown} takes {needed_bytes / 1e9:.1f} GB, and {self._cache} has room for "
                    f"{max(0, free_bytes) / 1e9:.1f} GB; make room, or allow more by {CACHE_VARIABLE}"
                )


def _taken_bytes(home: Path) -> int:
    """The size of the files of a mirror, which another process may be changing."""
    total_bytes = 0
    for file in files_below(home):
        with contextlib.suppress(FileNotFoundError):
            total_bytes += file.stat().st_size if file.is_file() else 0
    return total_bytes


def cache_limit_bytes() -> float:
    """Return how much the files of all addresses may take, and those of runs on a machine that SSH reaches."""
    text = os.environ.get(CACHE_VARIABLE) or str(DEFAULT_CACHE_GB)
    try:
        return float(text) * 1e9
    except ValueError:
        raise OperatorError(f"{CACHE_VARIABLE} has to be a number of GB, and is {text!r}") from None


def _store_of(address: str) -> _Store:
    return _STORES[address.partition(":")[0].lower()]


def _check_installed(address: str) -> None:
    store = _store_of(address)
    if not (is_installed("fsspec") and is_installed(store.module)):
        raise OperatorError(
            f"{shown_address(address)} is read by the extra {store.extra}, which is not installed; "
            f"{how_to_install(store.extra)}"
        )


def open_store(address: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it.

    Raises:
        OperatorError: The packages for this kind of store are not installed.
    """
    _check_installed(address)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    import fsspec  # type: ignore[import-untyped]

    rest = address.partition("://")[2]
    protocol = _store_of(address).protocol
    url = address if protocol == "http" else f"{protocol}://{rest}"
    # Listings of before would hide what is new.
    given: dict[str, Any] = {"skip_instance_cache": True}
    if _store_of(address) is not _SFTP:
        given["use_listings_cache"] = False
    given |= {**_limits_of(_store_of(address)), **(options or {})}
    system, path = fsspec.core.url_to_fs(url, **given)
    if protocol == "s3":
        system.retries = _S3_TRIES
    return system, str(path).rstrip("/")


def _limits_of(store: _Store) -> dict[str, Any]:
    """Return how long fsspec's file system of a store waits for an answer, in the store's own options."""
    if store is _S3:
        # fsspec's own tries are around those of the client.
        client = {"connect_timeout": _CONNECT_S, "read_timeout": _SILENCE_S, "retries": {"max_attempts": 0}}
        return {"config_kwargs": client}
    if store is _AZURE:
        return {"connection_timeout": int(_CONNECT_S), "read_timeout": int(_SILENCE_S)}
    if store is _SFTP:
        # As SSH does: the package's own default takes any host for the right one.
        waits = {
            "connect_timeout": _CONNECT_S,
            "login_timeout": _CONNECT_S,
            "keepalive_interval": _SILENCE_S / 3,
        }
        return {"known_hosts": (), **waits}
    if store is _FILE:
        return {}
    import aiohttp

    # By default a transfer has five minutes, however fast it is, and there are no proxies.
    limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    if store is _GOOGLE:
        return {"requests_timeout": limits}
    return {"client_kwargs": {"trust_env": True, "timeout": limits}}


def _answered_soon(shown: str, ask: Callable[[], _Answer]) -> _Answer:
    """Return what the first question to a store gives.

    Raises:
        OperatorError: It has no answer in time.
    """
    answer: Future[_Answer] = Future()

    def answered() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
            answer.set_exception(error)

    # It ends with this process, whatever it waits for.
    threading.Thread(target=answered, name="stoker-store", daemon=True).start()
    try:
        return answer.result(_CONTACT_S)
    except TimeoutError:
        if answer.done():
            raise
        raise OperatorError(
            f"{shown} cannot be reached: it does not answer within {_CONTACT_S:g} s"
        ) from None


def _list_files(system: Any, root: str, shown: str, facts: Mapping[str, Any] | None = None) -> _Listing:
    """List the files of an address.

    Args:
        facts: What the store has just said of the address.

    Raises:
        OperatorError: A name leads out of the folder.
        FileNotFoundError: There is nothing, as most stores say it.
    """
    if facts is None:
        system.invalidate_cache()
        facts = system.info(root)
    if facts["type"] == "file":
        name = PurePosixPath(urlsplit(root).path).name
        if name in ("", ".."):
            name = "file"
        return _Listing(True, {name: _remote_file(root, facts)})
    found = system.find(root, detail=True)
    files = {}
    for key, details in found.items():
        name = str(key)[len(root) :].lstrip("/") if str(key).startswith(root) else str(key)
        if details["type"] != "file" or not name or name.endswith("/"):
            continue
        if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            raise OperatorError(f"{shown} has a file {name!r}, whose name leads out of the folder; remove it")
        files[name] = _remote_file(str(key), details)
    return _Listing(False, files)


def _remote_file(key: str, facts: Mapping[str, Any]) -> RemoteFile:
    size = facts.get("size")
    by_name = {str(name).lower().replace("_", "").replace("-", ""): value for name, value in facts.items()}
    names = ("etag", "generation", "md5hash", "mtime", "lastmodified", "updated", "modified", "created")
    mark = next((str(by_name[name]) for name in names if by_name.get(name)), "")
    return RemoteFile(key, f"{size} {mark}" if mark else "", None if size is None else int(size))


def _fetch_file(system: Any, file: RemoteFile, part: Path, report: Callable[[int], None]) -> str:
    """Fetch one file, from where an earlier call broke off; return its SHA-256.

    Raises:
        OSError: It ends before its size.
    """
    if file.size_bytes is None or not file.mark:
        part.unlink(missing_ok=True)
    if file.size_bytes is None:
        system.get_file(file.key, str(part))
        report(part.stat().st_size)
    with part.open("ab") as copy:
        done = copy.tell()
        while file.size_bytes is not None and done < file.size_bytes:
            end = min(done + _CHUNK_BYTES, file.size_bytes)
            chunk = system.cat_file(file.key, start=done, end=end)
            if not chunk:
                raise OSError(f"it ends after {done} of {file.size_bytes} bytes")
            if len(chunk) > end - done:
                # A server of the web that knows no ranges sends the whole file.
                copy.truncate(0)
                done = 0
            copy.write(chunk)
            done += len(chunk)
            report(len(chunk))
        if done > (file.size_bytes or done):
            copy.truncate(0)
            raise OSError(f"it has {done} bytes, and its store says {file.size_bytes}")
        copy.flush()
        os.fsync(copy.fileno())
    with part.open("rb") as content_file:
        return hashlib.file_digest(content_file, "sha256").hexdigest()


def open_for_writing(address: str, options: Mapping[str, Any] | None = None) -> Callable[[str, Path], None]:
    """Open a store; return what copies a file of this machine to it, under a name below the address.

    A file that is there is replaced.

    Raises:
        OperatorError: The store cannot be reached; what is returned raises it too, if the file cannot be written.
    """

    def look() -> tuple[Any, str]:
        opened = open_store(address, options)
        try:
            opened[0].info(opened[1])
        except (FileNotFoundError, PermissionError):
            pass
        except OSError as error:
            # An account of Google's that may only write is told so by a plain OSError.
            if not str(error).startswith("Forbidden"):
                raise
        return opened

    with _errors_of_store(address):
        system, root = _answered_soon(shown_address(address), look)

    def write(name: str, path: Path) -> None:
        with _errors_of_store(address):
            if "/" in name or _store_of(address) in (_SFTP, _FILE):
                system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
            system.put_file(str(path), f"{root}/{name}")

    return write


def send(
    files: Mapping[str, Path],
    address: str,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Copy files of this machine to a store, in their order; one that is there is replaced.

    Args:
        files: The files by their names below the address.
        progress: Called with the bytes sent so far, and the bytes of all.

    Raises:
        OperatorError: The store cannot be written.
    """
    total_bytes, sent_bytes = sum(path.stat().st_size for path in files.values()), 0
    write = open_for_writing(address, options)
    for name, path in files.items():
        write(name, path)
        sent_bytes += path.stat().st_size
        if progress is not None:
            progress(sent_bytes, total_bytes)


def _message_of(error: BaseException) -> str:
    """Return an error of a store's packages without passwords and queries of addresses."""
    return _SECRETS.sub(r"\1\2", " ".join(str(error).split()))[:300] or type(error).__name__


@contextlib.contextmanager
def _errors_of_store(address: str) -> Iterator[None]:
    """Raise what a store's packages raise, which have errors of their own, as an OperatorError."""
    shown = shown_address(address)
    try:
        yield
    except OperatorError:
        raise
    except FileNotFoundError as error:
        # fsspec says this also of what a server of the web refuses, or where none answers.
        why = "" if error.__cause__ is None else f": {_message_of(error.__cause__)}"
        raise OperatorError(f"there is nothing at {shown}{why}") from error
    except Exception as error:
        raise OperatorError(
            f"{shown} cannot be reached: {_message_of(error)} (credentials: {_store_of(address).credentials})"
        ) from error


logger = logging.getLogger(__name__)


def mirrors_dir(workspace: Workspace) -> Path:
    """Return the folder of all mirrors of a workspace."""
    return workspace.root / "remote"


def hold_files(paths: Iterable[str], workspace: Workspace) -> list[int]:
    """Keep the mirrors that paths lead into from being removed while the returned descriptors are open."""
    cache, held = mirrors_dir(workspace), []
    homes = {
        cache / Path(path).relative_to(cache).parts[0] for path in paths if Path(path).is_relative_to(cache)
    }
    for home in homes:
        with contextlib.suppress(FileNotFoundError):
            held.append(lock_file(home / "used", shared=True))
    return held


def list_sizes(address: str, options: Mapping[str, Any] | None = None) -> dict[str, int | None]:
    """Return the sizes in bytes of the files below an address by their names; of none if there is nothing.

    Raises:
        OperatorError: The store cannot be read.
    """
    with _errors_of_store(address):
        shown = shown_address(address)

        def look() -> tuple[Any, str, Mapping[str, Any]]:
            system, root = open_store(address, options)
            return system, root, system.info(root)

        try:
            system, root, facts = _answered_soon(shown, look)
            files = _list_files(system, root, shown, facts).files
        except FileNotFoundError:
            return {}
        return {name: file.size_bytes for name, file in files.items()}


def fetch_path(
    path: Path,
    workspace: Workspace,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], object] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    earlier_too: bool = False,
) -> tuple[Path, Mirror | None]:
    """Return where the files of a path are on this machine, and their mirror; None for a path of this machine.

    Args:
        path: A path, or an address as `Path` writes it.
        say: Called with a line if anything is fetched.
        progress: Called with the bytes fetched so far, and the bytes to fetch.
        options: What fsspec's file system takes besides: credentials, endpoints.
        earlier_too: Whether the files of the last time are taken, with a warning, if the store cannot be read.

    Raises:
        OperatorError: The files cannot be fetched.
    """
    address = read_address(path)
    if address is None:
        return path, None
    mirror = Mirror(address, private_folder(mirrors_dir(workspace.create())), options)
    try:
        mirror.update(say, progress)
    except OperatorError as error:
        if not (earlier_too and mirror.digests):
            raise
        logger.warning("%s; the files of the last time are used", error)
    return mirror.path, mirror


def fetch_models(
    settings: ServerSettings, workspace: Workspace, say: Callable[[str], None], leases: contextlib.ExitStack
) -> tuple[ServerSettings, list[Mirror]]:
    """Return settings whose paths are all on this machine, and the mirrors of those that were addresses.

    Args:
        leases: Receives what keeps the files from being removed, also by those of the next address.

    Raises:
        OperatorError: The files of an address cannot be fetched, and never were.
        CorruptModel: A file of a version that was pushed is not as it was registered.
    """
    # Imported here: what only fetches data needs no models.
    from stoker.models.registered import find_version

    mirrors = []
    models = []
    for model in settings.models:
        changes: dict[str, Any] = {}
        for setting in ("path", "model_dir"):
            given = getattr(model, setting)
            if given is None:
                continue
            # A script comes with what lies beside it. Of a server of the web nobody knows what that is.
            has_folder = (read_address(given) or "http").partition(":")[0] not in ("http", "https")
            script = given.name if setting == "path" and given.suffix == ".py" and has_folder else ""
            changes[setting], mirror = fetch_path(
                given.parent if script else given, workspace, say, earlier_too=True
            )
            if mirror is not None:
                changes[setting] /= script
                leases.callback(os.close, mirror.hold())
                mirrors.append(mirror)
                if setting == "model_dir" and (pushed := find_version(mirror.path)) is not None:
                    pushed.verify()
                    changes[setting] = pushed.files_dir
        models.append(dataclasses.replace(model, **changes))
    return (dataclasses.replace(settings, models=tuple(models)) if mirrors else settings), mirrors
