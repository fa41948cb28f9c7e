"""`stoker kubernetes`: the objects of a service, as YAML and in a cluster, and the Dockerfile of its image."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from stoker.commands.terminal import note, sentence
from stoker.system.logs import escaped

if TYPE_CHECKING:
    from stoker_cluster.access import Cluster
    from stoker_cluster.cluster_service import ClusterService
    from stoker_cluster.plan import ClusterPlan

_FAILED: Final = 1


class _Actions(Protocol):
    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    actions = parser.add_subparsers(dest="kubernetes_action", required=True, metavar="ACTION")
    models = argparse.ArgumentParser(add_help=False)
    models.add_argument(
        "path",
        nargs="*",
        metavar="PATH",
        help="models, relative to the folder that is /models in the pod (default: those of the deployment file)",
    )
    models.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="deployment file (YAML): settings of the server, models, and below 'kubernetes' these options",
    )
    plan = argparse.ArgumentParser(add_help=False, parents=[models])
    _add_plan_options(plan)
    context = argparse.ArgumentParser(add_help=False)
    context.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: the current one)"
    )
    _add_printing_actions(actions, models, plan)
    _add_plan_actions(actions, [plan, context])
    _add_service_actions(actions, context)


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    from stoker.settings.loading import add_setting_options
    from stoker_cluster.plan import ClusterPlan

    parser.add_argument(
        "--deployment-config",
        type=Path,
        metavar="FILE",
        help="deploymentconfig.json of the Azure CLI, of type aks; other options win over it",
    )
    parser.add_argument(
        "--check-models",
        action="store_true",
        help="fail if a model of the image is not on this machine (default: warn)",
    )
    group = parser.add_argument_group("plan", "also below 'kubernetes' in the deployment file")
    add_setting_options(group, ClusterPlan)


def _add_printing_actions(
    actions: _Actions, models: argparse.ArgumentParser, plan: argparse.ArgumentParser
) -> None:
    """Declare the actions that only print."""
    text = "print all objects of a service as YAML, for kubectl apply -f -"
    _add_action(actions, "render", text, _render, [plan], "No cluster is needed.")

    text = "print a ClusterServingRuntime, by which KServe serves models with Stoker"
    kserve = _add_action(actions, "kserve", text, _kserve)
    kserve.add_argument("--image", required=True, metavar="IMAGE", help="image of the pods")
    kserve.add_argument("--gpu-resource", metavar="NAME", help="GPU of each pod, for instance nvidia.com/gpu")
    kserve.add_argument("--scripts", action="store_true", help="for entry scripts: score.py beside its model")
    kserve.add_argument("--grpc", action="store_true", help="for callers over gRPC instead of HTTP")

    text = "print the Dockerfile of an image with the models and their packages in it"
    more = "Its build context is the folder that PATH is relative to, or that of FILE."
    dockerfile = _add_action(actions, "dockerfile", text, _dockerfile, [models], more)
    dockerfile.add_argument(
        "--from", dest="base", default="stoker", metavar="IMAGE", help="image with Stoker (default stoker)"
    )
    dockerfile.add_argument(
        "--environment", type=Path, metavar="FILE", help="conda file or requirements file of the models"
    )


def _add_plan_actions(actions: _Actions, parents: Sequence[argparse.ArgumentParser]) -> None:
    """Declare the actions that compare a plan with a cluster."""
    text = "create and change the objects of a service in a cluster, and wait until its pods can score"
    apply = _add_action(actions, "apply", text, _apply, parents)
    apply.add_argument(
        "--force-conflicts", action="store_true", help="take over fields that others have changed"
    )
    apply.add_argument("--no-wait", action="store_true", help="do not wait for the pods")
    apply.add_argument(
        "--wait-s", type=float, metavar="S", help="time limit of the wait (default: the cluster's own)"
    )


def _add_service_actions(actions: _Actions, context: argparse.ArgumentParser) -> None:
    """Declare the actions for a service in a cluster."""
    place = argparse.ArgumentParser(add_help=False, parents=[context])
    place.add_argument("--namespace", metavar="NAME", help="namespace (default: the context's)")
    service = argparse.ArgumentParser(add_help=False, parents=[place])
    service.add_argument("name", metavar="NAME", help="the service, or NAME-VERSION of an endpoint")

    _add_action(actions, "delete", "delete all objects of a service, with its keys", _delete, [service])
    text = "print the status of a service and its pods; exit code 1 unless all can score"
    _add_action(actions, "status", text, _status, [service])
    text = "print the keys of a service, or replace one in all of its pods"
    keys = _add_action(actions, "keys", text, _keys, [service])
    keys.add_argument("slot", nargs="?", choices=["primary", "secondary"], help="print this key only")
    keys.add_argument(
        "--regenerate",
        action="store_true",
        help="replace the key, and wait until all ready pods accept the new one; exit code 1 if they do not",
    )
    keys.add_argument(
        "--key", metavar="VALUE", help="the new key, 16 to 512 characters; '-' reads it from standard input"
    )
    text = "change the shares of an endpoint's versions in its requests"
    canary = _add_action(actions, "canary", text, _canary, [place])
    canary.add_argument("name", metavar="NAME", help="the endpoint")
    canary.add_argument(
        "shares",
        nargs="*",
        metavar="VERSION=PERCENTAGE",
        help="new percentages; those of other versions stay, and the default version gets the rest up to 100",
    )
    canary.add_argument("--default-version", metavar="VERSION", help="another default version")


def _add_action(
    actions: _Actions,
    name: str,
    text: str,
    run_action: Callable[[argparse.Namespace], int],
    parents: Sequence[argparse.ArgumentParser] = (),
    more: str = "",
) -> argparse.ArgumentParser:
    description = f"{sentence(text)} {more}".rstrip()
    parser = actions.add_parser(name, parents=parents, help=text, description=description)
    parser.set_defaults(kubernetes_run=run_action)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        InvalidSettings: A value is bad, or two contradict each other.
    """
    exit_code: int = args.kubernetes_run(args)
    return exit_code


