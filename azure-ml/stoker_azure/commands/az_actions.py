"""Actions of `stoker az ml`: mostly other commands of Stoker."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stoker.commands.terminal import note
from stoker.errors import InvalidSettings, OperatorError, RepositoryError
from stoker.system.extensions import find_command

if TYPE_CHECKING:
    from stoker.settings.workspace import Workspace


def _run_stoker(words: list[str]) -> int:
    """Do what a command line of Stoker does."""
    module = find_command(words[0])
    parser = argparse.ArgumentParser(prog=f"stoker {words[0]}")
    module.add_arguments(parser)
    exit_code: int = module.run(parser.parse_args(words[1:]))
    return exit_code


def native(*words: str) -> Callable[[argparse.Namespace], int]:
    """Return what does the same as these words of a command line of Stoker; `{name}` is an argument of Azure's."""

    def act(args: argparse.Namespace) -> int:
        return _run_stoker([word.format_map(vars(args)) for word in words])

    return act


def attach(args: argparse.Namespace) -> int:
    """Write the two files of a compute target into `aml_config/`; the password goes to the workspace.

    A machine is logged in to. Where it cannot be, a line says so, and the files stay: they may be edited, and a key
    let in, before `experiment prepare` logs in again.
    """
    from stoker.settings.names import checked_name
    from stoker.settings.workspace import Workspace
    from stoker.system.durable import replace_file
    from stoker_runs.launch.azure_files import read_compute, save_target

    kind = args.kind or args.type_of_before
    if kind is None:
        raise InvalidSettings("say what it is: remotedocker, remote, cluster or localdocker")
    checked_name(args.name, "compute target")
    folder = Path("aml_config")
    compute, run_config = folder / f"{args.name}.compute", folder / f"{args.name}.runconfig"
    folder.mkdir(exist_ok=True)
    before = compute.read_bytes() if compute.is_file() else None
    compute.write_text(_yaml_lines(_compute_lines(args, kind)), encoding="utf-8")
    workspace = Workspace.find()
    try:
        save_target(read_compute(compute), workspace, note)
    except OperatorError:
        if before is None:
            compute.unlink()
        else:
            compute.write_bytes(before)
        raise
    if not run_config.exists():
        run_config.write_text(_run_config_lines(args.name), encoding="utf-8")
    known = {"password": args.password, "passphrase": args.private_key_passphrase}
    if given := {name: text for name, text in known.items() if text}:
        file = workspace.targets_dir / f"{args.name}.secret"
        replace_file(file, json.dumps(given).encode() + b"\n", mode=0o600)
    sys.stdout.write(f"{compute}\n{run_config}\n")
    if args.use_azureml_ssh_key and not given:
        port = f"-p {args.ssh_port} " if args.ssh_port else ""
        note(f"let your own key in there: ssh-copy-id {port}{args.username}@{args.address}")
    elif not args.no_check:
        _log_in(workspace, args.name)
    return 0


def _compute_lines(args: argparse.Namespace, kind: str) -> dict[str, str]:
    """The lines of a `.compute` file, as Workbench wrote them."""
    lines = {"type": kind}
    if args.address is not None:
        reference = f"AzureMlSecret={args.name}#{args.username or ''}#{secrets.token_hex(16)}"
        host = f"[{args.address}]" if ":" in args.address and args.ssh_port else args.address
        port = f":{args.ssh_port}" if args.ssh_port else ""
        lines |= {"address": f"{host}{port}", "username": args.username or ""}
        if args.private_key_file:
            lines["privateKeyFile"] = str(Path(args.private_key_file).expanduser().absolute())
        lines |= {"password": reference} if args.password else {}
    if kind == "remote":
        # Scripts have the Python of the machine, with its packages.
        lines["userManagedEnvironment"] = "true"
    if "docker" in kind:
        lines |= {"baseDockerImage": "microsoft/mmlspark:plus-0.9.9", "sharedVolumes": "true"}
        # Not nvidiaDocker: Workbench's users add that line.
        lines["nativeSharedDirectory"] = "~/.azureml/share/"
    return lines


def _log_in(workspace: Workspace, name: str) -> None:
    """Say what a machine has, and keep that, or say why nobody gets in; `experiment prepare` fetches images."""
    from stoker_runs.targets.attaching import attach as attach_target
    from stoker_runs.targets.definitions import SPARK, SSH, Target, find_target
    from stoker_runs.targets.engine import Engine
    from stoker_runs.targets.registry import engine_of

    def engine(target: Target, place: Workspace) -> Engine:
        return engine_of(replace(target, settings={**target.settings, "containers": False}), place)

    target = find_target(workspace.targets_dir, name)
    if target.type not in (SSH, SPARK):
        return
    try:
        lines = attach_target(workspace, name, {"type": target.type}, {}, engine)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    except OperatorError as error:
        note(f"{name} is attached, but cannot be used yet: {error}")


