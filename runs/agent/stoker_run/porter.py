"""The porter: does on this machine what an engine on another one asks for, through standard input and output.

The engine starts the porter over SSH and keeps it while there are requests. A request and an answer are each a frame:
a line with two lengths, an object of JSON, and bytes. The porter keeps nothing in memory but locks. It ends after a
minute without a request, because a connection may break without a word.

files/XX/SHA            a content by its SHA-256; SHA.x where it may be executed
files/.parts/SHA        as much of one as has come so far
trees/DIGEST            which contents a folder is made of: JSON, entries as in `entries`
runs/RUN_ID/N/          the attempts
"""

import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

from stoker_base.package_modules import importable_modules
from stoker_base.trees import Tree, remove_tree
from stoker_run import interpreters, observing
from stoker_run.__main__ import main
from stoker_run.json_files import replace_bytes, replace_json

_CHUNK_BYTES = 1 << 20
_KEPT_S = 30 * 86400.0
_ENVIRONMENTS_KEPT_S = 60 * 86400.0


def local_name(name: str) -> str:
    """A name that was sent, as this Python names files: of before 3.7 one may take ASCII alone for text."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def sent_name(name: str) -> str:
    """The inverse of `local_name`."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


class ContentStore:
    """The files of runs on a machine, stored by content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = folder / "files"
        self._trees = folder / "trees"

    def add_tree(self, tree: str, entries: List[List[Any]]) -> List[List[Any]]:
        """Store the listing of a folder; return the missing contents, each with its stored length."""
        self._sweep()
        self._trees.mkdir(parents=True, exist_ok=True)
        missing = {}
        for entry in entries:
            if entry[0] == "f" and not self.touch(self._content(entry[2])):
                missing[entry[2]] = [entry[2], _size_bytes(self._part(entry[2]))]
        replace_bytes(self._trees / tree, json.dumps(entries).encode("ascii"), 0o600)
        return list(missing.values())

    def add_part(self, content: str, offset: int, size: int, data: bytes) -> None:
        """Append a piece to a content; the last piece completes it.

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

    def make_room(self, tree: str, size_bytes: int, limit_bytes: float) -> bool:
        """Remove contents until those of a tree fit, the least recently used first; return whether they do.

        Contents that are linked into an attempt stay.
        """
        wanted = {
            entry[2]
            for entry in json.loads((self._trees / tree).read_bytes().decode("ascii"))
            if entry[0] == "f"
        }
        others = []
        for path in self._files.glob("[!.]*/*"):
            try:
                facts = path.stat()
            except OSError:
                continue
            if path.name not in wanted:
                others.append((facts.st_mtime, facts.st_size, facts.st_nlink, path))
        left_bytes = sum(size for _, size, _, _ in others)
        for _, size, links, path in sorted(others):
            if left_bytes + size_bytes <= limit_bytes:
                break
            if links == 1:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                left_bytes -= size
        return left_bytes + size_bytes <= limit_bytes

    def restore(self, tree: str, place: Path, name: str, shared: bool = False) -> bool:
        """Create a folder from stored contents; return whether all of them were here.

        Args:
            name: Its name there, of one or two parts. An existing folder stays as it is.
            shared: Whether to link the contents, read-only, instead of copying them.
        """
        target = place / name
        if target.is_dir():
            return True
        listing = self._trees / tree
        if not self.touch(listing):
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
            elif not (self._link(rest[0], staged / path) if shared else self._copy(rest[0], made, path)):
                return False
        if shared:
            # A script that writes here gets an error, and loses nothing unnoticed.
            for folder in [*staged.rglob("*"), staged]:
                if folder.is_dir():
                    folder.chmod(0o500)
        target.parent.mkdir(exist_ok=True)
        staged.replace(target)
        return True

    def _link(self, content: str, place: Path) -> bool:
        """Link a content to a new name, for reading; return whether it is stored."""
        kept = self._content(content)
        if not self.touch(kept):
            return False
        kept.chmod(0o400)
        try:
            os.link(str(kept), str(place))
        except OSError:
            # The file system has no links, or no more of this file.
            shutil.copyfile(str(kept), str(place))
            place.chmod(0o400)
        return True

    def _copy(self, content: str, tree: Tree, name: str) -> bool:
        """Copy a content to a new file; return whether it is stored."""
        kept = self._content(content)
        if not self.touch(kept):
            return False
        mode = 0o700 if content.endswith(".x") else 0o600
        copy = tree.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with kept.open("rb") as source, os.fdopen(copy, "wb") as file:
            os.fchmod(copy, mode)
            shutil.copyfileobj(source, file, _CHUNK_BYTES)
        return True

    @staticmethod
    def entries(folder: Path) -> List[List[Any]]:
        """List the files of a folder; links are not followed.

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
        """Acquire a lock; return its descriptor, or None if another process holds it."""
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
        for folder in path.glob("inputs*/**/"):
            folder.chmod(0o700)
        remove_tree(path)
        if path.parent.parent == self._folder / "runs":
            try:
                path.parent.rmdir()
            except OSError:
                return

    def _content(self, content: str) -> Path:
        return self._files / content[:2] / content

    def _part(self, content: str) -> Path:
        return self._files / ".parts" / content

    @staticmethod
    def touch(path: Path) -> bool:
        """Return whether a file exists, and mark it as used now."""
        try:
            os.utime(str(path))
        except OSError:
            return False
        return True

    def _sweep(self) -> None:
        """Remove contents that were not used for a month."""
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


def _size_bytes(path: Path) -> int:
    """Return the size of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()


