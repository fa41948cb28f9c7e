"""Submission: a request is checked, its files are kept, and its runner is started. A refused request leaves nothing.

WORKSPACE/azure/environments/NAME.json   all versions of an environment, as code for Azure's SDK has registered it
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.errors import EnvironmentUnusable
from stoker.settings.names import did_you_mean, is_name, name_from_file, parse_reference
from stoker.settings.workspace import Workspace
from stoker_runs.environments.requested import RequestedEnvironment
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.inputs import check_inputs, hold_inputs
from stoker_runs.launch.outputs import plan_outputs
from stoker_runs.launch.runners import Clock, spawn_runner
from stoker_runs.launch.slots import ResourceRequest, check_request
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import SCRIPT, SWEEP, Definition, RunRecord, checked_experiment, new_run_id
from stoker_runs.records.snapshots import (
    DEFAULT_LIMIT_BYTES,
    Snapshot,
    SnapshotStore,
    data_digests,
    data_seen,
    git_properties,
)
from stoker_runs.records.states import RunState, resumed
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import KUBERNETES, SPARK, Target, find_target

if TYPE_CHECKING:
    from stoker_runs.targets.engine import Engine

_CURATED: Final = "azureml-"


class RegisteredEnvironment(Struct, frozen=True):
    """A registered environment.

    Attributes:
        conda: Its packages as a conda file, or None.
        python: The interpreter with its own packages; empty for that of Stoker.
    """

    conda: bytes | None
    python: str = ""
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)


def registered_names(workspace: Workspace) -> list[str]:
    """The names of all registered environments, in alphabetical order."""
    files = (workspace.azure_dir / "environments").glob("*.json")
    return sorted(file.stem for file in files if is_name(file.stem))


def find_registered(workspace: Workspace, reference: str) -> RegisteredEnvironment:
    """Return a registered environment, `NAME` or `NAME:VERSION`.

    Raises:
        EnvironmentUnusable: There is none; the message names those that there are.
    """
    names = registered_names(workspace)
    known = f"registered are: {', '.join(names)}" if names else "none is registered in this workspace"
    plain = reference.partition(":")[0]
    if plain not in names:
        hint = did_you_mean(plain, names, known)
        conflict = (
            f"{reference} is an environment of Microsoft, and those are not here: write its packages into a file"
            if plain.lower().startswith(_CURATED)
            else f"{reference} is no environment file, and no registered environment"
        )
        raise EnvironmentUnusable(f"{conflict}; {hint}")
    name, version = parse_reference(reference)
    versions = json.loads((workspace.azure_dir / "environments" / f"{name}.json").read_bytes())
    if version is not None and version > len(versions):
        raise EnvironmentUnusable(
            f"the environment {name} has no version {version}; it has 1 to {len(versions)}"
        )
    return _environment_of(versions[(version or len(versions)) - 1])


def _environment_of(content: Mapping[str, Any]) -> RegisteredEnvironment:
    python, variables = content["python"], content.get("environmentVariables", {})
    if python.get("userManagedDependencies"):
        path = python.get("interpreterPath", "python")
        return RegisteredEnvironment(None, "" if path == "python" else path, variables)
    import yaml

    conda = python.get("condaDependencies")
    text = None if conda is None else yaml.safe_dump(conda).encode()
    return RegisteredEnvironment(text, "", variables)


_RELAXED: Final = "relaxed"
_DOCKERFILE: Final = "Dockerfile"


class Request(Struct, frozen=True):
    """A run to submit.

    Attributes:
        definition: The script and its settings; the following attributes fill in its environment.
        experiment: The experiment; empty for the name of the folder.
        environment: A file of conda or pip, the name of a registered environment, `relaxed`, or empty for the Python
            of Stoker.
        environment_file: The environment file for `relaxed`, if there is one.
        python: The interpreter if there is no file; empty for that of Stoker.
        sweep: The `SweepDefinition` as JSON; empty if the run is no sweep.
    """

    definition: Definition
    source: Path
    experiment: str = ""
    environment: str = ""
    environment_file: Path | None = None
    python: str = ""
    as_of: str = ""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    parent: str = ""
    dockerfile: Path | None = None
    sweep: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Plan(Struct, frozen=True):
    """A checked request, with everything filled in.

    Attributes:
        notes: What its user has to know, a line each.
    """

    experiment: str
    definition: Definition
    target: Target
    environment_file: Path | None
    environment_content: bytes = b""
    notes: tuple[str, ...] = ()


def plan(request: Request, workspace: Workspace) -> Plan:
    """Check a request and fill in defaults; writes nothing.

    Raises:
        OperatorError: It cannot be had; the message says what is nearest.
    """
    experiment = checked_experiment(request.experiment or name_from_file(request.source.resolve().name))
    _check_script(request.source, request.definition.script)
    target = find_target(workspace.targets_dir, request.definition.target)
    container = _container(request)
    if container:
        target = target.in_containers()
    found = _read_environment(request, workspace)
    definition = request.definition.replace(
        environment=found.requested.to_json(),
        container=container,
        variables={**found.variables, **request.definition.variables},
    )
    _check_numbers(definition)
    _check_nodes(definition, target)
    check_inputs(definition.inputs, target, workspace)
    definition = definition.replace(outputs=plan_outputs(definition, target, workspace))
    if definition.resume_from:
        RunStore(workspace.runs_dir).get(definition.resume_from)
    if target.type == SPARK:
        _check_for_spark(definition, target)
    if target.type == KUBERNETES:
        _check_for_pods(definition, target, workspace)
    if target.is_cluster:
        definition = _for_nodes(definition, target)
    elif (capacity := target.capacity) is not None:
        if definition.gpus is None:
            each = definition.processes_per_node
            enough = len(capacity.gpus) >= each * definition.gpu_nodes
            definition = definition.replace(gpus=each if enough else 0)
        check_request(ResourceRequest.of(definition, capacity), capacity)
    return Plan(
        experiment,
        definition,
        target,
        found.file,
        found.content,
        tuple(_notes(definition, target, request.definition.gpus)),
    )


def _notes(definition: Definition, target: Target, requested_gpus: int | None) -> Iterator[str]:
    """Yield the lines that explain how one machine runs several processes of a run."""
    capacity, count = target.capacity, definition.processes
    if target.is_cluster or count == 1:
        return
    if definition.nodes > 1:
        yield f"{definition.nodes} nodes on {target.name}, which is one machine: it runs all {count} processes"
    if capacity is not None and capacity.gpus and not definition.gpus and requested_gpus is None:
        yield f"{count} processes run without a GPU: {target.name} has {len(capacity.gpus)}, not one for each"


def submit(
    request: Request,
    workspace: Workspace,
    *,
    clock: Clock | None = None,
    spawn: Callable[[RunFolder, Workspace], None] = spawn_runner,
) -> tuple[RunFolder, Snapshot]:
    """Create a run and start its runner.

    Returns:
        The run's folder, and what was kept of the source.

    Raises:
        OperatorError: It is refused; nothing was written but files of the snapshot.
    """
    held = hold_inputs(request.definition.inputs, workspace)
    try:
        folder, snapshot = _create_run(request, workspace, (clock or Clock()).now_ms())
        # The runner holds them too.
        spawn(folder, workspace)
    finally:
        for descriptor in held:
            os.close(descriptor)
    return folder, snapshot


def _create_run(request: Request, workspace: Workspace, now_ms: int) -> tuple[RunFolder, Snapshot]:
    planned = plan(request, workspace)
    workspace.create()
    snapshot = SnapshotStore(workspace.snapshots_dir).take(request.source, request.limit_bytes)
    data = data_digests(planned.definition.inputs, data_seen(workspace.snapshots_dir))
    record = _record_of(planned, request, snapshot, data, now_ms)
    state = RunState(since_ms=now_ms, submitted_ms=now_ms, attempts=planned.definition.attempts)

    folder = RunStore(workspace.runs_dir).create(record, state, environment_files(planned, request))
    return folder, snapshot


def _record_of(
    planned: Plan, request: Request, snapshot: Snapshot, data: Mapping[str, str], now_ms: int
) -> RunRecord:
    return RunRecord(
        new_run_id(planned.experiment, now_ms, os.urandom(4).hex()),
        planned.experiment,
        now_ms,
        planned.definition,
        SWEEP if request.sweep else SCRIPT,
        snapshot=snapshot.digest,
        data=data,
        parent=request.parent,
        properties={"ContentSnapshotId": snapshot.digest, **git_properties(request.source)},
        tags=dict(request.tags),
        sweep=dict(request.sweep),
    )


def environment_files(planned: Plan, request: Request) -> Callable[[RunFolder], None]:
    """Return a function that writes the notes and the files of the environment into the folder of a new run."""

    def complete(staged: RunFolder) -> None:
        for line in planned.notes:
            staged.add_note(line, staged.record().created_ms, 1)
        if planned.environment_content:
            name = str(planned.definition.environment["file"])
            (staged.environment / name).write_bytes(planned.environment_content)
        if request.dockerfile is not None:
            shutil.copyfile(request.dockerfile, staged.environment / _DOCKERFILE)

    return complete


def resume(
    folder: RunFolder,
    workspace: Workspace,
    *,
    clock: Clock | None = None,
    spawn: Callable[[RunFolder, Workspace], None] = spawn_runner,
) -> RunState:
    """Start another attempt of a failed or cancelled run, with the outputs of the earlier ones.

    Raises:
        SubmissionRefused: It goes on, or it is completed.
    """
    if not folder.state().is_terminal:
        raise SubmissionRefused(f"{folder.id} is {folder.state().status}: only what has ended can be resumed")
    # Its runner writes the end and then ends itself.
    lock = folder.acquire_lock(wait=True)
    # Somebody else may have resumed it meanwhile.
    state = folder.state()
    try:
        try:
            again = resumed(state, (clock or Clock()).now_ms())
        except ValueError as error:
            raise SubmissionRefused(
                f"{folder.id}: {error}; submit the script again with --resume RUN"
            ) from None
        folder.clear_cancel_request()
        folder.write_state(again)
    finally:
        if lock is not None:
            folder.release_lock(lock)
    spawn(folder, workspace)
    return again


def _check_script(source: Path, script: str) -> None:
    path = source / script
    if not source.is_dir():
        raise SubmissionRefused(f"the source folder {source} does not exist")
    if path.is_file() and path.resolve().is_relative_to(source.resolve()):
        return
    scripts = [str(found.relative_to(source)) for found in source.glob("*.py")]
    hint = did_you_mean(script, scripts, f"it has {', '.join(sorted(scripts)[:10]) or 'no Python files'}")
    raise SubmissionRefused(f"there is no script {script!r} in {source}; {hint}")


class _Packages(Struct, frozen=True):
    """The requested environment of a run, and the file that describes it."""

    requested: RequestedEnvironment
    file: Path | None = None
    content: bytes = b""
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)


def _read_environment(request: Request, workspace: Workspace) -> _Packages:
    if request.as_of:
        try:
            date.fromisoformat(request.as_of)
        except ValueError:
            raise SubmissionRefused(f"--as-of {request.as_of}: expected a date, such as 2021-05-01") from None
    relaxed = request.environment == _RELAXED
    file = request.environment_file
    if request.environment and not relaxed:
        file = Path(request.environment)
        if not file.is_file() and (request.source / file).is_file():
            file = request.source / file
    if file is None:
        return _Packages(RequestedEnvironment("user", request.python, request.as_of))
    kind = _RELAXED if relaxed else "exact"
    if file.is_file():
        return _of_file(file, kind, request.as_of)
    if file.suffix.lower() in (".yml", ".yaml", ".txt") or len(file.parts) > 1:
        raise EnvironmentUnusable(f"the environment file {file} does not exist")
    return _of_registered(workspace, request.environment, kind, request.as_of)


def _of_file(file: Path, kind: str, as_of: str) -> _Packages:
    from stoker.environments.files import read_environment

    read_environment(file)
    name = "asked.yml" if file.suffix.lower() in (".yml", ".yaml") else "asked.txt"
    return _Packages(RequestedEnvironment(kind, "", as_of, name), file, file.read_bytes())


def _of_registered(workspace: Workspace, name: str, kind: str, as_of: str) -> _Packages:
    """Return an environment that code for Azure's SDK has registered."""
    import tempfile

    found = find_registered(workspace, name)
    if found.conda is None:
        return _Packages(RequestedEnvironment("user", found.python, as_of), variables=found.variables)
    with tempfile.TemporaryDirectory(prefix="stoker-submit-") as folder:
        file = Path(folder, "environment.yml")
        file.write_bytes(found.conda)
        packages = _of_file(file, kind, as_of)
    return replace(packages, file=Path(name), variables=found.variables)


