"""`stoker serve`: load models onto the device and answer scoring requests."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stoker import __version__
from stoker.commands.terminal import add_workspace_argument, shorten_help
from stoker.settings.loading import add_server_options, add_setting_options, load_settings
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.readers import read_settings
from stoker.settings.server import ImportedSettings, ServerSettings
from stoker.system.extensions import find_extension, require_extension
from stoker.system.operator_lines import print_lines
from stoker.system.resources import ONE_BLAS_THREAD, defaults_set

_DESCRIPTIONS: Final = ("name", "model_dir", "image", "batching", "sample_input", "signature")
_MODEL_SETTINGS: Final = ("versions", "environment", *_DESCRIPTIONS)
"""Settings of a model that are options."""
_PATH_OPTIONS: Final = ("path", "model", "name", "model_dir", "use_model")
"""Options that name a model by its path, or describe it."""
_ONE_MODEL_OPTIONS: Final = ("deployment", "inference_config", "environment", "image", "sample_input")
"""Further options that describe one model."""

_COMMON: Final = (
    *("path", "model", "versions", "name", "model_dir", "image", "environment", "system_managed", "config"),
    *("workspace", "host", "port", "frontends", "device", "replicas", "auth", "metrics_auth", "log_format"),
    *("max_body_mb", "timeout_ms", "max_batch_rows", "max_delay_ms", "drain_grace_s", "poll_s", "collect"),
    *("grpc_port", "tls_cert", "tls_key"),
)
"""The options that `--help` shows; `--help-all` shows all."""
_EXAMPLES: Final = """

examples:
  stoker serve model.onnx                        one model, at http://127.0.0.1:8080/score
  stoker serve score.py --model-dir models       an entry script and its files
  stoker serve --model digits:3 --model resnet   registered models
  stoker serve --config deployment.yaml          models and settings of a file
  stoker serve model.onnx --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem"""
_PROPERTIES: Final = ".properties"
"""How the name of TorchServe's configuration ends."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; `--help` shows the common ones, after examples."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s [OPTION ...] [PATH]"
    parser.description = f"{parser.description or ''}{_EXAMPLES}"
    parser.epilog = (
        "Without PATH and --model, the models of the deployment file are served, else the\n"
        "script that AZUREML_ENTRY_SCRIPT names, else every registered model in its newest\n"
        "version. SIGTERM and Ctrl-C drain: no request is lost; a second one ends at once."
    )
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="PATH",
        help="model.onnx, a SavedModel folder, score.py, a folder of MLflow, one in Triton's or TensorFlow Serving's "
        "layout, or of TorchServe: model.mar, a folder of archives, config.properties; or an address such as "
        "s3://bucket/model.onnx",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME[:VERSION]",
        help="a registered model; repeatable",
    )
    parser.add_argument(
        "--use-model",
        action="append",
        default=[],
        metavar="NAME[:VERSION]",
        help="a registered model that score.py finds below AZUREML_MODEL_DIR instead; repeatable",
    )
    parser.add_argument(
        "--inference-config",
        type=Path,
        metavar="FILE",
        help="inferenceconfig.json of the Azure CLI; it stands for PATH and the settings of its packages",
    )
    parser.add_argument(
        "--deployment-config",
        type=Path,
        metavar="FILE",
        help="deploymentconfig.json of the Azure CLI; settings given to Stoker itself win over it",
    )
    parser.add_argument(
        "--deployment",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="YAML of an online deployment of the Azure CLI (v2), which stands for PATH; repeatable, for the "
        "deployments of one endpoint",
    )
    parser.add_argument(
        "--endpoint",
        type=Path,
        metavar="FILE",
        help="YAML of their endpoint: how callers are known, and which deployment gets which part of the requests",
    )
    parser.add_argument(
        "--model-config-file",
        type=Path,
        metavar="FILE",
        help="models.config of TensorFlow Serving, which stands for PATH",
    )
    parser.add_argument(
        "--batching-parameters-file",
        type=Path,
        metavar="FILE",
        help="TensorFlow Serving's batching parameters, for all models; settings given to Stoker itself win over it",
    )
    group = parser.add_argument_group(
        "model", "settings of PATH; versions and environment those of --model too"
    )
    add_setting_options(group, ModelSettings, _MODEL_SETTINGS)
    parser.set_defaults(**dict.fromkeys(_MODEL_SETTINGS))
    parser.add_argument(
        "--system-managed",
        action="store_true",
        help="install what --environment lists into a virtual environment, in which the model then runs",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="deployment file (YAML) with the same settings"
    )
    add_workspace_argument(parser)
    add_server_options(parser)
    shorten_help(parser, _COMMON)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal asks to stop."""
    from stoker.settings.workspace import Workspace
    from stoker.supervisor.predecessor import taking_over

    with taking_over(os.environ) as predecessor:
        settings, workspace = serve_settings(args), Workspace.find(args.workspace)
        # Before the import that takes longest.
        print_lines(f"Stoker {__version__} starts.")
        with defaults_set(os.environ, ONE_BLAS_THREAD):
            from stoker.supervisor.serving import serve

        return serve(settings, workspace, args.begun_s, predecessor)


def serve_settings(args: argparse.Namespace) -> ServerSettings:
    """Return the settings of the arguments, the environment and the deployment file together."""
    from stoker.errors import InvalidSettings
    from stoker.models.serving_config import read_batching_parameters
    from stoker.settings.workspace import Workspace

    if args.endpoint is not None and not args.deployment:
        raise InvalidSettings(
            "--endpoint shares requests out to deployments; give each with --deployment FILE"
        )
    imported: list[ImportedSettings] = []
    script = ModelSettings()
    if args.versions:
        versions = model_settings({"versions": args.versions}, "command line")
        imported.append(ImportedSettings("command line", model=versions))
    if args.deployment_config is not None:
        azure = require_extension("azure").configurations()
        imported.append(azure.DeploymentConfig.from_file(args.deployment_config).imported())
    if args.inference_config is not None:
        azure = require_extension("azure").configurations()
        inference = azure.InferenceConfig.from_file(args.inference_config)
        script = inference.model(Workspace.find(args.workspace).run_dir / "conda")
        imported.append(ImportedSettings(inference.source, notes=inference.notes))
    if args.batching_parameters_file is not None:
        imported.append(read_batching_parameters(args.batching_parameters_file))
    lists_models = args.path is not None and args.path.suffix == _PROPERTIES
    if args.model_config_file is not None or lists_models:
        models = _listed_models(args, imported)
    else:
        models = _deployments(args, imported) if args.deployment else _models(args, script)
        imported += _of_mlserver(args)
    settings = load_settings(vars(args), os.environ, args.config, models, imported)
    azure = None if settings.models else find_extension("azure")
    if azure is None or (server := azure.configurations().AzureServer.find(os.environ)) is None:
        return settings
    imported.append(server.imported())
    environ = {**server.values, **os.environ}
    return load_settings(vars(args), environ, args.config, (server.model(),), imported)


def _deployments(args: argparse.Namespace, imported: list[ImportedSettings]) -> tuple[ModelSettings, ...]:
    """Return the models of Azure's deployments; append their server settings to `imported`."""
    from stoker.settings.workspace import Workspace

    _check_alone(args, "--deployment", ("inference_config", "deployment_config", *_PATH_OPTIONS))
    azure = require_extension("azure").configurations()
    deployments = [azure.OnlineDeployment.from_file(file) for file in args.deployment]
    endpoint = azure.OnlineEndpoint.from_file(args.endpoint) if args.endpoint else azure.OnlineEndpoint()
    imported.append(endpoint.imported(deployments))
    run_dir = Workspace.find(args.workspace).run_dir
    given = _given(args, ("image", "batching", "sample_input", "signature", "environment"))
    own = ModelSettings(environment_managed="system" if args.system_managed else "user", **given)
    return tuple(own.over(deployment.model(run_dir)) for deployment in deployments)


