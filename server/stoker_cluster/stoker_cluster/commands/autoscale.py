"""`stoker autoscale`: adapts the number of pods of a service in a cluster to their load."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker_cluster.scale_access import ClusterDeployment


_ANSWER_S: Final = 0.8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("deployment", metavar="DEPLOYMENT", help="the Deployment")
    parser.add_argument(
        "--service", metavar="NAME", help="the Service before its pods (default: called as the Deployment)"
    )
    parser.add_argument(
        "--router",
        metavar="NAME",
        help="the Service of the router in which requests wait while there is no pod",
    )
    parser.add_argument("--namespace", metavar="NAME", help="its namespace (default: that of the context)")
    parser.add_argument(
        "--context", metavar="NAME", help="a context of the kubeconfig (default: the pod's own account)"
    )
    parser.add_argument(
        "--heartbeat-file",
        type=Path,
        metavar="FILE",
        help="a file to touch after each look at the cluster, for a liveness probe",
    )
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="a key of the service, where its metrics need one"
    )


def run(args: argparse.Namespace) -> int:
    """Scale until a signal comes.

    Raises:
        ClusterError: There is no cluster to ask.
        InvalidSettings: The Deployment does not say how it is to be scaled.
    """
    from stoker.system.logs import configure_logging
    from stoker_cluster.access import Cluster
    from stoker_cluster.scale_access import ClusterDeployment

    configure_logging("autoscaler")
    # Each request of its own would be a line.
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    cluster = Cluster.connect(args.context)
    deployment = ClusterDeployment(
        cluster, args.deployment, args.namespace or cluster.namespace, args.service, args.router
    )
    heartbeat = (lambda: None) if args.heartbeat_file is None else args.heartbeat_file.touch
    asyncio.run(_scale(args.deployment, deployment, args.key_file, heartbeat))
    return 0


async def _scale(
    name: str,
    deployment: ClusterDeployment,
    key_file: Path | None,
    heartbeat: Callable[[], object],
) -> None:
    from stoker_cluster.autoscaler import Autoscaler
    from stoker_cluster.pod_loads import PodLoads

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    loads = PodLoads(_ANSWER_S, key_file)
    try:
        await Autoscaler(name, deployment, loads, heartbeat=heartbeat).run(stopped)
    finally:
        await loads.close()
