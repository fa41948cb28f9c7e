"""Lists the files of a source folder that belong to a snapshot: all that its ignore file does not exclude."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.system.durable import read_regular

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


__all__ = ["SourceFile", "source_files"]

_NEVER: Final = (".git", "__pycache__", ".ipynb_checkpoints", ".stoker")
"""Folders that are always excluded, at any depth."""
_OF_RUNS: Final = frozenset({"outputs", "logs"})
"""Folders at the top level that belong to runs."""
_IGNORE_FILES: Final = (".amlignore", ".gitignore")
_MOST_PATTERN_BYTES: Final = 1 << 20
_DEEPEST: Final = 200
"""Levels of folders: sources have far fewer, and each is a call within another."""


class SourceFile:
    """One file of a source folder.

    Attributes:
        name: Its path relative to the folder, with `/`.
        path: Its path.
        stat: Its `stat` result, with links followed.
    """

    __slots__ = ("name", "path", "stat")

    def __init__(self, name: str, path: str, stat: os.stat_result) -> None:
        self.name, self.path, self.stat = name, path, stat


def source_files(
    source: Path, workspace: Path | None = None, skipped: list[str] | None = None
) -> list[SourceFile]:
    """List the files of a folder that belong to a snapshot, by name.

    Excluded are the patterns of `.amlignore`, or of `.gitignore` if there is no `.amlignore`; both at the top of the
    folder, with git's syntax.

    Args:
        source: The folder.
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
                # As in git: files in an excluded folder cannot be included again.
                if spec is None or not spec.match_file(f"{name}/"):
                    yield from _walk(entry.path, f"{name}/", spec, away, skipped)
            elif spec is not None and spec.match_file(name):
                continue
            elif entry.is_file():
                yield SourceFile(name, entry.path, entry.stat())
            else:
                skipped.append(name)
