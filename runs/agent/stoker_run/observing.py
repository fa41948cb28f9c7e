"""Requests of a runner to an attempt: its state, its end, and its removal."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from stoker_base import memory
from stoker_run import processes
from stoker_run.attempt import attempt_key
from stoker_run.json_files import read_json, replace_json

_GROWING = ("metrics.jsonl", "events.jsonl", "process_info.json", "process_status.json", "agent.log")


def observe(folder: Path) -> Dict[str, Any]:
    """Return the state of an attempt, without changing it.

    Returns:
        `alive`, whether an agent or anything that it has started may be there; `heartbeat`, `agent` and `exit`, what
        is in the files of these names, or None; `sizes` in bytes of the files that grow.
    """
    # Asked before: what ends in between is seen alive once more, and not dead without an exit.
    alive = _locked(folder / "agent.lock")
    sizes = {}
    for path in [*sorted(folder.glob("log_*.txt")), *(folder / name for name in _GROWING)]:
        try:
            sizes[path.name] = path.stat().st_size
        except OSError:
            continue
    return {
        "alive": alive,
        "heartbeat": read_json(folder / "heartbeat.json"),
        "agent": read_json(folder / "agent.json"),
        "exit": read_json(folder / "exit.json"),
        "sizes": sizes,
    }


def stop(folder: Path, grace_s: Optional[float] = None, reason: str = "canceled") -> None:
    """Ask the agent to end the script.

    Args:
        grace_s: From SIGTERM to SIGKILL; by default what `start.json` says.
        reason: A word that `exit.json` repeats.

    Raises:
        OSError: The folder cannot be written to.
    """
    replace_json(folder / "stop.json", {"grace_s": grace_s, "reason": reason})


def sweep(folder: Path) -> int:
    """Kill at once every process of the attempt; returns how many there were."""
    return processes.sweep(attempt_key(folder))


def check() -> Dict[str, Any]:
    """Return the resources of this machine, and the Python that runs the agent."""
    return {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "host": os.uname().nodename,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory.total_bytes(),
        "gpus": _gpus(),
    }


def _gpus() -> List[str]:
    """Return the lines of `nvidia-smi -L`."""
    try:
        listed = subprocess.check_output(["nvidia-smi", "-L"], stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listed.decode("utf-8", "replace").splitlines() if line.strip()]


def _locked(path: Path) -> bool:
    try:
        file = os.open(str(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False
