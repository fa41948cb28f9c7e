"""TensorFlow Serving's own files as settings: `models.config`, and batching parameters."""

from __future__ import annotations

import argparse
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.tiny_models import write_doubler

from stoker.commands import serve
from stoker.errors import InvalidSettings
from stoker.models.deployments import resolve
from stoker.models.serving_config import read_batching_parameters, read_model_config
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace

MODELS = """
# Two models, as the documentation of TensorFlow Serving has them.
model_config_list {
  config {
    name: 'digits'
    base_path: '/models/digits/'
    model_platform: 'tensorflow'
    model_version_policy { specific { versions: 42 versions: 43 } }
    version_labels { key: 'stable' value: 42 }
    version_labels { key: 'canary' value: 43 }
    logging_config { sampling_config { sampling_rate: 0.1 } }
  }
  config: { name: "words", base_path: "words", model_version_policy: { latest { num_versions: 2 } } }
  config { name: "all" base_path: "all" model_platform: "tensorflow" model_version_policy { all {} } }
}
"""
BATCHING = """
max_batch_size { value: 128 }
batch_timeout_micros { value: 1500 }
allowed_batch_sizes: 16
allowed_batch_sizes: 128
max_enqueued_batches { value: 1000000 }
num_batch_threads { value: 8 }
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A `models.config`."""
    file = tmp_path / "models.config"
    file.write_text(MODELS)
    return file


def of(tmp_path: Path, *arguments: str) -> ServerSettings:
    """The settings that these arguments of `stoker serve` give."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return serve.serve_settings(parser.parse_args(["--workspace", str(tmp_path / "workspace"), *arguments]))


def test_models_with_versions_and_labels(models: Path, tmp_path: Path) -> None:
    """Each with its policy and labels; what has no effect is told, and versions are looked for as there."""
    settings = of(tmp_path, "--model-config-file", str(models))
    digits, words, every = settings.models
    assert (digits.name, digits.path) == ("digits", Path("/models/digits"))
    assert (digits.versions, digits.labels) == ((42, 43), {"stable": 42, "canary": 43})
    assert (words.path, words.versions, words.labels) == (tmp_path / "words", "latest:2", None)
    assert every.versions == "all"
    assert settings.poll_s == 1
    assert "logging_config of digits is passed over" in settings.passed_over[0]


def test_stoker_options_win_over_the_model_config_file(models: Path, tmp_path: Path) -> None:
    """The server's and the models' options win over the model config file."""
    given = ("--poll-s", "0", "--signature", "*", "--batching", "rows")
    settings = of(tmp_path, "--model-config-file", str(models), *given)
    assert settings.poll_s == 0
    assert {(model.signature, model.batching) for model in settings.models} == {(("*",), "rows")}


def test_batching_parameters(models: Path, tmp_path: Path) -> None:
    """They are for all models; what has no effect is told with what has instead."""
    file = tmp_path / "batching.config"
    file.write_text(BATCHING)
    settings = of(tmp_path, "--model-config-file", str(models), "--batching-parameters-file", str(file))
    assert (settings.max_batch_rows, settings.max_delay_ms) == (128, 1.5)
    assert settings.model_defaults.batch_buckets == (16, 128)
    notes = "\n".join(settings.passed_over)
    assert "batching.config: num_batch_threads is passed over: device_batches" in notes
    assert "max_enqueued_batches is passed over" in notes


def test_stoker_options_win_over_batching_parameters(tmp_path: Path) -> None:
    """Options for all models win over the batching parameters, which are for all models too."""
    write_doubler(tmp_path / "doubler.onnx")
    (tmp_path / "batching.config").write_text(BATCHING)
    files = (str(tmp_path / "doubler.onnx"), "--batching-parameters-file", str(tmp_path / "batching.config"))
    found = []
    for given in ((), ("--max-batch-rows", "64", "--max-delay-ms", "3")):
        with ExitStack() as leases:
            (one,) = resolve(of(tmp_path, *files, *given), Workspace(tmp_path / "workspace"), leases)
            found.append((one.max_batch_rows, one.max_delay_ms, one.batch_buckets))
    assert found == [(128, 1.5, (16, 128)), (64, 3, (16, 128))]


def test_models_are_named_once(models: Path, tmp_path: Path) -> None:
    """PATH, and other files that say what is served, contradict it."""
    for other in (("model.onnx",), ("--name", "x"), ("--deployment", "d.yml")):
        with pytest.raises(InvalidSettings, match="--model-config-file both say what is served"):
            of(tmp_path, "--model-config-file", str(models), *other)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "nothing to serve"),
        ("model_config_list {}", "nothing to serve"),
        ("model_config_list {", "line 1"),
        ("custom_model_config {}", "model_config_list"),
        ("model_config_lists {}", "did you mean model_config_list"),
        ("model_config_list { config { name: 'a' } }", "base_path"),
        ("model_config_list { config { name: 'a' base_path: 's3://b/a' } }", "is no folder"),
        ("model_config_list { config { name: 'a' base_path: 'a' model_platform: 'x' } }", "model_platform is x"),
        ("model_config_list { config { name: 'a/b' base_path: 'a' } }", "cannot be a"),
        ("model_config_list { config { name: 'a' base_path: 'a' version_labels { key: 'x' } } }", "value"),
        ("model_config_list { config { name: 'a' base_path: 'a' model_version_policy { latest { num_versions: 1.5 "
         "} } } }", "whole number"),
    ],
)  # fmt: skip
def test_models_that_are_refused(text: str, part: str, tmp_path: Path) -> None:
    """In one sentence with the file."""
    file = tmp_path / "models.config"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=f"{re.escape(str(file))}.*{part}"):
        read_model_config(file)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("max_batch_size: 8", "message in braces"),
        ("max_batch_size { value: 0 }", "max_batch_rows"),
        ("max_batch_sizes { value: 1 }", "did you mean max_batch_size"),
        ("allowed_batch_sizes: -1", "batch_buckets"),
    ],
)
def test_batching_parameters_that_are_refused(text: str, part: str, tmp_path: Path) -> None:
    """As well."""
    file = tmp_path / "batching.config"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=f"{re.escape(str(file))}.*{part}"):
        read_batching_parameters(file)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_batching_parameters(tmp_path / "missing")
