"""The folder of an attempt: the names of its files, `start.json`, and the variables that its processes get."""

import json
import os
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional

from stoker_run.json_files import read_json

VERSION = 1
"""Of the contract between runner and agent."""

OUTPUTS = ("outputs", "logs")
"""Files in these folders of the working directory belong to the run."""

COMMUNICATORS = ("none", "tensorflow", "pytorch", "mpi")


class Refused(Exception):
    """The request is invalid; the message is one sentence."""


class Start(NamedTuple):
    """The fields of `start.json`, which the contract describes; paths are absolute."""

    run_id: str
    experiment: str
    attempt: int
    command: List[str]
    directory: Path
    variables: Mapping[str, str] = {}
    grace_s: float = 30.0
    max_duration_s: Optional[float] = None
    lease_s: Optional[float] = None
    resume_from: Optional[str] = None
    inputs: Mapping[str, str] = {}
    outputs: Mapping[str, str] = {}
    shared_directory: Optional[str] = None
    relaxed: bool = False
    nodes: int = 1
    node: int = 0
    nodes_here: int = 1
    processes: int = 1
    communicator: str = "none"
    parameter_servers: int = 0
    peers: Optional[List[str]] = None
    gpus: Optional[List[str]] = None

    @property
    def world(self) -> int:
        """How many processes the attempt has on all nodes."""
        return self.nodes * self.processes

    @property
    def ranks(self) -> range:
        """The ranks of the processes on this machine."""
        return range(self.node * self.processes, (self.node + self.nodes_here) * self.processes)


_REQUIRED = ("run_id", "experiment", "attempt", "command", "directory")


def read_start(folder: Path) -> Start:
    """Read and check `start.json`.

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
    missing = [name for name in _REQUIRED if name not in given]
    if missing:
        raise Refused("{} misses {}".format(file, ", ".join(missing)))
    unknown = sorted(set(given) - set(Start._fields))
    if unknown:
        raise Refused("{} has unknown {}".format(file, ", ".join(unknown)))
    given["directory"] = folder / given["directory"]
    for data in ("inputs", "outputs"):
        given[data] = {name: str(folder / path) for name, path in given.get(data, {}).items()}
    start = Start(**given)
    last = start.node + start.nodes_here - 1
    if not start.command or not 0 <= start.node <= last < start.nodes or start.processes < 1:
        raise Refused(f"{file} has no command, or a node that is not among its nodes")
    if start.communicator not in COMMUNICATORS:
        raise Refused(
            "communicator is {!r}; it can be {}".format(start.communicator, ", ".join(COMMUNICATORS))
        )
    if not 0 <= start.parameter_servers < start.world:
        raise Refused(f"{start.parameter_servers} parameter servers leave no worker")
    if start.peers is None and start.nodes > start.nodes_here:
        raise Refused(f"{start.nodes} nodes need peers: host:port of each process")
    if start.peers is not None and len(start.peers) != start.world:
        raise Refused(f"{len(start.peers)} peers for {start.world} processes")
    return start


KEY = "STOKER_ATTEMPT_KEY"
"""The variable that marks the processes of an attempt, orphans included."""


def attempt_key(folder: Path) -> str:
    """Return the value of `KEY` for the attempt in this folder."""
    return os.path.realpath(str(folder))


def variables(start: Start, folder: Path, directory: Path, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment variables of a process, but for those of its rank.

    Args:
        directory: Its current directory.
    """
    found = dict(inherited)
    found.update(start.variables)
    paths = [str(folder / "agent")]
    if start.relaxed:
        paths.insert(0, str(folder / "agent" / "relaxed"))
        found["STOKER_RELAXED"] = "1"
    if found.get("PYTHONPATH"):
        paths.append(found["PYTHONPATH"])
    found["PYTHONPATH"] = os.pathsep.join(paths)
    found["PYTHONUNBUFFERED"] = "1"
    found.update(_variables_of_run(start, folder))
    found["STOKER_WORK_DIR"] = str(directory)
    found.update(_variables_of_data(start))
    return found


def _variables_of_run(start: Start, folder: Path) -> Dict[str, str]:
    found = {
        "STOKER_RUN_ID": start.run_id,
        "STOKER_EXPERIMENT": start.experiment,
        "STOKER_ATTEMPT": str(start.attempt),
        "STOKER_ATTEMPT_DIR": str(folder),
        KEY: attempt_key(folder),
        "AZUREML_RUN_ID": start.run_id,
        "AZUREML_EXPERIMENT_ID": start.experiment,
        "AZUREML_ARM_PROJECT_NAME": start.experiment,
        "AZUREML_ARM_WORKSPACE_NAME": "local",
        "AZUREML_ARM_SUBSCRIPTION": "00000000-0000-0000-0000-000000000000",
        "AZUREML_ARM_RESOURCEGROUP": "local",
        "AZUREML_SERVICE_ENDPOINT": "stoker://",
        "AZUREML_RUN_TOKEN": "none",
        "MLFLOW_TRACKING_URI": "stoker://",
        "MLFLOW_RUN_ID": start.run_id,
        "MLFLOW_EXPERIMENT_NAME": start.experiment,
    }
    if start.resume_from is not None:
        found["STOKER_RESUME_FROM"] = start.resume_from
    if start.shared_directory is not None:
        found["AZUREML_NATIVE_SHARE_DIRECTORY"] = f"{Path(start.shared_directory).expanduser()}/"
    return found


def _variables_of_data(start: Start) -> Dict[str, str]:
    found = {}
    for name, path in [*start.inputs.items(), *start.outputs.items()]:
        found["AZUREML_DATAREFERENCE_" + name] = path
        found.setdefault(name, path)
    if start.inputs:
        found["STOKER_INPUTS"] = json.dumps(start.inputs)
    return found
