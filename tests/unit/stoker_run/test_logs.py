"""The log of a process of a run."""

import errno
import os
from pathlib import Path

import pytest

from stoker_run.logs import Log, last_lines, traceback_in


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log_0.txt")


def read(log: Log, tmp_path: Path) -> bytes:
    return (tmp_path / "log_0.txt").read_bytes()


def test_printed_bytes_are_logged_at_once(log: Log, tmp_path: Path) -> None:
    """Lines of both kinds, bytes that are no text, and a line's beginning are logged at once."""
    log.feed(b"one\ntwo\r\n\xff\xfe\nPassword: ", 0.0)
    assert read(log, tmp_path) == b"one\ntwo\r\n\xff\xfe\nPassword: "


@pytest.mark.parametrize("form", ["\r{}%", "{}%\r"])
def test_a_progress_bar_is_thinned_to_one_a_second(form: str, log: Log, tmp_path: Path) -> None:
    """Of a thousand drawings within three seconds few are kept, the last and what follows among them."""
    for number in range(1000):
        log.feed(form.format(number).encode(), number * 0.003)
        log.tick(number * 0.003)
    log.feed(b"\ndone\n", 3.0)
    log.close(3.0)
    kept = read(log, tmp_path)
    assert kept.count(b"%") <= 6
    assert last_lines(kept) == ["999%", "done"]


def test_a_bar_that_stands_still_is_shown(log: Log, tmp_path: Path) -> None:
    """A second after it was drawn, without a newline."""
    log.feed(b"\r10%", 0.0)
    log.feed(b"\r20%", 0.5)
    assert b"20%" not in read(log, tmp_path)
    log.tick(1.1)
    assert read(log, tmp_path) == b"\r10%\r20%"


def test_a_full_disk_holds_nothing_up(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines wait for room and are written later, too many are counted, and the reason is reported meanwhile."""
    real = os.write

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    log.feed(b"kept\n", 0.0)
    for _ in range(9):
        log.feed(b"x" * (1 << 20) + b"\n", 0.1)
    assert log.problem == "the log cannot be written: No space left on device"
    monkeypatch.setattr(os, "write", real)
    log.tick(0.5)
    assert read(log, tmp_path) == b""
    log.tick(1.5)
    assert log.problem is None
    found = read(log, tmp_path)
    assert found.startswith(b"kept\nxxx")
    assert found.endswith(b"\n[%d bytes are missing here: the disk was full]\n" % (2 * ((1 << 20) + 1)))


CHAIN = b"""before
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    raise ValueError("no data\\nat all")
ValueError: no data
at all

after
"""


def test_the_last_traceback_is_found_with_its_causes() -> None:
    """From the first of the chain to the end of the message, and no further."""
    found = traceback_in(b"Traceback (most recent call last):\n  old\nOldError: x\nlines\n" + CHAIN)
    assert found is not None
    assert found.startswith('Traceback (most recent call last):\n  File "a.py", line 1')
    assert found.endswith("ValueError: no data\nat all")


def test_a_script_that_does_not_compile_has_a_traceback_too() -> None:
    """Python prints none then, but the place and the error; other words are no traceback."""
    printed = b"  File \"train.py\", line 2\n    def f(\n         ^\nSyntaxError: '(' was never closed\n"
    assert (traceback_in(b"log\n" + printed) or "").startswith('  File "train.py", line 2')
    assert traceback_in(b"python3: can't open file 'x.py'\n") is None