def _check_nodes(definition: Definition, target: Target) -> None:
    most = target.settings.get("max_nodes", definition.nodes)
    if definition.nodes > most:
        raise SubmissionRefused(
            f"{definition.nodes} nodes were asked for, and {target.name} has {most}; ask for no more with --nodes"
        )


def _check_for_spark(definition: Definition, target: Target) -> None:
    """Refuse what the driver of a Spark cluster cannot have."""
    if definition.processes > 1 or definition.cores > 1 or definition.gpus:
        raise SubmissionRefused(
            f"{target.name} has one driver for a script, whose executors are the cluster's: name their number, cores "
            "and GPUs in the variable PYSPARK_SUBMIT_ARGS, as in '--num-executors 4 --executor-cores 2'"
        )
    far = target.settings.get("deploy_mode") == "cluster" and definition.framework != "python"
    if far and (definition.inputs or definition.outputs or definition.resume_from or definition.attempts > 1):
        raise SubmissionRefused(
            f"the driver runs on any node of {target.name}, deploy_mode cluster, and sees no data of other machines: "
            "have the script read and write addresses, or use deploy_mode client"
        )


def _check_for_pods(definition: Definition, target: Target, workspace: Workspace) -> None:
    """Refuse what pods cannot have: their image has the packages, and they mount one folder."""
    if definition.environment.get("kind") != "user":
        raise SubmissionRefused(
            f"pods of {target.name} have the packages of their image: build one from the environment file, and name "
            "it with --image"
        )
    if definition.container.get("dockerfile"):
        raise SubmissionRefused(
            f"{target.name} builds no images: build it from the Dockerfile where its nodes can pull it, and name it "
            "with --image"
        )
    mounted = target.mounted_folder(workspace.root)
    if not workspace.root.is_relative_to(mounted):
        raise SubmissionRefused(
            f"the workspace {workspace.root} is not in {mounted}, which the pods of {target.name} mount"
        )


