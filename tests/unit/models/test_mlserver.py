"""MLServer's files: models and settings that are read from them, notes, and refusals by name."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.commands import serve
from stoker.errors import InvalidSettings, RepositoryError
from stoker.models.layouts import discover, find_versions
from stoker.models.mlserver import read_model_folder, read_server_settings
from stoker.models.sources import Broken

SKLEARN = "mlserver_sklearn.SKLearnModel"
LIGHTGBM_MODEL = "mlserver_lightgbm.LightGBMModel"
XGBOOST = b'{"learner":{}}'
LIGHTGBM = b"tree\nversion=v4\n"


def model(folder: Path, settings_of_model: Any, **files: bytes) -> Path:
    """Make a folder with settings and files, whose names have `__` for their dots."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model-settings.json").write_text(
        settings_of_model if isinstance(settings_of_model, str) else json.dumps(settings_of_model)
    )
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("implementation", "parameters", "file", "content"),
    [
        (SKLEARN, {}, "model.joblib", b""),
        (SKLEARN, None, "model.pickle", b""),
        ("mlserver_sklearn.sklearn.SKLearnModel", {"uri": "./iris.bin"}, "iris.bin", b""),
        ("mlserver_xgboost.XGBoostModel", {}, "model.json", XGBOOST),
        ("mlserver_xgboost.XGBoostModel", {"uri": "trees.json"}, "trees.json", XGBOOST),
        (LIGHTGBM_MODEL, {}, "model.bst", LIGHTGBM),
        ("mlserver_onnx.OnnxModel", {}, "model.onnx", b""),
    ],
)
def test_model_of_each_runtime_is_found(
    tmp_path: Path, implementation: str, parameters: Any, file: str, content: bytes
) -> None:
    """By its URI, relative to its settings, or else under the names that the runtime looks for."""
    settings_of_model = {"name": "iris", "implementation": implementation, "parameters": parameters}
    folder = model(tmp_path / "any", settings_of_model, **{file.replace(".", "__"): content})
    (source,) = discover(folder)
    framework = "onnx" if file.endswith(".onnx") else "sklearn"
    assert (source.name, source.version, source.framework, source.path) == (
        "iris",
        1,
        framework,
        folder / file,
    )


def test_model_of_mlflow_is_found(tmp_path: Path) -> None:
    """Its URI is a folder with MLmodel, which has the flavor."""
    folder = model(
        tmp_path / "wine", {"implementation": "mlserver_mlflow.MLflowRuntime", "parameters": {"uri": "./runs/model"}}
    )  # fmt: skip
    (folder / "runs" / "model").mkdir(parents=True)
    (folder / "runs" / "model" / "MLmodel").write_text(
        "flavors:\n  python_function:\n    loader_module: mlflow.sklearn\n"
    )
    (source,) = discover(tmp_path)
    assert (source.name, source.framework, source.path) == ("wine", "mlflow", folder / "runs" / "model")


def test_repository_has_models_of_each_layout(tmp_path: Path) -> None:
    """The layouts may be mixed, also with folders of versions; a broken model does not stop the others."""
    onnx = tmp_path / "digits" / "1"
    onnx.mkdir(parents=True)
    (onnx / "model.onnx").touch()
    model(tmp_path / "iris", {"implementation": SKLEARN}, model__pkl=b"")
    wine = {"name": "wine", "implementation": SKLEARN, "parameters": {"version": "2"}}
    model(tmp_path / "wine" / "v2", wine, model__pkl=b"")
    model(tmp_path / "rooms" / "7", {"name": "rooms", "implementation": SKLEARN}, model__pkl=b"")
    model(tmp_path / "own", {"implementation": "models.Own"})
    model(tmp_path / "copy", {"name": "iris", "implementation": SKLEARN}, model__pkl=b"")
    broken: Broken = {}
    found = [(source.name, source.version) for source in discover(tmp_path, broken)]
    assert found == [("digits", 1), ("rooms", 7), ("wine", 2)]
    assert broken.keys() == {
        ("iris", 1),
        ("own", 1),
    }
    assert "are both version 1 of iris" in str(broken["iris", 1])
    assert "write a score.py whose init() loads the model" in str(broken["own", 1])
    assert [source.version for source in find_versions(tmp_path / "rooms", "rooms", broken)] == [7]


