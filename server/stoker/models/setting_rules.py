"""Rules of a model's settings: their frameworks, and contradictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from stoker.deployment import library_of_booster
from stoker.errors import InvalidSettings
from stoker.models.frameworks import RUN_BY_SCRIPTS
from stoker.models.sources import ModelSource
from stoker.settings.model import ModelSettings
from stoker.settings.readers import DEVICE_SEPARATOR
from stoker.settings.sequence import SequenceSettings

_FOR_THE_FILES_OF_SCRIPTS: Final = ("uses", "model_dir")
_FOR_SCRIPTS: Final = (*_FOR_THE_FILES_OF_SCRIPTS, "environment_variables", "tensorflow_compat")
_NOT_FOR_SEQUENCES: Final = ("cache_mb", "shadow", "pad", "zipmap", "execution")
"""Settings for models whose answers depend only on their inputs, or that run in another way."""
_FOR_MODELS_WITH_STATE: Final = ("state", "dims", "constants", "controls")
"""The keys of `sequence` for inputs and outputs."""
_FOR_FRAMEWORKS: Final[Mapping[str, tuple[Collection[str], str]]] = {
    "sequence": (("onnx", "script"), "neither an ONNX model nor an entry script"),
    "zipmap": (("onnx",), "no ONNX model"),
    "model_class": (("torch",), "no model of PyTorch"),
    "signature": (("tensorflow", "sklearn"), "neither a SavedModel nor one of scikit-learn"),
}
"""Settings for some frameworks, and how models of the others are called."""
_BATCHING: Final = {True: ("auto", "merge", "handle", "none"), False: ("auto", "rows", "none")}
"""The ways of batching, by whether an entry script answers requests one by one."""


def check_settings(model: ModelSettings, source: ModelSource, devices: Sequence[str] = ()) -> None:
    """Raise InvalidSettings for settings that do not fit this version.

    Args:
        devices: The devices of the model, by these settings or the server's.
    """
    if source.framework != "script":
        defaults = ModelSettings()
        for name in _FOR_THE_FILES_OF_SCRIPTS if source.framework in RUN_BY_SCRIPTS else _FOR_SCRIPTS:
            if getattr(model, name) != getattr(defaults, name):
                raise InvalidSettings(f"{source.name} is no entry script: {name} is for those alone")
    elif model.non_finite is not None:
        raise InvalidSettings(
            f"{source.name} is an entry script, which writes its answers itself: leave non_finite out"
        )
    for name, (frameworks, others) in _FOR_FRAMEWORKS.items():
        if getattr(model, name) != getattr(ModelSettings(), name) and source.framework not in frameworks:
            raise InvalidSettings(f"{source.name} is {others}: {name} is for those alone")
    _check_code(model, source)
    _check_devices(devices, source)
    _check_batching(model, source)
    _check_sequence(model, source)
    if model.uses and model.model_dir is not None:
        raise InvalidSettings(
            f"{source.name} has model_dir and uses; AZUREML_MODEL_DIR can only be one of both"
        )
    if model.target_ms is None and (model.late != "answer" or model.admission == "target"):
        raise InvalidSettings(
            f"{source.name} has no target_ms: late and admission by target are for models with one"
        )
    if model.sample_input is not None and not model.sample_input.is_file():
        raise InvalidSettings(f"the sample input {model.sample_input} is not a file")


def may_run_code(model: ModelSettings, source: ModelSource) -> bool:
    """Whether the operator allows that loading a model runs code: by the setting, or by naming this very version.

    Other people may write into a folder of models that is served, and new versions may come while it is served.
    """
    if model.allow_pickle or model.registered is not None or not source.in_folder_of_models:
        return True
    assert model.path is not None, "settings have checked that one of both is there"
    named = model.path.resolve() if ".." in model.path.parts else model.path.absolute()
    # Looking for new versions reads its folder again.
    return source.base == named.parent and source.path.is_relative_to(named)


def _check_code(model: ModelSettings, source: ModelSource) -> None:
    is_pickle = source.framework == "sklearn" and library_of_booster(source.path) is None
    if (is_pickle or source.framework == "mlflow") and not may_run_code(model, source):
        raise InvalidSettings(
            f"{source.name} lies in a folder of models, and loading it runs the code that pickles in "
            f"{source.path.name} name: trust it with allow_pickle: true (--allow-pickle), or register it"
        )


def _check_devices(devices: Sequence[str], source: ModelSource) -> None:
    several = next((device for device in devices if DEVICE_SEPARATOR in device), None)
    if several is not None and source.framework not in RUN_BY_SCRIPTS:
        raise InvalidSettings(
            f"{source.name} is no entry script, so a process of it uses one GPU alone, not {several}; "
            f"for a replica on each write {several.replace(DEVICE_SEPARATOR, ',')}"
        )


def _check_sequence(model: ModelSettings, source: ModelSource) -> None:
    if model.sequence is None:
        return
    _check_sequence_of(source, model.sequence)
    defaults = ModelSettings()
    for name in _NOT_FOR_SEQUENCES:
        if getattr(model, name) != getattr(defaults, name):
            raise InvalidSettings(
                f"{source.name} keeps state for sequences, of which each request has an answer of its own: leave "
                f"{name} out"
            )
    if source.framework == "onnx" and model.batching == "none":
        raise InvalidSettings(
            f"{source.name} keeps state for sequences, whose rows share batches: leave batching out"
        )
    if model.batching in ("merge", "handle"):
        raise InvalidSettings(
            f"{source.name} is given the state of sequences one request at a time: leave batching out, or decorate "
            "run with stoker.batched to take rows of many"
        )
    if model.precision in ("fp16", "bf16") or model.provider != defaults.provider:
        raise InvalidSettings(
            f"{source.name} keeps state for sequences: precision {model.precision} and provider {model.provider} are "
            "not for it"
        )
    if model.canary and not model.canary_by:
        raise InvalidSettings(
            f"{source.name} keeps state for sequences, each in one version: canary needs canary_by for it"
        )


def _check_sequence_of(source: ModelSource, sequence: SequenceSettings) -> None:
    """Raise InvalidSettings for keys that sequences of this framework do not have."""
    if source.framework == "onnx":
        if not sequence.state and not sequence.controls:
            raise InvalidSettings(
                f"{source.name}: sequence needs its state: a list such as [{{input_name: h, output_name: hn}}]"
            )
        return
    for name in _FOR_MODELS_WITH_STATE:
        if getattr(sequence, name):
            raise InvalidSettings(
                f"{source.name} is an entry script, which is given its state: leave {name} out of its sequence"
            )


def _check_batching(model: ModelSettings, source: ModelSource) -> None:
    is_script = source.framework in RUN_BY_SCRIPTS
    if is_script and model.audit:
        raise InvalidSettings(
            f"{source.name} is an entry script: audit is for models alone, for running a script again may do more "
            "than compute; leave it out"
        )
    is_merged = is_script and source.framework != "torchserve"
    if model.batching not in _BATCHING[is_merged]:
        kind = "an entry script" if is_merged else "no entry script"
        known = ", ".join(_BATCHING[is_merged])
        raise InvalidSettings(f"{source.name} is {kind}: batching is one of {known}, not {model.batching}")
