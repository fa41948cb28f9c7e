"""The environment variables that each process of an attempt gets."""

import json
import os
from pathlib import Path
from typing import Dict, List, Mapping

from stoker_run.attempt import Start

__all__ = ["KEY", "attempt_key", "local_peers", "variables"]

KEY = "STOKER_ATTEMPT_KEY"
"""The variable by which processes of an attempt are known, whoever their parents are."""


def attempt_key(folder: Path) -> str:
    """What `KEY` is for the attempt in this folder."""
    return os.path.realpath(str(folder))


def local_peers(count: int) -> List[str]:
    """Addresses on this machine with ports that were free a moment ago, one for each process."""
    import socket

    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()


def variables(
    start: Start, folder: Path, rank: int, peers: List[str], inherited: Mapping[str, str]
) -> Dict[str, str]:
    """All variables of one process.

    Args:
        start: What is run.
        folder: The folder of the attempt.
        rank: Of the process.
        peers: `host:port` of all processes, in the order of their ranks; empty for a single one.
        inherited: The agent's own.
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
    found.update(_of_the_run(start, folder))
    found.update(_of_inputs(start))
    if peers:
        found.update(_of_several(start, rank, peers))
    return found


def _of_the_run(start: Start, folder: Path) -> Dict[str, str]:
    workspace = start.workspace
    found = {
        "STOKER_RUN_ID": start.run_id,
        "STOKER_EXPERIMENT": start.experiment,
        "STOKER_ATTEMPT": str(start.attempt),
        "STOKER_ATTEMPT_DIR": str(folder),
        "STOKER_WORK_DIR": str(start.directory),
        KEY: attempt_key(folder),
        "AZUREML_RUN_ID": start.run_id,
        "AZUREML_EXPERIMENT_ID": start.experiment,
        "AZUREML_ARM_PROJECT_NAME": start.experiment,
        "AZUREML_ARM_WORKSPACE_NAME": workspace.get("name", "local"),
        "AZUREML_ARM_SUBSCRIPTION": workspace.get("subscription_id", "00000000-0000-0000-0000-000000000000"),
        "AZUREML_ARM_RESOURCEGROUP": workspace.get("resource_group", "local"),
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


def _of_inputs(start: Start) -> Dict[str, str]:
    found = {}
    for name, path in start.inputs.items():
        found["AZUREML_DATAREFERENCE_" + name] = path
        found.setdefault(name, path)
    if start.inputs:
        found["STOKER_INPUTS"] = json.dumps(start.inputs)
    return found


def _of_several(start: Start, rank: int, peers: List[str]) -> Dict[str, str]:
    """What frameworks read who train in several processes."""
    local = rank - start.ranks[0]
    found = {"STOKER_RANK": str(rank)}
    if start.communicator == "tensorflow":
        workers = start.world - start.parameter_servers
        cluster = {"worker": peers[:workers]}
        if start.parameter_servers:
            cluster["ps"] = peers[workers:]
        task = (
            {"type": "worker", "index": rank} if rank < workers else {"type": "ps", "index": rank - workers}
        )
        found["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        return found
    host, _, port = peers[0].rpartition(":")
    found.update(
        MASTER_ADDR=host,
        MASTER_PORT=port,
        RANK=str(rank),
        WORLD_SIZE=str(start.world),
        LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(start.processes),
        NODE_RANK=str(start.node),
    )
    if start.communicator == "mpi":
        found.update(
            OMPI_COMM_WORLD_RANK=str(rank),
            OMPI_COMM_WORLD_SIZE=str(start.world),
            OMPI_COMM_WORLD_LOCAL_RANK=str(local),
        )
    return found