def test_model_outside_the_folder_of_its_version_is_found(tmp_path: Path) -> None:
    """Its fingerprint is that of its files outside."""
    (tmp_path / "shared.pkl").touch()
    settings_of_model = {"implementation": SKLEARN, "parameters": {"uri": "../../shared.pkl"}}
    model(tmp_path / "repository" / "7", settings_of_model)
    (source,) = discover(tmp_path / "repository")
    assert (source.name, source.version, source.path) == ("repository", 7, tmp_path / "shared.pkl")
    assert source.fingerprint()


@pytest.mark.parametrize(
    ("settings_of_model", "version", "settings"),
    [
        ({"parameters": {"version": "3"}}, 3, {}),
        ({"parameters": {"version": "v3"}}, 3, {"labels": {"v3": 3}}),
        ({"parameters": {"version": "v0.1.0"}}, 1, {"labels": {"v0.1.0": 1}}),
        ({"max_batch_size": 32, "max_batch_time": 0.3}, 1, {"max_batch_rows": 32, "max_delay_ms": 300}),
        ({"max_batch_size": 0}, 1, {"batching": "none"}),
        ({"parameters": {"extra": {"predict_fn": "transform"}}}, 1, {"signature": ("transform",)}),
        ({"parameters": {"content_type": "pd"}, "inputs": [{"parameters": {"content_type": "np"}}]}, 1, {}),
    ],
)  # fmt: skip
def test_settings_count(tmp_path: Path, settings_of_model: Any, version: int, settings: Any) -> None:
    """A version that is no number is a label; batches have MLServer's bounds."""
    source = read_model_folder(
        model(tmp_path, {"name": "m", "implementation": SKLEARN, **settings_of_model}, model__pkl=b"")
    )
    assert source.version == version
    assert source.own_settings is not None
    assert {name: getattr(source.own_settings, name) for name in source.own_settings.given} == settings
    assert not source.notes


def test_settings_without_an_effect_on_answers_are_noted(tmp_path: Path) -> None:
    """Each note has the name of the setting, and a setting of Stoker instead."""
    settings_of_model = {
        "implementation": SKLEARN,
        "parallel_workers": 2,
        "platform": "",
        "parameters": {"format": "x"},
    }
    notes = read_model_folder(model(tmp_path / "m", settings_of_model, model__pkl=b"")).notes
    source = f"model-settings.json in {tmp_path / 'm'}"
    assert notes == (
        f"{source}: format is passed over",
        f"{source}: parallel_workers is passed over: the setting replicas has a model in several processes",
    )


