"""Outputs of runs in data stores: `NAME=STORE/PATH`.

Where the script sees the store, it writes into the store's folder. Elsewhere it writes into a folder below
`outputs/`, whose files are copied into the store when the run has completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from stoker.errors import InvalidSettings, StokerError
from stoker.settings.workspace import Workspace
from stoker_base.trees import Tree, files_below
from stoker_run.attempt import OUTPUTS
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.inputs import checked_input_name
from stoker_runs.launch.stores import (
    checked_store,
    remote_store,
    resolve_in_store,
    store_root,
    stores_dir,
    upload_files,
)
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition, Output
from stoker_runs.records.states import FailureCode, RunFailure
from stoker_runs.targets.definitions import DOCKER, Target

_FOLDER: Final = OUTPUTS[0]


def read_output(name: str, where: str, workspace: Workspace) -> Output:
    """Return the output that `STORE/PATH` means.

    Raises:
        InvalidSettings: The name cannot be that of a variable, or there is no such store.
    """
    checked_input_name(name)
    store, _, path = where.partition("/")
    return Output(checked_store(workspace, store), path)


def folder_of_script(path: str) -> str:
    """Return the folder that a script writes to under a name of its own, as `Output.place`.

    Raises:
        InvalidSettings: It is not below `outputs/`, from where files come back.
    """
    place = PurePosixPath(path)
    if place.parts[:1] != (_FOLDER,) or len(place.parts) < 2 or ".." in place.parts:
        raise InvalidSettings(
            f"files of {path} on the compute target do not come back: write to a folder below {_FOLDER}/, or leave "
            "the path out and have the script take it from its argument"
        )
    return str(place)


def plan_outputs(definition: Definition, target: Target, workspace: Workspace) -> Mapping[str, Output]:
    """Return the outputs of a run with the folders that its script writes to.

    Raises:
        InvalidSettings: There is no such store.
        SubmissionRefused: A name is also that of an input, or a path leads out of its store.
    """
    planned: dict[str, Output] = {}
    for name, output in definition.outputs.items():
        if name in definition.inputs:
            raise SubmissionRefused(f"{name} is the name of an input and of an output; name one differently")
        checked_store(workspace, output.store)
        if resolve_in_store(Path(), output.path) is None:
            raise SubmissionRefused(
                f"the output {name}: {output.path} leads out of the data store {output.store}"
            )
        place = output.place or _seen_folder(name, output, target, workspace) or f"{_FOLDER}/{name}"
        planned[name] = output.replace(place=place)
    return planned


def _seen_folder(name: str, output: Output, target: Target, workspace: Workspace) -> str:
    """Return the folder of the store, if runs of the target write into it; else an empty text."""
    if remote_store(workspace, output.store) is not None:
        return ""
    root = store_root(workspace, output.store).absolute()
    if target.is_cluster:
        seen = target.mounted_folder(workspace.root.absolute())
    elif target.reads_files_here:
        # Containers see the stores' folder.
        seen = stores_dir(workspace).absolute() if target.type == DOCKER else root
    else:
        return ""
    if not root.is_relative_to(seen):
        return ""
    return str(resolve_in_store(root, output.path_of(name)))


def store_outputs(folder: RunFolder, workspace: Workspace) -> tuple[list[str], RunFailure | None]:
    """Copy what a run has written into its data stores.

    Returns:
        A line for each output, and the failure if one could not be copied.
    """
    record = folder.record()
    lines: list[str] = []
    for name, output in record.definition.outputs.items():
        if PurePosixPath(output.place).is_absolute():
            continue
        path = output.path_of(name, record.id)
        where = f"{output.store}/{path}"
        written = folder.path / output.place
        # The script may have written links, and they mean files of its own machine.
        there = Tree(folder.path).is_folder(output.place)
        files = sorted(file for file in files_below(written) if not file.is_symlink()) if there else []
        pairs = [(file, file.relative_to(written).as_posix()) for file in files]
        try:
            copied = [
                is_new
                for _, _, is_new in upload_files(
                    workspace, output.store, pairs, path, overwrite=output.overwrite
                )
            ]
        except (StokerError, OSError) as error:
            return lines, RunFailure(
                FailureCode.OUTPUT_NOT_STORED,
                f"the output {name} could not be copied to {where}: {error}",
                f"copy its files with stoker stores upload {output.store} {written} --to {path}",
            )
        kept = len(copied) - sum(copied)
        lines.append(
            f"copied {sum(copied)} of {len(copied)} files of {output.place} to {where}"
            + ("; the others are there already, and overwrite is False" if kept else "")
        )
    return lines, None