def _for_nodes(definition: Definition, target: Target) -> Definition:
    """Check what a run asks for against each node of a cluster, as far as the target says what they have."""
    cores, gpus = target.settings.get("node_cores"), target.settings.get("node_gpus")
    if definition.gpus is None:
        definition = definition.replace(gpus=min(1, gpus or 0))
    if definition.parameter_servers and definition.nodes > 1:
        raise SubmissionRefused(
            f"parameter servers need one machine, and {target.name} gives each of {definition.nodes} nodes its own; "
            "train with workers alone, or on another target"
        )
    for wanted, there, resource in ((definition.gpus or 0, gpus, "GPUs"), (definition.cores, cores, "cores")):
        if there is not None and wanted > there:
            raise SubmissionRefused(
                f"{wanted} {resource} of one node were asked for, and the nodes of {target.name} have {there}; "
                "ask for fewer, or name another target"
            )
    return definition


def _container(request: Request) -> dict[str, Any]:
    """Return the container settings of a request."""
    container = dict(request.definition.container)
    if request.dockerfile is not None:
        if not request.dockerfile.is_file():
            raise SubmissionRefused(f"the Dockerfile {request.dockerfile} does not exist")
        container["dockerfile"] = _DOCKERFILE
    return container


def _check_numbers(definition: Definition) -> None:
    for name, value, least in (
        ("nodes", definition.nodes, 1),
        ("processes per node", definition.processes_per_node, 1),
        ("cores", definition.cores, 1),
        ("parameter servers", definition.parameter_servers, 0),
        ("workers", definition.processes - definition.parameter_servers, 1),
        ("attempts", definition.attempts, 1),
        ("GPUs", definition.gpus or 0, 0),
    ):
        if value < least:
            raise SubmissionRefused(f"{name}: {value} were asked for, and there have to be {least} or more")
    if definition.max_duration_s <= 0:
        raise SubmissionRefused("the longest duration has to be more than 0 s, such as --max-duration 2h")