@pytest.mark.parametrize(
    ("settings_of_model", "message"),
    [
        ("{", "cannot be read"),
        ([], "must be an object"),
        ({}, "the implementation None is not offered: write a score.py"),
        ({"implementation": "mlserver_sklearn.Other"}, "'mlserver_sklearn.Other' is not offered"),
        ({"implementation": "mlserver_huggingface.HuggingFaceRuntime"}, "served without one are mlserver_sklearn"),
        ({"parameters": {"uri": "gone.pkl"}}, "parameters.uri 'gone.pkl' is not there"),
        ({"parameters": {"uri": "s3://bucket/model"}}, "stoker serve s3://bucket/model"),
        ({"implementation": "mlserver_xgboost.XGBoostModel"}, "has none of model.bst, model.json, model.ubj; name"),
        ({"implementation": LIGHTGBM_MODEL, "parameters": {"uri": "model.pkl"}}, "no file that lightgbm has saved"),
        ({"parameters": {"content_type": "hg_jsonlist"}}, "content type 'hg_jsonlist' is not offered"),
        ({"parameters": {"environment_tarball": "env.tar.gz"}}, "environment_tarball is not offered: name its"),
        ({"parameters": {"extra": {"treshold": 1}}}, "parameters.extra: treshold is not offered"),
        ({"parameters": {"version": "two words/3"}}, "use a whole number"),
        ({"max_batch_sise": 4}, "max_batch_sise is not offered: it is no setting of MLServer's"),
        ({"max_batch_size": 8, "max_batch_time": "soon"}, "must be a number of seconds, not 'soon'"),
    ],
)  # fmt: skip
def test_settings_that_are_not_offered_are_refused(
    tmp_path: Path, settings_of_model: Any, message: str
) -> None:
    """The sentence names the file, the key, and the way to do without."""
    if isinstance(settings_of_model, dict) and settings_of_model:
        settings_of_model = {"implementation": SKLEARN, **settings_of_model}
    with pytest.raises(RepositoryError, match=message) as refused:
        read_model_folder(model(tmp_path, settings_of_model, model__pkl=b""))
    assert str(refused.value).startswith(f"model-settings.json in {tmp_path}")


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("other", "7", "'other' is not that of its folder, rooms"),
        ("rooms", "8", "'8' is not that of its folder, 7"),
    ],
)
def test_settings_that_contradict_the_folder_of_a_version_are_refused(
    tmp_path: Path, name: str, version: str, message: str
) -> None:
    """The name or the number of the folder differs from that in its settings."""
    settings_of_model = {"name": name, "implementation": SKLEARN, "parameters": {"version": version}}
    model(tmp_path / "rooms" / "7", settings_of_model, model__pkl=b"")
    with pytest.raises(RepositoryError, match=message):
        discover(tmp_path)


def test_settings_of_a_version_change_its_fingerprint(tmp_path: Path) -> None:
    """So a reload reads them again."""
    folder = model(tmp_path / "m", {"implementation": SKLEARN}, model__pkl=b"")
    before = read_model_folder(folder).fingerprint()
    model(folder, {"implementation": SKLEARN, "max_batch_size": 4})
    assert read_model_folder(folder).fingerprint() != before


def test_settings_of_the_server_are_imported(tmp_path: Path) -> None:
    """Ports and the host count, other settings are noted; without a model of MLServer the file is ignored."""
    file = tmp_path / "settings.json"
    file.write_text(
        '{"http_port": 9001, "grpc_port": 9002, "host": "0.0.0.0", "debug": true, "kafka_enabled": false}'
    )
    assert read_server_settings(tmp_path) is None
    model(tmp_path / "m", {"implementation": SKLEARN})
    imported = read_server_settings(tmp_path)
    assert imported is not None
    assert imported.server == {"port": 9001, "grpc_port": 9002, "host": "0.0.0.0"}
    assert imported.passed_over == (f"{file}: debug is passed over",)


def test_the_command_uses_the_port_of_the_folder(tmp_path: Path) -> None:
    """An option overrules it."""
    model(tmp_path / "m", {"implementation": SKLEARN}, model__pkl=b"")
    (tmp_path / "settings.json").write_text('{"http_port": 9001}')
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    options = [str(tmp_path), "--workspace", str(tmp_path / "workspace")]
    assert serve.serve_settings(parser.parse_args(options)).port == 9001
    assert serve.serve_settings(parser.parse_args([*options, "--port", "9003"])).port == 9003


@pytest.mark.parametrize(
    ("key", "value"),
    [("kafka_enabled", True), ("root_path", "/x"), ("load_models_at_startup", False), ("prot", 1)],
)
def test_settings_of_the_server_that_are_not_offered_are_refused(
    tmp_path: Path, key: str, value: Any
) -> None:
    """A server does not silently differ from its file."""
    model(tmp_path, {"implementation": SKLEARN})
    (tmp_path / "settings.json").write_text(json.dumps({key: value}))
    with pytest.raises(InvalidSettings, match=f"{key} is not offered"):
        read_server_settings(tmp_path)
