"""Triton's ensembles, read as pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker.models.ensembles import ensembles_of
from stoker.models.layouts import discover
from stoker.settings.model import ModelSettings
from stoker.settings.pipelines import Pipeline, Step

ENSEMBLE = """
name: "digits"
platform: "ensemble"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ 784 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 10 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "scale"
      model_version: -1
      input_map { key: "x" value: "IMAGE" }
      output_map { key: "y" value: "scaled" }
    },
    {
      model_name: "classify"
      model_version: 3
      input_map { key: "x" value: "scaled" }
      output_map { key: "y" value: "SCORES" }
    }
  ]
}
"""


def repository(tmp_path: Path, text: str = ENSEMBLE) -> Path:
    """A repository with one model and one ensemble, each with a version."""
    for name, config in (("scale", "max_batch_size: 8  # no ensemble_scheduling"), ("digits", text)):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    (tmp_path / "scale" / "1" / "model.onnx").touch()
    return tmp_path


def test_an_ensemble_is_a_pipeline_and_no_model(tmp_path: Path) -> None:
    """Its steps, maps, inputs and outputs are those of the file; -1 is no version."""
    folder = repository(tmp_path)
    assert ensembles_of([ModelSettings(path=folder), ModelSettings(registered="other")]) == (
        Pipeline(
            "digits",
            (
                Step("scale", "scale", None, None, {"x": "IMAGE"}, {"y": "scaled"}),
                Step("classify", "classify", 3, None, {"x": "scaled"}, {"y": "SCORES"}),
            ),
            ("IMAGE",),
            ("SCORES",),
        ),
    )
    assert [source.name for source in discover(folder)] == ["scale"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('name: "digits"', 'name: "other"'), "its name is 'other', and its folder is digits"),
        (('model_name: "scale"', ""), r"ensemble_scheduling.step\[0\].model_name is missing"),
        (('input_map { key: "x" value: "IMAGE" }', ""), r"step\[0\].input_map is missing"),
        (('key: "x" value: "IMAGE"', 'key: "x"'), r"input_map\[0\].key and value are both needed"),
        (('name: "IMAGE"', ""), r"input\[0\].name is missing"),
        (("model_version", "version"), r"there is no field ensemble_scheduling.step\[0\].version"),
        (("max_batch_size", "batch_input [] max_batch"), "there is no field batch_input"),
        (("dims: [ 10 ]", "dims: 10 reshape { shape: 5 }"), r"output\[0\].reshape is not offered"),
        (("dims: [ 10 ]", 'dims: 10 label_filename: "a"'), r"output\[0\].label_filename is not offered"),
        (("dims: [ 784 ]", "dims: 784 optional: true"), r"input\[0\].optional is not offered"),
        (("model_version: 3", 'model_namespace: "b"'), r"step\[1\].model_namespace is not offered"),
        (("step [", "step2 ["), "ensemble_scheduling has no step"),
    ],
)
def test_invalid_ensemble_is_refused_with_folder_and_field(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    """The message names the folder and the field."""
    folder = repository(tmp_path, ENSEMBLE.replace(*change, 1))
    with pytest.raises(InvalidSettings, match=f"^config.pbtxt of digits: .*{message}"):
        ensembles_of([ModelSettings(path=folder)])
    broken: dict[tuple[str, int], Exception] = {}
    assert ensembles_of([ModelSettings(path=folder)], broken) == ()  # type: ignore[arg-type]  # its values are narrower
    assert list(broken) == [("digits", 1)]


def test_an_unreadable_file_is_an_error_of_a_model(tmp_path: Path) -> None:
    """Without its content it is not known to be an ensemble."""
    folder = repository(tmp_path, ENSEMBLE + "}")
    assert ensembles_of([ModelSettings(path=folder)]) == ()
    broken: dict[tuple[str, int], Exception] = {}
    discover(folder, broken)  # type: ignore[arg-type]  # its values are narrower
    assert list(broken) == [("digits", 1)]
