"""Run configurations by name or file, Azure's too, and the compute targets of a project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import InvalidSettings
from stoker_runs.commands.run_output import note

if TYPE_CHECKING:
    from stoker.workspace import Workspace
    from stoker_runs.launch.compute_files import ComputeFile

__all__ = ["read_project_configuration", "take_compute"]

_OF_CONTAINERS: Final = ("image", "dockerfile", "shm_size", "arguments")


def read_project_configuration(
    path: Path, target: str | None, workspace: Workspace, scratch: Path
) -> tuple[dict[str, Any], bool]:
    """Read a run configuration: `NAME.runconfig` of the project in this folder, or a file of Stoker.

    Args:
        path: Its name or path.
        target: The target that is named besides, which wins.
        workspace: Where the target is, or becomes one.
        scratch: A folder for files whose content it has in itself.

    Returns:
        What it says, and whether further arguments follow those of the file.

    Raises:
        InvalidSettings: There is none, or it has a value that it cannot have; a file of Stoker also a key.
    """
    from stoker_runs.launch.configuration import read_configuration
    from stoker_runs.launch.run_config_files import find_run_config, read_run_config

    found = find_run_config(Path.cwd(), str(path))
    if found is None:
        configuration = read_configuration(path)
        if target is not None:
            configuration["target"] = target
        return take_compute(Path.cwd(), configuration, workspace)[0], False
    file = read_run_config(found, scratch)
    for line in file.notes:
        note(line)
    configuration = dict(file.configuration)
    configuration["target"] = target or configuration["target"]
    configuration, known = take_compute(file.project, configuration, workspace)
    if not known:
        _take_stand_in(configuration, file.cluster, workspace)
    _choose_container(configuration, workspace, asked=file.in_container)
    return configuration, file.fixed


def take_compute(
    project: Path, configuration: dict[str, Any], workspace: Workspace
) -> tuple[dict[str, Any], bool]:
    """Make the target that a project's `.compute` file describes one of the workspace.

    Args:
        project: The project's folder.
        configuration: What is said of the run, its target among that.
        workspace: Where the target becomes one.

    Returns:
        The same with what the file says of the runs on its target, where they do not say it; whether there is a file.

    Raises:
        InvalidSettings: The file has a value that it cannot have.
    """
    from stoker_runs.launch.compute_files import find_compute, keep_target, read_compute

    target = configuration.get("target")
    path = None if target is None else find_compute(project, target)
    if path is None:
        return configuration, False
    compute = read_compute(path)
    keep_target(compute, workspace, note)
    return _with_compute(configuration, compute), True


def _with_compute(configuration: dict[str, Any], compute: ComputeFile) -> dict[str, Any]:
    """What a `.compute` file says of the runs on its target, where they do not say it."""
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


def _take_stand_in(configuration: dict[str, Any], cluster: str, workspace: Workspace) -> None:
    """Put this machine in the place of a cluster of Azure."""
    from stoker_runs.records.definition import TARGET_VARIABLE
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
    """What a target is on Azure that code for its SDK has made; empty for none."""
    file = workspace.azure_dir / "compute" / f"{name}.json"
    if "/" in name or not file.is_file():
        return ""
    return str(json.loads(file.read_bytes()).get("type", ""))


def _choose_container(configuration: dict[str, Any], workspace: Workspace, *, asked: bool) -> None:
    """Azure's files always name an image: it counts where the target has containers, or one is asked for."""
    from stoker_runs.targets.container_image import optional_container
    from stoker_runs.targets.definitions import find_target

    target = find_target(workspace.targets_dir, configuration["target"])
    if target.has_containers:
        return
    environment = configuration["environment"]
    image, dockerfile = environment.get("image", ""), bool(environment.get("dockerfile"))
    if asked and optional_container(target, workspace, note, image=image, dockerfile=dockerfile):
        environment["optional"] = True
        return
    for key in _OF_CONTAINERS:
        environment.pop(key, None)
