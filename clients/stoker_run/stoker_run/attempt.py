"""The folder of an attempt: the names of its files, and `start.json`, which says what to run."""

from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from stoker_run.lines import read_json

__all__ = ["OUTPUTS", "VERSION", "Refused", "Start", "read_start"]

VERSION = 1
"""Of the contract between runner and agent."""

OUTPUTS = ("outputs", "logs")
"""What lies in these folders of the working directory belongs to the run."""

COMMUNICATORS = ("none", "tensorflow", "pytorch", "mpi")


class Refused(Exception):
    """What was asked for cannot be done as it stands; the message is one sentence."""


class Start(NamedTuple):
    """What to run: the fields of `start.json`, which the contract describes; paths are absolute."""

    run_id: str
    experiment: str
    attempt: int
    command: List[str]
    directory: Path
    workspace: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    grace_s: float = 30.0
    max_duration_s: Optional[float] = None
    lease_s: Optional[float] = None
    resume_from: Optional[str] = None
    inputs: Mapping[str, str] = {}
    shared_directory: Optional[str] = None
    relaxed: bool = False
    nodes: int = 1
    node: int = 0
    processes: int = 1
    communicator: str = "none"
    parameter_servers: int = 0
    peers: Optional[List[str]] = None

    @property
    def world(self) -> int:
        """How many processes the attempt has on all nodes."""
        return self.nodes * self.processes

    @property
    def ranks(self) -> range:
        """The ranks of the processes on this node."""
        return range(self.node * self.processes, (self.node + 1) * self.processes)


_REQUIRED = ("run_id", "experiment", "attempt", "command", "directory")
_TYPES: Dict[str, Any] = {
    "run_id": str,
    "experiment": str,
    "attempt": int,
    "command": list,
    "directory": str,
    "workspace": dict,
    "variables": dict,
    "grace_s": (int, float),
    "max_duration_s": (int, float, type(None)),
    "lease_s": (int, float, type(None)),
    "resume_from": (str, type(None)),
    "inputs": dict,
    "shared_directory": (str, type(None)),
    "relaxed": bool,
    "nodes": int,
    "node": int,
    "processes": int,
    "communicator": str,
    "parameter_servers": int,
    "peers": (list, type(None)),
}


def read_start(folder: Path) -> Start:
    """Read and check `start.json`.

    Args:
        folder: The folder of the attempt, absolute.

    Raises:
        Refused: It is not there, or is not as the contract says.
    """
    file = folder / "start.json"
    found = read_json(file)
    if not isinstance(found, dict):
        raise Refused(f"there is no {file}, or it is not JSON")
    if found.get("version") != VERSION:
        raise Refused("{} is of version {}, this agent reads {}".format(file, found.get("version"), VERSION))
    given = {name: value for name, value in found.items() if name != "version"}
    _check(given, file)
    given["directory"] = folder / given["directory"]
    given["inputs"] = {name: str(folder / path) for name, path in given.get("inputs", {}).items()}
    start = Start(**given)
    if not start.command or not 0 <= start.node < start.nodes or start.processes < 1:
        raise Refused(f"{file} has no command, or a node that is not among its nodes")
    if start.communicator not in COMMUNICATORS:
        raise Refused(
            "communicator is {!r}; it can be {}".format(start.communicator, ", ".join(COMMUNICATORS))
        )
    if not 0 <= start.parameter_servers < start.world:
        raise Refused(f"{start.parameter_servers} parameter servers leave no worker")
    if start.peers is None and start.nodes > 1:
        raise Refused(f"{start.nodes} nodes need peers: host:port of each process")
    if start.peers is not None and len(start.peers) != start.world:
        raise Refused(f"{len(start.peers)} peers for {start.world} processes")
    return start


def _check(given: Dict[str, Any], file: Path) -> None:
    missing = [name for name in _REQUIRED if name not in given]
    unknown = sorted(name for name in given if name not in _TYPES)
    if missing or unknown:
        words = ["misses " + ", ".join(missing)] * bool(missing) + [
            "has unknown " + ", ".join(unknown)
        ] * bool(unknown)
        raise Refused("{} {}".format(file, " and ".join(words)))
    for name, value in given.items():
        wrong = not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and _TYPES[name] is not bool)
        texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if wrong or not all(isinstance(text, str) for text in texts):
            raise Refused(f"{file}: {name} cannot be {value!r}")
