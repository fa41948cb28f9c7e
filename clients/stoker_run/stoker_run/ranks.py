"""The processes of an attempt: their addresses, GPUs and working folders, and the variables by which they meet."""

import contextlib
import json
import os
from pathlib import Path
from typing import Dict, List, Optional

from stoker_run.attempt import OUTPUTS, Start
from stoker_run.trees import remove_tree

__all__ = ["local_peers", "rank_variables", "remove_empty_outputs", "visible_gpus", "working_folder"]

_FOLDERS = "ranks"


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


def working_folder(start: Start, folder: Path, rank: int) -> Path:
    """Return the current directory of a process; that of rank 0 is the run's own.

    The folder of each other rank has links to the files of the snapshot, and an `outputs` and a `logs` of its own,
    which are `outputs/rank_N` and `logs/rank_N` of the run: processes that write the same names do not meet.

    Args:
        folder: The folder of the attempt.

    Raises:
        OSError: It cannot be made.
    """
    for name in OUTPUTS:
        (start.directory / name).mkdir(exist_ok=True)
    if rank == 0:
        return start.directory
    place = folder / _FOLDERS / str(rank)
    remove_tree(place)
    place.mkdir(parents=True)
    for entry in os.scandir(str(start.directory)):
        if entry.name not in OUTPUTS:
            (place / entry.name).symlink_to(entry.path)
    for name in OUTPUTS:
        own = start.directory / name / f"rank_{rank}"
        own.mkdir(exist_ok=True)
        (place / name).symlink_to(own)
    return place


def remove_empty_outputs(start: Start) -> None:
    """Remove the folders of ranks that have written nothing."""
    for rank in start.ranks:
        for name in OUTPUTS:
            with contextlib.suppress(OSError):
                (start.directory / name / f"rank_{rank}").rmdir()


def rank_variables(start: Start, rank: int, peers: List[str]) -> Dict[str, str]:
    """Return the variables that frameworks read for training in several processes.

    Args:
        peers: `host:port` of all processes, in the order of their ranks.
    """
    node, local = divmod(rank, start.processes)
    host, _, port = peers[0].rpartition(":")
    found = {
        "STOKER_RANK": str(rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(start.world),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(start.processes),
        "NODE_RANK": str(node),
    }
    if start.communicator in ("none", "tensorflow"):
        found["TF_CONFIG"] = json.dumps(_cluster_of(start, rank, peers))
    elif start.communicator == "mpi":
        found.update(
            OMPI_COMM_WORLD_RANK=str(rank),
            OMPI_COMM_WORLD_SIZE=str(start.world),
            OMPI_COMM_WORLD_LOCAL_RANK=str(local),
            OMPI_COMM_WORLD_LOCAL_SIZE=str(start.processes),
        )
    return found


def _cluster_of(start: Start, rank: int, peers: List[str]) -> Dict[str, object]:
    """Return TensorFlow's cluster, in which parameter servers come last, and the task of a rank."""
    workers = start.world - start.parameter_servers
    cluster = {"worker": peers[:workers]}
    if start.parameter_servers:
        cluster["ps"] = peers[workers:]
    task = {"type": "worker", "index": rank} if rank < workers else {"type": "ps", "index": rank - workers}
    return {"cluster": cluster, "task": task}


def visible_gpus(start: Start, rank: int) -> Optional[List[str]]:
    """Return the GPUs of a process; None leaves the variable as it is.

    Nodes that share a machine have different ones. Processes of a node see all of its GPUs and choose by LOCAL_RANK,
    as scripts for torchrun and mpirun do. Parameter servers have none.
    """
    if start.gpus is None:
        return None
    workers = start.world - start.parameter_servers
    if rank >= workers:
        return []
    here = rank // start.processes - start.node
    nodes = min(-(-workers // start.processes), start.node + start.nodes_here) - start.node
    each = len(start.gpus) // nodes
    return start.gpus[here * each : (here + 1) * each]
