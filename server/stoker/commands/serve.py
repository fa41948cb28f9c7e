"""`stoker serve`: load models onto the device and answer scoring requests."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from stoker.settings import ModelSettings, add_server_options, load_settings

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY: Final = "load models onto the device and answer scoring requests"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "Without PATH and --model, the models of the deployment file are served, else every registered model in its "
        "newest version. SIGTERM and Ctrl-C drain: no request is lost; a second one ends at once."
    )
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        metavar="PATH",
        help="model.onnx, a SavedModel folder, score.py, or a folder in Triton's or TensorFlow Serving's layout",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME[:VERSION]",
        help="a registered model; repeatable",
    )
    parser.add_argument("--name", help="service name of PATH (default: from the file's name)")
    parser.add_argument(
        "--model-dir", type=Path, metavar="DIR", help="folder that score.py finds as AZUREML_MODEL_DIR"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="deployment file (YAML) with the same settings"
    )
    parser.add_argument(
        "--workspace", type=Path, metavar="DIR", help="workspace directory (default: .stoker)"
    )
    add_server_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal asks to stop.

    Raises:
        OperatorError: A setting is bad, or a model or device cannot be used.
    """
    from stoker.serving import serve
    from stoker.workspace import Workspace

    settings = load_settings(vars(args), os.environ, args.config, _models(args))
    serve(settings, Workspace.find(args.workspace))
    return 0


def _models(args: argparse.Namespace) -> tuple[ModelSettings, ...]:
    from stoker.errors import InvalidSettings

    models = tuple(ModelSettings(registered=reference) for reference in args.model)
    if args.path is not None:
        models = (ModelSettings(path=args.path, name=args.name, model_dir=args.model_dir), *models)
    elif args.name or args.model_dir:
        raise InvalidSettings("--name and --model-dir describe PATH, which is missing")
    return models
