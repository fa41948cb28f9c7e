"""`stoker kubernetes`: the objects of a service, as YAML and in a cluster, and the Dockerfile of its image."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stoker_cluster.plan import ClusterPlan

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY: Final = "write and apply the objects of a service in a Kubernetes cluster, and look after it there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    from stoker_cluster.commands.kubernetes_context import add_actions, add_plan_actions

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
    from stoker_cluster.job_plan import JobPlan
    from stoker_cluster.options import add_setting_options

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
    from stoker_cluster.job_plan import JobPlan
    from stoker_cluster.objects.job import job
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
    from stoker_cluster.dockerfile import dockerfile
    from stoker_cluster.options import listed_models

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
