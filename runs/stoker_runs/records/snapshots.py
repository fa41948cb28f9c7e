"""The sources of a run: a snapshot of its folder, digests of its data, the commit.

Each distinct file is stored once, and a snapshot is a tree of hard links.

snapshots/DIGEST/…          a snapshot, read-only
snapshots/.files/XX/SHA     the content of a file; SHA.x if it is executable
snapshots/.seen.json        digests of files by their `stat` results, so that unchanged ones are not read again
snapshots/.staging/…        snapshots under construction
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from stoker.system.durable import (
    Copied,
    copy_regular,
    private_folder,
    read_regular,
    replace_file,
    staging_folder,
)
from stoker_base.trees import files_below
from stoker_runs.errors import SubmissionRefused

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# A file modified so recently may be modified again without a change of its time.
_SETTLED_NS: Final = 2_000_000_000
_REMEMBERED: Final = 100_000


class SeenFiles:
    """A cache of digests of files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now_ns = time.time_ns()
        self._changed = False
        self._names: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            names = json.loads(path.read_bytes())
            self._names = names if isinstance(names, dict) else {}

    @staticmethod
    def _key(facts: os.stat_result) -> str:
        times = f"{facts.st_mtime_ns} {facts.st_ctime_ns}"
        return f"{facts.st_dev} {facts.st_ino} {facts.st_size} {times} {facts.st_mode}"

    def digest_of(self, facts: os.stat_result) -> str | None:
        """The cached digest of a file, if it is unchanged."""
        return self._names.get(self._key(facts))

    def remember(self, facts: os.stat_result, digest: str) -> None:
        """Cache a digest, unless the file is so new that it may change undetected."""
        if self._now_ns - max(facts.st_mtime_ns, facts.st_ctime_ns) > _SETTLED_NS:
            self._names[self._key(facts)] = digest
            self._changed = True

    def write(self) -> None:
        """Store the cache if it has changed, limited to the latest entries."""
        if self._changed:
            names = dict(list(self._names.items())[-_REMEMBERED:])
            # Failing to store the cache only costs time.
            with contextlib.suppress(OSError):
                replace_file(self._path, json.dumps(names).encode())


_NEVER: Final = (".git", "__pycache__", ".ipynb_checkpoints", ".stoker")
"""Folders that are always excluded, at any depth."""
_OF_VIRTUAL_ENVIRONMENT: Final = "pyvenv.cfg"
"""A file that each virtual environment has; these belong to this machine, and are excluded."""
_OF_RUNS: Final = frozenset({"outputs", "logs"})
"""Folders at the top level that belong to runs."""
_IGNORE_FILES: Final = (".amlignore", ".gitignore")
_MOST_PATTERN_BYTES: Final = 1 << 20
_DEEPEST: Final = 200
"""Levels of folders: sources have far fewer, and each is a call within another."""


class SourceFile(NamedTuple):
    """One file of a source folder.

    Attributes:
        name: Its path relative to the folder, with `/`.
        stat: Its `stat` result, with links followed.
    """

    name: str
    path: str
    stat: os.stat_result


def source_files(
    source: Path, workspace: Path | None = None, skipped: list[str] | None = None
) -> list[SourceFile]:
    """List the files of a folder that belong to a snapshot, by name.

    Excluded are the patterns of `.amlignore`, or of `.gitignore` if there is no `.amlignore`; both at the top of the
    folder, with git's syntax.

    Args:
        workspace: Folder of the workspace, which is excluded.
        skipped: Receives what was skipped without a pattern: links to folders, sockets.

    Raises:
        OSError: A folder or an ignore file cannot be read, or folders lie in one another without end.
    """
    spec = _patterns(source)
    away = None if workspace is None else os.path.realpath(workspace)
    found = list(_walk(str(source), "", spec, away, skipped if skipped is not None else []))
    return sorted(found, key=lambda file: file.name)


def _patterns(source: Path) -> GitIgnoreSpec | None:
    for name in _IGNORE_FILES:
        try:
            text = read_regular(source / name, _MOST_PATTERN_BYTES)
        except FileNotFoundError:
            continue
        # Imported here because most folders have no such file, and the import takes longer than listing them.
        from pathspec import GitIgnoreSpec

        return GitIgnoreSpec.from_lines(text.decode("utf-8", "replace").splitlines())
    return None


def _walk(
    folder: str, prefix: str, spec: GitIgnoreSpec | None, away: str | None, skipped: list[str]
) -> Iterator[SourceFile]:
    if prefix.count("/") > _DEEPEST:
        raise OSError(
            errno.ELOOP, f"it lies more than {_DEEPEST} folders deep; name it in .amlignore", folder
        )
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name in _NEVER or (not prefix and entry.name in _OF_RUNS):
                    continue
                if away is not None and os.path.realpath(entry.path) == away:
                    continue
                if os.path.exists(f"{entry.path}/{_OF_VIRTUAL_ENVIRONMENT}"):  # noqa: PTH110  # for each folder
                    continue
                # As in git: files in an excluded folder cannot be included again.
                if spec is None or not spec.match_file(f"{name}/"):
                    yield from _walk(entry.path, f"{name}/", spec, away, skipped)
            elif spec is not None and spec.match_file(name):
                continue
            elif entry.is_file():
                yield SourceFile(name, entry.path, entry.stat())
            else:
                skipped.append(name)


