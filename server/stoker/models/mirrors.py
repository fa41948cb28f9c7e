"""Mirrors in a folder of this machine: the files of one address each.

CACHE/KEY/files/NAME/…   the files; KEY is the digest of the address and options, NAME the last part of its path
CACHE/KEY/mirror.json    the mark in the store, size and SHA-256 of each file
CACHE/KEY/parts/         files that are not whole yet; a later call continues them
CACHE/KEY/lock           held while files are fetched
CACHE/KEY/used           held by the users of the files; its time of modification is that of the last use

See decision 59.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from stoker.errors import OperatorError
from stoker.models.remote_stores import (
    Listing,
    RemoteFile,
    check_installed,
    first_answer,
    list_files,
    open_store,
    shown_address,
    store_errors,
)
from stoker.settings.names import name_from_file
from stoker.settings.workspace import Workspace
from stoker.system.durable import lock_file, locked, private_folder, replace_file
from stoker.system.wording import format_count
from stoker_base.trees import files_below, remove_tree

DEFAULT_CACHE_GB: Final = 50.0
"""The default limit of the size of all mirrors."""
CACHE_VARIABLE: Final = "STOKER_REMOTE_CACHE_GB"
"""The environment variable with another limit."""
_CHUNK_BYTES: Final = 8 << 20
_THREADS: Final = 8
_LOOKS: Final = 3
_DIGEST: Final = re.compile(r"sha256=([0-9a-f]{64})", re.ASCII)


class Mirror:
    """The files of one address on this machine.

    Args:
        address: `s3://bucket/folder`, `az://container/file` and so on. `#sha256=HEX` at the end of a single file's
            address is the digest that it must have.
        cache: The folder of all mirrors.
        options: Further options of fsspec's file system: credentials, endpoints.

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
        check_installed(self.address)

    @property
    def path(self) -> Path:
        """The file, or the folder of the files, on this machine.

        Raises:
            OperatorError: Nothing was fetched yet.
        """
        kept = self._kept()
        if not kept.files:
            raise OperatorError(f"{self.shown} has not been fetched yet")
        return self._place(next(iter(kept.files)), kept) if kept.is_file else self._base(kept)

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file, by its name in the folder."""
        return self._kept().digests

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
        """Fetch new and changed files of the store, and remove deleted ones; return whether a file changed.

        The files change when all have been fetched. If fetching breaks off, the next call continues it.

        Args:
            say: Called with a line if files are fetched.
            progress: Called with the bytes fetched so far, and the bytes to fetch.

        Raises:
            OperatorError: The store cannot be read, or has nothing at the address, or a file has another digest than
                expected, or there is no room.
        """
        lease = self.hold()
        try:
            with locked(self._home / "lock"), store_errors(self.address):
                return self._update(say, progress)
        finally:
            os.close(lease)

    def _update(self, say: Callable[[str], None], progress: Callable[[int, int], object] | None) -> bool:
        facts = first_answer(self.shown, self._look)
        assert self._opened is not None, "opened to look"
        system, root = self._opened
        before = self._kept()
        wanted = list_files(system, root, self.shown, facts)
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
            again = list_files(system, root, self.shown)
            if again == wanted:
                break
            # The store has been written meanwhile.
            wanted = again
        else:
            raise OperatorError(f"{self.shown} changes while it is fetched; fetch it once it is written")
        known = before.digests
        changed = [name for name, digest in fetched.items() if known.get(name, digest) != digest]
        if changed:
            first = changed[0]
            many = f"{len(changed)} files" if len(changed) > 1 else first
            say(
                f"{many} of {self.shown} changed since the last time: sha256 {fetched[first][:12]}, before "
                f"{known[first][:12]}"
            )
        same_names = before.files.keys() == wanted.files.keys()
        if not fetched and same_names:
            return False
        return self._place_files(wanted, before, fetched) or not same_names

    def _look(self) -> Mapping[str, Any]:
        """Return the facts of the address in the store."""
        if self._opened is None:
            self._opened = open_store(self.address, self._options)
        system, root = self._opened
        system.invalidate_cache()
        facts: Mapping[str, Any] = system.info(root)
        return facts

    def _kept(self) -> Listing:
        """Return the files that were fetched; none at first."""
        try:
            return msgspec.json.decode((self._home / "mirror.json").read_bytes(), type=Listing)
        except (FileNotFoundError, msgspec.MsgspecError):
            return Listing(False, {})

    def _base(self, listing: Listing) -> Path:
        """Return the folder of the files; a single file gets a folder named as its folder in the store."""
        parts = urlsplit(self.address)
        names = [parts.netloc.rpartition("@")[2].partition(":")[0], *PurePosixPath(parts.path).parts[1:]]
        named = names[-2] if listing.is_file and len(names) > 1 else names[-1]
        return self._home / "files" / name_from_file(named)

    def _place(self, name: str, listing: Listing) -> Path:
        return self._base(listing) / name

    def _part(self, name: str, file: RemoteFile) -> Path:
        return self._home / "parts" / hashlib.sha256(f"{name}\0{file.mark}".encode()).hexdigest()[:32]

    def _is_there(self, name: str, file: RemoteFile, before: Listing) -> bool:
        kept = before.files.get(name)
        if kept is None or not file.mark or kept.mark != file.mark:
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
                # Stop at once: files may have gigabytes.
                stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for name, digest in digests.items():
            if self._sha256 not in ("", digest):
                self._part(name, missing[name]).unlink()
                raise OperatorError(f"{self.shown} has the SHA-256 {digest}, and should have {self._sha256}")
        return digests

    def _place_files(self, wanted: Listing, before: Listing, fetched: Mapping[str, str]) -> bool:
        """Move fetched files to their places, and remove deleted ones; return whether a file was replaced.

        A file of the same content stays, with its time: a server that polls would load the model again.
        """
        known = before.digests
        if before.files and self._base(before) == self._base(wanted):
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
            missing_bytes: The size of the files to fetch.

        Raises:
            OperatorError: There is not enough room.
        """
        limit_bytes = cache_limit_bytes()
        others = [home for home in self._cache.iterdir() if home.is_dir() and home != self._home]
        taken = {home: _taken_bytes(home) for home in others}
        for home in sorted(others, key=_used_s):
            if sum(taken.values()) + wanted_bytes <= limit_bytes:
                break
            with contextlib.suppress(BlockingIOError):
                _remove(home)
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


