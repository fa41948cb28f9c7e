"""`stoker version`: the versions of Stoker, Python, and what models run on."""

from __future__ import annotations

import argparse
import platform
import sys
from typing import Final

from stoker import __version__
from stoker.commands.terminal import add_json_argument, print_json, table

_PACKAGES: Final = (
    *("stoker-native", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorflow", "torch", "scikit-learn"),
    *("mlflow", "ray"),
)
"""The packages that a report of a defect should name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the versions; of packages, those that are installed."""
    from importlib import metadata

    versions = {"stoker": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if args.json:
        print_json({name.replace("-", "_"): version for name, version in versions.items()})
    else:
        sys.stdout.write(table(list(versions.items())))
    return 0
