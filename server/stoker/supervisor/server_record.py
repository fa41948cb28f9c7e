"""Records of running servers in their workspace, by which `stoker status` and `stop` find them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder, read_regular, replace_file
from stoker_base.boot import boot_id

_FOLDER: Final = "servers"
_MOST_BYTES: Final = 1 << 16
_PROC: Final = Path("/proc")
_AFTER_NAME: Final = 2
_STATE, _START_TICKS = 0, 19
"""Fields of /proc/PID/stat behind the name of the process."""


class ServerRecord(Struct, frozen=True):
    """A server that runs on this machine.

    Attributes:
        pid: The process that a signal stops.
        process: Its identity: machine, boot, and the time at which the process started.
        uri: Where this machine reaches the server, without a path.
        ca_file: The server's certificate, if it is its own authority.
        started_s: Seconds since 1970.
    """

    pid: int
    process: str
    uri: str
    ca_file: str | None
    started_s: float

    @classmethod
    def of_this_process(cls, uri: str, ca_file: Path | None = None) -> Self:
        """Return the record of a server in this process."""
        pid = os.getpid()
        certificate = None if ca_file is None else str(ca_file.absolute())
        return cls(pid, _identity(pid) or "", uri, certificate, time.time())

    @property
    def ca_path(self) -> Path | None:
        """The path of `ca_file`."""
        return None if self.ca_file is None else Path(self.ca_file)

    @property
    def is_running(self) -> bool:
        """Whether the process is there: not ended, and not another one with its id."""
        return bool(self.process) and _identity(self.pid) == self.process


@contextlib.contextmanager
def recorded(workspace: Workspace, record: ServerRecord) -> Iterator[None]:
    """Keep a record in the workspace during the block; where nothing can be written, nothing is kept."""
    path = None
    with contextlib.suppress(OSError):
        folder = private_folder(workspace.create_run_dir() / _FOLDER)
        path = folder / f"{os.uname().nodename}-{record.pid}.json"
        replace_file(path, json.dumps(msgspec.structs.asdict(record)).encode(), mode=0o600)
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def running_servers(workspace: Workspace) -> list[ServerRecord]:
    """Return the servers of a workspace that run on this machine, the oldest first.

    Records of processes of this machine that are gone are removed; those of other machines, which may share the
    workspace, are left alone.
    """
    found = []
    for path in (workspace.run_dir / _FOLDER).glob(f"{os.uname().nodename}-*.json"):
        try:
            record = ServerRecord(**json.loads(read_regular(path, _MOST_BYTES)))
        except (OSError, ValueError, TypeError):
            continue
        if record.is_running:
            found.append(record)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(found, key=lambda record: record.started_s)


def _identity(pid: int) -> str | None:
    """Return the identity of a running process of this machine; None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything.
    fields = text[text.rfind(")") + _AFTER_NAME :].split()
    if fields[_STATE] in "ZX":
        return None
    return f"{os.uname().nodename} {boot_id()} {fields[_START_TICKS]}"
