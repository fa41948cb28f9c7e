"""`stoker targets`: where runs can go, what is there, and whether it can be used."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.commands.terminal import note, sentence, table
from stoker.errors import InvalidSettings
from stoker.system.wording import format_count
from stoker_runs.commands.run_output import (
    add_actions,
    common_arguments,
    found_workspace,
    run_action,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_HELP: Final[Mapping[str, str]] = {
    "address": "host name of the machine, or an alias of ~/.ssh/config",
    "arguments": "further arguments of docker run, with commas between them",
    "containers": "whether its runs are in containers there: true or false (default: where an image is named)",
    "claim": "PersistentVolumeClaim that has the workspace",
    "context": "context of the kubeconfig (default: the current one)",
    "idle_s": "seconds that a node is kept for a next run (default: 5)",
    "node_cores": "cores of each node, which runs share (default: a run has its nodes for itself)",
    "node_gpus": "GPUs of each node (default: as many as runs ask for)",
    "cores": "cores that its runs share (default: all that it has)",
    "deploy_mode": "where drivers run: client, that machine, or cluster, a node that YARN chooses (default: client)",
    "engine": "what starts containers: docker or podman (default: the first that answers)",
    "folder": "where everything of runs is there (default: ~/.stoker-runs)",
    "gpus": "GPUs that its runs share, as 0,1 (default: all that it has)",
    "host_key": "fingerprint of its host key, SHA256:…, or the key itself (default: ~/.ssh/known_hosts decides)",
    "image": "image of the containers of runs that name none",
    "key_file": "private key (default: those of the SSH agent and of ~/.ssh)",
    "master": "the cluster, as spark-submit takes it: yarn or spark://HOST:PORT (default: yarn)",
    "max_nodes": "how many nodes a run may have",
    "memory": "how much a container may have, such as 16g (default: no limit)",
    "min_nodes": "how many nodes a Ray cluster keeps; nothing on this machine (default: 0)",
    "ray.address": "address of its dashboard, http://HEAD:8265",
    "ray.max_nodes": "how many nodes all runs may have at once",
    "ray.python": "interpreter of the nodes, from 3.6 up (default: python3)",
    "kubernetes.image": "image of the pods, with Python and the packages of the scripts",
    "kubernetes.memory": "memory of a pod, such as 16g (default: no limit)",
    "kubernetes.python": "interpreter in the image, from 3.6 up (default: python3)",
    "kubernetes.shm_size": "shared memory of a pod (default: 2g)",
    "mount_path": "where the claim belongs in a pod, as it is here (default: the workspace's folder)",
    "namespace": "namespace of the pods (default: the context's)",
    "network": "the network of containers",
    "port": "where its SSH server listens (default: 22)",
    "python": "interpreter there, from 3.6 up (default: python3)",
    "shared_directory": "folder that all runs of an experiment share (default: none)",
    "shm_size": "shared memory of a container (default: 2g)",
    "spark_submit": "the program spark-submit there (default: spark-submit)",
    "username": "who logs in there (default: who you are here)",
    "volumes": "folders that containers see besides, each /HERE:/THERE or /HERE:/THERE:ro, with commas between them",
}
_CREATED: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "local": ("how much of this machine its runs share", {}),
    "docker": ("containers of docker on this machine", {"type": "docker", "engine": "docker"}),
    "podman": ("containers of podman on this machine", {"type": "docker", "engine": "podman"}),
    "ssh": ("a machine that SSH reaches", {"type": "ssh"}),
    "spark": ("the head node of a Spark cluster, which SSH reaches", {"type": "spark"}),
    "ray": ("a Ray cluster, whose nodes see the workspace at its path", {"type": "ray"}),
    "kubernetes": ("a Kubernetes cluster, whose pods mount the workspace", {"type": "kubernetes"}),
    "amlcompute": (
        "a cluster of Azure's, for which the cores and GPUs of this machine stand",
        {"type": "amlcompute"},
    ),
}
"""The kinds of targets that `create` makes: a description, and the fields of the file."""
_NEEDED: Final = frozenset({"address", "claim", "max_nodes", "kubernetes.image"})


def _add_kinds(
    parser: argparse.ArgumentParser,
    kinds: Mapping[str, tuple[str, Mapping[str, str]]],
    *,
    is_new: bool,
) -> None:
    """Declare `create TYPE NAME` or `attach TYPE NAME` with the options of each type."""
    from stoker_runs.targets.definitions import AMLCOMPUTE, LOCAL, keys_of

    common = common_arguments()
    added = parser.add_subparsers(dest="word", required=True, metavar="TYPE")
    for word, (text, fixed) in kinds.items():
        one = added.add_parser(word, parents=[common], help=text, description=sentence(text))
        if word != LOCAL:
            one.add_argument("target", metavar="NAME", help="name of the new target")
        kind, needed = fixed.get("type", LOCAL), _NEEDED if is_new else frozenset()
        _add_settings(one, kind, [key for key in keys_of(kind) if key not in fixed], needed)
        if kind == AMLCOMPUTE:
            about_ray = (
                "the Ray cluster that stands for it instead: the address of its dashboard, http://HEAD:8265"
            )
            one.add_argument("--ray", metavar="ADDRESS", help=about_ray)
        one.set_defaults(run_action=_attach, kind=kind, fixed=fixed, is_new=is_new)
        if word == LOCAL:
            one.set_defaults(target=LOCAL)


def _add_settings(
    parser: argparse.ArgumentParser, kind: str, keys: Sequence[str], needed: Collection[str] = ()
) -> None:
    from stoker_runs.targets.definitions import secrets_of

    for key in keys:
        parser.add_argument(
            f"--{key.replace('_', '-')}",
            dest=f"key_{key}",
            metavar="VALUE",
            help=_HELP.get(f"{kind}.{key}", _HELP[key]),
            required=key in needed or f"{kind}.{key}" in needed,
        )
    for secret in secrets_of(kind):
        group = parser.add_mutually_exclusive_group()
        group.add_argument(f"--ask-{secret}", action="store_true", help=f"ask for the {secret}")
        group.add_argument(
            f"--{secret}-file", type=Path, metavar="FILE", help=f"the {secret} is the first line of this file"
        )
    parser.add_argument("--no-check", action="store_true", help="do not check whether the target can be used")


def _attach(args: argparse.Namespace) -> int:
    """Write the file of a target as the options say, and print what the target says that it has."""
    from stoker_runs.targets.attaching import attach
    from stoker_runs.targets.definitions import keys_of, secrets_of
    from stoker_runs.targets.registry import engine_of

    kind, content = args.kind, dict(args.fixed)
    if vars(args).get("ray"):
        kind, content = "ray", {"type": "ray", "address": args.ray}
    given = {key: vars(args).get(f"key_{key}") for key in keys_of(kind)}
    content |= {key: text for key, text in given.items() if text is not None}
    if "key_file" in content:
        content["key_file"] = str(Path(content["key_file"]).expanduser().absolute())
    secrets = {name: text for name in secrets_of(kind) if (text := _secret(args, name)) is not None}
    workspace, engine = found_workspace(args), None if args.no_check else engine_of
    lines = attach(workspace, args.target, content, secrets, engine, is_new=args.is_new)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(
        f"{args.target} is {'created' if args.is_new else 'attached'}: "
        f"{workspace.targets_dir / f'{args.target}.yaml'}\n"
        f"stoker submit --target {args.target} SCRIPT runs a script there; stoker targets check {args.target} looks "
        "again\n"
    )
    return 0


def _secret(args: argparse.Namespace, name: str) -> str | None:
    """A secret by its file or by asking for it: on a command line others would see it."""
    file: Path | None = vars(args).get(f"{name}_file")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8").partition("\n")[0]
        except OSError as error:
            raise InvalidSettings(f"the {name} cannot be read from {file}: {error.strerror}") from error
    elif vars(args).get(f"ask_{name}"):
        if sys.stdin.isatty():
            from getpass import getpass

            text = getpass(f"{name} for {args.target}: ")
        else:
            text = sys.stdin.readline().rstrip("\n")
    else:
        return None
    if not text:
        raise InvalidSettings(f"the {name} is empty")
    return text


def _prepare(args: argparse.Namespace) -> int:
    from tempfile import TemporaryDirectory

    from stoker_runs.launch.configuration import read_configuration
    from stoker_runs.launch.submission import Request, prepare
    from stoker_runs.records.record import Definition

    settings = {} if args.config is None else read_configuration(args.config).get("environment", {})
    file, as_of = args.environment or settings.get("file"), args.as_of or settings.get("as_of", "")
    if file is None:
        raise InvalidSettings(f"{args.config} names no environment file")
    with TemporaryDirectory(prefix="stoker-") as folder:
        (Path(folder) / "prepare.py").touch()
        definition = Definition("prepare.py", target=args.target)
        request = Request(definition, Path(folder), "prepare", str(Path(file).absolute()), as_of=as_of)
        sys.stdout.write(prepare(request, found_workspace(args), note))
    return 0


def _detach(args: argparse.Namespace) -> int:
    """Forget a target."""
    from stoker_runs.targets.attaching import detach

    detach(found_workspace(args), args.target)
    note(f"{args.target} is detached; what runs have left on it is still there")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    from stoker_runs.targets.definitions import attachable

    add = add_actions(parser)
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("target", metavar="NAME", help="the compute target")
    add("list", _list, "list all compute targets")
    add("show", _show, "show a compute target, and the runs that hold its cores and GPUs", one)
    add("check", _check, "check whether a compute target can be used", one, aliases=["test"])
    create = add("create", None, "create a compute target, after checking that it can be used")
    _add_kinds(create, _CREATED, is_new=True)
    kinds = {kind: (f"one of type {kind}", {"type": kind}) for kind in attachable()}
    _add_kinds(add("attach", None, "attach another machine as a compute target"), kinds, is_new=False)
    prepare = add("prepare", _prepare, "build an environment on a target before its first run", one)
    group = prepare.add_mutually_exclusive_group(required=True)
    group.add_argument("--environment", type=Path, metavar="FILE", help="a conda or requirements file")
    group.add_argument("--config", type=Path, metavar="FILE", help="run configuration that names such a file")
    prepare.add_argument(
        "--as-of", default="", metavar="DATE", help="ignore packages that were uploaded after this date"
    )
    add("detach", _detach, "remove a compute target from the workspace", one)


run = run_action


def _list(args: argparse.Namespace) -> int:
    from stoker_runs.targets.definitions import find_target, list_targets

    targets_dir = found_workspace(args).targets_dir
    targets = [find_target(targets_dir, name) for name in list_targets(targets_dir)]
    rows = [
        (
            target.name,
            target.type,
            *(("-", "-") if (has := target.capacity) is None else (str(has.cores), str(len(has.gpus)))),
        )
        for target in targets
    ]
    sys.stdout.write(table([("TARGET", "TYPE", "CORES", "GPUS"), *rows]))
    return 0


def _show(args: argparse.Namespace) -> int:
    from stoker_runs.launch.slots import slots_of
    from stoker_runs.targets.definitions import find_target
    from stoker_runs.targets.engine import NodePool
    from stoker_runs.targets.registry import engine_of

    workspace = found_workspace(args)
    target = find_target(workspace.targets_dir, args.target)
    facts = [("target", target.name), ("type", target.type)]
    if "max_nodes" in target.settings:
        facts.append(("nodes", f"{target.settings.get('min_nodes', 0)} to {target.settings['max_nodes']}"))
    capacity = target.capacity
    if capacity is not None:
        facts += [("cores", str(capacity.cores)), ("GPUs", ", ".join(capacity.gpus) or "none")]
    engine = engine_of(target, workspace)
    if isinstance(engine, NodePool):
        facts.append(("nodes now", str(engine.count_nodes())))
    slots = slots_of(target, workspace)
    if slots is not None:
        holders, waiting = slots.overview()
        facts += [
            ("held", f"{one.run}: {format_count(one.cores, 'core')}, GPUs {', '.join(one.gpus) or 'none'}")
            for one in holders
        ]
        facts += [
            ("waits", f"{one.run}: {format_count(one.cores, 'core')}, {format_count(len(one.gpus), 'GPU')}")
            for one in waiting
        ]
    sys.stdout.write(table(facts))
    return 0


def _check(args: argparse.Namespace) -> int:
    from stoker_runs.targets.definitions import find_target
    from stoker_runs.targets.registry import engine_of

    workspace = found_workspace(args)
    lines = engine_of(find_target(workspace.targets_dir, args.target), workspace).check()
    sys.stdout.write("".join(f"{line}\n" for line in lines) + f"{args.target} can be used\n")
    return 0