def _render(args: argparse.Namespace) -> int:
    from stoker_cluster.options import plan_from
    from stoker_cluster.prerequisites import list_prerequisites
    from stoker_cluster.render import as_yaml, objects_of

    plan = plan_from(vars(args), args.path, args.config, args.deployment_config)
    sys.stdout.write(as_yaml(objects_of(plan)))
    for line in (*plan.notes, *list_prerequisites(plan), *_key_steps(plan)):
        sys.stderr.write(f"{line}\n")
    return 0


def _key_steps(plan: ClusterPlan) -> Iterator[str]:
    """Yield how to make the Secret with the keys, or how to keep it."""
    if plan.primary_key or plan.secondary_key:
        yield "the keys of the configuration are in the output, in a Secret: keep it as you keep them"
    if plan.takes_keys and not (plan.primary_key or plan.secondary_key):
        signing = " --from-literal=signing=$(openssl rand -hex 32)" if plan.server.get("token_auth") else ""
        where = f" --namespace {plan.namespace}" if plan.namespace else ""
        yield (
            f"the pods wait for the Secret {plan.keys_secret}; once: kubectl create secret generic "
            f"{plan.keys_secret}{where} --from-literal=primary=$(openssl rand -hex 32) "
            f"--from-literal=secondary=$(openssl rand -hex 32){signing}"
        )


def _kserve(args: argparse.Namespace) -> int:
    from stoker_cluster.objects.kserve import kserve
    from stoker_cluster.render import as_yaml

    protocol = "grpc" if args.grpc else "http"
    objects = kserve(args.image, args.gpu_resource, scripts=args.scripts, protocol=protocol)
    sys.stdout.write(as_yaml(objects))
    return 0


def _dockerfile(args: argparse.Namespace) -> int:
    from stoker_cluster.options import listed_models
    from stoker_cluster.render import dockerfile

    models = listed_models(args.path, args.config)
    base = Path() if args.config is None else args.config.parent
    sys.stdout.write(dockerfile(args.base, models, _packages(args.environment, models, base)))
    return 0


