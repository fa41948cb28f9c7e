"""What is loaded, and where: the words that the supervisor and the device process share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Device", "Servable"]


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs: `cpu` or `cuda:N`, and a name to show."""

    kind: Literal["cpu", "cuda"]
    index: int
    description: str

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


@dataclass(frozen=True, slots=True)
class Servable:
    """What to load.

    Attributes:
        name: Service name.
        version: Servable version.
        framework: `onnx`, `tensorflow` or `script`.
        path: The ONNX file, the SavedModel folder, or the entry script.
        model_dir: Folder that an entry script finds under `AZUREML_MODEL_DIR`.
        max_batch_rows: Most rows that `run` is given at once.
        max_body_bytes: Longest request body, for entry scripts that take it whole.
    """

    name: str
    version: int
    framework: str
    path: Path
    model_dir: Path
    max_batch_rows: int
    max_body_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Servable:
        """Inverse of `to_json`."""
        paths = {name: Path(values[name]) for name in ("path", "model_dir")}
        return cls(**{**values, **paths})
