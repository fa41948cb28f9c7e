"""All runs of a workspace: creates runs atomically, and finds them by references that users type.

runs/EXPERIMENT/RUN_ID/     a run
runs/EXPERIMENT/.archived   marks the experiment as archived
runs/.staging/…             runs under construction, moved to their place atomically
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from stoker.errors import InvalidSettings
from stoker.settings.names import is_name
from stoker.system.durable import private_folder, replace_file, sync_folder
from stoker.system.wording import format_count
from stoker_base.trees import remove_tree
from stoker_runs.errors import UnknownRun
from stoker_runs.records.children import ChildFolder, descendants_of
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import RunRecord, experiment_of, is_part
from stoker_runs.records.states import RunState

_STAGING: Final = ".staging"
_ARCHIVED: Final = ".archived"
_RECENT: Final = re.compile(r"@(latest|-[1-9][0-9]*)", re.ASCII)


class RunStore:
    """The runs of a workspace."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir

    def create(
        self, record: RunRecord, state: RunState, complete: Callable[[RunFolder], None] = lambda _: None
    ) -> RunFolder:
        """Create the folder of a run atomically.

        Args:
            complete: Adds further files to the folder.
        """
        staging = private_folder(self.runs_dir / _STAGING)
        staged = RunFolder(staging / f"{record.id}.{os.urandom(4).hex()}")
        staged.path.mkdir(mode=0o700)
        try:
            for folder in (staged.environment, staged.outputs, staged.logs, staged.path / "attempts"):
                folder.mkdir(mode=0o700)
            content = json.dumps(record.to_json(), indent=2).encode() + b"\n"
            # Readable by its owner alone, because it contains variables of the script.
            replace_file(staged.path / "run.json", content)
            staged.write_state(state)
            complete(staged)
            place = private_folder(self.runs_dir / record.experiment) / record.id
            staged.path.rename(place)
        except BaseException:
            remove_tree(staged.path, ignore_errors=True)
            raise
        sync_folder(place.parent)
        return RunFolder(place)

    def experiments(self) -> list[str]:
        """The names of all experiments, in alphabetical order."""
        if not self.runs_dir.is_dir():
            return []
        with os.scandir(self.runs_dir) as entries:
            return sorted(entry.name for entry in entries if is_name(entry.name) and entry.is_dir())

    def check_experiment(self, name: str) -> None:
        """Do nothing if there is an experiment of this name.

        Raises:
            UnknownRun: There is none; the message names those that there are.
        """
        if name not in self.experiments():
            known = ", ".join(self.experiments()) or "none"
            raise UnknownRun(f"there is no experiment {name!r}; there are: {known}")

    def archived(self) -> frozenset[str]:
        """The names of archived experiments."""
        return frozenset(name for name in self.experiments() if (self.runs_dir / name / _ARCHIVED).exists())

    def archive(self, experiment: str, *, restore: bool = False) -> None:
        """Hide an experiment with all its runs from lists, or show it again.

        Raises:
            UnknownRun: There is no such experiment.
        """
        self.check_experiment(experiment)
        mark = self.runs_dir / experiment / _ARCHIVED
        if restore:
            mark.unlink(missing_ok=True)
        else:
            mark.touch(mode=0o600)

    def folders(self, experiment: str | None = None) -> Iterator[RunFolder]:
        """Yield the folders of all runs, or of those of one experiment, in any order."""
        for path in self.paths(experiment):
            yield RunFolder(Path(path))

    def paths(self, experiment: str | None = None) -> Iterator[str]:
        """Yield the paths of these folders, which is faster than making objects."""
        for name in self.experiments() if experiment is None else [experiment]:
            folder = self.runs_dir / name
            if not folder.is_dir():
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    if experiment_of(entry.name) is not None and entry.is_dir():
                        yield entry.path

    def get(self, run_id: str) -> RunFolder:
        """Return the folder of a run by its complete id.

        Raises:
            UnknownRun: There is no such run.
        """
        found = self._exact(run_id)
        if found is None:
            raise UnknownRun(f"there is no run {run_id!r} in {self.runs_dir}")
        return found

    def _exact(self, run_id: str) -> RunFolder | None:
        """The folder of a run or of a script's child by its complete id; None if there is none."""
        experiment = experiment_of(run_id)
        if experiment is None:
            # A child may have any id.
            return next((child for child in self.children() if child.id == run_id), None)
        path = self.runs_dir / experiment / run_id
        if path.is_dir():
            return RunFolder(path)
        while is_part(path.name):
            path = path.with_name(path.name.rpartition("_")[0])
            found = (child for child in descendants_of(RunFolder(path)) if child.id == run_id)
            if (child := next(found, None)) is not None:
                return child
        return None

    def children(self, experiment: str | None = None) -> Iterator[ChildFolder]:
        """Yield the folders of all children that scripts have begun, in any order."""
        for folder in self.folders(experiment):
            yield from descendants_of(folder)

    def find(self, reference: str) -> RunFolder:
        """Return the folder of a run by reference.

        Args:
            reference: An id, the beginning of one that no other shares, `@latest`, or `@-2` for the second to last;
                these pass over the parts of sweeps.

        Raises:
            UnknownRun: There is no such run, or there are several.
            InvalidSettings: The reference is malformed.
        """
        if reference.startswith("@"):
            return self._recent(reference)
        if experiment_of(reference) is not None and (exact := self._exact(reference)) is not None:
            return exact
        found = [folder for folder in self.folders() if reference and folder.id.startswith(reference)]
        whole = [folder for folder in found if not is_part(folder.id)]
        if len(whole) == 1 and all(folder.id.startswith(whole[0].id) for folder in found):
            # The rest are its own parts.
            return whole[0]
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(sorted(folder.id for folder in found)[:5])
            raise UnknownRun(
                f"{reference!r} could be any of {len(found)} runs ({shown} …); write more of the id"
            )
        if (child := self._exact(reference)) is not None:
            return child
        if _RECENT.fullmatch(f"@{reference}"):
            raise UnknownRun(
                f"there is no run {reference!r}; the newest one is @latest, the one before it @-2"
            )
        near = get_close_matches(reference, [folder.id for folder in self.folders()], 1)
        hint = f"; the nearest is {near[0]}" if near else "; stoker runs list shows what there is"
        raise UnknownRun(f"there is no run {reference!r}{hint}")

    def _recent(self, reference: str) -> RunFolder:
        if _RECENT.fullmatch(reference) is None:
            raise InvalidSettings(f"{reference!r}: expected @latest, or @-2 for the second to last run")
        back = 1 if reference == "@latest" else int(reference[2:])
        # The time of an id is whole seconds; that of the record decides between those of one second.
        found = (folder for folder in self.folders() if not is_part(folder.id))
        runs = sorted(found, key=lambda folder: _second_of(folder.id), reverse=True)
        if len(runs) < back:
            raise UnknownRun(f"the workspace has {format_count(len(runs), 'run')}, so {reference} names none")
        second = _second_of(runs[back - 1].id)
        equals = [folder for folder in runs if _second_of(folder.id) == second]
        before = sum(_second_of(folder.id) > second for folder in runs)
        equals.sort(key=lambda folder: (folder.record().created_ms, folder.id), reverse=True)
        return equals[back - 1 - before]

    def delete(self, folder: RunFolder) -> None:
        """Delete a run that has ended: it disappears at once, then its files are removed."""
        staging = private_folder(self.runs_dir / _STAGING)
        away = staging / f"{folder.id}.{os.urandom(4).hex()}"
        folder.path.rename(away)
        remove_tree(away)


def _second_of(run_id: str) -> int:
    experiment = experiment_of(run_id) or ""
    return int(run_id[len(experiment) + 1 :].partition("_")[0])
