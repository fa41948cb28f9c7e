"""The files of one version of a model, and their fingerprint."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from stoker.errors import OperatorError, RepositoryError
from stoker.models.frameworks import Framework
from stoker.models.registered import Registered
from stoker.models.triton_config import CONFIG_FILE, TritonConfig
from stoker.settings.model import ModelSettings
from stoker_base.trees import files_below

logger = logging.getLogger(__name__)

MODEL_SETTINGS: Final = "model-settings.json"
"""MLServer's settings of a model; see `stoker.models.mlserver`."""


class ModelSource(Struct, frozen=True):
    """One version of one model that can be served.

    Attributes:
        version: Its version; 1 if the layout has none.
        path: The path that the runtime loads: the entry script, the `.onnx` file, a folder of SavedModel or MLflow.
        config: Triton's config.pbtxt; None without one.
        own_settings: The settings of its files, which the operator's settings overrule.
        notes: Lines for the operator about these settings.
        registered: The registered version, whose files can be verified and whose lease can be held.
        base: The folder with all versions of the model; None if the layout has none.
        in_folder_of_models: Whether it was found in a folder of models or versions, and not by its own path.
    """

    name: str
    version: int
    framework: Framework
    path: Path
    config: TritonConfig | None = None
    registered: Registered | None = None
    base: Path | None = None
    own_settings: ModelSettings | None = None
    notes: tuple[str, ...] = ()
    in_folder_of_models: bool = False

    @property
    def settings_of_files(self) -> ModelSettings | None:
        """Return the settings of its configuration or its archive; None without either."""
        return self.own_settings if self.config is None else self.config.settings

    @property
    def model_dir(self) -> Path:
        """Folder of the model's files, which an entry script finds under `AZUREML_MODEL_DIR`."""
        if self.registered is not None:
            return self.registered.files_dir
        return self.path if self.path.is_dir() else self.path.parent

    @classmethod
    def of(cls, registered: Registered) -> ModelSource:
        """Return a registered version as a source."""
        return cls(
            registered.name,
            registered.version,
            registered.framework,
            registered.path,
            registered=registered,
            base=registered.folder.parent,
        )

    def fingerprint(self) -> str:
        """Return a value that changes with the files; that of a registered version never changes.

        Names, lengths and times of modification count. For an entry script only Python files count: it may write
        other files beside itself.

        Raises:
            OSError: A file cannot be read, for instance because it has just been removed.
        """
        if self.registered is not None:
            return self.registered.created_at
        content = hashlib.sha256()
        for file in self._files():
            status = file.stat()
            content.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="replace"))
        return content.hexdigest()

    def _files(self) -> list[Path]:
        """The files of the version that `fingerprint` compares."""
        scripts = self.framework == "script"
        if self.base is None and self.path.is_file():
            beside = self.path.parent.iterdir()
            files = [path for path in beside if scripts or path.name.startswith(self.path.name)]
        else:
            root = self.path if self.base is None else self.base / self.path.relative_to(self.base).parts[0]
            files = list(files_below(root))
        if scripts:
            files = [path for path in files if path.suffix == ".py"]
        elif self.framework == "torchserve":
            # Python writes the compiled code of a handler there.
            files = [path for path in files if path.parent.name != "__pycache__"]
        if self.base is not None:
            files.append(self.base / CONFIG_FILE)
        files.append(self.model_dir / MODEL_SETTINGS)
        return sorted(path for path in files if path.is_file())


Broken = dict[tuple[str, int], OperatorError]
"""Versions that cannot be served, by name and number, with the reason."""


@contextmanager
def reading_model(name: str) -> Iterator[None]:
    """Turn an unexpected error of reading one model's files into one that marks this model broken.

    Raises:
        RepositoryError: The body raised another error than `OperatorError` and `OSError`.
    """
    try:
        yield
    except (OperatorError, OSError):
        raise
    except Exception as error:
        logger.debug("reading the model %s failed", name, exc_info=True)
        raise RepositoryError(f"{name} cannot be read: {type(error).__name__}: {error}") from error
