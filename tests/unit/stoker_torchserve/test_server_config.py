"""`config.properties` of TorchServe as settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from tests.torchserve_archives import ECHO_HANDLER, manifest_of, write_echo, write_folder, write_mar

from stoker.commands import serve
from stoker.errors import InvalidSettings
from stoker_torchserve.server_config import read_server_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A store with two archives, and the path of a configuration."""
    write_echo(tmp_path / "store", "one")
    write_echo(tmp_path / "store", "two", modelVersion="2.0")
    return tmp_path / "config.properties"


def read(config: Path, text: str) -> tuple[Any, Any]:
    config.write_text(f"model_store=store\n{text}", encoding="utf-8")
    return read_server_config(config)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("load_models=all", ["one", "two"]),
        ("load_models = two.mar", ["two"]),
        ("load_models: 1st=one.mar, two.mar", ["1st", "two"]),
        ('# none is named\nmodels={\\\n  "two": {"2.0": {"marName": "two.mar"}}}', ["two"]),
    ],
)
def test_the_named_models_are_loaded(config: Path, text: str, names: list[str]) -> None:
    """From the store, under their own names or the given ones."""
    models, _ = read(config, text)
    assert [model.name for model in models] == names
    assert {model.path.parent for model in models} == {config.parent / "store"}


def test_models_have_settings(config: Path) -> None:
    """By name and version; the archive's own are below them."""
    models, imported = read(
        config,
        'load_models=all\nmodels={"two": {"2.0": {"defaultVersion": true, "minWorkers": 1, "maxWorkers": 3, '
        '"batchSize": 4, "maxBatchDelay": 100, "responseTimeout": 9}}, "one": {"7.0": {"batchSize": 2}}}\n'
        "job_queue_size=50\n",
    )
    one, two = models
    assert (two.replicas, two.max_batch_rows, two.batching, two.max_delay_ms, two.timeout_ms) == (
        *(1, 4, "rows"),
        *(100.0, 9000),
    )
    assert (one.max_batch_rows, one.max_concurrent_requests) == (None, 50)
    assert any("maxWorkers is passed over" in note for note in imported.passed_over)
    unused = (
        "config.properties: models, one 7.0 is passed over: no archive of this name and version is loaded"
    )
    assert unused in imported.passed_over


def test_the_server_has_settings(config: Path) -> None:
    """They are converted to Stoker's units; settings without an effect are noted by name."""
    _, imported = read(
        config,
        "load_models=all\ninference_address=http://0.0.0.0:9000\nmanagement_address=http://127.0.0.1:8081\n"
        "default_workers_per_model=2\ndefault_response_timeout=30\nmax_request_size=1048576\n"
        "grpc_inference_port=7070\ncors_allowed_origin=*\nvmargs=-Xmx4g\n",
    )
    assert imported.server == {
        "host": "0.0.0.0",
        "port": 9000,
        "replicas": 2,
        "timeout_ms": 30_000,
        "max_body_mb": 1.0,
        "grpc_port": 7070,
        "cors_origins": "*",
    }
    passed = [note.split(": ")[1].split(" ")[0] for note in imported.passed_over]
    assert passed == ["management_address", "vmargs"]


def test_the_management_port_is_taken_on_the_same_host(config: Path) -> None:
    """On another host it is not opened to all who reach the models; the port of inference needs no second one."""
    for address, port in (
        ("http://127.0.0.1:8081", 8081),
        ("http://127.0.0.1:9000", None),
        ("http://10.0.0.1:8081", None),
        ("http://127.0.0.1", None),
    ):
        text = f"load_models=all\ninference_address=http://127.0.0.1:9000\nmanagement_address={address}\n"
        _, imported = read(config, text)
        assert imported.server.get("management_port") == port
        assert bool(imported.passed_over) == (port is None)
    _, imported = read(config, "load_models=all\nmanagement_address=http://127.0.0.1:8081\n")
    assert imported.server == {"management_port": 8081}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "load_models names no model"),
        ("load_models=../x.mar", r"'\.\./x\.mar' is no name of an archive"),
        ("load_models=none.mar", r"none\.mar is no archive of TorchServe"),
        ("load_models=all\nservice_envelope=kserve", "service_envelope is not offered"),
        ("load_models=all\nblacklist_env_vars=.*", "blacklist_env_vars is not offered"),
        ("load_models=all\nmodels=[", "models is not JSON"),
        ("load_models=all\nmodels=[1]", "models needs the form"),
        ('load_models=all\nmodels={"one": {"1.0": {"batchsize": 1}}}', "there is no batchsize"),
        ('load_models=all\nmodels={"one": {"1.0": {"batchSize": 0}}}', "batchSize: 0 is no whole number"),
        ("load_models=all\ninference_address=8080", "is no address such as"),
        ("load_models=all\ninference_address=https://localhost", "which needs certificate_file"),
        ("load_models=all\ndefault_response_timeout=soon", "'soon' is no whole number"),
        ("model_store=\nload_models=all", "it has no model_store"),
        ("model_store=nowhere\nload_models=all", "nowhere is not a folder"),
    ],
)
def test_invalid_server_setting_is_named(config: Path, text: str, message: str) -> None:
    """The error names the file, the key and the value; nothing outside the store is read."""
    with pytest.raises(InvalidSettings, match=message):
        read(config, text)