def remove_unused_environments(folder: Path) -> None:
    """Remove environments that no run has used for two months, and that no process uses."""
    until = time.time() - _ENVIRONMENTS_KEPT_S
    # Without a manifest one is being built, or its building was cut off: the next builder sees to that.
    manifests = (folder / "environments").glob("*/manifest.json")
    unused = [manifest for manifest in manifests if manifest.stat().st_mtime < until]
    busy = _environments_of_processes() if unused else set()
    for manifest in unused:
        place = manifest.parent
        if os.path.realpath(str(place / "venv")) in busy:
            continue
        lock = ContentStore(folder).lock(place.name)
        if lock is None:
            continue
        try:
            # First: what is removed by half does not exist.
            manifest.unlink()
            shutil.rmtree(str(place), ignore_errors=True)
        finally:
            os.close(lock)


def _environments_of_processes() -> Set[str]:
    """Return the virtual environments of all readable processes."""
    found = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            variables = Path(entry.path, "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"VIRTUAL_ENV="):
                found.add(os.path.realpath(os.fsdecode(variable.partition(b"=")[2])))
    return found


_IDLE_S = 60.0
_READ_BYTES = 1 << 20
_POLL_BYTES = 4 << 20
Answer = Tuple[Dict[str, Any], bytes]


def serve(folder: str) -> None:
    """Answer requests from standard input until it ends.

    Args:
        folder: The target's folder, absolute.
    """
    inlet, porter = _Frames(0), Porter(Path(folder))
    while True:
        found = inlet.frame()
        if found is None:
            return
        try:
            reply, data = porter.do(found[0], found[1])
        except _HungUp:
            return
        except OSError as error:
            reply, data = (
                {"errno": error.errno, "error": str(error.strerror or error), "path": error.filename},
                b"",
            )
        except Exception:  # noqa: BLE001  # told to whoever has asked
            reply, data = {"errno": None, "error": traceback.format_exc(), "path": ""}, b""
        content = json.dumps(reply).encode("ascii")
        _write(b"%d %d\n" % (len(content), len(data)) + content + data)


class _HungUp(Exception):
    """The engine has closed the connection."""


class Porter:
    """Handles requests; each operation is a method."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents = ContentStore(folder)
        self._locks: List[int] = []

    def do(self, request: Dict[str, Any], data: bytes) -> Answer:
        """Handle one request: `op` names the operation, the rest are its arguments. Return the answer and bytes."""
        given = dict(request)
        operation = getattr(self, "_" + given.pop("op"))
        if "run" in given:
            given["place"] = self._folder / "runs" / given.pop("run") / str(given.pop("attempt"))
        if data:
            given["data"] = data
        answer = operation(**given)
        return answer if isinstance(answer, tuple) else (answer or {}, b"")

    def _ping(self) -> None:
        """Keep the porter from ending."""

    def _check(self) -> Dict[str, Any]:
        facts = observing.check()
        disk = os.statvfs(str(self._folder))
        return {**facts, "folder": str(self._folder), "free_bytes": disk.f_bavail * disk.f_frsize}

    def _poll(self, place: Path, offsets: Dict[str, int], renewal: Optional[int] = None) -> Answer:
        """Return the state of an attempt and new data of its growing files; renew its lease."""
        if renewal is not None and place.is_dir():
            _renew_lease(place / "lease.json", renewal)
        seen = observing.observe(place)
        chunks, data, left = [], [], _POLL_BYTES
        for name, size in seen["sizes"].items():
            offset = offsets.get(name, 0)
            if size > offset and left > 0:
                found = _read_part(place / name, offset, min(size - offset, left))
                chunks.append([name, offset, len(found)])
                data.append(found)
                left -= len(found)
        return {"seen": seen, "chunks": chunks}, b"".join(data)

    def _write(self, place: Path, name: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file of an attempt, whole."""
        place.mkdir(parents=True, exist_ok=True)
        replace_bytes(place / name, data, mode)

    def _start(self, place: Path) -> Dict[str, Any]:
        """Start the agent as a fork of this process, which has imported it. The agent outlives the porter."""
        listening, saying = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_as_agent(place, self._folder, saying)
        os.close(saying)
        with os.fdopen(listening, "rb") as pipe:
            printed = pipe.read()
        _, status = os.waitpid(pid, 0)
        left = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        return {"status": left, "said": printed.decode("utf-8", "replace")}

    def _stop(self, place: Path, grace_s: float, reason: str) -> None:
        if place.is_dir():
            observing.stop(place, grace_s, reason)

    def _sweep(self, place: Path) -> Dict[str, Any]:
        return {"killed": observing.sweep(place) if place.is_dir() else 0}

    def _clean(self, place: Path) -> None:
        """Kill what is left of an attempt, and remove all its files."""
        if place.is_dir():
            observing.sweep(place)
        self._contents.remove(place)

    def _tree(
        self, tree: str, data: bytes, size_bytes: int = 0, limit_bytes: Optional[float] = None
    ) -> Dict[str, Any]:
        with contextlib.suppress(OSError):
            remove_unused_environments(self._folder)
        missing = self._contents.add_tree(tree, json.loads(data.decode("ascii")))
        has_room = limit_bytes is None or self._contents.make_room(tree, size_bytes, limit_bytes)
        return {"missing": missing, "has_room": has_room}

    def _keep(self, content: str, offset: int, size: int, data: bytes = b"") -> None:
        self._contents.add_part(content, offset, size, data)

    def _restore(self, place: Path, tree: str, name: str, shared: bool = False) -> Dict[str, Any]:
        return {"done": self._contents.restore(tree, place, name, shared)}

    def _list(self, place: Path, names: List[str]) -> Answer:
        found = {name: self._contents.entries(place / name) for name in names}
        return {}, json.dumps(found).encode("ascii")

    def _read(self, place: Path, name: str, offset: int, size: int) -> Answer:
        return {}, _read_part(place / local_name(name), offset, min(size, _READ_BYTES))

    def _interpreters(self) -> Dict[str, Any]:
        return interpreters.find_pythons()

    def _packages(self, python: str) -> Dict[str, Any]:
        return interpreters.installed_packages(python)

    def _modules(self, site_packages: str, names: List[str]) -> Dict[str, Any]:
        """The modules of packages with these names."""
        return {"modules": importable_modules(site_packages, names)}

    def _home(self, name: str) -> Dict[str, Any]:
        """Create a folder, relative to the target's or from `/` or `~`; return its path."""
        path = self._folder / Path(name).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        return {"path": str(path)}

    def _put(self, name: str, data: bytes = b"") -> None:
        """Write a file in the target's folder."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, data, 0o600)

    def _get(self, name: str) -> Answer:
        """Return the content of a file in the target's folder, if it exists; it counts as used now."""
        path = self._folder / name
        self._contents.touch(path)
        return ({"there": True}, path.read_bytes()) if path.is_file() else ({"there": False}, b"")

    def _lock(self, name: str) -> Dict[str, Any]:
        """Acquire a lock until this process ends; return whether that succeeded."""
        lock = self._contents.lock(name)
        if lock is not None:
            self._locks.append(lock)
        return {"taken": lock is not None}

    def _unlock(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def _remove(self, name: str) -> None:
        self._contents.remove(self._folder / name)

    def _ask_command(self, command: List[str], place: Optional[Path] = None) -> Answer:
        """Run a command with little output; return its output and, separately, its errors."""
        with tempfile.TemporaryFile() as complaints:
            reply, output = self._run_command(command, [], place, complaints.fileno())
            complaints.seek(0)
            return {**reply, "complaints": complaints.read(_POLL_BYTES).decode("utf-8", "replace")}, output

    def _run_command(
        self,
        command: List[str],
        without: List[str],
        place: Optional[Path] = None,
        complaints: int = subprocess.STDOUT,
    ) -> Answer:
        """Run a command; kill it if the engine closes the connection."""
        environment = {name: value for name, value in os.environ.items() if name not in without}
        running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            cwd=str(place or self._folder),
            env=environment,
            start_new_session=True,
        )
        assert running.stdout is not None
        output = running.stdout.fileno()
        chunks: List[bytes] = []
        while True:
            ready, _, _ = select.select([output, 0], [], [])
            if output in ready:
                data = os.read(output, _READ_BYTES)
                if not data:
                    return {"status": running.wait()}, b"".join(chunks)[-_POLL_BYTES:]
                chunks.append(data)
            elif 0 in ready:
                # Nothing is asked before this is answered: it is the end.
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
                raise _HungUp


class _Frames:
    """Frames of a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = b""

    def frame(self) -> Optional[Tuple[Dict[str, Any], bytes]]:
        """Return the next frame; None at the end, or after a minute without one."""
        while b"\n" not in self._held:
            if not self._more():
                return None
        line, _, self._held = self._held.partition(b"\n")
        length, size = map(int, line.split())
        content, data = self._bytes(length), self._bytes(size)
        if content is None or data is None:
            return None
        return json.loads(content.decode("ascii")), data

    def _bytes(self, count: int) -> Optional[bytes]:
        pieces, there = [self._held], len(self._held)
        self._held = b""
        while there < count:
            if not self._more():
                return None
            pieces.append(self._held)
            there += len(self._held)
            self._held = b""
        whole = b"".join(pieces)
        self._held = whole[count:]
        return whole[:count]

    def _more(self) -> bool:
        if not select.select([self._descriptor], [], [], _IDLE_S)[0]:
            return False
        data = os.read(self._descriptor, _READ_BYTES)
        self._held += data
        return bool(data)


def _run_as_agent(place: Path, folder: Path, saying: int) -> None:
    """Run the command `start` in a fork. Never returns to the porter's code."""
    status = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for source, target in ((nowhere, 0), (nowhere, 1), (saying, 2)):
            os.dup2(source, target)
        # Locks of the porter's among them.
        os.closerange(3, 4096)
        os.chdir(str(folder))
        status = main(["start", str(place), "--detach"])
    finally:
        sys.stderr.flush()
        os._exit(status)


def _read_part(path: Path, offset: int, size: int) -> bytes:
    file = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        pieces = []
        while size > 0:
            data = os.pread(file, size, offset)
            if not data:
                break
            pieces.append(data)
            offset, size = offset + len(data), size - len(data)
        return b"".join(pieces)
    finally:
        os.close(file)


def _renew_lease(path: Path, renewal: int) -> None:
    """Replace the lease; if the disk is full, overwrite it in place, as it has the same length."""
    try:
        replace_json(path, {"renewal": renewal})
    except OSError:
        file = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, json.dumps({"renewal": renewal}).encode("ascii") + b"\n")
        finally:
            os.close(file)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
