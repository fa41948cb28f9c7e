"""Which settings of a model are for which frameworks, and which exclude each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.errors import InvalidSettings
from stoker.settings.model import ModelSettings

if TYPE_CHECKING:
    from stoker.models.sources import ModelSource

__all__ = ["check_settings"]

_FOR_THE_FILES_OF_SCRIPTS: Final = ("uses", "model_dir")
_FOR_SCRIPTS: Final = (*_FOR_THE_FILES_OF_SCRIPTS, "environment_variables", "tensorflow_compat")
_BATCHING: Final = {True: ("auto", "merge", "handle", "none"), False: ("auto", "rows", "none")}
"""How requests can be batched, by whether an entry script answers them."""


def check_settings(model: ModelSettings, source: ModelSource) -> None:
    """Refuse settings that this version cannot heed.

    Raises:
        InvalidSettings: One is for models of another framework, or contradicts another one.
    """
    if source.framework != "script":
        defaults = ModelSettings()
        for name in _FOR_THE_FILES_OF_SCRIPTS if source.framework == "mlflow" else _FOR_SCRIPTS:
            if getattr(model, name) != getattr(defaults, name):
                raise InvalidSettings(f"{source.name} is no entry script: {name} is for those alone")
    elif model.non_finite is not None:
        raise InvalidSettings(
            f"{source.name} is an entry script, which writes its answers itself: leave non_finite out"
        )
    _check_batching(model, source)
    if model.zipmap != ModelSettings().zipmap and source.framework != "onnx":
        raise InvalidSettings(f"{source.name} is no ONNX model: zipmap is for those alone")
    if model.signature is not None and source.framework != "tensorflow":
        raise InvalidSettings(f"{source.name} is no SavedModel: signature is for those alone")
    if model.uses and model.model_dir is not None:
        raise InvalidSettings(
            f"{source.name} has model_dir and uses; AZUREML_MODEL_DIR can only be one of both"
        )
    if model.target_ms is None and (model.late != "answer" or model.hold):
        raise InvalidSettings(f"{source.name} has no target_ms: late and hold are for models with one")
    if model.sample_input is not None and not model.sample_input.is_file():
        raise InvalidSettings(f"the sample input {model.sample_input} is not a file")


def _check_batching(model: ModelSettings, source: ModelSource) -> None:
    is_script = source.framework in ("script", "mlflow")
    if is_script and model.audit:
        raise InvalidSettings(
            f"{source.name} is an entry script: audit is for models alone, for running a script again may do more "
            "than compute; leave it out"
        )
    if model.batching not in _BATCHING[is_script]:
        kind = "an entry script" if is_script else "no entry script"
        known = ", ".join(_BATCHING[is_script])
        raise InvalidSettings(f"{source.name} is {kind}: batching is one of {known}, not {model.batching}")