def _yaml_lines(lines: Mapping[str, str]) -> str:
    import yaml

    # As Azure wrote them: truth values without quotes.
    words = {key: value == "true" if value in ("true", "false") else value for key, value in lines.items()}
    return yaml.safe_dump(words, sort_keys=True)


def _run_config_lines(name: str) -> str:
    import yaml

    from stoker_runs.launch.azure_files import CONDA_FILE, SPARK_FILE

    content: dict[str, Any] = {
        "ArgumentVector": ["$file"],
        # Named before they are there, as Workbench does: they are written, or changed, afterwards.
        "CondaDependenciesFile": CONDA_FILE,
        "EnvironmentVariables": {},
        "Framework": "PySpark",
        "PrepareEnvironment": False,
        "SparkDependenciesFile": SPARK_FILE,
        "Target": name,
        "TrackedRun": True,
        "UseSampling": True,
    }
    return yaml.safe_dump(content, sort_keys=True)


def create_cluster(args: argparse.Namespace) -> int:
    """Keep a cluster as code for the SDK does."""
    from stoker_azure.sdk.compute import AmlCompute
    from stoker_azure.sdk.core import Workspace

    configuration = AmlCompute.provisioning_configuration(
        args.vm_size, min_nodes=args.min_nodes, max_nodes=args.max_nodes
    )
    AmlCompute.create(Workspace.from_config(), args.name, configuration)
    return 0


def update_cluster(args: argparse.Namespace) -> int:
    """Change how many nodes a cluster may have, as code for the SDK does."""
    from stoker_azure.sdk.compute import AmlCompute
    from stoker_azure.sdk.core import Workspace

    cluster = AmlCompute(Workspace.from_config(), args.name)
    cluster.update(args.min_nodes, args.max_nodes, args.idle_seconds_before_scaledown)
    nodes = cluster.serialize()["properties"]
    sys.stdout.write(f"{args.name}: min_nodes {nodes['min_nodes']}, max_nodes {nodes['max_nodes']}\n")
    return 0


def detach(args: argparse.Namespace) -> int:
    """Forget a compute target: its files of the project, and what the workspace has of it."""
    from stoker.settings.workspace import Workspace
    from stoker_runs.launch.azure_files import find_compute
    from stoker_runs.targets.definitions import LOCAL, find_target

    if args.name == LOCAL:
        raise InvalidSettings(f"{LOCAL} is this machine, and cannot be detached")
    workspace = Workspace.find()
    files = [workspace.targets_dir / f"{args.name}.yaml", workspace.targets_dir / f"{args.name}.secret"]
    # The record that code for the SDK keeps.
    record = workspace.azure_dir / "compute" / f"{args.name}.json"
    files += [record, record.with_suffix(".secret")]
    compute = find_compute(Path(), args.name)
    if compute is not None:
        files += [compute, compute.with_suffix(".runconfig")]
    elif not any(file.is_file() for file in files):
        # Says which one may be meant.
        find_target(workspace.targets_dir, args.name)
    for file in filter(Path.is_file, files):
        file.unlink()
        sys.stdout.write(f"{file} is removed\n")
    return 0


def _submission(args: argparse.Namespace, *more: str) -> list[str]:
    """The words of `stoker submit` for a run configuration, or a compute target without one."""
    from stoker.settings.workspace import Workspace
    from stoker_runs.launch.azure_files import find_compute, find_run_config
    from stoker_runs.targets.definitions import list_targets

    name = args.config or args.target
    if name is None:
        raise InvalidSettings("no run configuration is named; say which with -c NAME")
    has_file = find_run_config(Path.cwd(), name) is not None
    # A compute target may have no run configuration of its name, as `local` in a folder that Workbench has not made.
    is_target = find_compute(Path.cwd(), name) is not None or name in list_targets(
        Workspace.find().targets_dir
    )
    target = args.target or (name if not has_file and is_target else None)
    words = [*more, *(["--config", name] if has_file or target is None else [])]
    return [*words, *(["--target", target] if target is not None else [])]


def submit(args: argparse.Namespace) -> int:
    """Run a script by a run configuration."""
    words = _submission(args, *(["--experiment", args.experiment] if args.experiment else []))
    words += ["--detach"] if args.detach else []
    return _run_stoker(["submit", *words, args.script, *args.arguments])


