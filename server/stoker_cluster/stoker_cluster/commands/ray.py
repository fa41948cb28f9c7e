"""`stoker ray`: a service on a Ray cluster, as many servers as replicas."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.commands.terminal import add_json_argument
from stoker.system.wording import format_count

if TYPE_CHECKING:
    from stoker_cluster.ray.replica import ReplicaStatus, ServiceSpec


_PORT: Final = 8080
_READY_S: Final = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--address", metavar="ADDRESS", help="the cluster (default: RAY_ADDRESS, or that of this machine)"
    )
    actions = parser.add_subparsers(dest="ray_action", required=True, metavar="ACTION")
    up = actions.add_parser("up", parents=[common], help="start a service, and wait until all of it is ready")
    up.add_argument(
        "model", metavar="MODEL", help="a path that all nodes see, or a registered model NAME[:VERSION]"
    )
    up.add_argument("--name", metavar="NAME", help="the service (default: the model's name)")
    up.add_argument("--replicas", type=int, default=1, metavar="N", help="servers (default 1)")
    up.add_argument("--num-gpus", type=float, default=0, metavar="N", help="GPUs of each server (default 0)")
    up.add_argument("--num-cpus", type=float, default=1, metavar="N", help="CPUs of each server (default 1)")
    up.add_argument(
        "--port",
        type=int,
        default=_PORT,
        metavar="N",
        help=f"port of the first server, then the next (default {_PORT})",
    )
    up.add_argument(
        "--ready-within-s",
        type=float,
        default=_READY_S,
        metavar="S",
        help=f"time to load (default {_READY_S:g})",
    )
    up.add_argument(
        "--host", metavar="ADDRESS", help="where the servers listen (default: the address of their node)"
    )
    up.add_argument(
        "--workspace", type=Path, metavar="DIR", help="the workspace directory, which all nodes see"
    )
    up.add_argument(
        "--option", action="append", default=[], metavar="OPTION", help="a further option of stoker serve"
    )
    up.set_defaults(ray_run=_up)
    status = actions.add_parser(
        "status", parents=[common], help="show the servers of a service, or all services"
    )
    status.add_argument("name", nargs="?", metavar="NAME", help="the service")
    add_json_argument(status)
    status.set_defaults(ray_run=_status)
    scale = actions.add_parser("scale", parents=[common], help="have more servers, or drain some")
    scale.add_argument("name", metavar="NAME", help="the service")
    scale.add_argument("replicas", type=int, metavar="N", help="servers")
    scale.set_defaults(ray_run=_scale)
    down = actions.add_parser("down", parents=[common], help="drain all servers of a service, and end it")
    down.add_argument("name", metavar="NAME", help="the service")
    down.set_defaults(ray_run=_down)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        OperatorError: There is no cluster, the service is unknown or there already, or a server does not start.
    """
    exit_code: int = args.ray_run(args)
    return exit_code


def _up(args: argparse.Namespace) -> int:
    from stoker_cluster.ray.deployment import connected, up

    spec = _spec(args)
    replicas = _checked(args.replicas, 1)
    with connected(args.address) as ray:
        _show(up(ray, spec, replicas))
    return 0


def _spec(args: argparse.Namespace) -> ServiceSpec:
    """Return the specification of a replica; keys are those of this workspace, or of the environment."""
    from stoker.errors import InvalidSettings
    from stoker.keys.keyring import Keyring
    from stoker.models.layouts import likely_name
    from stoker.settings.names import checked_name, parse_reference
    from stoker.settings.workspace import Workspace
    from stoker_cluster.ray.replica import ServiceSpec

    if secure := [option for option in args.option if option.startswith("--tls-")]:
        raise InvalidSettings(
            f"{secure[0]}: servers on a cluster of Ray are asked by plain HTTP; leave TLS to a gateway"
        )
    workspace = Workspace.find(args.workspace)
    path = Path(args.model)
    if path.exists():
        name = checked_name(args.name or likely_name(path), "service")
        served: tuple[str, ...] = (str(path.absolute()), "--name", name)
    else:
        name, _ = parse_reference(args.model)
        served = ("--model", args.model, "--workspace", str(workspace.root))
    environ = {
        key: os.environ[key] for key in ("STOKER_PRIMARY_KEY", "STOKER_SECONDARY_KEY") if key in os.environ
    }
    if not environ:
        keys = Keyring(workspace.create().keys_dir, name).ensure()
        environ = {"STOKER_PRIMARY_KEY": keys.primary, "STOKER_SECONDARY_KEY": keys.secondary}
    return ServiceSpec(
        name,
        (*served, *args.option),
        args.port,
        args.num_gpus,
        args.num_cpus,
        args.ready_within_s,
        args.host,
        environ,
    )


def _status(args: argparse.Namespace) -> int:
    from stoker_cluster.ray.deployment import connected, services, status

    with connected(args.address) as ray:
        if args.name is None:
            names = services(ray)
            sys.stdout.write(
                f"{json.dumps(names)}\n" if args.json else "".join(f"{name}\n" for name in names)
            )
            return 0
        statuses = status(ray, args.name)
    if args.json:
        sys.stdout.write(json.dumps([status.to_json() for status in statuses]) + "\n")
    else:
        _show(statuses)
    return 0


def _scale(args: argparse.Namespace) -> int:
    from stoker_cluster.ray.deployment import connected, scale

    replicas = _checked(args.replicas, 1)
    with connected(args.address) as ray:
        _show(scale(ray, args.name, replicas))
    return 0


def _down(args: argparse.Namespace) -> int:
    from stoker_cluster.ray.deployment import connected, down

    with connected(args.address) as ray:
        count = down(ray, args.name)
    sys.stdout.write(f"{args.name} has ended, with {format_count(count, 'server')}\n")
    return 0


def _checked(replicas: int, least: int) -> int:
    from stoker.errors import InvalidSettings

    if replicas < least:
        raise InvalidSettings(
            f"there have to be {least} or more servers, not {replicas}; stoker ray down ends all"
        )
    return replicas


def _show(statuses: Sequence[ReplicaStatus]) -> None:
    for status in statuses:
        gpus = f"  GPU {','.join(status.gpus)}" if status.gpus else ""
        again = "  started again" if status.restarted else ""
        sys.stdout.write(f"{status.number}  {status.state:<8}  {status.uri}{gpus}{again}\n")
