"""What a device process is told to load: the model of a source with the settings that it heeds while it loads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stoker.models.mlflow_serving import ENTRY_SCRIPT
from stoker.servable import Servable
from stoker.settings.choices import Acceleration, check_acceleration

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.declaration import Declaration
    from stoker.models.sources import ModelSource
    from stoker.settings.model import ModelSettings
    from stoker.settings.server import ServerSettings
    from stoker.terms import Terms

__all__ = ["entry_script_of", "servable_of"]


def entry_script_of(source: ModelSource) -> Path | None:
    """Return the entry script that answers for a version; None if a runtime does.

    Models of MLflow that no runtime loads are served by a script of Stoker's.
    """
    if source.framework == "mlflow":
        return ENTRY_SCRIPT
    return source.path.absolute() if source.framework == "script" else None


def servable_of(
    source: ModelSource,
    model_dir: Path,
    model: ModelSettings,
    settings: ServerSettings,
    terms: Terms,
    engine_cache: Path | None,
) -> Servable:
    """Return what a device process is to load.

    Args:
        source: The version.
        model_dir: The folder with its files.
        model: The model's settings, which win over the server's.
        settings: The server's settings.
        terms: Its terms.
        engine_cache: Folder for what TensorRT builds of it; None if it does not run there.

    Raises:
        InvalidSettings: The runtime of this model has no such acceleration.
    """
    script = entry_script_of(source)
    framework = source.framework if script is None else "script"
    return Servable(
        name=source.name,
        version=source.version,
        framework=framework,
        path=script or source.path.absolute(),
        model_dir=model_dir.absolute(),
        max_batch_rows=model.max_batch_rows or settings.max_batch_rows,
        max_body_bytes=settings.max_body_bytes,
        terms=terms,
        environment_variables=model.environment_variables or {},
        tensorflow_compat=model.tensorflow_compat,
        batching=model.batching,
        sample_input=model.sample_input and model.sample_input.absolute(),
        signatures=model.signature or (),
        pad=model.pad or {},
        instances=model.instances,
        batch_buckets=model.batch_buckets,
        acceleration=_acceleration(model, source.name, framework),
        engine_cache=engine_cache,
        declaration=_declaration(model, source),
        warm_up=() if source.config is None else source.config.warm_up,
        zipmap=model.zipmap,
        sequence=model.sequence,
    )


def _acceleration(model: ModelSettings, name: str, framework: str) -> Acceleration:
    acceleration = Acceleration(
        model.provider, model.precision, model.gpu_memory_mb, model.execution, model.xla
    )
    check_acceleration(name, framework, acceleration)
    return acceleration


def _declaration(model: ModelSettings, source: ModelSource) -> Declaration | None:
    """What config.pbtxt says of the tensors; whoever says how many rows a batch has, knows better of that axis."""
    if source.config is None:
        return None
    declaration = source.config.declaration
    known_better = declaration.batched is False and (model.max_batch_rows or model.batching == "rows")
    return dataclasses.replace(declaration, batched=None) if known_better else declaration
