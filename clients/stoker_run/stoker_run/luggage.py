"""What travels to a machine that is no other's: contents that are kept once, and folders that are made of them.

files/XX/SHA            a content by its SHA-256; SHA.x where it may be executed
files/.parts/SHA        as much of one as has come so far
trees/DIGEST            which contents a folder is made of: JSON, entries as in `entries`
runs/RUN_ID/N/          the attempts
"""

import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any, List, Optional

from stoker_run.trees import Tree, remove_tree

__all__ = ["Luggage", "local_name", "sent_name"]

_CHUNK_BYTES = 1 << 20
_KEPT_S = 30 * 86400.0


def local_name(name: str) -> str:
    """A name that was sent, as this Python names files: of before 3.7 one may take ASCII alone for text."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def sent_name(name: str) -> str:
    """The other way."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


class Luggage:
    """Everything of runs on a machine.

    Args:
        folder: Where.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = folder / "files"
        self._trees = folder / "trees"

    def tree(self, tree: str, entries: List[List[Any]]) -> List[List[Any]]:
        """Note what a folder is made of; returns the contents that are not here, with how much of each is.

        Args:
            tree: What it is known by.
            entries: Its entries, as `entries` has them; a file's third is its content.
        """
        self._sweep()
        self._trees.mkdir(parents=True, exist_ok=True)
        missing = {}
        for entry in entries:
            if entry[0] == "f" and not self.used(self._content(entry[2])):
                part = self._part(entry[2])
                missing[entry[2]] = [entry[2], part.stat().st_size if part.exists() else 0]
        self.replace(self._trees / tree, json.dumps(entries).encode("ascii"), 0o600)
        return list(missing.values())

    def keep(self, content: str, offset: int, size: int, data: bytes) -> None:
        """Append to a content; the last piece puts it in its place.

        Raises:
            OSError: It cannot be written.
            ValueError: It is not what it should be.
        """
        place, part = self._content(content), self._part(content)
        if place.exists():
            # Somebody else has sent the same meanwhile.
            return
        part.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(str(part), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:
                written = os.pwrite(file, data, offset)
                offset, data = offset + written, data[written:]
            if offset < size:
                return
            os.ftruncate(file, size)
            os.fsync(file)
        finally:
            os.close(file)
        try:
            if _sha256(part) != content.partition(".")[0]:
                part.unlink()
                raise ValueError(f"{content} has come damaged")
            place.parent.mkdir(parents=True, exist_ok=True)
            part.replace(place)
        except FileNotFoundError:
            if not place.exists():
                raise

    def restore(self, tree: str, place: Path, name: str) -> bool:
        """Make a folder of what is kept; says whether all of it is here.

        Args:
            tree: What it is known by.
            place: Where the folder is to be.
            name: Its name there, of one or two parts. One that is there already stays as it is.
        """
        target = place / name
        if target.is_dir():
            return True
        listing = self._trees / tree
        if not self.used(listing):
            return False
        staged = place / (name.replace("/", ".") + ".new")
        self.remove(staged)
        staged.mkdir(parents=True)
        made = Tree(staged)
        for kind, inner, *rest in json.loads(listing.read_bytes().decode("ascii")):
            path = local_name(inner)
            made.make_parents(path)
            if kind == "d":
                made.make_folder(path)
            elif kind == "l":
                made.make_link(path, local_name(rest[0]))
            elif not self._copy(rest[0], made, path):
                return False
        staged.replace(target)
        return True

    def _copy(self, content: str, tree: Tree, name: str) -> bool:
        """Copy a content to a new file; says whether it is here."""
        kept = self._content(content)
        if not self.used(kept):
            return False
        mode = 0o700 if content.endswith(".x") else 0o600
        copy = tree.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with kept.open("rb") as source, os.fdopen(copy, "wb") as file:
            os.fchmod(copy, mode)
            shutil.copyfileobj(source, file, _CHUNK_BYTES)
        return True

    @staticmethod
    def entries(folder: Path) -> List[List[Any]]:
        """What lies in a folder, links not followed.

        Returns:
            `["d", name]`, `["l", name, target]`, `["f", name, bytes, executable]`; names are relative, with `/`, and
            bytes that are no UTF-8 are lone surrogates. A folder comes before what is in it.
        """
        found: List[List[Any]] = []
        ahead = [] if folder.is_symlink() or not folder.is_dir() else [folder]
        while ahead:
            for path in sorted(ahead.pop().iterdir()):
                name = sent_name(str(path.relative_to(folder)))
                facts = path.lstat()
                if stat.S_ISLNK(facts.st_mode):
                    found.append(["l", name, sent_name(os.readlink(str(path)))])  # of Python 3.9
                elif stat.S_ISDIR(facts.st_mode):
                    found.append(["d", name])
                    ahead.append(path)
                elif stat.S_ISREG(facts.st_mode):
                    found.append(["f", name, facts.st_size, bool(facts.st_mode & stat.S_IXUSR)])
        return found

    def lock(self, name: str) -> Optional[int]:
        """Take a lock; returns the descriptor that holds it, or None where somebody else has it."""
        folder = self._folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(str(folder / name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return None
        return file

    def remove(self, path: Path) -> None:
        """Remove a folder with everything in it; a folder above it that is empty then goes too."""
        if not path.is_dir():
            return
        remove_tree(path)
        if path.parent.parent == self._folder / "runs":
            try:
                path.parent.rmdir()
            except OSError:
                return

    @staticmethod
    def replace(path: Path, data: bytes, mode: int) -> None:
        """Write a file beside its place and rename it there."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(str(beside), flags, mode)
        try:
            with os.fdopen(file, "wb") as staged:
                staged.write(data)
                staged.flush()
                os.fsync(staged.fileno())
            beside.replace(path)
        except OSError:
            beside.unlink()
            raise

    def _content(self, content: str) -> Path:
        return self._files / content[:2] / content

    def _part(self, content: str) -> Path:
        return self._files / ".parts" / content

    @staticmethod
    def used(path: Path) -> bool:
        """Whether it is here; then it counts as used now."""
        try:
            os.utime(str(path))
        except OSError:
            return False
        return True

    def _sweep(self) -> None:
        """Remove what nobody has used for a month."""
        until = time.time() - _KEPT_S
        for folder in [self._trees, *(self._files.iterdir() if self._files.is_dir() else ())]:
            if not folder.is_dir():
                continue
            for path in folder.iterdir():
                try:
                    if path.stat().st_mtime < until:
                        path.unlink()
                except OSError:
                    continue


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()