DEFAULT_LIMIT_BYTES: Final = 300_000_000
_SHOWN: Final = 10


class Snapshot(Struct, frozen=True):
    """The snapshot of a run's files.

    Attributes:
        digest: Digest of names, contents and executable bits.
        added_bytes: Total size of those that were not stored before.
        skipped: Skipped entries: links to folders, sockets.
        changed: Files that have changed while they were read; stored is what was read.
    """

    digest: str
    files: int
    size_bytes: int
    added_bytes: int
    skipped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class SnapshotStore:
    """The snapshots of a workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """The folder of a snapshot."""
        return self.folder / digest

    def measure(self, source: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> tuple[int, int]:
        """Return number and total size of the files of a source folder, without storing any.

        Raises:
            SubmissionRefused: They are larger than the limit.
        """
        files = self._listed(source, limit_bytes, [])
        return len(files), sum(file.stat.st_size for file in files)

    def take(self, source: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Snapshot:
        """Store the files of a source folder.

        Raises:
            SubmissionRefused: They are larger than the limit, or one cannot be read.
        """
        skipped: list[str] = []
        files = self._listed(source, limit_bytes, skipped)
        seen = SeenFiles(private_folder(self.folder) / ".seen.json")
        added_bytes = 0
        changed: list[str] = []
        kept: list[tuple[SourceFile, str]] = []
        with staging_folder(self.folder) as staging:
            for file in files:
                name = seen.digest_of(file.stat)
                if name is None or not self._has(name, file.stat.st_size):
                    copied = self._copied(file, staging / "file")
                    name, size_bytes = self._keep(copied, staging / "file")
                    added_bytes += size_bytes
                    if copied.changed or copied.size_bytes != file.stat.st_size:
                        changed.append(file.name)
                    else:
                        seen.remember(file.stat, name)
                kept.append((file, name))
            seen.write()
            listing = "".join(f"{file.name}\0{name}\n" for file, name in kept)
            digest = hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()[:32]
            if not self.path(digest).is_dir():
                self._link(digest, kept, staging / "tree")
        size_bytes = sum(file.stat.st_size for file in files)
        return Snapshot(digest, len(files), size_bytes, added_bytes, tuple(skipped), tuple(changed))

    def restore(self, digest: str, place: Path) -> None:
        """Copy a snapshot to a new folder, in which a script can run and write."""
        tree = self.path(digest)
        if not tree.is_dir():
            raise SubmissionRefused(f"the snapshot {digest} is not in {self.folder}; submit the script again")
        shutil.copytree(tree, place, copy_function=_writable_copy)

    def _listed(self, source: Path, limit_bytes: int, skipped: list[str]) -> list[SourceFile]:
        try:
            files = source_files(source, self.folder.parent, skipped)
        except OSError as error:
            raise SubmissionRefused(f"{error.filename or source} cannot be read: {error.strerror}") from error
        size_bytes = sum(file.stat.st_size for file in files)
        if size_bytes > limit_bytes:
            raise SubmissionRefused(_too_large(source, files, size_bytes, limit_bytes))
        return files

    def _content(self, name: str) -> Path:
        return self.folder / ".files" / name[:2] / name

    def _has(self, name: str, size_bytes: int) -> bool:
        """Whether a content is stored completely; a power cut can leave an empty file."""
        try:
            return self._content(name).stat().st_size == size_bytes
        except FileNotFoundError:
            return False

    @staticmethod
    def _copied(file: SourceFile, staged: Path) -> Copied:
        try:
            return copy_regular(Path(file.path), staged, sync=False)
        except OSError as error:
            raise SubmissionRefused(
                f"{file.name} cannot be kept: {error.strerror}; mend that, or name it in .amlignore"
            ) from error

    def _keep(self, copied: Copied, staged: Path) -> tuple[str, int]:
        """Store a file's copy under its digest; returns its name there, and the number of new bytes."""
        name = copied.sha256 + (".x" if copied.executable else "")
        place = self._content(name)
        if self._has(name, copied.size_bytes):
            staged.unlink()
            return name, 0
        private_folder(place.parent)
        staged.rename(place)
        return name, copied.size_bytes

    def _link(self, digest: str, kept: Sequence[tuple[SourceFile, str]], staged: Path) -> None:
        staged.mkdir(mode=0o700)
        made = {""}
        for file, name in kept:
            folder = file.name.rpartition("/")[0]
            if folder not in made:
                (staged / folder).mkdir(parents=True, exist_ok=True)
                made.add(folder)
            _linked(self._content(name), staged / file.name)
        try:
            staged.rename(self.path(digest))
        except OSError:
            # Another process has created the same snapshot meanwhile.
            if not self.path(digest).is_dir():
                raise


