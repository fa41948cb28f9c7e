"""`stoker submit`: run a script on a compute target, follow it, and keep what it writes."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.commands.terminal import add_workspace_argument, note, size_text
from stoker.errors import InvalidSettings
from stoker.system.wording import format_count
from stoker_runs.commands.run_output import duration_option, found_workspace, stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from tempfile import TemporaryDirectory

    from stoker.settings.workspace import Workspace
    from stoker_runs.launch.azure_files import ComputeFile
    from stoker_runs.launch.submission import Request
    from stoker_runs.records.folder import RunFolder
    from stoker_runs.records.snapshots import Snapshot


_EXAMPLES: Final = """examples:
  stoker submit train.py --lr 0.1                    this machine, this Python; what follows train.py is its own
  stoker submit --environment env.yml train.py       with the packages that a conda or requirements file names
  stoker submit --target gpu-vm --gpus 1 train.py    on another machine; see: stoker targets --help
  stoker submit --input digits=data train.py         the path of the data is in the variable 'digits'

What the script writes to outputs/ is kept. Then: stoker runs list, stoker runs show @latest, stoker runs --help.
Exit status: 0 Completed, 1 Failed or Canceled, 2 refused, 130 left to itself by Ctrl-C.
"""
_OPTIONS: Final = (
    ("--target", str, "NAME", "the compute target (default: local, this machine)"),
    ("--experiment", str, "NAME", "the experiment (default: the folder's name)"),
    ("--source", Path, "DIR", "source folder, which is copied (default: the current folder)"),
    (
        "--environment",
        str,
        "FILE",
        "a conda or requirements file to install exactly, a registered environment's name, or 'relaxed' for "
        "today's versions of the file that lies beside the script (default: the Python that runs Stoker, as it is)",
    ),
    ("--python", str, "PROGRAM", "another Python interpreter, used with its packages"),
    ("--as-of", str, "DATE", "ignore packages that were uploaded after this date, such as 2021-05-01"),
    ("--image", str, "NAME", "image of the run's container, on a target with containers"),
    ("--dockerfile", Path, "FILE", "Dockerfile from which the image is built instead"),
    (
        "--nodes",
        int,
        "N",
        "number of machines; a target that is one machine runs the processes of all (default: 1)",
    ),
    ("--processes-per-node", int, "N", "processes on each machine (default: 1)"),
    ("--gpus", int, "N", "GPUs on each node (default: one for each process, if the target has as many)"),
    ("--cores", int, "N", "cores on each node (default: 1)"),
    ("--max-duration", duration_option, "TIME", "time limit, such as 90s, 30m or 2h (default: 30d)"),
    ("--attempts", int, "N", "attempts if the machine is lost (default: 1)"),
    ("--grace", duration_option, "TIME", "time between SIGTERM and SIGKILL (default: 30s)"),
    (
        "--lost-after",
        duration_option,
        "TIME",
        "time without contact after which the machine counts as lost (default: 5m)",
    ),
    ("--resume", str, "RUN", "run whose outputs the script gets by --resume-from PATH"),
    ("--snapshot-limit", int, "MB", "largest snapshot (default: 300)"),
    ("--config", Path, "FILE", "file with these settings; options take precedence"),
)
_REPEATED: Final = (
    (
        "--input",
        "NAME=WHERE",
        "data: a file, a folder, a data set NAME:VERSION, STORE/PATH or https://…. The script "
        "finds its path in the variable NAME, and '$AZUREML_DATAREFERENCE_NAME' in its arguments becomes it",
    ),
    (
        "--output",
        "NAME=STORE/PATH",
        "folder of a data store that the script writes to, by a path that it finds as those of --input",
    ),
    ("--tag", "KEY=VALUE", "tag of the run"),
)
_MB: Final = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EXAMPLES
    add_workspace_argument(parser)
    parser.add_argument(
        "script", metavar="SCRIPT", nargs="?", help="the script, in the current folder or below"
    )
    parser.add_argument("arguments", metavar="ARG", nargs=argparse.REMAINDER, help="arguments of the script")
    for option, kind, metavar, text in _OPTIONS:
        parser.add_argument(option, type=kind, metavar=metavar, help=text)
    for option, metavar, text in _REPEATED:
        parser.add_argument(
            option, action="append", default=[], metavar=metavar, help=f"{text}; can be repeated"
        )
    parser.add_argument("--detach", action="store_true", help="do not follow the run")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be submitted, and submit nothing"
    )
    parser.set_defaults(own_options=frozenset(parser._option_string_actions))  # noqa: SLF001  # nobody else knows them


def run(args: argparse.Namespace) -> int:
    """Submit and follow.

    Returns:
        0 if the run is Completed, 1 if it has Failed or was Canceled, 130 where it was left to itself by Ctrl-C.

    Raises:
        OperatorError: It is refused; nothing was written.
    """
    from stoker_runs.launch.runners import fork_runner
    from stoker_runs.launch.submission import submit

    workspace = found_workspace(args)
    for word in args.arguments:
        if word.startswith("--") and word.partition("=")[0] in args.own_options:
            note(
                f"{word} follows the script's name and so goes to the script; options of submit stand before it"
            )
    with ExitStack() as cleanup:
        request = request_of(args, workspace, cleanup)
        if args.dry_run:
            print_plan(request, workspace)
            return 0
        folder, snapshot = submit(request, workspace, spawn=fork_runner)
    announce(folder, snapshot)
    return 0 if args.detach else stream(folder, workspace)


def announce(folder: RunFolder, snapshot: Snapshot) -> None:
    """Say what was submitted: its id for programs, its files for people."""
    sys.stdout.write(f"{folder.id}\n")
    sys.stdout.flush()
    note(
        f"snapshot {snapshot.digest[:12]}: {_files(snapshot.files, snapshot.size_bytes)}, "
        f"{size_text(snapshot.added_bytes)} new; target {folder.record().definition.target_name}"
    )
    for name in snapshot.changed:
        note(f"has changed while it was read, and is kept as it was read: {name}")
    for name in snapshot.skipped:
        note(f"not sent, for it is a link to a folder or no file: {name}")


def request_of(
    args: argparse.Namespace,
    workspace: Workspace,
    cleanup: ExitStack,
    settings: Mapping[str, Any] | None = None,
) -> Request:
    """Return the submission that the options and their configuration describe.

    Args:
        cleanup: Removes temporary files after the submission.
        settings: The configuration, if it has been read already.

    Raises:
        OperatorError: They contradict each other, or name what there is not.
    """
    from stoker_runs.launch.submission import Request
    from stoker_runs.records.snapshots import DEFAULT_LIMIT_BYTES
    from stoker_runs.targets.definitions import LOCAL

    config: dict[str, Any] = dict(settings or {})
    if settings is None and args.config is not None:
        scratch = Path(cleanup.enter_context(_scratch()))
        config, fixed = _read_project_configuration(args.config, args.target, workspace, scratch)
        if fixed:
            args.arguments = [*config["arguments"], *args.arguments]
    else:
        config["target"] = args.target or config.get("target") or LOCAL
        config, _ = apply_compute_file(Path.cwd(), config, workspace)
    environment = config.get("environment", {})
    script = args.script or config.get("script")
    if script is None:
        raise InvalidSettings("no script is named, by argument or configuration; see: stoker submit --help")
    source, inside = _source(args.source, script)
    file = args.environment or environment.get("file", "")
    beside = _relaxed_file(environment, source) if file == "relaxed" else None
    return Request(
        _definition(args, config, inside, workspace),
        source,
        args.experiment or config.get("experiment", ""),
        file,
        beside,
        args.python or environment.get("python", ""),
        args.as_of or environment.get("as_of", ""),
        {**config.get("tags", {}), **dict(map(_tag, args.tag))},
        DEFAULT_LIMIT_BYTES if args.snapshot_limit is None else args.snapshot_limit * _MB,
        dockerfile=args.dockerfile or (Path(file) if (file := environment.get("dockerfile")) else None),
    )


def _relaxed_file(environment: Mapping[str, Any], source: Path) -> Path:
    from stoker.environments.location import find_environment

    beside = Path(environment["file"]) if "file" in environment else find_environment(source)
    if beside is None:
        raise InvalidSettings(
            "--environment relaxed needs an environment file beside the script, or in --config"
        )
    return beside


def _scratch() -> TemporaryDirectory[str]:
    # Not above: few submissions need it, and it takes as long to import as ten modules of ours.
    import tempfile

    return tempfile.TemporaryDirectory(prefix="stoker-submit-")


def _definition(args: argparse.Namespace, config: dict[str, Any], script: str, workspace: Workspace) -> Any:
    from stoker_runs.records.record import Definition
    from stoker_runs.records.store import RunStore

    given = {
        "arguments": tuple(args.arguments) or config.get("arguments"),
        "target": config.get("target") or args.target,
        **{
            name: config.get(name) if getattr(args, name) is None else getattr(args, name)
            for name in ("nodes", "processes_per_node", "gpus", "cores", "attempts")
        },
        "max_duration_s": args.max_duration or config.get("max_duration"),
        "grace_s": args.grace,
        "lost_after_s": args.lost_after,
        "variables": config.get("environment", {}).get("variables"),
        "inputs": _inputs(args, config, workspace),
        "outputs": _outputs(args, config, workspace),
        **{name: config.get(name) for name in ("communicator", "framework", "parameter_servers")},
        "container": _container(args, config.get("environment", {})),
        "resume_from": None if args.resume is None else RunStore(workspace.runs_dir).find(args.resume).id,
    }
    return Definition(script, **{name: value for name, value in given.items() if value is not None})


def _inputs(args: argparse.Namespace, config: dict[str, Any], workspace: Workspace) -> dict[str, str]:
    from stoker_runs.launch.inputs import find_input, split_named

    found = {
        name: find_input(name, where, workspace, args.config.parent, note)
        for name, where in config.get("inputs", {}).items()
    }
    given = [split_named("--input", text) for text in args.input]
    return {**found, **{name: find_input(name, where, workspace, say=note) for name, where in given}}


def _outputs(args: argparse.Namespace, config: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    given = dict(config.get("outputs", {}))
    if not given and not args.output:
        return {}
    from stoker_runs.launch.inputs import split_named
    from stoker_runs.launch.outputs import read_output

    given |= dict(split_named("--output", text) for text in args.output)
    return {name: read_output(name, where, workspace) for name, where in given.items()}


def _container(args: argparse.Namespace, environment: Mapping[str, Any]) -> dict[str, Any]:
    container = {
        name: environment[name]
        for name in ("image", "shm_size", "arguments", "optional")
        if name in environment
    }
    return container if args.image is None else {**container, "image": args.image}


def _source(given: Path | None, script: str) -> tuple[Path, str]:
    """The folder that is sent, and the script in it: this folder, or that of a script which lies elsewhere."""
    if given is not None:
        return given, script
    here, path = Path.cwd(), Path(script)
    if path.is_absolute() or ".." in path.parts:
        inside = path.resolve()
        if inside.is_relative_to(here):
            return here, inside.relative_to(here).as_posix()
        return inside.parent, inside.name
    return here, path.as_posix()


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidSettings(f"--tag {text}: expected KEY=VALUE")
    return key, value


def print_plan(request: Request, workspace: Workspace) -> None:
    """Print what would be submitted."""
    from stoker.environments.check import compare, notes
    from stoker.environments.files import read_environment
    from stoker_runs.launch.submission import plan
    from stoker_runs.records.snapshots import SnapshotStore, measure_data
    from stoker_runs.run_environment import as_written

    planned = plan(request, workspace)
    files, size_bytes = SnapshotStore(workspace.snapshots_dir).measure(request.source, request.limit_bytes)
    definition = planned.definition
    command = " ".join([definition.script, *definition.arguments])
    sys.stdout.write(f"experiment   {planned.experiment}\n")
    sys.stdout.write(f"target       {planned.target.name} ({planned.target.type})\n")
    sys.stdout.write(f"command      {command}\n")
    holds = f"{format_count(definition.cores, 'core')}, {format_count(definition.gpus or 0, 'GPU')}"
    if definition.processes > 1:
        holds += (
            f" on each of {format_count(definition.nodes, 'node')}, {definition.processes} processes in all"
        )
    sys.stdout.write(f"holds        {holds}\n")
    for line in planned.notes:
        sys.stdout.write(f"             {line}\n")
    sys.stdout.write(f"snapshot     {_files(files, size_bytes)} of {request.source.resolve()}\n")
    for name, path in definition.inputs.items():
        data_files, data_bytes = measure_data(Path(path))
        sys.stdout.write(f"input        {name}: {_files(data_files, data_bytes)} of {path}\n")
    for name, output in definition.outputs.items():
        sys.stdout.write(f"output       {name}: {output.store}/{output.path_of(name)}\n")
    kind = definition.environment["kind"]
    if planned.environment_file is None:
        python = definition.environment["python"] or sys.executable
        sys.stdout.write(f"environment  {python} as it is\n")
        return
    sys.stdout.write(f"environment  {kind}: {planned.environment_file}\n")
    with _scratch() as folder:
        file = Path(folder, definition.environment["file"])
        file.write_bytes(planned.environment_content)
        specification = read_environment(
            planned.environment_file if planned.environment_file.is_file() else file
        )
    # Relaxed packages have no versions to compare, but the same names.
    for line in notes(as_written(specification, definition.gpus or 0) if kind == "exact" else specification):
        sys.stdout.write(f"             note     {line}\n")
    for finding in compare(specification):
        sys.stdout.write(f"             {finding.kind:<8} {finding.text}, compared with this Python\n")


def _files(count: int, size_bytes: int) -> str:
    return f"{format_count(count, 'file')}, {size_text(size_bytes)}"


_OF_CONTAINERS: Final = ("image", "dockerfile", "shm_size", "arguments")


def _read_project_configuration(
    path: Path, target: str | None, workspace: Workspace, scratch: Path
) -> tuple[dict[str, Any], bool]:
    """Read a run configuration: `NAME.runconfig` of the project in this folder, or a file of Stoker.

    Args:
        target: The target of the command line, which takes precedence.
        scratch: A folder for files whose content is inline.

    Returns:
        What it says, and whether further arguments follow those of the file.

    Raises:
        InvalidSettings: There is none, or it has a value that it cannot have; a file of Stoker also a key.
    """
    from stoker_runs.launch.azure_files import find_run_config, read_run_config
    from stoker_runs.launch.configuration import read_configuration

    found = find_run_config(Path.cwd(), str(path))
    if found is None:
        configuration = read_configuration(path)
        if target is not None:
            configuration["target"] = target
        return apply_compute_file(Path.cwd(), configuration, workspace)[0], False
    file = read_run_config(found, scratch)
    for line in file.notes:
        note(line)
    configuration = dict(file.configuration)
    configuration["target"] = target or configuration["target"]
    configuration, known = apply_compute_file(file.project, configuration, workspace)
    if not known:
        _use_local_for_cluster(configuration, file.cluster, workspace)
    _choose_container(configuration, workspace, is_requested=file.in_container)
    _choose_framework(configuration, workspace)
    return configuration, file.fixed


def apply_compute_file(
    project: Path, configuration: dict[str, Any], workspace: Workspace
) -> tuple[dict[str, Any], bool]:
    """Make the target that a project's `.compute` file describes one of the workspace.

    Returns:
        The same with what the file says of the runs on its target, where they do not say it; whether there is a file.
    """
    from stoker_runs.launch.azure_files import find_compute, read_compute, save_target

    target = configuration.get("target")
    path = None if target is None else find_compute(project, target)
    if path is None:
        return configuration, False
    compute = read_compute(path)
    save_target(compute, workspace, note)
    return _with_compute(configuration, compute), True


def _with_compute(configuration: dict[str, Any], compute: ComputeFile) -> dict[str, Any]:
    """Return the defaults of a `.compute` file for runs on its target."""
    environment = dict(configuration.get("environment", {}))
    if compute.image:
        environment.setdefault("image", compute.image)
    if compute.user_managed:
        if environment.pop("file", None) is not None:
            note(
                f"{compute.name}.compute has userManagedEnvironment: true: the script has the packages of the Python "
                "there, without the conda file"
            )
        if compute.python:
            environment["python"] = compute.python
    elif compute.python and "file" not in environment:
        environment.setdefault("python", compute.python)
    elif compute.python:
        note(
            f"pythonLocation is not used: the packages are those of {environment['file']}; write "
            f"userManagedEnvironment: true into {compute.name}.compute to use its own"
        )
    if compute.gpus is not None:
        configuration.setdefault("gpus", compute.gpus)
    if compute.nodes > 1:
        configuration.setdefault("nodes", compute.nodes)
    return {**configuration, "environment": environment}


def _use_local_for_cluster(configuration: dict[str, Any], cluster: str, workspace: Workspace) -> None:
    """Put this machine in the place of a cluster of Azure."""
    from stoker_runs.records.record import TARGET_VARIABLE
    from stoker_runs.targets.definitions import LOCAL, list_targets

    name = configuration["target"]
    if name in list_targets(workspace.targets_dir):
        return
    kind = "AmlCompute" if cluster else _kind_of_record(workspace, name)
    if kind == "AmlCompute":
        note(f"{name}: the cores and GPUs of this machine stand for the cluster")
        configuration["target"] = LOCAL
        configuration["environment"]["variables"].setdefault(TARGET_VARIABLE, name)
    elif kind:
        raise InvalidSettings(
            f"{name} is a compute target of type {kind}, to which no scripts are sent from here; name one of these "
            f"with --target: {', '.join(list_targets(workspace.targets_dir))}"
        )


def _kind_of_record(workspace: Workspace, name: str) -> str:
    """Return the Azure type of a target that code for the SDK has made; empty for none."""
    file = workspace.azure_dir / "compute" / f"{name}.json"
    if "/" in name or not file.is_file():
        return ""
    return str(json.loads(file.read_bytes()).get("type", ""))


def _choose_framework(configuration: dict[str, Any], workspace: Workspace) -> None:
    """Azure's files always name a framework: it counts on Spark clusters."""
    from stoker_runs.targets.definitions import SPARK, find_target

    if find_target(workspace.targets_dir, configuration["target"]).type == SPARK:
        return
    if configuration.pop("framework") == "pyspark":
        note("the framework is PySpark: Python runs the script, and pyspark has to be among its packages")


def _choose_container(configuration: dict[str, Any], workspace: Workspace, *, is_requested: bool) -> None:
    """Azure's files always name an image: it counts where the target has containers, or one is asked for."""
    from stoker_runs.targets.containers import optional_container
    from stoker_runs.targets.definitions import find_target

    target = find_target(workspace.targets_dir, configuration["target"])
    if target.has_containers:
        return
    environment = configuration["environment"]
    image, dockerfile = environment.get("image", ""), bool(environment.get("dockerfile"))
    if is_requested and optional_container(target, workspace, note, image=image, dockerfile=dockerfile):
        environment["optional"] = True
        return
    for key in _OF_CONTAINERS:
        environment.pop(key, None)
