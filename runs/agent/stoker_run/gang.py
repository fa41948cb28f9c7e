"""Several nodes of a cluster for one attempt: all of them or none, each with a worker.

Whoever leads gives the attempt to the workers when all are there and have said where their processes can be reached.
When one node fails, it ends the others. On a Ray cluster a job of Ray leads, which needs Ray itself: it asks for the
nodes, and starts the workers. Of a Job of Kubernetes, the first pod leads.

FOLDER          as a worker's: `worker.json` and `current` mean the same
FOLDER/N        the folder of the worker on node N
ATTEMPT         the folder of the attempt, and of its first node; `start.json` is there, without peers
ATTEMPT/node_N  that of each other node; the logs of its processes have links in ATTEMPT
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from stoker_base.trees import remove_tree
from stoker_run.attempt import Start, read_start
from stoker_run.json_files import read_json, replace_json
from stoker_run.processes import signal_with_parent
from stoker_run.worker import LOST, Worker, take_next

PEER = "another node has failed"
"""The reason that the other nodes get when one has failed."""

_POLL_S = 0.2


def run_gang(folder: Path, attempt: Path, cores: float, gpus: float) -> None:
    """Run an attempt on nodes of its own."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # That of this module: Ray puts folders of its own before it on the path.
    archive = str(Path(__file__).parents[1])
    start = read_start(attempt)
    for node in range(start.nodes):
        (folder / str(node)).mkdir(mode=0o700, exist_ok=True)
    replace_json(folder / "worker.json", {"pid": os.getpid()})
    ray.init("auto", runtime_env={"env_vars": {"PYTHONPATH": archive}}, log_to_driver=False)
    bundle = {"CPU": cores, "GPU": gpus} if gpus else {"CPU": cores}
    group = placement_group([bundle] * start.nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    work = ray.remote(num_cpus=cores, num_gpus=gpus, max_retries=0)(run_worker)
    tasks = [
        work.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
        ).remote(archive, str(folder / str(node)), start.processes)
        for node in range(start.nodes)
    ]

    def find_ended() -> List[bool]:
        done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=0)
        return [task in done for task in tasks]

    _lead(folder, folder.parent, attempt, start, find_ended)


def _lead(
    folder: Path, queue: Path, attempt: Path, start: Start, find_ended: Callable[[], List[bool]]
) -> None:
    """Run an attempt, unless it was taken back from its queue."""
    try:
        peers = _wait_for_peers(folder, start.nodes, find_ended)
        if take_next(queue, folder):
            assign(folder, attempt, peers)
            follow(attempt, start, find_ended)
    finally:
        remove_tree(folder, ignore_errors=True)


def run_member(folder: Path, attempt: Path, node: int, host: str) -> None:
    """Be one node of an attempt, the command of a pod; the first one leads the others too.

    Args:
        folder: Has the folder of the worker of each node.
        host: The address of this node for the others.
    """
    start = read_start(attempt)
    folders = [folder / str(number) for number in range(start.nodes)]
    if node == 0:
        worker = os.getpid()
        if os.fork() == 0:
            signal_with_parent(signal.SIGKILL)
            try:
                # A worker removes its folder when it ends.
                _lead(folder, folder, attempt, start, lambda: [not one.exists() for one in folders])
            except BaseException:  # noqa: BLE001  # nobody would give the workers their attempt
                traceback.print_exc()
                os.kill(worker, signal.SIGTERM)
            finally:
                os._exit(0)
    Worker(folders[node], folders[node], 0.0, None, host, start.processes).run()


def run_worker(archive: str, folder: str, processes: int) -> None:
    """Run the worker of one node to its end."""
    from ray.util import get_node_ip_address

    options = [
        "--idle",
        "0",
        "--daemon",
        "raylet",
        "--host",
        get_node_ip_address(),
        "--peers",
        str(processes),
    ]
    subprocess.run([sys.executable, archive, "work", folder, *options], check=False)


def folders_of(attempt: Path, nodes: int) -> List[Path]:
    """Return the folder of each node of an attempt."""
    return [attempt if node == 0 else attempt / f"node_{node}" for node in range(nodes)]


def _wait_for_peers(folder: Path, nodes: int, find_ended: Callable[[], List[bool]]) -> List[str]:
    """Return the addresses of all processes in the order of their ranks.

    Raises:
        OSError: A worker has ended before.
    """
    while True:
        found = [read_json(folder / str(node) / "worker.json") for node in range(nodes)]
        reports = [one for one in found if isinstance(one, dict)]
        if len(reports) == nodes:
            return [peer for one in reports for peer in one["peers"]]
        if any(find_ended()):
            raise OSError("a node has ended before all were there")
        time.sleep(_POLL_S)


def assign(folder: Path, attempt: Path, peers: List[str]) -> None:
    """Give each worker its node of the attempt."""
    found = json.loads((attempt / "start.json").read_text(encoding="utf-8"))
    for node, place in enumerate(folders_of(attempt, found["nodes"])):
        place.mkdir(mode=0o700, exist_ok=True)
        content = dict(found, node=node, nodes_here=1, peers=peers)
        # It may hold secrets, so that nobody else reads it.
        mask = os.umask(0o077)
        try:
            replace_json(place / "start.json", content)
        finally:
            os.umask(mask)
        for local in range(found["processes"] if node else 0):
            link = attempt / "log_{}.txt".format(node * found["processes"] + local)
            if not link.is_symlink():
                link.symlink_to(f"node_{node}/{link.name}")
    for node, place in enumerate(folders_of(attempt, found["nodes"])):
        replace_json(folder / str(node) / "next", {"attempt": str(place)})


def follow(attempt: Path, start: Start, find_ended: Callable[[], List[bool]]) -> None:
    """Pass a request to stop on to all nodes, and end them when one has failed or is gone, until all have ended."""
    places = folders_of(attempt, start.nodes)
    done = find_ended()
    while not all(done):
        request = read_json(attempt / "stop.json")
        is_gone = any(over and not has_ended(place) for over, place in zip(done, places))
        if request is None and (is_gone or find_failure(places) is not None):
            request = {"grace_s": min(start.grace_s, 5.0), "reason": PEER}
        for place in places if request is not None else ():
            if not (place / "stop.json").exists() and not has_ended(place):
                replace_json(place / "stop.json", request)
        time.sleep(_POLL_S)
        done = find_ended()


def has_ended(place: Path) -> bool:
    """Whether a node has reported the end of its part."""
    return any((place / name).exists() for name in ("exit.json", LOST))


def find_failure(places: List[Path]) -> Optional[Dict[str, Any]]:
    """Return the report of the first node that failed, or the `lost.json` of a lost one; None if all go on.

    Where nodes were ended for another and none tells of it, one was lost: a node that is cut off may be among them.
    """
    failed, were_ended = [], False
    for place in places:
        lost, report = read_json(place / LOST), read_json(place / "exit.json")
        if isinstance(lost, dict):
            return lost
        if not isinstance(report, dict):
            continue
        if report.get("reason") == PEER:
            were_ended = True
        elif report.get("outcome") != "exited" or report.get("exit_status"):
            failed.append(report)
    if not failed:
        return {"reason": "the cluster has lost one of its nodes"} if were_ended else None
    return min(failed, key=lambda report: report.get("ended_ms", 0))
