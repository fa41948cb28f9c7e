"""The files of a run: logs, outputs, uploads, and the snapshot of its source."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker_azure.exceptions import UserErrorException
from stoker_azure.sdk.base import raised_as
from stoker_runs.records.folder import RunFolder, copy_files, find_file, run_files
from stoker_runs.records.snapshots import SnapshotStore


class FilesOfRun:
    """The files of a run: logs, outputs, uploads, and the snapshot of its source."""

    id: str
    folder: RunFolder
    experiment: Any

    def get_file_names(self) -> Sequence[str]:
        """List the names of the run's files: logs, `outputs/`, `logs/` and uploads."""
        return [*run_files(self.folder)]

    def download_file(self, name: str, output_file_path: str | None = None, **_others: Any) -> None:
        """Copy one file of the run, by default into the current directory.

        Raises:
            UserErrorException: The run has no file of this name.
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
        """Copy files of the run into a folder, at their names.

        Args:
            prefix: How the names begin; all by default.
            output_directory: The folder; the current one by default.
            output_paths: Where each file goes in the folder, in the order of `get_file_names`, instead of its name.
            append_prefix: Whether the prefix stays a part of the path.
        """
        del batch_size, timeout_seconds
        start = prefix or ""
        found = {name: path for name, path in run_files(self.folder).items() if name.startswith(start)}
        kept = [name if append_prefix else name[len(start) :].lstrip("/") for name in found]
        if output_paths is not None and len(output_paths) != len(found):
            raise UserErrorException(
                f"output_paths has {len(output_paths)} paths for {len(found)} files: {[*found]}"
            )
        for path, place in zip(found.values(), output_paths or kept, strict=True):
            target = Path(output_directory or ".", place)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    def get_all_logs(self, destination: str | None = None) -> Sequence[str]:
        """Copy the logs into a folder, and return their paths."""
        place = Path(destination or self.id)
        return [str(place / name) for name in copy_files(self.folder, "azureml-logs/", place)]

    def get_snapshot_id(self) -> str:
        """Return the digest of the snapshot of the run's source."""
        return self.folder.record().snapshot

    def restore_snapshot(self, snapshot_id: str | None = None, path: str | None = None) -> str:
        """Write the snapshot of the run's source into a folder, and return its path.

        Raises:
            UserErrorException: The snapshot is gone, or the folder exists.
        """
        place = Path(path or self.id).absolute()
        store = SnapshotStore(self.experiment.workspace.local.snapshots_dir)
        with raised_as(UserErrorException):
            store.restore(snapshot_id or self.get_snapshot_id(), place)
        return str(place)
