"""Triton's ensembles as pipelines: folders of a model repository whose `config.pbtxt` has steps.

The fields are those of `ModelConfig` and `ModelEnsembling` in Triton's `model_config.proto`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

from stoker.errors import InvalidSettings, RepositoryError
from stoker.models.pbtxt import MOST_CHARACTERS, PbtxtError, parse
from stoker.models.pbtxt_fields import Fields, InvalidField
from stoker.models.sources import Broken, reading_model
from stoker.models.triton_config import CONFIG_FILE
from stoker.settings.files import settings_text
from stoker.settings.model import ModelSettings
from stoker.settings.names import checked_service
from stoker.settings.pipelines import VERSION, Pipeline, Step, named_steps

_SCHEDULING = "ensemble_scheduling"
_SPEED = (
    "max_batch_size",
    "version_policy",
    "parameters",
    "response_cache",
    "optimization",
    "model_warmup",
    "metric_tags",
    "model_metrics",
    "instance_group",
    "dynamic_batching",
)
"""Further fields that no answer depends on: limits and batches are those of the steps' models."""
_OF_STEPS = ("reshape", "label_filename", "optional", "is_shape_tensor", "allow_ragged_batch")
"""Properties that only tensors of steps can have."""


def is_ensemble(base: Path) -> bool:
    """Whether a folder of a model repository is an ensemble; one that cannot be read is none."""
    return _fields_of(base) is not None


def _fields_of(base: Path) -> Fields | None:
    """Return the configuration in a folder if it is an ensemble's."""
    try:
        text = settings_text(base / CONFIG_FILE, MOST_CHARACTERS)
        # Most folders are models, whose configuration is parsed elsewhere.
        message = parse(text) if _SCHEDULING in text else {}
    except (OSError, UnicodeDecodeError, PbtxtError):
        return None
    return Fields(message, "") if _SCHEDULING in message else None


def ensembles_of(models: Iterable[ModelSettings], broken: Broken | None = None) -> tuple[Pipeline, ...]:
    """Return the ensembles in the model repositories among the models to serve, in the order of their names.

    Args:
        broken: Receives the errors of malformed ensembles, and makes the others optional; without it the first error
            is raised.
    """
    repositories = [model.path for model in models if model.path is not None and model.path.is_dir()]
    bases = [base for repository in repositories for base in sorted(repository.iterdir())]
    found = []
    for base in bases:
        fields = _fields_of(base)
        if fields is None:
            continue
        try:
            with reading_model(base.name):
                found.append(dataclasses.replace(_read(base, fields), optional=broken is not None))
        except (InvalidSettings, RepositoryError) as error:
            if broken is None:
                raise
            broken[base.name, VERSION] = error
    return tuple(found)


def _read(base: Path, fields: Fields) -> Pipeline:
    try:
        return _pipeline(base, fields)
    except InvalidField as error:
        raise InvalidSettings(f"{CONFIG_FILE} of {base.name}: {error}") from None


def _pipeline(base: Path, fields: Fields) -> Pipeline:
    fields.check_known("name", "platform", "backend", "input", "output", _SCHEDULING, *_SPEED)
    name = fields.text("name") or base.name
    if name != base.name:
        raise InvalidField(f"its name is {name!r}, and its folder is {base.name}; give both the same name")
    scheduling = fields.message(_SCHEDULING)
    steps = [] if scheduling is None else [_step(one) for one in scheduling.messages("step")]
    if not steps:
        raise InvalidField(f"{_SCHEDULING} has no step")
    inputs, outputs = (tuple(_names(fields, side)) for side in ("input", "output"))
    return Pipeline(checked_service(name, "pipeline"), named_steps(steps), inputs or None, outputs or None)


def _names(fields: Fields, side: str) -> Iterator[str]:
    for one in fields.messages(side):
        one.check_known("name", "data_type", "dims", "format", "is_non_linear_format_io", *_OF_STEPS)
        for field in _OF_STEPS:
            if one.has(field) and (field in _OF_STEPS[:2] or one.flag(field)):
                raise InvalidField(f"{one.place}{field} is not offered: say it of the model of a step")
        name = one.text("name")
        if not name:
            raise InvalidField(f"{one.place}name is missing")
        yield name


def _step(fields: Fields) -> Step:
    fields.check_known("model_name", "model_version", "input_map", "output_map", "model_namespace")
    model = fields.text("model_name")
    if not model:
        raise InvalidField(f"{fields.place}model_name is missing")
    if fields.text("model_namespace"):
        raise InvalidField(f"{fields.place}model_namespace is not offered: give the models different names")
    # In Triton -1 means the newest version.
    version = next((number for number in fields.sizes("model_version") if number >= 0), None)
    return Step("", model, version, None, _map(fields, "input_map"), _map(fields, "output_map"))


def _map(fields: Fields, side: str) -> dict[str, str]:
    named = {}
    for entry in fields.messages(side):
        key, value = entry.text("key"), entry.text("value")
        if not key or not value:
            raise InvalidField(f"{entry.place}key and value are both needed")
        named[key] = value
    if not named:
        raise InvalidField(f"{fields.place}{side} is missing")
    return named
