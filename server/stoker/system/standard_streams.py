"""Standard streams of a command: usable however little the caller has given, and written to the end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["prepare", "written"]


def prepare() -> None:
    """Make standard input, output and error usable, however little of them the caller has given."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Else the next file or socket would get the number, and what is printed.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
    # Python has none for those that were closed.
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path or a description may have letters that the locale has not.
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def written() -> Iterator[None]:
    """Have what was printed leave at the end of the block.

    What the block raises goes before what the stream does: that is what went wrong first.

    Raises:
        OSError: It cannot be written. Python would find that out when it ends, tell of an ignored exception, and
            make the exit code 120.
    """
    try:
        yield
    except Exception:
        with suppress(OSError):
            _flush()
        raise
    except BaseException:
        _flush()
        raise
    _flush()


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _give_up()
        raise


def _give_up() -> None:
    """Let what was printed and has not left go nowhere, so that nobody tries to write it once more."""
    try:
        descriptor = sys.stdout.fileno()
    except ValueError:
        return  # one that somebody else has put there, or that is closed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
