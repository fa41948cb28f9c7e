"""`stoker logs`: the log of a server that runs on this machine, where it goes to a file."""

from __future__ import annotations

import argparse
import os
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from stoker.commands.running_server import add_choice_of_servers, chosen_server
from stoker.commands.terminal import number_option
from stoker.errors import OperatorError
from stoker.system.logs import escaped

if TYPE_CHECKING:
    from stoker.supervisor.server_record import ServerRecord

_LINES: Final = 100
_LOOK_S: Final = 0.2
_CHUNK_BYTES: Final = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "A server writes its log to standard error. The command reads the file to which that goes, as with: "
        "nohup stoker serve model.onnx > stoker.log 2>&1 &. 'stoker runs logs RUN' prints the output of a training "
        "run."
    )
    add_choice_of_servers(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow the log until the server ends")
    parser.add_argument(
        "-n",
        "--lines",
        type=number_option(int, 0, 1_000_000),
        default=_LINES,
        metavar="N",
        help=f"lines from the end of the log (default: {_LINES})",
    )


def run(args: argparse.Namespace) -> int:
    """Print the last lines, and follow the log if asked to."""
    record = chosen_server(args)
    with _open_log(record) as file:
        _seek_lines(file, args.lines)
        for line in _follow(file, record) if args.follow else file:
            sys.stdout.write(f"{escaped(line.decode(errors='replace').rstrip())}\n")
            sys.stdout.flush()
    return 0


def _open_log(record: ServerRecord) -> BinaryIO:
    """Open the file to which the standard error of a server goes.

    Raises:
        OperatorError: It goes elsewhere; the message says where.
    """
    stream = Path("/proc", str(record.pid), "fd", "2")
    try:
        mode, place = stream.stat().st_mode, str(stream.readlink())
        if stat.S_ISREG(mode):
            # Even if the file has been removed or renamed.
            return stream.open("rb")
    except PermissionError as error:
        raise OperatorError(
            f"the server {record.pid} belongs to another user, who may read its log"
        ) from error
    except FileNotFoundError as error:
        raise OperatorError(f"the server {record.pid} has stopped") from error
    if place.startswith(("/dev/pts/", "/dev/tty")):
        raise OperatorError(f"the server {record.pid} writes its log to the terminal {place}")
    if place == os.devnull:
        raise OperatorError(f"the server {record.pid} was started with 2> {place}: nobody keeps its log")
    raise OperatorError(
        f"the server {record.pid} writes its log to a pipe, whose reader has it: docker logs, kubectl logs, or "
        "journalctl for a unit of systemd"
    )


def _seek_lines(file: BinaryIO, lines: int) -> None:
    """Go to the begin of the last lines of a file."""
    end = position = file.seek(0, os.SEEK_END)
    found = 0
    while position > 0:
        size = min(_CHUNK_BYTES, position)
        position = file.seek(position - size)
        chunk = file.read(size)
        for index in range(len(chunk) - 1, -1, -1):
            # The line break at the end of the last line begins none.
            if chunk[index : index + 1] == b"\n" and position + index + 1 < end:
                found += 1
                if found == lines:
                    file.seek(position + index + 1)
                    return
    file.seek(0 if lines else end)


def _follow(file: BinaryIO, record: ServerRecord) -> Iterator[bytes]:
    """Yield the lines of a file until the server has ended; one that is truncated is read from its begin."""
    try:
        process = os.pidfd_open(record.pid)
    except ProcessLookupError:
        yield from file
        return
    rest = b""
    try:
        while True:
            ended = bool(select.select([process], [], [], 0)[0])
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)
            while line := file.readline():
                rest += line
                if rest.endswith(b"\n"):
                    yield rest
                    rest = b""
            if ended:
                if rest:
                    yield rest
                return
            select.select([process], [], [], _LOOK_S)
    finally:
        os.close(process)