def _packages(given: Path | None, models: Sequence[Mapping[str, Any]], base: Path) -> list[str]:
    """Return the arguments of pip: options and packages of the environment files, each once."""
    from stoker.environments.files import read_environment
    from stoker.environments.location import find_environment

    files = []
    for model in models:
        beside = find_environment((base / model["path"]).parent) if model["path"].endswith(".py") else None
        named = base / model["environment"] if "environment" in model else None
        files.append(given or named or beside)
    specifications = [read_environment(file) for file in dict.fromkeys(files) if file is not None]
    lines = [
        line for specification in specifications for line in (*specification.options, *specification.lines)
    ]
    return list(dict.fromkeys(lines))


def _apply(args: argparse.Namespace) -> int:
    from stoker_cluster.applying import apply
    from stoker_cluster.cluster_service import ClusterService
    from stoker_cluster.options import plan_from
    from stoker_cluster.prerequisites import list_prerequisites

    plan = plan_from(vars(args), args.path, args.config, args.deployment_config)
    cluster = _cluster(args)
    for line in (*plan.notes, *list_prerequisites(plan)):
        note(line)
    for change in apply(cluster, plan, force=args.force_conflicts):
        sys.stdout.write(f"{change}\n")
        sys.stdout.flush()
    if args.no_wait:
        return 0
    service = ClusterService(cluster, plan.namespace or cluster.namespace, plan.instance)
    try:
        status = service.await_ready(_Line().show, args.wait_s)
    except KeyboardInterrupt:
        note(
            f"\n{plan.instance} goes on without being waited for; see stoker kubernetes status {plan.instance}"
        )
        return 128 + signal.SIGINT
    if status.error is not None:
        note(f"{plan.instance} is {status.state}: {status.error['code']}: {status.error['message']}")
    return 0 if status.state == "Healthy" else _FAILED


def _delete(args: argparse.Namespace) -> int:
    from stoker_cluster.applying import delete
    from stoker_cluster.errors import ClusterError

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
    status = service.status()
    sys.stdout.write(escaped(f"{args.name} is {status.state}: {status.line}") + "\n")
    for pod in service.pods():
        sys.stdout.write(f"  {escaped(_of_pod(pod))}\n")
    return 0 if status.state == "Healthy" else _FAILED


def _of_pod(pod: Mapping[str, Any]) -> str:
    from stoker_cluster.status import is_ready

    stays = "deletionTimestamp" not in pod["metadata"]
    word = ("can score" if is_ready(pod) else "starts") if stays else "ends"
    node = pod["spec"].get("nodeName", "no node")
    image = pod["spec"]["containers"][0]["image"]
    return f"{pod['metadata']['name']}  {word:<9}  {node}  {image}"


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
        note(f"the pod {pod} may still take the key of before: {trouble}")
    return _FAILED if unshown else 0


def _canary(args: argparse.Namespace) -> int:
    from stoker.errors import InvalidSettings
    from stoker_cluster.canary import set_shares
    from stoker_cluster.readers import read_traffic

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

    return Cluster.connect(args.context, warn=note)


def _service(args: argparse.Namespace, cluster: Cluster | None = None) -> ClusterService:
    from stoker_cluster.cluster_service import ClusterService

    cluster = cluster or _cluster(args)
    return ClusterService(cluster, args.namespace or cluster.namespace, args.name)


class _Line:
    """One line that changes, on a terminal; elsewhere a line for each change."""

    def __init__(self) -> None:
        self._begun = False

    def show(self, text: str) -> None:
        """Replace the line that was shown before."""
        if not sys.stderr.isatty():
            note(text)
            return
        # A line that is too long would wrap, and its first part would stay.
        shown = escaped(text)[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"\x1b[F\x1b[K{shown}\n" if self._begun else f"{shown}\n")
        sys.stderr.flush()
        self._begun = True
