"""Pipelines in a deployment file."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.loading import load_settings
from stoker.settings.pipelines import Pipeline, Step

FILE = """
models:
- {path: a.onnx}
pipelines:
  digits:
    steps:
    - {model: scale, inputs: {image: pixels}, outputs: {scaled: x}}
    - {model: classify, label: stable, name: sure}
    - {model: classify, version: 3, outputs: {y: other}}
    inputs: [pixels]
    outputs: y
    timeout_ms: 500
    description: Digits of all sizes.
"""


def load(tmp_path: Path, text: str) -> tuple[Pipeline, ...]:
    """The pipelines of a deployment file with this text."""
    file = tmp_path / "deployment.yaml"
    file.write_text(text)
    return load_settings({}, {}, file, ()).pipelines


def test_a_pipeline_is_read_as_it_is_written(tmp_path: Path) -> None:
    """Steps have the names of their models, and unnamed tensors stay open."""
    assert load(tmp_path, FILE) == (
        Pipeline(
            "digits",
            (
                Step("scale", "scale", inputs={"image": "pixels"}, outputs={"scaled": "x"}),
                Step("sure", "classify", label="stable"),
                Step("classify", "classify", version=3, outputs={"y": "other"}),
            ),
            ("pixels",),
            ("y",),
            500,
            "Digits of all sizes.",
        ),
    )
    assert load(tmp_path, "models: []") == ()


def test_steps_of_one_model_are_named_by_their_places(tmp_path: Path) -> None:
    """A model that is there twice has two steps with names that messages can use."""
    (pipeline,) = load(tmp_path, "pipelines: {p: {steps: [{model: a}, {model: b}, {model: a}]}}")
    assert [step.name for step in pipeline.steps] == ["a-1", "b", "a-3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "pipelines must be a mapping of names to pipelines"),
        ("{'a:b': {steps: [{model: a}]}}", "cannot be the name of a pipeline"),
        ("{p: {}}", "pipelines: p must have steps"),
        ("{p: {steps: [{}]}}", r"pipelines: p, steps\[0\] must have a model"),
        ("{p: {steps: [{model: a, inptus: {x: y}}]}}", "there is no setting 'inptus'; did you mean inputs"),
        ("{p: {steps: [{model: a, inputs: [x]}]}}", r"steps\[0\]: inputs must be a mapping"),
        ("{p: {steps: [{model: a, version: 1, label: b}]}}", "has a version and a label"),
        ("{p: {steps: [{model: a, name: c}, {model: b, name: c}]}}", "has 2 steps with the name 'c'"),
        ("{p: {steps: [{model: a}], outputs: [x, x]}}", "outputs must have each name once"),
        ("{p: {steps: [{model: a, inputs: {i: x}, outputs: {o: x}}]}}", "wait for each other in a circle: a"),
    ],
)  # fmt: skip
def test_invalid_pipeline_is_refused_when_it_is_read(tmp_path: Path, text: str, message: str) -> None:
    """The message says where it stands; a circle of named tensors is found before any model is loaded."""
    with pytest.raises(InvalidSettings, match=message):
        load(tmp_path, f"pipelines: {text}")