def submit_hyperdrive(args: argparse.Namespace) -> int:
    """Run a script with many parameters, by a run configuration and a HyperDrive configuration."""
    from stoker.settings.workspace import Workspace
    from stoker_runs.commands import submit as submission
    from stoker_runs.commands.tune import begin
    from stoker_runs.tuning.sweep_files import find_hdconfig, read_hdconfig

    definition = read_hdconfig(find_hdconfig(Path.cwd(), args.hyperdrive))
    parser = argparse.ArgumentParser(prog="stoker submit")
    submission.add_arguments(parser)
    words = _submission(args, *(["--experiment", args.experiment] if args.experiment else []))
    options = parser.parse_args([*words, args.script, *args.arguments])
    workspace = Workspace.find()
    with ExitStack() as cleanup:
        request = submission.request_of(options, workspace, cleanup)
        return begin(request, definition, workspace, detach=args.detach)


def create_job(args: argparse.Namespace) -> int:
    """Run the script of a command job, by a run configuration that says the same."""
    from tempfile import TemporaryDirectory

    import yaml

    from stoker.settings.workspace import Workspace
    from stoker_azure.config.job import CommandJob

    job = CommandJob.from_file(Path(args.file))
    for line in job.notes:
        note(f"{args.file}: {line}")
    with TemporaryDirectory(prefix="stoker-job-") as folder:
        configuration = Path(folder, "job.yaml")
        configuration.write_text(yaml.safe_dump(dict(job.configuration), sort_keys=True), encoding="utf-8")
        words = ["submit", "--config", str(configuration), "--source", str(job.source)]
        words += ["--workspace", str(Workspace.find().root), *([] if args.stream else ["--detach"])]
        return _run_stoker(words)


def prepare(args: argparse.Namespace) -> int:
    """Have packages and image of a run configuration; nothing is started."""
    from stoker.settings.workspace import Workspace
    from stoker_runs.commands import submit as submission
    from stoker_runs.launch.submission import prepare as prepared

    parser = argparse.ArgumentParser(prog="stoker submit")
    submission.add_arguments(parser)
    scripts = sorted(Path().glob("*.py"))
    if not scripts:
        raise InvalidSettings(
            "there is no script in this folder: prepare is called in the folder of a project"
        )
    options = parser.parse_args([*_submission(args), scripts[0].name])
    workspace = Workspace.find()
    with ExitStack() as cleanup:
        request = submission.request_of(options, workspace, cleanup)
        prepared(request, workspace, note)
    sys.stdout.write(f"{request.definition.target} is prepared\n")
    return 0


def download(args: argparse.Namespace) -> int:
    """Copy the files of a run."""
    words = ["runs", "download", args.reference, args.prefix]
    return _run_stoker([*words, *(["--output", args.output] if args.output else [])])


def download_logs(args: argparse.Namespace) -> int:
    """Copy the logs of a run."""
    words = ["runs", "download", args.reference, "azureml-logs/"]
    return _run_stoker([*words, *(["--output", args.output] if args.output else [])])


def promote(args: argparse.Namespace) -> int:
    """Register a file of a run as a model; one that cannot be served by itself is kept for entry scripts."""
    from stoker.models.frameworks import detect
    from stoker.settings.workspace import Workspace
    from stoker_runs.records.folder import find_file
    from stoker_runs.records.store import RunStore

    words = ["models", "register", args.name, args.path, "--run", args.reference]
    source = find_file(RunStore(Workspace.find().runs_dir).find(args.reference), args.path)
    try:
        detect(source)
    except RepositoryError:
        note(f"{args.path} is registered as files for an entry script")
        words += ["--framework", "files"]
    return _run_stoker(words)


def restore(args: argparse.Namespace) -> int:
    """Copy the source files of a run to a new folder."""
    return _run_stoker(["runs", "snapshot", args.reference, "--output", args.output or args.reference])


def attach_folder(args: argparse.Namespace) -> int:
    """Write the file by which code for the SDK finds its workspace."""
    from stoker_azure.sdk.core import Workspace

    Workspace.create(args.workspace_name, resource_group=args.resource_group).write_config()
    sys.stdout.write(".azureml/config.json is written\n")
    return 0


def upload(args: argparse.Namespace) -> int:
    """Copy a folder into a data store."""
    from stoker_azure.sdk.core import Workspace
    from stoker_azure.sdk.datastore import Datastore

    Datastore.get(Workspace.from_config(), args.name).upload(
        args.source, args.place or None, overwrite=args.overwrite
    )
    return 0


def list_stores(args: argparse.Namespace) -> int:
    """List the data stores."""
    from stoker_azure.sdk.core import Workspace
    from stoker_azure.sdk.datastore import Datastore

    del args
    sys.stdout.write("".join(f"{name}\n" for name in Datastore.names(Workspace.from_config())))
    return 0
