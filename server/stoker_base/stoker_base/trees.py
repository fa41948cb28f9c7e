"""Folders that are filled by names which others chose: nothing is written outside of them, and no depth is too much.

A name is resolved part by part, each below the descriptor of the folder before it, and no link is followed: whatever
somebody has put into the folder meanwhile, or in a listing before, a name stays below its root.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(name: str) -> Tuple[str, ...]:
    """The parts of a name below a folder.

    Raises:
        ValueError: The name is empty, or leads out of the folder.
    """
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} leads out of its folder")
    return parts


class Tree:
    """A folder below which names are written that others chose.

    All methods raise ValueError if a name leads out of the folder, and OSError with the whole path if a folder on the
    way is a link or a file (NotADirectoryError), or the system refuses it.

    Args:
        root: The folder, which exists; links that lead to it are followed.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def make_folder(self, name: str, mode: int = 0o700) -> None:
        """Make a new folder."""
        self._in_parent(name, lambda parent, last: os.mkdir(last, mode, dir_fd=parent))

    def make_parents(self, name: str, mode: int = 0o700) -> None:
        """Make the folders above a name that are missing."""
        for count in range(1, len(parts_of(name))):
            try:
                self.make_folder("/".join(parts_of(name)[:count]), mode)
            except FileExistsError:
                # Whether it is a folder is seen by who opens what is in it.
                continue

    def make_link(self, name: str, target: str) -> None:
        """Make a new link; where it leads does not matter, as nobody here follows it."""
        self._in_parent(name, lambda parent, last: os.symlink(target, last, dir_fd=parent))

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a regular file; returns its descriptor."""

        def opened(parent: int, last: str) -> int:
            # A FIFO would wait for its other end.
            hard = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            file = os.open(last, flags | hard, mode, dir_fd=parent)
            if stat.S_ISREG(os.fstat(file).st_mode):
                return file
            os.close(file)
            raise OSError(errno.EINVAL, "it is no regular file")

        return int(self._in_parent(name, opened))

    def size_bytes(self, name: str) -> Optional[int]:
        """The length of a regular file; None where there is none of this name."""
        facts = self._facts(name)
        return facts.st_size if facts is not None and stat.S_ISREG(facts.st_mode) else None

    def is_folder(self, name: str) -> bool:
        """Whether there is a folder of this name, and no link to one."""
        facts = self._facts(name)
        return facts is not None and stat.S_ISDIR(facts.st_mode)

    def exists(self, name: str) -> bool:
        """Whether there is anything of this name, be it a link that leads nowhere."""
        return self._facts(name) is not None

    def remove(self, name: str) -> None:
        """Remove a file or a link."""
        self._in_parent(name, lambda parent, last: os.unlink(last, dir_fd=parent))

    def move(self, name: str, other: "Tree", new_name: str) -> None:
        """Rename a file or folder to a name below another root, where it replaces a file."""

        def moved(parent: int, last: str) -> None:
            def renamed(new_parent: int, new_last: str) -> None:
                os.rename(last, new_last, src_dir_fd=parent, dst_dir_fd=new_parent)

            other._in_parent(new_name, renamed)  # noqa: SLF001  # of the same class

        self._in_parent(name, moved)

    def _facts(self, name: str) -> Optional[os.stat_result]:
        try:
            facts: os.stat_result = self._in_parent(
                name, lambda parent, last: os.stat(last, dir_fd=parent, follow_symlinks=False)
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        return facts

    def _in_parent(self, name: str, action: Any) -> Any:
        """Call an action with the descriptor of the folder above a name, and the name's last part."""
        parts = parts_of(name)
        try:
            folder = os.open(str(self.root), _FOLDER & ~os.O_NOFOLLOW)
            try:
                for part in parts[:-1]:
                    inner = os.open(part, _FOLDER, dir_fd=folder)
                    os.close(folder)
                    folder = inner
                return action(folder, parts[-1])
            finally:
                os.close(folder)
        except OSError as error:
            # Calls below a descriptor name the last part alone.
            if error.filename is None or not Path(str(error.filename)).is_absolute():
                error.filename, error.filename2 = str(self.root / name), None
            raise


def files_below(folder: Path) -> Iterator[Path]:
    """All below a folder that is no folder itself, however deep; links are not followed.

    A folder that cannot be read, or whose path is longer than the system takes, is passed over.
    """
    ahead = [str(folder)]
    while ahead:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                    else:
                        yield Path(entry.path)
        except OSError:
            continue


def remove_tree(path: Path, ignore_errors: bool = False) -> None:
    """Remove a folder with all that is in it, or a link to one; nothing is done where there is neither.

    Folders within folders are moved up before they are emptied. That takes neither recursion nor a descriptor for
    each level, so trees may be deeper than Python's stack and longer than the system's paths.

    Args:
        ignore_errors: Whether to ignore what cannot be removed.

    Raises:
        OSError: Something cannot be removed; the rest is gone.
    """
    try:
        if path.is_symlink():
            path.unlink()
            return
        try:
            root = os.open(str(path), _FOLDER)
        except FileNotFoundError:
            return
        try:
            failed = _empty(root)
        finally:
            os.close(root)
        if failed is not None:
            failed.filename = str(path)
            raise failed
        path.rmdir()
    except OSError:
        if not ignore_errors:
            raise


def _empty(root: int) -> Optional[OSError]:
    """Remove what is in a folder; returns the first error of what stays."""
    failed: Dict[str, OSError] = {}
    while True:
        names = [name for name in os.listdir(root) if name not in failed]  # the same
        if not names:
            return next(iter(failed.values()), None)
        for name in names:
            error = _remove(root, name)
            if error is not None:
                failed[name] = error


def _remove(root: int, name: str) -> Optional[OSError]:
    """Remove an entry of a folder; the folders in it become further entries."""
    failed = None
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=root)
            return None
        folder = os.open(name, _FOLDER, dir_fd=root)
        try:
            for inner in os.listdir(folder):  # noqa: PTH208  # the same
                try:
                    _move_up(folder, inner, root)
                except OSError as error:
                    failed = failed or error
        finally:
            os.close(folder)
        if failed is None:
            os.rmdir(name, dir_fd=root)
    except OSError as error:
        return error
    return failed


def _move_up(folder: int, name: str, root: int) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        os.rename(name, ".removed-" + os.urandom(16).hex(), src_dir_fd=folder, dst_dir_fd=root)
