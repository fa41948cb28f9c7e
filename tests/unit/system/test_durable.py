"""Files that are replaced whole, and errors of those that cannot be."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.system import durable
from stoker.system.durable import lock_file, locked, replace_file


def _fails(code: int) -> Callable[..., None]:
    """A system call that fails and names no file, as those by descriptor do."""

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_full_disk_leaves_the_old_file_and_is_reported_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path that the operator knows, and nothing is left beside it."""
    path = tmp_path / "small.keys"
    replace_file(path, b"old")
    monkeypatch.setattr("stoker.system.durable.os.fsync", _fails(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left on device") as refused:
        replace_file(path, b"new")
    assert refused.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_folder_is_reported_with_the_target_path(tmp_path: Path) -> None:
    """Not with the name under which the content would have been staged."""
    path = tmp_path / "missing" / "small.keys"
    with pytest.raises(FileNotFoundError) as refused:
        replace_file(path, b"new")
    assert refused.value.filename == str(path)


def test_refused_lock_is_reported_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have none; one that somebody else holds is another error."""
    path = tmp_path / ".lock"
    held = lock_file(path)
    with pytest.raises(BlockingIOError):
        lock_file(path, wait=False)
    os.close(held)
    monkeypatch.setattr("stoker.system.durable.fcntl.flock", _fails(errno.ENOLCK))
    with pytest.raises(OSError, match="No locks available") as refused:
        lock_file(path)
    assert refused.value.filename == str(path)


def test_process_that_holds_a_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A command that waits for a lock names the process that holds it."""
    monkeypatch.setattr(durable, "_PATIENCE_S", 0.0)
    holder = lock_file(tmp_path / "lock")

    class Released(logging.Handler):
        """Releases the lock once the holder has been named."""

        def emit(self, _record: logging.LogRecord) -> None:
            os.close(holder)

    handler = Released()
    logging.getLogger(durable.__name__).addHandler(handler)
    try:
        with caplog.at_level(logging.WARNING), locked(tmp_path / "lock"):
            pass
    finally:
        logging.getLogger(durable.__name__).removeHandler(handler)
    assert f"waiting for {tmp_path / 'lock'}, which the process {os.getpid()} holds" in caplog.text