def test_packages_of_archives_with_requirements_are_installed(config: Path) -> None:
    """This needs `install_py_dep_per_model`; the other archives have no packages."""
    named = manifest_of("three", "echo_handler.py", requirementsFile="requirements.txt")
    write_mar(
        config.parent / "store", named, {"echo_handler.py": ECHO_HANDLER, "requirements.txt": "numpy\n"}
    )
    models, _ = read(config, "load_models=all\ninstall_py_dep_per_model=true\n")
    assert {model.name: model.environment_managed for model in models} == {
        "one": "user",
        "two": "user",
        "three": "system",
    }


def test_stoker_serve_takes_the_file(config: Path) -> None:
    """As PATH; its settings are below the options of the command line."""
    read(config, "load_models=two.mar\ninference_address=http://127.0.0.1:9000\n")
    write_folder(
        config.parent / "store", manifest_of("x", "echo_handler.py"), {"echo_handler.py": ECHO_HANDLER}
    )
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    settings = serve.serve_settings(parser.parse_args([str(config), "--host", "127.0.0.2"]))
    assert (settings.host, settings.port) == ("127.0.0.2", 9000)
    assert [model.name for model in settings.models] == ["two"]
    with pytest.raises(InvalidSettings, match=r"--name and .*config\.properties both say what is served"):
        serve.serve_settings(parser.parse_args([str(config), "--name", "x"]))


METRICS = "model_metrics:\n  gauge:\n    - {name: Rows, unit: count, dimensions: [ModelName]}\n"


def test_metrics_config_reaches_the_handlers(config: Path) -> None:
    """Its path, relative to the configuration's folder, is a variable of each model's process."""
    (config.parent / "metrics.yaml").write_text(METRICS)
    models, imported = read(config, "load_models=all\nmetrics_config=metrics.yaml\nmetrics_mode=prometheus")
    expected = {"TS_METRICS_CONFIG": str(config.parent / "metrics.yaml")}
    assert [model.environment_variables for model in models] == [expected, expected]
    assert [note.split(": ", 1)[1] for note in imported.passed_over if "metrics" in note] == [
        "metrics_mode is passed over: metrics of handlers are lines of the log, those of the server are at /metrics"
    ]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (None, r"metrics\.yaml cannot be read"),
        ("model_metrics: {", r"metrics\.yaml cannot be read"),
        ("model_metrics: " + "[" * 2000 + "]" * 2000, "nested more than"),
        (METRICS + METRICS, "the key model_metrics occurs twice"),
        ("other: 1", "needs the sections dimensions, ts_metrics, model_metrics"),
        (METRICS.replace("gauge", "summary"), "by type: counter, gauge, histogram"),
        (METRICS.replace("unit: count, ", ""), "a gauge of model_metrics needs name, unit and dimensions"),
        (METRICS.replace("unit: count", "unit: count, buckets: [1]"), "and nothing else"),
    ],
)
def test_metrics_config_that_cannot_be_honoured_is_refused(
    config: Path, text: str | None, cause: str
) -> None:
    """Before anything is loaded."""
    if text is not None:
        (config.parent / "metrics.yaml").write_text(text)
    with pytest.raises(InvalidSettings, match=cause):
        read(config, "load_models=all\nmetrics_config=metrics.yaml")
