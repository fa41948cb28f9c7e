"""The processes of an attempt: their addresses, GPUs and working folders, and the variables by which they meet.

Each process but the first has a folder of its own, and those of a node share its GPUs (decision 64).
"""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Dict, List, Optional

from stoker_base.trees import remove_tree
from stoker_run.attempt import OUTPUTS, Start


def local_peers(count: int) -> List[str]:
    """Addresses on this machine with ports that were free a moment ago, one for each process."""
    return [f"127.0.0.1:{port}" for port in free_ports(count, "127.0.0.1")]


def free_ports(count: int, host: str = "") -> List[int]:
    """Ports of an address of this machine that were free a moment ago; of all addresses without one."""
    import socket

    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def working_folder(start: Start, folder: Path, rank: int) -> Path:
    """Return the current directory of a process; that of rank 0 is the run's own.

    The folder of each other rank has links to the files of the snapshot. It has `outputs` and `logs` of its own, with
    what earlier attempts have written there: processes that write the same names do not meet.

    Args:
        folder: The folder of the attempt.

    Raises:
        OSError: It cannot be made.
    """
    for name in OUTPUTS:
        (start.directory / name).mkdir(exist_ok=True)
    if rank == 0:
        return start.directory
    place = _folder(folder, rank)
    remove_tree(place)
    place.mkdir(parents=True)
    for entry in os.scandir(str(start.directory)):
        if entry.name not in OUTPUTS:
            (place / entry.name).symlink_to(entry.path)
    for name in OUTPUTS:
        kept = start.directory / name / f"rank_{rank}"
        if kept.is_dir() and not kept.is_symlink():
            kept.rename(place / name)
        else:
            (place / name).mkdir()
    return place


def collect_outputs(start: Start, folder: Path) -> None:
    """Move what ranks other than 0 have written to `outputs/rank_N` and `logs/rank_N` of the run.

    A rank whose folder cannot be moved is passed over with a line.
    """
    for rank in start.ranks:
        for name in OUTPUTS:
            written, home = _folder(folder, rank) / name, start.directory / name
            if rank == 0 or written.is_symlink() or not written.is_dir() or not any(written.iterdir()):
                continue
            try:
                if home.is_symlink():
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(home))
                home.mkdir(exist_ok=True)
                written.rename(home / f"rank_{rank}")
            except OSError as error:
                sys.stderr.write(f"{name} of process {rank} are left out: {error}\n")


def _folder(folder: Path, rank: int) -> Path:
    return folder / "ranks" / str(rank)


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