def _linked(content: Path, place: Path) -> None:
    try:
        place.hardlink_to(content)
    except OSError:
        # The file system has no hard links, or the file has the maximum number of them, as empty files may.
        shutil.copy2(content, place)


def _writable_copy(source: str, place: str) -> None:
    shutil.copyfile(source, place)
    executable = bool(os.stat(source).st_mode & stat.S_IXUSR)  # noqa: PTH116  # copytree's paths are texts
    os.chmod(place, 0o700 if executable else 0o600)  # noqa: PTH101


def _too_large(source: Path, files: Sequence[SourceFile], size_bytes: int, limit_bytes: int) -> str:
    largest = sorted(files, key=lambda file: file.stat.st_size, reverse=True)[:_SHOWN]
    lines = "".join(f"\n  {file.stat.st_size / 1e6:10.1f} MB  {file.name}" for file in largest)
    return (
        f"the files of {source} have {size_bytes / 1e6:.1f} MB, and a snapshot may have {limit_bytes / 1e6:.1f} MB."
        f" The largest:{lines}\nWrite a line such as /{largest[0].name} into {source / '.amlignore'} for each that "
        "the script does not need, or allow more with --snapshot-limit MB"
    )


_LARGE_BYTES: Final = 1 << 28
_SAMPLE_BYTES: Final = 1 << 20


def data_seen(snapshots_dir: Path) -> Path:
    """Return the file that has the digests of data that was read before."""
    return snapshots_dir / ".data-seen.json"


def data_digests(inputs: Mapping[str, str], kept: Path) -> dict[str, str]:
    """Return a digest of each input: of its files' names and contents.

    Files over 256 MB are identified by size, time, and their first and last MB, because reading them would take too
    long for a submission. Unchanged files are not read again.

    Args:
        inputs: Path of each input, a file or a folder, by name.
    """
    if not inputs:
        return {}
    private_folder(kept.parent)
    seen = SeenFiles(kept)
    try:
        digests = {name: _digest_of_data(Path(path), seen) for name, path in inputs.items()}
    except OSError as error:
        raise SubmissionRefused(f"the data {error.filename} cannot be read: {error.strerror}") from error
    seen.write()
    return digests


def measure_data(path: Path) -> tuple[int, int]:
    """Return the number of files of an input, and their size in bytes."""
    sizes = [file.stat().st_size for _, file in data_files(path)]
    return len(sizes), sum(sizes)


def _digest_of_data(path: Path, seen: SeenFiles) -> str:
    listing = hashlib.sha256()
    for name, file in data_files(path):
        facts = file.stat()
        content = seen.digest_of(facts)
        if content is None:
            content = _digest_of_file(file, facts)
            seen.remember(facts, content)
        listing.update(f"{name}\0{content}\n".encode("utf-8", "surrogateescape"))
    return listing.hexdigest()[:32]


def data_files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each file of an input, in the order of its digest.

    Raises:
        OSError: It is neither a file nor a folder, or is not there.
    """
    if not path.is_dir():
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is neither a file nor a folder", str(path))
        yield path.name, path
        return
    for file in sorted(files_below(path)):
        if file.is_file():
            yield file.relative_to(path).as_posix(), file


def _digest_of_file(file: Path, facts: os.stat_result) -> str:
    with file.open("rb") as source:
        if facts.st_size <= _LARGE_BYTES:
            return hashlib.file_digest(source, "sha256").hexdigest()
        digest = hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns}".encode())
        digest.update(source.read(_SAMPLE_BYTES))
        source.seek(-_SAMPLE_BYTES, os.SEEK_END)
        digest.update(source.read(_SAMPLE_BYTES))
    return digest.hexdigest()


_TIMEOUT_S: Final = 5.0
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@]+@")


def git_properties(source: Path) -> dict[str, str]:
    """Return repository, branch, commit and whether there are changes; empty if the folder is in no repository.

    Credentials are removed from the repository's URL.
    """
    commit = _output_of_git(source, "rev-parse", "HEAD")
    if commit is None:
        return {}
    branch = _output_of_git(source, "rev-parse", "--abbrev-ref", "HEAD") or ""
    address = _CREDENTIALS.sub("", _output_of_git(source, "config", "--get", "remote.origin.url") or "")
    dirty = _output_of_git(source, "status", "--porcelain", "--untracked-files=no", "--", ".")
    facts = {
        "azureml.git.repository_uri": address,
        "azureml.git.branch": branch,
        "azureml.git.commit": commit,
        "azureml.git.dirty": str(bool(dirty)),
        "mlflow.source.git.repoURL": address,
        "mlflow.source.git.branch": branch,
        "mlflow.source.git.commit": commit,
    }
    return {name: value for name, value in facts.items() if value}


def _output_of_git(source: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(source), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