def prepare(
    request: Request,
    workspace: Workspace,
    say: Callable[[str], None],
    engine_of: Callable[[Target, Workspace], Engine] | None = None,
) -> str:
    """Prepare a target for a run without starting it, so that the next similar run starts at once.

    Returns:
        The packages that it has, as `got.txt` lists them.

    Raises:
        OperatorError: The run would be refused, or the target cannot have what it asks for.
    """
    # Imported here: submissions do not need engines.
    import tempfile

    from stoker_runs.targets import registry
    from stoker_runs.targets.engine import Job

    planned = plan(request, workspace)
    workspace.create()
    snapshot = SnapshotStore(workspace.snapshots_dir).take(request.source, request.limit_bytes)
    record = _record_of(planned, request, snapshot, {}, Clock().now_ms())
    staging = Path(tempfile.mkdtemp(prefix=".preparing-", dir=workspace.root))
    try:
        state = RunState(since_ms=record.created_ms, submitted_ms=record.created_ms)
        folder = RunStore(staging).create(record, state, environment_files(planned, request))
        job = Job(folder, record, 1, workspace.snapshots_dir)
        engine = (engine_of or registry.engine_of)(planned.target, workspace)
        engine.prepare(job, say)
        engine.clean(job)
        return (folder.environment / "got.txt").read_text(encoding="utf-8")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