def _used_s(home: Path) -> float:
    """Return when a mirror was used, in seconds since 1970; 0 if it never was, or is gone."""
    try:
        return (home / "used").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove(home: Path) -> None:
    """Remove a mirror; raises BlockingIOError if it is held."""
    with contextlib.suppress(FileNotFoundError):  # another process may have removed it
        descriptor = lock_file(home / "used", wait=False)
        try:
            remove_tree(home, ignore_errors=True)
        finally:
            os.close(descriptor)


def _taken_bytes(home: Path) -> int:
    """Return the size of the files of a mirror, which another process may be changing."""
    total_bytes = 0
    for file in files_below(home):
        with contextlib.suppress(FileNotFoundError):
            total_bytes += file.stat().st_size if file.is_file() else 0
    return total_bytes


def cache_limit_bytes() -> float:
    """Return the limit of the size of all mirrors, and of the files of runs on a machine that SSH reaches."""
    text = os.environ.get(CACHE_VARIABLE) or str(DEFAULT_CACHE_GB)
    try:
        return float(text) * 1e9
    except ValueError:
        raise OperatorError(f"{CACHE_VARIABLE} has to be a number of GB, and is {text!r}") from None


def _fetch_file(system: Any, file: RemoteFile, part: Path, report: Callable[[int], None]) -> str:
    """Fetch one file, from the point where an earlier call broke off; return its SHA-256.

    Raises:
        OSError: The file ends before its size.
    """
    if file.size_bytes is None or not file.mark:
        part.unlink(missing_ok=True)
    if file.size_bytes is None:
        system.get_file(file.key, str(part))
        report(part.stat().st_size)
    with part.open("ab") as copy:
        copied = copy.tell()
        while file.size_bytes is not None and copied < file.size_bytes:
            end = min(copied + _CHUNK_BYTES, file.size_bytes)
            chunk = system.cat_file(file.key, start=copied, end=end)
            if not chunk:
                raise OSError(f"it ends after {copied} of {file.size_bytes} bytes")
            if len(chunk) > end - copied:
                # A server of the web that knows no ranges sends the whole file.
                copy.truncate(0)
                copied = 0
            copy.write(chunk)
            copied += len(chunk)
            report(len(chunk))
        if copied > (file.size_bytes or copied):
            copy.truncate(0)
            raise OSError(f"it has {copied} bytes, and its store says {file.size_bytes}")
        copy.flush()
        os.fsync(copy.fileno())
    with part.open("rb") as content_file:
        return hashlib.file_digest(content_file, "sha256").hexdigest()


def mirrors_dir(workspace: Workspace) -> Path:
    """Return the folder of all mirrors of a workspace."""
    return workspace.root / "remote"


def hold_files(paths: Iterable[str], workspace: Workspace) -> list[int]:
    """Keep the mirrors that paths lead into from being removed while the returned descriptors are open."""
    cache, leases = mirrors_dir(workspace), []
    homes = {
        cache / Path(path).relative_to(cache).parts[0] for path in paths if Path(path).is_relative_to(cache)
    }
    for home in homes:
        with contextlib.suppress(FileNotFoundError):
            leases.append(lock_file(home / "used", shared=True))
    return leases
