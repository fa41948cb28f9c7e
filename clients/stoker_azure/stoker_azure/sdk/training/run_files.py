"""Files of a run, for the code that has submitted it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker_azure.exceptions import UserErrorException
from stoker_azure.sdk.failures import raised_as
from stoker_runs.records.files import copy_files, find_file, run_files
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.snapshots import SnapshotStore

__all__ = ["FilesOfRun"]


class FilesOfRun:
    """A run's logs, outputs, uploads, and the files that it was submitted with.

    Attributes:
        id: The run's id.
        folder: Its folder.
        experiment: Its experiment.
    """

    id: str
    folder: RunFolder
    experiment: Any

    def get_file_names(self) -> Sequence[str]:
        """Names of its files: logs, `outputs/`, `logs/`, and what was uploaded."""
        return [*run_files(self.folder)]

    def download_file(self, name: str, output_file_path: str | None = None, **_others: Any) -> None:
        """Copy one of its files, by default into the current directory.

        Raises:
            UserErrorException: It has none of this name.
        """
        with raised_as(UserErrorException):
            source = find_file(self.folder, name)
        target = Path(output_file_path or source.name)
        target = target / source.name if target.is_dir() else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    def download_files(
        self,
        prefix: str | None = None,
        output_directory: str | None = None,
        output_paths: Sequence[str] | None = None,
        batch_size: int = 100,
        append_prefix: bool = True,
        timeout_seconds: int | None = None,
    ) -> None:
        """Copy its files into a folder, at their names.

        Args:
            prefix: How the names begin; all by default.
            output_directory: The folder; the current one by default.
            output_paths: Not offered.
            batch_size: Not used.
            append_prefix: Whether the prefix stays a part of the path.
            timeout_seconds: Not used.
        """
        del output_paths, batch_size, timeout_seconds
        place = Path(output_directory or ".")
        start = prefix or ""
        if append_prefix or not start:
            copy_files(self.folder, start, place)
            return
        for name, path in run_files(self.folder).items():
            if name.startswith(start):
                target = place / name[len(start) :].lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)

    def get_all_logs(self, destination: str | None = None) -> Sequence[str]:
        """Copy its logs into a folder; returns their paths."""
        place = Path(destination or self.id)
        return [str(place / name) for name in copy_files(self.folder, "azureml-logs/", place)]

    def get_snapshot_id(self) -> str:
        """Digest of the files that it was submitted with."""
        return self.folder.record().snapshot

    def restore_snapshot(self, snapshot_id: str | None = None, path: str | None = None) -> str:
        """Write the files that it was submitted with into a folder; returns its path.

        Raises:
            UserErrorException: They are not there any more, or the folder is.
        """
        place = Path(path or self.id).absolute()
        store = SnapshotStore(self.experiment.workspace.local.snapshots_dir)
        with raised_as(UserErrorException):
            store.restore(snapshot_id or self.get_snapshot_id(), place)
        return str(place)
