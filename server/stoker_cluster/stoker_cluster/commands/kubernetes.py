"""`stoker kubernetes`: the objects of a service, as YAML and in a cluster, and the Dockerfile of its image."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from stoker.commands.terminal import note, sentence
from stoker.system.logs import escaped

if TYPE_CHECKING:
    from stoker_cluster.access import Cluster
    from stoker_cluster.cluster_service import ClusterService
    from stoker_cluster.plan import ClusterPlan

__all__ = ["SUMMARY", "add_actions", "add_arguments", "add_plan_actions", "run"]


SUMMARY: Final = "write and apply the objects of a service in a Kubernetes cluster, and look after it there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    from stoker_cluster.commands.kubernetes import add_actions, add_plan_actions

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
    text = "all objects of a service as YAML, for kubectl apply -f -"
    render = actions.add_parser(
        "render", parents=[plan], help=f"print {text}", description=f"Print {text}. No cluster is needed."
    )
    render.set_defaults(kubernetes_run=_render)
    add_plan_actions(actions, plan)
    add_actions(actions)
    text = "a ClusterServingRuntime, by which KServe serves models with Stoker"
    kserve = actions.add_parser("kserve", help=f"print {text}", description=f"Print {text}.")
    _add_kserve_options(kserve)
    text = "a Job whose pods score the rows of files, each a part of them"
    job = actions.add_parser("job", help=f"print {text}", description=f"Print {text}. No cluster is needed.")
    _add_job_options(job)
    text = "a store of models in a namespace, from which pods fetch theirs"
    store = actions.add_parser("store", help=f"print {text}", description=f"Print {text}.")
    _add_store_options(store)
    text = "the Dockerfile of an image with the models and their packages in it"
    dockerfile = actions.add_parser(
        "dockerfile",
        parents=[models],
        help=f"print {text}",
        description=f"Print {text}. Its build context is the folder that PATH is relative to, or that of FILE.",
    )
    _add_dockerfile_options(dockerfile)


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    from stoker_cluster.options import add_plan_options

    parser.add_argument(
        "--deployment-config",
        type=Path,
        metavar="FILE",
        help="deploymentconfig.json of the Azure CLI, of type aks; other options win over it",
    )
    add_plan_options(parser.add_argument_group("plan", "also below 'kubernetes' in the deployment file"))


def _add_kserve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", required=True, metavar="IMAGE", help="image that the pods run")
    parser.add_argument("--gpu-resource", metavar="NAME", help="GPU of each pod, for instance nvidia.com/gpu")
    parser.add_argument("--scripts", action="store_true", help="for entry scripts: score.py beside its model")
    parser.add_argument("--grpc", action="store_true", help="for callers over gRPC instead of HTTP")
    parser.set_defaults(kubernetes_run=_kserve)


def _add_job_options(parser: argparse.ArgumentParser) -> None:
    from stoker_cluster.options import add_setting_options
    from stoker_cluster.plan import JobPlan

    parser.add_argument("model", metavar="MODEL", help="the model, relative to /models in the pod")
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="PATH", help="files and folders with rows, in the claim"
    )
    parser.add_argument(
        "--output", required=True, metavar="PATH", help="the folder of the answers, in the claim"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="OPTION", help="a further option of stoker offline"
    )
    add_setting_options(parser.add_argument_group("plan"), JobPlan)
    parser.set_defaults(kubernetes_run=_job)


def _add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", required=True, metavar="IMAGE", help="image that the pod runs")
    parser.add_argument("--namespace", metavar="NAME", help="namespace (default: that of the context)")
    parser.add_argument("--size-gb", type=float, default=100.0, metavar="GB", help="its disk (default 100)")
    parser.add_argument(
        "--storage-class", metavar="NAME", help="class of the disk (default: the default one)"
    )
    parser.set_defaults(kubernetes_run=_store)


def _add_dockerfile_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="base", default="stoker", metavar="IMAGE", help="image with Stoker (default stoker)"
    )
    parser.add_argument(
        "--environment", type=Path, metavar="FILE", help="conda file or requirements file of the models"
    )
    parser.set_defaults(kubernetes_run=_dockerfile)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        InvalidSettings: A value is bad, or two contradict each other.
    """
    exit_code: int = args.kubernetes_run(args)
    return exit_code


