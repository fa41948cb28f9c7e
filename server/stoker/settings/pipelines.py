"""The pipelines of a deployment file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import InvalidSettings
from stoker.names import SERVICE_RULE, is_service_name
from stoker.pipelines.definition import Pipeline, Step, named_steps
from stoker.pipelines.joined import check_names
from stoker.settings.readers import number_of, read_settings, read_text, setting

__all__ = ["read_pipelines"]

_MOST_STEPS = 100


def _read_map(value: Any) -> dict[str, str]:
    """Names of a model's tensors with what the pipeline calls them."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must be a mapping of the model's names to the pipeline's, such as image: pixels")
    if not all(isinstance(name, str) and name for pair in value.items() for name in pair):
        raise ValueError("must have names of tensors on both sides")
    return dict(value)


def _read_tensors(value: Any) -> tuple[str, ...]:
    """Names of tensors, as a list or one alone."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("must be a list of names of tensors")
    if len(set(names)) < len(names):
        raise ValueError("must have each name once")
    return tuple(names)


def _read_steps(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of steps, each with its model")
    if len(value) > _MOST_STEPS:
        raise ValueError(f"must have at most {_MOST_STEPS} steps")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class _StepSettings:
    model: str = setting("", read_text, "name of a model that is served", "NAME")
    name: str = setting("", read_text, "what messages call the step (default: its model)", "NAME")
    version: int | None = setting(None, number_of(int, 0, 10**18 - 1), "version of the model")
    label: str | None = setting(None, read_text, "label of the version", "LABEL")
    inputs: Mapping[str, str] | None = setting(
        None, _read_map, "tensors by the model's inputs (default: its own names)", "MAPPING"
    )
    outputs: Mapping[str, str] | None = setting(
        None, _read_map, "tensors by the model's outputs (default: its own names)", "MAPPING"
    )


@dataclass(frozen=True, slots=True)
class _PipelineSettings:
    steps: tuple[Any, ...] = setting((), _read_steps, "the models", "LIST")
    inputs: tuple[str, ...] | None = setting(
        None, _read_tensors, "tensors that callers send (default: those that no step makes)", "LIST"
    )
    outputs: tuple[str, ...] | None = setting(
        None, _read_tensors, "tensors that callers get (default: those that no step takes)", "LIST"
    )
    timeout_ms: int | None = setting(
        None, number_of(int, 1, 3_600_000), "a request not answered by then gets 504 (default: the server's)"
    )
    description: str | None = setting(None, read_text, "a sentence for swagger.json", "TEXT")


def read_pipelines(content: Any, file: Path) -> tuple[Pipeline, ...]:
    """Read `pipelines` of a deployment file.

    Args:
        content: What stands there.
        file: The file, for messages.

    Raises:
        InvalidSettings: It is something else, or a pipeline is wrong whatever its models are.
    """
    if not isinstance(content, Mapping):
        raise InvalidSettings(
            f"{file}: pipelines must be a mapping of names to pipelines, each with its steps"
        )
    return tuple(_pipeline(name, said, f"{file}, pipelines: {name}") for name, said in content.items())


def _pipeline(name: Any, said: Any, place: str) -> Pipeline:
    if not isinstance(name, str) or not is_service_name(name):
        raise InvalidSettings(f"{place} cannot be the name of a pipeline: it has to be {SERVICE_RULE}")
    if not isinstance(said, Mapping) or not said.get("steps"):
        raise InvalidSettings(f"{place} must have steps, a list of models")
    settings = _PipelineSettings(**read_settings(_PipelineSettings, said, place))
    steps = [_step(step, f"{place}, steps[{number}]") for number, step in enumerate(settings.steps)]
    pipeline = Pipeline(
        name,
        _named(steps, place),
        settings.inputs,
        settings.outputs,
        settings.timeout_ms,
        settings.description,
    )
    check_names(pipeline)
    return pipeline


def _step(said: Any, place: str) -> Step:
    if not isinstance(said, Mapping) or not said.get("model"):
        raise InvalidSettings(f"{place} must have a model, for instance: model: classify")
    step = _StepSettings(**read_settings(_StepSettings, said, place))
    if step.version is not None and step.label is not None:
        raise InvalidSettings(f"{place} has a version and a label; leave one out")
    return Step(step.name, step.model, step.version, step.label, step.inputs, step.outputs)


def _named(steps: Sequence[Step], place: str) -> tuple[Step, ...]:
    named = named_steps(steps)
    for name, count in Counter(step.name for step in named).items():
        if count > 1:
            raise InvalidSettings(f"{place} has {count} steps with the name {name!r}; give each its own")
        if not is_service_name(name):
            raise InvalidSettings(
                f"{place} has a step {name!r}, which cannot be a name: it has to be {SERVICE_RULE}"
            )
    return named
