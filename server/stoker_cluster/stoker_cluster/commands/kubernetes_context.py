"""The actions of `stoker kubernetes` that ask a cluster, each by a context of the kubeconfig."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from stoker.commands.terminal import sentence
from stoker.system.logs import escaped, escaped_lines

if TYPE_CHECKING:
    from stoker_cluster.access import Cluster
    from stoker_cluster.service import ClusterService

__all__ = ["add_actions", "add_plan_actions"]

_FAILED: Final = 1
_TAIL_LINES: Final = 200


class _Actions(Protocol):
    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...


def add_plan_actions(actions: _Actions, plan: argparse.ArgumentParser) -> None:
    """Declare the actions that take a plan.

    Args:
        actions: Where they are declared.
        plan: The arguments that make up a plan.
    """
    text = "make the objects of a service in a cluster what the plan says, and wait until its pods can score"
    apply = actions.add_parser("apply", parents=[plan, _context()], help=text, description=sentence(text))
    apply.add_argument(
        "--force-conflicts", action="store_true", help="take over fields that others have changed"
    )
    apply.add_argument("--no-wait", action="store_true", help="do not wait for the pods")
    apply.add_argument(
        "--wait-s",
        type=float,
        metavar="S",
        help="give up waiting after this time (default: the cluster's own)",
    )
    apply.set_defaults(kubernetes_run=_apply)
    text = "print what apply would change; exit code 1 if that is something"
    diff = actions.add_parser("diff", parents=[plan, _context()], help=text, description=sentence(text))
    diff.set_defaults(kubernetes_run=_diff)


def add_actions(actions: _Actions) -> None:
    """Declare the actions that take the name of a service."""
    text = "delete all objects of a service, with its keys"
    delete = _of_service(actions, "delete", text)
    delete.set_defaults(kubernetes_run=_delete)
    text = "say how a service and its pods stand; exit code 1 if not all can score"
    _of_service(actions, "status", text).set_defaults(kubernetes_run=_status)
    logs = _of_service(actions, "logs", "print what the pods of a service have written")
    logs.add_argument(
        "--lines",
        type=int,
        default=_TAIL_LINES,
        metavar="N",
        help=f"last lines of each (default {_TAIL_LINES})",
    )
    logs.add_argument("--follow", action="store_true", help="go on with what its first pod writes")
    logs.set_defaults(kubernetes_run=_logs)
    forward = _of_service(actions, "forward", "lead a port of this machine to the pods of a service")
    forward.add_argument("--port", type=int, default=0, metavar="PORT", help="the port (default: a free one)")
    forward.set_defaults(kubernetes_run=_forward)
    keys = _of_service(actions, "keys", "print the keys of a service, or replace one in all of its pods")
    keys.add_argument(
        "slot", nargs="?", choices=["primary", "secondary"], help="print this key and nothing else"
    )
    keys.add_argument(
        "--regenerate",
        action="store_true",
        help="replace it first, and wait until all pods that can score take the new one; exit code 1 if they do not",
    )
    keys.add_argument(
        "--key", metavar="VALUE", help="the new key, 16 to 512 characters; '-' reads it from standard input"
    )
    keys.set_defaults(kubernetes_run=_keys)
    canary = _of_service(
        actions, "canary", "give the versions of an endpoint other shares of its requests", "the endpoint"
    )
    canary.add_argument(
        "shares",
        nargs="*",
        metavar="VERSION=PERCENTAGE",
        help="new percentages; those of other versions stay, and the default version gets what is left of 100",
    )
    canary.add_argument("--default-version", metavar="VERSION", help="another default version")
    canary.set_defaults(kubernetes_run=_canary)
    text = "say what a cluster has that services need, and what the account may do"
    check = actions.add_parser("check", parents=[_context(), _place()], help=text, description=sentence(text))
    check.set_defaults(kubernetes_run=_check)


def _of_service(
    actions: _Actions, action: str, text: str, whose: str = "the service, or NAME-VERSION of an endpoint"
) -> argparse.ArgumentParser:
    parser = actions.add_parser(action, parents=[_context(), _place()], help=text, description=sentence(text))
    parser.add_argument("name", metavar="NAME", help=whose)
    return parser


def _context() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: the current one)"
    )
    return parser


def _place() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--namespace", metavar="NAME", help="namespace (default: that of the context)")
    return parser


# --- what they do ---


def _apply(args: argparse.Namespace) -> int:
    from stoker_cluster.applying import apply
    from stoker_cluster.options import plan_from
    from stoker_cluster.service import ClusterService

    plan = plan_from(vars(args), args.path, args.config, args.deployment_config)
    cluster = _cluster(args)
    for line in plan.notes:
        _note(line)
    for change in apply(cluster, plan, force=args.force_conflicts):
        sys.stdout.write(f"{change}\n")
        sys.stdout.flush()
    if args.no_wait:
        return 0
    service = ClusterService(cluster, plan.namespace or cluster.namespace, plan.instance)
    try:
        standing = service.await_ready(_Line().show, args.wait_s)
    except KeyboardInterrupt:
        _note(
            f"\n{plan.instance} goes on without being waited for; see stoker kubernetes status {plan.instance}"
        )
        return 128 + signal.SIGINT
    if standing.error is not None:
        _note(f"{plan.instance} is {standing.state}: {standing.error['code']}: {standing.error['message']}")
    return 0 if standing.state == "Healthy" else _FAILED


def _diff(args: argparse.Namespace) -> int:
    from stoker_cluster.applying import difference
    from stoker_cluster.options import plan_from

    plan = plan_from(vars(args), args.path, args.config, args.deployment_config)
    text = difference(_cluster(args), plan)
    sys.stdout.write(text)
    return _FAILED if text else 0


def _delete(args: argparse.Namespace) -> int:
    from stoker.errors import ClusterError
    from stoker_cluster.applying import delete

    cluster = _cluster(args)
    namespace = args.namespace or cluster.namespace
    deleted = delete(cluster, namespace, args.name)
    for reference in deleted:
        sys.stdout.write(f"deleted {reference}\n")
    if not deleted:
        raise ClusterError(f"there is no service {args.name} in namespace {namespace} of {cluster.context}")
    return 0


def _status(args: argparse.Namespace) -> int:
    service = _service(args)
    standing = service.standing()
    sys.stdout.write(escaped(f"{args.name} is {standing.state}: {standing.line}") + "\n")
    for pod in service.pods():
        sys.stdout.write(f"  {escaped(_of_pod(pod))}\n")
    return 0 if standing.state == "Healthy" else _FAILED


def _of_pod(pod: Mapping[str, Any]) -> str:
    from stoker_cluster.standing import is_ready

    stays = "deletionTimestamp" not in pod["metadata"]
    word = ("can score" if is_ready(pod) else "starts") if stays else "ends"
    node = pod["spec"].get("nodeName", "no node")
    image = pod["spec"]["containers"][0]["image"]
    return f"{pod['metadata']['name']}  {word:<9}  {node}  {image}"


def _logs(args: argparse.Namespace) -> int:
    for pod, line in _service(args).logs(args.lines, follow=args.follow):
        sys.stdout.write(f"{escaped(f'{pod}  {line}')}\n")
        if args.follow:
            sys.stdout.flush()
    return 0


def _keys(args: argparse.Namespace) -> int:
    from stoker.errors import InvalidSettings

    if args.slot is None and (args.regenerate or args.key):
        raise InvalidSettings("say which key is replaced: primary or secondary")
    if args.key and not args.regenerate:
        raise InvalidSettings("--key is the new key of --regenerate; give both, or neither")
    service, unshown = _service(args), {}
    if args.regenerate:
        value = sys.stdin.readline().strip() if args.key == "-" else args.key
        unshown = dict(service.regenerate_key(args.slot, value))
    keys = service.keys()
    if args.slot is None:
        sys.stdout.write(f"primary    {keys.primary}\nsecondary  {keys.secondary}\n")
    else:
        sys.stdout.write(f"{getattr(keys, args.slot)}\n")
    for pod, trouble in unshown.items():
        _note(f"the pod {pod} may still take the key of before: {trouble}")
    return _FAILED if unshown else 0


def _forward(args: argparse.Namespace) -> int:
    from stoker_cluster.forwarding import forwarding

    cluster = _cluster(args)
    with forwarding(cluster, _service(args, cluster), args.port, _note) as port:
        sys.stdout.write(f"http://127.0.0.1:{port}/api/v1/service/{args.name}/score until Ctrl-C\n")
        sys.stdout.flush()
        signal.pause()
    return 0


def _check(args: argparse.Namespace) -> int:
    from stoker_cluster.checking import survey

    cluster = _cluster(args)
    for line in survey(cluster, args.namespace or cluster.namespace):
        sys.stdout.write(f"{escaped(line)}\n")
    return 0


def _canary(args: argparse.Namespace) -> int:
    from stoker.errors import InvalidSettings
    from stoker_cluster.canary import set_shares
    from stoker_cluster.values import read_traffic

    try:
        traffic = read_traffic(",".join(args.shares)) if args.shares else {}
    except ValueError as error:
        raise InvalidSettings(f"the shares {error}") from None
    cluster = _cluster(args)
    weights = set_shares(
        cluster, args.namespace or cluster.namespace, args.name, traffic, args.default_version
    )
    for version, weight in weights.items():
        sys.stdout.write(f"{version}  {weight / 100:g}%\n")
    return 0


def _cluster(args: argparse.Namespace) -> Cluster:
    from stoker_cluster.access import Cluster

    return Cluster.connect(args.context, warn=_note)


def _service(args: argparse.Namespace, cluster: Cluster | None = None) -> ClusterService:
    from stoker_cluster.service import ClusterService

    asked = cluster or _cluster(args)
    return ClusterService(asked, args.namespace or asked.namespace, args.name)


def _note(line: str) -> None:
    sys.stderr.write(f"{escaped_lines(line)}\n")
    sys.stderr.flush()


class _Line:
    """One line that changes, on a terminal; elsewhere a line for each change."""

    def __init__(self) -> None:
        self._begun = False

    def show(self, text: str) -> None:
        """Show it in the place of what was shown before."""
        if not sys.stderr.isatty():
            _note(text)
            return
        # A line that does not fit would be two, of which one stays.
        shown = escaped(text)[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"\x1b[F\x1b[K{shown}\n" if self._begun else f"{shown}\n")
        sys.stderr.flush()
        self._begun = True