def _render(args: argparse.Namespace) -> int:
    from stoker_cluster.options import plan_from
    from stoker_cluster.render import as_yaml, objects_of

    plan = plan_from(vars(args), args.path, args.config, args.deployment_config)
    sys.stdout.write(as_yaml(objects_of(plan)))
    for line in (*plan.notes, *_next_steps(plan)):
        sys.stderr.write(f"{line}\n")
    return 0


def _next_steps(plan: ClusterPlan) -> Iterator[str]:
    """What has to be there before the pods start, and is not among the objects."""
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


def _job(args: argparse.Namespace) -> int:
    from stoker.settings.readers import read_settings, settings_of
    from stoker_cluster.objects.job import job
    from stoker_cluster.plan import JobPlan
    from stoker_cluster.render import as_yaml

    given = {name: getattr(args, name) for name in settings_of(JobPlan) if hasattr(args, name)}
    plan = JobPlan(
        **read_settings(JobPlan, given, "command line"),
        model=args.model,
        inputs=tuple(args.input),
        output=args.output,
        options=tuple(args.option),
    )
    sys.stdout.write(as_yaml(job(plan)))
    return 0


def _store(args: argparse.Namespace) -> int:
    from stoker_cluster.objects.store import store
    from stoker_cluster.render import as_yaml

    sys.stdout.write(as_yaml(store(args.image, args.namespace, args.size_gb, args.storage_class)))
    return 0


def _dockerfile(args: argparse.Namespace) -> int:
    from stoker_cluster.options import listed_models
    from stoker_cluster.render import dockerfile

    models = listed_models(args.path, args.config)
    base = Path() if args.config is None else args.config.parent
    sys.stdout.write(dockerfile(args.base, models, _packages(args.environment, models, base)))
    return 0


def _packages(given: Path | None, models: Sequence[Mapping[str, Any]], base: Path) -> list[str]:
    """What pip installs: the options and packages of the environment files, each once."""
    from stoker.environments.files import find_environment, read_environment

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


_FAILED: Final = 1
_TAIL_LINES: Final = 200


class _Actions(Protocol):
    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...


def add_plan_actions(actions: _Actions, plan: argparse.ArgumentParser) -> None:
    """Declare the actions that take a plan.

    Args:
        actions: Where they are declared.
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


# --- actions ---


def _apply(args: argparse.Namespace) -> int:
    from stoker_cluster.applying import apply
    from stoker_cluster.cluster_service import ClusterService
    from stoker_cluster.options import plan_from

    plan = plan_from(vars(args), args.path, args.config, args.deployment_config)
    cluster = _cluster(args)
    for line in plan.notes:
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
        note(f"the pod {pod} may still take the key of before: {trouble}")
    return _FAILED if unshown else 0


def _forward(args: argparse.Namespace) -> int:
    from stoker_cluster.forwarding import forwarding

    cluster = _cluster(args)
    with forwarding(cluster, _service(args, cluster), args.port, note) as port:
        sys.stdout.write(f"http://127.0.0.1:{port}/api/v1/service/{args.name}/score until Ctrl-C\n")
        sys.stdout.flush()
        signal.pause()
    return 0


def _check(args: argparse.Namespace) -> int:
    from stoker_cluster.applying import survey

    cluster = _cluster(args)
    for line in survey(cluster, args.namespace or cluster.namespace):
        sys.stdout.write(f"{escaped(line)}\n")
    return 0


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

    asked = cluster or _cluster(args)
    return ClusterService(asked, args.namespace or asked.namespace, args.name)


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
