"""Processes of an attempt: started so that they die with the agent, found wherever they hide, and killed."""

import contextlib
import ctypes
import os
import signal
import subprocess
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Set, Tuple

from stoker_run.attempt import KEY

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SWEEPS = 50

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of descendants that have lost theirs, so that they are found."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when the thread that has started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def start(command: List[str], directory: Path, variables: Mapping[str, str], output: int) -> int:
    """Start a process in a session, and so a process group, of its own; returns its number.

    It is killed when the thread that starts it ends, which is to be the main one.

    Args:
        output: File descriptor of its stdout and stderr.

    Raises:
        OSError: The command or the directory is not there, or cannot be run.
    """
    agent = os.getpid()

    def die_with_agent() -> None:
        signal_with_parent(signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(1)

    process = subprocess.Popen(
        command,
        cwd=str(directory),
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=die_with_agent,  # noqa: PLW1509  # the agent has one thread
    )
    # The agent reaps all children itself, so Popen must not wait for this one when it is collected.
    process.returncode = 0
    return process.pid


def descendants(ancestor: int, without: Iterable[int] = ()) -> Set[int]:
    """All processes below one, without those named and what is below them; no zombies."""
    children: Dict[int, List[int]] = {}
    for entry in _numbers():
        try:
            _, fields = read_stat(int(entry))
        except OSError:
            continue
        if len(fields) > 1 and fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: Set[int] = set()
    left_out = set(without)
    ahead = [ancestor]
    while ahead:
        for child in children.get(ahead.pop(), ()):
            if child not in left_out and child not in found:
                found.add(child)
                ahead.append(child)
    return found


def read_stat(pid: int) -> Tuple[bytes, List[bytes]]:
    """Return the name of a process, and what the kernel says of it from its state on (proc_pid_stat(5), field 3).

    Raises:
        OSError: There is no such process.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # read for each process of the machine
        text = file.read()
    # The name, in parentheses, may hold anything.
    end = text.rfind(b")")
    return text[text.find(b"(") + 1 : end], text[end + 2 :].split()


def kill(processes: Iterable[int], number: int) -> None:
    """Send a signal to processes, of which some may be gone."""
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, number)


def sweep(key: str) -> int:
    """Kill at once every process with this `STOKER_ATTEMPT_KEY`, again until there is none; returns how many."""
    wanted = f"{KEY}={key}".encode("utf-8", "surrogateescape")
    killed: Set[int] = set()
    for _ in range(_SWEEPS):
        found = {process for process in _marked(wanted) if process != os.getpid()}
        if not found:
            break
        kill(found, signal.SIGKILL)
        killed |= found
    return len(killed)


def _marked(wanted: bytes) -> Iterable[int]:
    for entry in _numbers():
        try:
            if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                yield int(entry)
        except OSError:
            continue


def _numbers() -> List[str]:
    return [entry.name for entry in os.scandir("/proc") if entry.name.isdigit()]


_DISMISSED = b"."


class Watchdog:
    """Waits for the agent's end; when that was not orderly, kills the processes of the attempt.

    It is forked before anything is started, and inherits the agent's lock, which is free when both are gone.
    """

    def __init__(self, key: str, lock: int) -> None:
        listening, self._pipe = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Nothing of the agent runs on in here, whatever happens.
            try:
                _watch(key, listening, lock)
            finally:
                os._exit(0)
        os.close(listening)

    def dismiss(self) -> None:
        """End the watchdog, and wait for its end."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, _DISMISSED)
        os.close(self._pipe)
        with contextlib.suppress(OSError):
            os.waitpid(self.pid, 0)


def _watch(key: str, listening: int, lock: int) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    low, high = sorted((listening, lock))
    os.closerange(0, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, 4096)
    if os.read(listening, 1) != _DISMISSED:
        sweep(key)