def _listed_models(args: argparse.Namespace, imported: list[ImportedSettings]) -> tuple[ModelSettings, ...]:
    """Return the models of a file of TensorFlow Serving or TorchServe; append its other settings to `imported`."""
    from stoker.models.serving_config import read_model_config

    given = _given(args, ("batching", "signature"))
    if args.model_config_file is not None:
        _check_alone(args, "--model-config-file", ("system_managed", *_ONE_MODEL_OPTIONS, *_PATH_OPTIONS))
        listed, beside = read_model_config(args.model_config_file)
    else:
        _check_alone(args, str(args.path), (*_ONE_MODEL_OPTIONS, *_PATH_OPTIONS[1:]))
        listed, beside = require_extension("torchserve").read_server_config(args.path)
        if args.system_managed:
            given["environment_managed"] = "system"
    imported.append(beside)
    own = ModelSettings(**given, given=frozenset(given))
    return tuple(own.over(model) for model in listed)


def _of_mlserver(args: argparse.Namespace) -> list[ImportedSettings]:
    """Return the settings of MLServer's `settings.json` in the folder PATH, if there is one."""
    from stoker.models.mlserver import read_server_settings

    read = None if args.path is None or not args.path.is_dir() else read_server_settings(args.path)
    return [] if read is None else [read]


def _check_alone(args: argparse.Namespace, chosen: str, others: Sequence[str]) -> None:
    """Raise InvalidSettings if another option names or describes the served models."""
    from stoker.errors import InvalidSettings

    for option in others:
        if getattr(args, option):
            shown = "PATH" if option == "path" else _option(option)
            raise InvalidSettings(f"{shown} and {chosen} both say what is served; leave one out")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _given(args: argparse.Namespace, options: Sequence[str]) -> dict[str, Any]:
    """Return the given ones of these options, as settings of PATH or its replacement."""
    values = {name: getattr(args, name) for name in options if getattr(args, name)}
    return read_settings(ModelSettings, values, "command line")


def _models(args: argparse.Namespace, script: ModelSettings) -> tuple[ModelSettings, ...]:
    """Return the models that the arguments name; `script` has the settings of an inference configuration."""
    from stoker.errors import InvalidSettings

    models = tuple(ModelSettings(registered=reference) for reference in args.model)
    given = _given(args, _DESCRIPTIONS)
    if args.use_model:
        given["uses"] = tuple(args.use_model)
    if args.path is not None and script.path is not None:
        raise InvalidSettings("PATH and --inference-config both name what is served; leave one out")
    if args.path is not None or script.path is not None:
        models = (ModelSettings(path=args.path, **given, given=frozenset(given)).over(script), *models)
    elif given:
        shown = " and ".join("--" + name.replace("_", "-").replace("uses", "use-model") for name in given)
        raise InvalidSettings(f"{shown} describe{'s' * (len(given) == 1)} PATH, which is missing")
    if not models and (args.environment or args.system_managed):
        raise InvalidSettings(
            "--environment and --system-managed describe PATH or --model, which are missing"
        )
    managed = "system" if args.system_managed else "user"
    packages = ModelSettings(environment_managed=managed, **_given(args, ("environment",)))
    return tuple(packages.over(model) for model in models)
