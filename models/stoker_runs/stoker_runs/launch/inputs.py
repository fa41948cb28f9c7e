"""Data of runs: from what people write, `NAME=PATH`, to a file or folder of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from stoker.errors import InvalidSettings, SubmissionRefused
from stoker.workspace import Workspace
from stoker_runs.launch.stores import (
    data_set_place,
    is_data_set_name,
    is_of_web,
    place_in,
    store_names,
    store_root,
)
from stoker_runs.targets.definitions import Target

__all__ = ["check_inputs", "find_input", "split_input"]

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", re.ASCII)
_MODES: Final = (":mount", ":download")


def split_input(text: str) -> tuple[str, str]:
    """Split `NAME=WHERE`.

    Raises:
        InvalidSettings: It is none.
    """
    name, equals, where = text.partition("=")
    if not equals or not where:
        raise InvalidSettings(f"--input {text}: expected NAME=PATH, such as digits=data/mnist")
    return name, where


def find_input(
    name: str,
    where: str,
    workspace: Workspace,
    base: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Return the absolute path of what an input names.

    In this order: an address of the web, which is fetched; a file or folder; a registered data set, `NAME` or
    `NAME:VERSION`; a path in a data store, `STORE/PATH`.

    Args:
        name: The input's name, by which the script finds it.
        where: What somebody has written; `:mount` or `:download` behind it is passed over, for nothing has to travel.
        workspace: Whose data sets and stores are meant.
        base: From where relative paths are taken; by default the current folder.
        say: Is told in a line what takes time.

    Raises:
        InvalidSettings: The name cannot be that of a variable.
        SubmissionRefused: There is nothing of the kind; the message has the nearest name.
    """
    if _VARIABLE.fullmatch(name) is None:
        raise InvalidSettings(
            f"{name!r} cannot be the name of an input: letters, digits, '_' and '-' will do"
        )
    if is_of_web(where):
        from stoker_runs.launch.web_files import fetched

        return str(fetched(where, workspace, say))
    for mode in _MODES:
        where = where.removesuffix(mode)
    path = (base or Path.cwd()) / Path(where).expanduser()
    if path.exists():
        return str(path.resolve())
    place = _registered(where, workspace, say) or _stored(where, workspace)
    if place is not None and place.exists():
        return str(place)
    if place is not None:
        raise SubmissionRefused(f"the input {name}: there is nothing in {place}; upload the data first")
    known = [*_data_sets(workspace), *store_names(workspace)]
    near = get_close_matches(where.partition(":")[0].partition("/")[0], known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    raise SubmissionRefused(
        f"the input {name}: {where} is no file, folder, data set or path of a store; {hint}"
    )


def _data_sets(workspace: Workspace) -> list[str]:
    return sorted(
        file.stem for file in (workspace.azure_dir / "datasets").glob("*.json") if is_data_set_name(file.stem)
    )


def _registered(where: str, workspace: Workspace, say: Callable[[str], None]) -> Path | None:
    name, _, version = where.partition(":")
    if not is_data_set_name(name) or (version and version != "latest" and not version.isdecimal()):
        return None
    number = int(version) if version.isdecimal() else None

    def fetch(addresses: Sequence[str]) -> Path:
        from stoker_runs.launch.web_files import fetched_together

        return fetched_together(addresses, workspace, say)

    return data_set_place(workspace, name, number, fetch)


def _stored(where: str, workspace: Workspace) -> Path | None:
    store, _, path = where.partition("/")
    return place_in(store_root(workspace, store), path) if store in store_names(workspace) else None


def check_inputs(inputs: Mapping[str, str], target: Target) -> None:
    """Make sure that a run finds its data.

    Raises:
        SubmissionRefused: There is nothing at a path, or the target cannot read files of this machine.
    """
    for name, path in inputs.items():
        if not Path(path).exists():
            raise SubmissionRefused(f"the input {name}: there is nothing in {path}")
    if inputs and not target.reads_files_here:
        raise SubmissionRefused(
            f"the compute target {target.name} does not read files of this machine, as the inputs "
            f"{', '.join(sorted(inputs))} are; put the data into the source folder, or copy it there and give its "
            "path as an argument"
        )
