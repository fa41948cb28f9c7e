"""The methods of a run that keep files, find them, and register them as models."""

import shutil
from pathlib import Path
from typing import Any, List, Optional, Sequence

from stoker_base.trees import files_below
from stoker_run.attempt import OUTPUTS
from stoker_run.exceptions import UserErrorException
from stoker_run.records import Recorder, outside_name


class PendingModel:
    """A model that Stoker registers after the script ended.

    Attributes:
        model_path: Its file or folder among the run's files.
    """

    version = None

    def __init__(self, name: str, model_path: str) -> None:
        self.name = name
        self.model_path = model_path


class RunFiles:
    """The files of a run."""

    _recorder: Recorder

    def upload_file(self, name: str, path_or_stream: Any, datastore_name: Optional[str] = None) -> str:
        """Keep a file, or the content of a stream, under a name among the run's files; return the name.

        Raises:
            UserErrorException: The name leads out of the run, or there is no such file.
        """
        try:
            if hasattr(path_or_stream, "read"):
                target = self._recorder.place(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                data = path_or_stream.read()
                target.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
            else:
                self._recorder.file(name, Path(path_or_stream))
            return outside_name(name)
        except (ValueError, FileNotFoundError, IsADirectoryError) as error:
            raise UserErrorException(str(error)) from error

    def upload_files(self, names: Sequence[str], paths: Sequence[str], *_others: Any, **_more: Any) -> None:
        """Keep several files, each under its name."""
        for name, path in zip(names, paths):
            self.upload_file(name, path)

    def upload_folder(self, name: str, path: str, datastore_name: Optional[str] = None) -> None:
        """Keep all files of a folder below a name."""
        for file in sorted(files_below(Path(path))):
            if file.is_file():
                self.upload_file(f"{name}/{file.relative_to(path).as_posix()}", file)

    def get_file_names(self) -> List[str]:
        """Return the names of the files that the script has kept so far."""
        bases = [(self._recorder.folder / "files", "")]
        bases += [(self._recorder.work / name, name + "/") for name in OUTPUTS]
        return sorted(
            prefix + path.relative_to(base).as_posix()
            for base, prefix in bases
            for path in files_below(base)
            if path.is_file()
        )

    def download_file(self, name: str, output_file_path: Optional[str] = None, **_others: Any) -> None:
        """Copy one of the run's files.

        Raises:
            UserErrorException: The run has none of this name.
        """
        source = self._recorder.place(name)
        if not source.is_file():
            raise UserErrorException(
                f"the run has no file {name}; it has: {', '.join(self.get_file_names())}"
            )
        target = Path(output_file_path or source.name)
        target = target / source.name if target.is_dir() else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(source), str(target))

    def register_model(
        self, model_name: str, model_path: Optional[str] = None, **details: Any
    ) -> PendingModel:
        """Register files of the run as a model after the script ended.

        Args:
            model_path: A file or folder of the run; by default one of the model's name.
            details: Azure's `tags`, `properties`, `description` and so on.

        Raises:
            UserErrorException: The run has no such file yet.
        """
        path = model_path or model_name
        if not self._recorder.place(path).exists():
            raise UserErrorException(
                f"the run has no file {path}; it has: {', '.join(self.get_file_names())}"
            )
        kept = {key: value for key, value in details.items() if isinstance(value, (str, dict, int, float))}
        self._recorder.event("register", None, {"model_name": model_name, "model_path": path, **kept})
        return PendingModel(model_name, path)
