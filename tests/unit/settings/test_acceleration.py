"""Settings of the GPU, by framework."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.choices import Acceleration, check_acceleration


@pytest.mark.parametrize("framework", ["onnx", "tensorflow", "torch", "script", "files"])
def test_the_defaults_suit_every_framework(framework: str) -> None:
    """A model without settings is never refused."""
    check_acceleration("digits", framework, Acceleration())


@pytest.mark.parametrize(
    ("framework", "settings"),
    [
        ("onnx", {"provider": "tensorrt", "precision": "fp16", "execution": "bound", "memory_mb": 100}),
        ("onnx", {"execution": "graph", "precision": "fp32"}),
        ("tensorflow", {"xla": True, "precision": "fp32", "memory_mb": 100}),
        ("tensorflow", {"precision": "fp16"}),
        ("torch", {"precision": "bf16", "execution": "graph", "compile": True, "memory_mb": 100}),
        ("torch", {"precision": "fp16", "execution": "copied"}),
    ],
)
def test_settings_of_the_framework_are_taken(framework: str, settings: dict[str, Any]) -> None:
    """Those that go together."""
    check_acceleration("digits", framework, Acceleration(**settings))


@pytest.mark.parametrize(
    ("framework", "settings", "reason"),
    [
        ("onnx", {"xla": True}, "xla is for SavedModels"),
        ("onnx", {"provider": "tensorrt", "execution": "graph"}, "execution: graph is for provider: cuda"),
        ("onnx", {"provider": "tensorrt", "precision": "fp32"}, "TensorRT always uses TF32"),
        ("tensorflow", {"provider": "tensorrt"}, "provider is for ONNX models; leave it out"),
        ("tensorflow", {"execution": "copied"}, "execution is for ONNX models and models of PyTorch"),
        ("tensorflow", {"precision": "bf16"}, "choose precision: fp16, or export the model in bfloat16"),
        ("tensorflow", {"optimize": "off"}, "optimize is for ONNX models"),
        ("tensorflow", {"xla": True, "precision": "fp16"}, "choose xla or precision: fp16"),
        ("onnx", {"compile": True}, "compile is for models of PyTorch"),
        ("tensorflow", {"compile": True}, "compile is for models of PyTorch"),
        ("torch", {"execution": "bound"}, "execution: bound is for ONNX models"),
        ("torch", {"xla": True}, "xla is for SavedModels"),
        ("script", {"memory_mb": 100}, "an entry script sets up its framework itself"),
        ("script", {"precision": "fp16"}, "an entry script sets up its framework itself"),
    ],
)
def test_settings_without_sense_are_refused(framework: str, settings: dict[str, Any], reason: str) -> None:
    """The message names the model and says what to change."""
    with pytest.raises(InvalidSettings) as refused:
        check_acceleration("digits", framework, Acceleration(**settings))
    assert str(refused.value).startswith("digits: ")
    assert reason in str(refused.value)


def test_every_setting_is_judged() -> None:
    """A new setting must not pass entry scripts unseen."""
    for field in dataclasses.fields(Acceleration):
        other = {
            "provider": "tensorrt",
            "precision": "fp16",
            "execution": "graph",
            "memory_mb": 1,
            "xla": True,
            "optimize": "off",
            "compile": True,
        }
        with pytest.raises(InvalidSettings):
            check_acceleration("script", "script", Acceleration(**{field.name: other[field.name]}))
